package retry

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"
)

var (
	errFirst  = errors.New("first")
	errLatest = errors.New("latest")
)

func always(error) bool { return true }

func TestCeilings(t *testing.T) {
	p := Policy{Window: time.Hour, Initial: 500 * time.Millisecond, Max: 30 * time.Second}
	for failed, want := range map[int]time.Duration{
		1: 500 * time.Millisecond, 2: time.Second, 3: 2 * time.Second, 6: 16 * time.Second, 7: 30 * time.Second, 8: 30 * time.Second,
		1 << 20: 30 * time.Second,
	} {
		if got := p.Ceiling(failed); got != want {
			t.Errorf("after %d failures: %v, want %v", failed, got, want)
		}
	}
	huge := Policy{Window: 1, Initial: 1 << 62, Max: 1<<63 - 2}
	if got := huge.Ceiling(100); got != huge.Max {
		t.Errorf("overflow: %v", got)
	}
}

// Full jitter: waits fill the whole range from nothing to the ceiling.
func TestWaitsAreSpread(t *testing.T) {
	p := Policy{Window: time.Hour, Initial: time.Second, Max: time.Minute}
	var low, high int
	for range 1000 {
		w := p.Wait(3)
		if w < 0 || w > 4*time.Second {
			t.Fatalf("wait %v", w)
		}
		if w < time.Second {
			low++
		}
		if w > 3*time.Second {
			high++
		}
	}
	if low < 150 || high < 150 {
		t.Errorf("%d of 1000 in the lowest and %d in the highest quarter", low, high)
	}
}

func TestSucceedsAfterFailures(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		tries, notices := 0, 0
		var waited time.Duration
		started := time.Now()
		err := Start.Do(t.Context(), func(context.Context) error {
			tries++
			if tries < 4 {
				return errFirst
			}
			return nil
		}, always, func(n Notice) {
			notices++
			waited += n.Wait
			if n.Tries != notices || !errors.Is(n.Err, errFirst) || n.Wait > Start.Ceiling(n.Tries) || n.Remain > Start.Window {
				t.Errorf("notice %+v", n)
			}
		})
		if err != nil || tries != 4 || notices != 3 {
			t.Errorf("%v after %d tries and %d notices", err, tries, notices)
		}
		if time.Since(started) != waited {
			t.Errorf("took %v, announced %v", time.Since(started), waited)
		}
	})
}

// Nothing new is started after the window, which includes the tries; first and
// latest cause are kept (I14).
func TestWindowIncludesTheTries(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := Policy{Window: time.Minute, Initial: time.Second, Max: time.Second}
		started := time.Now()
		tries := 0
		err := p.Do(t.Context(), func(context.Context) error {
			if time.Since(started) >= p.Window {
				t.Errorf("a try began after %v", time.Since(started))
			}
			tries++
			time.Sleep(25 * time.Second) // virtual: settling the original
			if tries == 1 {
				return errFirst
			}
			return errLatest
		}, always, nil)
		e, ok := errors.AsType[*Error](err)
		if !ok || e.Cause != CauseWindow || e.Tries != tries || tries != 3 {
			t.Fatalf("got %v after %d tries", err, tries)
		}
		if e.First != errFirst || e.Latest != errLatest || !errors.Is(err, errFirst) || !errors.Is(err, errLatest) {
			t.Errorf("causes %v and %v", e.First, e.Latest)
		}
	})
}

func TestFinalFailureIsNotRepeated(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		started := time.Now()
		tries := 0
		err := Terminal.Do(t.Context(), func(context.Context) error { tries++; return errFirst },
			func(err error) bool { return !errors.Is(err, errFirst) }, func(Notice) { t.Error("a notice") })
		e, ok := errors.AsType[*Error](err)
		if !ok || e.Cause != CauseFinal || tries != 1 || time.Since(started) != 0 {
			t.Errorf("got %v after %d tries and %v", err, tries, time.Since(started))
		}
	})
}

// A stop ends a wait at once; before the first try it starts nothing; a try
// under way finishes and may still succeed.
func TestStop(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		p := Policy{Window: 10 * time.Hour, Initial: time.Hour, Max: time.Hour}
		done := make(chan error, 1)
		waiting := make(chan Notice, 100)
		go func() {
			done <- p.Do(ctx, func(context.Context) error { return errFirst }, always, func(n Notice) { waiting <- n })
		}()
		<-waiting
		synctest.Wait()
		before := time.Now()
		cancel()
		err := <-done
		if e, ok := errors.AsType[*Error](err); !ok || e.Cause != CauseStopped || time.Since(before) != 0 {
			t.Errorf("got %v after %v", err, time.Since(before))
		}
		err = p.Do(ctx, func(context.Context) error { t.Error("a try after the stop"); return nil }, always, nil)
		if e, ok := errors.AsType[*Error](err); !ok || e.Cause != CauseStopped || e.Tries != 0 || e.Error() == "" {
			t.Errorf("got %v", err)
		}
		ctx, cancel = context.WithCancel(t.Context())
		if err := p.Do(ctx, func(context.Context) error { cancel(); return nil }, always, nil); err != nil {
			t.Errorf("a try that succeeded: %v", err)
		}
	})
}

func TestValidate(t *testing.T) {
	for _, p := range []Policy{{}, {Window: 1}, {Window: 1, Initial: 1}, {Window: -1, Initial: 1, Max: 1}, {Window: 1, Initial: 2, Max: 1}} {
		if p.Validate() == nil {
			t.Errorf("%+v was accepted", p)
		}
	}
	for _, p := range []Policy{Start, Terminal} {
		if err := p.Validate(); err != nil {
			t.Error(err)
		}
	}
}

// A wait that would reach beyond the window is not begun.
func TestNoWaitBeyondTheWindow(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := Policy{Window: time.Minute, Initial: 2 * time.Minute, Max: 2 * time.Minute}
		for range 200 {
			started := time.Now()
			announced := time.Duration(0)
			err := p.Do(t.Context(), func(context.Context) error {
				if time.Since(started) >= p.Window {
					t.Errorf("a try began after %v", time.Since(started))
				}
				return errFirst
			}, always, func(n Notice) { announced += n.Wait })
			if e, ok := errors.AsType[*Error](err); !ok || e.Cause != CauseWindow || time.Since(started) != announced {
				t.Fatalf("got %v after %v, announced %v", err, time.Since(started), announced)
			}
		}
	})
}
