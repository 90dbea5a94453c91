package hostagent

import (
	"fmt"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/quittance/quittance/hostagent/internal/core"
	"github.com/quittance/quittance/hostagent/internal/devices"
	"github.com/quittance/quittance/hostagent/internal/engine"
	"github.com/quittance/quittance/hostagent/internal/metrics"
	"github.com/quittance/quittance/protocol"
)

// lookTime bounds one look at the specs and at everything that they name (I33).
const lookTime = 5 * time.Second

// errLook says that a look did not come back.
var errLook = fmt.Errorf("the CDI specs could not be looked at within %s: a directory of specs or a mount source lies on a file system that hangs", lookTime)

// deviceTable looks at the host's devices, one look at a time: a file system
// that hangs holds one goroutine and no request. Nothing waits for a look that
// concerns no device: neither a request for a profile that asks for none, nor the
// check of the profiles where none of them asks.
type deviceTable struct {
	catalog *devices.Catalog
	looking chan struct{} // capacity 1: held during a look

	mu    sync.Mutex
	asked map[string]bool // profiles that ask for devices; guarded by mu
	last  devices.Found   // what the last look saw; guarded by mu
	held  map[string]int  // leases of each node's path, from accepted to retired; guarded by mu
}

func newDeviceTable(c Config) *deviceTable {
	return &deviceTable{catalog: devices.New(c.CDIDirs), looking: make(chan struct{}, 1), asked: map[string]bool{}, held: map[string]int{}}
}

// bounded runs something that looks at the specs; false means that it, or the
// one before it, has not come back in time.
func (t *deviceTable) bounded(look func()) bool {
	timer := time.NewTimer(lookTime)
	defer timer.Stop()
	select {
	case t.looking <- struct{}{}:
	case <-timer.C:
		return false
	}
	done := make(chan struct{})
	go func() {
		// Who is told that the look is over finds the table free: a survey right
		// after it would pass over its own look otherwise.
		defer close(done)
		defer func() { <-t.looking }()
		look()
	}()
	select {
	case <-done:
		return true
	case <-timer.C:
		return false
	}
}

// fresh keeps what is there now.
func (t *deviceTable) fresh() {
	t.mu.Lock()
	held := slices.Collect(maps.Keys(t.held))
	t.mu.Unlock()
	found := t.catalog.Look(held...)
	t.mu.Lock()
	defer t.mu.Unlock()
	t.last = found
}

// leased moves the count of what holds some nodes by +1 or -1.
func (t *deviceTable) leased(all []protocol.Device, by int) {
	t.mu.Lock()
	defer t.mu.Unlock()
	for _, d := range protocol.DistinctDevices(all) {
		for _, node := range d.Nodes {
			if t.held[node] += by; t.held[node] == 0 {
				delete(t.held, node)
			}
		}
	}
}

// leasedFigures are figures that tell the table too which nodes are held.
type leasedFigures struct {
	*metrics.Figures
	table *deviceTable
}

// Leased implements [chronicle.Figures].
func (f leasedFigures) Leased(all []protocol.Device, by int) {
	f.Figures.Leased(all, by)
	f.table.leased(all, by)
}

// look sees what is there now. Where that cannot be told, the devices that were
// there last are shown with that as their fault, and it is the one problem.
func (t *deviceTable) look() devices.Found {
	seen := t.bounded(t.fresh)
	t.mu.Lock()
	defer t.mu.Unlock()
	if seen {
		return t.last
	}
	found := devices.Found{Devices: slices.Clone(t.last.Devices), Specs: t.last.Specs, Problems: []devices.Problem{{
		Subject: "CDI", Detail: errLook.Error(), Remedy: "mend or unmount that file system, or name other directories in cdi_dirs",
	}}}
	for i := range found.Devices {
		found.Devices[i].Fault = errLook.Error()
	}
	return found
}

// survey is a look for the check of the profiles. Where none of them asks for
// devices it is what the last look saw, and another one begins.
func (t *deviceTable) survey() devices.Found {
	t.mu.Lock()
	asked, last := false, t.last
	for _, asks := range t.asked {
		asked = asked || asks
	}
	t.mu.Unlock()
	if asked {
		return t.look()
	}
	select {
	case t.looking <- struct{}{}:
		go func() {
			defer func() { <-t.looking }()
			t.fresh()
		}()
	default: // the one before has not come back
	}
	return last
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
	found := t.look()
	out := make([]core.Offered, len(found.Devices))
	for i, d := range found.Devices {
		out[i] = core.Offered{Kind: d.Kind, Names: d.Names, Nodes: d.Nodes, Spec: d.Digest, Fault: d.Fault}
	}
	return out
}

// inject makes the edits of leased devices.
func (t *deviceTable) inject(leased []protocol.Device, digest protocol.Digest) (engine.Injection, error) {
	type made struct {
		injection *devices.Injection
		err       error
	}
	answer := make(chan made, 1)
	if !t.bounded(func() {
		injection, err := t.catalog.Injection(leased, digest)
		answer <- made{injection, err}
	}) {
		return nil, errLook
	}
	m := <-answer
	if m.err != nil {
		return nil, m.err // never a nil pointer in an interface
	}
	return m.injection, nil
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
