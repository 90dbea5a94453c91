package recovery

import (
	"errors"
	"fmt"
	"testing"

	"github.com/quittance/quittance/controller/api"
	"github.com/quittance/quittance/controller/internal/attempt"
	"github.com/quittance/quittance/controller/internal/observer"
	"github.com/quittance/quittance/protocol"
)

const reference = "att-00000000000000000000000000000001"

func record(entered bool) attempt.Record {
	r := attempt.Acknowledged{Admission: attempt.Admission{Reference: reference}}
	if entered {
		at := protocol.Timestamp(1)
		r.Executions = []attempt.Execution{{Generation: protocol.NewID(), Number: 1, Profile: "p", ProfileDigest: protocol.DigestOf(nil), Entered: &at, Settlement: attempt.SettlementConsumed}}
	}
	return r
}

// The table of the package comment, and the code of each FAIL.
func TestDecide(t *testing.T) {
	in := func(job api.JobState) observer.Reading {
		return observer.Reading{Visible: true, State: api.AttemptInProgress, JobState: job}
	}
	over := func(state api.AttemptState) observer.Reading {
		return observer.Reading{Visible: true, State: state, JobState: api.JobFailed, Reply: attempt.Reply{Status: 200}}
	}
	candidate := &attempt.Outcome{Operation: attempt.OperationComplete, Body: []byte("{}")}
	stop := &observer.Stop{Reason: observer.GapExpired, Cause: errors.New("away")}
	for name, row := range map[string]struct {
		entered bool
		c       Case
		reading observer.Reading
		want    string
	}{
		"restart before entry":             {false, Case{}, in(api.JobOpen), "FAIL interrupted false, candidate false"},
		"restart after entry":              {true, Case{}, in(api.JobOpen), "FAIL interrupted true, candidate false"},
		"cancelled":                        {true, Case{Stop: stop}, in(api.JobCancelled), "FAIL cancelled true, candidate false"},
		"cancelled while it was restarted": {false, Case{}, in(api.JobCancelled), "FAIL cancelled false, candidate false"},
		"a result that came too late":      {true, Case{Stop: stop, Candidate: candidate}, in(api.JobOpen), "FAIL interrupted true, candidate true"},
		"expired":                          {true, Case{Stop: stop}, over(api.AttemptExpired), "over expired"},
		"failed by somebody":               {true, Case{}, over(api.AttemptFailed), "over failed"},
		"completed by somebody":            {true, Case{}, over(api.AttemptCompleted), "over completed"},
		"not visible":                      {true, Case{}, observer.Reading{}, "over not_visible"},
		"expired with a result":            {true, Case{Stop: stop, Candidate: candidate}, over(api.AttemptExpired), "suppressed expired"},
		"not visible with a result":        {true, Case{Candidate: candidate}, observer.Reading{}, "suppressed not_visible"},
		"expired before entry, with FAIL":  {false, Case{Stop: stop, Candidate: &attempt.Outcome{Operation: attempt.OperationFail, Body: []byte("{}")}}, over(api.AttemptExpired), "over expired"},
	} {
		t.Run(name, func(t *testing.T) {
			event, err := new(Recovery).decide(record(row.entered), row.c, row.reading)
			if err != nil {
				t.Fatal(err)
			}
			if got := describe(t, event); got != row.want {
				t.Fatalf("got %s, want %s", got, row.want)
			}
		})
	}
}

func describe(t *testing.T, event attempt.Event) string {
	t.Helper()
	switch e := event.(type) {
	case attempt.OutcomeChosen:
		var f api.Fail
		if err := api.Decode(e.Outcome.Body, api.RouteFail.MaxRequest, &f); err != nil {
			t.Fatal(err)
		}
		return fmt.Sprintf("FAIL %s %v, candidate %v", f.Code, f.Entered, e.Outcome.Candidate != nil)
	case attempt.Over:
		return "over " + string(e.Reason)
	case attempt.CandidateSuppressed:
		return "suppressed " + string(e.Why)
	}
	return fmt.Sprintf("%T", event)
}
