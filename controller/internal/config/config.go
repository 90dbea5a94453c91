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
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"time"

	"github.com/pelletier/go-toml/v2"

	"github.com/quittance/quittance/profiles/tomlfile"
)

// DefaultPath is where the package installs the file.
const DefaultPath = "/etc/quittance/controller.toml"

// Config is the file's form with defaults applied. Every leaf can also be set
// by the environment variable and by the flag that its path names:
// service.listen is QUITTANCE_SERVICE_LISTEN and --service-listen. The doc tag
// is what the example file, the flags' help and the man page say of the key.
type Config struct {
	StateDir    string `toml:"state_dir" doc:"directory of everything that lasts: attempt records, provider key, inputs in use and, with SQLite, jobs"`
	AdminSocket string `toml:"admin_socket" doc:"socket of agentctl attempts and controller drain; empty: admin.sock in the runtime directory that systemd gives, or else in state_dir"`

	Log      Log      `toml:"log"`
	Service  Service  `toml:"service"`
	Provider Provider `toml:"provider"`
	Host     Host     `toml:"host"`
	Lanes    Lanes    `toml:"lanes"`
	Retry    Retry    `toml:"retry"`
	Metrics  Metrics  `toml:"metrics"`
}

// Log says how the journal is written.
type Log struct {
	Level  string `toml:"level" doc:"trace, debug, info, warn or error"`
	Format string `toml:"format" doc:"text, json, journal (systemd's journal, every key a field), or auto: text on a terminal, journal under systemd and json elsewhere"`
}

// Metrics says where Prometheus reads the process's figures.
type Metrics struct {
	Listen string `toml:"listen" doc:"address of GET /metrics for Prometheus: a loopback host:port, or unix: and an absolute path; empty: none"`
}

// Service is the job service, used by serve and api.
type Service struct {
	Listen       string            `toml:"listen" doc:"address of the job service; without TLS a loopback address"`
	PublicOrigin string            `toml:"public_origin" doc:"scheme and host under which clients reach the service when it is behind a proxy; empty: the listen address"`
	TLSCert      string            `toml:"tls_cert" doc:"certificate file in PEM, read again when it changes; empty: plain HTTP"`
	TLSKey       string            `toml:"tls_key" doc:"key file of tls_cert"`
	Database     string            `toml:"database" doc:"empty: SQLite in data_dir; or postgres://user:password@host/name"`
	DataDir      string            `toml:"data_dir" doc:"database, uploads and results; empty: jobs below state_dir"`
	Topology     string            `toml:"topology" doc:"name of this environment, sent with every answer so that a client pointed at another one stops"`
	Lease        tomlfile.Duration `toml:"attempt_lease" doc:"how long an attempt lives without a heartbeat"`
}

// Provider is how the lanes present themselves to a job service.
type Provider struct {
	API        string `toml:"api" doc:"origin of the job service; used by work (serve talks to itself)"`
	Topology   string `toml:"topology" doc:"topology that every answer of the job service must name; used by work"`
	ID         string `toml:"id" doc:"identity of this node at the job service; each node has its own"`
	Consumer   string `toml:"consumer" doc:"name of this installation of the controller; part of the attempt store's scope"`
	Generation string `toml:"generation" doc:"part of the attempt store's scope, changed by hand only, together with controller store rotate"`
	KeyFile    string `toml:"key_file" doc:"signing key, made at the first start; empty: provider.key below state_dir"`
}

// Host is the private socket of the node's agent.
type Host struct {
	Socket string `toml:"socket" doc:"path of the host agent's socket; a controller in a container gets its directory mounted"`
}

// Lanes bounds the work of this process.
type Lanes struct {
	Count          int               `toml:"count" doc:"attempts that may run at once, from 1 to 64"`
	OfferingsDir   string            `toml:"offerings_dir" doc:"directory of offerings, one *.toml each"`
	MaxActive      int               `toml:"max_active" doc:"attempt records that are not archived, at most 1024"`
	History        int               `toml:"history" doc:"archived attempt records that are kept; required"`
	DiskReserve    tomlfile.Size     `toml:"disk_reserve" doc:"space of state_dir's file system that no new attempt may use"`
	StopTimeout    tomlfile.Duration `toml:"stop_timeout" doc:"how long running attempts may go on after a stop was asked"`
	ObservationGap tomlfile.Duration `toml:"observation_gap" doc:"how long an attempt may run while the job service cannot be observed; with the profile's lease, stop grace and clock_margin it must stay below the attempt lease"`
	Heartbeat      tomlfile.Duration `toml:"heartbeat" doc:"pause between two observations of an attempt"`
	Poll           tomlfile.Duration `toml:"poll" doc:"pause between two looks for a job"`
	ClockMargin    tomlfile.Duration `toml:"clock_margin" doc:"what is added to a worker's latest end before it is compared with the attempt lease"`
	Exchange       tomlfile.Duration `toml:"exchange" doc:"deadline of one exchange with the job service, from connect to the last byte"`
	Transfer       tomlfile.Duration `toml:"transfer" doc:"deadline of one upload's transfer"`
}

// Retry is the repetition policy of START, COMPLETE and FAIL.
type Retry struct {
	StartWindow    tomlfile.Duration `toml:"start_window" doc:"how long one START is repeated before the lane reports that it is held"`
	TerminalWindow tomlfile.Duration `toml:"terminal_window" doc:"the same for COMPLETE and FAIL"`
	BackoffMin     tomlfile.Duration `toml:"backoff_min" doc:"ceiling of the first pause between repetitions; it doubles each time"`
	BackoffMax     tomlfile.Duration `toml:"backoff_max" doc:"ceiling of every pause"`
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
		StateDir: "/var/lib/quittance-controller",
		Log:      Log{Level: "info", Format: "auto"},
		Service: Service{
			Listen: "127.0.0.1:8470", Topology: "default", Lease: tomlfile.Duration{Duration: 10 * time.Minute},
		},
		Provider: Provider{Topology: "default", ID: "node", Consumer: "default", Generation: "1"},
		Host:     Host{Socket: "/run/quittance/agent.sock"},
		Lanes: Lanes{
			Count: 1, OfferingsDir: "/etc/quittance/offerings", MaxActive: 16, DiskReserve: tomlfile.Size{Bytes: 64 << 20},
			StopTimeout:    tomlfile.Duration{Duration: 2 * time.Minute},
			ObservationGap: tomlfile.Duration{Duration: 3 * time.Minute},
			Heartbeat:      tomlfile.Duration{Duration: 10 * time.Second},
			Poll:           tomlfile.Duration{Duration: time.Second},
			ClockMargin:    tomlfile.Duration{Duration: 30 * time.Second},
			Exchange:       tomlfile.Duration{Duration: 30 * time.Second},
			Transfer:       tomlfile.Duration{Duration: 5 * time.Minute},
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
// optional. The error holds every problem; what could be read is returned with
// it, so that `config check` can go on.
func Load(path string, optional bool, env func(string) (string, bool), flags map[string]string) (Config, error) {
	c := Default()
	var problems []error
	if err := tomlfile.Read(path, &c); err != nil && (!optional || !errors.Is(err, fs.ErrNotExist)) {
		problems = append(problems, err)
	}
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
	// logFormats are those of the program's log.
	logFormats = []string{"auto", "text", "json", "journal"}
)

// unservable says why figures are not served on an address, or "".
func unservable(address string) string {
	if path, ok := strings.CutPrefix(address, "unix:"); ok {
		if !filepath.IsAbs(path) || filepath.Clean(path) != path {
			return "must have an absolute path after unix:"
		}
		return ""
	}
	if address == "" {
		return ""
	}
	host, _, err := net.SplitHostPort(address)
	if err != nil {
		return "must be empty, unix: and a path, or a loopback host:port, such as \"127.0.0.1:9472\""
	}
	if ip := net.ParseIP(host); host != "localhost" && (ip == nil || !ip.IsLoopback()) {
		return "is not a loopback address: figures have neither TLS nor a password; put a proxy that has both before them"
	}
	return ""
}

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
	if !slices.Contains(logFormats, c.Log.Format) {
		refuse("log.format", "must be one of %s", strings.Join(logFormats, ", "))
	}
	if reason := unservable(c.Metrics.Listen); reason != "" {
		refuse("metrics.listen", "%s", reason)
	}
	if c.AdminSocket != "" && !filepath.IsAbs(c.AdminSocket) {
		refuse("admin_socket", "must be empty or an absolute path")
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
		{"provider.topology", c.Provider.Topology}, {"provider.id", c.Provider.ID}, {"provider.consumer", c.Provider.Consumer}, {"provider.generation", c.Provider.Generation},
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
	if l.MaxActive < l.Count || l.MaxActive > 1024 {
		refuse("lanes.max_active", "must be at least lanes.count and at most 1024")
	}
	if l.Exchange.Duration < time.Second || l.Exchange.Duration > l.ObservationGap.Duration {
		refuse("lanes.exchange", "must be at least 1s and at most lanes.observation_gap")
	}
	if l.Transfer.Duration < time.Second {
		refuse("lanes.transfer", "must be at least 1s")
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

// AdminPath is the operators' socket of a process whose runtime directory is
// runtime, "" where it has none.
func (c *Config) AdminPath(runtime string) string {
	switch {
	case c.AdminSocket != "":
		return c.AdminSocket
	case runtime != "":
		return filepath.Join(runtime, "admin.sock")
	}
	return filepath.Join(c.StateDir, "admin.sock")
}

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
