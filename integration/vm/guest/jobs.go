package main

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"os"
	"strings"
	"time"

	"github.com/quittance/quittance/controller/api"
	"github.com/quittance/quittance/protocol"
)

// article is a text that the small model knows the language of.
const article = "Todos los seres humanos nacen libres e iguales en dignidad y derechos y, dotados como están de razón y " +
	"conciencia, deben comportarse fraternalmente los unos con los otros.\n"

// storeOwnerFile keeps the controller's owner id for giveOwner.
const storeOwnerFile = "/root/controller-owner"

// jobFile keeps the id of controllerJob's job for journalOfJob.
const jobFile = "/root/job"

// controllerJob starts the controller's unit, runs one job through everything as
// a user does, verifies its receipts, and notes the whole log. The first start
// makes the controller the owner of the generation.
func controllerJob(ctx context.Context, t *task) (string, error) {
	key, err := os.ReadFile("/var/lib/quittance/host.key.pub")
	if err != nil {
		return "", err
	}
	w, err := t.startWatch(ctx, "")
	if err != nil {
		return "", err
	}
	id, took, err := t.firstJob(ctx, strings.TrimSpace(string(key)))
	if err != nil {
		return "", errors.Join(err, w.end())
	}
	compared, err := w.finish(ctx, []string{id})
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
	return fmt.Sprintf("spa after %.1f s, receipts verified, %s", took.Seconds(), compared), writeFile(storeOwnerFile, string(*host.Owner))
}

// firstJob registers the host's key and runs one job, with the commands that the
// README shows.
func (t *task) firstJob(ctx context.Context, key string) (id string, took time.Duration, err error) {
	// As the README says; as root, what it makes would be closed to the unit.
	register := []string{"controller", "hostkey", "add", key}
	asUser := []string{"runuser", "-u", controllerUser, "--"}
	if _, err := run(ctx, register[0], register[1:]...); err == nil || !strings.Contains(err.Error(), strings.Join(asUser, " ")) {
		return "", 0, fmt.Errorf("root registers a host key: %v, expected a refusal that names runuser", err)
	}
	if _, err := run(ctx, asUser[0], append(asUser[1:], register...)...); err != nil {
		return "", 0, err
	}
	began := time.Now()
	operation := string(protocol.NewID())
	err = await(ctx, patience, "the job is created", func() (err error) {
		// A kind is known once the lanes announced it.
		id, err = runAs(ctx, nil, article, "agentctl", "jobs", "submit", "--operation-id", operation, "langid.text.v1", "-")
		return err
	})
	if err != nil {
		return "", 0, err
	}
	if err := errors.Join(t.note("created %s %s", operation, id), writeFile(jobFile, id)); err != nil {
		return "", 0, err
	}
	state, _, err := t.ended(ctx, id)
	if err != nil {
		return "", 0, err
	}
	took = time.Since(began)
	result, err := run(ctx, "agentctl", "jobs", "result", id)
	if err != nil {
		return "", 0, err
	}
	if state != api.JobFinished || !strings.Contains(result, `"language":"spa"`) {
		return "", 0, fmt.Errorf("job %s: %s, result %s", id, state, result)
	}
	if err := writeFile(resultFile, result); err != nil {
		return "", 0, err
	}
	// The receipts come with the archive of the attempt, after the result.
	return id, took, await(ctx, patience, "the job's receipts verify", func() error {
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

// load keeps jobs running and follows the receipts until the power goes. Its
// arguments are the index of the last leaf that the test holds, and a name that
// no other load had.
func load(ctx context.Context, t *task) (string, error) {
	w, err := t.startWatch(ctx, t.argument(0))
	if err != nil {
		return "", err
	}
	failed := make(chan error, 4)
	go func() { failed <- <-w.over }()
	for lane := range 3 {
		go func() { failed <- t.submitForEver(ctx, fmt.Sprintf("%s-%d", t.argument(1), lane)) }()
	}
	// Nobody ends before the power does.
	err = <-failed
	return "", errors.Join(err, errors.New("the load ended by itself"))
}

func (t *task) submitForEver(ctx context.Context, name string) error {
	for i := 0; ; i++ {
		operation := fmt.Sprintf("%s-%d", name, i)
		if _, _, err := t.oneJob(ctx, operation); err != nil {
			return err
		}
	}
}

// oneJob runs a job to its end.
func (t *task) oneJob(ctx context.Context, operation string) (id string, state api.JobState, err error) {
	if id, err = submit(ctx, operation); err != nil {
		return "", "", err
	}
	if err := t.note("created %s %s", operation, id); err != nil {
		return "", "", err
	}
	state, _, err = t.ended(ctx, id)
	return id, state, err
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
