package main

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"strconv"
	"sync"
	"syscall"
	"time"

	"github.com/quittance/quittance/protocol"
)

// Bounds of kills.
const (
	killedAtOnce = 6 // below max_slots
	longestDelay = 500 * time.Millisecond
	// longestRun is how long the readers may run between two delays: short, so
	// that most kills meet a stopped reader.
	longestRun = 300 * time.Millisecond
)

// kills lets the kernel kill allocations right after their start, several at
// once, while every reader of counters is late: the agent is stopped for up to
// half a second again and again, and whatever it learns it learns afterwards.
// Each of them must be told as killed, once, by the allocation's own limit, and
// as a whole (FR-01 FR-02 FR-06 FR-07 I22). Its arguments are how many, and the index of
// the last leaf that the test holds: the log is noted and its history released,
// as it is bounded.
func kills(ctx context.Context, t *task) (string, error) {
	count, err := strconv.Atoi(t.argument(0))
	if err != nil {
		return "", err
	}
	receipts, err := t.newFollower(ctx, t.argument(1))
	if err != nil {
		return "", err
	}
	agent, err := mainPID(ctx, agentUnit)
	if err != nil {
		return "", err
	}
	delaying, stop := context.WithCancel(ctx)
	defer stop()
	delays := make(chan int, 1)
	late := make(chan error, 1)
	go func() {
		n, err := delayReaders(delaying, agent)
		delays <- n
		late <- err
	}()
	began := time.Now()
	err = killAll(ctx, count)
	took := time.Since(began)
	stop()
	n := <-delays
	if err := errors.Join(err, <-late); err != nil {
		return "", err
	}
	if pid, err := mainPID(ctx, agentUnit); err != nil || pid != agent {
		return "", fmt.Errorf("the agent is process %d, it was %d: %v", pid, agent, err)
	}
	if err := receipts.checkpoint(ctx); err != nil {
		return "", err
	}
	if err := releaseAll(ctx); err != nil {
		return "", err
	}
	return fmt.Sprintf("%d killed, each as a group, in %.0f s; readers stopped %d times", count, took.Seconds(), n), leftovers(ctx)
}

// delayReaders stops and continues a process at random moments until the
// context ends, and returns how often; it leaves it running.
func delayReaders(ctx context.Context, pid int) (int, error) {
	pause := func(longest time.Duration) {
		select {
		case <-ctx.Done():
		case <-time.After(time.Duration(rand.Int64N(int64(longest)))):
		}
	}
	for n := 0; ; n++ {
		if ctx.Err() != nil {
			return n, nil
		}
		if err := syscall.Kill(pid, syscall.SIGSTOP); err != nil {
			return n, err
		}
		pause(longestDelay)
		if err := syscall.Kill(pid, syscall.SIGCONT); err != nil {
			return n, err
		}
		pause(longestRun)
	}
}

// killAll makes allocations that are killed, some at once, until count ended.
func killAll(ctx context.Context, count int) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	var mu sync.Mutex
	var problems []error
	failed := func(err error) {
		mu.Lock()
		defer mu.Unlock()
		problems = append(problems, err)
		cancel() // the first failure is enough
	}
	var all sync.WaitGroup
	free := make(chan struct{}, killedAtOnce)
	for range count {
		free <- struct{}{}
		if ctx.Err() != nil {
			break
		}
		w, err := accept(ctx, "killed")
		if err != nil {
			failed(err)
			break
		}
		all.Go(func() {
			defer func() { <-free }()
			if err := w.toldAsKilled(ctx); err != nil {
				failed(fmt.Errorf("number %d: %w", w.number, err))
			}
		})
	}
	all.Wait()
	return errors.Join(problems...)
}

// toldAsKilled waits for the allocation's retirement.
func (w *worker) toldAsKilled(ctx context.Context) error {
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
	exited, err := receiptOf[protocol.ExitedBody](ctx, generation, w.seen, protocol.KindExited)
	if err != nil {
		return err
	}
	for _, told := range []protocol.OOM{exited.OOM, retired.OOM} {
		if err := killed(told, protocol.ScopeContainer); err != nil {
			return err
		}
		if told.Counters.OOMGroupKill == nil || *told.Counters.OOMGroupKill == 0 {
			return fmt.Errorf("the kernel did not kill the group: oom_kill %s, oom_group_kill %s", show(told.Counters.OOMKill), show(told.Counters.OOMGroupKill))
		}
	}
	return w.settle(ctx, generation)
}

// releaseAll releases the history of everything that this program made, all of
// which must be consumed.
func releaseAll(ctx context.Context) error {
	host, generation, err := connect(ctx)
	if err != nil {
		return err
	}
	_, err = generation.Release(ctx, protocol.ReleaseRequest{Frontier: host.Frontiers.Accepted, Except: []protocol.Number{}})
	return err
}
