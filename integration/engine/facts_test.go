//go:build engine

package engine_test

import (
	"bufio"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/quittance/quittance/integration/agenttest"
	"github.com/quittance/quittance/protocol"
	"github.com/quittance/quittance/protocol/hostclient"
)

func newReader(r io.Reader) *bufio.Reader { return bufio.NewReader(r) }

func hostOf(t *testing.T, lab *agenttest.Lab) protocol.Host {
	t.Helper()
	h, err := lab.Operator().Host(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	return h
}

func profileDigest(t *testing.T, lab *agenttest.Lab, name string) protocol.Digest {
	t.Helper()
	list, err := lab.Operator().In(lab.Generation).Profiles(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	for _, p := range list {
		if p.Name == name && p.Available {
			return p.Digest
		}
	}
	t.Fatalf("profile %s is not available: %+v", name, list)
	return ""
}

// Exits and OOM facts of real containers, through the whole agent.
func TestExitFacts(t *testing.T) {
	lab := kit.NewLab(t)
	lab.Profile("exit-7", agenttest.Profile{Args: []string{"exit", "7"}})
	lab.Profile("eat", agenttest.Profile{Args: []string{"eat", "128"}})
	lab.Profile("stubborn", agenttest.Profile{Args: []string{"stubborn"}, Grace: "200ms", NoInit: true})
	lab.Profile("child-group", agenttest.Profile{Args: []string{"parent", "128"}})
	lab.Profile("child-observe", agenttest.Profile{Args: []string{"parent", "128"}, Lifecycle: "oom = \"observe\""})
	lab.Profile("short-lived", agenttest.Profile{Args: []string{"serve"}, Lifecycle: "max_lifetime = \"1s\""})
	lab.Profile("missing", agenttest.Profile{Args: []string{"serve"}, Lifecycle: "lease = \"1s\""})
	lab.Start()
	c := newCaller(t, lab)
	c.witness()

	// end allocates and waits for the end, without asking for it.
	n := protocol.Number(0)
	end := func(profile string) protocol.RetiredBody {
		t.Helper()
		n++
		c.allocate(n, profile)
		c.await(n, protocol.StateRetired)
		retired := c.retire(n)
		c.consume(n)
		return retired
	}

	t.Run("an exit code is kept", func(t *testing.T) {
		r := end("exit-7")
		if r.Reason != protocol.ReasonExited || r.RequestedBy != nil || *r.Exit.Code != 7 || r.OOM.Verdict != protocol.VerdictNotKilled {
			t.Errorf("%+v exit %+v oom %+v", r, r.Exit, r.OOM)
		}
	})
	t.Run("a real kernel kill, scope container", func(t *testing.T) { // FR-01, FR-03, I22, I24
		r := end("eat")
		if r.Reason != protocol.ReasonOOM || r.OOM.Verdict != protocol.VerdictKilled || *r.OOM.Scope != protocol.ScopeContainer || *r.OOM.Counters.OOMKill < 1 {
			t.Errorf("reason %s, oom %+v", r.Reason, r.OOM)
		}
		// The kernel charges in batches: a peak may pass the limit by some pages.
		if *r.Peaks.MemoryBytes < 32<<20 || *r.Peaks.MemoryBytes > 65<<20 {
			t.Errorf("peak %d at a limit of 64 MiB", *r.Peaks.MemoryBytes)
		}
	})
	t.Run("our own SIGKILL is no OOM", func(t *testing.T) { // FR-04
		n++
		c.allocate(n, "stubborn")
		c.await(n, protocol.StateStarted)
		lab.Eventually("the worker ignores SIGTERM", func() (bool, error) {
			log, err := c.gen.Log(t.Context(), n)
			return strings.Contains(string(log.Head), "serving"), err
		})
		r := c.retire(n)
		c.consume(n)
		if r.Reason != protocol.ReasonRequested || *r.Exit.Code != 137 || *r.Exit.Signal != 9 || r.OOM.Verdict != protocol.VerdictNotKilled {
			t.Errorf("reason %s, exit %+v, oom %+v", r.Reason, r.Exit, r.OOM)
		}
		if r.Durations.StopMillis < 200 {
			t.Errorf("stopped within %d ms at a grace of 200 ms", r.Durations.StopMillis)
		}
	})
	t.Run("kill-group ends everything when a child is killed", func(t *testing.T) { // FR-06
		r := end("child-group")
		if r.Reason != protocol.ReasonOOM || r.OOM.Verdict != protocol.VerdictKilled {
			t.Errorf("reason %s, oom %+v", r.Reason, r.OOM)
		}
	})
	t.Run("observe leaves the survivors", func(t *testing.T) { // FR-05
		n++
		c.allocate(n, "child-observe")
		lab.Eventually("oom_observed", func() (bool, error) {
			a, err := c.gen.Get(t.Context(), n, "", 0)
			for _, r := range a.Receipts {
				if r.Kind == protocol.KindOOMObserved {
					return a.State == protocol.StateStarted && a.OOM.Verdict == protocol.VerdictKilled, err
				}
			}
			return false, err
		})
		conn, err := c.gen.Channel(t.Context(), n, "attempt-1")
		if err != nil {
			t.Fatalf("the survivor does not serve: %v", err)
		}
		if err := conn.Close(); err != nil {
			t.Error(err)
		}
		r := c.retire(n)
		c.consume(n)
		if r.Reason != protocol.ReasonRequested || r.OOM.Verdict != protocol.VerdictKilled || *r.Exit.Code != 3 {
			t.Errorf("reason %s, oom %+v, exit %+v", r.Reason, r.OOM, r.Exit)
		}
	})
	t.Run("the lifetime ends", func(t *testing.T) {
		if r := end("short-lived"); r.Reason != protocol.ReasonMaxLifetime {
			t.Errorf("reason %s", r.Reason)
		}
	})
	t.Run("the lease ends", func(t *testing.T) { // FR-34
		n++
		c.allocate(n, "missing")
		// Another client is not the owner: reading keeps no lease alive.
		other := &caller{t: t, lab: lab, gen: lab.Operator().In(lab.Generation)}
		other.await(n, protocol.StateRetired)
		if r := c.retire(n); r.Reason != protocol.ReasonLeaseExpired {
			t.Errorf("reason %s", r.Reason)
		}
		c.consume(n)
	})
	if left := lab.Leftovers(); len(left) != 0 {
		t.Errorf("left on the machine: %v", left)
	}
	c.leaves()
}

// Channels: the limit, over a restart of the agent too, the purpose, and none
// after the retirement (I33).
func TestChannels(t *testing.T) {
	lab := kit.NewLab(t)
	lab.Profile("echo", agenttest.Profile{Args: []string{"serve"}})
	lab.Start()
	c := newCaller(t, lab)
	c.witness()
	c.allocate(1, "echo")
	c.await(1, protocol.StateStarted)
	if _, err := c.gen.Channel(t.Context(), 1, "another"); !hostclient.IsCode(err, protocol.CodeNumberConflict) {
		t.Errorf("another purpose: %v", err)
	}
	got := 0
	take := func(until int) {
		t.Helper()
		lab.Eventually(fmt.Sprint(until, " channels"), func() (bool, error) {
			conn, err := c.gen.Channel(t.Context(), 1, "attempt-1")
			if hostclient.IsCode(err, protocol.CodeNotConnectable) {
				return false, nil // a refused dial is given back
			}
			if err != nil {
				return false, fmt.Errorf("channel %d: %w", got+1, err)
			}
			got++
			return got == until, conn.Close()
		})
	}
	take(2)
	lab.Kill()
	lab.Start() // what was handed out stays counted
	take(4)     // max_channels
	if _, err := c.gen.Channel(t.Context(), 1, "attempt-1"); !hostclient.IsCode(err, protocol.CodeChannelLimit) {
		t.Errorf("the fifth: %v", err)
	}
	c.retire(1)
	if _, err := c.gen.Channel(t.Context(), 1, "attempt-1"); !hostclient.IsCode(err, protocol.CodeExited) {
		t.Errorf("after the retirement: %v", err)
	}
}

// An engine that is down: new work is refused before a number is consumed, what
// runs goes on, and everything resumes by itself.
func TestEngineDownAndBack(t *testing.T) {
	lab := kit.NewLab(t)
	lab.Profile("echo", agenttest.Profile{Args: []string{"serve"}})
	lab.Start()
	c := newCaller(t, lab)
	c.witness()
	request := c.request("echo")
	c.allocate(1, "echo")
	c.await(1, protocol.StateStarted)
	if err := lab.Engine.Stop(); err != nil {
		t.Fatal(err)
	}
	lab.Eventually("the agent notices", func() (bool, error) { return !hostOf(t, lab).Engine.Available, nil })
	if _, err := c.gen.Allocate(t.Context(), 2, request); !hostclient.IsCode(err, protocol.CodeEngineUnavailable) {
		t.Errorf("allocate while the engine is down: %v", err)
	}
	answer, err := c.gen.Retire(t.Context(), 1, protocol.RetireRequest{Purpose: "attempt-1"}, 0)
	if err != nil || string(answer.Receipt) != "null" || !agenttest.Reached(answer.Allocation.State, protocol.StateRetiring) || agenttest.Reached(answer.Allocation.State, protocol.StateRetired) {
		t.Errorf("retire while the engine is down: %+v, %v", answer, err)
	}
	// The exit is seen all the same: pidfd and cgroup are witnesses (FR-10).
	if a := c.await(1, protocol.StateExited); a.Exit == nil {
		t.Errorf("no exit: %+v", a)
	}
	if err := lab.RestartEngine(); err != nil {
		t.Fatal(err)
	}
	if a := c.await(1, protocol.StateRetired); a.State != protocol.StateRetired {
		t.Errorf("not retired after the engine came back: %+v", a)
	}
	lab.Eventually("the profile is available again", func() (bool, error) {
		_, err := c.gen.Allocate(t.Context(), 2, request)
		if hostclient.IsCode(err, protocol.CodeEngineUnavailable) || hostclient.IsCode(err, protocol.CodeProfileUnavailable) {
			return false, nil
		}
		return err == nil, err
	})
	c.await(2, protocol.StateStarted)
	c.retire(2)
}

// A second agent is refused, on the socket's lock or the ledger's, and the first
// is not disturbed (FR-24). A stop leaves the containers running.
func TestSecondAgentAndStop(t *testing.T) {
	lab := kit.NewLab(t)
	lab.Profile("echo", agenttest.Profile{Args: []string{"serve"}})
	lab.Start()
	c := newCaller(t, lab)
	c.witness()
	c.allocate(1, "echo")
	before := c.await(1, protocol.StateStarted)
	if out, err := lab.TryCommand("run"); err == nil || !strings.Contains(err.Error(), "stop that agent first") {
		t.Errorf("a second agent: %v\n%s", err, out)
	}
	if out, err := lab.TryCommand("init"); err == nil || !strings.Contains(err.Error(), "stop that agent first") {
		t.Errorf("an init beside a running agent: %v\n%s", err, out)
	}
	// A backup of the running agent's ledger is a ledger.
	if out := lab.Command("ledger", "backup", filepath.Join(t.TempDir(), "backup")); !strings.Contains(out, string(lab.Generation)) {
		t.Errorf("ledger backup: %s", out)
	}
	lab.Stop()
	if _, err := os.Stat(lab.Socket()); !os.IsNotExist(err) {
		t.Errorf("the socket is still there: %v", err)
	}
	if out, err := lab.TryCommand("init"); err == nil || !strings.Contains(err.Error(), "a ledger exists") {
		t.Errorf("a second init: %v\n%s", err, out)
	}
	lab.Start()
	if after := c.await(1, protocol.StateStarted); *after.Container != *before.Container || after.State != protocol.StateStarted {
		t.Errorf("not adopted: %+v", after)
	}
	// After each start the owner presents what it holds first (I9).
	if _, err := c.gen.Allocate(t.Context(), 2, c.request("echo")); !hostclient.IsCode(err, protocol.CodeWitnessRequired) {
		t.Errorf("without a witness: %v", err)
	}
	c.retire(1)
}

// The configuration is refused as a whole, and a damaged ledger is left alone.
func TestRefusesToStart(t *testing.T) {
	lab := kit.NewLab(t)
	if _, err := lab.TryCommand("config", "check", "--max-slots", "0", "--log-format", "loud"); err == nil ||
		!strings.Contains(err.Error(), "max_slots") || !strings.Contains(err.Error(), "log_format") {
		t.Errorf("config check: %v", err)
	}
	segments, err := filepath.Glob(filepath.Join(lab.StateDir(), "ledger", "*"))
	if err != nil || len(segments) == 0 {
		t.Fatalf("segments %v, %v", segments, err)
	}
	lab.Start()
	lab.Stop()
	data, err := os.ReadFile(segments[0])
	if err != nil {
		t.Fatal(err)
	}
	at := strings.Index(string(data), "genesis")
	data[at] ^= 1
	if err := os.WriteFile(segments[0], data, 0o600); err != nil {
		t.Fatal(err)
	}
	out, err := lab.TryCommand("run") // FR-21
	if err == nil || !strings.Contains(err.Error(), "ledger damaged") || !strings.Contains(err.Error(), "exit status 78") {
		t.Errorf("run on a damaged ledger: %v\n%s", err, out)
	}
	if _, err := lab.TryCommand("ledger", "check"); err == nil || !strings.Contains(err.Error(), "at byte") {
		t.Errorf("ledger check: %v", err)
	}
}
