package main

import (
	"context"
	"encoding/base64"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/quittance/quittance/controller/api"
	"github.com/quittance/quittance/protocol"
	"github.com/quittance/quittance/protocol/hostclient"
)

// Notes of those who follow the log, each written before anything that follows
// from it; package witness says what they mean.
//
//	leaf BASE64, gap FIRST, proved JOB BASE64 BASE64, checkpoint BASE64,
//	frontier NUMBER, created OPERATION JOB, ended JOB STATE HASH

// noJob stands in a note where a proof came from the agent and not from the job
// service.
const noJob = "-"

// watch is the controller at work, with its host's log followed from before its
// start: what every check does that lets jobs run.
type watch struct {
	task     *task
	receipts *follower
	stop     context.CancelFunc
	over     chan error
}

// startWatch notes the log after the given index, all of it and a checkpoint,
// while nobody can release history; then it starts the controller and follows
// on.
func (t *task) startWatch(ctx context.Context, after string) (*watch, error) {
	receipts, err := t.newFollower(ctx, after)
	if err != nil {
		return nil, err
	}
	if err := receipts.checkpoint(ctx); err != nil {
		return nil, err
	}
	following, stop := context.WithCancel(ctx)
	w := &watch{task: t, receipts: receipts, stop: stop, over: make(chan error, 1)}
	go func() { w.over <- receipts.follow(following) }()
	_, err = run(ctx, "systemctl", "start", controllerUnit)
	if err == nil {
		err = awaitService(ctx)
	}
	if err != nil {
		return nil, errors.Join(err, w.end())
	}
	return w, nil
}

// end stops following, once everything that was read is noted.
func (w *watch) end() error {
	w.stop()
	return <-w.over
}

// finish waits until nothing is left to do, notes the receipts that the job
// service holds of some jobs, stops the controller, and notes the rest of the log
// and how many numbers it must tell of. Then it compares the attempts of both
// sides.
func (w *watch) finish(ctx context.Context, jobs []string) (string, error) {
	// The last attempt is archived and its history released a little later, and
	// its receipts are with the job service before that.
	err := await(ctx, patience, "the history is released to its end", func() error {
		host, _, err := operator(ctx)
		if err == nil && (host.Slots.Used > 0 || host.Frontiers.Released != host.Frontiers.Accepted) {
			err = fmt.Errorf("%d slots used, released %d of %d", host.Slots.Used, host.Frontiers.Released, host.Frontiers.Accepted)
		}
		return err
	})
	if err != nil {
		return "", errors.Join(err, w.end())
	}
	var known []api.Job
	for _, id := range jobs {
		job, err := getJob(ctx, id)
		if err == nil {
			err = w.task.noteBundle(ctx, id)
		}
		if err != nil {
			return "", errors.Join(err, w.end())
		}
		known = append(known, job)
	}
	_, err = run(ctx, "systemctl", "stop", controllerUnit)
	if err := errors.Join(err, w.end()); err != nil {
		return "", err
	}
	if err := w.receipts.checkpoint(ctx); err != nil {
		return "", err
	}
	host, _, err := operator(ctx)
	if err != nil {
		return "", err
	}
	if err := w.task.note("frontier %d", host.Frontiers.Accepted); err != nil {
		return "", err
	}
	text, err := attemptsAgree(ctx, known)
	if w.receipts.gaps > 0 {
		text += fmt.Sprintf(", outrun %d times", w.receipts.gaps)
	}
	return text, err
}

// noteBundle notes what the job service can prove of a job.
func (t *task) noteBundle(ctx context.Context, id string) error {
	receipts, err := lookUp[api.JobReceipts](ctx, api.RouteJobReceipts, id)
	if err != nil {
		return err
	}
	for _, r := range receipts.Receipts {
		if r.Trust != api.TrustVerified {
			return fmt.Errorf("receipt %d of job %s is %s, expected %s", r.Index, id, r.Trust, api.TrustVerified)
		}
		if err := t.note("%s", proved(id, r.Leaf, r.Proof)); err != nil {
			return err
		}
	}
	return nil
}

func proved(job string, leaf []byte, proof string) string {
	return fmt.Sprintf("proved %s %s %s", job, base64.StdEncoding.EncodeToString(leaf), base64.StdEncoding.EncodeToString([]byte(proof)))
}

// follower notes the leaves of the log in their order.
type follower struct {
	generation *hostclient.Generation
	last       protocol.Index // noted last, -1 for none
	emit       func(note string) error
	task       *task
	gaps       int
}

// newFollower begins after the given index, "" for the beginning.
func (t *task) newFollower(ctx context.Context, after string) (*follower, error) {
	f := &follower{task: t, last: -1, emit: func(note string) error { return t.note("%s", note) }}
	if after != "" {
		n, err := strconv.ParseInt(after, 10, 64)
		if err != nil {
			return nil, err
		}
		f.last = protocol.Index(n)
	}
	_, generation, err := operator(ctx)
	f.generation = generation
	return f, err
}

// page notes the next leaves, at most one page of them.
func (f *follower) page(ctx context.Context, wait time.Duration) error {
	query := hostclient.ReceiptsQuery{Wait: wait}
	if f.last >= 0 {
		after := f.last
		query.After = &after
	}
	leaves, err := f.generation.Receipts(ctx, query)
	if problem, ok := errors.AsType[*protocol.Problem](err); ok && problem.Code == protocol.CodePruned && problem.FirstIndex != nil {
		return f.skip(ctx, *problem.FirstIndex)
	}
	if err != nil {
		return err
	}
	for _, leaf := range leaves {
		if leaf.Receipt.Index != f.last+1 {
			return fmt.Errorf("after receipt %d came %d", f.last, leaf.Receipt.Index)
		}
		if err := f.emit("leaf " + base64.StdEncoding.EncodeToString(leaf.Bytes)); err != nil {
			return err
		}
		f.last = leaf.Receipt.Index
	}
	return nil
}

// skip goes on with the first receipt that is served, because the controller
// released what comes before it. Its proof shows the whole history below it;
// receipts of allocations that are not released are still served one by one.
// Where first was released meanwhile too, nothing is noted, and the next page
// says where to go on.
func (f *follower) skip(ctx context.Context, first protocol.Index) error {
	var notes []string
	for i := f.last + 1; i <= first; i++ {
		leaf, err := f.generation.Receipt(ctx, i)
		var proof string
		if err == nil {
			text, proofErr := f.generation.Proof(ctx, i)
			proof, err = text.Format(), proofErr
		}
		switch {
		case err == nil:
			notes = append(notes, proved(noJob, leaf.Bytes, proof))
		case i == first || !hostclient.IsCode(err, protocol.CodePruned):
			return err
		}
	}
	for _, note := range append([]string{fmt.Sprintf("gap %d", first)}, notes...) {
		if err := f.emit(note); err != nil {
			return err
		}
	}
	f.last = first - 1
	f.gaps++
	return nil
}

// unnoted bounds what was read and not noted yet.
const unnoted = 1 << 14

// follow notes every leaf as it is written, until the context ends, through
// restarts of the agent. It reads ahead of what is noted, because the controller
// releases history without asking who read it.
func (f *follower) follow(ctx context.Context) error {
	direct := f.emit
	defer func() { f.emit = direct }()
	notes := make(chan string, unnoted)
	noted := make(chan error, 1)
	go func() {
		var err error
		for note := range notes {
			if err == nil {
				err = direct(note)
			}
		}
		noted <- err
	}()
	f.emit = func(note string) error {
		notes <- note
		return nil
	}
	err := f.read(ctx)
	close(notes)
	return errors.Join(err, <-noted)
}

// read reads until the context ends, which is no error.
func (f *follower) read(ctx context.Context) error {
	lately := time.Now()
	for {
		err := f.page(ctx, 20*time.Second)
		switch {
		case ctx.Err() != nil:
			return nil
		case err == nil:
			lately = time.Now()
			continue
		case time.Since(lately) > patience:
			return fmt.Errorf("the log could not be read for %s: %w", patience, err)
		}
		select {
		case <-ctx.Done():
			return nil
		case <-time.After(10 * time.Millisecond):
		}
	}
}

// checkpoint notes every leaf that a checkpoint of now covers, then the
// checkpoint.
func (f *follower) checkpoint(ctx context.Context) error {
	host, _, err := operator(ctx)
	if err != nil {
		return err
	}
	for f.last < host.Index.Head {
		if err := f.page(ctx, 0); err != nil {
			return err
		}
	}
	return f.emit("checkpoint " + base64.StdEncoding.EncodeToString([]byte(host.Checkpoint)))
}

// settle audits from inside after a power cut. Its arguments are the index of
// the last leaf that the test holds and the jobs that it knows, those whose
// receipts it has not seen with a + after their name. It notes everything that
// the log holds with a checkpoint of it, before the controller is started; then
// it waits for every job's end and for nothing to be left to do.
func settle(ctx context.Context, t *task) (string, error) {
	w, err := t.startWatch(ctx, t.argument(0))
	if err != nil {
		return "", err
	}
	var unseen []string
	for _, argument := range t.args[min(1, len(t.args)):] {
		id, isUnseen := strings.CutSuffix(argument, "+")
		if _, _, err := t.ended(ctx, id); err != nil {
			return "", errors.Join(err, w.end())
		}
		if isUnseen {
			unseen = append(unseen, id)
		}
	}
	return w.finish(ctx, unseen)
}
