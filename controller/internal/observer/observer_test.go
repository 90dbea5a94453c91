package observer

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/quittance/quittance/controller/api"
)

// service answers as the test says.
type service struct {
	mu       sync.Mutex
	reading  Reading
	down     error         // of both operations
	refused  error         // of heartbeats alone
	stall    chan struct{} // a heartbeat waits for it or its context
	beats    []api.Phase
	reads    int
	inFlight int
	overlap  bool
}

func (s *service) enter() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.inFlight++
	s.overlap = s.overlap || s.inFlight > 1
}

func (s *service) leave() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.inFlight--
}

func (s *service) Progress(ctx context.Context, _ string, phase api.Phase, _ *api.Condition) error {
	s.enter()
	defer s.leave()
	s.mu.Lock()
	stall := s.stall
	s.mu.Unlock()
	if stall != nil {
		select {
		case <-stall:
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if err := errors.Join(s.down, s.refused); err != nil {
		return err
	}
	s.beats = append(s.beats, phase)
	return nil
}

func (s *service) Attempt(context.Context, string) (Reading, error) {
	s.enter()
	defer s.leave()
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.down != nil {
		return Reading{}, s.down
	}
	s.reads++
	return s.reading, nil
}

func (s *service) set(change func(*service)) {
	s.mu.Lock()
	defer s.mu.Unlock()
	change(s)
}

var running = Reading{Visible: true, State: api.AttemptInProgress, JobState: api.JobOpen}

func start(t *testing.T, s *service) (*Observer, context.CancelCauseFunc) {
	t.Helper()
	ctx, cancel := context.WithCancelCause(t.Context())
	return Start(ctx, s, Options{
		Reference: "att", Interval: 10 * time.Second, Gap: time.Minute,
		Allowed: func(state api.JobState) bool { return state == api.JobOpen },
	}), cancel
}

func TestObservesUntilClosed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &service{reading: running}
		o, _ := start(t, s)
		time.Sleep(10 * time.Minute) // virtual
		o.Close()
		if o.Stopped() != nil || len(s.beats) < 59 || s.reads < 59 {
			t.Fatalf("%v, %d beats, %d reads", o.Stopped(), len(s.beats), s.reads)
		}
		if o.Stopped() != nil || o.Context().Err() == nil {
			t.Fatal("closing is no stop, and ends the context")
		}
	})
}

// What each reading means.
func TestReadingStops(t *testing.T) {
	for _, row := range []struct {
		reading Reading
		want    Reason
	}{
		{Reading{}, Over},
		{Reading{Visible: true, State: api.AttemptExpired, JobState: api.JobOpen}, Over},
		{Reading{Visible: true, State: api.AttemptFailed, JobState: api.JobFailed}, Over},
		{Reading{Visible: true, State: api.AttemptInProgress, JobState: api.JobCancelled}, Cancelled},
		{Reading{Visible: true, State: api.AttemptInProgress, JobState: api.JobClosed}, NotAllowed},
	} {
		t.Run(fmt.Sprint(row.want, row.reading.State, row.reading.JobState), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s := &service{reading: running}
				o, _ := start(t, s)
				defer o.Close()
				time.Sleep(25 * time.Second)
				s.set(func(s *service) { s.reading = row.reading })
				time.Sleep(10 * time.Second)
				stop := o.Stopped()
				if stop == nil || stop.Reason != row.want || stop.Last == nil {
					t.Fatalf("%v, want %s with its reading", stop, row.want)
				}
				s.set(func(s *service) { s.reading = running })
				if err := o.Fresh(); !errors.Is(err, stop) {
					t.Fatalf("a stop is final, Fresh says %v", err)
				}
			})
		})
	}
}

// The gap counts from the last good observation and ends on its own timer,
// even while an exchange hangs.
func TestGapExpires(t *testing.T) {
	down := errors.New("the service is down")
	for name, fail := range map[string]func(*service){
		"unreachable":      func(s *service) { s.down = down },
		"heartbeats alone": func(s *service) { s.refused = down },
		"hanging":          func(s *service) { s.stall = make(chan struct{}) },
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s := &service{reading: running}
				o, _ := start(t, s)
				defer o.Close()
				time.Sleep(30*time.Second + time.Millisecond)
				s.set(fail)
				time.Sleep(time.Minute - 2*time.Millisecond)
				if o.Stopped() != nil {
					t.Fatal("stopped before the gap was over")
				}
				time.Sleep(2 * time.Millisecond)
				stop := o.Stopped()
				if stop == nil || stop.Reason != GapExpired || name != "hanging" && !errors.Is(stop, down) {
					t.Fatalf("%v, want gap_expired with the first failure", stop)
				}
			})
		})
	}
}

func TestGapClosesAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &service{reading: running}
		o, _ := start(t, s)
		defer o.Close()
		for range 5 {
			s.set(func(s *service) { s.down = errors.New("away") })
			time.Sleep(35 * time.Second)
			s.set(func(s *service) { s.down = nil })
			time.Sleep(11 * time.Second)
		}
		if o.Stopped() != nil {
			t.Fatalf("%v, although no gap was longer than allowed", o.Stopped())
		}
	})
}

// Fresh waits out a short outage and learns nothing from a heartbeat alone.
func TestFreshWaits(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &service{reading: running, down: errors.New("away")}
		o, _ := start(t, s)
		defer o.Close()
		began := time.Now()
		time.AfterFunc(25*time.Second, func() { s.set(func(s *service) { s.down = nil }) })
		if err := o.Enter(api.PhaseRunning); err != nil {
			t.Fatal(err)
		}
		if waited := time.Since(began); waited < 25*time.Second {
			t.Fatalf("returned after %s, before the service answered", waited)
		}
		s.set(func(s *service) {
			if s.beats[len(s.beats)-1] != api.PhaseRunning {
				t.Errorf("phases %v", s.beats)
			}
		})
	})
}

// The controller's own stop, and effects one after the other.
func TestInterruptAndEffects(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &service{reading: running}
		o, cancel := start(t, s)
		for range 20 {
			if err := o.Do(t.Context(), func(context.Context) error {
				s.enter()
				defer s.leave()
				time.Sleep(3 * time.Second)
				return nil
			}); err != nil {
				t.Fatal(err)
			}
		}
		s.set(func(s *service) {
			if s.overlap {
				t.Error("an effect and an observation were under way at once")
			}
		})
		why := errors.New("SIGTERM")
		cancel(why)
		<-o.Context().Done()
		if stop := o.Stopped(); stop == nil || stop.Reason != Interrupted || !errors.Is(stop, why) {
			t.Fatalf("%v", stop)
		}
		o.Close()
	})
}

// Each failed observation is one notice with what is left of the gap, and so is
// the good one after them.
func TestFailuresAreNoticed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &service{reading: running}
		var told []string
		o := Start(t.Context(), s, Options{
			Reference: "att", Interval: 10 * time.Second, Gap: time.Minute, Allowed: func(api.JobState) bool { return true },
			Notice: func(n Notice) { told = append(told, fmt.Sprint(n.Failed, n.Left, n.Err)) },
		})
		defer o.Close()
		time.Sleep(15 * time.Second) // virtual
		s.set(func(s *service) { s.down = errors.New("down") })
		time.Sleep(30 * time.Second)
		s.set(func(s *service) { s.down = nil })
		time.Sleep(30 * time.Second)
		synctest.Wait()
		want := []string{"1 50s down", "2 40s down", "3 30s down", "3 1m0s <nil>"}
		if !slices.Equal(told, want) {
			t.Fatalf("%q, want %q", told, want)
		}
	})
}
