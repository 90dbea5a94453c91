package devices

import (
	"errors"
	"fmt"
	"slices"

	oci "github.com/opencontainers/runtime-spec/specs-go"
	"tags.cncf.io/container-device-interface/pkg/cdi"
	specs "tags.cncf.io/container-device-interface/specs-go"

	"github.com/quittance/quittance/protocol"
)

// ErrChanged says that the specs are not those that the devices were leased by.
var ErrChanged = errors.New("the CDI specs changed after the devices were leased; allocate anew")

// Injection is what leased devices add to a container.
type Injection struct{ edits []*specs.ContainerEdits }

// Injection makes the edits of leased devices, as the accepted receipt lists
// them. It looks at the specs again: what is injected is exactly what was
// leased, or nothing is ([ErrChanged]), and it has passed its preflight a
// moment ago.
func (c *Catalog) Injection(leased []protocol.Device, digest protocol.Digest) (*Injection, error) {
	found := c.Look() // what is leased exclusively shares no node with what else is held
	var chosen []Device
	for _, l := range protocol.DistinctDevices(leased) {
		i := slices.IndexFunc(found.Devices, func(d Device) bool { return slices.Contains(d.Names, l.Name) })
		if i < 0 {
			return nil, fmt.Errorf("device %s: %w", l.Name, ErrChanged)
		}
		d := found.Devices[i]
		if !slices.Equal(d.Nodes, l.Nodes) {
			return nil, fmt.Errorf("device %s has other nodes: %w", l.Name, ErrChanged)
		}
		if d.Fault != "" {
			return nil, fmt.Errorf("device %s: %s", l.Name, d.Fault)
		}
		chosen = append(chosen, d)
	}
	digests := make([]protocol.Digest, len(chosen))
	for i, d := range chosen {
		digests[i] = d.Digest
	}
	if protocol.CDIDigest(digests) != digest {
		return nil, ErrChanged
	}
	in := &Injection{}
	var done []*spec
	for _, d := range chosen {
		if !slices.Contains(done, d.spec) {
			done = append(done, d.spec)
			in.edits = append(in.edits, &d.spec.raw.ContainerEdits)
		}
		in.edits = append(in.edits, d.edits)
	}
	return in, nil
}

// Apply adds the edits to a container's spec.
func (i *Injection) Apply(s *oci.Spec) error {
	all := &cdi.ContainerEdits{}
	for _, e := range i.edits {
		all.Append(&cdi.ContainerEdits{ContainerEdits: e})
	}
	if err := all.Apply(s); err != nil {
		return fmt.Errorf("inject the leased devices: %w", err)
	}
	return nil
}
