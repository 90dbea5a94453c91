//go:build engine

package engine_test

import (
	"slices"
	"strings"
	"testing"

	"github.com/quittance/quittance/integration/agenttest"
	"github.com/quittance/quittance/protocol"
	"github.com/quittance/quittance/protocol/hostclient"
)

// Containers of several other generations block new work, and the refusal names
// each with the way out. Once they are removed by hand work goes on by itself;
// given up together, the new genesis names them all (I9).
func TestForeignGenerations(t *testing.T) {
	lab := kit.NewLab(t)
	lab.Profile("echo", agenttest.Profile{Args: []string{"serve"}})
	lab.Start()
	c := newCaller(t, lab)
	c.witness()
	c.running(1)
	request := c.request("echo")
	image := strings.Fields(ctr(t, lab, "images", "ls", "-q"))[0]
	others := []protocol.ID{protocol.NewID(), protocol.NewID()}
	slices.Sort(others)
	var ids []string
	appear := func() {
		t.Helper()
		ids = nil
		for _, generation := range others {
			nonce := protocol.NewID()
			ids = append(ids, "q-"+string(nonce))
			ctr(t, lab, "containers", "create", "--label", "quittance/generation="+string(generation), "--label", "quittance/nonce="+string(nonce),
				"--label", "quittance/number=1", image, "q-"+string(nonce))
		}
	}
	appear()
	lab.Kill()
	lab.Start()
	c.witness()
	p := refusedBehind(t, c, 2, request)
	for i := range others {
		if !strings.Contains(p.Detail, ids[i]+" of generation "+string(others[i])) {
			t.Errorf("the detail does not name %s of %s: %q", ids[i], others[i], p.Detail)
		}
	}
	if !strings.Contains(p.Detail, "ledger abandon "+string(others[0])+" "+string(others[1])) {
		t.Errorf("the detail does not say the way out: %q", p.Detail)
	}
	for _, id := range ids {
		ctr(t, lab, "containers", "rm", id)
	}
	lab.Eventually("work goes on once they are gone", func() (bool, error) {
		_, err := c.gen.Allocate(t.Context(), 2, request)
		if hostclient.IsCode(err, protocol.CodeLedgerBehind) {
			return false, nil
		}
		return err == nil, err
	})
	c.retire(2)

	appear()
	lab.Stop()
	if _, err := lab.TryCommand("ledger", "abandon", string(lab.Generation)); err == nil ||
		!strings.Contains(err.Error(), "of generation "+string(others[0])+" "+string(others[1])) {
		t.Errorf("abandon of one of three: %v", err)
	}
	old := lab.Generation
	facts := abandoned(t, lab, old, others[0], others[1])
	if facts["containers"] != "3 stopped and removed" {
		t.Errorf("%v", facts)
	}
	if left := lab.Leftovers(); len(left) != 0 {
		t.Errorf("left on the machine: %v", left)
	}
	genesis := goesOn(t, lab, facts)
	if genesis.Abandoned.Generation != old || !slices.Equal(genesis.Abandoned.Also, others) {
		t.Errorf("the genesis names %+v, want %s and %s", genesis.Abandoned, old, others)
	}
	// Another one in turn goes on naming those before it.
	lab.Stop()
	next := lab.Generation
	genesis = goesOn(t, lab, abandoned(t, lab, next))
	for _, id := range append(others, old, next) {
		if !genesis.Abandoned.Names(id) {
			t.Errorf("the genesis after next does not name %s: %+v", id, genesis.Abandoned)
		}
	}
}
