//go:build engine

package engine_test

import (
	"testing"

	"github.com/quittance/quittance/integration/agenttest"
	"github.com/quittance/quittance/protocol"
	"github.com/quittance/quittance/protocol/hostclient"
)

// A changed profile file counts from the reload on; what was accepted keeps the
// profile that it was accepted with, over a restart too (I12).
func TestReload(t *testing.T) {
	lab := kit.NewLab(t)
	lab.Profile("echo", agenttest.Profile{Args: []string{"serve"}})
	lab.Start()
	c := newCaller(t, lab)
	c.witness()
	old := c.request("echo")
	first := c.allocate(1, "echo")
	c.await(1, protocol.StateStarted)
	c.serves(1)

	lab.Profile("echo", agenttest.Profile{Args: []string{"exit", "9"}, Memory: "32MiB"})
	lab.Profile("broken", agenttest.Profile{Args: []string{"serve"}, Memory: "lots"})
	if got := profileDigest(t, lab, "echo"); got != old.ProfileDigest {
		t.Errorf("the file counts before the reload: %s", got)
	}
	lab.Reload()
	lab.Eventually("the profiles are read again", func() (bool, error) {
		list, err := c.gen.Profiles(t.Context())
		if err != nil || len(list) != 2 {
			return false, err
		}
		// By file name: broken, echo. A broken one is listed with its reason.
		return !list[0].Available && list[0].Reason != "" && list[1].Available && list[1].Digest != old.ProfileDigest, nil
	})
	if _, err := c.gen.Allocate(t.Context(), 2, old); !hostclient.IsCode(err, protocol.CodeProfileChanged) {
		t.Errorf("a new number with the old digest: %v", err)
	}
	lab.Kill()
	lab.Start()
	again, err := c.gen.Allocate(t.Context(), 1, old)
	if err != nil || string(again.Receipt) != string(first.Receipt) || *again.Allocation.ProfileDigest != old.ProfileDigest ||
		again.Allocation.Limits.MemoryBytes != 64<<20 {
		t.Errorf("the known number: %+v, %v", again.Allocation, err)
	}
	if r := c.retire(1); *r.Exit.Code != 3 {
		t.Errorf("exit %+v", r.Exit)
	}
}
