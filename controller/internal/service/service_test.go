package service

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hashicorp/go-hclog"

	"github.com/quittance/quittance/controller/api"
	"github.com/quittance/quittance/controller/internal/attempt"
	"github.com/quittance/quittance/controller/internal/breaker"
	"github.com/quittance/quittance/controller/internal/claims"
	"github.com/quittance/quittance/controller/internal/host"
	"github.com/quittance/quittance/controller/internal/lane"
	"github.com/quittance/quittance/controller/internal/offering"
	"github.com/quittance/quittance/controller/internal/provider"
	"github.com/quittance/quittance/controller/internal/store"
	"github.com/quittance/quittance/protocol"
)

const generation = protocol.ID("000000000000000000000000000000ff")

func allocation(n protocol.Number, state protocol.State, stuck bool) protocol.Allocation {
	a := protocol.Allocation{Number: n, State: state, Purpose: fmt.Sprint("a", n)}
	if stuck {
		a.Stuck = &protocol.StuckBody{}
	}
	return a
}

func entry(key string, r attempt.Record) store.Entry { return store.Entry{Key: key, Record: r} }

func execution(n protocol.Number, s attempt.Settlement, receipts int) attempt.Execution {
	return attempt.Execution{Generation: generation, Number: n, Settlement: s, Receipts: make([]attempt.SavedReceipt, receipts)}
}

// I21, I32: how far host history may be released.
func TestFrontier(t *testing.T) {
	consumed, started, retired := protocol.StateConsumed, protocol.StateStarted, protocol.StateRetired
	running := entry("r", attempt.Acknowledged{Executions: []attempt.Execution{execution(3, attempt.SettlementOpen, 0)}})
	unattached := entry("u", attempt.TerminalConfirmed{Executions: []attempt.Execution{execution(2, attempt.SettlementConsumed, 1)}})
	held := func(receipts int) store.Entry {
		return entry("h", attempt.TerminalHeld{Reason: attempt.HoldMismatch, Executions: []attempt.Execution{execution(2, attempt.SettlementConsumed, receipts)}})
	}
	elsewhere := entry("e", attempt.Acknowledged{Executions: []attempt.Execution{{Generation: "other", Number: 1}}})
	for name, row := range map[string]struct {
		accepted, released protocol.Number
		mine               []protocol.Allocation
		active             []store.Entry
		want               string
	}{
		"nothing was ever accepted":              {0, 0, nil, nil, "0 [] false"},
		"everything is archived":                 {3, 0, []protocol.Allocation{allocation(1, consumed, false), allocation(2, consumed, false), allocation(3, consumed, false)}, nil, "3 [] true"},
		"nothing new":                            {3, 3, nil, nil, "3 [] false"},
		"up to the one that runs":                {3, 0, []protocol.Allocation{allocation(1, consumed, false), allocation(2, consumed, false), allocation(3, started, false)}, []store.Entry{running}, "2 [] true"},
		"the intent alone holds":                 {3, 0, []protocol.Allocation{allocation(1, consumed, false), allocation(2, consumed, false)}, []store.Entry{running}, "2 [] true"},
		"not past what is not archived":          {3, 0, []protocol.Allocation{allocation(1, consumed, false), allocation(2, consumed, false), allocation(3, consumed, false)}, []store.Entry{unattached}, "1 [] true"},
		"past a hold with its receipts saved":    {3, 1, []protocol.Allocation{allocation(2, consumed, false), allocation(3, consumed, false)}, []store.Entry{held(1)}, "3 [] true"},
		"not past a hold without them":           {3, 1, []protocol.Allocation{allocation(2, consumed, false), allocation(3, consumed, false)}, []store.Entry{held(0)}, "1 [] false"},
		"past a stuck one, carried along":        {3, 0, []protocol.Allocation{allocation(1, consumed, false), allocation(2, protocol.StateRetiring, true), allocation(3, consumed, false)}, nil, "3 [2] true"},
		"a carried one that is consumed now":     {3, 3, []protocol.Allocation{allocation(2, consumed, false)}, nil, "3 [] true"},
		"carried ones that are still stuck":      {3, 3, []protocol.Allocation{allocation(2, protocol.StateRetiring, true)}, nil, "3 [2] false"},
		"a carried one on its way":               {3, 3, []protocol.Allocation{allocation(2, retired, false)}, nil, "0 [] false"},
		"an orphan that is not consumed yet":     {3, 0, []protocol.Allocation{allocation(1, consumed, false), allocation(2, retired, false), allocation(3, consumed, false)}, nil, "1 [] true"},
		"numbers of another generation hold not": {1, 0, []protocol.Allocation{allocation(1, consumed, false)}, []store.Entry{elsewhere}, "1 [] true"},
	} {
		t.Run(name, func(t *testing.T) {
			p := frontier(protocol.Host{Generation: generation, Frontiers: protocol.Frontiers{Accepted: row.accepted, Released: row.released}}, row.mine, row.active)
			if got := fmt.Sprint(p.frontier, p.except, p.send); got != row.want {
				t.Fatalf("got %s, want %s", got, row.want)
			}
		})
	}
}

// world is a job service and a host as one admission sees them.
type world struct {
	hello     []api.Hello
	helloErr  error
	feeds     map[string][]api.FeedJob // by kind; further pages by kind and cursor
	feedErr   error
	attempts  map[string]error // by reference, why one is not shown
	inventory [][]api.Attempt
	host      protocol.Host
	hostErr   error
	profiles  map[string]protocol.ProfileInfo
	mine      []protocol.Allocation
	calls     []string
	lease     time.Duration
	releasing func(ctx context.Context) error
	stands    int64        // the announcement that the service keeps, where it is newer
	gone      bool         // the genesis says that the other generation was abandoned
	goneErr   error        // it cannot be read
	save      func() error // of the witness, or nil
}

func (w *world) Hello(_ context.Context, h api.Hello) (api.HelloAnswer, error) {
	w.hello = append(w.hello, h)
	return api.HelloAnswer{LeaseMillis: w.lease.Milliseconds(), Seq: max(h.Seq, w.stands)}, w.helloErr
}

func (w *world) Feed(_ context.Context, q provider.FeedQuery) (api.Feed, error) {
	f := api.Feed{Jobs: w.feeds[q.Kind+q.Cursor]}
	if next := q.Cursor + "+"; len(w.feeds[q.Kind+next]) > 0 {
		f.NextCursor = &next
	}
	return f, w.feedErr
}

func (w *world) Inventory(_ context.Context, _ int, cursor string) (api.Inventory, error) {
	page := 0
	if cursor != "" {
		fmt.Sscan(cursor, &page)
	}
	if page >= len(w.inventory) {
		return api.Inventory{}, nil
	}
	out := api.Inventory{Attempts: w.inventory[page]}
	if page+1 < len(w.inventory) {
		next := fmt.Sprint(page + 1)
		out.NextCursor = &next
	}
	return out, nil
}

func (w *world) Attempt(_ context.Context, reference string) (api.Attempt, attempt.Reply, error) {
	w.calls = append(w.calls, "read "+reference)
	return api.Attempt{}, attempt.Reply{}, w.attempts[reference]
}

func (w *world) Sync(context.Context) (protocol.Host, error) {
	if w.save != nil {
		if err := w.save(); err != nil {
			return protocol.Host{}, fmt.Errorf("host: witness: save: %w", err)
		}
	}
	return w.host, w.hostErr
}

func (w *world) Profiles(context.Context) (map[string]protocol.ProfileInfo, error) {
	return w.profiles, nil
}

func (w *world) PresentWitness(context.Context) error {
	w.calls = append(w.calls, "witness")
	return nil
}

func (w *world) Allocations(context.Context) ([]protocol.Allocation, error) {
	return slices.DeleteFunc(slices.Clone(w.mine), func(a protocol.Allocation) bool { return a.Number <= w.host.Frontiers.Released }), nil
}

func (w *world) Retire(_ context.Context, _ protocol.ID, n protocol.Number, _, _ string) error {
	w.calls = append(w.calls, fmt.Sprint("retire ", n))
	w.mine[n-1].State = protocol.StateRetired
	return nil
}

func (w *world) Consume(_ context.Context, a protocol.Allocation) (protocol.Allocation, error) {
	w.calls = append(w.calls, fmt.Sprint("consume ", a.Number))
	w.mine[a.Number-1].State = protocol.StateConsumed
	return w.mine[a.Number-1], nil
}

func (w *world) Release(ctx context.Context, f protocol.Number, except []protocol.Number) (protocol.ReleaseAnswer, error) {
	if w.releasing != nil {
		if err := w.releasing(ctx); err != nil {
			return protocol.ReleaseAnswer{}, err
		}
	}
	w.calls = append(w.calls, fmt.Sprint("release ", f, except))
	w.host.Frontiers.Released = f
	return protocol.ReleaseAnswer{Frontier: f}, nil
}

func (w *world) GenerationGone(context.Context, protocol.ID) (bool, error) { return w.gone, w.goneErr }

var scope = attempt.Scope{APIOrigin: "http://127.0.0.1:1", Provider: "node", Consumer: "c", Generation: "1"}

func newService(t *testing.T) (*Service, *world, *store.Store) {
	t.Helper()
	cfg := store.Config{Dir: t.TempDir() + "/attempts", Scope: scope, MaxActive: 4, History: 4}
	if err := store.Create(cfg); err != nil {
		t.Fatal(err)
	}
	records, err := store.Open(cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := records.Close(); err != nil {
			t.Error(err)
		}
	})
	w := &world{
		lease:    10 * time.Minute,
		host:     protocol.Host{Generation: generation, Engine: protocol.Engine{Available: true}, Slots: protocol.Slots{Max: 2, MaxUnreleased: 8}},
		profiles: map[string]protocol.ProfileInfo{"p": {Name: "p", Available: true, Digest: protocol.DigestOf(nil), LeaseMillis: 240_000, StopGraceMillis: 5_000}},
		feeds:    map[string][]api.FeedJob{"k": {job(1, 5)}},
	}
	s := New(Config{
		API: w, Store: records, Host: w, Claims: &claims.Table{}, Lanes: 2, Poll: time.Second, Gap: 2 * time.Minute, Margin: 30 * time.Second,
		Offerings: []offering.Offering{{Kind: "k", Profile: "p", Adapter: "http"}, {Kind: "l", Profile: "p", Adapter: "http"}}, Log: hclog.NewNullLogger(),
	})
	if _, err := s.hello(t.Context()); err != nil {
		t.Fatal(err)
	}
	return s, w, records
}

func job(n int, created protocol.Timestamp) api.FeedJob {
	return api.FeedJob{Job: fmt.Sprintf("job-%032d", n), Kind: "k", Created: created, Input: api.Identity{SHA256: protocol.DigestOf(nil)}}
}

func TestAdmissionSelectsTheOldest(t *testing.T) {
	s, w, _ := newService(t)
	w.feeds["l"] = []api.FeedJob{job(2, 3)}
	first, err := s.admit(t.Context(), 0)
	if err != nil || first.Job.Job != w.feeds["l"][0].Job || first.Offering.Kind != "l" {
		t.Fatalf("%+v, %v", first.Job, err)
	}
	// What a lane has in its hands is nobody else's.
	second, err := s.admit(t.Context(), 1)
	if err != nil || second.Job.Job != w.feeds["k"][0].Job {
		t.Fatalf("%+v, %v", second.Job, err)
	}
	if third, err := s.admit(t.Context(), 0); err != nil || third.Offering != nil {
		t.Fatalf("%+v, %v", third.Job, err)
	}
	first.Release(breaker.Neutral)
	if again, err := s.admit(t.Context(), 0); err != nil || again.Job.Job != first.Job.Job {
		t.Fatalf("%+v, %v", again.Job, err)
	}
}

// An offering whose last attempts all failed pauses, says so in hello, and
// tries one job at a time until one works.
func TestOfferingPauses(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, w, _ := newService(t)
		take := func() lane.Selection {
			t.Helper()
			selection, err := s.admit(t.Context(), 0)
			if err != nil {
				t.Fatal(err)
			}
			return selection
		}
		for range breaker.Limit {
			take().Release(breaker.Bad)
		}
		if take().Offering != nil {
			t.Fatal("a job was taken during the pause")
		}
		if _, err := s.hello(t.Context()); err != nil {
			t.Fatal(err)
		}
		if o := w.hello[len(w.hello)-1].Offerings; o[0].Available || !strings.Contains(o[0].Reason, "next try is at") || !o[1].Available {
			t.Fatalf("%+v", o)
		}
		time.Sleep(breaker.FirstPause)
		w.feeds["k"] = append(w.feeds["k"], job(2, 6))
		trial := take()
		if trial.Offering == nil || take().Offering != nil {
			t.Fatal("after the pause one job is tried, and one only")
		}
		trial.Release(breaker.Good)
		for range 2 {
			if take().Offering == nil {
				t.Fatal("a good end closes the breaker")
			}
		}
	})
}

// Each reason for which nothing is admitted.
func TestAdmissionIsBlocked(t *testing.T) {
	for name, row := range map[string]struct {
		change func(s *Service, w *world)
		want   string
	}{
		"no hello": {func(s *Service, _ *world) { s.announced = nil }, "no hello"},
		"identity in use": {func(s *Service, w *world) {
			w.helloErr = &provider.Failure{Class: provider.ClassRefused, Code: api.CodeIdentityInUse}
			if _, err := s.hello(context.Background()); err == nil {
				panic("the hello was acknowledged")
			}
		}, "identity_in_use"},
		"host away":           {func(s *Service, w *world) { s.batchDue, w.hostErr = false, errors.New("refused") }, "host cannot be reached"},
		"another owner":       {func(s *Service, w *world) { other := protocol.NewID(); w.host.Owner, s.batchAt = &other, time.Time{} }, "another attempt store"},
		"draining":            {func(_ *Service, w *world) { w.host.Draining = true }, "draining"},
		"engine down":         {func(_ *Service, w *world) { w.host.Engine.Available = false }, "engine is unavailable"},
		"no slot":             {func(_ *Service, w *world) { w.host.Slots.Used = 2 }, "no free slot"},
		"history full":        {func(_ *Service, w *world) { w.host.Slots.Unreleased = 8 }, "unreleased history"},
		"feed away":           {func(_ *Service, w *world) { w.feedErr = errors.New("503") }, "open jobs cannot be read"},
		"foreign attempt":     {func(_ *Service, w *world) { w.inventory = [][]api.Attempt{{}, {{Attempt: "att-x", Key: "foreign"}}} }, "does not know"},
		"endless inventory":   {func(_ *Service, w *world) { w.inventory = make([][]api.Attempt, pages+1) }, "has no end"},
		"maintenance failing": {func(_ *Service, w *world) { w.hostErr = errors.New("refused") }, "cannot be released"},
	} {
		t.Run(name, func(t *testing.T) {
			s, w, _ := newService(t)
			s.batchAt = time.Now()
			row.change(s, w)
			selection, err := s.admit(t.Context(), 0)
			if err == nil || !strings.Contains(err.Error(), row.want) || selection.Offering != nil {
				t.Fatalf("%+v, %v; want %q", selection.Job, err, row.want)
			}
		})
	}
}

// Of several reasons the one that needs a person is named.
func TestAdmissionNamesWhatNeedsAPerson(t *testing.T) {
	s, w, _ := newService(t)
	s.batchAt, s.batchDue = time.Now(), false
	w.host.Draining = true
	w.inventory = [][]api.Attempt{{{Attempt: "att-x", Key: "foreign"}}}
	if _, err := s.admit(t.Context(), 0); err == nil || !strings.Contains(err.Error(), "does not know") {
		t.Fatalf("%v", err)
	}
}

// I32: a record that holds the lane is never passed by; one of a lane that no
// longer exists holds lane 0.
func TestUnresolvedRecordHoldsItsLane(t *testing.T) {
	for _, row := range []struct{ recordLane, held, free int }{{0, 0, 1}, {1, 1, 0}, {7, 0, 1}} {
		s, _, records := newService(t)
		if _, err := records.Create(t.Context(), attempt.StartPending{Origin: attempt.Origin{
			Scope: scope, Lane: row.recordLane, Key: "a", Job: "j", Kind: "k", Input: attempt.Input{SHA256: protocol.DigestOf(nil)}, MaxExecutions: 1, Start: []byte("{}"),
		}}); err != nil {
			t.Fatal(err)
		}
		if _, err := s.admit(t.Context(), row.held); err == nil || !strings.Contains(err.Error(), "is held by attempt a") {
			t.Errorf("record of lane %d, admission of lane %d: %v", row.recordLane, row.held, err)
		}
		if selection, err := s.admit(t.Context(), row.free); err != nil || selection.Offering == nil {
			t.Errorf("record of lane %d, admission of lane %d: %v", row.recordLane, row.free, err)
		}
	}
}

// The ordering of the clocks: an offering that would break it is not served,
// and says so in hello.
func TestClockOrdering(t *testing.T) {
	s, w, _ := newService(t)
	w.lease = 4*time.Minute + 35*time.Second // 240 s + 5 s + 30 s
	if _, err := s.hello(t.Context()); err != nil {
		t.Fatal(err)
	}
	if selection, err := s.admit(t.Context(), 0); err != nil || selection.Offering != nil {
		t.Fatalf("admitted with a lease that is too short: %v", err)
	}
	if _, err := s.hello(t.Context()); err != nil {
		t.Fatal(err)
	}
	last := w.hello[len(w.hello)-1]
	if o := last.Offerings[0]; o.Available || !strings.Contains(o.Reason, "attempt lease") {
		t.Fatalf("%+v", o)
	}
	w.lease += time.Second
	if _, err := s.hello(t.Context()); err != nil {
		t.Fatal(err)
	}
	if selection, err := s.admit(t.Context(), 0); err != nil || selection.Offering == nil {
		t.Fatalf("%v", err)
	}
}

func TestHelloSaysWhatIsServed(t *testing.T) {
	s, w, records := newService(t)
	w.profiles["p"] = protocol.ProfileInfo{Name: "p", Reason: "image missing"}
	if _, err := s.hello(t.Context()); err != nil {
		t.Fatal(err)
	}
	first, last := w.hello[0], w.hello[len(w.hello)-1]
	if first.Seq >= last.Seq || last.Store != records.ID() || last.Host == nil || last.Lanes != 2 || len(last.Offerings) != 2 {
		t.Fatalf("%+v", last)
	}
	if o := last.Offerings[0]; o.Available || !strings.Contains(o.Reason, "image missing") {
		t.Fatalf("%+v", o)
	}
	w.hostErr = errors.New("away")
	if _, err := s.hello(t.Context()); err != nil {
		t.Fatal(err)
	}
	if h := w.hello[len(w.hello)-1]; h.Host != nil || h.Offerings[0].Available {
		t.Fatalf("%+v", h)
	}
}

// I9, I32: the genesis that tells an attempt of its generation's end is not
// pruned before it was read, and nothing else waits for another generation.
func TestGenesisIsKeptUntilRead(t *testing.T) {
	elsewhere := func(s attempt.Settlement) []store.Entry {
		return []store.Entry{entry("e", attempt.Acknowledged{Executions: []attempt.Execution{{Generation: "other", Number: 1, Settlement: s}}})}
	}
	lost := errors.New("no answer")
	for name, row := range map[string]struct {
		active  []store.Entry
		gone    bool
		goneErr error
		want    bool
		wantErr error
	}{
		"abandoned and not read":          {active: elsewhere(attempt.SettlementOpen), gone: true, want: true},
		"read":                            {active: elsewhere(attempt.SettlementGenerationGone), gone: true},
		"not abandoned":                   {active: elsewhere(attempt.SettlementOpen)},
		"of this generation":              {active: []store.Entry{entry("r", attempt.Acknowledged{Executions: []attempt.Execution{execution(3, attempt.SettlementOpen, 0)}})}, gone: true},
		"pruned: waiting is of no use":    {active: elsewhere(attempt.SettlementOpen), goneErr: protocol.NewProblem(protocol.CodePruned, "pruned", "")},
		"nobody knows: not released now":  {active: elsewhere(attempt.SettlementOpen), goneErr: lost, wantErr: lost},
		"no attempt at all, whatever was": {gone: true},
	} {
		t.Run(name, func(t *testing.T) {
			s, w, _ := newService(t)
			w.gone, w.goneErr = row.gone, row.goneErr
			got, err := s.genesisAwaited(t.Context(), generation, row.active)
			if got != row.want || !errors.Is(err, row.wantErr) {
				t.Fatalf("got %v, %v", got, err)
			}
		})
	}
}

// Allocations that no attempt needs are retired, consumed and released, and
// nothing is sent a second time.
func TestReconcileOrphans(t *testing.T) {
	s, w, _ := newService(t)
	w.host.Frontiers.Accepted = 3
	w.mine = []protocol.Allocation{allocation(1, protocol.StateConsumed, false), allocation(2, protocol.StateStarted, false), allocation(3, protocol.StateRetired, false)}
	for range 3 {
		s.batchDue = true
		if err := s.maintain(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	want := []string{"retire 2", "consume 3", "witness", "release 1 []", "consume 2", "witness", "release 3 []"}
	if !slices.Equal(w.calls, want) {
		t.Fatalf("calls\n got %q\nwant %q", w.calls, want)
	}
}

// However many generations a host had, the witness of the present one finds
// room, and one that a record names is kept (I9).
func TestOldGenerationsAreForgotten(t *testing.T) {
	s, w, records := newService(t)
	e, err := records.Create(t.Context(), attempt.StartPending{Origin: attempt.Origin{
		Scope: scope, Key: "a", Job: "j", Kind: "k", Input: attempt.Input{SHA256: protocol.DigestOf(nil)}, MaxExecutions: 1, Start: []byte("{}"),
	}})
	if err != nil {
		t.Fatal(err)
	}
	e, err = records.Apply(t.Context(), e, attempt.Admitted{Admission: attempt.Admission{Reference: "att-a", Reply: attempt.Reply{Status: 201}}})
	if err != nil {
		t.Fatal(err)
	}
	named := protocol.NewID()
	if _, err := records.Apply(t.Context(), e, attempt.Allocated{Generation: named, Number: 1, Profile: "p", ProfileDigest: protocol.DigestOf(nil)}); err != nil {
		t.Fatal(err)
	}
	w.save = func() error { return records.SetWitness(t.Context(), w.host.Generation, store.Witness{}) }
	next := func(generation protocol.ID) {
		t.Helper()
		w.host.Generation, s.batchDue = generation, true
		if err := s.maintain(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	next(named)
	first := protocol.NewID()
	next(first)
	if !slices.Contains(records.Generations(), named) || !slices.Contains(records.Generations(), first) {
		t.Fatal("a witness was forgotten although there is room")
	}
	for range store.MaxHostGenerations {
		next(protocol.NewID())
	}
	// A store that was filled before anything was forgotten.
	for len(records.Generations()) < store.MaxHostGenerations {
		if err := records.SetWitness(t.Context(), protocol.NewID(), store.Witness{}); err != nil {
			t.Fatal(err)
		}
	}
	last := protocol.NewID()
	next(last)
	got := records.Generations()
	if len(got) != 2 || !slices.Contains(got, named) || !slices.Contains(got, last) {
		t.Fatalf("witnesses of %d generations are kept", len(got))
	}
}

// Two records that claim one attempt stop the start before anything is sent.
func TestRecoverClaimsAllOrNone(t *testing.T) {
	s, _, records := newService(t)
	for _, key := range []string{"a", "b"} {
		e, err := records.Create(t.Context(), attempt.StartPending{Origin: attempt.Origin{
			Scope: scope, Key: key, Job: "j", Kind: "k", Input: attempt.Input{SHA256: protocol.DigestOf(nil)}, MaxExecutions: 1, Start: []byte("{}"),
		}})
		if err != nil {
			t.Fatal(err)
		}
		if _, err := records.Apply(t.Context(), e, attempt.Admitted{Admission: attempt.Admission{Reference: "att-" + key, Reply: attempt.Reply{Status: 201}}}); err != nil {
			t.Fatal(err)
		}
	}
	other, err := s.Claims.Claim("x")
	if err != nil {
		t.Fatal(err)
	}
	if err := other.Bind("att-b"); err != nil {
		t.Fatal(err)
	}
	if _, err := s.recover(); !errors.Is(err, claims.ErrReferenceClaimed) || s.Claims.Len() != 1 {
		t.Fatalf("%v, %d claims", err, s.Claims.Len())
	}
	other.Release()
	lanes, err := s.recover()
	if err != nil || len(lanes[0]) != 2 {
		t.Fatalf("%v, %v", lanes, err)
	}
}

// The three ends come one after the other, and a second signal skips the wait.
func TestContexts(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, _, _ := newService(t)
		s.StopTimeout, s.FinalWait = time.Minute, 30*time.Second
		drain, signal := context.WithCancel(t.Context())
		stop, second := context.WithCancel(t.Context())
		defer second()
		c, end := s.contexts(drain, stop)
		defer end()
		state := func() string {
			synctest.Wait()
			return fmt.Sprint(c.Take.Err() != nil, c.Work.Err() != nil, c.Final.Err() != nil)
		}
		if state() != "false false false" {
			t.Fatal("ended before any signal")
		}
		signal()
		if state() != "true false false" {
			t.Fatal(state())
		}
		time.Sleep(time.Minute)
		if state() != "true true false" {
			t.Fatal(state())
		}
		time.Sleep(30 * time.Second)
		if state() != "true true true" {
			t.Fatal(state())
		}

		drain, signal = context.WithCancel(t.Context())
		c, end2 := s.contexts(drain, stop)
		defer end2()
		signal()
		second()
		if state() != "true true false" {
			t.Fatal(state())
		}
	})
}

var _ lane.Admission = (*Service)(nil)

// An announcement that is older than the one that stands changed nothing at the
// service: it is no success, and the next one is newer.
func TestHelloOvertakesANewerStore(t *testing.T) {
	s, w, _ := newService(t)
	w.stands = 9<<32 + 3
	if _, err := s.hello(t.Context()); !errors.Is(err, errOutrun) {
		t.Fatalf("%v", err)
	}
	if _, err := s.hello(t.Context()); err != nil || w.hello[len(w.hello)-1].Seq <= w.stands {
		t.Fatalf("%v, %d after %d", err, w.hello[len(w.hello)-1].Seq, w.stands)
	}
}

// I9: ledger and store that do not agree need a person, which is named before
// anything else.
func TestAdmissionNamesALedgerThatDisagrees(t *testing.T) {
	for _, cause := range []error{&host.BehindError{Detail: "d"}, &host.OlderError{Generation: generation}} {
		s, w, _ := newService(t)
		w.hostErr, w.helloErr = cause, errors.New("down")
		_, err := s.admit(t.Context(), 0)
		if b, ok := errors.AsType[*blocked](err); !ok || !b.person || !errors.Is(err, cause) {
			t.Errorf("%v", err)
		}
	}
}
