package sandbox

import (
	"errors"
	"flag"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	specs "github.com/opencontainers/runtime-spec/specs-go"

	"github.com/quittance/quittance/hostagent/internal/engine"
)

var update = flag.Bool("update", false, "write testdata anew")

func testConfig(t *testing.T) Config {
	t.Helper()
	return Config{
		Name: "controller", Identity: Identity{UID: 990, GID: 990, Groups: []uint32{990, 991}, Name: "quittance-controller"},
		Network: HostNetwork, Read: []string{"/etc/quittance", "/run/quittance"}, Write: []string{"/var/lib/quittance-controller"},
		Seccomp: engine.BaseSeccomp(), Environment: []string{"QUITTANCE_LOG_LEVEL=debug"},
	}
}

// I1: the shape of the container, as far as a wrong line would open it.
func TestSpec(t *testing.T) {
	s := &supervisor{config: testConfig(t), dir: "/run/quittance-container/controller", cgroup: "/unit/container"}
	got := s.spec([]string{"/usr/bin/controller", "serve"})
	if !got.Root.Readonly || !got.Process.NoNewPrivileges || got.Process.Terminal {
		t.Errorf("root %+v, process %+v", got.Root, got.Process)
	}
	c := got.Process.Capabilities
	if n := len(c.Bounding) + len(c.Effective) + len(c.Inheritable) + len(c.Permitted) + len(c.Ambient); n != 0 {
		t.Errorf("%d capabilities", n)
	}
	var kinds []string
	for _, ns := range got.Linux.Namespaces {
		kinds = append(kinds, string(ns.Type)+ns.Path)
	}
	if want := []string{"user", "pid", "ipc", "uts", "mount", "cgroup"}; !slices.Equal(kinds, want) {
		t.Errorf("namespaces %q, want %q", kinds, want)
	}
	for name, maps := range map[string][]specs.LinuxIDMapping{"users": got.Linux.UIDMappings, "groups": got.Linux.GIDMappings} {
		want := []specs.LinuxIDMapping{{ContainerID: 0, HostID: containerRoot, Size: 1}, {ContainerID: 990, HostID: 990, Size: 1}}
		if name == "groups" {
			want = append(want, specs.LinuxIDMapping{ContainerID: 991, HostID: 991, Size: 1})
		}
		if !slices.Equal(maps, want) {
			t.Errorf("%s %v, want %v", name, maps, want)
		}
	}
	if u := got.Process.User; u.UID != 990 || u.GID != 990 || !slices.Equal(u.AdditionalGids, []uint32{991}) {
		t.Errorf("user %+v", u)
	}
	for _, m := range got.Mounts {
		for _, option := range []string{"nosuid", "noexec"} {
			if !slices.Contains(m.Options, option) {
				t.Errorf("%s is mounted without %s", m.Destination, option)
			}
		}
		writable := m.Type != "proc" && !slices.Contains(m.Options, "ro")
		if want := m.Destination == "/tmp" || m.Destination == "/var/lib/quittance-controller"; writable != want {
			t.Errorf("%s is writable: %v, want %v", m.Destination, writable, want)
		}
		if m.Type == "bind" && !slices.Contains(m.Options, "nodev") {
			t.Errorf("%s is mounted without nodev", m.Destination)
		}
	}

	s.config.Network = "jobs"
	last := s.spec(nil).Linux.Namespaces
	if ns := last[len(last)-1]; ns.Type != specs.NetworkNamespace || ns.Path != "/run/netns/jobs" {
		t.Errorf("network %+v", ns)
	}
}

// What lies deeper is mounted later, whatever the order in the configuration is.
func TestMountOrder(t *testing.T) {
	s := &supervisor{config: Config{Read: []string{"/srv/a/b/c"}, Write: []string{"/srv/a", "/srv/a/b"}}}
	var order []string
	for _, m := range s.mounts() {
		if strings.HasPrefix(m.Destination, "/srv") {
			order = append(order, m.Destination)
		}
	}
	if want := []string{"/srv/a", "/srv/a/b", "/srv/a/b/c"}; !slices.Equal(order, want) {
		t.Errorf("order %q, want %q", order, want)
	}
}

// What the filter lets through is reviewed as a file, so that a new version of
// the base cannot open it unseen: go test ./hostagent/internal/sandbox -update.
func TestSeccomp(t *testing.T) {
	got := seccomp(engine.BaseSeccomp())
	if got.DefaultAction != specs.ActErrno || len(got.Architectures) > 1 {
		t.Errorf("default %s, architectures %v", got.DefaultAction, got.Architectures)
	}
	var lines []string
	for _, rule := range got.Syscalls {
		for _, name := range rule.Names {
			line := name
			for _, a := range rule.Args {
				line += " " + string(a.Op)
			}
			if rule.Action != specs.ActAllow {
				line += " " + string(rule.Action)
			}
			if name != "arch_prctl" { // of one architecture
				lines = append(lines, line)
			}
		}
	}
	slices.Sort(lines)
	text := strings.Join(lines, "\n") + "\n"
	const file = "testdata/seccomp.txt"
	if *update {
		if err := os.WriteFile(file, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	if text != string(want) {
		t.Errorf("the filter differs from %s (-update writes it anew, for review):\n%s", file, text)
	}
	for _, call := range []string{"ptrace", "mount", "bpf", "unshare", "setns", "setuid", "memfd_create", "keyctl", "fork", "execveat"} {
		if slices.Contains(lines, call) {
			t.Errorf("%s is allowed", call)
		}
	}
}

func TestConfigRefused(t *testing.T) {
	for what, change := range map[string]func(*Config){
		"name":                func(c *Config) { c.Name = "../x" },
		"network: \"a/b\"":    func(c *Config) { c.Network = "a/b" },
		"network: stat":       func(c *Config) { c.Network = "no-such-namespace" },
		"user":                func(c *Config) { c.Identity.UID = 0 },
		"belong to 0":         func(c *Config) { c.Identity.Groups = []uint32{0} },
		"belong to 214748364": func(c *Config) { c.Identity.GID = containerRoot },
		"clean path":          func(c *Config) { c.Read = []string{"/etc/../root"} },
		"below /":             func(c *Config) { c.Write = []string{"/"} },
		"container's own":     func(c *Config) { c.Write = []string{"/etc"} },
	} {
		c := testConfig(t)
		change(&c)
		if err := c.check(); err == nil || !strings.Contains(err.Error(), what) {
			t.Errorf("%s: %v", what, err)
		}
	}
	c := testConfig(t)
	if err := c.check(); err != nil {
		t.Error(err)
	}
}

// What a program may say of itself, and nothing that speaks of processes,
// descriptors or the unit's time-outs.
func TestFilter(t *testing.T) {
	for in, want := range map[string]string{
		"READY=1":                           "READY=1",
		"READY=1\nSTATUS=serving\nFDNAME=x": "READY=1\nSTATUS=serving",
		"MAINPID=1":                         "",
		"EXTEND_TIMEOUT_USEC=1":             "",
		"FDSTORE=1\nSTOPPING=1":             "STOPPING=1",
		"nonsense":                          "",
		"WATCHDOG=1":                        "",
	} {
		if got := filter(in); got != want {
			t.Errorf("%q becomes %q, want %q", in, got, want)
		}
	}
}

// The program's readiness comes out of its own directory, filtered.
func TestRelay(t *testing.T) {
	said := make(chan string, 4)
	s := &supervisor{dir: t.TempDir(), config: Config{
		Identity: Identity{UID: uint32(os.Getuid()), GID: uint32(os.Getgid())},
		Notify:   func(state string) error { said <- state; return nil },
	}}
	if err := os.Mkdir(s.path(notifyName), 0o755); err != nil {
		t.Fatal(err)
	}
	r, err := s.listenNotify()
	if err != nil {
		t.Fatal(err)
	}
	conn, err := net.Dial("unixgram", filepath.Join(s.path(notifyName), filepath.Base(notifyFile)))
	if err != nil {
		t.Fatal(err)
	}
	for _, state := range []string{"MAINPID=1", "READY=1\nMAINPID=1"} {
		if _, err := conn.Write([]byte(state)); err != nil {
			t.Fatal(err)
		}
	}
	if got := <-said; got != "READY=1" {
		t.Errorf("passed on %q", got)
	}
	if err := errors.Join(conn.Close(), r.close()); err != nil {
		t.Error(err)
	}
}

func TestUnitOf(t *testing.T) {
	const unit = "/system.slice/quittance-controller.service"
	for _, row := range []struct {
		text          string
		unified       bool
		unit, mounted string
	}{
		{"0::" + unit + "\n", true, unit, "/sys/fs/cgroup"},
		{"0::" + unit + "/supervisor\n", true, unit, "/sys/fs/cgroup"},
		{"0::/\n", true, "", "/sys/fs/cgroup"},
		{"4:memory:" + unit + "\n1:name=systemd:" + unit + "\n0::/other\n", false, unit, "/sys/fs/cgroup/systemd"},
		{"9:name=systemd:/\n0::/\n", false, "", "/sys/fs/cgroup/systemd"},
		{"", true, "", "/sys/fs/cgroup"},
	} {
		if unit, mounted := unitOf(row.text, row.unified); unit != row.unit || mounted != row.mounted {
			t.Errorf("%q, unified %v: %q below %q, want %q below %q", row.text, row.unified, unit, mounted, row.unit, row.mounted)
		}
	}
}

func TestAccounts(t *testing.T) {
	passwd, group := testConfig(t).Identity.accounts()
	if want := "quittance-controller:x:990:990::/:/usr/sbin/nologin\n"; passwd != want {
		t.Errorf("passwd %q, want %q", passwd, want)
	}
	if want := "quittance-controller:x:990:\ngroup991:x:991:\n"; group != want {
		t.Errorf("group %q, want %q", group, want)
	}
}

// A file that the machine replaced is seen, at its name and not as the old file;
// one that went away goes; one that is too long leaves the copy alone.
func TestMachineFileFollows(t *testing.T) {
	dir, etc := t.TempDir(), t.TempDir()
	source := filepath.Join(dir, "resolv.conf")
	f := machineFile{"resolv.conf", []string{filepath.Join(dir, "none"), source}, 16}
	pass := func() error {
		now, err := f.look()
		if err != nil {
			return err
		}
		return f.copy(etc, now)
	}
	replace := func(text string) {
		t.Helper()
		if err := errors.Join(os.WriteFile(source+".new", []byte(text), 0o600), os.Rename(source+".new", source)); err != nil {
			t.Fatal(err)
		}
	}
	read := func() string {
		t.Helper()
		text, err := os.ReadFile(filepath.Join(etc, "resolv.conf"))
		if err != nil && !errors.Is(err, os.ErrNotExist) {
			t.Fatal(err)
		}
		return string(text)
	}
	for _, text := range []string{"one", "two"} {
		replace(text)
		if err := pass(); err != nil || read() != text {
			t.Errorf("%q, want %q: %v", read(), text, err)
		}
	}
	replace("more than sixteen bytes")
	if err := pass(); err == nil || read() != "two" {
		t.Errorf("%q after too long a file: %v", read(), err)
	}
	if err := errors.Join(os.Remove(source), pass()); err != nil || read() != "" {
		t.Errorf("%q after the file went: %v", read(), err)
	}
}

// A signal is held back until the program has a handler for it, and not for ever.
func TestAwaitHandler(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		for signal, want := range map[syscall.Signal]time.Duration{
			syscall.SIGTERM: 2 * handlerTick, // Go's runtime has a handler
			syscall.SIGSTOP: handlerTime,     // nobody has
		} {
			began := time.Now()
			awaitHandler(os.Getpid(), signal)
			if took := time.Since(began); took != want {
				t.Errorf("%s was held for %s, want %s", signal, took, want)
			}
		}
	})
}
