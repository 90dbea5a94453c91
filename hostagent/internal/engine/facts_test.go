//go:build engine

package engine

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/quittance/quittance/hostagent/internal/cgroup"
	"github.com/quittance/quittance/hostagent/internal/channel"
	"github.com/quittance/quittance/hostagent/internal/logsink"
	"github.com/quittance/quittance/hostagent/internal/process"
	"github.com/quittance/quittance/profiles"
	"github.com/quittance/quittance/protocol"
	"golang.org/x/sys/unix"
)

// shimOf holds the container's own shim.
func (l *life) shim() *process.Handle {
	l.t.Helper()
	shims, err := shared.private.Shims()
	must(l.t, err)
	for _, shim := range shims {
		if shim.ContainerID != l.created.ID {
			continue
		}
		id, err := process.Identify(int64(shim.PID))
		must(l.t, err)
		h, err := process.Open(id)
		must(l.t, err)
		l.t.Cleanup(func() { must(l.t, h.Close()) })
		return h
	}
	l.t.Fatalf("no shim of %s among %v", l.created.ID, shims)
	return nil
}

// awaitNoTask polls until the engine says explicitly that there is no task.
func (l *life) awaitNoTask() {
	l.t.Helper()
	ctx := bounded(l.t, time.Minute)
	for {
		_, err := shared.engine.Task(ctx, l.created.Identity)
		if errors.Is(err, ErrNoTask) {
			return
		}
		if ctx.Err() != nil {
			l.t.Fatalf("the task never went: %v", err)
		}
		<-time.After(10 * time.Millisecond)
	}
}

// finish removes what is left after the engine lost its task.
func (l *life) finish() {
	l.t.Helper()
	ctx := bounded(l.t, 30*time.Second)
	if removed, err := shared.engine.DeleteTask(ctx, l.created.Identity); err != nil || removed != protocol.RemovedAbsent {
		l.t.Errorf("task: %q, %v, want absent", removed, err)
	}
	if _, err := shared.engine.DeleteContainer(ctx, l.created.Identity); err != nil {
		l.t.Error(err)
	}
	if _, err := l.group.Remove(ctx); err != nil {
		l.t.Error(err)
	}
	l.retired = true
	l.noneLeft()
}

// FR-09, I23: the shim dies while the worker runs. The engine then tells 137
// to whoever believes it; here nothing gives a code.
func TestShimKilledWhileRunning(t *testing.T) {
	l := start(t, profileOf("sleep"))
	l.awaitLog("sleeping")
	waited := make(chan error, 1)
	go func() {
		_, err := shared.engine.Wait(t.Context(), l.created.Identity)
		waited <- err
	}()
	must(t, l.shim().Signal(unix.SIGKILL))
	must(t, l.proc.Wait(bounded(t, time.Minute))) // the engine's cleanup kills the orphan
	if err := <-waited; err == nil {
		t.Error("Wait returned a status that no shim saw")
	}
	l.awaitNoTask()
	c, err := shared.engine.Inspect(t.Context(), l.created.ID)
	must(t, err)
	if c.Task != nil {
		t.Errorf("task %+v after its shim died", c.Task)
	}
	final, err := l.group.Read()
	must(t, err)
	if final.LeafGone {
		// The engine's cleanup took the leaf along: the verdict must be unknown.
		if oom := l.verdict(); oom.Verdict != protocol.VerdictUnknown {
			t.Errorf("verdict %s without a leaf, want unknown", oom.Verdict)
		}
	}
	l.finish()
}

// FR-09: exit 0 is read while the shim lives, and what the engine says after
// the shim was killed is never taken for it.
func TestExitZeroThenShimKilled(t *testing.T) {
	l := start(t, profileOf("exit", "0"))
	exit := l.awaitExit()
	if exit.Code != 0 || exit.At == 0 {
		t.Fatalf("exit %+v, want 0 with its time", exit)
	}
	task, err := shared.engine.Task(t.Context(), l.created.Identity)
	must(t, err)
	if task.State != TaskStopped || task.Exit == nil || *task.Exit != exit {
		t.Errorf("task %+v, want stopped with the same exit", task)
	}
	must(t, l.shim().Signal(unix.SIGKILL))
	l.awaitNoTask()
	if _, err := shared.engine.Wait(bounded(t, time.Minute), l.created.Identity); !errors.Is(err, ErrNoTask) {
		t.Errorf("Wait after the shim died: %v, want ErrNoTask", err)
	}
	l.finish()
}

// FR-05: one child is killed by the kernel and the rest goes on serving.
func TestChildKilledParentServes(t *testing.T) {
	l := start(t, profileOf("child-eats", "200"))
	select {
	case r := <-l.watch.Readings():
		if r.Counters.OOMKill == nil || *r.Counters.OOMKill != 1 {
			t.Errorf("observed %+v, want one kill", r.Counters)
		}
	case <-time.After(20 * time.Second):
		t.Fatal("no OOM observed; log: ", l.log())
	}
	l.awaitLog("child: signal: killed")
	if exited, err := l.proc.Exited(); err != nil || exited {
		t.Fatalf("exited %v, %v; the parent must live", exited, err)
	}
	l.dial("tcp", "127.0.0.1:8080")
	must(t, l.proc.Signal(unix.SIGKILL))
	l.awaitExit()
	if oom := l.verdict(); oom.Verdict != protocol.VerdictKilled {
		t.Errorf("verdict %s, want killed: the child was", oom.Verdict)
	}
	l.retire()
}

// FR-18: hundreds of children that ignore SIGTERM end with the group.
func TestManyChildrenAreRemoved(t *testing.T) {
	p := profileOf("fork", "40")
	p.Resources.MemoryBytes = 512 << 20
	l := start(t, p)
	l.awaitLog("forked")
	must(t, l.group.Kill())
	l.awaitExit()
	l.retire()
}

// FR-16: created and never started leaves nothing either.
func TestCreatedNeverStarted(t *testing.T) {
	l := create(t, profileOf("sleep"))
	must(t, shared.engine.Kill(t.Context(), l.created.Identity, unix.SIGKILL, true))
	must(t, l.proc.Wait(bounded(t, time.Minute)))
	l.awaitExit()
	l.retire()
}

// I5, FR-14: a second create of the same nonce makes nothing.
func TestCreateTwiceIsRefused(t *testing.T) {
	p := profileOf("sleep")
	l := create(t, p)
	image, err := shared.engine.ResolveImage(t.Context(), p.Image)
	must(t, err)
	_, err = shared.engine.Create(t.Context(), CreateRequest{
		Nonce: l.nonce, Generation: testGeneration, Number: 8, Profile: p, Image: image, CgroupPath: l.group.LeafPath(),
	})
	if !errors.Is(err, ErrExists) || DispositionOf(err) != protocol.Refused {
		t.Errorf("second create: %v, want refused with ErrExists", err)
	}
	task, err := shared.engine.Task(t.Context(), l.created.Identity)
	must(t, err)
	if task.PID != l.created.PID || task.State != TaskCreated {
		t.Errorf("task %+v, want the first one untouched", task)
	}
	must(t, shared.engine.Kill(t.Context(), l.created.Identity, unix.SIGKILL, true))
	l.awaitExit()
	l.retire()
}

// A create that the runtime refuses is undone before it returns, whatever the
// reason.
func TestRefusedCreateLeavesNothing(t *testing.T) {
	for name, test := range map[string]struct {
		change func(*profiles.Profile)
		want   string
	}{
		"no such program":    {func(p *profiles.Profile) { p.Args, p.Init = []string{"/absent"}, false }, "/absent"},
		"memory for nothing": {func(p *profiles.Profile) { p.Resources.MemoryBytes = 512 << 10 }, ""},
		"mount source gone": {func(p *profiles.Profile) {
			p.Filesystem.Mounts = []profiles.Mount{{Source: "/absent-source", Target: "/x"}}
		}, "/absent-source"},
	} {
		t.Run(name, func(t *testing.T) {
			p := profileOf("sleep")
			test.change(p)
			l := &life{t: t, nonce: protocol.NewID()}
			t.Cleanup(l.cleanup)
			var err error
			l.group, err = shared.groups.Create(l.nonce, cgroup.LimitsOf(p))
			must(t, err)
			image, err := shared.engine.ResolveImage(t.Context(), p.Image)
			must(t, err)
			sink := logsink.Config{Dir: shared.logs, Nonce: l.nonce, CaptureBytes: 64}
			must(t, logsink.Prepare(sink))
			_, err = shared.engine.Create(t.Context(), CreateRequest{
				Nonce: l.nonce, Generation: testGeneration, Number: 9, Profile: p, Image: image,
				CgroupPath: l.group.LeafPath(), SwapAccounting: shared.groups.SwapAccounting(), LogArgument: sink.Argument(),
			})
			if DispositionOf(err) != protocol.Refused || !strings.Contains(err.Error(), test.want) {
				t.Errorf("create: %v is %s, want refused with %q", err, DispositionOf(err), test.want)
			}
			_, err = l.group.Remove(bounded(t, time.Minute))
			must(t, err)
			l.retired = true
			l.noneLeft()
		})
	}
}

// I17: whoever means another container gets none touched.
func TestExactIdentity(t *testing.T) {
	l := start(t, profileOf("sleep"))
	l.awaitLog("sleeping")
	for name, other := range map[string]Identity{
		"nonce":   {ID: l.created.ID, Nonce: protocol.NewID(), Created: l.created.Created},
		"created": {ID: l.created.ID, Nonce: l.nonce, Created: l.created.Created + 1},
	} {
		if err := shared.engine.Kill(t.Context(), other, unix.SIGKILL, true); !errors.Is(err, ErrOther) {
			t.Errorf("%s: kill: %v, want ErrOther", name, err)
		}
		if _, err := shared.engine.DeleteTask(t.Context(), other); !errors.Is(err, ErrOther) {
			t.Errorf("%s: delete task: %v, want ErrOther", name, err)
		}
		if _, err := shared.engine.DeleteContainer(t.Context(), other); !errors.Is(err, ErrOther) {
			t.Errorf("%s: delete container: %v, want ErrOther", name, err)
		}
	}
	if exited, err := l.proc.Exited(); err != nil || exited {
		t.Fatalf("exited %v, %v; nothing may have touched it", exited, err)
	}
	must(t, l.proc.Signal(unix.SIGKILL))
	l.awaitExit()
	l.retire()
}

// I4: a Unix address is resolved inside the container, and no symbolic link
// leads anywhere.
func TestUnixChannel(t *testing.T) {
	outside := filepath.Join(t.TempDir(), "host.sock")
	l := start(t, profileOf("links", outside))
	c := l.dial("unix", "/tmp/own.sock")
	if _, err := c.Write([]byte("x")); err != nil {
		t.Fatal(err)
	}
	if n, err := c.Read(make([]byte, 1)); n != 1 || err != nil {
		t.Fatalf("read %d, %v", n, err)
	}
	for path, want := range map[string]error{
		"/tmp/link.sock":        channel.ErrAddress, // a link out of the root
		"/tmp/dir/own.sock":     channel.ErrAddress, // a link inside
		"/tmp/file":             channel.ErrAddress, // no socket
		"relative":              channel.ErrAddress,
		"/tmp/absent":           channel.ErrNotConnectable,
		"/../../../../tmp/none": channel.ErrNotConnectable, // .. stays at the root
		"/proc/self/root/tmp":   channel.ErrAddress,        // a magic link
		"/tmp/own.sock/further": channel.ErrNotConnectable, // not a directory
	} {
		_, err := l.task.Dial(bounded(t, time.Minute), "unix", path)
		if !errors.Is(err, want) {
			t.Errorf("dial %s: %v, want %v", path, err, want)
		}
	}
	must(t, l.proc.Signal(unix.SIGKILL))
	l.awaitExit()
	l.retire()
}

// I33: head and tail are bounded, the rest is counted; I4: not interpreted.
func TestLogIsBounded(t *testing.T) {
	l := start(t, profileOf("print", "1000000"))
	l.awaitLog("END")
	log, err := logsink.Read(shared.logs, l.nonce, 7)
	must(t, err)
	if len(log.Head) != 2048 || len(log.Tail) != 2048 || log.TotalBytes != 1000003 || log.DroppedBytes != 1000003-4096 {
		t.Errorf("head %d tail %d total %d dropped %d", len(log.Head), len(log.Tail), log.TotalBytes, log.DroppedBytes)
	}
	if !strings.HasPrefix(string(log.Head), "0123456789abcde\n") || !strings.HasSuffix(string(log.Tail), "abcde\nEND") {
		t.Errorf("head %q … tail %q", log.Head[:16], log.Tail[len(log.Tail)-16:])
	}
	status, err := logsink.Inspect(shared.logs, l.nonce)
	must(t, err)
	if status != logsink.StatusRunning {
		t.Errorf("status %s while the worker lives, want running", status)
	}
	must(t, l.proc.Signal(unix.SIGKILL))
	l.awaitExit()
	l.retire()
}

// The sink has no privileges, and its death is told as lost.
func TestLogSinkLost(t *testing.T) {
	l := start(t, profileOf("sleep"))
	l.awaitLog("sleeping")
	sink := sinkOf(t, l.nonce)
	status, err := os.ReadFile(filepath.Join("/proc", sink, "status"))
	must(t, err)
	for _, want := range []string{"Uid:\t65534\t65534\t65534\t65534", "Gid:\t65534\t65534\t65534\t65534", "CapEff:\t0000000000000000", "CapPrm:\t0000000000000000"} {
		if !strings.Contains(string(status), want) {
			t.Errorf("sink's status lacks %q", want)
		}
	}
	pid, err := protocol.ParseNumber(sink)
	must(t, err)
	id, err := process.Identify(int64(pid))
	must(t, err)
	h, err := process.Open(id)
	must(t, err)
	must(t, h.Signal(unix.SIGKILL))
	must(t, h.Wait(bounded(t, time.Minute)))
	must(t, h.Close())
	got, err := logsink.AwaitEnd(bounded(t, time.Minute), shared.logs, l.nonce)
	if err != nil || got != logsink.StatusLost || got.Receipt() != protocol.LogSinkLost {
		t.Errorf("status %s, %v, want lost", got, err)
	}
	must(t, l.proc.Signal(unix.SIGKILL))
	l.awaitExit()
	ctx := bounded(t, time.Minute)
	_, err = shared.engine.DeleteTask(ctx, l.created.Identity)
	must(t, err)
	_, err = shared.engine.DeleteContainer(ctx, l.created.Identity)
	must(t, err)
	_, err = l.group.Remove(ctx)
	must(t, err)
	l.retired = true
	l.noneLeft()
}

// sinkOf finds the process number of a container's log sink.
func sinkOf(t *testing.T, nonce protocol.ID) string {
	t.Helper()
	files, err := filepath.Glob("/proc/[0-9]*/cmdline")
	must(t, err)
	for _, file := range files {
		line, err := os.ReadFile(file)
		if err == nil && strings.Contains(string(line), "\x00log-sink\x00") && strings.Contains(string(line), string(nonce)) {
			return filepath.Base(filepath.Dir(file))
		}
	}
	t.Fatal("no log sink process")
	return ""
}

// What every worker gets, whatever its profile says.
func TestWorkerSeesLittle(t *testing.T) {
	p := profileOf("show")
	p.Logs.CaptureBytes = protocol.MaxLogCapture
	l := start(t, p)
	l.awaitLog("== done")
	log := l.log()
	for _, want := range []string{
		"Uid:\t65532\t65532\t65532\t65532", "CapEff:\t0000000000000000", "CapBnd:\t0000000000000000", "CapPrm:\t0000000000000000",
		"NoNewPrivs:\t1", "Seccomp:\t2", "root write open /x: read-only file system", "sys write open /proc/sys/kernel/core_pattern:",
		"== /proc/self/oom_score_adj\n500\n", " /dev/init ro,nosuid,nodev",
	} {
		if !strings.Contains(log, want) {
			t.Errorf("the worker's view lacks %q", want)
		}
	}
	_, env, _ := strings.Cut(log, "== env\n")
	env, _, _ = strings.Cut(env, "\n==")
	if env != "PATH="+defaultPath+"\nHOME=/" { // HOME is runc's own addition
		t.Errorf("environment %q, want PATH and HOME only", env)
	}
	_, devices, _ := strings.Cut(log, "== /proc/net/dev\n")
	devices, _, _ = strings.Cut(devices, "==")
	if strings.Count(devices, ":") != 1 || !strings.Contains(devices, "lo:") {
		t.Errorf("network devices %q, want loopback only", devices)
	}
	for _, line := range strings.Split(log, "\n") {
		fields := strings.Fields(line)
		if len(fields) > 5 && fields[4] == "/tmp" && !(strings.Contains(line, "nosuid") && strings.Contains(line, "nodev") && strings.Contains(line, "noexec")) {
			t.Errorf("tmpfs %q must be nosuid, nodev and noexec", line)
		}
	}
	must(t, l.proc.Signal(unix.SIGKILL))
	l.awaitExit()
	l.retire()
}

// Every refusal of an image says what mends it.
func TestImageRemedies(t *testing.T) {
	absent := "quittance.local/none@sha256:" + strings.Repeat("0", 64)
	for reference, want := range map[string]string{
		absent:                 "hostagent image import",
		"quittance.local/none": "name@sha256",
	} {
		_, err := shared.engine.ResolveImage(t.Context(), reference)
		if !errors.Is(err, ErrImage) || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, want ErrImage with %q", reference, err, want)
		}
	}
}

// A daemon that hangs or is away makes the engine unavailable, workers live
// on, and the hints say when to look again.
func TestDaemonAway(t *testing.T) {
	l := start(t, profileOf("echo", "127.0.0.1:8080"))
	l.awaitLog("listening")
	hints := shared.engine.Events(t.Context())
	awaitHint(t, hints, HintResync)
	must(t, shared.private.Pause())
	ctx, cancel := context.WithTimeout(t.Context(), 300*time.Millisecond)
	_, err := shared.engine.Inspect(ctx, l.created.ID)
	if !IsUnavailable(err) {
		t.Errorf("inspect of a hung daemon: %v, want unavailable", err)
	}
	err = shared.engine.Kill(ctx, l.created.Identity, unix.SIGKILL, true)
	if DispositionOf(err) != protocol.Unknown {
		t.Errorf("kill of a hung daemon: %v is %s, want unknown", err, DispositionOf(err))
	}
	cancel()
	awaitHealth(t, false)
	l.dial("tcp", "127.0.0.1:8080") // needs no engine
	must(t, shared.private.Resume())
	awaitHealth(t, true)
	awaitHint(t, hints, HintUnavailable)
	must(t, l.proc.Signal(unix.SIGKILL))
	l.awaitExit()
	l.retire()
}

// Hints name the container; they are reasons to look, whatever the order.
func TestHintsOfAKill(t *testing.T) {
	hints := shared.engine.Events(t.Context())
	awaitHint(t, hints, HintResync)
	l := start(t, profileOf("eat", "200"))
	l.awaitExit()
	want := map[HintKind]bool{HintOOM: true, HintExit: true}
	timeout := time.After(20 * time.Second)
	for len(want) > 0 {
		select {
		case h := <-hints:
			if h.ContainerID == l.created.ID {
				delete(want, h.Kind)
			}
		case <-timeout:
			t.Fatalf("never heard: %v", want)
		}
	}
	l.retire()
}

func awaitHint(t *testing.T, hints <-chan Hint, kind HintKind) {
	t.Helper()
	timeout := time.After(20 * time.Second)
	for {
		select {
		case h := <-hints:
			if h.Kind == kind {
				return
			}
		case <-timeout:
			t.Fatalf("no hint %s", kind)
		}
	}
}

func awaitHealth(t *testing.T, available bool) {
	t.Helper()
	ctx := bounded(t, time.Minute)
	for shared.engine.Health().Available != available {
		select {
		case <-ctx.Done():
			t.Fatalf("health never became %v", available)
		case <-time.After(10 * time.Millisecond):
		}
	}
}
