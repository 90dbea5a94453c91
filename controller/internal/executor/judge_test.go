package executor

import (
	"context"
	"errors"
	"testing"

	"github.com/quittance/quittance/controller/internal/offering"
	"github.com/quittance/quittance/protocol"
)

// counters is a host of which only one reading is asked.
type counters struct {
	Host
	now protocol.Allocation
	err error
}

func (c counters) Wait(context.Context, protocol.Number, protocol.State) (protocol.Allocation, error) {
	return c.now, c.err
}

// I22, FR-31: after an answer the counters are read anew; where they cannot be,
// what was read before the work is no fact of it.
func TestCountersAfterAnswer(t *testing.T) {
	reading := func(v protocol.Verdict) protocol.Allocation {
		return protocol.Allocation{Number: 1, OOM: &protocol.OOM{Verdict: v}}
	}
	for name, row := range map[string]struct {
		host counters
		want protocol.Verdict
		fail bool
	}{
		"nothing happened": {counters{now: reading(protocol.VerdictNotKilled)}, protocol.VerdictNotKilled, false},
		"a child died":     {counters{now: reading(protocol.VerdictKilled)}, protocol.VerdictKilled, true},
		"no reading":       {counters{err: errors.New("the host does not answer")}, protocol.VerdictUnknown, false},
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
