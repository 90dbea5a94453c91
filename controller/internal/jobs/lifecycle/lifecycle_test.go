package lifecycle

import (
	"testing"

	"pgregory.net/rapid"

	"github.com/quittance/quittance/controller/api"
	_ "github.com/quittance/quittance/integration/seed"
)

func TestStepTable(t *testing.T) {
	open := Job{State: api.JobOpen, Limit: 1}
	running := Job{State: api.JobOpen, Limit: 1, Used: 1, Admitted: true, Live: true}
	lapsed := running
	lapsed.Lapsed = true
	with := func(job Job, change func(*Job)) Job { change(&job); return job }
	in := func(job Job, state api.JobState) Job { job.State = state; return job }

	rows := []struct {
		name    string
		job     Job
		event   Event
		want    Result
		refusal api.Code
	}{
		{"admit", open, Admit, Result{Job: running}, ""},
		{"admit beside a running one", with(running, func(j *Job) { j.Limit = 5 }), Admit, Result{}, api.CodeJobBusy},
		// FR-27: the default limit never lets a timer decide.
		{"admit after a lapse, no attempt left", lapsed, Admit, Result{}, api.CodeAttemptLimit},
		{"admit after a lapse", with(lapsed, func(j *Job) { j.Limit = 2 }), Admit,
			Result{Job: with(running, func(j *Job) { j.Limit, j.Used = 2, 2 }), ExpiresLive: true}, ""},
		{"admit a closed job", in(open, api.JobClosed), Admit, Result{}, api.CodeJobNotOpen},
		{"admit a finished job", in(open, api.JobFinished), Admit, Result{}, api.CodeJobNotOpen},
		{"complete", running, Complete, Result{Job: Job{State: api.JobFinished, Limit: 1, Used: 1, Admitted: true}, StateChanged: true}, ""},
		{"complete after close", in(running, api.JobClosed), Complete, Result{Job: Job{State: api.JobFinished, Limit: 1, Used: 1, Admitted: true}, StateChanged: true}, ""},
		// FR-29: terminal absorbs.
		{"complete after cancel", in(running, api.JobCancelled), Complete, Result{Job: Job{State: api.JobCancelled, Limit: 1, Used: 1, Admitted: true}}, ""},
		{"fail", running, Fail, Result{Job: Job{State: api.JobFailed, Limit: 1, Used: 1, Admitted: true}, StateChanged: true}, ""},
		{"fail with attempts left", with(running, func(j *Job) { j.Limit = 3 }), Fail, Result{Job: Job{State: api.JobFailed, Limit: 3, Used: 1, Admitted: true}, StateChanged: true}, ""},
		{"fail, reopening", running, FailReopening, Result{Job: Job{State: api.JobOpen, Limit: 1, Reopens: 1, Admitted: true}, Reopened: true}, ""},
		{"fail, reopening a closed job", in(running, api.JobClosed), FailReopening, Result{Job: Job{State: api.JobClosed, Limit: 1, Reopens: 1, Admitted: true}, Reopened: true}, ""},
		{"fail, reopened too often", with(running, func(j *Job) { j.Reopens = 5 }), FailReopening, Result{Job: Job{State: api.JobFailed, Limit: 1, Used: 1, Reopens: 5, Admitted: true}, StateChanged: true}, ""},
		{"fail, reopening a cancelled job", in(running, api.JobCancelled), FailReopening, Result{Job: Job{State: api.JobCancelled, Limit: 1, Used: 1, Admitted: true}}, ""},
		{"close", running, Close, Result{Job: in(running, api.JobClosed), StateChanged: true}, ""},
		{"close twice", in(running, api.JobClosed), Close, Result{Job: in(running, api.JobClosed), Unchanged: true}, ""},
		{"close a failed job", in(open, api.JobFailed), Close, Result{}, api.CodeJobNotOpen},
		{"cancel", running, Cancel, Result{Job: in(running, api.JobCancelled), StateChanged: true}, ""},
		{"cancel twice", in(open, api.JobCancelled), Cancel, Result{Job: in(open, api.JobCancelled), Unchanged: true}, ""},
		{"cancel a finished job", in(open, api.JobFinished), Cancel, Result{}, api.CodeJobNotOpen},
		{"deadline before any start", open, Deadline, Result{Job: in(open, api.JobExpired), StateChanged: true}, ""},
		{"deadline while running", running, Deadline, Result{Job: in(running, api.JobCancelled), StateChanged: true}, ""},
		{"deadline after the end", in(open, api.JobFinished), Deadline, Result{Job: in(open, api.JobFinished), Unchanged: true}, ""},
		{"retry a failed job", in(with(open, func(j *Job) { j.Used = 1 }), api.JobFailed), Retry, Result{Job: Job{State: api.JobOpen, Limit: 2, Used: 1}, StateChanged: true}, ""},
		// FR-34: a silent node is not the end of the job.
		{"retry a lapsed one", lapsed, Retry, Result{Job: with(lapsed, func(j *Job) { j.Limit = 2 })}, ""},
		{"retry a lapsed one twice", with(lapsed, func(j *Job) { j.Limit = 2 }), Retry, Result{Job: with(lapsed, func(j *Job) { j.Limit = 2 }), Unchanged: true}, ""},
		{"retry a running one", running, Retry, Result{}, api.CodeNotRetryable},
		{"retry a finished job", in(open, api.JobFinished), Retry, Result{}, api.CodeNotRetryable},
		{"retry a cancelled job", in(open, api.JobCancelled), Retry, Result{}, api.CodeNotRetryable},
	}
	for _, row := range rows {
		t.Run(row.name, func(t *testing.T) {
			got, refusal := Step(row.job, row.event, 5)
			if got != row.want || refusal != row.refusal {
				t.Fatalf("got %+v %q, want %+v %q", got, refusal, row.want, row.refusal)
			}
		})
	}
}

// FR-28: equal bytes replay; opposite outcome, other bytes and expiry differ.
func TestEnd(t *testing.T) {
	rows := []struct {
		state          api.AttemptState
		complete, same bool
		want           Outcome
		code           api.Code
	}{
		{api.AttemptInProgress, true, false, Commit, ""},
		{api.AttemptInProgress, false, false, Commit, ""},
		{api.AttemptCompleted, true, true, Replay, ""},
		{api.AttemptCompleted, true, false, Refused, api.CodeOutcomeConflict},
		{api.AttemptCompleted, false, false, Refused, api.CodeOppositeOutcome},
		{api.AttemptFailed, false, true, Replay, ""},
		{api.AttemptFailed, false, false, Refused, api.CodeOutcomeConflict},
		{api.AttemptFailed, true, false, Refused, api.CodeOppositeOutcome},
		{api.AttemptExpired, true, false, Refused, api.CodeAttemptExpired},
		{api.AttemptExpired, false, false, Refused, api.CodeAttemptExpired},
	}
	for _, row := range rows {
		if outcome, code := End(row.state, row.complete, row.same); outcome != row.want || code != row.code {
			t.Errorf("%+v: got %v %q", row, outcome, code)
		}
	}
}

func TestBeat(t *testing.T) {
	standing := Heartbeat{Seq: 5, Phase: api.PhaseRunning}
	rows := []struct {
		name     string
		state    api.AttemptState
		standing Heartbeat
		next     Heartbeat
		accepted bool
		refusal  api.Code
	}{
		{"first, running", api.AttemptInProgress, Heartbeat{}, Heartbeat{Seq: 1, Phase: api.PhaseRunning}, true, ""},
		{"newer", api.AttemptInProgress, standing, Heartbeat{Seq: 6, Phase: api.PhaseRunning, Condition: api.ConditionStopping}, true, ""},
		{"older", api.AttemptInProgress, standing, Heartbeat{Seq: 4, Phase: api.PhasePreparing}, false, ""},
		{"equal", api.AttemptInProgress, standing, standing, false, ""},
		{"equal after the end", api.AttemptCompleted, standing, standing, false, ""},
		{"equal, other content", api.AttemptInProgress, standing, Heartbeat{Seq: 5, Phase: api.PhasePreparing}, false, api.CodeProgressConflict},
		{"phase back", api.AttemptInProgress, standing, Heartbeat{Seq: 6, Phase: api.PhasePreparing}, false, api.CodePhaseBack},
		// FR-29: late progress resurrects nothing.
		{"newer after the end", api.AttemptFailed, standing, Heartbeat{Seq: 6, Phase: api.PhaseRunning}, false, api.CodeAttemptOver},
		{"newer after expiry", api.AttemptExpired, standing, Heartbeat{Seq: 6, Phase: api.PhaseRunning}, false, api.CodeAttemptExpired},
	}
	for _, row := range rows {
		if accepted, refusal := Beat(row.state, row.standing, row.next); accepted != row.accepted || refusal != row.refusal {
			t.Errorf("%s: got %v %q", row.name, accepted, refusal)
		}
	}
}

// Whatever happens in whatever order: counted attempts never pass the limit,
// terminal states are left only by a retry of a failed job, and a job is
// reopened at most maxReopens times.
func TestAnySequenceKeepsTheBounds(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		const maxReopens = 3
		job := Job{State: api.JobOpen, Limit: rapid.IntRange(1, 3).Draw(t, "limit")}
		for range rapid.IntRange(1, 60).Draw(t, "steps") {
			event := Event(rapid.IntRange(int(Admit), int(Retry)).Draw(t, "event"))
			if !job.Live && (event == Complete || event == Fail || event == FailReopening) {
				continue // End refuses these before Step is asked
			}
			if job.Live && rapid.Bool().Draw(t, "lapse") {
				job.Lapsed = true
			}
			before := job
			result, refusal := Step(job, event, maxReopens)
			if refusal != "" {
				continue
			}
			job = result.Job
			if job.Used > job.Limit || job.Used < 0 || job.Reopens > maxReopens {
				t.Fatalf("out of bounds after %v: %+v → %+v", event, before, job)
			}
			if before.State.Terminal() && job.State != before.State && !(before.State == api.JobFailed && event == Retry) {
				t.Fatalf("%s was left by %v to %s", before.State, event, job.State)
			}
			if event == Admit && before.Live && !before.Lapsed {
				t.Fatal("admitted beside a running attempt")
			}
		}
	})
}
