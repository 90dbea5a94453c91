package core

import (
	"fmt"
	"slices"
	"strings"

	"github.com/quittance/quittance/profiles"
	"github.com/quittance/quittance/protocol"
)

// Offered is one device that the host's CDI specs define, as it was found when
// a request arrived.
type Offered struct {
	Kind  string
	Names []string        // fully qualified; the first is injected, the others are aliases
	Nodes []string        // the paths of its device nodes, its identity
	Spec  protocol.Digest // of the spec file that defines it
	Fault string          // why it would not work now; "" if it would
}

// Bounds of what one acceptance says of its devices: a receipt has its ceiling,
// and so has what an allocation adds to a base. Eight cards with an index, a
// UUID and three nodes each take 3 KiB.
const (
	maxAliases     = 4
	maxLeasedBytes = 4 << 10
	shownDevices   = 6 // in a refusal
)

// leases maps every device node that is held, and every name that it is held by,
// to the number that holds it: a card whose spec was written anew with other
// paths is known by its name. A node begins with a slash and a name has an equals
// sign, so that neither is taken for the other. There is no table of its own: a lease is an accepted receipt without a retired one,
// so that it outlives the agent and the machine, and ends by retired only (I16,
// I19).
func (s *State) leases() map[string]protocol.Number {
	held := map[string]protocol.Number{}
	for n, a := range s.allocations {
		if a.Retired != nil {
			continue
		}
		for _, d := range a.Accepted.Devices {
			held[d.Name] = n
			for _, node := range d.Nodes {
				held[node] = n
			}
		}
	}
	return held
}

// heldBy finds who holds a device by any of its nodes or names.
func heldBy(held map[string]protocol.Number, o Offered) (protocol.Number, bool) {
	for _, key := range slices.Concat(o.Nodes, o.Names) {
		if n, ok := held[key]; ok {
			return n, true
		}
	}
	return 0, false
}

// lease chooses devices for a profile: each kind's first ones that are fit and
// of which no node and no name is held. It returns them as the receipt lists them, and the
// digest of the specs that define them, nil where the profile asks for none.
func (x *stepper) lease(p *profiles.Profile, offered []Offered) ([]protocol.Device, *protocol.Digest, *protocol.Problem) {
	leased := []protocol.Device{}
	if len(p.Resources.Devices) == 0 {
		return leased, nil, nil
	}
	held := x.s.leases()
	var specs []protocol.Digest
	bytes := 0
	for _, want := range p.Resources.Devices {
		var passed []string
		left := want.Count
		for _, o := range offered {
			if left == 0 {
				break
			}
			if o.Kind != want.Kind {
				continue
			}
			holder, taken := heldBy(held, o)
			switch {
			case o.Fault != "":
				passed = append(passed, o.Names[0]+": "+o.Fault)
				continue
			case taken && holder == 0:
				continue // shares a node with one that was just chosen
			case taken:
				passed = append(passed, o.Names[0]+" "+x.holding(holder))
				continue
			}
			left--
			specs = append(specs, o.Spec)
			for _, node := range o.Nodes {
				held[node] = 0
			}
			for _, name := range o.Names[:min(len(o.Names), maxAliases)] {
				d := protocol.Device{Name: name, Nodes: slices.Clone(o.Nodes)}
				bytes += len(protocol.AppendCanonical(nil, d))
				leased = append(leased, d)
			}
		}
		if left > 0 {
			return nil, nil, deviceProblem(want, want.Count-left, passed)
		}
	}
	if bytes > maxLeasedBytes {
		return nil, nil, protocol.NewProblem(protocol.CodeDeviceUnavailable,
			fmt.Sprintf("the names and nodes of the devices have %d bytes; a receipt holds %d", bytes, maxLeasedBytes),
			"an operator lets the profile ask for fewer devices")
	}
	digest := protocol.CDIDigest(specs)
	return leased, &digest, nil
}

// holding says for people why a device is held.
func (x *stepper) holding(n protocol.Number) string {
	if a := x.s.allocations[n]; a != nil && a.Stuck != nil {
		return fmt.Sprintf("is quarantined: number %d holds it and is stuck", n)
	}
	return fmt.Sprintf("is held by number %d", n)
}

func deviceProblem(want profiles.DeviceRequest, free int64, passed []string) *protocol.Problem {
	detail := fmt.Sprintf("%d devices of kind %s are wanted and %d can be granted", want.Count, want.Kind, free)
	if len(passed) == 0 {
		detail += ": the CDI specs define no other"
	} else {
		detail += ": " + strings.Join(passed[:min(len(passed), shownDevices)], "; ")
	}
	p := protocol.NewProblem(protocol.CodeDeviceUnavailable, bound(detail),
		"wait for a retirement; where a spec is stale, an operator generates it anew")
	p.RetryAfterMillis = 1000
	return p
}

// overlap finds a live allocation that holds a node of devices that are being
// accepted. This program writes no such receipt.
func (s *State) overlap(devices []protocol.Device) (node string, holder protocol.Number, overlaps bool) {
	if len(devices) == 0 {
		return "", 0, false
	}
	held := s.leases()
	for _, d := range devices {
		for _, node := range d.Nodes {
			if n, ok := held[node]; ok {
				return node, n, true
			}
		}
	}
	return "", 0, false
}
