package isolation

import (
	"errors"
	"fmt"
	"net"
	"os"
	"strconv"
	"strings"
	"syscall"
	"unsafe"

	"golang.org/x/sys/unix"
)

const (
	bySeccomp = "seccomp"
	byBoth    = "seccomp; no capability"
	otherPIDs = "PID namespace"
)

// processes are the machine's, and ways to get more.
var processes = []Attempt{
	{"see another process", otherPIDs, []string{errNone.Error()}, otherProcess},
	{"read the agent's memory", otherPIDs, []string{notThere}, func(t Targets) error { return openRead(procOf(t, "mem")) }},
	{"read the agent's environment", otherPIDs, []string{notThere}, func(t Targets) error { return openRead(procOf(t, "environ")) }},
	{"look through the agent's root", otherPIDs, []string{notThere}, func(t Targets) error { return list(procOf(t, "root")) }},
	{"send a signal to the agent", otherPIDs, []string{noProcess}, func(t Targets) error { return syscall.Kill(t.AgentPID, 0) }},
	{"trace the agent", bySeccomp + "; " + otherPIDs, []string{notPermitted}, func(t Targets) error { return unix.PtraceAttach(t.AgentPID) }},
	{"let itself be traced", bySeccomp, []string{notPermitted}, func(Targets) error { return raw(unix.SYS_PTRACE, 0, 0, 0) }},
	{"read another process's memory by a call", bySeccomp, []string{notPermitted}, func(t Targets) error {
		return raw(unix.SYS_PROCESS_VM_READV, uintptr(t.AgentPID), 0, 0)
	}},
	{"take a handle of the agent", bySeccomp + "; " + otherPIDs, []string{notPermitted}, func(t Targets) error {
		_, err := unix.PidfdOpen(t.AgentPID, 0)
		return err
	}},
	{"make a process", bySeccomp, []string{notPermitted}, func(Targets) error { return fork(0) }},
	{"make a process in a user namespace", bySeccomp, []string{notPermitted}, func(Targets) error { return fork(unix.CLONE_NEWUSER) }},
	{"make a process by clone3", bySeccomp, []string{notKnown}, func(Targets) error { return raw(unix.SYS_CLONE3, 0, 0, 0) }},
	{"make a file of a program in memory", bySeccomp, []string{notPermitted}, func(Targets) error {
		_, err := unix.MemfdCreate("probe", 0)
		return err
	}},
	{"run a program by descriptor", bySeccomp, []string{notPermitted}, func(Targets) error { return raw(unix.SYS_EXECVEAT, 0, 0, 0) }},
	{"use a descriptor that was left open", "runc closes them", []string{errNone.Error()}, inherited},
	{"type into a terminal", "no terminal", []string{noTerminal}, func(Targets) error {
		letter := byte('x')
		return raw(unix.SYS_IOCTL, 0, unix.TIOCSTI, uintptr(unsafe.Pointer(&letter)))
	}},
	{"open the controlling terminal", "no terminal", []string{"no such device or address"}, func(Targets) error { return openRead("/dev/tty") }},
}

// mounts are ways to see more files.
var mounts = []Attempt{
	{"mount a file system", byBoth, []string{notPermitted}, func(Targets) error { return unix.Mount("tmpfs", "/tmp", "tmpfs", 0, "") }},
	{"mount the disk", byBoth, []string{notPermitted}, func(Targets) error { return unix.Mount("/dev/vda", "/tmp", "ext4", 0, "") }},
	{"mount cgroups", byBoth, []string{notPermitted}, func(Targets) error { return unix.Mount("cgroup2", "/tmp", "cgroup2", 0, "") }},
	{"make / writable", byBoth, []string{notPermitted}, func(Targets) error { return unix.Mount("", "/", "", unix.MS_REMOUNT|unix.MS_BIND, "") }},
	{"unmount a mask", byBoth, []string{notPermitted}, func(Targets) error { return unix.Unmount("/proc/kcore", unix.MNT_DETACH) }},
	{"mount by the newer calls", byBoth, []string{notPermitted}, func(Targets) error { return raw(unix.SYS_FSOPEN, 0, 0, 0) }},
	{"copy a mount", byBoth, []string{notPermitted}, func(Targets) error { return raw(unix.SYS_OPEN_TREE, 0, 0, 0) }},
	{"move a mount", byBoth, []string{notPermitted}, func(Targets) error { return raw(unix.SYS_MOVE_MOUNT, 0, 0, 0) }},
	{"change a mount's attributes", byBoth, []string{notPermitted}, func(Targets) error { return raw(unix.SYS_MOUNT_SETATTR, 0, 0, 0) }},
	{"change the root", byBoth, []string{notPermitted}, func(Targets) error { return unix.PivotRoot("/tmp", "/tmp") }},
	{"chroot", byBoth, []string{notPermitted}, func(Targets) error { return unix.Chroot("/tmp") }},
	{"open a file by handle", byBoth, []string{notPermitted}, func(Targets) error { return raw(unix.SYS_OPEN_BY_HANDLE_AT, 0, 0, 0) }},
	{"make a file handle", bySeccomp, []string{notPermitted}, func(Targets) error { return raw(unix.SYS_NAME_TO_HANDLE_AT, 0, 0, 0) }},
	{"make a user namespace", bySeccomp, []string{notPermitted}, func(Targets) error { return unix.Unshare(unix.CLONE_NEWUSER) }},
	{"make a mount namespace", byBoth, []string{notPermitted}, func(Targets) error { return unix.Unshare(unix.CLONE_NEWNS) }},
	{"make a network namespace", byBoth, []string{notPermitted}, func(Targets) error { return unix.Unshare(unix.CLONE_NEWNET) }},
	{"make a cgroup namespace", byBoth, []string{notPermitted}, func(Targets) error { return unix.Unshare(unix.CLONE_NEWCGROUP) }},
	{"enter a namespace", byBoth, []string{notPermitted}, func(Targets) error { return raw(unix.SYS_SETNS, 0, 0, 0) }},
	sharedNamespace("user"), sharedNamespace("pid"), sharedNamespace("mnt"),
	sharedNamespace("ipc"), sharedNamespace("uts"), sharedNamespace("cgroup"),
	{"see where its cgroup lies", "cgroup namespace", []string{errNone.Error()}, cgroupPlace},
	{"watch files by inotify", bySeccomp, []string{notPermitted}, func(Targets) error { return raw(unix.SYS_INOTIFY_INIT1, 0, 0, 0) }},
	{"watch files by fanotify", byBoth, []string{notPermitted}, func(Targets) error { return raw(unix.SYS_FANOTIFY_INIT, 0, 0, 0) }},
}

// identities are other users, and what only root may do.
var identities = []Attempt{
	{"have any capability", "dropped, all sets", []string{errNone.Error()}, anyCapability},
	{"gain privileges by a program", "no_new_privs", []string{errNone.Error()}, mayGain},
	{"be without a system call filter", bySeccomp, []string{errNone.Error()}, unfiltered},
	{"take a capability", byBoth, []string{notPermitted}, func(Targets) error { return raw(unix.SYS_CAPSET, 0, 0, 0) }},
	{"raise an ambient capability", "no capability", []string{notPermitted}, func(Targets) error {
		return unix.Prctl(unix.PR_CAP_AMBIENT, unix.PR_CAP_AMBIENT_RAISE, unix.CAP_SYS_ADMIN, 0, 0)
	}},
	{"become root", byBoth, []string{notPermitted}, func(Targets) error { return raw(unix.SYS_SETUID, 0, 0, 0) }},
	{"join root's group", byBoth, []string{notPermitted}, func(Targets) error { return raw(unix.SYS_SETGID, 0, 0, 0) }},
	{"join further groups", byBoth, []string{notPermitted}, func(Targets) error { return raw(unix.SYS_SETGROUPS, 0, 0, 0) }},
	{"write its user map", "written once", []string{notPermitted, noAccess}, func(Targets) error {
		return os.WriteFile("/proc/self/uid_map", []byte("0 0 1\n"), 0)
	}},
	{"shield itself from the kernel's memory killer", "no capability", []string{noAccess, notPermitted}, func(Targets) error {
		return os.WriteFile("/proc/self/oom_score_adj", []byte("-1000"), 0)
	}},
	{"make a raw socket", byBoth, []string{notPermitted, noAccess}, func(Targets) error { return socket(unix.AF_INET, unix.SOCK_RAW, unix.IPPROTO_ICMP) }},
	{"make a packet socket", bySeccomp, []string{notPermitted}, func(Targets) error { return socket(unix.AF_PACKET, unix.SOCK_RAW, 0) }},
	{"make a netlink socket", bySeccomp, []string{notPermitted}, func(Targets) error { return socket(unix.AF_NETLINK, unix.SOCK_RAW, 0) }},
	{"make a vsock socket", bySeccomp, []string{notPermitted}, func(Targets) error { return socket(unix.AF_VSOCK, unix.SOCK_STREAM, 0) }},
	{"make a crypto socket", bySeccomp, []string{notPermitted}, func(Targets) error { return socket(unix.AF_ALG, unix.SOCK_SEQPACKET, 0) }},
	{"listen on a low port", "no capability", []string{noAccess}, func(Targets) error {
		l, err := net.Listen("tcp", "127.0.0.1:1")
		if err == nil {
			err = l.Close()
		}
		return err
	}},
}

// calls are raw: refused before the kernel looks at an argument. Without the
// filter the answer would be another one.
var calls = func() []Attempt {
	var all []Attempt
	for _, c := range []struct {
		name string
		call uintptr
	}{
		{"load a BPF program", unix.SYS_BPF}, {"use io_uring", unix.SYS_IO_URING_SETUP}, {"add a key", unix.SYS_ADD_KEY},
		{"request a key", unix.SYS_REQUEST_KEY}, {"control keys", unix.SYS_KEYCTL}, {"count events of the machine", unix.SYS_PERF_EVENT_OPEN},
		{"handle page faults", unix.SYS_USERFAULTFD}, {"change its personality", unix.SYS_PERSONALITY}, {"load a kernel module", unix.SYS_INIT_MODULE},
		{"load a kernel module by descriptor", unix.SYS_FINIT_MODULE}, {"unload a kernel module", unix.SYS_DELETE_MODULE},
		{"load another kernel", unix.SYS_KEXEC_LOAD}, {"reboot the machine", unix.SYS_REBOOT}, {"set the clock", unix.SYS_CLOCK_SETTIME},
		{"set the time of day", unix.SYS_SETTIMEOFDAY}, {"adjust the clock", unix.SYS_ADJTIMEX}, {"read the kernel's log", unix.SYS_SYSLOG},
		{"name the machine", unix.SYS_SETHOSTNAME}, {"name the machine's domain", unix.SYS_SETDOMAINNAME}, {"swap", unix.SYS_SWAPON},
		{"account processes", unix.SYS_ACCT}, {"set quotas", unix.SYS_QUOTACTL}, {"hang up the terminal", unix.SYS_VHANGUP},
		{"compare processes", unix.SYS_KCMP}, {"share memory", unix.SYS_SHMGET}, {"make a semaphore", unix.SYS_SEMGET},
		{"make a message queue", unix.SYS_MSGGET}, {"open a message queue", unix.SYS_MQ_OPEN}, {"lock memory", unix.SYS_MLOCKALL},
		{"move another process's pages", unix.SYS_MOVE_PAGES}, {"set a memory policy", unix.SYS_MBIND},
		{"become a real-time process", unix.SYS_SCHED_SETSCHEDULER}, {"raise its priority", unix.SYS_SETPRIORITY},
		{"load a further filter", unix.SYS_SECCOMP}, {"use kernel asynchronous I/O", unix.SYS_IO_SETUP},
	} {
		all = append(all, Attempt{c.name, bySeccomp, []string{notPermitted}, func(Targets) error { return raw(c.call, 0, 0, 0) }})
	}
	return all
}()

func raw(number, a, b, c uintptr) error {
	if _, _, errno := unix.Syscall6(number, a, b, c, 0, 0, 0); errno != 0 {
		return errno
	}
	return nil
}

// fork makes a process that ends at once.
func fork(flags uintptr) error {
	pid, _, errno := unix.RawSyscall6(unix.SYS_CLONE, flags|uintptr(unix.SIGCHLD), 0, 0, 0, 0, 0)
	if errno != 0 {
		return errno
	}
	if pid == 0 {
		unix.RawSyscall(unix.SYS_EXIT_GROUP, 0, 0, 0)
	}
	return nil
}

func socket(family, kind, protocol int) error {
	fd, err := unix.Socket(family, kind, protocol)
	if err == nil {
		err = unix.Close(fd)
	}
	return err
}

func procOf(t Targets, name string) string { return fmt.Sprintf("/proc/%d/%s", t.AgentPID, name) }

func otherProcess(Targets) error {
	entries, err := os.ReadDir("/proc")
	if err != nil {
		return err
	}
	for _, e := range entries {
		if pid, err := strconv.Atoi(e.Name()); err == nil && pid != os.Getpid() {
			return fmt.Errorf("process %d", pid)
		}
	}
	return errNone
}

// sharedNamespace must find that the container has one of its own.
func sharedNamespace(kind string) Attempt {
	return Attempt{"share the machine's " + kind + " namespace", "a namespace of its own", []string{errOther.Error()}, func(t Targets) error {
		link, err := os.Readlink("/proc/self/ns/" + kind)
		if err == nil && link != t.Namespaces[kind] {
			err = errOther
		}
		return err
	}}
}

func cgroupPlace(Targets) error {
	text, err := os.ReadFile("/proc/self/cgroup")
	if err != nil {
		return err
	}
	for line := range strings.Lines(string(text)) {
		if !strings.HasSuffix(strings.TrimSpace(line), ":/") {
			return errors.New(strings.TrimSpace(line))
		}
	}
	return errNone
}

// inherited looks for descriptors beside the three and what Go's runtime made.
func inherited(Targets) error {
	entries, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		return err
	}
	for _, e := range entries {
		fd, err := strconv.Atoi(e.Name())
		if err != nil {
			return err
		}
		link, err := os.Readlink("/proc/self/fd/" + e.Name())
		if err != nil {
			continue // the one that the list was read from
		}
		switch {
		case fd == 0 && link == "/dev/null", fd == 1, fd == 2:
		case strings.HasPrefix(link, "anon_inode:[event"): // eventpoll and eventfd
		default:
			return fmt.Errorf("%d: %s", fd, link)
		}
	}
	return errNone
}

// statusOf is one line of /proc/self/status.
func statusOf(name string) (string, error) {
	text, err := os.ReadFile("/proc/self/status")
	if err != nil {
		return "", err
	}
	_, rest, ok := strings.Cut(string(text), "\n"+name+":")
	if !ok {
		return "", errors.New(name + " is not told")
	}
	value, _, _ := strings.Cut(rest, "\n")
	return strings.TrimSpace(value), nil
}

func anyCapability(Targets) error {
	for _, set := range []string{"CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb"} {
		value, err := statusOf(set)
		if err != nil {
			return err
		}
		if strings.Trim(value, "0") != "" {
			return fmt.Errorf("%s %s", set, value)
		}
	}
	return errNone
}

func mayGain(Targets) error { return is("NoNewPrivs", "1") }

func unfiltered(Targets) error { return is("Seccomp", "2") }

// is turns "as it must be" into the answer that nothing was found.
func is(name, wanted string) error {
	value, err := statusOf(name)
	if err != nil {
		return err
	}
	if value != wanted {
		return fmt.Errorf("%s %s", name, value)
	}
	return errNone
}
