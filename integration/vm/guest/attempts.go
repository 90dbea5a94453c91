package main

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"strings"

	"github.com/go-json-experiment/json"

	"github.com/quittance/quittance/controller/api"
	"github.com/quittance/quittance/protocol"
)

// attemptHistory is how many archived attempts the packaged configuration keeps.
const attemptHistory = 64

// record is what is compared of an attempt in the controller's store. The
// store's own types are not used: this is what an operator reads.
type record struct {
	State  string `json:"state"`
	Record struct {
		Origin struct {
			Key     string             `json:"key"`
			Job     string             `json:"job"`
			Created protocol.Timestamp `json:"created"`
		} `json:"origin"`
		Admission *struct {
			Reference string `json:"reference"`
		} `json:"admission"`
		Outcome *struct {
			Operation string `json:"operation"`
			Body      []byte `json:"body"`
		} `json:"outcome"`
	} `json:"record"`
}

// attemptsAgree exports the stopped controller's attempts and compares them with
// the jobs as the job service told of them.
func attemptsAgree(ctx context.Context, jobs []api.Job) (string, error) {
	out, err := run(ctx, "runuser", "-u", controllerUser, "--", "controller", "store", "export")
	if err != nil {
		return "", err
	}
	var records []record
	for line := range strings.Lines(out) {
		var r record
		if err := json.Unmarshal([]byte(line), &r); err != nil {
			return "", fmt.Errorf("controller store export: record %d: %w", len(records), err)
		}
		records = append(records, r)
	}
	compared, err := compareAttempts(records, jobs, attemptHistory)
	return fmt.Sprintf("%d of %d attempt records compared", compared, len(records)), err
}

// compareAttempts checks that every attempt of the jobs, none of which is under
// way, is in the store once and ended there as the job service says, with the
// same result or failure (I28 I29), and returns how many it compared. The store
// may have trimmed all but the newest history.
func compareAttempts(records []record, jobs []api.Job, history int) (compared int, err error) {
	var problems []error
	stored := map[string]record{}
	keys := map[string]bool{}
	for _, r := range records {
		if key := r.Record.Origin.Key; keys[key] {
			problems = append(problems, fmt.Errorf("attempt %s is in the store twice", key))
		} else {
			keys[key] = true
		}
		if r.Record.Admission == nil {
			continue
		}
		reference := r.Record.Admission.Reference
		if before, twice := stored[reference]; twice {
			problems = append(problems, fmt.Errorf("the attempts %s and %s are both %s", before.Record.Origin.Key, r.Record.Origin.Key, reference))
		}
		stored[reference] = r
	}
	for _, job := range jobs {
		for _, a := range job.Attempts {
			r, known := stored[a.Attempt]
			switch {
			case known:
				compared++
				if err := sameEnd(r, job, a); err != nil {
					problems = append(problems, fmt.Errorf("attempt %s of job %s: %w", a.Attempt, job.Job, err))
				}
			case len(records) < history || !trimmed(records, a):
				problems = append(problems, fmt.Errorf("attempt %s of job %s is %s and is not in the store", a.Attempt, job.Job, a.State))
			}
		}
	}
	return compared, errors.Join(problems...)
}

// trimmed reports whether every record is of a later attempt.
func trimmed(records []record, a api.JobAttempt) bool {
	for _, r := range records {
		if r.Record.Origin.Created <= a.Admitted {
			return false
		}
	}
	return true
}

// sameEnd compares one attempt on both sides.
func sameEnd(r record, job api.Job, a api.JobAttempt) error {
	if r.Record.Origin.Job != job.Job {
		return fmt.Errorf("in the store it is of job %s", r.Record.Origin.Job)
	}
	switch r.State {
	case "ended":
		// Over before the controller had an outcome: nothing of its was confirmed.
		if a.State == api.AttemptCompleted || a.State == api.AttemptInProgress {
			return fmt.Errorf("it is %s and ended in the store without an outcome", a.State)
		}
		return nil
	case "terminal_confirmed":
	default:
		return fmt.Errorf("it is %s and in the store %s", a.State, r.State)
	}
	if r.Record.Outcome == nil {
		return errors.New("it is confirmed in the store and has no outcome there")
	}
	switch operation, body := r.Record.Outcome.Operation, r.Record.Outcome.Body; operation {
	case "complete":
		var sent api.Complete
		if err := json.Unmarshal(body, &sent); err != nil {
			return err
		}
		return sameResult(sent, job, a)
	case "fail":
		var sent api.Fail
		if err := json.Unmarshal(body, &sent); err != nil {
			return err
		}
		if a.State != api.AttemptFailed || a.Failure == nil || a.Failure.Code != sent.Code || a.Failure.Message != sent.Message || a.Failure.Entered != sent.Entered {
			return fmt.Errorf("it is %s with the failure %+v, the store confirmed %s, entered %t", a.State, a.Failure, sent.Code, sent.Entered)
		}
		return nil
	default:
		return fmt.Errorf("in the store its operation is %q", operation)
	}
}

func sameResult(sent api.Complete, job api.Job, a api.JobAttempt) error {
	switch sum := sha256.Sum256(sent.Data); {
	case a.State != api.AttemptCompleted || job.Result == nil || job.Result.Attempt != a.Attempt:
		return fmt.Errorf("it is %s, the store confirmed a result", a.State)
	case string(sent.SHA256) != "sha256:"+hex.EncodeToString(sum[:]):
		return fmt.Errorf("the store's result is not of the digest %s that it confirmed", sent.SHA256)
	case job.Result.SHA256 != sent.SHA256 || job.Result.Length != sent.Length:
		return fmt.Errorf("its result is %s, the store confirmed %s", job.Result.SHA256, sent.SHA256)
	}
	return nil
}
