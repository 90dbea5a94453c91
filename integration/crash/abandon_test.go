//go:build crash

package crash_test

import (
	"context"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/quittance/quittance/integration/agenttest"
	"github.com/quittance/quittance/protocol"
)

// ledger abandon is killed at random moments and run again: it comes to one
// new generation whose genesis names the old one, nothing of the old is left,
// and in between neither init nor the agent takes the directory for anything
// else (I9, I10, I15). The moments are shares of how long the first one takes,
// which nobody kills, so that a fast machine is struck as often as a slow one.
func TestAbandonKilledAtRandomMoments(t *testing.T) {
	seed := uint64(time.Now().UnixNano())
	t.Logf("seed %d", seed)
	random := rand.New(rand.NewPCG(seed, 2))
	lab := kit.NewLab(t)
	lab.Profile("echo", agenttest.Profile{Args: []string{"serve"}, Grace: "100ms"})
	const enough, most = 6, 60 // strikes, rounds
	strikes := 0
	var length time.Duration // of an abandonment that nobody kills
	for round := 0; strikes < enough; round++ {
		if round > most {
			t.Fatalf("only %d strikes in %d rounds, drawn from %s", strikes, most, length)
		}
		lab.Start()
		gen := lab.Controller(protocol.NewID())
		if _, err := gen.Witness(t.Context(), protocol.WitnessRequest{}); err != nil {
			t.Fatal(err)
		}
		list, err := gen.Profiles(t.Context())
		if err != nil || len(list) != 1 {
			t.Fatalf("profiles %+v, %v", list, err)
		}
		for n := range protocol.Number(2) {
			request := protocol.AllocateRequest{Profile: "echo", ProfileDigest: list[0].Digest, Purpose: "attempt-1"}
			if _, err := gen.Allocate(t.Context(), n+1, request); err != nil {
				t.Fatal(err)
			}
			if _, err := gen.Get(t.Context(), n+1, protocol.StateStarted, 30*time.Second); err != nil {
				t.Fatal(err)
			}
		}
		lab.Kill()
		old := lab.Generation
		var out string
		for try := 0; ; try++ {
			limit := 2 * time.Minute
			if round > 0 && try < 6 {
				limit = time.Duration(random.Int64N(int64(length)))
			}
			ctx, cancel := context.WithTimeout(t.Context(), limit)
			began := time.Now()
			text, err := lab.CommandUntil(ctx, "ledger", "abandon", string(old))
			killed := ctx.Err() != nil
			cancel()
			if err == nil {
				out = text
				if try == 0 {
					length = time.Since(began)
				}
				break
			}
			if !killed {
				// Killed after its last step and before it could say so.
				if strings.Contains(err.Error(), "holds nothing of generation "+string(old)) {
					break
				}
				t.Fatalf("abandon: %v", err)
			}
			strikes++
			if _, err := os.Lstat(filepath.Join(lab.StateDir(), "abandoning")); err == nil {
				if _, err := lab.TryCommand("init"); err == nil || !strings.Contains(err.Error(), "is being abandoned") {
					t.Fatalf("init in between: %v", err)
				}
				if _, err := lab.TryCommand("run"); err == nil || !strings.Contains(err.Error(), "is being abandoned") {
					t.Fatalf("run in between: %v", err)
				}
			}
		}
		if left := lab.Leftovers(); len(left) != 0 {
			t.Errorf("left on the machine: %v\n%s", left, out)
		}
		first, _, _ := strings.Cut(lab.Command("ledger", "export"), "\n")
		genesis, err := protocol.DecodeReceipt([]byte(first))
		if err != nil {
			t.Fatal(err)
		}
		body, err := protocol.BodyOf[protocol.GenesisBody](genesis)
		if err != nil || body.Abandoned == nil || body.Abandoned.Generation != old || body.Abandoned.Index == nil || genesis.Generation == old {
			t.Fatalf("genesis %+v, %v", body, err)
		}
		lab.Generation, lab.HostKey = genesis.Generation, body.HostKey
	}
	t.Logf("%d strikes, drawn from %s", strikes, length)
	lab.Start() // the last one serves
}
