package host

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/quittance/quittance/protocol"
	"github.com/quittance/quittance/protocol/hostclient"
	"github.com/quittance/quittance/protocol/tlog"
)

// Receipt is one leaf with its inclusion proof, both verified against the
// host's key.
type Receipt struct {
	Index protocol.Index
	Kind  protocol.Kind
	Leaf  []byte // exact bytes
	Proof string // tlog-proof text with its checkpoint
}

// Receipts fetches the receipts of an allocation, at most limit, and verifies
// each: its leaf hash, that it speaks of this number, and its proof under the
// host's key. Where there are more, receipts that a container can provoke are
// left out first. The highest one is saved for the witness. key is the
// verifier key under which they were proved.
func (h *Host) Receipts(ctx context.Context, a protocol.Allocation, limit int) (all []Receipt, verifier string, err error) {
	generation, key := h.identity()
	var highest *protocol.Seen
	for _, entry := range choose(a.Receipts, limit) {
		leaf, err := h.client.Receipt(ctx, generation, entry.Index)
		if err != nil {
			return nil, "", fmt.Errorf("host: receipt %d: %w", entry.Index, err)
		}
		r, err := protocol.DecodeReceipt(leaf)
		if err != nil {
			return nil, "", fmt.Errorf("host: receipt %d: %w", entry.Index, err)
		}
		if tlog.LeafDigest(leaf) != entry.LeafHash || r.Kind != entry.Kind || r.Number == nil || *r.Number != a.Number || r.Generation != generation {
			return nil, "", fmt.Errorf("host: receipt %d is not the one that allocation %d names", entry.Index, a.Number)
		}
		proof, err := h.client.Proof(ctx, generation, entry.Index)
		if err != nil {
			return nil, "", fmt.Errorf("host: proof of receipt %d: %w", entry.Index, err)
		}
		if proof.Index != entry.Index {
			return nil, "", fmt.Errorf("host: proof of receipt %d speaks of receipt %d", entry.Index, proof.Index)
		}
		if _, err := proof.Verify(leaf, key); err != nil {
			return nil, "", fmt.Errorf("host: proof of receipt %d: %w", entry.Index, err)
		}
		all = append(all, Receipt{entry.Index, entry.Kind, leaf, proof.Format()})
		highest = &protocol.Seen{Index: entry.Index, LeafHash: entry.LeafHash}
	}
	if highest == nil {
		return nil, "", fmt.Errorf("host: allocation %d has no receipts", a.Number)
	}
	return all, key.String(), h.saveHighest(ctx, generation, *highest)
}

func (h *Host) saveHighest(ctx context.Context, generation protocol.ID, highest protocol.Seen) error {
	h.seenMu.Lock()
	defer h.seenMu.Unlock()
	seen, err := h.witness.Seen(generation)
	if err != nil {
		return fmt.Errorf("host: witness: %w", err)
	}
	if seen.Highest != nil && seen.Highest.Index >= highest.Index {
		return nil
	}
	seen.Highest = &highest
	if err := h.witness.SaveSeen(ctx, generation, seen); err != nil {
		return fmt.Errorf("host: witness: save: %w", err)
	}
	return nil
}

// provoked are the kinds that a container can cause any number of.
var provoked = []protocol.Kind{protocol.KindOOMObserved, protocol.KindStuck, protocol.KindUnstuck}

// choose keeps at most limit entries, all the others before the provoked ones,
// in the order of their indices.
func choose(entries []protocol.ReceiptEntry, limit int) []protocol.ReceiptEntry {
	left := limit
	for _, e := range entries {
		if !slices.Contains(provoked, e.Kind) {
			left--
		}
	}
	var kept []protocol.ReceiptEntry
	for _, e := range entries {
		if slices.Contains(provoked, e.Kind) {
			if left <= 0 {
				continue
			}
			left--
		}
		if len(kept) < limit {
			kept = append(kept, e)
		}
	}
	return kept
}

// Consume acknowledges the retired receipt of an allocation until the agent has
// durably taken it, and returns the allocation as it is then. ctx bounds it.
func (h *Host) Consume(ctx context.Context, a protocol.Allocation) (protocol.Allocation, error) {
	generation, _ := h.identity()
	leaf, ok := entryOf(a, protocol.KindRetired)
	if !ok {
		return protocol.Allocation{}, fmt.Errorf("host: allocation %d has no retired receipt to consume", a.Number)
	}
	pause := h.pauses("consume", generation, a.Number, a.Purpose)
	for {
		answer, err := h.client.Consume(ctx, generation, a.Number, protocol.ConsumeRequest{Purpose: a.Purpose, LeafHash: leaf.LeafHash})
		if err == nil {
			return answer.Allocation, nil
		}
		if settled(err) {
			return protocol.Allocation{}, fmt.Errorf("host: consume %d: %w", a.Number, err)
		}
		if waitErr := pause(ctx, err); waitErr != nil {
			return protocol.Allocation{}, &UnknownError{"consume", generation, a.Number, errors.Join(err, waitErr)}
		}
	}
}

func entryOf(a protocol.Allocation, kind protocol.Kind) (protocol.ReceiptEntry, bool) {
	for _, e := range slices.Backward(a.Receipts) {
		if e.Kind == kind {
			return e, true
		}
	}
	return protocol.ReceiptEntry{}, false
}

// Release lets the agent prune history up to and including frontier, except
// the stuck allocations named. The same request again is the same request.
func (h *Host) Release(ctx context.Context, frontier protocol.Number, except []protocol.Number) (protocol.ReleaseAnswer, error) {
	generation, _ := h.identity()
	slices.Sort(except)
	pause := h.pauses("release", generation, frontier, "")
	for {
		answer, err := h.client.Release(ctx, generation, protocol.ReleaseRequest{Frontier: frontier, Except: except})
		if err == nil {
			return answer, nil
		}
		if settled(err) && !hostclient.IsCode(err, protocol.CodeBusy) {
			return protocol.ReleaseAnswer{}, fmt.Errorf("host: release up to %d: %w", frontier, err)
		}
		if waitErr := pause(ctx, err); waitErr != nil {
			return protocol.ReleaseAnswer{}, &UnknownError{"release", generation, frontier, errors.Join(err, waitErr)}
		}
	}
}

// Allocations lists the allocations of the generation that are not released. A
// generation obeys one owner, who may act on every one of them, those of an
// earlier owner and an operator's burns included.
func (h *Host) Allocations(ctx context.Context) ([]protocol.Allocation, error) {
	generation, _ := h.identity()
	all, err := h.client.List(ctx, generation)
	if err != nil {
		return nil, fmt.Errorf("host: allocations: %w", err)
	}
	return all, nil
}

// GenerationGone reports whether the agent's present generation replaces old
// one whose containers were all verified gone: its genesis receipt, verified,
// says so.
func (h *Host) GenerationGone(ctx context.Context, old protocol.ID) (bool, error) {
	generation, key := h.identity()
	if generation == old {
		return false, nil
	}
	leaf, err := h.client.Receipt(ctx, generation, 0)
	if err != nil {
		return false, fmt.Errorf("host: genesis: %w", err)
	}
	r, err := protocol.DecodeReceipt(leaf)
	if err != nil || r.Kind != protocol.KindGenesis {
		return false, errors.Join(errors.New("host: receipt 0 is not a genesis receipt"), err)
	}
	proof, err := h.client.Proof(ctx, generation, 0)
	if err != nil {
		return false, fmt.Errorf("host: genesis: proof: %w", err)
	}
	if _, err := proof.Verify(leaf, key); err != nil {
		return false, fmt.Errorf("host: genesis: proof: %w", err)
	}
	body, err := protocol.BodyOf[protocol.GenesisBody](r)
	if err != nil {
		return false, fmt.Errorf("host: genesis: %w", err)
	}
	return body.Abandoned.Names(old), nil
}
