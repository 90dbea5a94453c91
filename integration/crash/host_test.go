//go:build crash

package crash_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"testing"
	"time"

	"github.com/quittance/quittance/integration/agenttest"
	"github.com/quittance/quittance/protocol"
	"github.com/quittance/quittance/protocol/hostclient"
	"github.com/quittance/quittance/protocol/tlog"
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

// strikes is the matrix's host part: each failpoint, and what the retired
// receipt of the struck allocation must say. A row that does not strike fails.
var strikes = []struct {
	point      string
	reason     protocol.Reason
	dispatched bool
}{
	{"accepted", protocol.ReasonAgentRecovery, false},
	{"before-create", protocol.ReasonAgentRecovery, false},
	{"after-create", protocol.ReasonAgentRecovery, false},
	{"between-create-run", protocol.ReasonAgentRecovery, false}, // FR-16
	{"after-run", protocol.ReasonRequested, true},               // FR-15: adopted
	{"started", protocol.ReasonRequested, true},
	{"retire-intended", protocol.ReasonRequested, true},
	{"before-exited", protocol.ReasonRequested, true},
	{"exited", protocol.ReasonRequested, true}, // FR-12
	{"task-removed", protocol.ReasonRequested, true},
	{"container-removed", protocol.ReasonRequested, true},
	{"removed", protocol.ReasonRequested, true},
	{"retired", protocol.ReasonRequested, true},
	{"consumed", protocol.ReasonRequested, true},
	{"release-base-synced", protocol.ReasonRequested, true},
	{"release-removed-one", protocol.ReasonRequested, true},
	{"released", protocol.ReasonRequested, true},
}

// The agent is ended by SIGKILL at each failpoint of one allocation's life; the
// next life finishes it: I5, I6, I8, I10, I15, I16, I18, I21.
func TestAgentKilledAtEveryFailpoint(t *testing.T) {
	for _, s := range strikes {
		t.Run(s.point, func(t *testing.T) {
			lab := kit.NewLab(t)
			lab.Profile("echo", agenttest.Profile{Args: []string{"serve"}})
			c := newClient(t, lab)
			lab.Start("QUITTANCE_FAILPOINT=" + s.point + ":kill")
			// Some points lie behind the last reply: the agent ends there all the
			// same, and a point that is not reached fails here.
			c.drive()
			lab.AwaitExit()
			lab.Start()
			if !c.drive() {
				t.Fatal("the agent ended again")
			}
			c.audit(s.reason, s.dispatched)
		})
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
	c.audit(protocol.ReasonRequested, true)
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
	retired := c.audit(protocol.ReasonExited, true)
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
// calls too: every number ends, is used once, and nothing is left (FR-15).
func TestAgentKilledAtRandomMoments(t *testing.T) {
	const numbers = 10
	seed := uint64(time.Now().UnixNano())
	t.Logf("seed %d", seed)
	random := rand.New(rand.NewPCG(seed, 1))
	lab := kit.NewLab(t, "--engine-create-timeout", "3s", "--engine-start-timeout", "3s", "--engine-read-timeout", "2s")
	lab.Profile("echo", agenttest.Profile{Args: []string{"serve"}, Grace: "100ms"})
	c := newClient(t, lab)
	lab.Start()
	strikes := 0
	for c.number = 1; c.number <= numbers; c.number++ {
		for life := 0; ; life++ {
			var strike *time.Timer
			if life < 2 {
				strike = time.AfterFunc(time.Duration(random.IntN(350))*time.Millisecond, func() {
					if err := lab.Strike(); err != nil {
						t.Error(err)
					}
				})
			}
			done := c.drive()
			if strike != nil && strike.Stop() {
				// The number ended before the strike.
				strike = nil
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
	if strikes < 3 {
		t.Errorf("only %d strikes", strikes)
	}
	if left := lab.Leftovers(); len(left) != 0 {
		t.Errorf("left on the machine: %v", left)
	}
}

// client is a controller that finishes what it began, whatever was lost: it
// reads before it repeats, and keeps every receipt that it was shown.
type client struct {
	t      *testing.T
	lab    *agenttest.Lab
	gen    *hostclient.Generation
	owner  protocol.ID
	key    *tlog.PublicKey
	number protocol.Number // that is driven now
	leaves map[protocol.Index][]byte
	latest tlog.Checkpoint
}

const purpose = "attempt-1"

func newClient(t *testing.T, lab *agenttest.Lab) *client {
	key, err := tlog.ParsePublicKey(lab.HostKey)
	if err != nil {
		t.Fatal(err)
	}
	owner := protocol.NewID()
	return &client{t: t, lab: lab, gen: lab.Controller(owner), owner: owner, key: key, number: 1, leaves: map[protocol.Index][]byte{}}
}

// drive brings the number to released; false means that the agent is gone.
func (c *client) drive() bool {
	c.t.Helper()
	return c.until(protocol.StateReleased)
}

// until does the steps up to a state, one after the other.
func (c *client) until(goal protocol.State) bool {
	c.t.Helper()
	ctx, cancel := context.WithTimeout(c.t.Context(), 60*time.Second)
	defer cancel()
	for {
		done, err := c.step(ctx, goal)
		if err == nil {
			err = c.collect(ctx)
		}
		if _, refused := errors.AsType[*protocol.Problem](err); refused {
			c.t.Fatalf("refused: %v", err)
		}
		if err != nil {
			select {
			case <-c.lab.Exited():
				return false
			case <-time.After(20 * time.Millisecond): // between tries, not for any outcome
			}
			if ctx.Err() != nil {
				c.t.Fatalf("no progress: %v", err)
			}
			continue
		}
		if done {
			return true
		}
	}
}

// step makes one step towards the goal from what the agent says now.
func (c *client) step(ctx context.Context, goal protocol.State) (done bool, err error) {
	host, err := c.host(ctx)
	if err != nil {
		return false, err
	}
	if host.WitnessRequired {
		return false, c.witness(ctx)
	}
	if host.Frontiers.Released >= c.number {
		return true, nil
	}
	if host.Frontiers.Accepted < c.number {
		return false, c.allocate(ctx, c.number)
	}
	a, err := c.gen.Get(ctx, c.number, "", 0)
	if err != nil {
		return false, err
	}
	switch a.State {
	case protocol.StateRetired:
		for _, r := range a.Receipts {
			if r.Kind == protocol.KindRetired {
				_, err = c.gen.Consume(ctx, c.number, protocol.ConsumeRequest{Purpose: purpose, LeafHash: r.LeafHash})
			}
		}
		return false, err
	case protocol.StateConsumed:
		if err := c.witness(ctx); err != nil {
			return false, err
		}
		_, err = c.gen.Release(ctx, protocol.ReleaseRequest{Frontier: c.number, Except: []protocol.Number{}})
		return false, err
	case protocol.StateStarted:
		if goal == protocol.StateStarted {
			return true, nil
		}
		_, err = c.gen.Retire(ctx, c.number, protocol.RetireRequest{Purpose: purpose}, 30*time.Second)
		return false, err
	case protocol.StateRetiring, protocol.StateExited:
		_, err = c.gen.Get(ctx, c.number, protocol.StateRetired, 10*time.Second)
		return false, err
	}
	_, err = c.gen.Get(ctx, c.number, protocol.StateStarted, 10*time.Second)
	return false, err
}

func (c *client) host(ctx context.Context) (protocol.Host, error) {
	return hostclient.New(c.lab.Socket(), hostclient.Options{Owner: func() protocol.ID { return c.owner }}).Host(ctx)
}

func (c *client) allocate(ctx context.Context, n protocol.Number) error {
	list, err := c.gen.Profiles(ctx)
	if err != nil {
		return err
	}
	answer, err := c.gen.Allocate(ctx, n, protocol.AllocateRequest{Profile: "echo", ProfileDigest: list[0].Digest, Purpose: purpose})
	if err == nil {
		c.keep(answer.Receipt)
	}
	return err
}

// witness presents the last checkpoint and the highest receipt, and verifies
// that the log now extends what was held.
func (c *client) witness(ctx context.Context) error {
	var w protocol.WitnessRequest
	if c.latest.Text != "" {
		w.Checkpoint = &c.latest.Text
	}
	highest := protocol.Index(-1)
	for index := range c.leaves {
		highest = max(highest, index)
	}
	if highest >= 0 {
		w.Highest = &protocol.Seen{Index: highest, LeafHash: tlog.LeafDigest(c.leaves[highest])}
	}
	answer, err := c.gen.Witness(ctx, w)
	if err != nil {
		return err
	}
	now, err := tlog.ParseCheckpoint(answer.Checkpoint, c.key)
	if err != nil {
		c.t.Fatal(err)
	}
	if c.latest.Text != "" {
		hashes, err := tlog.ParseHashes(answer.Consistency)
		if err != nil {
			c.t.Fatal(err)
		}
		if err := tlog.VerifyConsistency(c.latest.Tree, now.Tree, hashes); err != nil {
			c.t.Fatalf("the log does not extend what was held: %v", err)
		}
	}
	c.latest = now
	return nil
}

// keep remembers a receipt that was acknowledged; another one under the same
// index is a broken promise.
func (c *client) keep(leaf []byte) {
	c.t.Helper()
	r, err := protocol.DecodeReceipt(leaf)
	if err != nil {
		c.t.Fatal(err)
	}
	if old, ok := c.leaves[r.Index]; ok && !bytes.Equal(old, leaf) {
		c.t.Fatalf("receipt %d changed:\n%s\n%s", r.Index, old, leaf)
	}
	c.leaves[r.Index] = bytes.Clone(leaf)
}

// collect reads everything that the agent serves.
func (c *client) collect(ctx context.Context) error {
	leaves, err := c.gen.Receipts(ctx, hostclient.ReceiptsQuery{})
	for _, l := range leaves {
		c.keep(l.Bytes)
	}
	return err
}

func (c *client) allocation() protocol.Allocation {
	c.t.Helper()
	a, err := c.gen.Get(c.t.Context(), 1, protocol.StateStarted, 20*time.Second)
	if err != nil {
		c.t.Fatal(err)
	}
	return a
}

func (c *client) started() protocol.StartedBody {
	return one[protocol.StartedBody](c, protocol.KindStarted)
}

// one decodes the only receipt of a kind.
func one[T any](c *client, kind protocol.Kind) T {
	c.t.Helper()
	var found []T
	for _, leaf := range c.leaves {
		r, err := protocol.DecodeReceipt(leaf)
		if err != nil {
			c.t.Fatal(err)
		}
		if r.Kind != kind {
			continue
		}
		b, err := protocol.BodyOf[T](r)
		if err != nil {
			c.t.Fatal(err)
		}
		found = append(found, b)
	}
	if len(found) != 1 {
		c.t.Fatalf("%d receipts %s, want one", len(found), kind)
	}
	return found[0]
}

// audit is the crash matrix's audit of the host after number 1 is released.
func (c *client) audit(reason protocol.Reason, dispatched bool) protocol.RetiredBody {
	c.t.Helper()
	ctx := c.t.Context()
	retired := one[protocol.RetiredBody](c, protocol.KindRetired)
	if retired.Reason != reason || retired.Dispatched != dispatched {
		c.t.Errorf("retired: reason %s, dispatched %t; want %s, %t", retired.Reason, retired.Dispatched, reason, dispatched)
	}
	for _, kind := range []protocol.Kind{protocol.KindStarted, protocol.KindExited} {
		count := 0
		for _, leaf := range c.leaves {
			if r, err := protocol.DecodeReceipt(leaf); err == nil && r.Kind == kind {
				count++
			}
		}
		if want := map[bool]int{true: 1}[dispatched]; count != want {
			c.t.Errorf("%d receipts %s, want %d", count, kind, want)
		}
	}
	// Indices without a gap: everything ever written was served at some time.
	for index := range protocol.Index(len(c.leaves)) {
		if c.leaves[index] == nil {
			c.t.Errorf("receipt %d was never served", index)
		}
	}
	if left := c.lab.Leftovers(); len(left) != 0 {
		c.t.Errorf("left on the machine: %v", left)
	}
	if err := c.witness(ctx); err != nil {
		c.t.Errorf("witness at the end: %v", err)
	}
	// Number 1 is used up for ever, number 2 is next (I5).
	if err := c.allocate(ctx, 1); !hostclient.IsCode(err, protocol.CodeReleased) {
		c.t.Errorf("number 1 again: %v", err)
	}
	if _, err := c.gen.Retire(ctx, 2, protocol.RetireRequest{Purpose: purpose}, 0); err != nil {
		c.t.Errorf("number 2: %v", err)
	}
	if out, err := c.lab.TryCommand("ledger", "check"); err != nil {
		c.t.Errorf("ledger check: %v\n%s", err, out)
	}
	return retired
}
