package core

import (
	"errors"
	"fmt"

	"github.com/quittance/quittance/protocol"
)

// baseVersion is the version of a base record's form on disk.
const baseVersion = 1

// base is the stored form of a state: the record that a release's new segment
// begins with. The open allocations are repeated entry by entry, so that one
// [Apply] reads both the log and the base. Tree belongs to the receipt log and
// is opaque here.
type base struct {
	V           int              `json:"v"`
	Generation  protocol.ID      `json:"generation"`
	HostKey     string           `json:"host_key"`
	BootID      protocol.ID      `json:"boot_id"`
	First       protocol.Index   `json:"first"`
	Next        protocol.Index   `json:"next"`
	Accepted    protocol.Number  `json:"accepted"`
	Released    protocol.Number  `json:"released"`
	Owner       *protocol.ID     `json:"owner"`
	Draining    bool             `json:"draining"`
	Allocations []baseAllocation `json:"allocations"`
	Tree        []byte           `json:"tree"`
}

type baseAllocation struct {
	Entries []baseEntry `json:"entries"`
}

type baseEntry struct {
	Receipt bool   `json:"receipt"`
	Payload []byte `json:"payload"`
}

// MaxBaseBytes bounds a base record when it is read.
const MaxBaseBytes = 256 << 20

// EncodeBase writes a state as a base record; tree is the receipt log's own
// snapshot at the state's size and is returned by [OpenBase] as it is.
func EncodeBase(s *State, tree []byte) []byte {
	b := base{
		V: baseVersion, Generation: s.Generation, HostKey: s.HostKey, BootID: s.BootID, First: s.First, Next: s.Next,
		Accepted: s.Accepted, Released: s.Released, Owner: s.Owner, Draining: s.Draining, Tree: tree,
	}
	for _, n := range s.Numbers() {
		var ba baseAllocation
		for _, e := range s.allocations[n].entries {
			ba.Entries = append(ba.Entries, baseEntry(e))
		}
		b.Allocations = append(b.Allocations, ba)
	}
	return protocol.AppendCanonical(nil, b)
}

// OpenBase reads a base record. An error means that the ledger cannot be used
// by this program.
func OpenBase(payload []byte) (s *State, tree []byte, err error) {
	var b base
	if err := protocol.DecodeStrict(payload, MaxBaseBytes, &b); err != nil {
		return nil, nil, fmt.Errorf("base: %w", err)
	}
	if b.V != baseVersion {
		return nil, nil, fmt.Errorf("base: is of version %d; this program reads version %d: use the program that wrote it or a later one", b.V, baseVersion)
	}
	if !b.Generation.Valid() || b.First < 0 || b.Next < b.First || b.Released > b.Accepted {
		return nil, nil, errors.New("base: its frontiers or indices are out of form")
	}
	s = NewState()
	s.Generation, s.HostKey, s.BootID, s.First, s.Next = b.Generation, b.HostKey, b.BootID, b.First, b.Next
	s.Accepted, s.Released, s.Owner, s.Draining = b.Accepted, b.Released, b.Owner, b.Draining
	for _, ba := range b.Allocations {
		for _, e := range ba.Entries {
			if e.Receipt {
				err = applyReceipt(s, Entry(e), true)
			} else {
				err = applyIntent(s, Entry(e))
			}
			if err != nil {
				return nil, nil, fmt.Errorf("base: %w", err)
			}
		}
	}
	return s, b.Tree, nil
}

// baseEncoder fixes the state now and returns a function that writes it as the
// base that precedes the receipt with index next.
func baseEncoder(s *State, next protocol.Index) func(tree []byte) []byte {
	b := &State{
		Generation: s.Generation, HostKey: s.HostKey, BootID: s.BootID, First: s.First, Next: next,
		Accepted: s.Accepted, Released: s.Released, Owner: s.Owner, Draining: s.Draining,
		allocations: make(map[protocol.Number]*Allocation, len(s.allocations)),
	}
	for n, a := range s.allocations {
		b.allocations[n] = &Allocation{entries: a.entries[:len(a.entries):len(a.entries)]}
	}
	return func(tree []byte) []byte { return EncodeBase(b, tree) }
}
