package core

import (
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"maps"
	"slices"

	"github.com/quittance/quittance/profiles"
	"github.com/quittance/quittance/protocol"
)

// State is what the ledger says, and nothing else: two agents that folded the
// same ledger have equal states. Only [Apply] and [OpenBase] change it.
type State struct {
	Generation protocol.ID
	HostKey    string
	BootID     protocol.ID    // of the last start of the agent
	First      protocol.Index // of the oldest receipt served by index
	Next       protocol.Index // of the next receipt; Next-1 is the head
	Accepted   protocol.Number
	Released   protocol.Number
	Owner      *protocol.ID // nil until the first acceptance binds one
	Draining   bool

	// allocations holds every number above the released frontier, and those
	// at or below it that are carried along because they were stuck.
	allocations map[protocol.Number]*Allocation
	// pending is the profile intent of the acceptance that follows it.
	pending *pendingProfile
}

type pendingProfile struct {
	entry     Entry
	number    protocol.Number
	at        BootTime
	canonical []byte
	profile   *profiles.Profile
}

// Allocation is one accepted number. Its pointers are set in the order of the
// states and never reset, Stuck excepted.
type Allocation struct {
	Number     protocol.Number
	Accepted   protocol.AcceptedBody
	AcceptedAt BootTime
	Profile    *profiles.Profile // nil for a burn
	Created    *CreatedBody      // a container was made; a process may have been started
	Started    *protocol.StartedBody
	Retire     *RetireBody
	RetireAt   BootTime
	Exited     *protocol.ExitedBody
	ExitedAt   BootTime
	Retired    *protocol.RetiredBody
	Consumed   bool

	Stuck         *protocol.StuckBody // nil unless stuck now
	Channels      int64               // never fewer than were handed out; see channelsBody
	StuckReceipts int64               // stuck receipts written so far
	OOMReceipts   int64               // oom_observed receipts written so far

	// entries are the allocation's records in order, as a base repeats them.
	entries []Entry
	// channelsAt is the position of the last channels intent among them, the
	// only one that is kept; 0 where there is none, since the first entry is the
	// acceptance's.
	channelsAt int
	// receipts are those among them that are published.
	receipts []Written
}

// Written is one published receipt of an allocation.
type Written struct {
	Entry protocol.ReceiptEntry
	Leaf  []byte
}

// NewState is the state before genesis.
func NewState() *State {
	return &State{allocations: map[protocol.Number]*Allocation{}}
}

// Allocation is the allocation with this number, nil where it was never
// accepted or is released.
func (s *State) Allocation(n protocol.Number) *Allocation { return s.allocations[n] }

// Numbers lists the numbers that the state holds, ascending.
func (s *State) Numbers() []protocol.Number {
	return slices.Sorted(maps.Keys(s.allocations))
}

// ByNonce finds the allocation that a container with this nonce belongs to.
func (s *State) ByNonce(nonce protocol.ID) *Allocation {
	for _, a := range s.allocations {
		if a.Accepted.Nonce != nil && *a.Accepted.Nonce == nonce {
			return a
		}
	}
	return nil
}

// Kept lists the receipts below the first index that must stay readable by
// number: those of allocations that are not released. Ascending.
func (s *State) Kept() []Written {
	var kept []Written
	for _, a := range s.allocations {
		for _, w := range a.receipts {
			if w.Entry.Index < s.First {
				kept = append(kept, w)
			}
		}
	}
	slices.SortFunc(kept, func(a, b Written) int { return int(a.Entry.Index - b.Entry.Index) })
	return kept
}

// Burn reports whether the number was retired without any profile.
func (a *Allocation) Burn() bool { return a.Accepted.Profile == nil }

// Receipt is the last receipt of a kind, nil where there is none.
func (a *Allocation) Receipt(kind protocol.Kind) *Written {
	for i := range slices.Backward(a.receipts) {
		if a.receipts[i].Entry.Kind == kind {
			return &a.receipts[i]
		}
	}
	return nil
}

// dispatched reports whether a process of the allocation ran or may have run.
func (a *Allocation) dispatched() bool { return a.Started != nil || a.Exited != nil }

// LeafHash is the RFC 6962 hash of a leaf.
func LeafHash(leaf []byte) protocol.Digest {
	h := sha256.New()
	h.Write([]byte{0})
	h.Write(leaf)
	return protocol.Digest("sha256:" + hex.EncodeToString(h.Sum(nil)))
}

// Apply folds one entry into the state. An error means that the ledger holds
// what this program cannot have written, or cannot read; the state is then
// unusable and the agent must not serve.
func Apply(s *State, e Entry) error {
	if e.Receipt {
		return applyReceipt(s, e, false)
	}
	return applyIntent(s, e)
}

func applyIntent(s *State, e Entry) error {
	in, body, err := decodeIntent(e.Payload)
	if err != nil {
		return err
	}
	if b, ok := body.(*profileBody); ok {
		p, err := decodeProfile(b.Profile)
		if err != nil {
			return err
		}
		s.pending = &pendingProfile{entry: e, number: in.Number, at: in.Boot, canonical: b.Profile, profile: p}
		return nil
	}
	a := s.allocations[in.Number]
	if a == nil {
		return fmt.Errorf("intent %s: concerns number %d, which is not open", in.Intent, in.Number)
	}
	switch b := body.(type) {
	case *CreatedBody:
		a.Created = b
	case *RetireBody:
		if a.Retire != nil {
			return fmt.Errorf("intent retire: number %d already has one", in.Number)
		}
		a.Retire, a.RetireAt = b, in.Boot
	case *exitedBody:
		a.ExitedAt = in.Boot
	case *channelsBody:
		a.Channels = b.Reserved
		if a.channelsAt > 0 {
			// A base that is being written may still read the old entries.
			a.entries = slices.Delete(slices.Clone(a.entries), a.channelsAt, a.channelsAt+1)
		}
		a.channelsAt = len(a.entries)
	}
	a.entries = append(a.entries, e)
	return nil
}

// applyReceipt folds a receipt. In a base the receipts of open allocations are
// repeated: then repeated is true and the log's indices are not counted.
func applyReceipt(s *State, e Entry, repeated bool) error {
	r, err := protocol.DecodeReceipt(e.Payload)
	if err != nil {
		return fmt.Errorf("receipt: %w", err)
	}
	if !repeated {
		if r.Index != s.Next {
			return fmt.Errorf("receipt: has index %d where %d is next", r.Index, s.Next)
		}
		if s.Generation != "" && r.Generation != s.Generation {
			return errors.New("receipt: is of another generation")
		}
		s.Next++
	}
	if r.Number != nil {
		return applyNumbered(s, e, r, repeated)
	}
	switch r.Kind {
	case protocol.KindGenesis:
		b, err := protocol.BodyOf[protocol.GenesisBody](r)
		if err != nil {
			return err
		}
		if r.Index != 0 {
			return errors.New("receipt: a second genesis")
		}
		s.Generation, s.HostKey, s.BootID = r.Generation, b.HostKey, b.BootID
		return nil
	case protocol.KindAgentStarted:
		b, err := protocol.BodyOf[protocol.AgentStartedBody](r)
		s.BootID = b.BootID
		return err
	case protocol.KindReleased:
		b, err := protocol.BodyOf[protocol.ReleasedBody](r)
		if err != nil {
			return err
		}
		for n := range s.allocations {
			if n <= b.Frontier && !slices.Contains(b.Except, n) {
				delete(s.allocations, n)
			}
		}
		s.Released, s.First = b.Frontier, r.Index
		return nil
	case protocol.KindDrained:
		s.Draining = true
		return nil
	case protocol.KindUndrained:
		s.Draining = false
		return nil
	case protocol.KindOwnerChanged:
		b, err := protocol.BodyOf[protocol.OwnerChangedBody](r)
		s.Owner = &b.To
		return err
	}
	return fmt.Errorf("receipt: kind %q is not one that this program writes: use the program that wrote it or a later one", r.Kind)
}

// applyNumbered folds a receipt that concerns an allocation.
func applyNumbered(s *State, e Entry, r protocol.Receipt, repeated bool) error {
	n := *r.Number
	a := s.allocations[n]
	if r.Kind == protocol.KindAccepted {
		b, err := protocol.BodyOf[protocol.AcceptedBody](r)
		if err != nil {
			return err
		}
		if a != nil || (!repeated && n != s.Accepted+1) {
			return fmt.Errorf("receipt accepted: number %d where %d is next", n, s.Accepted+1)
		}
		if node, holder, overlaps := s.overlap(b.Devices); overlaps {
			return fmt.Errorf("receipt accepted: number %d gets the device node %s, which number %d holds", n, node, holder)
		}
		a = &Allocation{Number: n, Accepted: b}
		if b.Profile != nil {
			if b.Nonce == nil || b.ProfileDigest == nil || b.ImageDigest == nil || b.Limits == nil {
				return fmt.Errorf("receipt accepted: number %d names a profile and not all that belongs to it", n)
			}
			if s.pending == nil || s.pending.number != n || s.pending.profile.Digest() != *b.ProfileDigest {
				return fmt.Errorf("receipt accepted: the profile of number %d is not in the ledger", n)
			}
			a.Profile, a.AcceptedAt = s.pending.profile, s.pending.at
			a.entries = append(a.entries, s.pending.entry)
		}
		s.pending = nil
		s.allocations[n] = a
		if !repeated {
			s.Accepted = n
			if s.Owner == nil {
				s.Owner = &b.Owner
			}
		}
	} else if a == nil {
		return fmt.Errorf("receipt %s: concerns number %d, which is not open", r.Kind, n)
	} else if err := applyToAllocation(a, r); err != nil {
		return err
	}
	a.entries = append(a.entries, e)
	a.receipts = append(a.receipts, Written{
		Entry: protocol.ReceiptEntry{Index: r.Index, Kind: r.Kind, LeafHash: LeafHash(e.Payload), At: r.At},
		Leaf:  e.Payload,
	})
	return nil
}

func applyToAllocation(a *Allocation, r protocol.Receipt) error {
	var err error
	switch r.Kind {
	case protocol.KindStarted:
		a.Started, err = bodyPointer[protocol.StartedBody](r)
	case protocol.KindOOMObserved:
		a.OOMReceipts++
	case protocol.KindExited:
		if a.Exited != nil {
			return fmt.Errorf("receipt exited: number %d already has one", a.Number)
		}
		a.Exited, err = bodyPointer[protocol.ExitedBody](r)
	case protocol.KindStuck:
		a.Stuck, err = bodyPointer[protocol.StuckBody](r)
		a.StuckReceipts++
	case protocol.KindUnstuck:
		a.Stuck = nil
	case protocol.KindRetired:
		if a.Retired != nil {
			return fmt.Errorf("receipt retired: number %d already has one", a.Number)
		}
		a.Retired, err = bodyPointer[protocol.RetiredBody](r)
		a.Stuck = nil
	case protocol.KindConsumed:
		if a.Retired == nil || a.Consumed {
			return fmt.Errorf("receipt consumed: number %d cannot be consumed now", a.Number)
		}
		a.Consumed = true
	default:
		return fmt.Errorf("receipt: kind %q is not one that this program writes: use the program that wrote it or a later one", r.Kind)
	}
	return err
}

func bodyPointer[T any](r protocol.Receipt) (*T, error) {
	b, err := protocol.BodyOf[T](r)
	return &b, err
}
