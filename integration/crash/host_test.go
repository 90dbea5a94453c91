//go:build crash

package crash_test

import (
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"strings"
	"testing"
	"time"

	"github.com/quittance/quittance/integration/agenttest"
	"github.com/quittance/quittance/protocol"
)

var kit *agenttest.Kit

func TestMain(m *testing.M) { os.Exit(run(m)) }

func run(m *testing.M) (code int) {
	var err error
	if kit, err = agenttest.NewKit("failpoints"); err != nil {
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

// A failpoint that does not exist, or cannot do what is asked, is an error: a
// misspelt row would pass without any strike.
func TestMisspeltFailpoint(t *testing.T) {
	lab := kit.NewLab(t)
	for setting, want := range map[string]string{
		"acepted:kill":       "names no failpoint",
		"accepted":           "no such action",
		"accepted:sleep":     "no such action",
		"accepted#0:kill":    "a number from 1",
		"accepted#many:kill": "a number from 1",
	} {
		cmd := exec.CommandContext(t.Context(), lab.Binary(), "--version")
		cmd.Env = append(os.Environ(), "QUITTANCE_FAILPOINT="+setting)
		out, err := cmd.CombinedOutput()
		if cmd.ProcessState.ExitCode() != 2 || !strings.Contains(string(out), want) {
			t.Errorf("%s: %v, %s", setting, err, out)
		}
	}
}

// The agent is killed while the container runs and twice more: one container,
// one start, and receipts without a gap (FR-11, FR-25).
func TestAgentKilledWhileRunning(t *testing.T) {
	lab := kit.NewLab(t)
	lab.Profile("echo", agenttest.Profile{Args: []string{"serve"}})
	c := newClient(t, lab)
	lab.Start()
	if !c.until(protocol.StateStarted) {
		t.Fatal("the agent ended")
	}
	before := c.allocation()
	for range 3 {
		lab.Kill()
		lab.Start()
	}
	if after := c.allocation(); after.State != protocol.StateStarted || *after.Container != *before.Container {
		t.Fatalf("not adopted: before %+v\nafter %+v", before, after)
	}
	if !c.drive() {
		t.Fatal("the agent ended")
	}
	c.audit(ending{protocol.ReasonRequested, true})
}

// A container that ended while no agent ran: exactly one exited (FR-11).
func TestContainerEndsWhileNoAgentRuns(t *testing.T) {
	lab := kit.NewLab(t)
	lab.Profile("echo", agenttest.Profile{Args: []string{"serve"}, NoInit: true})
	c := newClient(t, lab)
	lab.Start()
	if !c.until(protocol.StateStarted) {
		t.Fatal("the agent ended")
	}
	pid := c.started().PID
	lab.Kill()
	process, err := os.FindProcess(int(pid))
	if err != nil {
		t.Fatal(err)
	}
	if err := process.Kill(); err != nil {
		t.Fatal(err)
	}
	lab.Start()
	if !c.drive() {
		t.Fatal("the agent ended")
	}
	retired := c.audit(ending{protocol.ReasonExited, true})
	if retired.Exit.Source != protocol.ExitFromEngine || *retired.Exit.Signal != 9 {
		t.Errorf("exit %+v", retired.Exit)
	}
	// The leaf that held the counter may be gone with the exit (v1): then the
	// verdict is unknown; a made-up OOM it is never.
	if retired.OOM.Verdict == protocol.VerdictKilled {
		t.Errorf("oom %+v", retired.OOM)
	}
}

// The agent is killed at random moments of many lives, in the middle of engine
// calls too: every number ends, is used once, and nothing is left (FR-15). The
// moments are shares of how long a life takes here, so that a fast machine is
// struck as often as a slow one.
func TestAgentKilledAtRandomMoments(t *testing.T) {
	const (
		enough = 12 // strikes
		most   = 20 * enough
	)
	seed := uint64(time.Now().UnixNano())
	t.Logf("seed %d", seed)
	random := rand.New(rand.NewPCG(seed, 1))
	lab := kit.NewLab(t, "--engine-create-timeout", "3s", "--engine-start-timeout", "3s", "--engine-read-timeout", "2s")
	lab.Profile("echo", agenttest.Profile{Args: []string{"serve"}, Grace: "100ms"})
	c := newClient(t, lab)
	lab.Start()
	began := time.Now()
	if !c.drive() {
		t.Fatal("the agent ended")
	}
	length := time.Since(began) // of a life that nobody strikes
	strikes := 0
	for c.number = 2; strikes < enough; c.number++ {
		if c.number > most {
			t.Fatalf("only %d strikes at %d numbers, drawn from %s", strikes, most, length)
		}
		for life := 0; ; life++ {
			var strike *time.Timer
			began := time.Now()
			if life < 2 {
				strike = time.AfterFunc(time.Duration(random.Int64N(int64(length))), func() {
					if err := lab.Strike(); err != nil {
						t.Error(err)
					}
				})
			}
			done := c.drive()
			if strike != nil && strike.Stop() {
				// The number ended before the strike.
				strike = nil
				if life == 0 {
					length = time.Since(began)
				}
			}
			if strike != nil {
				lab.AwaitExit()
				lab.Start()
				strikes++
			}
			if done {
				break
			}
		}
	}
	numbers := c.number - 1
	t.Logf("%d strikes at %d numbers, the last drawn from %s", strikes, numbers, length)
	accepted := map[protocol.Number]int{}
	retired := map[protocol.Number]int{}
	started := map[protocol.Number]int{}
	for index := range protocol.Index(len(c.leaves)) {
		if c.leaves[index] == nil {
			t.Fatalf("receipt %d was never served", index)
		}
		r, err := protocol.DecodeReceipt(c.leaves[index])
		if err != nil {
			t.Fatal(err)
		}
		switch r.Kind {
		case protocol.KindAccepted:
			accepted[*r.Number]++
		case protocol.KindStarted:
			started[*r.Number]++
		case protocol.KindRetired:
			retired[*r.Number]++
		}
	}
	for n := protocol.Number(1); n <= numbers; n++ {
		if accepted[n] != 1 || retired[n] != 1 || started[n] > 1 {
			t.Errorf("number %d: accepted %d, started %d, retired %d times", n, accepted[n], started[n], retired[n])
		}
	}
	if left := lab.Leftovers(); len(left) != 0 {
		t.Errorf("left on the machine: %v", left)
	}
}
