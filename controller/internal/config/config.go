// Package config is the controller's configuration: its strict TOML form, the
// order in which flags, environment and file override each other, defaults,
// and checks that report every problem at once. It owns what the keys mean. It
// must not open what they name beyond looking at it, and it starts nothing.
package config

import (
	"errors"
	"fmt"
	"io/fs"
	"net"
	"net/url"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"time"

	"github.com/pelletier/go-toml/v2"

	"github.com/quittance/quittance/controller/internal/tomlfile"
)

// DefaultPath is where the package installs the file.
const DefaultPath = "/etc/quittance/controller.toml"

// Config is the file's form with defaults applied. Every leaf can also be set
// by the environment variable and by the flag that its path names:
// service.listen is QUITTANCE_SERVICE_LISTEN and --service-listen.
type Config struct {
	StateDir   string `toml:"state_dir"`
	RuntimeDir string `toml:"runtime_dir"`

	Log      Log      `toml:"log"`
	Service  Service  `toml:"service"`
	Provider Provider `toml:"provider"`
	Host     Host     `toml:"host"`
	Lanes    Lanes    `toml:"lanes"`
	Retry    Retry    `toml:"retry"`
}

// Log says how the journal is written.
type Log struct {
	Level string `toml:"level"` // trace, debug, info, warn, error
	JSON  bool   `toml:"json"`
}

// Service is the job service, used by serve and api.
type Service struct {
	Listen       string            `toml:"listen"`
	PublicOrigin string            `toml:"public_origin"`
	TLSCert      string            `toml:"tls_cert"`
	TLSKey       string            `toml:"tls_key"`
	Database     string            `toml:"database"`
	DataDir      string            `toml:"data_dir"`
	Topology     string            `toml:"topology"`
	Lease        tomlfile.Duration `toml:"attempt_lease"`
}

// Provider is how the lanes present themselves to a job service.
type Provider struct {
	API        string `toml:"api"`
	ID         string `toml:"id"`
	Consumer   string `toml:"consumer"`
	Generation string `toml:"generation"`
	KeyFile    string `toml:"key_file"`
}

// Host is the private socket of the node's agent.
type Host struct {
	Socket string `toml:"socket"`
}

// Lanes bounds the work of this process.
type Lanes struct {
	Count          int               `toml:"count"`
	OfferingsDir   string            `toml:"offerings_dir"`
	MaxActive      int               `toml:"max_active"`
	History        int               `toml:"history"`
	DiskReserve    tomlfile.Size     `toml:"disk_reserve"`
	StopTimeout    tomlfile.Duration `toml:"stop_timeout"`
	ObservationGap tomlfile.Duration `toml:"observation_gap"`
	Heartbeat      tomlfile.Duration `toml:"heartbeat"`
	Poll           tomlfile.Duration `toml:"poll"`
	ClockMargin    tomlfile.Duration `toml:"clock_margin"`
}

// Retry is the repetition policy of START, COMPLETE and FAIL.
type Retry struct {
	StartWindow    tomlfile.Duration `toml:"start_window"`
	TerminalWindow tomlfile.Duration `toml:"terminal_window"`
	BackoffMin     tomlfile.Duration `toml:"backoff_min"`
	BackoffMax     tomlfile.Duration `toml:"backoff_max"`
}

// Mode is what the process does.
type Mode string

// The modes.
const (
	Serve Mode = "serve" // job service and lanes
	API   Mode = "api"   // job service alone
	Work  Mode = "work"  // lanes alone
)

// HasService reports whether the mode runs the job service.
func (m Mode) HasService() bool { return m == Serve || m == API }

// HasLanes reports whether the mode runs lanes.
func (m Mode) HasLanes() bool { return m == Serve || m == Work }

// Default is the configuration of an empty file. lanes.history has no default:
// how much is kept is the operator's choice.
func Default() Config {
	return Config{
		StateDir:   "/var/lib/quittance-controller",
		RuntimeDir: "/run/quittance-controller",
		Log:        Log{Level: "info"},
		Service: Service{
			Listen: "127.0.0.1:8470", Topology: "default", Lease: tomlfile.Duration{Duration: 10 * time.Minute},
		},
		Provider: Provider{ID: "node", Consumer: "default", Generation: "1"},
		Host:     Host{Socket: "/run/quittance/agent.sock"},
		Lanes: Lanes{
			Count: 1, OfferingsDir: "/etc/quittance/offerings", MaxActive: 16, DiskReserve: tomlfile.Size{Bytes: 64 << 20},
			StopTimeout:    tomlfile.Duration{Duration: 2 * time.Minute},
			ObservationGap: tomlfile.Duration{Duration: 2 * time.Minute},
			Heartbeat:      tomlfile.Duration{Duration: 10 * time.Second},
			Poll:           tomlfile.Duration{Duration: time.Second},
			ClockMargin:    tomlfile.Duration{Duration: 30 * time.Second},
		},
		Retry: Retry{
			StartWindow:    tomlfile.Duration{Duration: 10 * time.Minute},
			TerminalWindow: tomlfile.Duration{Duration: 24 * time.Hour},
			BackoffMin:     tomlfile.Duration{Duration: 500 * time.Millisecond},
			BackoffMax:     tomlfile.Duration{Duration: 30 * time.Second},
		},
	}
}

// Load reads path, then lets the environment and then flags override it. env
// looks a variable up; flags maps the flag names that were given to their
// values. A file that is not there is an error unless it is [DefaultPath] and
// optional.
func Load(path string, optional bool, env func(string) (string, bool), flags map[string]string) (Config, error) {
	c := Default()
	err := tomlfile.Read(path, &c)
	if errors.Is(err, fs.ErrNotExist) && optional {
		err = nil
	}
	if err != nil {
		return Config{}, err
	}
	var problems []error
	for _, key := range Keys() {
		for _, from := range []struct {
			name  string
			value func() (string, bool)
		}{
			{key.Env(), func() (string, bool) { return env(key.Env()) }},
			{"--" + key.Flag(), func() (string, bool) { v, ok := flags[key.Flag()]; return v, ok }},
		} {
			if value, given := from.value(); given {
				if err := key.set(&c, value); err != nil {
					problems = append(problems, fmt.Errorf("%s: %w", from.name, err))
				}
			}
		}
	}
	return c, errors.Join(problems...)
}

var (
	nameForm  = regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9._-]{0,63}$`)
	logLevels = []string{"trace", "debug", "info", "warn", "error"}
)

// Check reports every problem of the configuration for a mode at once, each
// with its key and the remedy.
func (c *Config) Check(mode Mode) error {
	var problems []error
	refuse := func(key, format string, args ...any) {
		problems = append(problems, fmt.Errorf("%s: %s", key, fmt.Sprintf(format, args...)))
	}
	if !filepath.IsAbs(c.StateDir) {
		refuse("state_dir", "must be an absolute path")
	}
	if !slices.Contains(logLevels, c.Log.Level) {
		refuse("log.level", "must be one of %s", strings.Join(logLevels, ", "))
	}
	if mode.HasService() {
		c.checkService(refuse)
	}
	if mode.HasLanes() {
		c.checkLanes(mode, refuse)
	}
	return errors.Join(problems...)
}

func (c *Config) checkService(refuse func(key, format string, args ...any)) {
	s := &c.Service
	host, _, err := net.SplitHostPort(s.Listen)
	if err != nil {
		refuse("service.listen", "must be host:port, such as \"127.0.0.1:8470\"")
	}
	if (s.TLSCert == "") != (s.TLSKey == "") {
		refuse("service.tls_cert", "needs service.tls_key beside it; set both or neither")
	}
	if ip := net.ParseIP(host); err == nil && s.TLSCert == "" && host != "localhost" && (ip == nil || !ip.IsLoopback()) {
		refuse("service.listen", "is not a loopback address and there is no TLS; set service.tls_cert and service.tls_key, or listen on 127.0.0.1 behind a proxy")
	}
	if s.PublicOrigin != "" && !isOrigin(s.PublicOrigin) {
		refuse("service.public_origin", "must be an origin such as \"https://jobs.example.org\", without a path")
	}
	if s.Database != "" && !strings.HasPrefix(s.Database, "postgres://") && !strings.HasPrefix(s.Database, "postgresql://") {
		refuse("service.database", "must be empty (SQLite in service.data_dir) or a postgres:// address")
	}
	if !nameForm.MatchString(s.Topology) {
		refuse("service.topology", "must be 1 to 64 characters of A-Z a-z 0-9 . _ -")
	}
	if s.Lease.Duration < time.Minute {
		refuse("service.attempt_lease", "must be at least 1m")
	}
}

func (c *Config) checkLanes(mode Mode, refuse func(key, format string, args ...any)) {
	if mode == Work && !isOrigin(c.Provider.API) {
		refuse("provider.api", "is required for work: the job service's origin, such as \"https://jobs.example.org\" (--api)")
	}
	for _, f := range []struct{ key, value string }{
		{"provider.id", c.Provider.ID}, {"provider.consumer", c.Provider.Consumer}, {"provider.generation", c.Provider.Generation},
	} {
		if !nameForm.MatchString(f.value) {
			refuse(f.key, "must be 1 to 64 characters of A-Z a-z 0-9 . _ -")
		}
	}
	if !filepath.IsAbs(c.Host.Socket) {
		refuse("host.socket", "must be the absolute path of the agent's socket")
	}
	l := &c.Lanes
	if l.Count < 1 || l.Count > 64 {
		refuse("lanes.count", "must be from 1 to 64")
	}
	if l.History < 1 || l.History > 100_000 {
		refuse("lanes.history", "is required: how many archived attempts are kept, from 1 to 100000; 64 is usual")
	}
	if l.MaxActive < l.Count {
		refuse("lanes.max_active", "must be at least lanes.count")
	}
	if l.ObservationGap.Duration < time.Second {
		refuse("lanes.observation_gap", "must be at least 1s")
	}
	if l.Heartbeat.Duration <= 0 || 2*l.Heartbeat.Duration > l.ObservationGap.Duration {
		refuse("lanes.heartbeat", "must be above 0 and at most half of lanes.observation_gap")
	}
	if l.Poll.Duration < 10*time.Millisecond {
		refuse("lanes.poll", "must be at least 10ms")
	}
	r := &c.Retry
	if r.BackoffMin.Duration <= 0 || r.BackoffMin.Duration > r.BackoffMax.Duration {
		refuse("retry.backoff_min", "must be above 0 and at most retry.backoff_max")
	}
	if r.StartWindow.Duration <= 0 {
		refuse("retry.start_window", "must be above 0")
	}
	if r.TerminalWindow.Duration <= 0 {
		refuse("retry.terminal_window", "must be above 0")
	}
}

func isOrigin(s string) bool {
	u, err := url.Parse(s)
	return err == nil && (u.Scheme == "https" || u.Scheme == "http") && u.Host != "" && u.Path == "" &&
		u.RawQuery == "" && u.Fragment == "" && u.User == nil
}

// AttemptsDir is the attempt store's directory.
func (c *Config) AttemptsDir() string { return filepath.Join(c.StateDir, "attempts") }

// UploadsDir is where inputs that are uploads are kept while they are used.
func (c *Config) UploadsDir() string { return filepath.Join(c.StateDir, "inputs") }

// JobsDir is the job service's directory.
func (c *Config) JobsDir() string {
	if c.Service.DataDir != "" {
		return c.Service.DataDir
	}
	return filepath.Join(c.StateDir, "jobs")
}

// ProviderKey is the file of the provider's signing key.
func (c *Config) ProviderKey() string {
	if c.Provider.KeyFile != "" {
		return c.Provider.KeyFile
	}
	return filepath.Join(c.StateDir, "provider.key")
}

// LoopbackAPI is the origin under which the lanes of serve reach their own
// service.
func (c *Config) LoopbackAPI() string {
	if c.Service.PublicOrigin != "" {
		return c.Service.PublicOrigin
	}
	scheme := "http"
	if c.Service.TLSCert != "" {
		scheme = "https"
	}
	return scheme + "://" + c.Service.Listen
}

// String is the effective configuration as TOML, a password in the database's
// address left out (I37).
func (c Config) String() string {
	if u, err := url.Parse(c.Service.Database); err == nil && u.User != nil {
		c.Service.Database = u.Redacted()
	}
	text, err := toml.Marshal(c)
	if err != nil {
		return "the configuration cannot be printed: " + err.Error()
	}
	return string(text)
}

// Exists reports a path that is missing, with the remedy, or nil.
func Exists(key, path, remedy string) error {
	if _, err := os.Stat(path); err != nil {
		return fmt.Errorf("%s: %w; %s", key, err, remedy)
	}
	return nil
}
