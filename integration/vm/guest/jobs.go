package main

import (
	"context"
	"crypto/sha256"
	"encoding/base64"
	"encoding/hex"
	"errors"
	"fmt"
	"os"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/quittance/quittance/controller/api"
	"github.com/quittance/quittance/protocol"
	"github.com/quittance/quittance/protocol/hostclient"
)

// article is a text that the small model knows the language of.
const article = "Todos los seres humanos nacen libres e iguales en dignidad y derechos y, dotados como están de razón y " +
	"conciencia, deben comportarse fraternalmente los unos con los otros.\n"

// storeOwnerFile keeps the controller's owner id for giveOwner.
const storeOwnerFile = "/root/controller-owner"

// jobFile keeps the id of controllerJob's job for journalOfJob.
const jobFile = "/root/job"

// controllerJob starts the controller's unit, runs one job through everything,
// verifies its receipts, and notes the whole log. The first start makes the
// controller the owner of the generation.
func controllerJob(ctx context.Context, t *task) (string, error) {
	receipts, err := t.newFollower(ctx, "")
	if err != nil {
		return "", err
	}
	if err := receipts.checkpoint(ctx); err != nil {
		return "", err
	}
	key, err := os.ReadFile("/var/lib/quittance/host.key.pub")
	if err != nil {
		return "", err
	}
	if _, err := run(ctx, "systemctl", "start", controllerUnit); err != nil {
		return "", err
	}
	if err := awaitService(ctx); err != nil {
		return "", err
	}
	// As the README says; as root, what it makes would be closed to the unit.
	register := []string{"controller", "hostkey", "add", strings.TrimSpace(string(key))}
	asUser := []string{"runuser", "-u", controllerUser, "--"}
	if _, err := run(ctx, register[0], register[1:]...); err == nil || !strings.Contains(err.Error(), strings.Join(asUser, " ")) {
		return "", fmt.Errorf("root registers a host key: %v, expected a refusal that names runuser", err)
	}
	if _, err := run(ctx, asUser[0], append(asUser[1:], register...)...); err != nil {
		return "", err
	}
	following, stop := context.WithCancel(ctx)
	defer stop()
	over := make(chan error, 1)
	go func() { over <- receipts.follow(following) }()
	began := time.Now()
	id, err := submit(ctx, string(protocol.NewID()))
	if err != nil {
		return "", err
	}
	if err := writeFile(jobFile, id); err != nil {
		return "", err
	}
	state, result, err := awaitJob(ctx, id)
	if err != nil {
		return "", err
	}
	took := time.Since(began)
	if state != api.JobFinished || !strings.Contains(result, `"language":"spa"`) {
		return "", fmt.Errorf("job %s: %s, result %s", id, state, result)
	}
	// The receipts come with the archive of the attempt, after the result.
	err = await(ctx, patience, "the job's receipts verify", func() error {
		receipts, err := run(ctx, "agentctl", "jobs", "receipts", id, "-o", "json")
		if err != nil {
			return err
		}
		if err := writeFile("/root/receipts.json", receipts); err != nil {
			return err
		}
		_, err = run(ctx, "agentctl", "verify", "--key", "/var/lib/quittance/host.key.pub", "/root/receipts.json")
		return err
	})
	if err != nil {
		return "", err
	}
	host, _, err := operator(ctx)
	if err != nil {
		return "", err
	}
	if host.Owner == nil {
		return "", errors.New("the generation has no owner after a job")
	}
	if err := quiet(ctx); err != nil {
		return "", err
	}
	stop()
	if err := <-over; following.Err() == nil {
		return "", err
	}
	if err := receipts.checkpoint(ctx); err != nil {
		return "", err
	}
	return fmt.Sprintf("spa after %.1f s, receipts verified", took.Seconds()), writeFile(storeOwnerFile, string(*host.Owner))
}

// awaitService waits until the controller's job service offers the kind.
func awaitService(ctx context.Context) error {
	return await(ctx, patience, "the job service offers langid.text.v1", func() error {
		if _, err := run(ctx, "systemctl", "is-active", controllerUnit); err != nil {
			return err
		}
		_, err := run(ctx, "agentctl", "jobs", "list", "-o", "json")
		return err
	})
}

// submit creates a job under an operation id and returns its id.
func submit(ctx context.Context, operation string) (string, error) {
	return submitKind(ctx, "langid.text.v1", article, operation)
}

func submitKind(ctx context.Context, kind, input, operation string) (string, error) {
	var id string
	err := await(ctx, patience, "the job is created", func() (err error) {
		// A kind is known once the lanes announced it.
		id, err = runAs(ctx, nil, input, "agentctl", "jobs", "submit", "--operation-id", operation, "--new-intent", kind, "-")
		return err
	})
	return id, err
}

func getJob(ctx context.Context, id string) (api.Job, error) {
	var job api.Job
	out, err := run(ctx, "agentctl", "jobs", "get", id, "-o", "json")
	if err != nil {
		return job, err
	}
	return job, api.Decode([]byte(out), 1<<20, &job)
}

// awaitJob waits until a job has ended and its attempts too, and returns its
// state and result.
func awaitJob(ctx context.Context, id string) (state api.JobState, result string, err error) {
	err = await(ctx, 4*patience, "job "+id+" has ended", func() error {
		job, err := getJob(ctx, id)
		if err != nil {
			return err
		}
		state = job.State
		for _, a := range job.Attempts {
			if a.State == api.AttemptInProgress {
				return errors.New("an attempt is in progress")
			}
		}
		if !state.Terminal() {
			return fmt.Errorf("it is %s", state)
		}
		return nil
	})
	if err == nil && state == api.JobFinished {
		err = await(ctx, patience, "the result of job "+id, func() (err error) {
			result, err = run(ctx, "agentctl", "jobs", "result", id)
			return err
		})
	}
	return state, result, err
}

// takeOwner stops the controller and makes this program the owner.
func takeOwner(ctx context.Context, _ *task) (string, error) {
	if _, err := run(ctx, "systemctl", "stop", controllerUnit); err != nil {
		return "", err
	}
	return "", setOwner(ctx, ownOwner)
}

// giveOwner notes the log after the index that it is given, releases what this
// program made, and gives the generation back to the controller's store. From
// then on the controller is started by who follows the log, and by no boot: it
// must not release history before that is read.
func giveOwner(ctx context.Context, t *task) (string, error) {
	receipts, err := t.newFollower(ctx, t.argument(0))
	if err != nil {
		return "", err
	}
	if err := receipts.checkpoint(ctx); err != nil {
		return "", err
	}
	host, _, err := connect(ctx)
	if err != nil {
		return "", err
	}
	if err := releaseAll(ctx); err != nil {
		return "", err
	}
	if _, err := run(ctx, "systemctl", "disable", controllerUnit); err != nil {
		return "", err
	}
	owner, err := os.ReadFile(storeOwnerFile)
	if err != nil {
		return "", err
	}
	return fmt.Sprintf("%d receipts, released to number %d", host.Index.Head+1, host.Frontiers.Accepted), setOwner(ctx, protocol.ID(owner))
}

func setOwner(ctx context.Context, owner protocol.ID) error {
	_, generation, err := operator(ctx)
	if err != nil {
		return err
	}
	_, err = generation.SetOwner(ctx, owner)
	return err
}

// Notes of load and settle, each written before anything that follows from it:
//
//	leaf BASE64            a receipt as it was read, in the order of the log
//	checkpoint BASE64      a signed checkpoint, after all leaves that it covers
//	created OPERATION JOB  the job service acknowledged the job
//	ended JOB STATE HASH   the job ended, with the SHA-256 of its result

// load keeps jobs running and follows the receipts until the power goes. Its
// arguments are the index of the last leaf that the test holds, and a name that
// no other load had.
func load(ctx context.Context, t *task) (string, error) {
	receipts, err := t.newFollower(ctx, t.argument(0))
	if err != nil {
		return "", err
	}
	if err := receipts.checkpoint(ctx); err != nil {
		return "", err
	}
	if _, err := run(ctx, "systemctl", "start", controllerUnit); err != nil {
		return "", err
	}
	if err := awaitService(ctx); err != nil {
		return "", err
	}
	var all sync.WaitGroup
	failed := make(chan error, 4)
	all.Go(func() { failed <- receipts.follow(ctx) })
	for lane := range 3 {
		all.Go(func() { failed <- t.submitForEver(ctx, fmt.Sprintf("%s-%d", t.argument(1), lane)) })
	}
	// Nobody ends before the power does.
	err = <-failed
	return "", errors.Join(err, errors.New("the load ended by itself"))
}

func (t *task) submitForEver(ctx context.Context, name string) error {
	for i := 0; ; i++ {
		operation := fmt.Sprintf("%s-%d", name, i)
		if _, err := t.oneJob(ctx, operation); err != nil {
			return err
		}
	}
}

func (t *task) oneJob(ctx context.Context, operation string) (api.JobState, error) {
	id, err := submit(ctx, operation)
	if err != nil {
		return "", err
	}
	if err := t.note("created %s %s", operation, id); err != nil {
		return "", err
	}
	state, _, err := t.ended(ctx, id)
	return state, err
}

// ended waits for a job's end and notes it.
func (t *task) ended(ctx context.Context, id string) (api.JobState, string, error) {
	state, result, err := awaitJob(ctx, id)
	if err != nil {
		return "", "", err
	}
	sum := sha256.Sum256([]byte(result))
	return state, result, t.note("ended %s %s %s", id, state, hex.EncodeToString(sum[:]))
}

// follower notes the leaves of the log in their order.
type follower struct {
	task       *task
	generation *hostclient.Generation
	last       protocol.Index // noted last, -1 for none
}

// newFollower begins after the given index, "" for the beginning.
func (t *task) newFollower(ctx context.Context, after string) (*follower, error) {
	f := &follower{task: t, last: -1}
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
	if err != nil {
		return err
	}
	for _, leaf := range leaves {
		if leaf.Receipt.Index != f.last+1 {
			return fmt.Errorf("after receipt %d came %d", f.last, leaf.Receipt.Index)
		}
		if err := f.task.note("leaf %s", base64.StdEncoding.EncodeToString(leaf.Bytes)); err != nil {
			return err
		}
		f.last = leaf.Receipt.Index
	}
	return nil
}

// follow notes every leaf as it is written, until the context ends.
func (f *follower) follow(ctx context.Context) error {
	for {
		if err := f.page(ctx, 20*time.Second); err != nil {
			return err
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
	return f.task.note("checkpoint %s", base64.StdEncoding.EncodeToString([]byte(host.Checkpoint)))
}

// settle audits from inside after a power cut. Its arguments are the index of
// the last leaf that the test holds and the jobs that it knows. Before the
// controller is started it notes everything that the log holds with a checkpoint
// of it; then it waits for every job's end, until nothing is left to do, and
// notes the rest of the log with a checkpoint of that.
func settle(ctx context.Context, t *task) (string, error) {
	receipts, err := t.newFollower(ctx, t.argument(0))
	if err != nil {
		return "", err
	}
	if err := receipts.checkpoint(ctx); err != nil {
		return "", err
	}
	if _, err := run(ctx, "systemctl", "start", controllerUnit); err != nil {
		return "", err
	}
	if err := awaitService(ctx); err != nil {
		return "", err
	}
	following, stop := context.WithCancel(ctx)
	defer stop()
	over := make(chan error, 1)
	go func() { over <- receipts.follow(following) }()
	for _, id := range t.args[min(1, len(t.args)):] {
		if _, _, err := t.ended(ctx, id); err != nil {
			return "", err
		}
	}
	if err := quiet(ctx); err != nil {
		return "", err
	}
	stop()
	if err := <-over; following.Err() == nil {
		return "", err
	}
	return "", receipts.checkpoint(ctx)
}

// quiet waits until nothing is left to do and stops the controller.
func quiet(ctx context.Context) error {
	// The last attempt is archived and its history released a little later.
	err := await(ctx, patience, "the history is released to its end", func() error {
		host, _, err := operator(ctx)
		if err == nil && (host.Slots.Used > 0 || host.Frontiers.Released != host.Frontiers.Accepted) {
			err = fmt.Errorf("%d slots used, released %d of %d", host.Slots.Used, host.Frontiers.Released, host.Frontiers.Accepted)
		}
		return err
	})
	if err != nil {
		return err
	}
	_, err = run(ctx, "systemctl", "stop", controllerUnit)
	return err
}

// checkLedger lets the agent's own check read the ledger while nobody has it.
func checkLedger(ctx context.Context, _ *task) (string, error) {
	if _, err := run(ctx, "systemctl", "stop", socketUnit, agentUnit); err != nil {
		return "", err
	}
	out, err := run(ctx, "/usr/sbin/hostagent", "ledger", "check")
	if err != nil {
		return "", err
	}
	if _, err := run(ctx, "systemctl", "start", socketUnit, agentUnit); err != nil {
		return "", err
	}
	return strings.Join(strings.Fields(out), " "), nil
}
