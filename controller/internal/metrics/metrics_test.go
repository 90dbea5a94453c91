package metrics

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"

	"github.com/quittance/quittance/controller/api"
	"github.com/quittance/quittance/controller/internal/attempt"
	"github.com/quittance/quittance/controller/internal/host"
	"github.com/quittance/quittance/controller/internal/provider"
	"github.com/quittance/quittance/controller/internal/retry"
	"github.com/quittance/quittance/protocol"
)

func figures(t *testing.T) (*Figures, *prometheus.Registry) {
	t.Helper()
	r := prometheus.NewRegistry()
	f, err := New(r)
	if err != nil {
		t.Fatal(err)
	}
	return f, r
}

// A record counts when its state changes, and its outcome when it is chosen; a
// fact noted beside it counts nothing.
func TestTransitionsAndOutcomes(t *testing.T) {
	f, r := figures(t)
	failed := attempt.TerminalPending{Outcome: attempt.Outcome{Operation: attempt.OperationFail, Body: []byte(`{"attempt":"att-1","code":"worker_oom"}`)}}
	for _, w := range []struct{ from, to attempt.Record }{
		{nil, attempt.StartPending{}}, {attempt.StartPending{}, attempt.StartPending{}}, {attempt.StartPending{}, attempt.Acknowledged{}},
		{attempt.Acknowledged{}, failed}, {failed, failed}, {failed, attempt.TerminalHeld{}},
		{attempt.Acknowledged{}, attempt.TerminalPending{Outcome: attempt.Outcome{Operation: attempt.OperationFail, Body: []byte("no JSON")}}},
	} {
		f.Written(w.from, w.to, time.Millisecond)
	}
	want := `
# HELP quittance_controller_outcomes_total Outcomes chosen for attempts; code is empty for a result.
# TYPE quittance_controller_outcomes_total counter
quittance_controller_outcomes_total{code="",operation="complete"} 0
quittance_controller_outcomes_total{code="unreadable",operation="fail"} 1
quittance_controller_outcomes_total{code="worker_oom",operation="fail"} 1
# HELP quittance_controller_transitions_total Attempt records that reached a state, durably.
# TYPE quittance_controller_transitions_total counter
quittance_controller_transitions_total{state="acknowledged"} 1
quittance_controller_transitions_total{state="ended"} 0
quittance_controller_transitions_total{state="start_pending"} 1
quittance_controller_transitions_total{state="suppressed"} 0
quittance_controller_transitions_total{state="terminal_confirmed"} 0
quittance_controller_transitions_total{state="terminal_held"} 1
quittance_controller_transitions_total{state="terminal_pending"} 2
`
	if err := testutil.GatherAndCompare(r, strings.NewReader(want), "quittance_controller_outcomes_total", "quittance_controller_transitions_total"); err != nil {
		t.Error(err)
	}
}

// answers is a host that answers reads of itself with one error.
type answers struct {
	host.Client
	err error
}

func (a answers) Host(context.Context) (protocol.Host, error) { return protocol.Host{}, a.err }

// I11: what is not known to have had no effect is counted as unknown.
func TestDispositions(t *testing.T) {
	f, r := figures(t)
	for _, err := range []error{nil, protocol.NewProblem(protocol.CodeCapacity, "", ""), protocol.NewProblem(protocol.CodeInternal, "", ""), errors.New("connection reset")} {
		if _, got := f.Host(answers{err: err}).Host(t.Context()); !errors.Is(got, err) {
			t.Errorf("the wrapper changes %v to %v", err, got)
		}
	}
	f.Exchange("start", nil, time.Millisecond)
	f.Exchange("start", &provider.Failure{Class: provider.ClassLost, Disposition: protocol.Unknown}, time.Millisecond)
	f.Request("createJob", api.CodeNoSpace, time.Millisecond)
	wait := f.Waiting("start")
	wait(retry.Notice{Wait: time.Second})
	wait(retry.Notice{Wait: 500 * time.Millisecond})
	want := `
# HELP quittance_controller_backoff_seconds_total Time spent in waits before a request was sent again.
# TYPE quittance_controller_backoff_seconds_total counter
quittance_controller_backoff_seconds_total{operation="start"} 1.5
# HELP quittance_controller_exchanges_total Exchanges with the job service that ended, by class (ok, or what ended them) and effect.
# TYPE quittance_controller_exchanges_total counter
quittance_controller_exchanges_total{class="lost",disposition="unknown",operation="start"} 1
quittance_controller_exchanges_total{class="ok",disposition="done",operation="start"} 1
# HELP quittance_controller_host_requests_total Requests to the host agent that ended.
# TYPE quittance_controller_host_requests_total counter
quittance_controller_host_requests_total{code="",disposition="done",operation="host"} 1
quittance_controller_host_requests_total{code="capacity",disposition="refused",operation="host"} 1
quittance_controller_host_requests_total{code="internal",disposition="unknown",operation="host"} 1
quittance_controller_host_requests_total{code="lost",disposition="unknown",operation="host"} 1
# HELP quittance_jobs_requests_total Requests that the job service answered; code is empty for a success.
# TYPE quittance_jobs_requests_total counter
quittance_jobs_requests_total{code="no_space",operation="createJob"} 1
`
	if err := testutil.GatherAndCompare(r, strings.NewReader(want), "quittance_controller_backoff_seconds_total", "quittance_controller_exchanges_total",
		"quittance_controller_host_requests_total", "quittance_jobs_requests_total"); err != nil {
		t.Error(err)
	}
}

// Each reason why nothing is admitted has its own series.
func TestBlockedByReason(t *testing.T) {
	r := prometheus.NewRegistry()
	if err := Watch(r, func() Lanes { return Lanes{Blocked: map[string]bool{"drain": true, "fault": false}} }); err != nil {
		t.Fatal(err)
	}
	want := `
# HELP quittance_controller_admission_blocked 1 while nothing is admitted for this reason: drain (asked for), room (none left for now), person (somebody has to look) or fault; the log says more.
# TYPE quittance_controller_admission_blocked gauge
quittance_controller_admission_blocked{reason="drain"} 1
quittance_controller_admission_blocked{reason="fault"} 0
`
	if err := testutil.GatherAndCompare(r, strings.NewReader(want), "quittance_controller_admission_blocked"); err != nil {
		t.Error(err)
	}
}

// A database that cannot be read takes its own figures out of the scrape, and
// nothing else.
func TestUnreadableStateLeavesTheRest(t *testing.T) {
	f, r := figures(t)
	f.Request("hello", "", time.Millisecond)
	if err := WatchJobs(r, func(context.Context) (map[string]int64, error) { return nil, errors.New("locked") }); err != nil {
		t.Fatal(err)
	}
	if err := Watch(r, func() Lanes {
		return Lanes{Lanes: 3, Breakers: map[string]bool{"k.v1": true}, Blocked: map[string]bool{"drain": true, "fault": false}}
	}); err != nil {
		t.Fatal(err)
	}
	families, err := r.Gather()
	if err == nil || !strings.Contains(err.Error(), "locked") {
		t.Errorf("the failure is not told: %v", err)
	}
	found := map[string]bool{}
	for _, m := range families {
		found[m.GetName()] = true
	}
	if !found["quittance_jobs_requests_total"] || !found["quittance_controller_breaker_open"] || found["quittance_jobs_open"] || found["quittance_controller_receipts_behind"] {
		t.Errorf("found %v", found)
	}
}
