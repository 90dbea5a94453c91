// Package retry repeats an operation within a window, with capped exponential
// backoff and full jitter.
//
// It owns waiting and the end of the window. It does not know what an operation
// is or which of its failures permit a repeat: the caller says so for each
// failure, and saying so sends nothing.
package retry

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"time"
)

// Policy bounds the repetition of one operation.
type Policy struct {
	Window  time.Duration // from the first try; it includes the tries, notices and waits
	Initial time.Duration // ceiling of the first wait
	Max     time.Duration // ceiling of every wait
	// Waiting, where it is set, is told of every wait, for counting.
	Waiting func(Notice)
}

// The default policies.
var (
	Start    = Policy{Window: 10 * time.Minute, Initial: 500 * time.Millisecond, Max: 30 * time.Second}
	Terminal = Policy{Window: 24 * time.Hour, Initial: 500 * time.Millisecond, Max: 30 * time.Second}
)

// Validate refuses a policy that would not wait or not end.
func (p Policy) Validate() error {
	switch {
	case p.Window <= 0:
		return errors.New("window must be positive")
	case p.Initial <= 0:
		return errors.New("the first wait must be positive")
	case p.Max < p.Initial:
		return errors.New("the longest wait must not be shorter than the first")
	}
	return nil
}

// Ceiling is the longest wait after the given number of failed tries, from 1:
// Initial, doubled for each further one, at most Max.
func (p Policy) Ceiling(failed int) time.Duration {
	d := p.Initial
	for range failed - 1 {
		if d >= p.Max/2 {
			return p.Max
		}
		d *= 2
	}
	return min(d, p.Max)
}

// Wait is a random wait after the given number of failed tries: uniform from 0
// to its ceiling, so that many clients do not return together.
func (p Policy) Wait(failed int) time.Duration {
	return rand.N(p.Ceiling(failed) + 1)
}

// Cause says why repetition ended.
type Cause string

// The causes.
const (
	CauseFinal   Cause = "final"   // the failure permits no repeat
	CauseWindow  Cause = "window"  // the window is over
	CauseStopped Cause = "stopped" // the caller's context ended
)

// Error is a repetition that did not succeed. It wraps both failures.
type Error struct {
	Cause  Cause
	Tries  int
	First  error // the primary cause (I14); nil only where nothing was tried
	Latest error // the last failure, the same as First after one try
}

func (e *Error) Error() string {
	switch {
	case e.First == nil:
		return fmt.Sprintf("not tried (%s)", e.Cause)
	case e.Tries == 1:
		return fmt.Sprintf("%v (%s after 1 try)", e.First, e.Cause)
	}
	return fmt.Sprintf("%v (%s after %d tries; latest: %v)", e.First, e.Cause, e.Tries, e.Latest)
}

// Unwrap returns the failures, the first one first.
func (e *Error) Unwrap() []error {
	switch {
	case e.First == nil:
		return nil
	case e.Tries == 1:
		return []error{e.First}
	}
	return []error{e.First, e.Latest}
}

// Notice describes a failed try that will be repeated.
type Notice struct {
	Tries  int // so far
	Wait   time.Duration
	Err    error
	Remain time.Duration // of the window, at the time of the failure
}

// Do calls op until it returns nil. After a failure it asks permits; where that
// says no, or ctx has ended, or the next try would begin after the window, it
// returns a *[Error]. notice, which may be nil, is called before each wait.
//
// Nothing new is started after ctx ends or the window is over. What op has
// begun may finish: Do never abandons it, and gives it ctx unchanged.
func (p Policy) Do(ctx context.Context, op func(context.Context) error, permits func(error) bool, notice func(Notice)) error {
	started := time.Now()
	end := &Error{}
	for {
		if ctx.Err() != nil {
			end.Cause = CauseStopped
			return end
		}
		err := op(ctx)
		if err == nil {
			return nil
		}
		end.Tries++
		end.Latest = err
		if end.First == nil {
			end.First = err
		}
		if !permits(err) {
			end.Cause = CauseFinal
			return end
		}
		wait, remain := p.Wait(end.Tries), p.Window-time.Since(started)
		if wait >= remain {
			end.Cause = CauseWindow
			return end
		}
		for _, tell := range []func(Notice){p.Waiting, notice} {
			if tell != nil {
				tell(Notice{end.Tries, wait, err, remain})
			}
		}
		timer := time.NewTimer(wait)
		select {
		case <-ctx.Done():
			timer.Stop()
			end.Cause = CauseStopped
			return end
		case <-timer.C:
		}
	}
}
