package engine

import (
	"encoding/json"
	"errors"
	"fmt"
	"path"
	"strconv"

	"github.com/containerd/containerd/v2/contrib/seccomp"
	specs "github.com/opencontainers/runtime-spec/specs-go"
	"github.com/quittance/quittance/hostagent/internal/cgroup"
	"github.com/quittance/quittance/profiles"
	"github.com/quittance/quittance/protocol"
)

const (
	// specVersion is one that every runc of the supported engines reads.
	specVersion = "1.0.2"
	// initTarget is where the init is bound: on the container's own /dev, so
	// that nothing of the image is covered or changed.
	initTarget = "/dev/init"
	// oomScoreAdj makes a machine that runs out of memory prefer any worker to
	// the agent and to the engine, whose own negative value must not be
	// inherited.
	oomScoreAdj = 500
	// nofileLimit is enough for an inference server and small enough that a
	// worker cannot exhaust the machine's table.
	nofileLimit = 1024
	// shmBytes is the size of /dev/shm unless the profile mounts its own; what
	// is stored there counts as the allocation's memory.
	shmBytes = 64 << 20
	// defaultPath is the PATH of a worker whose profile sets none.
	defaultPath = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
)

// SpecOptions are what the agent adds to every spec.
type SpecOptions struct {
	InitPath  string    // of the host's init, for profiles that want one
	Engine    string    // the engine's address, which hooks' processes bear
	Deadlines Deadlines // of the engine's calls; they bound the hooks that run in them
}

// BuildSpec decides the whole OCI spec from the request, encodes it, and
// returns it with the digest of exactly the bytes that the engine will store.
// Nothing of the image's own configuration and nothing of the agent's
// environment enters it.
func BuildSpec(r CreateRequest, o SpecOptions) (*specs.Spec, protocol.Digest, error) {
	s, err := buildSpec(r, o)
	if err != nil {
		return nil, "", err
	}
	encoded, err := encodeSpec(s)
	if err != nil {
		return nil, "", err
	}
	return s, protocol.DigestOf(encoded), nil
}

// encodeSpec writes the spec's types the way their tags were made for.
// encoding/json sorts map keys, so equal specs have equal bytes.
func encodeSpec(s *specs.Spec) ([]byte, error) {
	encoded, err := json.Marshal(s)
	if err != nil {
		return nil, fmt.Errorf("engine: spec: %w", err)
	}
	return encoded, nil
}

func buildSpec(r CreateRequest, o SpecOptions) (*specs.Spec, error) {
	p := r.Profile
	switch {
	case p == nil || len(p.Args) == 0:
		return nil, errors.New("engine: spec: the profile has no args; the image's own command is never used")
	case (len(p.Resources.Devices) > 0) != (r.Devices != nil):
		return nil, errors.New("engine: spec: the profile asks for devices and none are given, or the other way round")
	case !path.IsAbs(r.CgroupPath):
		return nil, errors.New("engine: spec: the cgroup path must be absolute")
	case p.Init && !path.IsAbs(o.InitPath):
		return nil, errors.New("engine: spec: the profile wants an init and no init path is configured; install catatonit")
	}
	args := p.Args
	if p.Init {
		args = append([]string{initTarget, "--"}, args...)
	}
	s := &specs.Spec{
		Version:  specVersion,
		Root:     &specs.Root{Path: "rootfs", Readonly: true},
		Hostname: "worker",
		Process: &specs.Process{
			User:            specs.User{UID: uint32(p.UID), GID: uint32(p.GID)},
			Args:            args,
			Env:             environment(p.Env),
			Cwd:             "/",
			Capabilities:    &specs.LinuxCapabilities{},
			NoNewPrivileges: true,
			OOMScoreAdj:     new(oomScoreAdj),
			Rlimits: []specs.POSIXRlimit{
				// A core dump would carry job input to wherever the machine keeps them.
				{Type: "RLIMIT_CORE", Hard: 0, Soft: 0},
				{Type: "RLIMIT_NOFILE", Hard: nofileLimit, Soft: nofileLimit},
			},
		},
		Mounts: mounts(p, o.InitPath),
		Linux: &specs.Linux{
			CgroupsPath:       r.CgroupPath,
			Resources:         resources(p, r.SwapAccounting),
			RootfsPropagation: "private",
			Namespaces: []specs.LinuxNamespace{
				{Type: specs.PIDNamespace}, {Type: specs.IPCNamespace}, {Type: specs.UTSNamespace},
				{Type: specs.MountNamespace}, {Type: specs.NetworkNamespace}, {Type: specs.CgroupNamespace},
			},
			MaskedPaths: []string{
				"/proc/acpi", "/proc/asound", "/proc/interrupts", "/proc/kcore", "/proc/keys", "/proc/latency_stats",
				"/proc/sched_debug", "/proc/scsi", "/proc/timer_list", "/proc/timer_stats",
				"/sys/devices/virtual/powercap", "/sys/firmware",
			},
			ReadonlyPaths: []string{"/proc/bus", "/proc/fs", "/proc/irq", "/proc/sys", "/proc/sysrq-trigger"},
		},
	}
	s.Linux.Seccomp = seccomp.DefaultProfile(s)
	if r.Devices != nil {
		if err := r.Devices.Apply(s); err != nil {
			return nil, fmt.Errorf("engine: spec: %w", err)
		}
	}
	markHooks(s, ContainerID(r.Nonce), o)
	return s, nil
}

func environment(vars []profiles.EnvVar) []string {
	env := []string{"PATH=" + defaultPath}
	for _, v := range vars {
		if v.Name == "PATH" {
			env[0] = "PATH=" + v.Value
			continue
		}
		env = append(env, v.Name+"="+v.Value)
	}
	return env
}

func resources(p *profiles.Profile, swapAccounting bool) *specs.LinuxResources {
	memory := p.Resources.MemoryBytes
	out := &specs.LinuxResources{
		Devices: []specs.LinuxDeviceCgroup{{Allow: false, Access: "rwm"}},
		Memory:  &specs.LinuxMemory{Limit: &memory},
		Pids:    &specs.LinuxPids{Limit: &p.Resources.PIDs},
	}
	if swapAccounting {
		both := memory + p.Resources.SwapBytes
		out.Memory.Swap = &both
	}
	if p.Resources.CPUMillis > 0 {
		quota, period := cgroup.CPUQuota(p.Resources.CPUMillis)
		out.CPU = &specs.LinuxCPU{Quota: &quota, Period: &period}
	}
	return out
}

func mounts(p *profiles.Profile, initPath string) []specs.Mount {
	out := []specs.Mount{
		{Destination: "/proc", Type: "proc", Source: "proc", Options: []string{"nosuid", "noexec", "nodev"}},
		{Destination: "/dev", Type: "tmpfs", Source: "tmpfs", Options: []string{"nosuid", "strictatime", "mode=755", "size=65536k"}},
		{Destination: "/dev/pts", Type: "devpts", Source: "devpts",
			Options: []string{"nosuid", "noexec", "newinstance", "ptmxmode=0666", "mode=0620"}},
		{Destination: "/dev/mqueue", Type: "mqueue", Source: "mqueue", Options: []string{"nosuid", "noexec", "nodev"}},
		{Destination: "/sys", Type: "sysfs", Source: "sysfs", Options: []string{"nosuid", "noexec", "nodev", "ro"}},
	}
	shm := true
	for _, t := range p.Filesystem.Tmpfs {
		if path.Clean(t.Path) == "/dev/shm" {
			shm = false
		}
	}
	if shm {
		out = append(out, tmpfs(p, profiles.Tmpfs{Path: "/dev/shm", SizeBytes: shmBytes}))
	}
	if p.Init {
		out = append(out, bind(initPath, initTarget, false))
	}
	for _, t := range p.Filesystem.Tmpfs {
		out = append(out, tmpfs(p, t))
	}
	for _, m := range p.Filesystem.Mounts {
		out = append(out, bind(m.Source, m.Target, m.Writable))
	}
	return out
}

// tmpfs belongs to the worker's user: runc gives the mount the mode of the
// image's directory below it, so a mode alone would not make it writable.
func tmpfs(p *profiles.Profile, t profiles.Tmpfs) specs.Mount {
	options := []string{
		"nosuid", "nodev", "mode=1777", "size=" + strconv.FormatInt(t.SizeBytes, 10),
		"uid=" + strconv.FormatInt(p.UID, 10), "gid=" + strconv.FormatInt(p.GID, 10),
	}
	if !t.Exec {
		options = append(options, "noexec")
	}
	return specs.Mount{Destination: t.Path, Type: "tmpfs", Source: "tmpfs", Options: options}
}

// bind is never recursive: a mount below the source would not become read-only
// with it.
func bind(source, target string, writable bool) specs.Mount {
	access := "ro"
	if writable {
		access = "rw"
	}
	return specs.Mount{
		Destination: target, Type: "bind", Source: source,
		Options: []string{"bind", "private", "nosuid", "nodev", access},
	}
}
