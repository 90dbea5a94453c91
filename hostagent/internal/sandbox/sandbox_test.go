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

	"github.com/hashicorp/go-hclog"
	specs "github.com/opencontainers/runtime-spec/specs-go"

	"github.com/quittance/quittance/hostagent/internal/engine"
)

var update = flag.Bool("update", false, "write testdata anew")

func testConfig(t *testing.T) Config {
	t.Helper()
	return Config{
		Name: "controller", Identity: Identity{UID: 990, GID: 990, Groups: []uint32{990, 991}, Name: "quittance-controller"},
		Network: HostNetwork, Read: []string{"/etc/quittance", "/run/quittance"}, Write: []string{"/var/lib/quittance-controller"},
		Dir: "/run/quittance-container", Seccomp: engine.BaseSeccomp(), Environment: []string{"QUITTANCE_LOG_LEVEL=debug"},
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
		"\"/run/../etc\"":     func(c *Config) { c.Dir = "/run/../etc" },
		"\"/run\"":            func(c *Config) { c.Dir = "/run" },
		"\"/runs/x\"":         func(c *Config) { c.Dir = "/runs/x" },
		"\"\"":                func(c *Config) { c.Dir = "" },
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

// FuzzFilter: whatever the program sends, only what it may say of itself is
// passed on, each part as it was, and nothing in it says more the second time.
func FuzzFilter(f *testing.F) {
	for _, seed := range []string{"READY=1\nSTATUS=serving\nFDNAME=x", "MAINPID=1", "\n=\nREADY", "STATUS=a\x00\nMAINPID=2", "ERRNO=\r\nNOTIFYACCESS=all"} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, state string) {
		out := filter(state)
		if again := filter(out); again != out {
			t.Errorf("%q is %q and then %q", state, out, again)
		}
		given := strings.Split(state, "\n")
		for line := range strings.SplitSeq(out, "\n") {
			name, _, _ := strings.Cut(line, "=")
			if out != "" && (!slices.Contains(given, line) || !slices.Contains([]string{"READY", "STOPPING", "STATUS", "RELOADING", "MONOTONIC_USEC", "ERRNO"}, name)) {
				t.Errorf("%q lets %q through", state, line)
			}
		}
	})
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

// The directory is made where it is missing; one that is there keeps its mode, and
// is refused where somebody else could write in it or nobody could walk through.
func TestDirectoryOfContainers(t *testing.T) {
	below := t.TempDir()
	s := &supervisor{dir: filepath.Join(below, "a", "controller")}
	lock, err := s.lock(below)
	if err != nil {
		t.Fatal(err)
	}
	if err := lock.Close(); err != nil {
		t.Fatal(err)
	}
	for mode, want := range map[os.FileMode]string{0o755: "", 0o711: "", 0o700: "chmod 0711", 0o777: "only root can write"} {
		if err := os.Chmod(filepath.Join(below, "a"), mode); err != nil {
			t.Fatal(err)
		}
		if err := ownWay(below, s.dir); (err == nil) != (want == "") || err != nil && !strings.Contains(err.Error(), want) {
			t.Errorf("mode %04o: %v", mode, err)
		}
		if info, err := os.Stat(filepath.Join(below, "a")); err != nil || info.Mode().Perm() != mode {
			t.Errorf("mode %04o became %v, %v", mode, info.Mode(), err)
		}
	}
	if err := os.Symlink("/etc", filepath.Join(below, "link")); err != nil {
		t.Fatal(err)
	}
	if err := ownWay(below, filepath.Join(below, "link", "controller")); err == nil || !strings.Contains(err.Error(), "is not a directory") {
		t.Errorf("a link: %v", err)
	}
}

// A directory with something in it that is no container's is left as it is.
func TestClearTouchesNothingForeign(t *testing.T) {
	s := &supervisor{dir: t.TempDir()}
	for _, name := range []string{lockName, specName, "precious"} {
		if err := os.WriteFile(s.path(name), nil, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	if err := s.clear(); err == nil || !strings.Contains(err.Error(), "precious is not of a container") {
		t.Errorf("got %v", err)
	}
	for _, name := range []string{lockName, specName, "precious"} {
		if _, err := os.Stat(s.path(name)); err != nil {
			t.Error(err)
		}
	}
}

// A start that hangs ends with a stop (I33), and says why; what came is kept for
// the program.
func TestStopDuringAHungStart(t *testing.T) {
	dir := t.TempDir()
	runtime := filepath.Join(dir, "runc")
	if err := os.WriteFile(runtime, []byte("#!/bin/sh\nexec sleep 600\n"), 0o755); err != nil {
		t.Fatal(err)
	}
	signals := make(chan os.Signal, 2)
	signals <- syscall.SIGHUP
	signals <- syscall.SIGTERM
	s := &supervisor{dir: dir, stopTime: 10 * time.Millisecond, config: Config{Runtime: runtime, Signals: signals}}
	began := time.Now()
	_, err := s.start()
	if err == nil || !strings.Contains(err.Error(), "terminated came") {
		t.Errorf("got %v", err)
	}
	if took := time.Since(began); took >= runtimeTime {
		t.Errorf("the stop was ignored for %s", took)
	}
	if !slices.Equal(s.early, []os.Signal{syscall.SIGHUP, syscall.SIGTERM}) {
		t.Errorf("kept %v", s.early)
	}
}

// A start without an end is given up by itself.
func TestStartIsBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, started, began := &supervisor{}, make(chan struct{}), time.Now()
		s.collect(started, func(cause error) {
			if took := time.Since(began); took != runtimeTime || cause == nil {
				t.Errorf("given up after %s: %v", took, cause)
			}
			close(started)
		})
	})
}

// A file that could not be copied once is copied when that is possible.
func TestRefreshTriesAgain(t *testing.T) {
	s := &supervisor{dir: t.TempDir(), seen: map[string]seen{}, told: map[string]string{}, config: Config{Log: hclog.NewNullLogger()}}
	if err := os.WriteFile(s.path(etcDir), nil, 0o600); err != nil { // in the way
		t.Fatal(err)
	}
	s.refresh()
	if len(s.told) == 0 {
		t.Fatal("copied into a file")
	}
	if err := errors.Join(os.Remove(s.path(etcDir)), os.Mkdir(s.path(etcDir), 0o755)); err != nil {
		t.Fatal(err)
	}
	s.refresh()
	want, err := os.ReadFile("/etc/hosts")
	if err != nil {
		t.Fatal(err)
	}
	if got, err := os.ReadFile(filepath.Join(s.path(etcDir), "hosts")); err != nil || string(got) != string(want) {
		t.Errorf("copied %q, %v", got, err)
	}
	if len(s.told) > 0 {
		t.Errorf("still said: %v", s.told)
	}
}

// What is mounted below is found, and narrowed as what it lies in is.
func TestMountsBelow(t *testing.T) {
	points, err := mountPointsOf("22 1 0:2 / / rw - ext4 /dev/vda rw\n23 22 0:3 / /srv/a\\040b/c rw,relatime shared:1 - tmpfs tmpfs rw\n")
	if err != nil || !slices.Equal(points, []string{"/", "/srv/a b/c"}) {
		t.Errorf("%q, %v", points, err)
	}
	if _, err := mountPointsOf("22 1\n"); err == nil {
		t.Error("half a line is read")
	}
	dir := t.TempDir()
	below, err := mountsBelow([]string{"/", "/proc/self/fd", dir})
	if err != nil || !below["/"] || below["/proc/self/fd"] || below[dir] {
		t.Errorf("%v, %v", below, err)
	}
	for _, writable := range []bool{false, true} {
		options := bind("/srv", "/srv", writable, true).Options
		for _, want := range []string{"rnosuid", "rnodev", "rnoexec"} {
			if !slices.Contains(options, want) {
				t.Errorf("%q lack %s", options, want)
			}
		}
		if slices.Contains(options, "rro") == writable {
			t.Errorf("writable %v: %q", writable, options)
		}
	}
}
