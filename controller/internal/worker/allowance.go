package worker

import (
	"context"
	"time"
)

// allowed derives a context that ends with cause once the worker has had d. Time
// that passes while the attempt reports to the job service is not the worker's:
// the clock stands still, so that an outage of the service is never taken for a
// worker that is late. The report given back is the one to use; reports are
// sequential. end releases the context.
func allowed(ctx context.Context, d time.Duration, cause error, report Report) (timed context.Context, paused Report, end func()) {
	timed, cancel := context.WithCancelCause(ctx)
	timer := time.AfterFunc(d, func() { cancel(cause) })
	deadline := time.Now().Add(d)
	paused = func(_ context.Context, condition string) error {
		left := time.Until(deadline)
		running := timer.Stop()
		err := report(ctx, condition)
		if running {
			deadline = time.Now().Add(left)
			timer.Reset(left)
		}
		return err
	}
	return timed, paused, func() {
		timer.Stop()
		cancel(nil)
	}
}
