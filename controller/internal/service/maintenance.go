package service

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/quittance/quittance/controller/internal/attempt"
	"github.com/quittance/quittance/controller/internal/failpoint"
	"github.com/quittance/quittance/controller/internal/host"
	"github.com/quittance/quittance/controller/internal/store"
	"github.com/quittance/quittance/protocol"
	"github.com/quittance/quittance/protocol/hostclient"
)

// batchEvery bounds the time between two maintenance batches.
const batchEvery = time.Minute

// tend makes the batch due in time although every lane may be busy for hours:
// allocations of this host are reconciled periodically, not only between
// attempts.
func (s *Service) tend(ctx context.Context) error {
	if err := s.lock(ctx); err != nil {
		return err
	}
	defer s.unlock()
	return s.maintain(ctx)
}

// maintain is the owned batch of the clean point before an admission: archive,
// reconcile, witness, release, trim, in this order. It runs when an attempt
// ended, at the start, and once a minute. A host that cannot be reached does
// not block it for ever: the batch stays due.
func (s *Service) maintain(ctx context.Context) error {
	s.mu.Lock()
	due := s.batchDue || time.Since(s.batchAt) > batchEvery
	s.batchDue = false // what ends from here on, in the middle of the batch, makes the next one due
	s.mu.Unlock()
	if !due {
		return nil
	}
	err := s.batch(ctx)
	s.mu.Lock()
	defer s.mu.Unlock()
	if err != nil {
		s.batchDue = true
		return err
	}
	s.batchAt = time.Now()
	return nil
}

// batch is one maintenance batch. One that has begun is finished: shutdown waits
// for it.
func (s *Service) batch(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), batchEvery)
	defer cancel()
	if err := s.archive(ctx); err != nil {
		return err
	}
	if err := s.release(ctx); err != nil {
		return hostBlocked("host history cannot be released", err)
	}
	_, err := s.Store.Trim(ctx)
	return err
}

func (s *Service) archive(ctx context.Context) error {
	for _, e := range s.Store.Active() {
		if !attempt.Archivable(e.Record) {
			continue
		}
		switch _, err := s.Store.Archive(ctx, e.Key); {
		case errors.Is(err, store.ErrHistory):
			if _, err := s.Store.Trim(ctx); err != nil {
				return err
			}
			if _, err := s.Store.Archive(ctx, e.Key); err != nil {
				return err
			}
		case err != nil:
			return err
		}
		s.Log.Info("attempt archived", "attempt", e.Key, "state", e.Record.State())
		failpoint.Hit(failpoint.Archived)
	}
	return nil
}

// release reconciles the generation's allocations and moves the released frontier
// as far as I32 allows. Where it cannot move and nothing carried became
// releasable, nothing is sent.
func (s *Service) release(ctx context.Context) error {
	current, err := s.sync(ctx)
	if err != nil {
		return err
	}
	if current.Owner != nil && *current.Owner != s.Store.ID() {
		return &blocked{reason: fmt.Sprintf("the host obeys another attempt store (%s); an operator gives it to this one (%s)", *current.Owner, s.Store.ID()), person: true}
	}
	all, err := s.Host.Allocations(ctx)
	if err != nil {
		return err
	}
	active := s.Store.Active() // after the list: an intent is durable before its number is sent
	if err := s.reconcile(ctx, current.Generation, all, active); err != nil {
		return err
	}
	if all, err = s.Host.Allocations(ctx); err != nil {
		return err
	}
	plan := frontier(current, all, active)
	if !plan.send {
		return nil
	}
	if waits, err := s.genesisAwaited(ctx, current.Generation, active); err != nil || waits {
		return err
	}
	if err := s.Host.PresentWitness(ctx); err != nil {
		return err
	}
	answer, err := s.Host.Release(ctx, plan.frontier, plan.except)
	if err != nil {
		return err
	}
	s.Log.Info("host history released", "frontier", answer.Frontier, "carried", answer.Carried)
	failpoint.Hit(failpoint.Released)
	return nil
}

// spareGenerations is how many witnesses of other generations than the present
// one are kept for as long as there is room: they still tell when an old state
// directory of the agent comes back (I9).
const spareGenerations = store.MaxHostGenerations / 2

// sync reads the host and keeps room for the witness of its next generation.
func (s *Service) sync(ctx context.Context) (protocol.Host, error) {
	known := s.Store.Generations() // before the host is read: one that begins meanwhile is not among them
	current, err := s.Host.Sync(ctx)
	if errors.Is(err, store.ErrHosts) {
		// The present generation is not among those kept, so none of them is it.
		if err := s.forget(ctx, known, ""); err != nil {
			return protocol.Host{}, err
		}
		known = nil
		current, err = s.Host.Sync(ctx)
	}
	if err != nil {
		return protocol.Host{}, err
	}
	return current, s.forget(ctx, known, current.Generation)
}

// forget removes the witnesses of generations that are neither the present one
// nor named by an active record, once they take more than their part of the
// room.
func (s *Service) forget(ctx context.Context, known []protocol.ID, present protocol.ID) error {
	if len(known) <= spareGenerations {
		return nil
	}
	named := map[protocol.ID]bool{present: true}
	for _, e := range s.Store.Active() {
		for _, x := range attempt.ExecutionsOf(e.Record) {
			named[x.Generation] = true
		}
	}
	for _, generation := range known {
		if named[generation] {
			continue
		}
		if err := s.Store.ForgetGeneration(ctx, generation); err != nil && !errors.Is(err, store.ErrNotFound) {
			return err
		}
		s.Log.Info("witness of an earlier host generation removed", "generation", generation)
	}
	return nil
}

// genesisAwaited reports whether an attempt has yet to read in this generation's
// genesis receipt that its own generation was abandoned: nothing is released
// before, because a release would prune that receipt.
func (s *Service) genesisAwaited(ctx context.Context, generation protocol.ID, active []store.Entry) (bool, error) {
	for _, e := range active {
		for _, x := range attempt.ExecutionsOf(e.Record) {
			if x.Generation == generation || x.Settlement.Settled() {
				continue
			}
			gone, err := s.Host.GenerationGone(ctx, x.Generation)
			if hostclient.IsCode(err, protocol.CodePruned) {
				continue // too late to wait; a person resolves the attempt
			}
			if err != nil || gone {
				return gone, err
			}
		}
	}
	return false, nil
}

// reconcile retires and consumes what no attempt needs any more: allocations of
// records that are gone or have settled them, a stuck one that came loose
// included.
func (s *Service) reconcile(ctx context.Context, generation protocol.ID, all []protocol.Allocation, active []store.Entry) error {
	records := map[string]attempt.Record{}
	for _, e := range active {
		records[e.Key] = e.Record
	}
	for _, a := range all {
		record, known := records[a.Purpose]
		if host.Reached(a, protocol.StateConsumed) || known && needs(record, generation, a.Number) {
			continue
		}
		if !host.Reached(a, protocol.StateRetired) {
			if a.Stuck == nil {
				s.Log.Warn("allocation without an attempt is retired", "allocation", a.Number, "purpose", a.Purpose)
			}
			if err := s.Host.Retire(ctx, generation, a.Number, a.Purpose, "no attempt needs it"); err != nil {
				return err
			}
			continue
		}
		if _, err := s.Host.Consume(ctx, a); err != nil {
			return err
		}
		if known {
			event := attempt.Settled{Generation: generation, Number: a.Number, Settlement: attempt.SettlementConsumed}
			if _, err := s.Store.Update(ctx, a.Purpose, event); err != nil {
				return err
			}
		}
	}
	return nil
}

// needs reports whether a record still settles the allocation itself.
func needs(record attempt.Record, generation protocol.ID, n protocol.Number) bool {
	for _, e := range attempt.ExecutionsOf(record) {
		if e.Generation == generation && e.Number == n {
			return !e.Settlement.Settled()
		}
	}
	// An acknowledged attempt may have just proposed the number.
	return record.State() == attempt.StateAcknowledged
}

// plan is what a release would ask for.
type plan struct {
	frontier protocol.Number
	except   []protocol.Number
	send     bool
}

// frontier is pure: the rule of I32 over the host's state, its allocations and
// the active records.
func frontier(current protocol.Host, all []protocol.Allocation, active []store.Entry) plan {
	top := current.Frontiers.Accepted
	for _, e := range active {
		if attempt.PermitsRelease(e.Record) {
			continue
		}
		for _, x := range attempt.ExecutionsOf(e.Record) {
			if x.Generation == current.Generation {
				top = min(top, x.Number-1)
			}
		}
	}
	for _, a := range all {
		if a.Number > current.Frontiers.Released && !host.Reached(a, protocol.StateConsumed) && a.Stuck == nil {
			top = min(top, a.Number-1)
		}
	}
	p := plan{frontier: max(top, current.Frontiers.Released)}
	loose := false
	for _, a := range all {
		switch {
		case a.Number > p.frontier:
		case !host.Reached(a, protocol.StateConsumed) && a.Stuck == nil:
			return plan{} // carried, came loose, and is on its way to be consumed
		case !host.Reached(a, protocol.StateConsumed):
			p.except = append(p.except, a.Number)
		case a.Number <= current.Frontiers.Released:
			loose = true // carried, and consumed since
		}
	}
	slices.Sort(p.except)
	p.send = p.frontier > current.Frontiers.Released || loose && p.frontier > 0
	return p
}
