package service

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"time"

	"github.com/quittance/quittance/controller/api"
	"github.com/quittance/quittance/controller/internal/attempt"
	"github.com/quittance/quittance/controller/internal/breaker"
	"github.com/quittance/quittance/controller/internal/host"
	"github.com/quittance/quittance/controller/internal/lane"
	"github.com/quittance/quittance/controller/internal/offering"
	"github.com/quittance/quittance/controller/internal/provider"
	"github.com/quittance/quittance/controller/internal/store"
	"github.com/quittance/quittance/protocol"
)

// Cause is the kind of a reason why nothing is admitted.
type Cause string

// The causes. An intended drain and a busy host are no faults: whoever watches
// tells them apart by this.
const (
	CauseDrain  Cause = "drain"  // somebody asked that nothing new is taken
	CauseRoom   Cause = "room"   // the host or the service has no place left for now
	CausePerson Cause = "person" // somebody has to look
	CauseFault  Cause = "fault"  // everything else, which may mend itself
)

// Causes lists them.
func Causes() []Cause { return []Cause{CauseDrain, CauseRoom, CausePerson, CauseFault} }

// blocked says why nothing is admitted now. Person tells that somebody has to
// look; such a reason is named before others.
type blocked struct {
	reason   string
	person   bool
	expected Cause // CauseDrain or CauseRoom where it is no fault
	cause    error
}

// causeOf is the kind of what report is given; "" for nil.
func causeOf(why error) Cause {
	b, _ := errors.AsType[*blocked](why)
	switch {
	case why == nil:
		return ""
	case b != nil && b.person:
		return CausePerson
	case b != nil && b.expected != "":
		return b.expected
	}
	return CauseFault
}

func (b *blocked) Error() string {
	if b.cause != nil {
		return b.reason + ": " + b.cause.Error()
	}
	return b.reason
}

func (b *blocked) Unwrap() error { return b.cause }

// Next implements [lane.Admission]: whole cycles, each restarted from its
// beginning after any failure.
func (s *Service) Next(ctx context.Context, number int) (lane.Selection, error) {
	// The lane is at its clean point: it has finished an attempt, or what it
	// recovered.
	s.mu.Lock()
	s.batchDue = true
	s.mu.Unlock()
	for {
		selection, err := s.admit(ctx, number)
		if err == nil && selection.Offering != nil {
			s.report(nil)
			return selection, nil
		}
		if ctx.Err() != nil {
			return lane.Selection{}, context.Cause(ctx)
		}
		if _, failed := errors.AsType[*store.FailedError](err); failed {
			return lane.Selection{}, err
		}
		if err != nil {
			s.report(err)
		} else {
			s.report(nil)
		}
		select {
		case <-ctx.Done():
			return lane.Selection{}, context.Cause(ctx)
		case <-time.After(s.Poll):
		}
	}
}

// report logs why nothing is admitted, once per change; nil: admission is open.
func (s *Service) report(why error) {
	reason := ""
	if why != nil {
		reason = why.Error()
	}
	s.mu.Lock()
	changed := s.reason != reason
	s.reason, s.cause = reason, causeOf(why)
	s.mu.Unlock()
	switch {
	case changed && reason != "":
		s.Log.Warn("nothing is admitted", append(provider.Fields(why), "reason", reason)...)
	case changed:
		s.Log.Info("admission is open")
	}
}

// admit goes through one cycle. A zero selection without an error means that
// there is no job.
func (s *Service) admit(ctx context.Context, number int) (lane.Selection, error) {
	if err := s.lock(ctx); err != nil {
		return lane.Selection{}, err
	}
	defer s.unlock()
	current, profiles, err := s.mayAdmit(ctx, number)
	if err != nil {
		return lane.Selection{}, err
	}
	return s.discover(ctx, current, profiles)
}

// lock takes the token of the admission cycle.
func (s *Service) lock(ctx context.Context) error {
	select {
	case s.cycle <- struct{}{}:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

func (s *Service) unlock() { <-s.cycle }

// mayAdmit looks at everything that may forbid an admission and returns the
// host as it was read. Of several reasons the one that needs a person is
// named.
func (s *Service) mayAdmit(ctx context.Context, number int) (protocol.Host, map[string]protocol.ProfileInfo, error) {
	reasons := []error{s.maintain(ctx), s.local(number)}
	current, profiles, err := s.readHost(ctx)
	if err != nil {
		reasons = append(reasons, hostBlocked("the host cannot be reached", err))
	} else {
		reasons = append(reasons, room(current))
	}
	s.mu.Lock()
	announced, refused := s.announced != nil, s.helloErr
	s.mu.Unlock()
	if announced {
		reasons = append(reasons, s.inventory(ctx))
	} else {
		reasons = append(reasons, &blocked{reason: "no hello was acknowledged yet", cause: refused, person: refusedForGood(refused)})
	}
	return current, profiles, first(reasons)
}

// hostBlocked is why the host's side forbids an admission.
func hostBlocked(reason string, err error) error {
	if b, ok := errors.AsType[*blocked](err); ok && b.person {
		return b
	}
	if host.NeedsPerson(err) {
		return &blocked{reason: "the host's ledger and the attempt store do not agree", cause: err, person: true}
	}
	return &blocked{reason: reason, cause: err}
}

// first picks the reason that is reported: a failed store, then what needs a
// person, then whatever came first.
func first(reasons []error) error {
	var picked error
	for _, err := range reasons {
		if err == nil {
			continue
		}
		if _, failed := errors.AsType[*store.FailedError](err); failed {
			return err
		}
		b, _ := errors.AsType[*blocked](err)
		old, _ := errors.AsType[*blocked](picked)
		if picked == nil || b != nil && b.person && (old == nil || !old.person) {
			picked = err
		}
	}
	return picked
}

// local checks what needs no network: the lane's own records and the store.
func (s *Service) local(number int) error {
	for _, e := range s.Store.Active() {
		at := attempt.OriginOf(e.Record).Lane
		if at >= s.Lanes {
			at = 0
		}
		if at == number && attempt.HoldsLane(e.Record) {
			return &blocked{reason: fmt.Sprintf("lane %d is held by attempt %s in state %s", number, e.Key, e.Record.State()), person: true}
		}
	}
	if err := s.Store.Admit(); err != nil {
		if _, failed := errors.AsType[*store.FailedError](err); failed {
			return err
		}
		return &blocked{reason: "the attempt store takes no new record", cause: err}
	}
	return nil
}

func room(h protocol.Host) error {
	switch {
	case h.Draining:
		return &blocked{reason: "the host is draining", expected: CauseDrain}
	case !h.Engine.Available:
		return &blocked{reason: "the host's engine is unavailable"}
	case h.Slots.Used >= h.Slots.Max:
		return &blocked{reason: "the host has no free slot", expected: CauseRoom}
	case h.Slots.Unreleased >= h.Slots.MaxUnreleased:
		return &blocked{reason: "the host keeps as much unreleased history as it may"}
	}
	return nil
}

// pageLimit bounds one page and pages the number of pages of one walk.
const (
	pageLimit = 100
	pages     = 100
)

// inventory reads this provider's attempts in progress completely. One that the
// store does not know holds every lane. Of one that is over here the service lost
// the end: it is told again where it may be. The service admits as many as there
// are lanes, and what stays in progress keeps its place there: while no place is
// left, a START would be refused, again and again.
func (s *Service) inventory(ctx context.Context) error {
	cursor, places, over := "", 0, ""
	for range pages {
		page, err := s.API.Inventory(ctx, pageLimit, cursor)
		if err != nil {
			return &blocked{reason: "the inventory cannot be read", cause: err}
		}
		for _, a := range page.Attempts {
			if !s.Store.Knows(a.Key) {
				return &blocked{
					reason: fmt.Sprintf("the service shows attempt %s of this provider in progress, which the attempt store does not know; was the store replaced? hand the identity over, or restore the store", a.Attempt),
					person: true,
				}
			}
			if _, active := s.Store.Get(a.Key); !active {
				ended, why, err := s.over(ctx, a)
				if err != nil {
					return err
				}
				if ended {
					continue
				}
				if why != "" {
					over = why
				}
			}
			places++
		}
		if page.NextCursor == nil {
			if places < s.Lanes {
				return nil
			}
			return &blocked{reason: fmt.Sprintf("the service shows %d attempts of this provider in progress and admits no more%s", places, over), person: over != ""}
		}
		cursor = *page.NextCursor
	}
	return &blocked{reason: "the inventory has no end"}
}

// discover selects the oldest open job of the kinds that can be served now. Jobs
// that the service offers by mistake are passed over; where there is no other,
// they are the reason why nothing is admitted.
func (s *Service) discover(ctx context.Context, current protocol.Host, profiles map[string]protocol.ProfileInfo) (lane.Selection, error) {
	s.mu.Lock()
	lease, taken := s.lease(), maps.Clone(s.taken) // what is taken is not offered any more, or was before it was taken
	s.mu.Unlock()
	var best lane.Selection
	var passed *forgotten
	for i := range s.Offerings {
		o := &s.Offerings[i]
		profile, known := profiles[o.Profile]
		if s.unavailable(o, profile, known, nil, lease) != "" || s.broken(o.Kind) != "" {
			continue
		}
		job, f, err := s.next(ctx, o.Kind, taken)
		if err != nil {
			return lane.Selection{}, err
		}
		if f != nil {
			passed = f
		}
		if job != nil && (best.Offering == nil || job.Created < best.Job.Created) {
			best = lane.Selection{Job: *job, Offering: o, Profile: profile, Larger: larger(o, profile, profiles), Agent: current.Versions.Agent}
		}
	}
	if best.Offering == nil && passed != nil {
		return lane.Selection{}, &blocked{reason: passed.String(), person: true}
	}
	if best.Offering != nil {
		s.take(&best)
	}
	return best, nil
}

// next is the kind's next job, in the service's order, that nobody has taken and
// that may be taken; nil: there is none. A job that was passed over is returned
// beside it.
func (s *Service) next(ctx context.Context, kind string, taken map[string]int) (*api.FeedJob, *forgotten, error) {
	var passed *forgotten
	query := provider.FeedQuery{Kind: kind, Limit: api.DefaultPageItems}
	for range pages {
		page, err := s.API.Feed(ctx, query)
		if err != nil {
			return nil, passed, &blocked{reason: "open jobs cannot be read", cause: err}
		}
		for i := range page.Jobs {
			job := &page.Jobs[i]
			if taken[job.Job] > 0 {
				continue
			}
			f, err := s.forgot(ctx, job.Job)
			if err != nil {
				return nil, passed, err
			}
			if f == nil {
				return job, passed, nil
			}
			s.once(f.job, "job is not taken: the service lost an attempt at it", "job", f.job, "attempt", f.key, "reason", f.String())
			passed = f
		}
		if passed == nil || page.NextCursor == nil {
			return nil, passed, nil
		}
		query.Cursor = *page.NextCursor
	}
	return nil, passed, nil
}

// larger is the profile that the offering's on_oom names, if the host has it
// and it really is larger.
func larger(o *offering.Offering, than protocol.ProfileInfo, profiles map[string]protocol.ProfileInfo) *protocol.ProfileInfo {
	p, ok := profiles[o.OnOOM]
	if !ok || !p.Available || p.Limits.MemoryBytes <= than.Limits.MemoryBytes {
		return nil
	}
	return &p
}

func (s *Service) take(selection *lane.Selection) {
	job := selection.Job.Job
	s.mu.Lock()
	defer s.mu.Unlock()
	s.taken[job]++
	b := s.breakers[selection.Offering.Kind]
	b.Took()
	selection.Release = func(end breaker.End) {
		s.mu.Lock()
		defer s.mu.Unlock()
		delete(s.taken, job)
		s.batchDue = true
		if b.Ended(end, time.Now()); end == breaker.Bad {
			if open, until := b.Open(time.Now()); open {
				s.Log.Warn("offering pauses: its last attempts failed", "kind", selection.Offering.Kind, "until", until)
			}
		}
	}
}
