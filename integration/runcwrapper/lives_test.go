//go:build engine

package runcwrapper_test

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/quittance/quittance/integration/agenttest"
	"github.com/quittance/quittance/integration/runcwrapper"
	"github.com/quittance/quittance/protocol"
	"github.com/quittance/quittance/protocol/hostclient"
	"github.com/quittance/quittance/protocol/tlog"
)

var kit *agenttest.Kit

func TestMain(m *testing.M) { os.Exit(run(m)) }

func run(m *testing.M) (code int) {
	var err error
	if kit, err = agenttest.NewKit(""); err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	defer func() {
		if err := kit.Close(); err != nil {
			fmt.Fprintln(os.Stderr, err)
			code = 1
		}
	}()
	return m.Run()
}

// rows are the runtime's commands in an allocation's life, and what its
// retirement must say after each way of failing. There is no row of kill: the
// agent signals the processes itself; the engine package tests that command.
var rows = []struct {
	command    string
	way        runcwrapper.Way
	reason     protocol.Reason
	dispatched bool
}{
	{"create", runcwrapper.Delay, protocol.ReasonRequested, true},
	{"create", runcwrapper.Hang, protocol.ReasonSetupFailed, false},
	{"create", runcwrapper.FailAfter, protocol.ReasonSetupFailed, false},
	{"create", runcwrapper.Nothing, protocol.ReasonSetupFailed, false},
	{"start", runcwrapper.Delay, protocol.ReasonRequested, true},
	{"start", runcwrapper.Hang, protocol.ReasonSetupFailed, true},      // may have run
	{"start", runcwrapper.FailAfter, protocol.ReasonSetupFailed, true}, // ran
	{"start", runcwrapper.Nothing, protocol.ReasonRequested, true},     // said so
	{"delete", runcwrapper.Delay, protocol.ReasonRequested, true},
	{"delete", runcwrapper.Hang, protocol.ReasonRequested, true},
	{"delete", runcwrapper.FailAfter, protocol.ReasonRequested, true},
	{"delete", runcwrapper.Nothing, protocol.ReasonRequested, true},
}

const purpose = "attempt-1"

// The runtime below the shim delays, hangs, fails after its effect, or reports
// success without one: the life ends with facts that are true, and nothing is
// left (I11, I16, I18).
func TestRuntimeFails(t *testing.T) {
	wrapper := runcwrapper.Install(t)
	lab := kit.NewLab(t)
	lab.Profile("echo", agenttest.Profile{Args: []string{"serve"}, Grace: "1s"})
	lab.Start()
	gen := lab.Controller(protocol.NewID())
	if _, err := gen.Witness(t.Context(), protocol.WitnessRequest{}); err != nil {
		t.Fatal(err)
	}
	profiles, err := gen.Profiles(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	request := protocol.AllocateRequest{Profile: "echo", ProfileDigest: profiles[0].Digest, Purpose: purpose}
	n := protocol.Number(0)
	for _, row := range rows {
		t.Run(row.command+"-"+string(row.way), func(t *testing.T) {
			lab.Use(t)
			n++
			arm := func() {
				if err := wrapper.Arm(row.command, row.way); err != nil {
					t.Fatal(err)
				}
			}
			if row.command != "delete" { // a create that fails is followed by one
				arm()
			}
			if _, err := gen.Allocate(t.Context(), n, request); err != nil {
				t.Fatal(err)
			}
			a := await(t, gen, n, protocol.StateStarted)
			if row.command == "delete" {
				arm()
			}
			if a.State == protocol.StateStarted {
				if _, err := gen.Retire(t.Context(), n, protocol.RetireRequest{Purpose: purpose}, 0); err != nil {
					t.Fatal(err)
				}
			}
			met, cancel := context.WithTimeout(t.Context(), patience)
			defer cancel()
			if err := wrapper.Met(met, row.command); err != nil {
				t.Fatal(err)
			}
			await(t, gen, n, protocol.StateRetired)
			leaf, body := retired(t, gen, n)
			if body.Reason != row.reason || body.Dispatched != row.dispatched {
				t.Errorf("retired: reason %s, dispatched %t, error %q; want %s, %t", body.Reason, body.Dispatched, body.Error, row.reason, row.dispatched)
			}
			if body.Dispatched && (body.Exit == nil || body.Exit.Source == protocol.ExitFromNone) {
				t.Errorf("exit %+v", body.Exit)
			}
			if left := lab.Leftovers(); len(left) != 0 {
				t.Errorf("left on the machine: %v", left)
			}
			nothingHangs(t)
			if _, err := gen.Consume(t.Context(), n, protocol.ConsumeRequest{Purpose: purpose, LeafHash: leaf}); err != nil {
				t.Error(err)
			}
		})
	}
}

// patience is longer than a delete that hangs to its deadline, is tried again,
// and the same once more, on a busy machine.
const patience = 2 * time.Minute

// await waits for a state, or a later one.
func await(t *testing.T, gen *hostclient.Generation, n protocol.Number, until protocol.State) protocol.Allocation {
	t.Helper()
	deadline := time.Now().Add(patience)
	for {
		a, err := gen.Get(t.Context(), n, until, 10*time.Second)
		if err != nil {
			t.Fatal(err)
		}
		if a.State == until || a.State == protocol.StateRetired {
			return a
		}
		if time.Now().After(deadline) {
			t.Fatalf("number %d is %s in step %s: %s", n, a.State, a.Step, a.StepError)
		}
	}
}

func retired(t *testing.T, gen *hostclient.Generation, n protocol.Number) (protocol.Digest, protocol.RetiredBody) {
	t.Helper()
	leaves, err := gen.Receipts(t.Context(), hostclient.ReceiptsQuery{})
	if err != nil {
		t.Fatal(err)
	}
	for _, l := range leaves {
		if l.Receipt.Kind == protocol.KindRetired && *l.Receipt.Number == n {
			body, err := protocol.BodyOf[protocol.RetiredBody](l.Receipt)
			if err != nil {
				t.Fatal(err)
			}
			return tlog.DigestOf(l.Hash), body
		}
	}
	t.Fatalf("number %d has no retired receipt", n)
	return "", protocol.RetiredBody{}
}

// nothingHangs shows that no call of the runtime outlives the allocation.
func nothingHangs(t *testing.T) {
	t.Helper()
	faults := os.Getenv(runcwrapper.FaultsVariable)
	own := filepath.Join(filepath.Dir(faults), "bin", "runc")
	entries, err := filepath.Glob("/proc/[0-9]*")
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range entries {
		target, err := os.Readlink(filepath.Join(e, "exe"))
		if err != nil {
			continue // gone meanwhile, or the kernel's own
		}
		if strings.TrimSuffix(target, " (deleted)") == own {
			t.Errorf("process %s still hangs in the runtime", filepath.Base(e))
		}
	}
}
