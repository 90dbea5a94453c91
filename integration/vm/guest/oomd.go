package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strings"
	"syscall"
	"time"

	"github.com/quittance/quittance/protocol"
)

const oomdUnit = "systemd-oomd.service"

// thrashFile is what the thrashing worker reads: far more than it may keep in
// memory. It is a hole, so reading it costs reclaim and no disk.
const (
	thrashFile = "/var/lib/vm-thrash"
	thrashSize = 512 << 20
)

// oomDaemon lets the real systemd-oomd kill a worker for the pressure that it
// makes, far from any limit of the kernel's: the verdict is a kill of scope
// daemon, from the mark that the daemon leaves on the cgroup (I22).
func oomDaemon(ctx context.Context, t *task) (string, error) {
	began := time.Now()
	stop, err := startOOMDaemon(ctx)
	if err != nil {
		return "", err
	}
	retired, err := thrashUntilKilled(ctx, t)
	if err := errors.Join(err, stop()); err != nil {
		return "", err
	}
	took := time.Since(began)
	if err := killed(retired.OOM, protocol.ScopeDaemon); err != nil {
		return "", err
	}
	// The unit's own process, which the daemon could have chosen, was not killed.
	if err := properties(ctx, workersUnitOf, "ActiveState=active", "SubState=running"); err != nil {
		return "", err
	}
	return fmt.Sprintf("killed by systemd-oomd after %.0f s, oom %s, oom_kill %s", took.Seconds(),
		show(retired.OOM.Counters.OOM), show(retired.OOM.Counters.OOMKill)), leftovers(ctx)
}

// startOOMDaemon lets the daemon watch the workers' unit, with the least
// patience that it can have.
func startOOMDaemon(ctx context.Context) (stop func() error, err error) {
	const dropin = "/run/systemd/oomd.conf.d"
	if err := os.MkdirAll(dropin, 0o755); err != nil {
		return nil, err
	}
	if err := writeFile(dropin+"/vm.conf", "[OOM]\nDefaultMemoryPressureDurationSec=1s\n"); err != nil {
		return nil, err
	}
	set := func(policy string) error {
		_, err := run(ctx, "systemctl", "set-property", "--runtime", workersUnitOf, "ManagedOOMMemoryPressure="+policy, "ManagedOOMMemoryPressureLimit=1%")
		return err
	}
	stop = func() error {
		err := set("auto")
		_, stopErr := run(ctx, "systemctl", "stop", oomdUnit, "systemd-oomd.socket")
		return errors.Join(err, stopErr, os.RemoveAll(dropin))
	}
	if _, err := run(ctx, "systemctl", "start", oomdUnit); err != nil {
		return nil, errors.Join(err, stop())
	}
	if err := set("kill"); err != nil {
		return nil, errors.Join(err, stop())
	}
	return stop, nil
}

// thrashUntilKilled makes the pressure and waits for the worker's end.
func thrashUntilKilled(ctx context.Context, t *task) (protocol.RetiredBody, error) {
	var none protocol.RetiredBody
	w, err := allocate(ctx, "thrash")
	if err != nil {
		return none, err
	}
	if err := w.awaitState(ctx, protocol.StateRetired); err != nil {
		pressure, readErr := w.read("memory.pressure")
		dump, dumpErr := run(ctx, "oomctl", "--no-pager")
		sayErr := t.say("memory.pressure of the worker: %s\n%s", pressure, dump)
		return none, errors.Join(err, readErr, dumpErr, sayErr)
	}
	_, generation, err := connect(ctx)
	if err != nil {
		return none, err
	}
	retired, err := receiptOf[protocol.RetiredBody](ctx, generation, w.seen, protocol.KindRetired)
	if err != nil {
		return none, err
	}
	return retired, w.settle(ctx, generation)
}

// oomMark sets by hand the mark that an OOM daemon leaves, on either level, and
// kills the worker as it would.
func oomMark(ctx context.Context, _ *task) (string, error) {
	for _, level := range []string{"", "c"} {
		w, err := allocate(ctx, "steady")
		if err != nil {
			return "", err
		}
		dir := strings.TrimSuffix(w.group(level), "/")
		if err := syscall.Setxattr(dir, "user.oomd_kill", []byte("1"), 0); err != nil {
			return "", fmt.Errorf("mark %s: %w", dir, err)
		}
		if err := writeFile(w.group("cgroup.kill"), "1"); err != nil {
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
		if err := killed(retired.OOM, protocol.ScopeDaemon); err != nil {
			return "", err
		}
	}
	return "", leftovers(ctx)
}
