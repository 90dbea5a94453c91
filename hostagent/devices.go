package hostagent

import (
	"sync"

	"github.com/quittance/quittance/hostagent/internal/core"
	"github.com/quittance/quittance/hostagent/internal/devices"
	"github.com/quittance/quittance/hostagent/internal/engine"
	"github.com/quittance/quittance/protocol"
)

// deviceTable looks at the host's devices for those profiles that ask for some:
// other work must not wait for a mount source that hangs.
type deviceTable struct {
	catalog *devices.Catalog

	mu    sync.Mutex
	asked map[string]bool // profiles that ask for devices; guarded by mu
}

func newDeviceTable(c Config) *deviceTable {
	return &deviceTable{catalog: devices.New(c.CDIDirs), asked: map[string]bool{}}
}

// ask notes which profiles ask for devices.
func (t *deviceTable) ask(profiles map[string]bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.asked = profiles
}

// offered looks at the devices for one request.
func (t *deviceTable) offered(profile string) []core.Offered {
	t.mu.Lock()
	asked := t.asked[profile]
	t.mu.Unlock()
	if !asked {
		return nil
	}
	found := t.catalog.Look()
	out := make([]core.Offered, len(found.Devices))
	for i, d := range found.Devices {
		out[i] = core.Offered{Kind: d.Kind, Names: d.Names, Nodes: d.Nodes, Spec: d.Digest, Fault: d.Fault}
	}
	return out
}

// inject makes the edits of leased devices.
func (t *deviceTable) inject(leased []protocol.Device, digest protocol.Digest) (engine.Injection, error) {
	injection, err := t.catalog.Injection(leased, digest)
	if err != nil {
		return nil, err // never a nil pointer in an interface
	}
	return injection, nil
}

// shown lists what could be granted, once for each name.
func shown(found devices.Found) []protocol.Device {
	list := []protocol.Device{}
	for _, d := range found.Devices {
		if d.Fault != "" {
			continue
		}
		for _, name := range d.Names {
			list = append(list, protocol.Device{Name: name, Nodes: d.Nodes})
		}
	}
	return list
}
