package records

import (
	"context"
	"fmt"
	"strings"

	"github.com/quittance/quittance/controller/api"
	"github.com/quittance/quittance/protocol"
)

// Why tells what happened to a job in one paragraph, with the evidence.
func (s *Store) Why(ctx context.Context, workspace, id string) (api.Why, error) {
	var why api.Why
	err := s.read(ctx, func(t *transaction) error {
		j, err := t.own(workspace, id)
		if err != nil {
			return err
		}
		view, err := t.view(j)
		if err != nil {
			return err
		}
		receipts, err := t.receipts(j.id)
		if err != nil {
			return err
		}
		why = explain(&view, receipts)
		return nil
	})
	return why, err
}

// explain is pure: the same facts always give the same words.
func explain(job *api.Job, receipts []api.JobReceipt) api.Why {
	why := api.Why{Job: job.Job, Evidence: []string{}}
	var text []string
	say := func(format string, args ...any) { text = append(text, fmt.Sprintf(format, args...)) }

	say("The job of kind %s was submitted by %s at %s.", job.Kind, job.CreatedBy, job.Created)
	for i := range job.Attempts {
		sayAttempt(say, &job.Attempts[i], i+1)
	}
	switch job.State {
	case api.JobOpen:
		if job.RunningSince == nil {
			say("It waits for an attempt: %s", job.Condition.Message)
		}
	case api.JobClosed:
		say("It was closed: no further attempt starts.")
	case api.JobFinished:
		say("It is finished: the result of %d bytes was committed at %s.", job.Result.Length, job.Result.CommittedAt)
	case api.JobFailed:
		say("So the job failed.")
		if job.Failure != nil {
			say("%s", job.Failure.Next)
		}
	case api.JobCancelled:
		say("It was cancelled.")
		if job.CancelPending {
			say("Its attempt has not reported its end yet.")
		}
	case api.JobExpired:
		say("Its time to start passed before any attempt began, so it expired.")
	}
	for i := range job.Attempts {
		for e := range job.Attempts[i].Executions {
			why.Evidence = append(why.Evidence, evidence(&job.Attempts[i].Executions[e]))
		}
	}
	for i := range receipts {
		r := &receipts[i]
		why.Evidence = append(why.Evidence, fmt.Sprintf("receipt %d (%s) of allocation %d, generation %s: %s", r.Index, r.Kind, r.Number, r.Generation, r.Trust))
	}
	why.Text = strings.Join(text, " ")
	return why
}

func sayAttempt(say func(string, ...any), a *api.JobAttempt, number int) {
	say("Attempt %d was admitted to %s at %s.", number, a.Provider, a.Admitted)
	switch a.State {
	case api.AttemptInProgress:
		if a.Quiet {
			say("It is quiet: its lease lapsed at %s and it may or may not still run; retry allows another attempt.", a.LeaseExpires)
			return
		}
		say("It is in progress.")
		if a.Condition != nil {
			say("%s", a.Condition.Message)
		}
	case api.AttemptCompleted:
		say("It completed at %s.", *a.Ended)
	case api.AttemptExpired:
		say("Its lease lapsed and another attempt was admitted at %s.", *a.Ended)
	case api.AttemptFailed:
		say("It failed at %s with %s: %s", *a.Ended, a.Failure.Code, a.Failure.Text)
		if a.Failure.Entered {
			say("The work may have run.")
		} else {
			say("The work did not begin.")
		}
		if !a.Counted {
			say("The attempt does not count and the job was opened again.")
		}
	}
	for i := range a.Executions {
		e := &a.Executions[i]
		say("In allocation %d of profile %s, %s%s.", e.Number, e.Profile, verdict(e.OOM), peak(e))
	}
}

func peak(e *api.Execution) string {
	if e.Peaks == nil || e.Peaks.MemoryBytes == nil {
		return ""
	}
	used := fmt.Sprintf("; memory peaked at %.1f MiB", float64(*e.Peaks.MemoryBytes)/(1<<20))
	if e.Limits != nil {
		used += fmt.Sprintf(" of %.1f MiB", float64(e.Limits.MemoryBytes)/(1<<20))
	}
	return used
}

// evidence is the host's facts about one execution, counters raw (I24).
func evidence(e *api.Execution) string {
	parts := []string{fmt.Sprintf("allocation %d, generation %s, profile %s (%s)", e.Number, e.Generation, e.Profile, e.ProfileDigest)}
	if e.Exit != nil {
		code := "unknown"
		if e.Exit.Code != nil {
			code = fmt.Sprint(*e.Exit.Code)
		}
		parts = append(parts, fmt.Sprintf("exit code %s seen by %s", code, e.Exit.Source))
	}
	if e.OOM != nil {
		parts = append(parts, "oom "+string(e.OOM.Verdict)+" from "+string(e.OOM.Source)+counters(&e.OOM.Counters))
	}
	return strings.Join(parts, "; ")
}

func counters(c *protocol.Counters) string {
	var b strings.Builder
	for _, counter := range []struct {
		name  string
		value *int64
	}{{"oom", c.OOM}, {"oom_kill", c.OOMKill}, {"oom_group_kill", c.OOMGroupKill}, {"max", c.Max}, {"failcnt", c.FailCnt}} {
		if counter.value != nil {
			fmt.Fprintf(&b, " %s=%d", counter.name, *counter.value)
		}
	}
	return b.String()
}
