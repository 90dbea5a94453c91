// Package profiles is the administrator's closed vocabulary of containers: the
// profile's meaning, its strict TOML form, its digest, and the checks that need
// no engine. It neither talks to an engine nor decides when a profile is used.
package profiles

import "github.com/quittance/quittance/protocol"

// Profile describes one kind of container, after defaults. Its JSON form,
// written by [protocol.AppendCanonical], is the canonical form whose SHA-256 is
// the profile's digest: two files that mean the same have one digest.
type Profile struct {
	Name       string     `json:"name"`
	Image      string     `json:"image"` // name@sha256:…; a digest is required
	Args       []string   `json:"args"`
	Env        []EnvVar   `json:"env"` // sorted by name
	UID        int64      `json:"uid"`
	GID        int64      `json:"gid"`
	AllowRoot  bool       `json:"allow_root"`
	Resources  Resources  `json:"resources"`
	Filesystem Filesystem `json:"filesystem"`
	Channel    Channel    `json:"channel"`
	Lifecycle  Lifecycle  `json:"lifecycle"`
	Logs       Logs       `json:"logs"`
	Init       bool       `json:"init"` // run catatonit as PID 1 in front of Args
}

// EnvVar is one environment variable of the worker.
type EnvVar struct {
	Name  string `json:"name"`
	Value string `json:"value"`
}

// Resources bound the allocation on both cgroup levels.
type Resources struct {
	MemoryBytes int64           `json:"memory_bytes"`
	SwapBytes   int64           `json:"swap_bytes"`
	CPUMillis   int64           `json:"cpu_millis"` // thousandths of a core; 0: no limit
	PIDs        int64           `json:"pids"`
	Devices     []DeviceRequest `json:"devices"`
}

// DeviceRequest asks for Count devices of one CDI kind.
type DeviceRequest struct {
	Kind  string `json:"kind"`
	Count int64  `json:"count"`
}

// Filesystem is what the worker sees beside its image's read-only root.
type Filesystem struct {
	Tmpfs  []Tmpfs `json:"tmpfs"`
	Mounts []Mount `json:"mounts"`
}

// Tmpfs is nosuid, nodev and, unless Exec, noexec.
type Tmpfs struct {
	Path      string `json:"path"`
	SizeBytes int64  `json:"size_bytes"`
	Exec      bool   `json:"exec"`
}

// Mount binds a host path, read-only unless Writable.
type Mount struct {
	Source   string `json:"source"`
	Target   string `json:"target"`
	Writable bool   `json:"writable"`
}

// Channel says where the worker listens inside the container and when it is
// ready. Network is "tcp" (Address is a loopback host and port) or "unix"
// (Address is an absolute path inside the container).
type Channel struct {
	Network     string             `json:"network"`
	Address     string             `json:"address"`
	Ready       protocol.ReadyRule `json:"ready"`
	MaxChannels int64              `json:"max_channels"`
}

// OOMPolicy says what happens at a kernel kill inside the allocation.
type OOMPolicy string

// The OOM policies.
const (
	OOMKillGroup OOMPolicy = "kill-group" // everything in the allocation dies
	OOMObserve   OOMPolicy = "observe"    // the fact is published, survivors are left
)

// Lifecycle bounds an allocation in time, on the boot-time clock.
type Lifecycle struct {
	StopSignal        string    `json:"stop_signal"` // as in "SIGTERM"
	StopGraceMillis   int64     `json:"stop_grace_ms"`
	MaxLifetimeMillis int64     `json:"max_lifetime_ms"`
	LeaseMillis       int64     `json:"lease_ms"`
	OOM               OOMPolicy `json:"oom"`
	Spares            int64     `json:"spares"`
}

// Logs bound what is kept of the worker's output.
type Logs struct {
	CaptureBytes int64 `json:"capture_bytes"`
	Journal      bool  `json:"journal"`
}

// Canonical is the canonical form; see [Profile].
func (p *Profile) Canonical() []byte { return protocol.AppendCanonical(nil, p) }

// Digest is the SHA-256 of the canonical form.
func (p *Profile) Digest() protocol.Digest { return protocol.DigestOf(p.Canonical()) }
