package isolation

import (
	"errors"
	"net"
	"os"
	"path/filepath"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"
)

// needed is what the controller does need: these must be allowed.
var needed = []Attempt{
	{"connect to the agent's socket", "its directory is mounted", []string{Allowed}, func(t Targets) error { return connect(t.AgentSocket) }},
	{"write its own state", "its directory is mounted", []string{Allowed}, func(t Targets) error {
		return os.WriteFile(filepath.Join(t.State, "probe"), []byte("x"), 0o600)
	}},
	{"read its configuration", "its directory is mounted", []string{Allowed}, func(t Targets) error { return list(t.Config) }},
	{"read /etc/hosts", "a copy", []string{Allowed}, func(Targets) error { return readByte("/etc/hosts") }},
	{"listen on the loopback address", "the network is given", []string{Allowed}, func(Targets) error {
		l, err := net.Listen("tcp", "127.0.0.1:0")
		if err == nil {
			err = l.Close()
		}
		return err
	}},
	{"write a temporary file", "memory of its own", []string{Allowed}, func(Targets) error {
		return os.WriteFile("/tmp/probe", []byte("x"), 0o600)
	}},
}

const unmounted = "not mounted"

// engine is what this project is about.
var engine = []Attempt{
	{"connect to the engine's socket", unmounted, []string{notThere}, func(t Targets) error { return connect(t.EngineSocket) }},
	{"connect to /run/containerd/containerd.sock", unmounted, []string{notThere}, func(Targets) error { return connect("/run/containerd/containerd.sock") }},
	{"connect to /run/docker.sock", unmounted, []string{notThere}, func(Targets) error { return connect("/run/docker.sock") }},
	{"list the shims' sockets", unmounted, []string{notThere}, func(Targets) error { return list("/run/containerd/s") }},
	{"connect to systemd", unmounted, []string{notThere}, func(Targets) error { return connect("/run/systemd/private") }},
	{"connect to the system bus", unmounted, []string{notThere}, func(Targets) error { return connect("/run/dbus/system_bus_socket") }},
	{"list the agent's state directory", unmounted, []string{notThere}, func(t Targets) error { return list(t.Ledger) }},
	{"read the ledger's directory", unmounted, []string{notThere}, func(t Targets) error { return list(filepath.Join(t.Ledger, "ledger")) }},
	{"read the host's key", unmounted, []string{notThere}, func(t Targets) error { return readByte(filepath.Join(t.Ledger, "host.key")) }},
}

const readOnlyMount = "read-only mount; owned by an unmapped user"

// files are the machine's, and those that the container is made of.
var files = []Attempt{
	{"read /etc/shadow", unmounted, []string{notThere}, func(Targets) error { return readByte("/etc/shadow") }},
	{"list /root", unmounted, []string{notThere}, func(Targets) error { return list("/root") }},
	{"list /home", unmounted, []string{notThere}, func(Targets) error { return list("/home") }},
	{"list /var/lib/containerd", unmounted, []string{notThere}, func(Targets) error { return list("/var/lib/containerd") }},
	{"list /sys", unmounted, []string{notThere, errEmpty.Error()}, func(Targets) error { return list("/sys") }},
	{"list /sys/fs/cgroup", unmounted, []string{notThere}, func(Targets) error { return list("/sys/fs/cgroup") }},
	{"open the disk", "no such device", []string{notThere}, func(Targets) error {
		return anyOf(openRead("/dev/vda"), openRead("/dev/sda"), openRead("/dev/nvme0n1"))
	}},
	{"open /dev/mem", "no such device", []string{notThere}, func(Targets) error { return openRead("/dev/mem") }},
	{"open /dev/kmsg", "no such device", []string{notThere}, func(Targets) error { return openRead("/dev/kmsg") }},
	{"open /dev/fuse", "no such device", []string{notThere}, func(Targets) error { return openRead("/dev/fuse") }},
	{"see a file system of the machine in the mount table", "mount namespace", []string{errNone.Error()}, foreignMounts},
	{"write a file in /", readOnlyMount, []string{readOnly, noAccess}, func(Targets) error { return create("/probe") }},
	{"replace its own program", readOnlyMount, []string{readOnly, noAccess}, func(Targets) error { return create("/usr/bin/controller") }},
	{"remove its own program", readOnlyMount, []string{readOnly, noAccess}, func(Targets) error { return os.Remove("/usr/bin/controller") }},
	{"change its own program's mode", readOnlyMount, []string{readOnly, notPermitted}, func(Targets) error {
		return os.Chmod("/usr/bin/controller", 0o4777)
	}},
	{"write /etc/hosts", readOnlyMount, []string{readOnly, noAccess}, func(Targets) error { return openWrite("/etc/hosts") }},
	{"write its configuration", readOnlyMount, []string{readOnly, noAccess}, func(t Targets) error { return create(filepath.Join(t.Config, "probe")) }},
	{"put a file beside the agent's socket", readOnlyMount, []string{readOnly, noAccess}, func(t Targets) error {
		return create(filepath.Join(filepath.Dir(t.AgentSocket), "probe"))
	}},
	{"remove the agent's socket", readOnlyMount, []string{readOnly, noAccess}, func(t Targets) error { return os.Remove(t.AgentSocket) }},
	{"put a file into /dev", readOnlyMount, []string{readOnly, noAccess}, func(Targets) error { return create("/dev/probe") }},
	{"make a device node in its state", "seccomp; no CAP_MKNOD; nodev", []string{notPermitted}, func(t Targets) error {
		return unix.Mknod(filepath.Join(t.State, "device"), unix.S_IFBLK|0o600, int(unix.Mkdev(8, 0)))
	}},
	{"run a program from its state", "noexec", []string{noAccess}, func(t Targets) error { return runFrom(t.State) }},
	{"run a program from /tmp", "noexec", []string{noAccess}, func(Targets) error { return runFrom("/tmp") }},
	{"give its file to root", "seccomp; no CAP_CHOWN", []string{notPermitted}, func(t Targets) error {
		return os.Chown(filepath.Join(t.State, "probe"), 0, 0)
	}},
	{"set an attribute on its file", "seccomp", []string{notPermitted}, func(t Targets) error {
		return unix.Setxattr(filepath.Join(t.State, "probe"), "user.probe", []byte("x"), 0)
	}},
	{"write /proc/sys/kernel/core_pattern", "read-only mount; owned by an unmapped user", []string{readOnly, noAccess}, func(Targets) error {
		return openWrite("/proc/sys/kernel/core_pattern")
	}},
	{"write /proc/sys/vm/overcommit_memory", "read-only mount; owned by an unmapped user", []string{readOnly, noAccess}, func(Targets) error {
		return openWrite("/proc/sys/vm/overcommit_memory")
	}},
	{"write /proc/sysrq-trigger", "read-only mount; owned by an unmapped user", []string{readOnly, noAccess, notThere}, func(Targets) error {
		return openWrite("/proc/sysrq-trigger")
	}},
	{"read /proc/kcore", "masked", []string{errEmpty.Error(), notThere}, func(Targets) error { return readByte("/proc/kcore") }},
	{"read /proc/keys", "masked", []string{errEmpty.Error(), notThere}, func(Targets) error { return readByte("/proc/keys") }},
	{"read /proc/kallsyms", "masked", []string{errEmpty.Error(), notThere}, func(Targets) error { return readByte("/proc/kallsyms") }},
	{"read /proc/kmsg", "masked", []string{errEmpty.Error(), notThere}, func(Targets) error { return readByte("/proc/kmsg") }},
}

func connect(socket string) error {
	conn, err := net.Dial("unix", socket)
	if err == nil {
		err = conn.Close()
	}
	return err
}

func openRead(path string) error {
	f, err := os.Open(path)
	if err == nil {
		err = f.Close()
	}
	return err
}

func openWrite(path string) error {
	f, err := os.OpenFile(path, os.O_WRONLY, 0)
	if err == nil {
		err = f.Close()
	}
	return err
}

// create makes or empties a file.
func create(path string) error {
	f, err := os.OpenFile(path, os.O_CREATE|os.O_WRONLY|os.O_TRUNC, 0o600)
	if err == nil {
		err = f.Close()
	}
	return err
}

func readByte(path string) error {
	f, err := os.Open(path)
	if err != nil {
		return err
	}
	_, err = f.Read(make([]byte, 1))
	return errors.Join(err, f.Close())
}

func list(dir string) error {
	entries, err := os.ReadDir(dir)
	if err == nil && len(entries) == 0 {
		err = errEmpty
	}
	return err
}

// anyOf is nil where one of several attempts succeeded.
func anyOf(all ...error) error {
	for _, err := range all {
		if err == nil {
			return nil
		}
	}
	return all[0]
}

// runFrom puts its own program into a directory and executes it.
func runFrom(dir string) (err error) {
	program, err := os.ReadFile("/usr/bin/controller")
	if err != nil {
		return err
	}
	copied := filepath.Join(dir, "program")
	if err := os.WriteFile(copied, program, 0o700); err != nil {
		return err
	}
	defer func() { err = errors.Join(err, os.Remove(copied)) }()
	return syscall.Exec(copied, []string{copied, "executed"}, nil)
}

// foreignMounts looks for mounts that are none of the container's own places.
func foreignMounts(t Targets) error {
	table, err := os.ReadFile("/proc/self/mountinfo")
	if err != nil {
		return err
	}
	for line := range strings.Lines(string(table)) {
		fields := strings.Fields(line)
		if len(fields) < 5 {
			return errors.New("a mount table of another form")
		}
		at := fields[4]
		own := at == "/" || within(at, "/proc", "/dev", "/tmp", "/etc", "/run/notify", "/run/systemd/journal",
			t.State, t.Config, filepath.Dir(t.AgentSocket)) || at == "/run/quittance-controller"
		if !own {
			return errors.New(at)
		}
	}
	return errNone
}

func within(path string, dirs ...string) bool {
	for _, dir := range dirs {
		if path == dir || strings.HasPrefix(path, dir+"/") {
			return true
		}
	}
	return false
}
