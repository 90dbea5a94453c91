package engine

import (
	"github.com/containerd/containerd/v2/contrib/seccomp"
	"github.com/opencontainers/runtime-spec/specs-go"
)

// BaseSeccomp is containerd's own profile for a process without capabilities:
// what it does not name is refused. It is a value for whoever makes a container
// without the engine.
func BaseSeccomp() *specs.LinuxSeccomp {
	return seccomp.DefaultProfile(&specs.Spec{
		Process: &specs.Process{Capabilities: &specs.LinuxCapabilities{}}, Linux: &specs.Linux{},
	})
}
