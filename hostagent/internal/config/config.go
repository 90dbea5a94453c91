// Package config is the agent's configuration: its keys with their meaning,
// defaults and bounds, and how file, environment and flags are put together.
//
// It owns the text of every key: the example file, the flags' help and the man
// page are made from [Keys]. It must not know what the values are used for.
//
//	flags  override  QUITTANCE_… environment  overrides  file  overrides  defaults
//
// Reading is strict (I34): an unknown key is an error. All problems come at
// once, each with its remedy.
package config

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/quittance/quittance/profiles/tomlfile"
)

// DefaultFile is read when no other file is named; it may be absent.
const DefaultFile = "/etc/quittance/hostagent.toml"

// EnvPrefix begins the environment variable of a key: max_slots is
// QUITTANCE_MAX_SLOTS.
const EnvPrefix = "QUITTANCE_"

// Config is the effective configuration. Each field is described by its key in
// [Keys].
type Config struct {
	StateDir        string   `toml:"state_dir"`
	Socket          string   `toml:"socket"`
	SocketGroup     string   `toml:"socket_group"`
	ControllerUIDs  Users    `toml:"controller_uids"`
	OperatorUIDs    Users    `toml:"operator_uids"`
	ProfileDir      string   `toml:"profile_dir"`
	CDIDirs         Paths    `toml:"cdi_dirs"`
	EngineAddress   string   `toml:"engine_address"`
	Snapshotter     string   `toml:"snapshotter"`
	InitPath        string   `toml:"init_path"`
	CgroupRoot      string   `toml:"cgroup_root"`
	MaxSlots        int64    `toml:"max_slots"`
	MaxUnreleased   int64    `toml:"max_unreleased"`
	MemoryBudget    Size     `toml:"memory_budget"`
	StuckAfter      Duration `toml:"stuck_after"`
	ExitGrace       Duration `toml:"exit_grace"`
	EngineReadTime  Duration `toml:"engine_read_timeout"`
	EngineMakeTime  Duration `toml:"engine_create_timeout"`
	EngineStartTime Duration `toml:"engine_start_timeout"`
	EngineDropTime  Duration `toml:"engine_delete_timeout"`
	MetricsSocket   string   `toml:"metrics_socket"`
	MetricsGroup    string   `toml:"metrics_group"`
	LogLevel        string   `toml:"log_level"`
	LogFormat       string   `toml:"log_format"`
}

// Key describes one configuration key.
type Key struct {
	Name string
	Doc  string // full sentences, without line breaks
}

// Keys lists every key in the order of the example file.
func Keys() []Key {
	return []Key{
		{"state_dir", "Directory of the ledger, the host key and the captured output; root's alone, on a local file system that syncs honestly."},
		{"socket", "Path of the private socket. Containers get its directory mounted, never the socket file."},
		{"socket_group", "Group that may connect, a name or a number; empty for root only. With socket activation the socket unit decides instead."},
		{"controller_uids", "Users that may act as controllers, by number or by name."},
		{"operator_uids", "Users that may read, retire, drain and set the owner, by number or by name."},
		{"profile_dir", "Directory of the profiles, one per *.toml file; read at start and at SIGHUP."},
		{"cdi_dirs", "Directories of CDI specs, which say what devices this host has, the later ones winning; an empty list offers none. Whoever can write there is root: hooks of a spec run as root."},
		{"engine_address", "Socket of containerd."},
		{"snapshotter", "Snapshotter that containers' file systems are made with."},
		{"init_path", "The catatonit that runs as PID 1 in containers whose profile says init = true."},
		{"cgroup_root", "Cgroup below every hierarchy's mount that holds the workers' cgroups; auto is that of quittance-workers.service where systemd runs, and /quittance elsewhere."},
		{"max_slots", "Allocations at once that are not consumed, 1 to 512; above it new ones are refused with capacity."},
		{"max_unreleased", "Consumed allocations whose history is not released, 1 to 1024; above it new ones are refused with history_full."},
		{"memory_budget", "Sum of the memory limits of all allocations that are not retired; 0B for all of the machine's memory."},
		{"stuck_after", "How long a step of stopping or removing may fail before a stuck receipt says what is seen, 1s to 24h."},
		{"exit_grace", "How long the engine may take to report an exit that the kernel has shown, 100ms to 5m; then its code is unknown."},
		{"engine_read_timeout", "Deadline of reading from the engine, 1s to 10m."},
		{"engine_create_timeout", "Deadline of making a container, 1s to 10m. The longest of the engine's deadlines is also how long an unknown creation is waited for."},
		{"engine_start_timeout", "Deadline of starting a container's process, 1s to 10m."},
		{"engine_delete_timeout", "Deadline of each removal in the engine, 10s to 10m."},
		{"metrics_socket", "Path of a Unix socket that answers GET /metrics for Prometheus; empty for none. The agent has no network of its own: see quittance-hostagent-metrics(7) for a proxy."},
		{"metrics_group", "Group that may read metrics_socket, a name or a number; empty for root only."},
		{"log_level", "trace, debug, info, warn or error."},
		{"log_format", "text, json, journal (systemd's journal, every key a field), or auto: text on a terminal, journal under systemd and json elsewhere."},
	}
}

// Default is the configuration without any file, environment or flag.
func Default() Config {
	return Config{
		StateDir: "/var/lib/quittance", Socket: "/run/quittance/agent.sock", SocketGroup: "",
		ControllerUIDs: Users{}, OperatorUIDs: Users{int64(0)},
		ProfileDir: "/etc/quittance/profiles", CDIDirs: Paths{"/etc/cdi", "/var/run/cdi"},
		EngineAddress: "/run/containerd/containerd.sock", Snapshotter: "overlayfs",
		InitPath: "/usr/bin/catatonit", CgroupRoot: autoCgroupRoot, MaxSlots: 16, MaxUnreleased: 256,
		StuckAfter: Duration{Duration: 2 * time.Minute}, ExitGrace: Duration{Duration: 5 * time.Second},
		EngineReadTime: Duration{Duration: 10 * time.Second}, EngineMakeTime: Duration{Duration: time.Minute},
		EngineStartTime: Duration{Duration: 30 * time.Second}, EngineDropTime: Duration{Duration: time.Minute},
		LogLevel: "info", LogFormat: "auto",
	}
}

// autoCgroupRoot leaves the choice to WorkersCgroup. The unit and an operator's
// command line must mean the same cgroup without being told.
const autoCgroupRoot = "auto"

// WorkersCgroup is the cgroup that cgroup_root means on this machine.
func (c Config) WorkersCgroup() string {
	if c.CgroupRoot != autoCgroupRoot {
		return c.CgroupRoot
	}
	// The directory that sd_booted(3) looks for.
	if info, err := os.Lstat("/run/systemd/system"); err == nil && info.IsDir() {
		return "/system.slice/quittance-workers.service"
	}
	return "/quittance"
}

// Error lists everything that is wrong with a configuration.
type Error struct{ Problems []string }

func (e *Error) Error() string { return "configuration: " + strings.Join(e.Problems, "; ") }

// Sources are where a configuration comes from.
type Sources struct {
	// File is the file to read. With Required a file that is absent is an error.
	File     string
	Required bool
	// Environ is the environment as os.Environ gives it.
	Environ []string
	// Flags are the keys that were set on the command line.
	Flags map[string]string
}

// Load puts a configuration together. It is returned even with an [*Error], so
// that `config check` can show what it would be.
func Load(s Sources) (Config, error) {
	c, problems := Default(), []string(nil)
	problems = append(problems, c.readFile(s)...)
	known := map[string]bool{}
	for _, k := range Keys() {
		known[k.Name] = true
	}
	for _, pair := range s.Environ {
		name, value, _ := strings.Cut(pair, "=")
		key := strings.ToLower(strings.TrimPrefix(name, EnvPrefix))
		if !strings.HasPrefix(name, EnvPrefix) || !known[key] || name != EnvPrefix+strings.ToUpper(key) {
			continue // other programs of the family share the prefix
		}
		if err := c.set(key, value); err != nil {
			problems = append(problems, name+" "+err.Error())
		}
	}
	for _, k := range Keys() {
		if value, ok := s.Flags[k.Name]; ok {
			if err := c.set(k.Name, value); err != nil {
				problems = append(problems, "--"+strings.ReplaceAll(k.Name, "_", "-")+" "+err.Error())
			}
		}
	}
	problems = append(problems, c.check()...)
	if len(problems) > 0 {
		return c, &Error{Problems: problems}
	}
	return c, nil
}

func (c *Config) readFile(s Sources) []string {
	if s.File == "" {
		return nil
	}
	err := tomlfile.Read(s.File, c)
	if err == nil || errors.Is(err, fs.ErrNotExist) && !s.Required {
		return nil
	}
	var problems []string
	for _, p := range tomlfile.Problems(err) {
		text := p.Error()
		if !strings.Contains(text, s.File) {
			text = s.File + ": " + text
		}
		problems = append(problems, text)
	}
	return problems
}

// check lists what is out of bounds.
func (c *Config) check() []string {
	var problems []string
	bad := func(key, reason string) { problems = append(problems, key+" "+reason) }
	for key, path := range map[string]string{
		"state_dir": c.StateDir, "socket": c.Socket, "profile_dir": c.ProfileDir, "engine_address": c.EngineAddress,
		"init_path": c.InitPath, "cgroup_root": c.WorkersCgroup(),
	} {
		if !filepath.IsAbs(path) || filepath.Clean(path) != path || path == "/" {
			bad(key, "must be an absolute path without . or .. and not / itself")
		}
	}
	for _, dir := range c.CDIDirs {
		if !filepath.IsAbs(dir) || filepath.Clean(dir) != dir || dir == "/" {
			bad("cdi_dirs", "must list absolute paths without . or .. and not / itself")
		}
	}
	for key, v := range map[string]struct{ value, most int64 }{
		"max_slots": {c.MaxSlots, 512}, "max_unreleased": {c.MaxUnreleased, 1024},
	} {
		if v.value < 1 || v.value > v.most {
			bad(key, fmt.Sprintf("must be from 1 to %d", v.most))
		}
	}
	for key, v := range map[string]struct{ value, least, most time.Duration }{
		"stuck_after":           {c.StuckAfter.Duration, time.Second, 24 * time.Hour},
		"exit_grace":            {c.ExitGrace.Duration, 100 * time.Millisecond, 5 * time.Minute},
		"engine_read_timeout":   {c.EngineReadTime.Duration, time.Second, 10 * time.Minute},
		"engine_create_timeout": {c.EngineMakeTime.Duration, time.Second, 10 * time.Minute},
		"engine_start_timeout":  {c.EngineStartTime.Duration, time.Second, 10 * time.Minute},
		"engine_delete_timeout": {c.EngineDropTime.Duration, 10 * time.Second, 10 * time.Minute}, // a shim that the engine forgot is waited for
	} {
		if v.value < v.least || v.value > v.most {
			bad(key, fmt.Sprintf("must be from %s to %s", v.least, v.most))
		}
	}
	if path := c.MetricsSocket; path != "" && (!filepath.IsAbs(path) || filepath.Clean(path) != path || path == c.Socket) {
		bad("metrics_socket", "must be empty or an absolute path without . or .. and not that of socket")
	}
	if c.Snapshotter == "" {
		bad("snapshotter", "must not be empty; overlayfs is usual")
	}
	for key, users := range map[string]Users{"controller_uids": c.ControllerUIDs, "operator_uids": c.OperatorUIDs} {
		if _, err := users.Resolve(); err != nil {
			bad(key, err.Error())
		}
	}
	if _, err := c.GroupID(); err != nil {
		bad("socket_group", err.Error())
	}
	if _, err := c.MetricsGroupID(); err != nil {
		bad("metrics_group", err.Error())
	}
	switch c.LogLevel {
	case "trace", "debug", "info", "warn", "error":
	default:
		bad("log_level", "must be trace, debug, info, warn or error")
	}
	switch c.LogFormat {
	case "auto", "text", "json", "journal":
	default:
		bad("log_format", "must be auto, text, json or journal")
	}
	slices.Sort(problems)
	return problems
}
