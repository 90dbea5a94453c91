package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/quittance/quittance/protocol"
)

// life is one whole allocation in the delegated unit of cgroup v2.
func life(ctx context.Context, _ *task) (string, error) {
	host, _, err := connect(ctx)
	if err != nil {
		return "", err
	}
	if host.CgroupMode != protocol.CgroupV2 {
		return "", fmt.Errorf("cgroup mode %s", host.CgroupMode)
	}
	w, err := allocate(ctx, "steady")
	if err != nil {
		return "", err
	}
	if wanted := "/system.slice/" + workersUnitOf + "/"; !strings.HasPrefix(w.body.Cgroup.Path, wanted) {
		return "", fmt.Errorf("its cgroup is %s, expected below %s", w.body.Cgroup.Path, wanted)
	}
	if err := w.limits(); err != nil {
		return "", err
	}
	c, err := w.open(ctx)
	if err != nil {
		return "", err
	}
	if err := errors.Join(c.echo("one life"), c.conn.Close()); err != nil {
		return "", err
	}
	retired, err := w.end(ctx)
	if err != nil {
		return "", err
	}
	if retired.Exit == nil || retired.Exit.Source != protocol.ExitFromEngine || retired.Exit.Code == nil || *retired.Exit.Code != 3 {
		return "", fmt.Errorf("exit %+v, expected code 3 from the engine", retired.Exit)
	}
	if retired.OOM.Verdict != protocol.VerdictNotKilled || retired.OOM.Source != protocol.CountersFromV2 {
		return "", fmt.Errorf("OOM verdict %+v", retired.OOM)
	}
	if retired.Peaks.MemoryBytes == nil || *retired.Peaks.MemoryBytes == 0 {
		return "", errors.New("no memory peak")
	}
	return fmt.Sprintf("create %d ms, start %d ms, stop %d ms, remove %d ms", w.body.Durations.CreateMillis, w.body.Durations.StartMillis,
		retired.Durations.StopMillis, retired.Durations.RemoveMillis), leftovers(ctx)
}

// limits checks the kernel's own limits of a 64 MiB profile on both levels.
func (w *worker) limits() error {
	var problems []error
	for name, wanted := range map[string]string{
		"memory.max": "67108864", "memory.swap.max": "0", "memory.oom.group": "1",
		"c/memory.max": "67108864", "c/memory.oom.group": "1", "cgroup.procs": "",
	} {
		got, err := w.read(name)
		if err == nil && got != wanted {
			err = fmt.Errorf("%s is %q, expected %q", name, got, wanted)
		}
		problems = append(problems, err)
	}
	return errors.Join(problems...)
}

// oomGroup: the child is over the limit, and the kernel takes the whole
// allocation at once (FR-06).
func oomGroup(ctx context.Context, _ *task) (string, error) {
	w, err := allocate(ctx, "group")
	if err != nil {
		return "", err
	}
	if err := w.awaitState(ctx, protocol.StateRetired); err != nil {
		return "", err
	}
	_, generation, err := connect(ctx)
	if err != nil {
		return "", err
	}
	retired, err := receiptOf[protocol.RetiredBody](ctx, generation, w.seen, protocol.KindRetired)
	if err != nil {
		return "", err
	}
	if err := w.settle(ctx, generation); err != nil {
		return "", err
	}
	oom := retired.OOM
	if err := killed(oom, protocol.ScopeContainer); err != nil {
		return "", err
	}
	if oom.Counters.OOMGroupKill == nil || *oom.Counters.OOMGroupKill != 1 {
		return "", fmt.Errorf("oom_group_kill %s, expected 1", show(oom.Counters.OOMGroupKill))
	}
	if *oom.Counters.OOMKill < 2 {
		return "", fmt.Errorf("oom_kill %d: the group was not taken", *oom.Counters.OOMKill)
	}
	return fmt.Sprintf("oom_kill %d, oom_group_kill 1, reason %s", *oom.Counters.OOMKill, retired.Reason), leftovers(ctx)
}

// oomObserve: the kernel kills the child only; the worker goes on, the kill is
// told while it lives, and stands in the end (FR-05).
func oomObserve(ctx context.Context, _ *task) (string, error) {
	w, err := allocate(ctx, "observe")
	if err != nil {
		return "", err
	}
	var observed protocol.OOMObservedBody
	err = await(ctx, patience, "the kill is told", func() error {
		_, generation, err := connect(ctx)
		if err != nil {
			return err
		}
		if w.seen, err = generation.Get(ctx, w.number, "", 0); err != nil {
			return err
		}
		observed, err = receiptOf[protocol.OOMObservedBody](ctx, generation, w.seen, protocol.KindOOMObserved)
		return err
	})
	if err != nil {
		return "", err
	}
	if w.seen.State != protocol.StateStarted {
		return "", fmt.Errorf("the allocation is %s", w.seen.State)
	}
	c, err := w.open(ctx)
	if err != nil {
		return "", err
	}
	if err := errors.Join(c.echo("still here"), c.conn.Close(), w.alive()); err != nil {
		return "", err
	}
	retired, err := w.end(ctx)
	if err != nil {
		return "", err
	}
	if err := killed(retired.OOM, protocol.ScopeContainer); err != nil {
		return "", err
	}
	return fmt.Sprintf("told at oom_kill %s, the parent served on, oom_group_kill %s", show(observed.Counters.OOMKill),
		show(retired.OOM.Counters.OOMGroupKill)), leftovers(ctx)
}

// oomHost: the kernel kills for the machine, below the allocation's own limit.
// Filling the machine takes an emulated one minutes, so the kernel is asked for
// the kill that it would then make: it chooses its victim itself (FR-08).
func oomHost(ctx context.Context, _ *task) (string, error) {
	w, err := allocate(ctx, "greedy")
	if err != nil {
		return "", err
	}
	err = await(ctx, patience, "the child has eaten", func() error {
		text, err := w.read("memory.current")
		if err != nil {
			return err
		}
		if current, err := strconv.ParseInt(text, 10, 64); err != nil || current < 200<<20 {
			return fmt.Errorf("memory.current is %s: %v", text, err)
		}
		return nil
	})
	if err != nil {
		return "", err
	}
	if err := os.WriteFile("/proc/sysrq-trigger", []byte("f"), 0); err != nil {
		return "", err
	}
	err = await(ctx, patience, "the kill is told", func() error {
		_, generation, err := connect(ctx)
		if err != nil {
			return err
		}
		if w.seen, err = generation.Get(ctx, w.number, "", 0); err != nil {
			return err
		}
		_, err = receiptOf[protocol.OOMObservedBody](ctx, generation, w.seen, protocol.KindOOMObserved)
		return err
	})
	if err != nil {
		return "", err
	}
	retired, err := w.end(ctx)
	if err != nil {
		return "", err
	}
	if err := killed(retired.OOM, protocol.ScopeHost); err != nil {
		return "", err
	}
	// The kernel had to choose: it must not have been one of ours.
	for _, unit := range []string{agentUnit, workersUnitOf, "containerd.service"} {
		if err := properties(ctx, unit, "ActiveState=active"); err != nil {
			return "", err
		}
	}
	return fmt.Sprintf("oom_kill %s, oom %s", show(retired.OOM.Counters.OOMKill), show(retired.OOM.Counters.OOM)), leftovers(ctx)
}

func show(n *int64) string {
	if n == nil {
		return "none"
	}
	return strconv.FormatInt(*n, 10)
}

func killed(oom protocol.OOM, scope protocol.Scope) error {
	if oom.Verdict != protocol.VerdictKilled || oom.Scope == nil || *oom.Scope != scope || oom.Source != protocol.CountersFromV2 {
		got := "none"
		if oom.Scope != nil {
			got = string(*oom.Scope)
		}
		return fmt.Errorf("OOM verdict %s, scope %s, source %s, counters oom %s oom_kill %s; expected killed by the kernel, scope %s",
			oom.Verdict, got, oom.Source, show(oom.Counters.OOM), show(oom.Counters.OOMKill), scope)
	}
	return nil
}

// underWorker does something to the machine while a worker lives and a channel
// to it is open: the worker must not notice, its limits must stay, and its
// devices must still be there for new opens (FR-11 FR-35).
func underWorker(ctx context.Context, t *task) (string, error) {
	w, err := allocate(ctx, "steady")
	if err != nil {
		return "", err
	}
	c, err := w.open(ctx)
	if err != nil {
		return "", err
	}
	if err := errors.Join(c.echo("before"), c.devices()); err != nil {
		return "", err
	}
	what, err := disturb(ctx, t.argument(0))
	if err != nil {
		return "", fmt.Errorf("%s: %w", t.argument(0), err)
	}
	if err := errors.Join(w.alive(), c.echo("after, on the same channel"), c.devices(), w.limits(), w.sameGroup()); err != nil {
		return "", fmt.Errorf("after %s: %w", t.argument(0), err)
	}
	second, err := w.open(ctx)
	if err != nil {
		return "", err
	}
	if err := errors.Join(second.echo("and on a new one"), second.conn.Close()); err != nil {
		return "", err
	}
	if err := w.awaitState(ctx, protocol.StateStarted); err != nil || w.seen.State != protocol.StateStarted {
		return "", fmt.Errorf("the allocation is %s: %w", w.seen.State, errors.Join(err, errors.New("expected started")))
	}
	if err := c.conn.Close(); err != nil {
		return "", err
	}
	retired, err := w.end(ctx)
	if err != nil {
		return "", err
	}
	if retired.Exit == nil || retired.Exit.Source != protocol.ExitFromEngine || retired.Exit.Code == nil || *retired.Exit.Code != 3 {
		return "", fmt.Errorf("exit %+v, expected code 3 from the engine", retired.Exit)
	}
	if retired.OOM.Verdict != protocol.VerdictNotKilled {
		return "", fmt.Errorf("OOM verdict %s", retired.OOM.Verdict)
	}
	return what, leftovers(ctx)
}

// sameGroup checks that the counters are still those of the beginning.
func (w *worker) sameGroup() error {
	info, err := os.Stat(strings.TrimSuffix(w.group(""), "/"))
	if err != nil {
		return err
	}
	if inode := info.Sys().(*syscall.Stat_t).Ino; int64(inode) != w.body.Cgroup.Inode {
		return fmt.Errorf("its cgroup is inode %d, it was %d", inode, w.body.Cgroup.Inode)
	}
	return nil
}

// disturb does one thing and waits until the units run again.
func disturb(ctx context.Context, what string) (string, error) {
	systemctl := func(args ...string) error {
		_, err := run(ctx, "systemctl", args...)
		return err
	}
	began := time.Now()
	replaced := func(unit string, do func(pid int) error) error {
		pid, err := mainPID(ctx, unit)
		if err != nil {
			return err
		}
		if err := do(pid); err != nil {
			return err
		}
		return restarted(ctx, unit, pid)
	}
	var err error
	switch what {
	case "daemon-reload":
		err = systemctl("daemon-reload")
	case "daemon-reexec":
		err = systemctl("daemon-reexec")
	case "agent-restart":
		err = replaced(agentUnit, func(int) error { return systemctl("restart", agentUnit) })
	case "agent-killed":
		err = replaced(agentUnit, func(pid int) error { return syscall.Kill(pid, syscall.SIGKILL) })
	case "socket-restart":
		err = systemctl("restart", socketUnit)
	case "containerd-restart":
		err = replaced("containerd.service", func(int) error { return systemctl("restart", "containerd.service") })
	case "containerd-killed":
		err = replaced("containerd.service", func(pid int) error { return syscall.Kill(pid, syscall.SIGKILL) })
	case "everything-killed":
		err = replaced("containerd.service", func(pid int) error {
			if err := syscall.Kill(pid, syscall.SIGKILL); err != nil {
				return err
			}
			return replaced(agentUnit, func(pid int) error { return syscall.Kill(pid, syscall.SIGKILL) })
		})
	default:
		err = errors.New("the guest cannot do that")
	}
	if err != nil {
		return "", err
	}
	if _, _, err := connect(ctx); err != nil {
		return "", err
	}
	return fmt.Sprintf("serving again after %d ms", time.Since(began).Milliseconds()), nil
}

// watchdog stops the agent's process for longer than its watchdog allows:
// systemd replaces it, under a live worker.
func watchdog(ctx context.Context, _ *task) (string, error) {
	const dropin = "/run/systemd/system/" + agentUnit + ".d"
	if err := os.MkdirAll(dropin, 0o755); err != nil {
		return "", err
	}
	if err := writeFile(dropin+"/watchdog.conf", "[Service]\nWatchdogSec=15s\nTimeoutAbortSec=5s\n"); err != nil {
		return "", err
	}
	if _, err := run(ctx, "systemctl", "daemon-reload"); err != nil {
		return "", err
	}
	if _, err := run(ctx, "systemctl", "restart", agentUnit); err != nil {
		return "", err
	}
	w, err := allocate(ctx, "steady")
	if err != nil {
		return "", err
	}
	pid, err := mainPID(ctx, agentUnit)
	if err != nil {
		return "", err
	}
	began := time.Now()
	if err := syscall.Kill(pid, syscall.SIGSTOP); err != nil {
		return "", err
	}
	if err := restarted(ctx, agentUnit, pid); err != nil {
		return "", err
	}
	took := time.Since(began)
	if err := w.alive(); err != nil {
		return "", err
	}
	if _, err := w.end(ctx); err != nil {
		return "", err
	}
	if err := os.RemoveAll(dropin); err != nil {
		return "", err
	}
	if _, err := run(ctx, "systemctl", "daemon-reload"); err != nil {
		return "", err
	}
	if _, err := run(ctx, "systemctl", "restart", agentUnit); err != nil {
		return "", err
	}
	return fmt.Sprintf("a stopped agent replaced after %.1f s", took.Seconds()), leftovers(ctx)
}

// shimKilled kills the worker's shim: the exit is nobody's claim, and nothing
// stays mounted in the machine's own mount namespace (FR-09 I23).
func shimKilled(ctx context.Context, _ *task) (string, error) {
	w, err := allocate(ctx, "steady")
	if err != nil {
		return "", err
	}
	shim, err := shimOf(w)
	if err != nil {
		return "", err
	}
	if err := syscall.Kill(shim, syscall.SIGKILL); err != nil {
		return "", err
	}
	retired, err := w.end(ctx)
	if err != nil {
		return "", err
	}
	if retired.Exit == nil || retired.Exit.Source == protocol.ExitFromEngine || retired.Exit.Code != nil {
		return "", fmt.Errorf("exit %+v: a code that nobody saw", retired.Exit)
	}
	return "exit source " + string(retired.Exit.Source) + ", code unknown", leftovers(ctx)
}

// shimOf finds the shim: the parent of the container's first process.
func shimOf(w *worker) (int, error) {
	stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", w.body.PID))
	if err != nil {
		return 0, err
	}
	fields := strings.Fields(string(stat[strings.LastIndexByte(string(stat), ')')+1:]))
	parent, err := strconv.Atoi(fields[1])
	if err != nil {
		return 0, err
	}
	name, err := os.ReadFile(fmt.Sprintf("/proc/%d/comm", parent))
	if err == nil && !strings.HasPrefix(string(name), "containerd-shim") {
		err = fmt.Errorf("the worker's parent is %s", name)
	}
	return parent, err
}

// workersUnit tries to take the workers' cgroup away under a live worker.
func workersUnit(ctx context.Context, _ *task) (string, error) {
	w, err := allocate(ctx, "steady")
	if err != nil {
		return "", err
	}
	if out, err := run(ctx, "systemctl", "stop", workersUnitOf); err == nil {
		return "", fmt.Errorf("systemctl stop %s was not refused: %s", workersUnitOf, out)
	}
	// A restart is refused too, or it kills nothing.
	if out, err := run(ctx, "systemctl", "restart", workersUnitOf); err == nil {
		return "", fmt.Errorf("systemctl restart %s was not refused: %s", workersUnitOf, out)
	}
	// Its only process is killed: the kernel allows no new one beside the
	// workers' cgroups, so it comes back once they are gone. Until then workers
	// go on, and new ones can be made.
	pid, err := mainPID(ctx, workersUnitOf)
	if err != nil {
		return "", err
	}
	if err := syscall.Kill(pid, syscall.SIGKILL); err != nil {
		return "", err
	}
	err = await(ctx, patience, "systemd notices", func() error {
		state, err := property(ctx, workersUnitOf, "ActiveState")
		if err == nil && state == "active" {
			err = errors.New("the unit is still active")
		}
		return err
	})
	if err != nil {
		return "", err
	}
	if err := errors.Join(w.alive(), w.limits(), w.sameGroup()); err != nil {
		return "", fmt.Errorf("after the sleeper was killed: %w", err)
	}
	second, err := allocate(ctx, "steady")
	if err != nil {
		return "", fmt.Errorf("while the sleeper was gone: %w", err)
	}
	if err := second.limits(); err != nil {
		return "", fmt.Errorf("while the sleeper was gone: %w", err)
	}
	for _, live := range []*worker{w, second} {
		if _, err := live.end(ctx); err != nil {
			return "", err
		}
	}
	if err := restarted(ctx, workersUnitOf, pid); err != nil {
		return "", err
	}
	// And new workers can be made below the new sleeper.
	again, err := allocate(ctx, "steady")
	if err != nil {
		return "", fmt.Errorf("below the new sleeper: %w", err)
	}
	if err := again.limits(); err != nil {
		return "", fmt.Errorf("below the new sleeper: %w", err)
	}
	if _, err := again.end(ctx); err != nil {
		return "", err
	}
	return "stop and restart refused; killed, it came back after the last worker", leftovers(ctx)
}
