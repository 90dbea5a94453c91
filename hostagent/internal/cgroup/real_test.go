//go:build engine

package cgroup

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/quittance/quittance/hostagent/internal/process"
	"github.com/quittance/quittance/protocol"
	"golang.org/x/sys/unix"
)

// realGroup is a group on this machine's own kernel, removed at the end.
func realGroup(t *testing.T, l Limits) (*Manager, *Group) {
	t.Helper()
	m, err := Open(Options{Root: fmt.Sprintf("/quittance-cgroup-test-%d", os.Getpid())})
	if err != nil {
		t.Fatal(err)
	}
	g, err := m.Create(protocol.NewID(), l)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
		defer cancel()
		_, err := g.Remove(ctx)
		if err = errors.Join(err, m.RemoveRoot()); err != nil {
			t.Error(err)
		}
	})
	return m, g
}

// enter starts a shell that joins the leaf everywhere, then runs the script.
func enter(t *testing.T, g *Group, script string) (*exec.Cmd, *bufio.Reader) {
	t.Helper()
	var join strings.Builder
	for _, h := range g.m.hierarchies {
		if h.limited(g.m.mode) {
			fmt.Fprintf(&join, "echo $$ > %s/cgroup.procs\n", filepath.Join(g.dir(h), leafName))
		}
	}
	cmd := exec.Command("bash", "-ec", join.String()+script)
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = cmd.Process.Kill() // fine where it has ended
		_ = cmd.Wait()
	})
	return cmd, bufio.NewReader(out)
}

func line(t *testing.T, r *bufio.Reader) string {
	t.Helper()
	text, err := r.ReadString('\n')
	if err != nil {
		t.Fatalf("output ended: %v", err)
	}
	return strings.TrimSpace(text)
}

var realLimits = Limits{MemoryBytes: 32 << 20, PIDs: 300, CPUMillis: 1000, KillGroup: true}

// Limits are what the kernel says they are, and can be raised and lowered by
// doing it again.
func TestRealLimits(t *testing.T) {
	m, g := realGroup(t, realLimits)
	if m.Mode() != protocol.CgroupV1 {
		t.Skipf("this machine has cgroup %s; the rows below are for v1", m.Mode())
	}
	for _, l := range []Limits{realLimits, {MemoryBytes: 128 << 20, SwapBytes: 1 << 20, PIDs: 10}, {MemoryBytes: 16 << 20, PIDs: 20}} {
		if _, err := m.Create(g.nonce, l); err != nil {
			t.Fatal(err)
		}
		for _, level := range []string{"", leafName} {
			dir := filepath.Join(g.dir(m.memory), level)
			memory, err := readInt(filepath.Join(dir, "memory.limit_in_bytes"))
			if err != nil || memory != l.MemoryBytes {
				t.Errorf("memory %d, %v, want %d", memory, err, l.MemoryBytes)
			}
			if both, err := readInt(filepath.Join(dir, "memory.memsw.limit_in_bytes")); m.SwapAccounting() && (err != nil || both != l.MemoryBytes+l.SwapBytes) {
				t.Errorf("memory and swap %d, %v", both, err)
			}
		}
	}
}

// FR-18, I16: five thousand children that ignore SIGTERM: populated until all
// are gone, then removed.
func TestRealKillAndRemove(t *testing.T) {
	_, g := realGroup(t, Limits{MemoryBytes: 8 << 30, PIDs: 6000})
	cmd, out := enter(t, g, `trap "" TERM
for i in $(seq 5000); do sleep 600 & done
echo started
wait`)
	if line(t, out) != "started" {
		t.Fatal("children not started")
	}
	if populated, err := g.Populated(); !populated || err != nil {
		t.Fatalf("populated %v, %v", populated, err)
	}
	if inside, err := g.Holds(int64(cmd.Process.Pid)); !inside || err != nil {
		t.Errorf("holds its own process: %v, %v", inside, err)
	}
	if inside, err := g.Holds(int64(os.Getpid())); inside || err != nil {
		t.Errorf("holds the test's process: %v, %v", inside, err)
	}
	if err := g.Kill(); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Minute)
	defer cancel()
	if removed, err := g.Remove(ctx); removed != protocol.RemovedByUs || err != nil {
		t.Errorf("remove: %q, %v", removed, err)
	}
	if populated, err := g.Populated(); populated || err != nil {
		t.Errorf("populated after removal: %v, %v", populated, err)
	}
	if r, err := g.Read(); err != nil || r.Source != protocol.CountersFromNone {
		t.Errorf("reading after removal %+v, %v", r, err)
	}
}

// I19: a process that no signal reaches keeps the group: the removal says so,
// and goes on once the process can die.
func TestRealFrozenProcessIsStuck(t *testing.T) {
	m, g := realGroup(t, realLimits)
	cmd, out := enter(t, g, "echo started\nexec sleep 600")
	if line(t, out) != "started" {
		t.Fatal("not started")
	}
	freezer := ""
	for _, h := range m.hierarchies {
		if h.has("freezer") {
			freezer = filepath.Join(h.mount, m.root, "frozen")
		}
	}
	if freezer == "" {
		t.Skip("this machine has no v1 freezer")
	}
	write := func(name, text string) {
		t.Helper()
		if err := os.WriteFile(filepath.Join(freezer, name), []byte(text), 0); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.Mkdir(freezer, 0o755); err != nil {
		t.Fatal(err)
	}
	defer func() {
		write("freezer.state", "THAWED")
		_ = cmd.Wait() // killed
		if err := unix.Rmdir(freezer); err != nil {
			t.Error(err)
		}
	}()
	write("cgroup.procs", fmt.Sprint(cmd.Process.Pid))
	write("freezer.state", "FROZEN")
	// The kernel has it frozen only once it ran once more.
	for deadline := time.Now().Add(time.Minute); ; {
		state, err := os.ReadFile(filepath.Join(freezer, "freezer.state"))
		if err != nil {
			t.Fatal(err)
		}
		if string(state) == "FROZEN\n" {
			break
		}
		if time.Now().After(deadline) {
			t.Fatalf("the freezer is %s", state)
		}
		<-time.After(time.Millisecond)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	if _, err := g.Remove(ctx); !errors.Is(err, ErrPopulated) {
		t.Errorf("remove: %v, want ErrPopulated", err)
	}
	id, err := process.Identify(int64(cmd.Process.Pid))
	if err != nil {
		t.Fatal(err)
	}
	if seen, err := process.Observe(id); err != nil || seen.State != "D" || seen.WaitChannel == "" {
		t.Errorf("observed %+v, %v, want an unkillable process and where it waits", seen, err)
	}
	write("freezer.state", "THAWED")
	ctx, cancel = context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	if removed, err := g.Remove(ctx); removed != protocol.RemovedByUs || err != nil {
		t.Errorf("remove once it can die: %q, %v", removed, err)
	}
}

// FR-05, FR-31: the kernel kills a child and the parent lives: observed at
// once, counted, and in the verdict whatever the parent's exit says.
func TestRealKillIsObservedLive(t *testing.T) {
	_, g := realGroup(t, realLimits)
	before, err := g.Read()
	if err != nil {
		t.Fatal(err)
	}
	w, err := g.Watch(time.Hour) // so that only the kernel's own notice can tell
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := w.Close(); err != nil {
			t.Error(err)
		}
	}()
	cmd, out := enter(t, g, `( echo 1000 > /proc/$BASHPID/oom_score_adj; x=$(head -c 200M /dev/zero | tr "\\0" x); echo "${#x}" >&2 ) 2>/dev/null || echo child $?
echo alive
read -r _ < <(sleep 600)`)
	if got := line(t, out); got != "child 137" {
		t.Errorf("child: %.80q", got)
	}
	if got := line(t, out); got != "alive" {
		t.Errorf("parent: %.80q", got)
	}
	select {
	case r := <-w.Readings():
		// The shell's pipe is of several processes: the kernel may kill more of them.
		if r.Counters.OOMKill == nil || *r.Counters.OOMKill < 1 {
			t.Errorf("observed %+v, want a kill", r.Counters)
		}
	case <-time.After(time.Minute):
		t.Error("nothing observed")
	}
	if w.LimitEvents() < 1 {
		t.Error("the leaf's own event was not counted")
	}
	if err := cmd.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	if _, err := io.ReadAll(out); err != nil && !errors.Is(err, os.ErrClosed) {
		t.Log(err) // the pipe's end is all that matters
	}
	final, err := g.Read()
	if err != nil {
		t.Fatal(err)
	}
	oom := Verdict(before.Counters, final, Evidence{LimitEvents: w.LimitEvents()})
	if oom.Verdict != protocol.VerdictKilled || oom.Scope == nil || *oom.Scope != protocol.ScopeContainer {
		t.Errorf("%s, want killed for the container's limit", protocol.AppendCanonical(nil, oom))
	}
	if final.Peaks.MemoryBytes == nil || *final.Peaks.MemoryBytes < 30<<20 || final.Peaks.CPUMicros == nil || *final.Peaks.CPUMicros == 0 {
		t.Errorf("peaks %s", protocol.AppendCanonical(nil, final.Peaks))
	}
}

// The removal of the leaf fires its event descriptor; that is no OOM.
func TestRealRemovalIsNoEvent(t *testing.T) {
	_, g := realGroup(t, realLimits)
	w, err := g.Watch(time.Hour)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := g.Remove(t.Context()); err != nil {
		t.Fatal(err)
	}
	if got := w.LimitEvents(); got != 0 {
		t.Errorf("%d events from the removal", got)
	}
	if err := w.Close(); err != nil {
		t.Error(err)
	}
	if got := w.LimitEvents(); got != 0 {
		t.Errorf("%d events after Close", got)
	}
}
