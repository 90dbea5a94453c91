package metrics

import (
	"context"
	"errors"
	"strings"
	"testing"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"

	"github.com/quittance/quittance/hostagent/internal/engine"
	"github.com/quittance/quittance/hostagent/internal/worker"
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

// starts is an engine whose start ends with one error.
type starts struct {
	worker.Engine
	err error
}

func (s starts) Start(context.Context, engine.Identity) error { return s.err }

// I11: an engine's call without the engine's own answer is of unknown effect.
func TestEngineDispositions(t *testing.T) {
	f, r := figures(t)
	refused := &engine.EffectError{Op: "start", Disposition: protocol.Refused, Err: engine.ErrNotFound}
	for _, err := range []error{nil, refused, context.DeadlineExceeded} {
		if got := f.Engine(starts{err: err}).Start(t.Context(), engine.Identity{}); !errors.Is(got, err) {
			t.Errorf("the wrapper changes %v to %v", err, got)
		}
	}
	want := `
# HELP quittance_agent_engine_calls_total Calls to the container engine that ended.
# TYPE quittance_agent_engine_calls_total counter
quittance_agent_engine_calls_total{disposition="done",operation="start"} 1
quittance_agent_engine_calls_total{disposition="refused",operation="start"} 1
quittance_agent_engine_calls_total{disposition="unknown",operation="start"} 1
`
	if err := testutil.GatherAndCompare(r, strings.NewReader(want), "quittance_agent_engine_calls_total"); err != nil {
		t.Error(err)
	}
}

// I22: verdicts are counted by what the receipt says, the scope only with a kill.
func TestVerdicts(t *testing.T) {
	f, r := figures(t)
	host := protocol.ScopeHost
	for _, oom := range []protocol.OOM{{Verdict: protocol.VerdictKilled, Scope: &host}, {Verdict: protocol.VerdictNotKilled}, {Verdict: protocol.VerdictUnknown}, {Verdict: protocol.VerdictUnknown}} {
		f.Exited(protocol.ExitedBody{Exit: protocol.Exit{Source: protocol.ExitFromPIDFD}, OOM: oom})
	}
	f.Leased([]protocol.Device{{Name: "v.example/gpu=0", Nodes: []string{"/dev/a"}}, {Name: "v.example/gpu=1", Nodes: []string{"/dev/b"}}}, +1)
	f.Leased([]protocol.Device{{Name: "v.example/gpu=1", Nodes: []string{"/dev/b"}}}, -1)
	want := `
# HELP quittance_agent_devices_leased Devices that allocations hold, by CDI kind.
# TYPE quittance_agent_devices_leased gauge
quittance_agent_devices_leased{kind="v.example/gpu"} 1
# HELP quittance_agent_oom_verdicts_total Exits of workers, by whether the kernel killed for memory and for whose limit.
# TYPE quittance_agent_oom_verdicts_total counter
quittance_agent_oom_verdicts_total{scope="",verdict="not_killed"} 1
quittance_agent_oom_verdicts_total{scope="",verdict="unknown"} 2
quittance_agent_oom_verdicts_total{scope="container",verdict="killed"} 0
quittance_agent_oom_verdicts_total{scope="daemon",verdict="killed"} 0
quittance_agent_oom_verdicts_total{scope="host",verdict="killed"} 1
quittance_agent_oom_verdicts_total{scope="unknown",verdict="killed"} 0
`
	if err := testutil.GatherAndCompare(r, strings.NewReader(want), "quittance_agent_devices_leased", "quittance_agent_oom_verdicts_total"); err != nil {
		t.Error(err)
	}
}

// A core that does not answer takes the gauges out of the scrape, and nothing
// else.
func TestUnreadableStateLeavesTheRest(t *testing.T) {
	_, r := figures(t)
	if err := Watch(r, func(ctx context.Context) (State, error) {
		if _, bounded := ctx.Deadline(); !bounded {
			t.Error("the look at the state has no deadline")
		}
		return State{}, errors.New("the agent is stopping")
	}); err != nil {
		t.Fatal(err)
	}
	families, err := r.Gather()
	if err == nil {
		t.Error("the failure is not told")
	}
	found := map[string]bool{}
	for _, m := range families {
		found[m.GetName()] = true
	}
	if !found["quittance_agent_receipts_total"] || found["quittance_agent_slots_used"] {
		t.Errorf("found %v", found)
	}
}
