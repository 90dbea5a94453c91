// Package service runs the lanes of one controller process: announcement,
// admission, discovery, maintenance and shutdown. It owns what the lanes share.
// It must not decide anything about a single attempt.
//
// # Start
//
// The store was read whole before; every unresolved record is claimed, all or
// none, and given to its lane (a record of a lane that no longer exists, to
// lane 0) before any network traffic.
//
// # What the service lost
//
// A job database that was restored from an older backup shows attempts in
// progress that are over here, and offers jobs that were executed here. Nothing
// runs a second time because of it (I27):
//
//	| the service shows            | this store holds                    | then |
//	| an attempt in progress       | its confirmed outcome, archived     | the same bytes are sent again |
//	|                              | another end, archived               | told once; it keeps a place there |
//	|                              | nothing                             | every lane waits for a person |
//	| an open job                  | a confirmed result                  | passed over, told once |
//	|                              | an executed attempt, not shown      | passed over, told once |
//	|                              | attempts that it shows, or no such  | taken |
//
// Passed over means: not selected while the store remembers; where no other job is
// left, or no place, that is the reason why nothing is admitted.
//
// # Shutdown
//
// The end of the first context takes nothing new and lets running attempts
// finish; after stop_timeout, or at the end of the second context, they are
// stopped; what has not settled some time after that stays as its record says.
package service

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/hashicorp/go-hclog"

	"github.com/quittance/quittance/controller/api"
	"github.com/quittance/quittance/controller/internal/attempt"
	"github.com/quittance/quittance/controller/internal/breaker"
	"github.com/quittance/quittance/controller/internal/claims"
	"github.com/quittance/quittance/controller/internal/host"
	"github.com/quittance/quittance/controller/internal/journal"
	"github.com/quittance/quittance/controller/internal/lane"
	"github.com/quittance/quittance/controller/internal/offering"
	"github.com/quittance/quittance/controller/internal/provider"
	"github.com/quittance/quittance/controller/internal/store"
	"github.com/quittance/quittance/protocol"
)

// API is what this package needs of the job service.
type API interface {
	Hello(ctx context.Context, h api.Hello) (api.HelloAnswer, error)
	Feed(ctx context.Context, q provider.FeedQuery) (api.Feed, error)
	Inventory(ctx context.Context, limit int, cursor string) (api.Inventory, error)
	Attempt(ctx context.Context, reference string) (api.Attempt, attempt.Reply, error)
}

// Store is what this package needs of the attempt store.
type Store interface {
	journal.Store
	ID() protocol.ID
	NextSequence() int64
	RaiseSequence(ctx context.Context, seen int64) error
	Active() []store.Entry
	History() []store.HistoryEntry
	Archived(h store.HistoryEntry) (store.Entry, error)
	Knows(key string) bool
	Admit() error
	Update(ctx context.Context, key string, event attempt.Event) (store.Entry, error)
	Archive(ctx context.Context, key string) (store.HistoryEntry, error)
	Trim(ctx context.Context) (int, error)
	Generations() []protocol.ID
	ForgetGeneration(ctx context.Context, generation protocol.ID) error
	Failed() <-chan struct{}
	Err() error
}

// Host is what this package needs of the node's agent.
type Host interface {
	Sync(ctx context.Context) (protocol.Host, error)
	Profiles(ctx context.Context) (map[string]protocol.ProfileInfo, error)
	PresentWitness(ctx context.Context) error
	Allocations(ctx context.Context) ([]protocol.Allocation, error)
	Retire(ctx context.Context, generation protocol.ID, n protocol.Number, purpose, note string) error
	Consume(ctx context.Context, a protocol.Allocation) (protocol.Allocation, error)
	Release(ctx context.Context, frontier protocol.Number, except []protocol.Number) (protocol.ReleaseAnswer, error)
	GenerationGone(ctx context.Context, old protocol.ID) (bool, error)
}

var _ Host = (*host.Host)(nil)

// Config is what a service is made of.
type Config struct {
	API       API
	Store     Store
	Host      Host
	Claims    *claims.Table
	Offerings []offering.Offering
	Lanes     int
	NewLane   func(number int) *lane.Lane // Admission and Offerings are set by the service
	// Repeat sends the outcome of an archived attempt again, which the service lost.
	Repeat      func(ctx context.Context, key string, record attempt.TerminalConfirmed) error
	Poll        time.Duration // between two admission cycles of a lane
	StopTimeout time.Duration
	FinalWait   time.Duration // for what is not settled after the stop
	Gap         time.Duration // observation gap
	Margin      time.Duration // between the stop of a worker and the lease's end
	Version     string
	Log         hclog.Logger
}

// Service runs lanes.
type Service struct {
	Config
	offers map[string]*offering.Offering

	stopping atomic.Bool // nothing new is taken any more

	cycle chan struct{} // one token: one lane at a time goes through admission

	mu        sync.Mutex                  // guards what follows
	announced *api.HelloAnswer            // nil while no hello stands
	helloErr  error                       // why the last one was not acknowledged
	taken     map[string]int              // jobs in the hands of a lane
	told      map[string]bool             // jobs of which the service lost an attempt, as was told
	refused   map[string]string           // attempts that are over here and stay in progress there, and why, as was told
	breakers  map[string]*breaker.Breaker // by kind
	hostSeen  bool                        // the host answered at the last hello
	reason    string                      // why nothing is admitted, as last reported
	cause     Cause                       // of the reason
	kept      string                      // what keep told last, or ""
	batchDue  bool                        // an attempt ended since the last maintenance
	batchAt   time.Time                   // of the last whole maintenance
}

// New makes a service; nothing runs before Run.
func New(cfg Config) *Service {
	s := &Service{Config: cfg, offers: map[string]*offering.Offering{}, cycle: make(chan struct{}, 1), taken: map[string]int{}, told: map[string]bool{}, refused: map[string]string{}, breakers: map[string]*breaker.Breaker{}, batchDue: true}
	for i := range cfg.Offerings {
		s.offers[cfg.Offerings[i].Kind] = &cfg.Offerings[i]
		s.breakers[cfg.Offerings[i].Kind] = &breaker.Breaker{}
	}
	return s
}

// Offering implements [lane.Offerings].
func (s *Service) Offering(kind string) (*offering.Offering, bool) {
	o, ok := s.offers[kind]
	return o, ok
}

// Reasons for which the contexts of a service end.
var (
	errDrain = errors.New("the controller is stopping: nothing new is taken")
	errStop  = errors.New("the controller is stopping: running attempts are stopped")
	errFinal = errors.New("the controller stops: what is not settled stays as its record says")
)

// Run recovers what the store holds and runs the lanes until drain ends and
// everything in flight has settled or stays owned by its record. The end of
// stop skips the rest of stop_timeout.
func (s *Service) Run(drain, stop context.Context) error {
	recovered, err := s.recover()
	if err != nil {
		return err
	}
	c, end := s.contexts(drain, stop)
	defer end()

	var running sync.WaitGroup
	running.Go(func() { s.announce(c.Work) })
	results := make(chan error, s.Lanes)
	for number := range s.Lanes {
		l := s.NewLane(number)
		l.Admission, l.Offerings = s, s
		go func() { results <- l.Run(c, recovered[number]) }()
	}
	var all []error
	for range s.Lanes {
		err := <-results
		if err != nil {
			// One lane's failure of the store is everybody's; another one is a
			// fault of our own program. Either way nothing new is taken.
			end()
		}
		all = append(all, err)
	}
	end()
	running.Wait()
	return errors.Join(append(all, s.Store.Err())...)
}

// recover claims every unresolved record, all or none.
func (s *Service) recover() (map[int][]*journal.Attempt, error) {
	var identities []claims.Identity
	var entries []store.Entry
	for _, e := range s.Store.Active() {
		if attempt.Archivable(e.Record) {
			continue
		}
		admission, _ := attempt.AdmissionOf(e.Record)
		identities = append(identities, claims.Identity{Key: e.Key, Reference: admission.Reference})
		entries = append(entries, e)
	}
	held, err := s.Claims.ClaimAll(identities)
	if err != nil {
		return nil, fmt.Errorf("recovery: two records claim one attempt: %w; look at them with controller store show", err)
	}
	lanes := map[int][]*journal.Attempt{}
	for i, e := range entries {
		number := attempt.OriginOf(e.Record).Lane
		if number >= s.Lanes {
			number = 0
		}
		s.Log.Info("attempt recovered", "lane", number, "attempt", e.Key, "state", e.Record.State())
		lanes[number] = append(lanes[number], journal.Open(s.Store, e, held[i]))
	}
	return lanes, nil
}

// contexts derives the three ends. end ends all of them.
func (s *Service) contexts(drain, stop context.Context) (lane.Contexts, func()) {
	base := context.WithoutCancel(drain)
	take, endTake := context.WithCancelCause(base)
	work, endWork := context.WithCancelCause(base)
	final, endFinal := context.WithCancelCause(base)
	finished := make(chan struct{})
	var once sync.Once
	var watch sync.WaitGroup
	watch.Go(func() {
		select {
		case <-drain.Done():
		case <-stop.Done():
		case <-s.Store.Failed():
		case <-finished:
			return
		}
		s.Log.Info("stopping: nothing new is taken", "stop_timeout", s.StopTimeout)
		s.stopping.Store(true)
		endTake(errDrain)
		select {
		case <-time.After(s.StopTimeout):
		case <-stop.Done():
		case <-s.Store.Failed():
		case <-finished:
			return
		}
		endWork(errStop)
		select {
		case <-time.After(s.FinalWait):
		case <-s.Store.Failed():
		case <-finished:
			return
		}
		endFinal(errFinal)
	})
	return lane.Contexts{Take: take, Work: work, Final: final}, func() {
		once.Do(func() {
			close(finished)
			endTake(errDrain)
			endWork(errStop)
			endFinal(errFinal)
			watch.Wait()
		})
	}
}

// helloEvery is the pause between two announcements; a change is announced at
// the next one.
const (
	helloEvery = 20 * time.Second
	helloAgain = 2 * time.Second // after a failure
)

// announce says hello until ctx ends. Until the first one is acknowledged it
// tries more often.
func (s *Service) announce(ctx context.Context) {
	for {
		wait := helloEvery
		known, err := s.hello(ctx)
		switch {
		case err != nil:
			wait = helloAgain
			s.Log.Warn("hello not acknowledged", append(provider.Fields(err), "error", err)...)
		case !known:
			continue // say it again, judged by the lease that the answer told
		}
		s.keep(ctx)
		select {
		case <-ctx.Done():
			return
		case <-time.After(wait):
		}
	}
}

// keep tends once and tells what needs a person: no admission may look as long
// as every lane holds what it recovered. What it told it takes back.
func (s *Service) keep(ctx context.Context) {
	err := s.tend(ctx)
	if err != nil && ctx.Err() != nil {
		return
	}
	told := ""
	if err != nil {
		s.Log.Warn("maintenance is not done", "error", err)
		if b, ok := errors.AsType[*blocked](err); ok && b.person {
			s.report(err)
			told = err.Error()
		}
	}
	s.mu.Lock()
	mended := told == "" && s.kept != "" && s.kept == s.reason
	s.kept = told
	s.mu.Unlock()
	if mended {
		s.report(nil)
	}
}

// hello says hello once. known tells that the attempts' lease was known before,
// so that the offerings were judged by it.
func (s *Service) hello(ctx context.Context) (known bool, err error) {
	h := api.Hello{
		Store: s.Store.ID(), Seq: s.Store.NextSequence(), Lanes: s.Lanes, Draining: s.stopping.Load(),
		Versions: api.HelloVersions{Controller: s.Version, API: []int{api.Version}},
	}
	current, profiles, err := s.readHost(ctx)
	if err != nil {
		s.Log.Warn("host not reachable", "error", err)
	} else {
		h.Host = &api.HelloHost{Generation: current.Generation, Key: current.HostKey, Agent: current.Versions.Agent}
		h.Draining = h.Draining || current.Draining
	}
	s.mu.Lock()
	s.hostSeen = err == nil || host.NeedsPerson(err)
	lease := s.lease()
	s.mu.Unlock()
	for i := range s.Offerings {
		h.Offerings = append(h.Offerings, s.offer(&s.Offerings[i], profiles, err, lease))
	}
	answer, err := s.API.Hello(ctx, h)
	if err == nil && answer.Seq > h.Seq {
		err = s.outrun(ctx, h.Seq, answer.Seq)
	}
	s.mu.Lock()
	s.helloErr = err
	if err == nil {
		s.announced = &answer
	} else if refusedForGood(err) {
		s.announced = nil
	}
	s.mu.Unlock()
	if err != nil {
		return lease > 0, err
	}
	if lease == 0 {
		s.Log.Info("announced", "provider", answer.Provider, "offerings", len(h.Offerings), "lease_ms", answer.LeaseMillis)
	}
	return lease > 0, nil
}

// errOutrun: the service keeps a newer announcement of this attempt store.
var errOutrun = errors.New("the service has a newer announcement of this attempt store: an older copy of it was put back, or a second copy is in use")

// outrun makes the next announcement count, although this copy of the store
// does not know how often the newer one was opened. Two copies in use would
// overtake each other for ever, each seeing attempts that it does not know,
// which holds its lanes.
func (s *Service) outrun(ctx context.Context, said, stands int64) error {
	if err := s.Store.RaiseSequence(ctx, stands); errors.Is(err, store.ErrSequence) {
		return err
	} else if err != nil {
		return errors.Join(errOutrun, err)
	}
	return fmt.Errorf("%w (announcement %d stands, %d was sent); the next one is newer", errOutrun, stands, said)
}

// refusedForGood reports whether another attempt store holds this provider's
// identity, or the service keeps an announcement that no store of it made: a
// person has to look.
func refusedForGood(err error) bool {
	if errors.Is(err, store.ErrSequence) {
		return true
	}
	f, ok := errors.AsType[*provider.Failure](err)
	return ok && (f.Code == api.CodeIdentityInUse || f.Code == api.CodeOtherStore)
}

func (s *Service) readHost(ctx context.Context) (protocol.Host, map[string]protocol.ProfileInfo, error) {
	current, err := s.Host.Sync(ctx)
	if err != nil {
		return current, nil, err
	}
	profiles, err := s.Host.Profiles(ctx)
	return current, profiles, err
}

// lease is the attempts' lease at the service, 0 before the first hello; the
// caller holds mu.
func (s *Service) lease() time.Duration {
	if s.announced == nil {
		return 0
	}
	return time.Duration(s.announced.LeaseMillis) * time.Millisecond
}

func (s *Service) offer(o *offering.Offering, profiles map[string]protocol.ProfileInfo, hostErr error, lease time.Duration) api.HelloOffering {
	out := api.HelloOffering{
		Kind: o.Kind, Profile: o.Profile, Adapter: o.Adapter, Pure: o.Pure,
		Input: api.HelloInput{From: api.InputSource(o.Input.From), ContentType: o.Input.ContentType, MaxBytes: o.Input.MaxBytes},
	}
	if o.Input.Schema != nil {
		out.Input.Schema = o.Input.Schema.Bytes()
	}
	profile, ok := profiles[o.Profile]
	if ok {
		out.ProfileDigest = profile.Digest
	}
	if out.Reason = s.unavailable(o, profile, ok, hostErr, lease); out.Reason == "" {
		out.Reason = s.broken(o.Kind)
	}
	out.Available = out.Reason == ""
	return out
}

// unavailable says why an offering cannot be served now, or "".
func (s *Service) unavailable(o *offering.Offering, p protocol.ProfileInfo, known bool, hostErr error, lease time.Duration) string {
	switch {
	case hostErr != nil:
		return "the host cannot be reached"
	case !known:
		return "the host has no profile " + o.Profile
	case !p.Available:
		return "the host's profile is unavailable: " + cut(p.Reason, api.MaxReasonBytes-64)
	case lease > 0:
		// A controller that lost the service has stopped its worker before the
		// service may give the job to another node.
		stopped := max(s.Gap, time.Duration(p.LeaseMillis)*time.Millisecond) + time.Duration(p.StopGraceMillis)*time.Millisecond + s.Margin
		if stopped >= lease {
			return fmt.Sprintf("max(observation gap, profile lease) + stop grace + margin is %s and must be below the attempt lease %s", stopped, lease)
		}
	}
	return ""
}

// broken says that an offering takes no job because its last attempts failed,
// or "".
func (s *Service) broken(kind string) string {
	s.mu.Lock()
	defer s.mu.Unlock()
	switch open, until := s.breakers[kind].Open(time.Now()); {
	case open && until.IsZero():
		return "its last attempts failed; one job is being tried"
	case open:
		return "its last attempts failed; the next try is at " + protocol.TimestampOf(until).String()
	}
	return ""
}

func cut(s string, n int) string {
	if len(s) <= n {
		return s
	}
	return s[:n]
}
