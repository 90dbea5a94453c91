package retirement

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/hashicorp/go-hclog"

	"github.com/quittance/quittance/controller/internal/attempt"
	"github.com/quittance/quittance/controller/internal/host"
	"github.com/quittance/quittance/protocol"
)

const (
	ours  = protocol.ID("000000000000000000000000000000aa")
	other = protocol.ID("000000000000000000000000000000bb")
)

// memory is a record that is nowhere but here.
type memory struct{ record attempt.Record }

func (m *memory) Key() string            { return "a" }
func (m *memory) Record() attempt.Record { return m.record }

func (m *memory) Apply(_ context.Context, event attempt.Event) error {
	next, err := attempt.Step(m.record, event)
	if err == nil {
		m.record = next
	}
	return err
}

// acknowledged is a record with executions that have the given numbers.
func acknowledged(t *testing.T, numbers ...protocol.Number) *memory {
	t.Helper()
	m := &memory{attempt.StartPending{Origin: attempt.Origin{
		Scope: attempt.Scope{APIOrigin: "o", Provider: "p", Consumer: "c", Generation: "1"}, Key: "a", Job: "j", Kind: "k",
		Input: attempt.Input{SHA256: protocol.DigestOf(nil)}, MaxExecutions: 1, Start: []byte("{}"),
	}}}
	events := []attempt.Event{attempt.Admitted{Admission: attempt.Admission{Reference: "att"}}}
	for _, n := range numbers {
		events = append(events, attempt.Allocated{Generation: ours, Number: n, Profile: "p", ProfileDigest: protocol.DigestOf(nil)})
	}
	for _, e := range events {
		if err := m.Apply(t.Context(), e); err != nil {
			t.Fatal(err)
		}
	}
	return m
}

// agent answers as the test says and remembers the order.
type agent struct {
	generation protocol.ID
	gone       bool
	goneErr    error
	retire     error
	stuck      bool
	consume    error
	purpose    string // of the allocations that are shown; "" for ours
	leaf       []byte
	calls      []string
}

func (a *agent) call(format string, args ...any) {
	a.calls = append(a.calls, fmt.Sprintf(format, args...))
}

func (a *agent) Sync(context.Context) (protocol.Host, error) {
	return protocol.Host{Generation: a.generation}, nil
}

func (a *agent) Retire(_ context.Context, _ protocol.ID, n protocol.Number, purpose, _ string) error {
	a.call("retire %d for %s", n, purpose)
	return a.retire
}

func (a *agent) Wait(_ context.Context, n protocol.Number, until protocol.State) (protocol.Allocation, error) {
	a.call("wait %d %s", n, until)
	shown := protocol.Allocation{Number: n, State: protocol.StateRetired, Purpose: "a"}
	if a.purpose != "" {
		shown.Purpose = a.purpose
	}
	if a.stuck {
		shown.State, shown.Stuck = protocol.StateRetiring, &protocol.StuckBody{}
	}
	return shown, nil
}

func (a *agent) Consume(_ context.Context, x protocol.Allocation) (protocol.Allocation, error) {
	a.call("consume %d", x.Number)
	return protocol.Allocation{Number: x.Number, State: protocol.StateConsumed}, a.consume
}

func (a *agent) Receipts(_ context.Context, x protocol.Allocation, _ int) ([]host.Receipt, string, error) {
	a.call("receipts of %s %d", x.State, x.Number)
	return []host.Receipt{{Index: 4, Leaf: a.leaf, Proof: "proof"}}, "key", nil
}

func (a *agent) GenerationGone(context.Context, protocol.ID) (bool, error) {
	return a.gone, a.goneErr
}

func TestRun(t *testing.T) {
	for name, row := range map[string]struct {
		agent agent
		want  attempt.Settlement // "" where the number is withdrawn
		calls string
		saved bool
	}{
		"the whole way": {agent{}, attempt.SettlementConsumed, "[retire 7 for a wait 7 retired consume 7 receipts of consumed 7]", true},
		"stuck":         {agent{stuck: true}, attempt.SettlementStuck, "[retire 7 for a wait 7 retired receipts of retiring 7]", true},
		"never ours":    {agent{retire: host.ErrNotOurs}, "", "[retire 7 for a]", false},
		"released":      {agent{retire: host.ErrReleased}, attempt.SettlementConsumed, "[retire 7 for a]", false},
		"abandoned":     {agent{generation: other, gone: true}, attempt.SettlementGenerationGone, "[]", false},
	} {
		t.Run(name, func(t *testing.T) {
			m, a := acknowledged(t, 7), row.agent
			a.leaf = []byte("leaf")
			if a.generation == "" {
				a.generation = ours
			}
			if _, err := Run(t.Context(), &a, m, "n", hclog.NewNullLogger()); err != nil {
				t.Fatal(err)
			}
			executions := attempt.ExecutionsOf(m.record)
			if row.want == "" {
				if len(executions) != 0 {
					t.Fatalf("%+v", executions)
				}
			} else if e := executions[0]; e.Settlement != row.want || (len(e.Receipts) == 1) != row.saved {
				t.Fatalf("%+v", e)
			}
			if got := fmt.Sprint(a.calls); got != row.calls {
				t.Fatalf("calls %s, want %s", got, row.calls)
			}
			// What is settled is not asked again.
			a.calls = nil
			if _, err := Run(t.Context(), &a, m, "n", hclog.NewNullLogger()); err != nil || len(a.calls) != 0 {
				t.Fatalf("%v, %q", err, a.calls)
			}
		})
	}
}

// I16: where the agent serves another generation and nothing that it still has
// proves ours gone, the allocation stays open and the error says so; what could
// not be read is another matter, and is read again.
func TestGenerationUnproved(t *testing.T) {
	pruned := protocol.NewProblem(protocol.CodePruned, "", "")
	lost := errors.New("lost")
	for name, row := range map[string]struct {
		gone     error
		unproved bool
	}{"speaks of another": {nil, true}, "released": {pruned, true}, "not read": {lost, false}} {
		t.Run(name, func(t *testing.T) {
			m := acknowledged(t, 7)
			_, err := Run(t.Context(), &agent{generation: other, goneErr: row.gone}, m, "n", hclog.NewNullLogger())
			u, ok := errors.AsType[*UnprovedError](err)
			if err == nil || ok != row.unproved || ok && (u.Generation != ours || u.Number != 7 || !strings.Contains(u.Error(), "agentctl attempts resolve")) {
				t.Fatalf("%v", err)
			}
			if e := attempt.ExecutionsOf(m.record)[0]; e.Settlement != attempt.SettlementOpen {
				t.Fatalf("%+v", e)
			}
		})
	}
}

// Whatever cannot be confirmed leaves the allocation open, and the same call
// goes on from there.
func TestRunFails(t *testing.T) {
	lost := errors.New("lost")
	for name, a := range map[string]agent{
		"another generation, not abandoned": {generation: other},
		"retirement unknown":                {generation: ours, retire: lost},
		"consumption unknown":               {generation: ours, consume: lost},
		"another attempt's (I20)":           {generation: ours, purpose: "b"},
		"receipts too large":                {generation: ours, leaf: []byte(strings.Repeat("x", attempt.MaxSavedBytes+1))},
	} {
		t.Run(name, func(t *testing.T) {
			m := acknowledged(t, 7)
			if _, err := Run(t.Context(), &a, m, "n", hclog.NewNullLogger()); err == nil || !strings.Contains(err.Error(), "retirement of 7") {
				t.Fatalf("%v", err)
			}
			if e := attempt.ExecutionsOf(m.record)[0]; e.Settlement != attempt.SettlementOpen {
				t.Fatalf("%+v", e)
			}
			if consumed := slices.Contains(a.calls, "consume 7"); consumed && a.purpose != "" {
				t.Fatalf("calls %s", a.calls)
			}
			good := agent{generation: ours, leaf: []byte("leaf")}
			if _, err := Run(t.Context(), &good, m, "n", hclog.NewNullLogger()); err != nil || !attempt.HostSettled(m.record) {
				t.Fatalf("%v", err)
			}
		})
	}
}
