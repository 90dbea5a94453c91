package executor

import (
	"context"
	"errors"
	"testing"

	"github.com/quittance/quittance/controller/api"
	"github.com/quittance/quittance/controller/internal/attempt"
	"github.com/quittance/quittance/controller/internal/host"
	"github.com/quittance/quittance/controller/internal/offering"
	"github.com/quittance/quittance/controller/internal/outcome"
	"github.com/quittance/quittance/protocol"
)

// counters is a host that shows one reading and answers retirements.
type counters struct {
	Host
	now    protocol.Allocation
	err    error
	retire error
}

func (c counters) Retire(context.Context, protocol.ID, protocol.Number, string, string) error {
	return c.retire
}

func (c counters) Wait(context.Context, protocol.Number, protocol.State) (protocol.Allocation, error) {
	return c.now, c.err
}

// I22, FR-31: after an answer the counters are read anew; where they cannot be,
// what was read before the work is no fact of it.
func TestCountersAfterAnswer(t *testing.T) {
	reading := func(v protocol.Verdict) protocol.Allocation {
		return protocol.Allocation{Number: 1, Purpose: still{}.Key(), OOM: &protocol.OOM{Verdict: v}}
	}
	others := reading(protocol.VerdictKilled)
	others.Purpose = "att.other"
	for name, row := range map[string]struct {
		host counters
		want protocol.Verdict
		fail bool
	}{
		"nothing happened": {counters{now: reading(protocol.VerdictNotKilled)}, protocol.VerdictNotKilled, false},
		"a child died":     {counters{now: reading(protocol.VerdictKilled)}, protocol.VerdictKilled, true},
		// The agent began another generation, where the number is somebody else's.
		"another attempt's child": {counters{now: others}, protocol.VerdictUnknown, false},
		"no reading":              {counters{err: errors.New("the host does not answer")}, protocol.VerdictUnknown, false},
	} {
		t.Run(name, func(t *testing.T) {
			r := newInput(t, &source{}, offering.FromJob)
			r.Host, r.number, r.Offering.FailOnOOM = row.host, 1, true
			r.facts = map[protocol.Number]protocol.Allocation{1: reading(protocol.VerdictNotKilled)}
			if failure := r.afterSuccess(); (failure != nil) != row.fail {
				t.Fatalf("%+v", failure)
			}
			if got := r.facts[1].OOM.Verdict; got != row.want {
				t.Errorf("%s, want %s", got, row.want)
			}
		})
	}
}

// started is a record with one open allocation.
type started struct{ still }

func (started) Record() attempt.Record {
	return attempt.Acknowledged{Executions: []attempt.Execution{{Generation: protocol.NewID(), Number: 1}}}
}

// I22: a failure is a kill for memory only by the facts of this attempt's own
// allocation, and not by those of another attempt under the same number of a
// generation that the agent began meanwhile.
func TestFailureByOwnFactsAlone(t *testing.T) {
	for purpose, want := range map[string]api.FailureCode{still{}.Key(): api.FailWorkerOOM, "att.other": api.FailWorkerLost} {
		r := newInput(t, &source{}, offering.FromJob)
		r.Journal, r.number, r.facts = started{}, 1, map[protocol.Number]protocol.Allocation{}
		r.Host = counters{now: protocol.Allocation{Number: 1, Purpose: purpose, State: protocol.StateExited, OOM: &protocol.OOM{Verdict: protocol.VerdictKilled}}, retire: host.ErrOtherGeneration}
		f := &outcome.Failure{Code: api.FailWorkerLost, Entered: true}
		settled, err := r.afterFailure(f)
		if err != nil || !settled || f.Code != want || len(r.facts) > 0 != (want == api.FailWorkerOOM) {
			t.Errorf("%s: settled %v, %v, %+v, facts %+v", purpose, settled, err, f, r.facts)
		}
	}
}
