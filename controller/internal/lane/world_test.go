package lane

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/hashicorp/go-hclog"

	"github.com/quittance/quittance/controller/api"
	"github.com/quittance/quittance/controller/internal/attempt"
	"github.com/quittance/quittance/controller/internal/claims"
	"github.com/quittance/quittance/controller/internal/executor"
	"github.com/quittance/quittance/controller/internal/host"
	"github.com/quittance/quittance/controller/internal/journal"
	"github.com/quittance/quittance/controller/internal/observer"
	"github.com/quittance/quittance/controller/internal/offering"
	"github.com/quittance/quittance/controller/internal/provider"
	"github.com/quittance/quittance/controller/internal/publisher"
	"github.com/quittance/quittance/controller/internal/recovery"
	"github.com/quittance/quittance/controller/internal/retry"
	"github.com/quittance/quittance/controller/internal/starter"
	"github.com/quittance/quittance/controller/internal/store"
	"github.com/quittance/quittance/protocol"
	"github.com/quittance/quittance/protocol/hostclient"
)

const generation = protocol.ID("000000000000000000000000000000ff")

// world is everything around one lane: a model of the job service, a model of
// the host, and a real HTTP worker behind pipes. All of it runs in one
// synctest bubble.
type world struct {
	t       *testing.T
	mu      sync.Mutex
	events  []string // what happened, in order
	records *store.Store
	claims  *claims.Table

	// The job service.
	state     api.AttemptState
	jobState  api.JobState
	visible   bool
	down      bool // nothing is answered
	bodies    map[string][][]byte
	terminal  []*provider.Failure // answers to COMPLETE and FAIL before the good one
	committed string

	// The host.
	allocations map[protocol.Number]*protocol.Allocation
	refusals    []protocol.Code // of the next allocations
	stuck       bool
	serves      protocol.ID     // the generation; "" for ours
	lost        int             // consumptions whose answer is lost
	killed      bool            // the kernel kills when the worker ends or answers
	killedOnly  protocol.Number // that allocation alone; 0: every one
	unread      reading

	// The worker.
	handler http.HandlerFunc
	conns   sync.WaitGroup
}

// reading is what the host says of the counters of a running worker.
type reading string

const (
	readable reading = ""
	silent   reading = "silent" // it is not answered
	blind    reading = "blind"  // it is answered without them
	never    reading = "never"  // as blind, and they cannot be read at the end either
)

func (w *world) note(format string, args ...any) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.events = append(w.events, fmt.Sprintf(format, args...))
}

func (w *world) set(change func()) {
	w.mu.Lock()
	defer w.mu.Unlock()
	change()
}

const reference = "att-00000000000000000000000000000001"

var jobInput = []byte("hello")

// offer is the offering of the tests.
func offer() *offering.Offering {
	return &offering.Offering{
		Kind: "k", Profile: "p", Adapter: "http", FailOnOOM: true, PrepareTimeout: time.Minute, JobStates: []offering.JobState{offering.JobOpen}, OnRestart: offering.RestartFail,
		Input:    offering.Input{ContentType: "text/plain", From: offering.FromJob, MaxBytes: 100},
		Request:  offering.Request{Method: "POST", Path: "/predict", Timeout: 10 * time.Minute},
		Response: offering.Response{ContentType: "application/json", MaxBytes: 1000},
	}
}

func newWorld(t *testing.T) *world {
	t.Helper()
	cfg := store.Config{
		Dir: t.TempDir() + "/attempts", MaxActive: 4, History: 4,
		Scope: attempt.Scope{APIOrigin: "http://127.0.0.1:1", Provider: "node", Consumer: "c", Generation: "1"},
	}
	if err := store.Create(cfg); err != nil {
		t.Fatal(err)
	}
	records, err := store.Open(cfg)
	if err != nil {
		t.Fatal(err)
	}
	w := &world{
		t: t, records: records, claims: &claims.Table{}, state: api.AttemptInProgress, jobState: api.JobOpen, visible: true,
		bodies: map[string][][]byte{}, allocations: map[protocol.Number]*protocol.Allocation{},
	}
	w.handler = func(rw http.ResponseWriter, r *http.Request) {
		w.note("executed")
		rw.Header().Set("Content-Type", "application/json")
		rw.Header().Set("Content-Length", "2")
		io.WriteString(rw, "{}")
	}
	t.Cleanup(func() {
		w.conns.Wait()
		if err := records.Close(); err != nil {
			t.Error(err)
		}
	})
	return w
}

func (w *world) lane(o *offering.Offering) *Lane {
	policy := retry.Policy{Window: time.Hour, Initial: time.Second, Max: 10 * time.Second}
	scope := attempt.Scope{APIOrigin: "http://127.0.0.1:1", Provider: "node", Consumer: "c", Generation: "1"}
	log := hclog.NewNullLogger()
	return &Lane{
		Offerings: only{o}, Host: agentSide{w}, Observed: w, Interval: 10 * time.Second, Gap: time.Minute, Pace: policy, Store: w.records, Log: log,
		Starter:   &starter.Starter{API: w, Store: w.records, Claims: w.claims, Scope: scope, Policy: policy, Log: log},
		Executor:  executor.Config{API: w, Host: w, Log: log, Reads: policy, Capacity: policy, ExitWait: 5 * time.Second, StopWait: time.Minute},
		Publisher: &publisher.Publisher{API: w, Policy: policy, Log: log},
		Recovery:  &recovery.Recovery{API: w, Host: agentSide{w}, Reads: policy, Log: log},
	}
}

type only struct{ o *offering.Offering }

func (o only) Offering(kind string) (*offering.Offering, bool) { return o.o, kind == o.o.Kind }

// run takes one job through the lane and returns its record.
func (w *world) run(o *offering.Offering, c Contexts) attempt.Record {
	w.t.Helper()
	end, err := w.lane(o).attempt(c, w.selection(o))
	if err != nil {
		w.note("lane: %v", err)
	}
	w.note("worker %d", end)
	for _, e := range w.records.Active() {
		return e.Record
	}
	w.t.Fatal("no record was left")
	return nil
}

// selection is what admission gives out for the offering.
func (w *world) selection(o *offering.Offering) Selection {
	return Selection{
		Offering: o,
		Profile: protocol.ProfileInfo{
			Name: "p", Digest: protocol.DigestOf([]byte("p")), ImageDigest: protocol.DigestOf([]byte("i")),
			Ready: protocol.ReadyRule{HTTP: "/health", Status: 200, TimeoutMillis: 30_000, IntervalMillis: 100},
		},
		Job: api.FeedJob{Job: "job-00000000000000000000000000000001", Kind: o.Kind, Input: api.Identity{Schema: "text/plain", Length: int64(len(jobInput)), SHA256: protocol.DigestOf(jobInput)}},
	}
}

func always(t *testing.T) Contexts {
	return Contexts{Take: t.Context(), Work: t.Context(), Final: t.Context()}
}

// order fails unless the events happened in this order, others between them.
func (w *world) order(want ...string) {
	w.t.Helper()
	w.mu.Lock()
	defer w.mu.Unlock()
	left := want
	for _, e := range w.events {
		if len(left) > 0 && e == left[0] {
			left = left[1:]
		}
	}
	if len(left) > 0 {
		w.t.Errorf("%q did not happen in its place; events:\n%q", left[0], w.events)
	}
}

func (w *world) count(event string) int {
	w.mu.Lock()
	defer w.mu.Unlock()
	n := 0
	for _, e := range w.events {
		if e == event {
			n++
		}
	}
	return n
}

var errDown = &provider.Failure{Class: provider.ClassUnreachable, Disposition: protocol.Refused, Repeat: true}

func (w *world) reachable(ctx context.Context) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.down {
		return errDown
	}
	return context.Cause(ctx)
}

func (w *world) Start(ctx context.Context, body []byte, beforeSend func(time.Time) error) (api.Admission, attempt.Reply, error) {
	if err := beforeSend(time.Now().Add(time.Minute)); err != nil {
		return api.Admission{}, attempt.Reply{}, err
	}
	if err := w.reachable(ctx); err != nil {
		return api.Admission{}, attempt.Reply{}, err
	}
	w.note("start")
	return api.Admission{Attempt: reference, State: api.AttemptInProgress}, attempt.Reply{Status: 201}, nil
}

func (w *world) Attempt(ctx context.Context, _ string) (observer.Reading, error) {
	if err := w.reachable(ctx); err != nil {
		return observer.Reading{}, err
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	return observer.Reading{Visible: w.visible, State: w.state, JobState: w.jobState, Reply: attempt.Reply{Status: 200}}, nil
}

func (w *world) Progress(ctx context.Context, _ string, phase api.Phase, condition *api.Condition) error {
	if err := w.reachable(ctx); err != nil {
		return err
	}
	if condition != nil {
		w.note("condition %s", *condition)
	} else {
		w.note("phase %s", phase)
	}
	return nil
}

func (w *world) Input(ctx context.Context, _ string, want api.Identity) (api.Input, error) {
	return api.Input{Schema: want.Schema, Length: want.Length, SHA256: want.SHA256, Data: jobInput}, w.reachable(ctx)
}

func (w *world) Uploads(context.Context, string) (api.Uploads, error) {
	return api.Uploads{}, errors.New("not in these tests")
}

func (w *world) Grant(context.Context, string, api.UploadMember, string) (api.Grant, error) {
	return api.Grant{}, errors.New("not in these tests")
}

func (w *world) Fetch(context.Context, api.Grant, string, *provider.Budget) (*provider.PrivateFile, error) {
	return nil, errors.New("not in these tests")
}

func (w *world) end(ctx context.Context, op string, body []byte) (attempt.Reply, error) {
	if err := w.reachable(ctx); err != nil {
		return attempt.Reply{}, err
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	w.events, w.bodies[op] = append(w.events, op), append(w.bodies[op], body)
	for _, a := range w.allocations {
		if a.State != protocol.StateConsumed && a.Stuck == nil {
			w.t.Errorf("%s was sent while allocation %d was %s (I31)", op, a.Number, a.State)
		}
	}
	if len(w.terminal) > 0 {
		f := w.terminal[0]
		w.terminal = w.terminal[1:]
		return f.Reply, f
	}
	w.committed = op
	return attempt.Reply{Status: 200, Body: []byte("{}")}, nil
}

func (w *world) Complete(ctx context.Context, _ string, body []byte) (api.CompleteReceipt, attempt.Reply, error) {
	reply, err := w.end(ctx, "complete", body)
	return api.CompleteReceipt{}, reply, err
}

func (w *world) Fail(ctx context.Context, _ string, body []byte) (api.FailReceipt, attempt.Reply, error) {
	reply, err := w.end(ctx, "fail", body)
	return api.FailReceipt{}, reply, err
}

// failure is the FAIL that was committed.
func (w *world) failure() api.Fail {
	w.t.Helper()
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.committed != "fail" {
		w.t.Fatalf("committed %q, want a FAIL; events:\n%q", w.committed, w.events)
	}
	var f api.Fail
	if err := api.Decode(w.bodies["fail"][len(w.bodies["fail"])-1], api.RouteFail.MaxRequest, &f); err != nil {
		w.t.Fatal(err)
	}
	return f
}

func (w *world) Receipts(ctx context.Context, _ string, r api.HostReceipts) (api.HostReceiptsAnswer, attempt.Reply, error) {
	w.note("attach %d", len(r.Receipts))
	return api.HostReceiptsAnswer{}, attempt.Reply{Status: 200, Body: []byte("{}")}, w.reachable(ctx)
}

// agentSide keeps the host's methods apart where their names meet the job
// service's.
type agentSide struct{ *world }

// Receipts implements retirement.Host.
func (w agentSide) Receipts(_ context.Context, a protocol.Allocation, _ int) ([]host.Receipt, string, error) {
	return []host.Receipt{{Index: protocol.Index(a.Number), Kind: protocol.KindRetired, Leaf: []byte("leaf"), Proof: "proof"}}, "key", nil
}

func (w *world) Sync(context.Context) (protocol.Host, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	return protocol.Host{Generation: cmp.Or(w.serves, generation)}, nil
}

func (w *world) GenerationGone(context.Context, protocol.ID) (bool, error) { return false, nil }

func (w *world) Allocate(ctx context.Context, req protocol.AllocateRequest, intent host.Intent) (protocol.Allocation, error) {
	w.mu.Lock()
	n := protocol.Number(len(w.allocations) + 1)
	w.mu.Unlock()
	if err := intent.Propose(ctx, generation, n); err != nil {
		return protocol.Allocation{}, err
	}
	w.mu.Lock()
	if len(w.refusals) > 0 {
		code := w.refusals[0]
		w.refusals = w.refusals[1:]
		w.mu.Unlock()
		return protocol.Allocation{}, errors.Join(protocol.NewProblem(code, "refused", ""), intent.Withdraw(ctx, generation, n))
	}
	defer w.mu.Unlock()
	w.events = append(w.events, fmt.Sprintf("allocate %d", n))
	a := &protocol.Allocation{
		Number: n, State: protocol.StateStarted, Purpose: req.Purpose, Container: &protocol.Container{SpecDigest: protocol.DigestOf([]byte("s")), ImageDigest: protocol.DigestOf([]byte("i"))},
		OOM: &protocol.OOM{Verdict: protocol.VerdictNotKilled},
	}
	w.allocations[n] = a
	return *a, nil
}

// exits marks the worker's end with its facts; the caller holds mu.
func (w *world) exits(a *protocol.Allocation) {
	if slices.Contains([]protocol.State{protocol.StateExited, protocol.StateRetired, protocol.StateConsumed}, a.State) {
		return
	}
	a.State = protocol.StateExited
	w.judgeOOM(a)
}

func (w *world) judgeOOM(a *protocol.Allocation) {
	if w.unread == never {
		a.OOM = &protocol.OOM{Verdict: protocol.VerdictUnknown}
		return
	}
	if w.killed && (w.killedOnly == 0 || w.killedOnly == a.Number) {
		scope := protocol.ScopeContainer
		a.OOM = &protocol.OOM{Verdict: protocol.VerdictKilled, Scope: &scope}
	}
}

func (w *world) Wait(ctx context.Context, n protocol.Number, until protocol.State) (protocol.Allocation, error) {
	for {
		w.mu.Lock()
		a := w.allocations[n]
		w.judgeOOM(a)
		running := a.State == protocol.StateStarted && slices.Contains(w.events, "executed")
		if (host.Reached(*a, until) || a.Stuck != nil) && (w.unread != silent || !running) {
			defer w.mu.Unlock()
			seen := *a
			if w.unread == blind && running {
				seen.OOM = nil
			}
			return seen, nil
		}
		w.mu.Unlock()
		select {
		case <-ctx.Done():
			return protocol.Allocation{}, context.Cause(ctx)
		case <-time.After(100 * time.Millisecond):
		}
	}
}

func (w *world) Retire(_ context.Context, _ protocol.ID, n protocol.Number, _, _ string) error {
	w.note("retire %d", n)
	w.mu.Lock()
	defer w.mu.Unlock()
	a, ok := w.allocations[n]
	switch {
	case !ok:
		return host.ErrNotOurs
	case w.stuck:
		a.Stuck = &protocol.StuckBody{Step: "stop"}
	case a.State != protocol.StateConsumed:
		w.exits(a)
		a.State = protocol.StateRetired
	}
	return nil
}

func (w *world) Consume(_ context.Context, a protocol.Allocation) (protocol.Allocation, error) {
	w.note("consume %d", a.Number)
	w.mu.Lock()
	defer w.mu.Unlock()
	known := w.allocations[a.Number]
	known.State = protocol.StateConsumed
	if w.lost > 0 {
		w.lost--
		return protocol.Allocation{}, &hostclient.LostError{Op: "consume", Err: io.ErrUnexpectedEOF}
	}
	return *known, nil
}

// Channel hands out a pipe whose other end is an HTTP server of the worker.
func (w *world) Channel(context.Context, protocol.Number, string) (net.Conn, error) {
	ours, theirs := net.Pipe()
	w.conns.Go(func() {
		served := make(chan struct{})
		l := &oneConn{conn: theirs, closed: served}
		s := &http.Server{
			Handler: http.HandlerFunc(func(rw http.ResponseWriter, r *http.Request) {
				if r.URL.Path == "/health" {
					rw.WriteHeader(http.StatusOK)
					return
				}
				if _, err := io.Copy(io.Discard, r.Body); err == nil {
					w.handler(rw, r)
				}
			}),
			ConnState: func(_ net.Conn, state http.ConnState) {
				if state == http.StateClosed {
					close(served)
				}
			},
		}
		if err := s.Serve(l); !errors.Is(err, net.ErrClosed) {
			w.t.Errorf("worker: %v", err)
		}
	})
	return ours, nil
}

// oneConn is a listener of one connection.
type oneConn struct {
	conn   net.Conn
	closed chan struct{}
}

func (l *oneConn) Accept() (net.Conn, error) {
	if c := l.conn; c != nil {
		l.conn = nil
		return c, nil
	}
	<-l.closed
	return nil, net.ErrClosed
}

func (l *oneConn) Close() error   { return nil }
func (l *oneConn) Addr() net.Addr { return &net.UnixAddr{} }

// reopen is the attempt's record as a fresh process finds it.
func reopen(t *testing.T, w *world, claim *claims.Claim) *journal.Attempt {
	t.Helper()
	entry, ok := w.records.Get(claim.Identity().Key)
	if !ok {
		t.Fatal("the record is gone")
	}
	return journal.Open(w.records, entry, claim)
}

// known is what recovery knows after a restart: nothing.
func (w *world) known() recovery.Case { return recovery.Case{} }
