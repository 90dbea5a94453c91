// Package lifecycle is the rule of what a job and its attempts may become. It is
// pure: facts and an event in, new facts and what happened to the live attempt
// out; no storage, no clock, no HTTP.
//
// # Job
//
//	            admit (a lapsed attempt expires)
//	             ┌──┐
//	create ──► open ─┴──────── complete ──────────► finished
//	            │ ▲  ──────── fail, counted ──────► failed ──┐
//	     close  │ └─────────── retry ────────────────────────┘
//	            ▼
//	          closed ── complete, fail ──► finished, failed
//	open, closed ── cancel ──► cancelled
//	open, closed ── deadline ──► expired (nothing was ever admitted) or cancelled
//
// # Table
//
//	event     | open                                  | closed                | finished, failed, cancelled, expired
//	admit     | limit left, no live one or it lapsed: | refused: job_not_open | refused: job_not_open
//	          | admitted; else job_busy, attempt_limit|                       |
//	complete  | finished                              | finished              | the attempt completes, the job stays
//	fail      | reopens: stays, uncounted; else failed| likewise              | the attempt fails, the job stays
//	close     | closed                                | no change             | refused: job_not_open
//	cancel    | cancelled                             | cancelled             | cancelled: no change; else job_not_open
//	deadline  | expired or cancelled                  | likewise              | no change
//	retry     | live one lapsed: limit raised         | refused               | failed: open, limit raised; else refused
//
// Terminal states absorb (FR-29): an attempt of a cancelled job still ends
// exactly, its outcome changes nothing that the submitter sees as the job's
// state. No timer ever admits a further attempt beyond the limit.
package lifecycle

import "github.com/quittance/quittance/controller/api"

// Job is what decides what may happen to a job.
type Job struct {
	State    api.JobState
	Limit    int  // attempts that may be counted
	Used     int  // counted attempts, the live one included
	Reopens  int  // failed attempts that were not counted
	Admitted bool // any attempt was ever admitted
	Live     bool // an attempt is in progress
	Lapsed   bool // and its lease has lapsed
}

// Event is something that happens to a job.
type Event int

// The events.
const (
	Admit Event = iota
	Complete
	Fail
	FailReopening // a FAIL that would leave the job open, the bound on it aside
	Close
	Cancel
	Deadline
	Retry
)

// Result is a job after an event.
type Result struct {
	Job          Job
	ExpiresLive  bool // the lapsed live attempt becomes expired
	Reopened     bool // the failed attempt is not counted, the job stays as it was
	Unchanged    bool // the event had happened already
	StateChanged bool
}

// Step applies an event. maxReopens bounds how often a job is reopened. A
// refusal is a code without effect; complete and fail are never refused here,
// because whether an attempt may still end is the attempt's own rule ([End]).
func Step(job Job, event Event, maxReopens int) (Result, api.Code) {
	switch event {
	case Admit:
		return admit(job)
	case Complete, Fail, FailReopening:
		return end(job, event, maxReopens), ""
	case Close:
		if job.State == api.JobClosed {
			return Result{Job: job, Unchanged: true}, ""
		}
		if job.State != api.JobOpen {
			return Result{}, api.CodeJobNotOpen
		}
		return to(job, api.JobClosed), ""
	case Cancel:
		switch {
		case job.State == api.JobCancelled:
			return Result{Job: job, Unchanged: true}, ""
		case job.State.Terminal():
			return Result{}, api.CodeJobNotOpen
		}
		return to(job, api.JobCancelled), ""
	case Deadline:
		switch {
		case job.State.Terminal():
			return Result{Job: job, Unchanged: true}, ""
		case job.Admitted:
			return to(job, api.JobCancelled), ""
		}
		return to(job, api.JobExpired), ""
	case Retry:
		return retry(job)
	}
	panic("lifecycle: unknown event")
}

func to(job Job, state api.JobState) Result {
	changed := job.State != state
	job.State = state
	return Result{Job: job, StateChanged: changed}
}

func admit(job Job) (Result, api.Code) {
	switch {
	case job.State != api.JobOpen:
		return Result{}, api.CodeJobNotOpen
	case job.Live && !job.Lapsed:
		return Result{}, api.CodeJobBusy
	case job.Used >= job.Limit:
		return Result{}, api.CodeAttemptLimit
	}
	result := Result{Job: job, ExpiresLive: job.Live}
	result.Job.Used++
	result.Job.Admitted, result.Job.Live, result.Job.Lapsed = true, true, false
	return result, ""
}

func end(job Job, event Event, maxReopens int) Result {
	job.Live, job.Lapsed = false, false
	running := job.State == api.JobOpen || job.State == api.JobClosed
	switch {
	case event == FailReopening && running && job.Reopens < maxReopens:
		job.Used--
		job.Reopens++
		return Result{Job: job, Reopened: true}
	case !running:
		return Result{Job: job}
	case event == Complete:
		return to(job, api.JobFinished)
	}
	return to(job, api.JobFailed)
}

func retry(job Job) (Result, api.Code) {
	switch {
	case job.State == api.JobFailed:
		job.Limit = job.Used + 1
		return to(job, api.JobOpen), ""
	case job.State == api.JobOpen && job.Live && job.Lapsed:
		if job.Limit > job.Used {
			return Result{Job: job, Unchanged: true}, ""
		}
		job.Limit = job.Used + 1
		return Result{Job: job}, ""
	}
	return Result{}, api.CodeNotRetryable
}

// Outcome is how a terminal request relates to an attempt.
type Outcome int

// The outcomes.
const (
	Commit  Outcome = iota // in progress: this request ends it
	Replay                 // it ended by these very bytes
	Refused                // see the code
)

// End says what a COMPLETE or FAIL does to an attempt. sameBytes says whether the
// attempt ended by exactly this request. Opposite outcome, other bytes and expiry
// are three different refusals.
func End(state api.AttemptState, complete, sameBytes bool) (Outcome, api.Code) {
	switch state {
	case api.AttemptInProgress:
		return Commit, ""
	case api.AttemptExpired:
		return Refused, api.CodeAttemptExpired
	}
	switch {
	case (state == api.AttemptCompleted) != complete:
		return Refused, api.CodeOppositeOutcome
	case !sameBytes:
		return Refused, api.CodeOutcomeConflict
	}
	return Replay, ""
}

// Heartbeat is the standing heartbeat of an attempt.
type Heartbeat struct {
	Seq       int64 // 0: none yet
	Phase     api.Phase
	Condition api.Condition // "" for none
}

// Beat says what a heartbeat does: accepted as the new standing one, answered
// with the standing one, or refused.
func Beat(state api.AttemptState, standing, next Heartbeat) (accepted bool, refusal api.Code) {
	switch {
	case next.Seq == standing.Seq && next != standing:
		return false, api.CodeProgressConflict
	case next.Seq == standing.Seq:
		return false, ""
	case state == api.AttemptExpired:
		return false, api.CodeAttemptExpired
	case state != api.AttemptInProgress:
		return false, api.CodeAttemptOver
	case next.Seq < standing.Seq:
		return false, ""
	case standing.Phase == api.PhaseRunning && next.Phase == api.PhasePreparing:
		return false, api.CodePhaseBack
	}
	return true, ""
}
