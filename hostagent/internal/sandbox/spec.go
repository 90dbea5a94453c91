package sandbox

import (
	"cmp"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	specs "github.com/opencontainers/runtime-spec/specs-go"
)

// specVersion is what runc 1.0 and later read.
const specVersion = "1.0.2"

// containerRoot is the machine's user and group that are root inside, while runc
// makes the container. It lies in the part of the numbers that neither systemd
// nor subordinate ids nor user databases give out.
const containerRoot = 1<<31 - 2

// Where the supervisor's own things are inside.
const (
	notifyDir  = "/run/notify"
	notifyFile = notifyDir + "/socket"
)

// Identity is the program's user.
type Identity struct {
	UID, GID uint32
	Groups   []uint32 // further groups
	Name     string   // for /etc/passwd; "" for a number only
}

// groups are all of the identity's groups, each once, the first one first.
func (id Identity) groups() []uint32 {
	all := []uint32{id.GID}
	for _, g := range id.Groups {
		if !slices.Contains(all, g) {
			all = append(all, g)
		}
	}
	return all
}

// mapping is 1:1 for ids, and containerRoot for what runc needs.
func mapping(ids ...uint32) []specs.LinuxIDMapping {
	out := []specs.LinuxIDMapping{{ContainerID: 0, HostID: containerRoot, Size: 1}}
	for _, id := range ids {
		out = append(out, specs.LinuxIDMapping{ContainerID: id, HostID: id, Size: 1})
	}
	return out
}

// spec is the whole container.
func (s *supervisor) spec(args []string) *specs.Spec {
	c, id := s.config, s.config.Identity
	groups := id.groups()
	return &specs.Spec{
		Version: specVersion,
		Root:    &specs.Root{Path: s.path(rootfsDir), Readonly: true},
		Process: &specs.Process{
			User:            specs.User{UID: id.UID, GID: id.GID, AdditionalGids: groups[1:], Umask: new(uint32(0o077))},
			Args:            args,
			Env:             append([]string{"PATH=/usr/bin", "HOME=/", "NOTIFY_SOCKET=" + notifyFile}, c.Environment...),
			Cwd:             "/",
			Capabilities:    &specs.LinuxCapabilities{},
			NoNewPrivileges: true,
			// A core dump would carry jobs and keys to wherever the machine keeps
			// them.
			Rlimits: []specs.POSIXRlimit{{Type: "RLIMIT_CORE"}},
		},
		Mounts: s.mounts(),
		Linux: &specs.Linux{
			UIDMappings: mapping(id.UID), GIDMappings: mapping(groups...),
			CgroupsPath:       s.cgroup,
			RootfsPropagation: "private",
			Namespaces:        namespaces(c.Network),
			// Of devices only those that runc always permits.
			Resources: &specs.LinuxResources{Devices: []specs.LinuxDeviceCgroup{{Allow: false, Access: "rwm"}}},
			Seccomp:   seccomp(c.Seccomp),
			MaskedPaths: []string{
				"/proc/acpi", "/proc/asound", "/proc/interrupts", "/proc/kallsyms", "/proc/kcore", "/proc/keys", "/proc/kmsg",
				"/proc/latency_stats", "/proc/modules", "/proc/sched_debug", "/proc/scsi", "/proc/timer_list", "/proc/timer_stats",
				"/proc/config.gz",
			},
			ReadonlyPaths: []string{"/proc/bus", "/proc/driver", "/proc/fs", "/proc/irq", "/proc/sys", "/proc/sysrq-trigger"},
		},
	}
}

// namespaces are new ones, apart from the network.
func namespaces(network string) []specs.LinuxNamespace {
	out := []specs.LinuxNamespace{
		{Type: specs.UserNamespace}, {Type: specs.PIDNamespace}, {Type: specs.IPCNamespace},
		{Type: specs.UTSNamespace}, {Type: specs.MountNamespace}, {Type: specs.CgroupNamespace},
	}
	if network != HostNetwork {
		out = append(out, specs.LinuxNamespace{Type: specs.NetworkNamespace, Path: filepath.Join(netnsDir, network)})
	}
	return out
}

func (s *supervisor) mounts() []specs.Mount {
	out := []specs.Mount{
		{Destination: "/proc", Type: "proc", Source: "proc", Options: []string{"nosuid", "noexec", "nodev"}},
		{Destination: "/dev", Type: "tmpfs", Source: "tmpfs", Options: []string{"nosuid", "noexec", "mode=755", "size=64k", "ro"}},
		{Destination: "/tmp", Type: "tmpfs", Source: "tmpfs", Options: s.temporary()},
		bind(s.path(etcDir), "/etc", false, false),
		bind(s.path(notifyName), notifyDir, false, false),
	}
	// What lies deeper comes later, so that nothing is mounted over.
	given := slices.Concat(s.config.Read, s.config.Write)
	slices.SortStableFunc(given, func(a, b string) int { return cmp.Compare(strings.Count(a, "/"), strings.Count(b, "/")) })
	for _, path := range given {
		out = append(out, bind(path, path, slices.Contains(s.config.Write, path), s.deep[path]))
	}
	return out
}

// temporary is the program's own: runc gives a mount the mode of the directory
// below it, so that a mode alone would not make it writable.
func (s *supervisor) temporary() []string {
	id := s.config.Identity
	return []string{"nosuid", "noexec", "nodev", "mode=700", "size=64m", fmt.Sprintf("uid=%d", id.UID), fmt.Sprintf("gid=%d", id.GID)}
}

// bind takes what is mounted below along: in a user namespace a part of a tree
// cannot be bound without it. Where there is such a mount (deep) it is narrowed as
// the uppermost one is; that takes Linux 5.12 and runc 1.1, and with older ones the
// start fails.
func bind(source, target string, writable, deep bool) specs.Mount {
	options := []string{"rbind", "rprivate", "nosuid", "nodev", "noexec"}
	if deep {
		options = append(options, "rnosuid", "rnodev", "rnoexec")
	}
	switch {
	case writable:
		options = append(options, "rw")
	case deep:
		options = append(options, "ro", "rro")
	default:
		options = append(options, "ro")
	}
	return specs.Mount{Destination: target, Type: "bind", Source: source, Options: options}
}

// mountPoints makes what mounts need: the container's root may not write in a
// file system that is root's, so runc cannot make them. Those below /etc lie in
// the directory that is mounted there.
func (s *supervisor) mountPoints(root, etc *os.Root) error {
	for _, m := range s.mounts() {
		where, name := root, strings.TrimPrefix(m.Destination, "/")
		if below, ok := strings.CutPrefix(m.Destination, "/etc/"); ok {
			where, name = etc, below
		}
		isFile := false
		if m.Type == "bind" {
			info, err := os.Stat(m.Source)
			if err != nil {
				return fmt.Errorf("mount: %w", err)
			}
			isFile = !info.IsDir()
		}
		dir := name
		if isFile {
			dir = filepath.Dir(name)
		}
		if dir != "." {
			if err := where.MkdirAll(dir, 0o755); err != nil {
				return fmt.Errorf("mount point %s: %w", m.Destination, err)
			}
		}
		if isFile {
			f, err := where.OpenFile(name, os.O_CREATE|os.O_WRONLY, 0o644)
			if err == nil {
				err = f.Close()
			}
			if err != nil {
				return fmt.Errorf("mount point %s: %w", m.Destination, err)
			}
		}
	}
	return nil
}

// accounts are /etc/passwd and /etc/group as the program sees them.
func (id Identity) accounts() (passwd, group string) {
	name := id.Name
	if name == "" {
		name = "controller"
	}
	passwd = fmt.Sprintf("%s:x:%d:%d::/:/usr/sbin/nologin\n", name, id.UID, id.GID)
	for i, g := range id.groups() {
		called := name
		if i > 0 {
			called = "group" + strconv.FormatUint(uint64(g), 10)
		}
		group += fmt.Sprintf("%s:x:%d:\n", called, g)
	}
	return passwd, group
}
