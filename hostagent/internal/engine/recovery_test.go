//go:build engine

package engine

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/quittance/quittance/hostagent/internal/cgroup"
	"github.com/quittance/quittance/hostagent/internal/logsink"
	"github.com/quittance/quittance/integration/engineproxy"
	"github.com/quittance/quittance/integration/privateengine"
	"github.com/quittance/quittance/protocol"
	"golang.org/x/sys/unix"
)

// FR-01, FR-03: two hundred workers are killed by the kernel as soon as they
// start, their counters are read late, and every verdict is killed.
func TestTwoHundredKillsAreTwoHundredFacts(t *testing.T) {
	const readers, each = 8, 25
	for n := range readers {
		t.Run(fmt.Sprintf("reader %d", n+1), func(t *testing.T) {
			t.Parallel()
			for range each {
				p := profileOf("eat", "64")
				p.Resources.MemoryBytes = 24 << 20
				l := start(t, p)
				exit := l.awaitExit()
				// The reader's delay is what is tested; nothing is waited for.
				<-time.After(rand.N(500 * time.Millisecond))
				oom := l.verdict()
				if exit.Code != 137 || oom.Verdict != protocol.VerdictKilled || *oom.Scope != protocol.ScopeContainer {
					t.Fatalf("exit %d, %s", exit.Code, protocol.AppendCanonical(nil, oom))
				}
				l.retire()
			}
		})
	}
}

// FR-08: memory runs out above the allocation: killed, and for the host.
func TestKillForALimitAboveIsTheHosts(t *testing.T) {
	root := filepath.Join("/sys/fs/cgroup/memory", shared.groups.Root())
	limits := []string{"memory.limit_in_bytes", "memory.memsw.limit_in_bytes"}
	for _, name := range limits {
		must(t, os.WriteFile(filepath.Join(root, name), []byte(fmt.Sprint(64<<20)), 0))
	}
	defer func() {
		for i := range limits {
			must(t, os.WriteFile(filepath.Join(root, limits[len(limits)-1-i]), []byte("-1"), 0))
		}
	}()
	p := profileOf("eat", "200")
	p.Resources.MemoryBytes = 512 << 20
	l := start(t, p)
	l.awaitExit()
	oom := l.verdict()
	if oom.Verdict != protocol.VerdictKilled || *oom.Scope != protocol.ScopeHost {
		t.Errorf("%s, want killed for the host", protocol.AppendCanonical(nil, oom))
	}
	l.retire()
}

// FR-10: the shim is stalled around the exit. The pidfd tells within moments,
// and the engine's word is not taken for an exit.
func TestShimStalledAroundExit(t *testing.T) {
	l := start(t, profileOf("sleep"))
	l.awaitLog("sleeping")
	shim := l.shim()
	must(t, shim.Signal(unix.SIGSTOP))
	must(t, l.proc.Signal(unix.SIGKILL))
	must(t, l.proc.Wait(bounded(t, 2*time.Second)))
	task, err := shared.engine.Task(bounded(t, time.Minute), l.created.Identity)
	if err == nil && task.Exit != nil {
		t.Errorf("task %+v: nobody saw an exit yet", task)
	}
	must(t, shim.Signal(unix.SIGCONT))
	if exit := l.awaitExit(); exit.Code != 137 {
		t.Errorf("exit %+v, want the shim's own 137", exit)
	}
	l.retire()
}

// FR-11: the worker ends while the daemon is down. After the restart the exit
// is the shim's own (containerd 1.6), or there is none (2.x takes such a shim
// down unread) and the pidfd stays the only witness; never an invented one. No
// shim is left.
func TestExitWhileDaemonDown(t *testing.T) {
	l := start(t, profileOf("term"))
	l.awaitLog("waiting")
	must(t, shared.private.Kill())
	awaitHealth(t, false)
	// Of another process than the first: catatonit forwards it.
	must(t, l.proc.Signal(unix.SIGTERM))
	must(t, l.proc.Wait(bounded(t, time.Minute)))
	restartDaemon(t)
	exit, err := shared.engine.Wait(bounded(t, time.Minute), l.created.Identity)
	if errors.Is(err, ErrNoTask) {
		l.finish()
		return
	}
	must(t, err)
	if exit.Code != 3 {
		t.Errorf("exit %+v, want the worker's own 3", exit)
	}
	if oom := l.verdict(); oom.Verdict != protocol.VerdictNotKilled {
		t.Errorf("verdict %s, want not_killed", oom.Verdict)
	}
	status, err := logsink.Inspect(shared.logs, l.nonce)
	must(t, err)
	if status.Receipt() != protocol.LogSinkOK {
		t.Errorf("log sink %s, want it to have lived on", status)
	}
	l.retire()
}

// restartDaemon starts the daemon anew on what the killed one left.
func restartDaemon(t *testing.T) {
	t.Helper()
	again, err := privateengine.Start(t.Context(), privateengine.Config{Dir: shared.private.Dir()})
	must(t, err)
	shared.private = again
	awaitHealth(t, true)
}

// I16, I23: daemon and shim are both killed under a running worker. The worker
// is an orphan that no engine knows; our own cgroup still reaches it, no exit
// code is invented, and nothing of it is left.
func TestDaemonAndShimKilled(t *testing.T) {
	l := start(t, profileOf("sleep"))
	l.awaitLog("sleeping")
	shim := l.shim()
	must(t, shared.private.Kill())
	awaitHealth(t, false)
	must(t, shim.Signal(unix.SIGKILL))
	must(t, shim.Wait(bounded(t, time.Minute)))
	if exited, err := l.proc.Exited(); err != nil || exited {
		t.Fatalf("exited %v, %v; nothing has touched the worker yet", exited, err)
	}
	if populated, err := l.group.Populated(); err != nil || !populated {
		t.Errorf("populated %v, %v; the orphan is inside", populated, err)
	}
	restartDaemon(t)
	l.awaitNoTask()
	must(t, l.group.Kill())
	must(t, l.proc.Wait(bounded(t, time.Minute)))
	l.finish()
}

// FR-14, FR-15, I11: the caller of a create gives up at some moment of it. The
// outcome is unknown, whatever landed is found and removed by identity alone,
// and nothing lands afterwards.
func TestCreateGivenUp(t *testing.T) {
	for _, after := range []time.Duration{0, 5 * time.Millisecond, 20 * time.Millisecond, 60 * time.Millisecond} {
		t.Run(after.String(), func(t *testing.T) {
			p := profileOf("sleep")
			l := &life{t: t, nonce: protocol.NewID()}
			t.Cleanup(l.cleanup)
			var err error
			l.group, err = shared.groups.Create(l.nonce, cgroup.LimitsOf(p))
			must(t, err)
			image, err := shared.engine.ResolveImage(t.Context(), p.Image)
			must(t, err)
			sink := logsink.Config{Dir: shared.logs, Nonce: l.nonce, CaptureBytes: 64}
			must(t, logsink.Prepare(sink))
			ctx, cancel := context.WithCancel(t.Context())
			done := make(chan error, 1)
			go func() {
				_, err := shared.engine.Create(ctx, CreateRequest{
					Nonce: l.nonce, Generation: testGeneration, Number: 9, Profile: p, Image: image,
					CgroupPath: l.group.LeafPath(), LogArgument: sink.Argument(),
				})
				done <- err
			}()
			// Until the record is there, or the create is over, and then a moment.
			id := ContainerID(l.nonce)
			deadline := bounded(t, time.Minute)
			for {
				if _, err := shared.engine.Inspect(deadline, id); err == nil {
					break
				} else if !errors.Is(err, ErrNotFound) {
					t.Fatal(err)
				}
			}
			<-time.After(after)
			cancel()
			if err := <-done; err != nil && DispositionOf(err) != protocol.Unknown {
				t.Errorf("create: %v is %s, want unknown", err, DispositionOf(err))
			}
			known := Identity{ID: id, Nonce: l.nonce}
			l.removeWhateverLanded(known)
			if _, err := l.group.Remove(deadline); err != nil {
				t.Error(err)
			}
			l.retired = true
			l.noneLeft()
		})
	}
}

// FR-14, I11: the daemon's own deadline for a create passes, and it says so after
// the task has landed. The outcome is unknown and nothing is undone: whoever
// retires it looks first.
func TestCreateExpiredInTheDaemon(t *testing.T) {
	socket := filepath.Join(t.TempDir(), "proxy.sock")
	proxy, err := engineproxy.Start(socket, shared.private.Address())
	must(t, err)
	t.Cleanup(func() { must(t, proxy.Close()) })
	o := shared.engine.o
	o.Address = socket
	behind, err := Open(t.Context(), o)
	must(t, err)
	t.Cleanup(func() { must(t, behind.Close()) })

	p := profileOf("sleep")
	l := &life{t: t, nonce: protocol.NewID()}
	t.Cleanup(l.cleanup)
	l.group, err = shared.groups.Create(l.nonce, cgroup.LimitsOf(p))
	must(t, err)
	image, err := shared.engine.ResolveImage(t.Context(), p.Image)
	must(t, err)
	sink := logsink.Config{Dir: shared.logs, Nonce: l.nonce, CaptureBytes: 64}
	must(t, logsink.Prepare(sink))
	proxy.Arm(engineproxy.Fault{Method: "Tasks/Create", Way: engineproxy.Expire})
	_, err = behind.Create(t.Context(), CreateRequest{
		Nonce: l.nonce, Generation: testGeneration, Number: 9, Profile: p, Image: image,
		CgroupPath: l.group.LeafPath(), LogArgument: sink.Argument(),
	})
	if err == nil || DispositionOf(err) != protocol.Unknown || !IsUnavailable(err) {
		t.Errorf("create: %v is %s, want unknown for want of time", err, DispositionOf(err))
	}
	ctx := bounded(t, time.Minute)
	c, err := shared.engine.Inspect(ctx, ContainerID(l.nonce))
	if err != nil || c.Task == nil || c.Task.State != TaskCreated {
		t.Errorf("there is %+v, %v; want what landed, untouched", c, err)
	}
	l.removeWhateverLanded(Identity{ID: ContainerID(l.nonce), Nonce: l.nonce})
	if _, err := l.group.Remove(ctx); err != nil {
		t.Error(err)
	}
	l.retired = true
	l.noneLeft()
}

// removeWhateverLanded repeats the steps of a removal until each is done, as
// the agent's worker does.
func (l *life) removeWhateverLanded(c Identity) {
	l.t.Helper()
	ctx := bounded(l.t, 30*time.Second)
	for {
		err := shared.engine.Kill(ctx, c, unix.SIGKILL, true)
		if err == nil {
			_, err = shared.engine.DeleteTask(ctx, c)
		}
		if err == nil {
			_, err = shared.engine.DeleteContainer(ctx, c)
		}
		if err == nil {
			return
		}
		if ctx.Err() != nil {
			l.t.Fatalf("never removed: %v", err)
		}
		<-time.After(10 * time.Millisecond)
	}
}

// A runtime whose child keeps its output does not hold a removal up (I33).
func TestRuntimeLeavesAChild(t *testing.T) {
	e := &Engine{o: Options{Namespace: "quittance-test-child"}}
	state := filepath.Join(runcRoot, e.o.Namespace, "c")
	if err := os.MkdirAll(state, 0o711); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := os.RemoveAll(filepath.Dir(state)); err != nil {
			t.Error(err)
		}
	})
	bin := t.TempDir()
	pidFile := filepath.Join(bin, "pid")
	script := "#!/bin/sh\nsleep 600 &\necho $! > " + pidFile + "\nrmdir " + state + "\n"
	if err := os.WriteFile(filepath.Join(bin, "runc"), []byte(script), 0o700); err != nil {
		t.Fatal(err)
	}
	t.Setenv("PATH", bin+":"+os.Getenv("PATH"))
	began := time.Now()
	if err := e.forgetRuntimeState(t.Context(), "c"); !errors.Is(err, exec.ErrWaitDelay) {
		t.Errorf("%v; want it told that a child was left", err)
	}
	if took := time.Since(began); took > 30*time.Second {
		t.Errorf("it took %v", took)
	}
	if err := e.forgetRuntimeState(t.Context(), "c"); err != nil {
		t.Errorf("once more: %v", err)
	}
	text, err := os.ReadFile(pidFile)
	if err != nil {
		t.Fatal(err)
	}
	pid, err := strconv.Atoi(strings.TrimSpace(string(text)))
	if err == nil {
		err = syscall.Kill(pid, syscall.SIGKILL)
	}
	if err != nil {
		t.Error(err)
	}
}
