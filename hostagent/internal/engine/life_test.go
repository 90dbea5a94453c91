//go:build engine

package engine

import (
	"errors"
	"io"
	"os"
	"testing"
	"time"

	"github.com/quittance/quittance/hostagent/internal/channel"
	"github.com/quittance/quittance/protocol"
	"golang.org/x/sys/unix"
)

// I16, I17, I18: created, started, reached over its own namespace, stopped by
// signal, looked at, removed, and nothing is left.
func TestWholeLife(t *testing.T) {
	p := profileOf("echo", "127.0.0.1:8080")
	l := create(t, p)
	if l.created.Task == nil || l.created.Task.State != TaskCreated {
		t.Fatalf("task %+v, want created", l.created.Task)
	}
	if l.created.SpecDigest == "" || l.created.ProfileDigest != p.Digest() || l.created.Number != 7 {
		t.Errorf("identity %+v", l.created.Container)
	}
	listed, err := shared.engine.List(t.Context())
	must(t, err)
	var found bool
	for _, c := range listed {
		found = found || (c.Identity == l.created.Identity && c.SpecDigest == l.created.SpecDigest)
	}
	if !found {
		t.Errorf("list %+v does not hold the container with its spec digest", listed)
	}

	if _, err := os.Lstat(shared.engine.shimSocket(shared.engine.o.Address, l.created.ID)); err != nil {
		t.Errorf("the shim listens elsewhere: %v", err)
	}
	must(t, shared.engine.Start(t.Context(), l.created.Identity))
	must(t, shared.engine.Start(t.Context(), l.created.Identity)) // I12: again changes nothing
	c := l.dial("tcp", "127.0.0.1:8080")
	if _, err := c.Write([]byte("hello")); err != nil {
		t.Fatal(err)
	}
	answer := make([]byte, 5)
	if _, err := io.ReadFull(c, answer); err != nil || string(answer) != "hello" {
		t.Fatalf("echo %q, %v", answer, err)
	}
	if _, err := shared.engine.DeleteTask(t.Context(), l.created.Identity); !errors.Is(err, ErrRunning) || DispositionOf(err) != protocol.Refused {
		t.Errorf("delete of a running task: %v, want refused with ErrRunning", err)
	}
	if _, err := shared.engine.DeleteContainer(t.Context(), l.created.Identity); !errors.Is(err, ErrRunning) {
		t.Errorf("delete of a running container: %v, want ErrRunning", err)
	}
	must(t, shared.engine.Kill(t.Context(), l.created.Identity, unix.SIGTERM, false))
	exit := l.awaitExit()
	if exit.Code != 128+15 {
		t.Errorf("exit code %d after SIGTERM, want 143", exit.Code)
	}
	if oom := l.verdict(); oom.Verdict != protocol.VerdictNotKilled || oom.Scope != nil {
		t.Errorf("verdict %+v, want not_killed", oom)
	}
	if _, err := l.task.Dial(bounded(t, time.Second), "tcp", "127.0.0.1:8080"); !errors.Is(err, channel.ErrExited) {
		t.Errorf("dial after the exit: %v, want ErrExited", err)
	}
	l.retire()
	if removed, err := shared.engine.DeleteTask(t.Context(), l.created.Identity); err != nil || removed != protocol.RemovedAbsent {
		t.Errorf("task again: %q, %v, want absent", removed, err)
	}
	removal, err := shared.engine.DeleteContainer(t.Context(), l.created.Identity)
	if want := (Removal{protocol.RemovedAbsent, protocol.RemovedAbsent}); err != nil || removal != want {
		t.Errorf("container again: %+v, %v, want both absent", removal, err)
	}
	if _, err := shared.engine.Inspect(t.Context(), l.created.ID); !errors.Is(err, ErrNotFound) {
		t.Errorf("inspect after removal: %v, want ErrNotFound", err)
	}
}

// FR-01, FR-03: both levels have the same limit, and a real kernel kill is
// killed with scope container.
func TestOOMKillIsAFact(t *testing.T) {
	l := start(t, profileOf("eat", "200"))
	select {
	case reading := <-l.watch.Readings():
		if reading.Counters.OOMKill == nil || *reading.Counters.OOMKill == 0 {
			t.Errorf("observed %+v, want a kill", reading.Counters)
		}
	case <-time.After(20 * time.Second):
		t.Fatal("no OOM observed; log: ", l.log())
	}
	exit := l.awaitExit()
	if exit.Code != 137 {
		t.Errorf("exit code %d, want 137", exit.Code)
	}
	oom := l.verdict()
	if oom.Verdict != protocol.VerdictKilled || oom.Scope == nil || *oom.Scope != protocol.ScopeContainer {
		t.Errorf("%s, want killed for the container's own limit", protocol.AppendCanonical(nil, oom))
	}
	l.retire()
}

// FR-04: our own SIGKILL is 137 and no OOM.
func TestOwnKillIsNoOOM(t *testing.T) {
	l := start(t, profileOf("sleep"))
	l.awaitLog("sleeping")
	must(t, l.proc.Signal(unix.SIGKILL))
	exit := l.awaitExit()
	receipt := exit.Receipt()
	if exit.Code != 137 || receipt.Signal == nil || *receipt.Signal != 9 {
		t.Errorf("exit %+v, want 137 from signal 9", exit)
	}
	if oom := l.verdict(); oom.Verdict != protocol.VerdictNotKilled {
		t.Errorf("verdict %+v, want not_killed", oom)
	}
	l.retire()
}
