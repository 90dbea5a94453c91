package sandbox

import (
	"slices"

	specs "github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"
)

// unneeded are system calls that containers commonly may use and a static Go
// program does not, each group with what it would be good for.
var unneeded = [][]string{
	// Other processes.
	{"ptrace", "process_vm_readv", "process_vm_writev", "process_mrelease", "pidfd_open", "pidfd_send_signal", "setpgid", "setsid"},
	// Programs: threads are made with clone, see threadsOnly, and the only
	// execve is runc's.
	{"fork", "vfork", "execveat", "memfd_create", "memfd_secret"},
	// Becoming somebody else.
	{"setuid", "setuid32", "setgid", "setgid32", "setreuid", "setreuid32", "setregid", "setregid32", "setresuid", "setresuid32",
		"setresgid", "setresgid32", "setfsuid", "setfsuid32", "setfsgid", "setfsgid32", "setgroups", "setgroups32", "capset"},
	// Files of others: owners, devices and pipes by name, attributes, handles.
	{"chown", "chown32", "fchown", "fchown32", "fchownat", "lchown", "lchown32", "mknod", "mknodat", "name_to_handle_at",
		"setxattr", "setxattrat", "lsetxattr", "fsetxattr", "removexattr", "removexattrat", "lremovexattr", "fremovexattr",
		"listmount", "statmount", "fanotify_mark", "inotify_init", "inotify_init1", "inotify_add_watch", "inotify_rm_watch"},
	// Memory and queues that others can see.
	{"ipc", "msgctl", "msgget", "msgrcv", "msgsnd", "semctl", "semget", "semop", "semtimedop", "semtimedop_time64",
		"shmat", "shmctl", "shmdt", "shmget", "mq_getsetattr", "mq_notify", "mq_open", "mq_timedreceive",
		"mq_timedreceive_time64", "mq_timedsend", "mq_timedsend_time64", "mq_unlink"},
	// Parts of the kernel with a history.
	{"io_cancel", "io_destroy", "io_getevents", "io_pgetevents", "io_pgetevents_time64", "io_setup", "io_submit",
		"personality", "modify_ldt", "remap_file_pages", "vmsplice", "tee", "seccomp", "landlock_add_rule",
		"landlock_create_ruleset", "landlock_restrict_self", "lsm_get_self_attr", "lsm_list_modules", "lsm_set_self_attr",
		"map_shadow_stack", "uretprobe", "pkey_alloc", "pkey_free", "pkey_mprotect", "socketcall"},
	// The machine's time and its scheduler.
	{"adjtimex", "clock_adjtime", "clock_adjtime64", "sched_setaffinity", "sched_setattr", "sched_setparam",
		"sched_setscheduler", "setpriority", "ioprio_set", "mlock", "mlock2", "mlockall"},
	// Replaced below.
	{"clone", "socket"},
}

// families are the sockets that the program may make.
var families = []uint64{unix.AF_UNIX, unix.AF_INET, unix.AF_INET6}

// seccomp is base, a profile that refuses what it does not name, without what
// the program does not need. Only the machine's own architecture is left: calls
// in another one's form are refused as a whole.
func seccomp(base *specs.LinuxSeccomp) *specs.LinuxSeccomp {
	drop := slices.Concat(unneeded...)
	out := &specs.LinuxSeccomp{DefaultAction: base.DefaultAction, DefaultErrnoRet: base.DefaultErrnoRet}
	if len(base.Architectures) > 0 {
		out.Architectures = base.Architectures[:1]
	}
	for _, rule := range base.Syscalls {
		kept := rule
		kept.Names = slices.DeleteFunc(slices.Clone(rule.Names), func(name string) bool { return slices.Contains(drop, name) })
		if len(kept.Names) > 0 {
			out.Syscalls = append(out.Syscalls, kept)
		}
	}
	// Threads, and no processes: the flag is the one that makes the difference.
	out.Syscalls = append(out.Syscalls, specs.LinuxSyscall{
		Names: []string{"clone"}, Action: specs.ActAllow,
		Args: []specs.LinuxSeccompArg{{Index: 0, Value: unix.CLONE_THREAD, ValueTwo: unix.CLONE_THREAD, Op: specs.OpMaskedEqual}},
	})
	for _, family := range families {
		out.Syscalls = append(out.Syscalls, specs.LinuxSyscall{
			Names: []string{"socket"}, Action: specs.ActAllow,
			Args: []specs.LinuxSeccompArg{{Index: 0, Value: family, Op: specs.OpEqualTo}},
		})
	}
	return out
}
