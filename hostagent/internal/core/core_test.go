package core

import (
	"context"
	"errors"
	"math"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/quittance/quittance/protocol"
)

// slowJournal makes nothing durable until it is told to.
type slowJournal struct {
	mu      sync.Mutex
	waiting []func(error)
	kinds   []protocol.Kind
	space   *Space        // nil: plenty
	blocked chan struct{} // what Append waits for before it takes anything; nil: nothing
}

// block holds every later Append back until the function returned is called.
func (j *slowJournal) block() (unblock func()) {
	j.mu.Lock()
	defer j.mu.Unlock()
	blocked := make(chan struct{})
	j.blocked = blocked
	return func() {
		j.mu.Lock()
		j.blocked = nil
		j.mu.Unlock()
		close(blocked)
	}
}

func (j *slowJournal) Append(entries []Entry, done func(error)) {
	j.mu.Lock()
	blocked := j.blocked
	j.mu.Unlock()
	if blocked != nil {
		<-blocked
	}
	j.mu.Lock()
	defer j.mu.Unlock()
	for _, e := range entries {
		if r, err := protocol.DecodeReceipt(e.Payload); err == nil {
			j.kinds = append(j.kinds, r.Kind)
		}
	}
	j.waiting = append(j.waiting, done)
}

func (j *slowJournal) Release(_ *ReleaseBase, entries []Entry, done func(error)) {
	j.Append(entries, done)
}

func (j *slowJournal) Space() Space {
	j.mu.Lock()
	defer j.mu.Unlock()
	if j.space != nil {
		return *j.space
	}
	return Space{Room: math.MaxInt64, Release: math.MaxInt64}
}

// sync ends the oldest waiting batches: all with n below 0.
func (j *slowJournal) sync(n int, err error) {
	j.mu.Lock()
	if n < 0 {
		n = len(j.waiting)
	}
	done := j.waiting[:n]
	j.waiting = slices.Clone(j.waiting[n:])
	j.mu.Unlock()
	for _, d := range done {
		d(err)
	}
}

// recorder keeps the effects that were begun.
type recorder struct {
	mu      sync.Mutex
	effects []Effect
}

func (r *recorder) Do(e Effect) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.effects = append(r.effects, e)
}

func (r *recorder) count() int {
	r.mu.Lock()
	defer r.mu.Unlock()
	return len(r.effects)
}

// bubbleClock is the virtual time of a synctest bubble.
type bubbleClock struct{ from time.Time }

func (c bubbleClock) Now() Now {
	return Now{BootMillis: time.Since(c.from).Milliseconds() + 1_000_000, Wall: protocol.TimestampOf(time.Now())}
}

type running struct {
	t       *testing.T
	core    *Core
	journal *slowJournal
	workers *recorder
	fed     atomic.Int64 // how often the watchdog was fed
	over    chan error
	stop    context.CancelFunc
}

// runCore starts a core in the present bubble with an engine, profiles and a
// witness, everything durable so far.
func runCore(t *testing.T) *running {
	t.Helper()
	state := NewState()
	if err := Apply(state, Genesis(testGeneration, 1, protocol.GenesisBody{HostKey: "key", BootID: firstBoot})); err != nil {
		t.Fatal(err)
	}
	r := &running{t: t, journal: new(slowJournal), workers: new(recorder), over: make(chan error, 1)}
	r.core = New(Config{
		State: state, Session: NewSession(firstBoot, protocol.CgroupV2, Bounds{MaxSlots: 2, MaxUnreleased: 2, StuckAfterMillis: 1000}),
		Journal: r.journal, Workers: r.workers, Clock: bubbleClock{time.Now()},
		Fed: func() { r.fed.Add(1) },
	})
	ctx, stop := context.WithCancel(t.Context())
	r.stop = stop
	go func() { r.over <- r.core.Run(ctx, protocol.Versions{Agent: "test", Protocol: []int{1}}) }()
	r.core.Post(EngineListed{})
	r.core.Post(EngineChanged{Engine: protocol.Engine{Available: true}})
	r.core.Post(ProfilesLoaded{Profiles: testProfiles()})
	synctest.Wait()
	r.journal.sync(-1, nil)
	r.ask(func(id RequestID) Event { return Witness{ID: id, Caller: controller(testOwner)} })
	return r
}

func (r *running) ask(make func(RequestID) Event) Reply {
	r.t.Helper()
	id := r.core.NewRequestID()
	reply, err := r.core.Ask(r.t.Context(), id, make(id))
	if err != nil {
		r.t.Error(err) // also called outside the test's goroutine
	}
	return reply
}

func allocateEvent(id RequestID) Event {
	return Allocate{ID: id, Caller: controller(testOwner), Number: 1, Nonce: testOwner, Body: protocol.AllocateRequest{
		Profile: "group", ProfileDigest: digestOf("group"), Purpose: "a",
	}}
}

// I6, I10: neither the effect nor a reply, a read's included, goes ahead of
// durability.
func TestNothingLeavesBeforeDurable(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := runCore(t)
		replies := make(chan string, 2)
		go func() {
			r.ask(allocateEvent)
			replies <- "allocate"
		}()
		synctest.Wait()
		go func() {
			reply := r.ask(func(id RequestID) Event { return GetHost{ID: id} })
			if reply.Body.(*HostView).Frontiers.Accepted != 1 {
				t.Error("the read was answered from before the acceptance")
			}
			replies <- "host"
		}()
		synctest.Wait()
		select {
		case what := <-replies:
			t.Fatalf("%s was answered before the acceptance was durable", what)
		default:
		}
		if n := r.workers.count(); n != 0 {
			t.Fatalf("%d effects began before the acceptance was durable", n)
		}
		r.journal.sync(-1, nil)
		if first, second := <-replies, <-replies; first == second {
			t.Errorf("answers %s and %s", first, second)
		}
		if n := r.workers.count(); n != 1 {
			t.Errorf("%d effects", n)
		}
		r.stop()
		if err := <-r.over; err != nil {
			t.Error(err)
		}
	})
}

// I35: after the journal's first error nothing is acknowledged, whatever it
// says of later batches, and the core ends with that error.
func TestJournalFailureIsFinal(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := runCore(t)
		asked := make(chan error, 1)
		go func() {
			id := r.core.NewRequestID()
			_, err := r.core.Ask(t.Context(), id, allocateEvent(id))
			asked <- err
		}()
		synctest.Wait()
		broken := errors.New("disk on fire")
		r.journal.sync(-1, broken)
		if err := <-r.over; !errors.Is(err, broken) {
			t.Errorf("Run: %v", err)
		}
		if err := <-asked; !errors.Is(err, ErrStopping) {
			t.Errorf("the allocation was answered: %v", err)
		}
		if n := r.workers.count(); n != 0 {
			t.Errorf("%d effects began", n)
		}
		id := r.core.NewRequestID()
		if _, err := r.core.Ask(t.Context(), id, GetHost{ID: id}); !errors.Is(err, ErrStopping) {
			t.Errorf("a later request: %v", err)
		}
		r.core.Post(Tick{}) // does not block
	})
}

// The loop alone feeds the watchdog: at least once in every tick while it turns
// and the ledger goes on, however slowly, and never again once a call into the
// journal does not return, or nothing becomes durable, whatever else goes on in
// the process. Unblocked, it feeds again and answers what had waited (I33, I35).
func TestOnlyTheLoopFeedsTheWatchdog(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := runCore(t)
		turns := func(d time.Duration) int64 {
			before := r.fed.Load()
			time.Sleep(d) // virtual
			synctest.Wait()
			return r.fed.Load() - before
		}
		const while = 30 * time.Second // half of the unit's WatchdogSec
		if n := turns(while); n < int64(while/tickInterval) {
			t.Errorf("fed %d times in %s at rest", n, while)
		}

		unblock := r.journal.block()
		answered := make(chan Reply, 3)
		go func() { answered <- r.ask(allocateEvent) }()
		synctest.Wait()
		// Somebody who asks, and who waits in vain, is no sign of life either.
		go func() { answered <- r.ask(func(id RequestID) Event { return GetHost{ID: id} }) }()
		if n := turns(while); n != 0 {
			t.Errorf("fed %d times in %s by a loop that does not turn", n, while)
		}

		// The loop turns, and the disk does not come back.
		unblock()
		if n := turns(while); n != 0 {
			t.Errorf("fed %d times in %s while what was decided waits for the disk", n, while)
		}
		// A batch at a time becomes durable: the disk is slow, and no more than that.
		go func() {
			answered <- r.ask(func(id RequestID) Event { return SetOwner{ID: id, Caller: Caller{Operator: true}, Owner: otherOwner} })
		}()
		synctest.Wait()
		r.journal.sync(1, nil)
		if n := turns(while); n != 1 {
			t.Errorf("fed %d times in %s by one batch, others waiting", n, while)
		}
		if len(answered) != 2 {
			t.Errorf("%d of 2 requests were answered", len(answered))
		}
		r.journal.sync(-1, nil)
		if n := turns(while); n < int64(while/tickInterval) {
			t.Errorf("fed %d times in %s after everything became durable", n, while)
		}
		if len(answered) != 3 {
			t.Errorf("%d of 3 requests were answered", len(answered))
		}
		r.stop()
		if err := <-r.over; err != nil {
			t.Error(err)
		}
	})
}

// A long poll ends at its deadline, at the state, or with its client; a client
// that is gone leaves nothing behind.
func TestLongPolls(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := runCore(t)
		go r.ask(allocateEvent)
		synctest.Wait()
		r.journal.sync(-1, nil)
		wait := func(id RequestID) Event {
			return GetAllocation{ID: id, Number: 1, Until: protocol.StateStarted, DeadlineMillis: r.core.cfg.Clock.Now().BootMillis + 5000}
		}
		began := time.Now()
		if v := r.ask(wait).Body.(*AllocationView); v.State != protocol.StateCreating || time.Since(began) < 5*time.Second || time.Since(began) > 7*time.Second {
			t.Errorf("%s after %s", v.State, time.Since(began))
		}

		ctx, cancel := context.WithCancel(t.Context())
		gone := make(chan error, 1)
		go func() {
			id := r.core.NewRequestID()
			_, err := r.core.Ask(ctx, id, wait(id))
			gone <- err
		}()
		synctest.Wait()
		cancel()
		if err := <-gone; !errors.Is(err, context.Canceled) {
			t.Errorf("a cancelled poll: %v", err)
		}

		reached := make(chan protocol.State, 1)
		go func() { reached <- r.ask(wait).Body.(*AllocationView).State }()
		synctest.Wait()
		r.core.Post(WorkCreated{Number: 1, Body: createdBody(1, testOwner, firstBoot)})
		synctest.Wait()
		r.journal.sync(-1, nil)
		synctest.Wait()
		r.core.Post(WorkStarted{Number: 1, StartMillis: 1})
		synctest.Wait()
		select {
		case s := <-reached:
			t.Errorf("%s was shown before it was durable", s)
		default:
		}
		r.journal.sync(-1, nil)
		if s := <-reached; s != protocol.StateStarted {
			t.Errorf("reached %s", s)
		}
		r.stop()
		if err := <-r.over; err != nil {
			t.Error(err)
		}
		if len(r.core.replies) != 0 || len(r.core.cfg.Session.waiters) != 0 {
			t.Errorf("%d replies and %d waiters are left", len(r.core.replies), len(r.core.cfg.Session.waiters))
		}
	})
}

// The lease of an owner that is not heard ends by the loop's own timer (FR-34).
func TestLeaseEndsByItself(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := runCore(t)
		go func() {
			r.ask(allocateEvent)
		}()
		synctest.Wait()
		r.journal.sync(-1, nil)
		r.core.Post(WorkCreated{Number: 1, Body: createdBody(1, testOwner, firstBoot)})
		synctest.Wait()
		r.journal.sync(-1, nil)
		r.core.Post(WorkStarted{Number: 1})
		synctest.Wait()
		r.journal.sync(-1, nil)
		time.Sleep(239 * time.Second) // virtual: the lease is 240 s
		synctest.Wait()
		if n := r.workers.count(); n != 3 {
			t.Fatalf("%d effects before the lease ended", n)
		}
		time.Sleep(3 * time.Second) // virtual
		synctest.Wait()
		r.journal.sync(-1, nil)
		synctest.Wait()
		r.workers.mu.Lock()
		last := r.workers.effects[len(r.workers.effects)-1]
		r.workers.mu.Unlock()
		if stop, ok := last.(StopEffect); !ok || stop.Number != 1 || stop.Kill {
			t.Errorf("after the lease: %#v", last)
		}
		r.stop()
		if err := <-r.over; err != nil {
			t.Error(err)
		}
	})
}
