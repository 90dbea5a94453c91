package main

import (
	"context"
	"errors"
	"fmt"
	"strconv"

	"github.com/quittance/quittance/protocol"
)

// rebootLeave leaves two workers behind for the reboot and notes their numbers:
// one that would stop when asked, and one that would not. The controller comes
// with the boot; it waits, because the generation is not its own.
func rebootLeave(ctx context.Context, t *task) (string, error) {
	for _, profile := range []string{"steady", "stubborn"} {
		w, err := allocate(ctx, profile)
		if err != nil {
			return "", err
		}
		if err := t.note("%d", w.number); err != nil {
			return "", err
		}
	}
	_, err := run(ctx, "systemctl", "enable", "--now", controllerUnit)
	return "", err
}

// rebootAudit looks at the allocations that a reboot ended: each was retired by
// the agent itself with the source reboot, its number stays used, and the next
// one is the next (FR-13 I5).
func rebootAudit(ctx context.Context, t *task) (string, error) {
	var highest protocol.Number
	for _, text := range t.args {
		n, err := strconv.ParseInt(text, 10, 64)
		if err != nil {
			return "", err
		}
		w := &worker{number: protocol.Number(n), purpose: fmt.Sprintf("vm-%d", n)}
		highest = max(highest, w.number)
		if err := w.afterReboot(ctx); err != nil {
			return "", fmt.Errorf("number %d: %w", n, err)
		}
	}
	host, generation, err := connect(ctx)
	if err != nil {
		return "", err
	}
	if host.Frontiers.Accepted != highest {
		return "", fmt.Errorf("the accepted frontier is %d, expected %d", host.Frontiers.Accepted, highest)
	}
	w, err := allocate(ctx, "steady")
	if err != nil {
		return "", err
	}
	if w.number != highest+1 {
		return "", fmt.Errorf("the next number is %d, expected %d", w.number, highest+1)
	}
	if _, err := w.end(ctx); err != nil {
		return "", err
	}
	// A used number is refused to another purpose, never given again (I5).
	_, err = generation.Allocate(ctx, highest, protocol.AllocateRequest{Profile: "steady", ProfileDigest: protocol.DigestOf(nil), Purpose: "again"})
	problem, refused := errors.AsType[*protocol.Problem](err)
	if !refused || problem.Code != protocol.CodeNumberConflict {
		return "", fmt.Errorf("number %d asked for again: %w", highest, errors.Join(err, errors.New("expected number_conflict")))
	}
	return fmt.Sprintf("%d allocations retired with source reboot, next number %d", len(t.args), w.number), leftovers(ctx)
}

func (w *worker) afterReboot(ctx context.Context) error {
	if err := w.awaitState(ctx, protocol.StateRetired); err != nil {
		return err
	}
	_, generation, err := connect(ctx)
	if err != nil {
		return err
	}
	retired, err := receiptOf[protocol.RetiredBody](ctx, generation, w.seen, protocol.KindRetired)
	if err != nil {
		return err
	}
	if retired.Exit == nil || retired.Exit.Code != nil || retired.Exit.Source != protocol.ExitFromReboot {
		return fmt.Errorf("exit %+v, expected an unknown code of source reboot", retired.Exit)
	}
	if retired.OOM.Verdict != protocol.VerdictUnknown {
		return fmt.Errorf("OOM verdict %s: its counters are gone, expected unknown", retired.OOM.Verdict)
	}
	return w.settle(ctx, generation)
}
