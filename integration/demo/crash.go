package main

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/quittance/quittance/controller/api"
	"github.com/quittance/quittance/protocol"
)

// crashAgent kills the host agent while a worker reads the very large page
// where it fits, and starts it again: the worker must not notice.
func (n *node) crashAgent(ctx context.Context) error {
	type end struct {
		job api.Job
		err error
	}
	ended := make(chan end, 1)
	go func() {
		job, err := n.submit(ctx, 0, "", "ocr.page.v1", n.poster)
		ended <- end{job, err}
	}()
	var worker protocol.Allocation
	busy := func() error {
		x, err := n.liveAllocation(ctx)
		if err != nil {
			return err
		}
		// The page in memory, and the model over it: it works.
		if x.State != protocol.StateStarted || x.Peaks == nil || x.Peaks.MemoryBytes == nil || *x.Peaks.MemoryBytes < 100<<20 {
			return errors.New("the worker does not work yet")
		}
		worker = x
		return nil
	}
	if err := n.await(ctx, n.host, "a busy worker", time.Minute, busy); err != nil {
		return errors.Join(err, (<-ended).err)
	}
	if err := n.host.kill(); err != nil {
		return err
	}
	n.show.fact("hostagent killed with SIGKILL while number %s had %s of memory in use at its peak", worker.Number, mebibytes(*worker.Peaks.MemoryBytes))
	var err error
	if n.host, err = n.startAs("hostagent-again", "hostagent", nil, nil, "--config", n.path("hostagent.toml"), "run"); err != nil {
		return err
	}
	done := <-ended
	if done.err != nil {
		return done.err
	}
	job := done.job
	executions := 0
	for _, attempt := range job.Attempts {
		executions += len(attempt.Executions)
	}
	switch {
	case len(job.Attempts) != 1 || executions != 1:
		return fmt.Errorf("%d attempts and %d executions", len(job.Attempts), executions)
	case job.Attempts[0].Executions[0].Number != worker.Number:
		return errors.New("the job ended in another allocation")
	case job.MemoryPeak == nil || job.MemoryLimit == nil || *job.MemoryPeak <= 64<<20:
		return errors.New("the page fitted into the smaller limit after all")
	}
	n.show.fact("started again, it took the same container over: one attempt, one execution, number %s, peak memory %s of %s",
		worker.Number, mebibytes(*job.MemoryPeak), mebibytes(*job.MemoryLimit))
	return nil
}

// liveAllocation is the one allocation that holds a slot.
func (n *node) liveAllocation(ctx context.Context) (protocol.Allocation, error) {
	out, err := n.ask(ctx, "", "allocations", "-o", "json")
	if err != nil {
		return protocol.Allocation{}, err
	}
	var list protocol.AllocationList
	if err := protocol.DecodeStrict([]byte(strings.TrimSpace(out)), protocol.MaxAnswerBytes, &list); err != nil {
		return protocol.Allocation{}, err
	}
	if len(list.Allocations) != 1 {
		return protocol.Allocation{}, fmt.Errorf("%d allocations hold a slot", len(list.Allocations))
	}
	return list.Allocations[0], nil
}
