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
// Each of them must be told as killed, once, by the allocation's own limit
// (FR-01 FR-02 FR-06 FR-07 I22). Its arguments are how many, and the index of
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
	seen, err := killAll(ctx, count)
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
	return fmt.Sprintf("%d of %d killed in %.0f s, %d of them as a group, readers stopped %d times", seen.killed, count, took.Seconds(), seen.groups, n),
		leftovers(ctx)
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

// killedSoFar counts what was told of the kills.
type killedSoFar struct{ killed, groups int }

// killAll makes allocations that are killed, some at once, until count ended.
func killAll(ctx context.Context, count int) (killedSoFar, error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	var mu sync.Mutex
	var seen killedSoFar
	var problems []error
	var all sync.WaitGroup
	free := make(chan struct{}, killedAtOnce)
	for range count {
		free <- struct{}{}
		if ctx.Err() != nil {
			break
		}
		w, err := accept(ctx, "killed")
		if err != nil {
			mu.Lock()
			problems = append(problems, err)
			mu.Unlock()
			break
		}
		all.Go(func() {
			defer func() { <-free }()
			group, err := w.toldAsKilled(ctx)
			mu.Lock()
			defer mu.Unlock()
			if err != nil {
				problems = append(problems, fmt.Errorf("number %d: %w", w.number, err))
				cancel() // the first failure is enough
				return
			}
			seen.killed++
			if group {
				seen.groups++
			}
		})
	}
	all.Wait()
	return seen, errors.Join(problems...)
}

// toldAsKilled waits for the allocation's retirement and reports whether the
// kernel took it as a group.
func (w *worker) toldAsKilled(ctx context.Context) (group bool, err error) {
	if err := w.awaitState(ctx, protocol.StateRetired); err != nil {
		return false, err
	}
	_, generation, err := connect(ctx)
	if err != nil {
		return false, err
	}
	retired, err := receiptOf[protocol.RetiredBody](ctx, generation, w.seen, protocol.KindRetired)
	if err != nil {
		return false, err
	}
	exited, err := receiptOf[protocol.ExitedBody](ctx, generation, w.seen, protocol.KindExited)
	if err != nil {
		return false, err
	}
	for _, told := range []protocol.OOM{exited.OOM, retired.OOM} {
		if err := killed(told, protocol.ScopeContainer); err != nil {
			return false, err
		}
	}
	return retired.OOM.Counters.OOMGroupKill != nil && *retired.OOM.Counters.OOMGroupKill > 0, w.settle(ctx, generation)
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
