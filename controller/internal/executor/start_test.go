package executor

import (
	"errors"
	"testing"

	"github.com/quittance/quittance/controller/internal/worker"
	"github.com/quittance/quittance/protocol"
)

// What the submitter reads of a worker that does not run is true: one that ended
// at once did start.
func TestNotStarted(t *testing.T) {
	reason := func(r protocol.Reason) *protocol.Reason { return &r }
	for want, a := range map[string]protocol.Allocation{
		"the worker's container did not start":                      {State: protocol.StateRetired, Reason: reason(protocol.ReasonSetupFailed)},
		"the worker ended before it was ready":                      {State: protocol.StateExited, Reason: reason(protocol.ReasonExited), Exit: &protocol.Exit{}},
		"the worker was retired before it was ready: lease_expired": {State: protocol.StateRetiring, Reason: reason(protocol.ReasonLeaseExpired)},
	} {
		f, ok := errors.AsType[*worker.Failure](notStarted(a))
		if !ok || f.Class != worker.Unavailable || f.Detail != want || f.Cause == nil || f.Cause.Error() == "" {
			t.Errorf("%+v: %+v", a, f)
		}
	}
}
