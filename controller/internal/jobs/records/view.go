package records

import (
	"github.com/quittance/quittance/controller/api"
	"github.com/quittance/quittance/protocol"
)

// view is a job as its submitter sees it.
func (t *transaction) view(j *job) (api.Job, error) {
	view := api.Job{
		Job: j.id, Kind: j.kind, State: j.state, Version: j.version, CreatedBy: j.createdBy, Created: stamp(j.created),
		CancelAt: stampOrNil(j.cancelAt), Times: []api.StateTime{}, Labels: []api.Label{}, Input: j.input,
		AttemptLimit: j.limit, AttemptsUsed: j.used, Reopens: j.reopens, Attempts: []api.JobAttempt{}, ServiceTime: stamp(t.now),
		CancelPending: j.state == api.JobCancelled && j.live != nil,
	}
	if err := t.rows(func(scan func(...any) error) error {
		var entry api.StateTime
		var at int64
		if err := scan(&entry.State, &at); err != nil {
			return err
		}
		entry.At = stamp(at)
		view.Times = append(view.Times, entry)
		return nil
	}, `SELECT state, at FROM times WHERE job = ? ORDER BY position`, j.id); err != nil {
		return view, err
	}
	if err := t.rows(func(scan func(...any) error) error {
		var label api.Label
		if err := scan(&label.Name, &label.Value); err != nil {
			return err
		}
		view.Labels = append(view.Labels, label)
		return nil
	}, `SELECT name, value FROM labels WHERE job = ? ORDER BY position`, j.id); err != nil {
		return view, err
	}
	var err error
	if view.Uploads, err = t.members(j.id); err != nil {
		return view, err
	}
	attempts, err := t.attempts(j.id)
	if err != nil {
		return view, err
	}
	for _, a := range attempts {
		if err := t.viewAttempt(&view, a); err != nil {
			return view, err
		}
		if j.result != nil && a.id == *j.result {
			view.Result = resultView(a)
		}
	}
	if j.state == api.JobFailed && len(view.Attempts) > 0 {
		view.Failure = view.Attempts[len(view.Attempts)-1].Failure
	}
	if j.state == api.JobOpen && j.live == nil {
		view.Condition = conditionView(api.ConditionWaitingForCapacity, j.opened)
	}
	return view, nil
}

func (t *transaction) attempts(job string) ([]*attempt, error) {
	var attempts []*attempt
	err := t.rows(func(scan func(...any) error) error {
		a := new(attempt)
		attempts = append(attempts, a)
		return scan(a.targets()...)
	}, `SELECT `+attemptColumns+` FROM attempts WHERE job = ? ORDER BY position`, job)
	return attempts, err
}

func conditionView(code api.Condition, at int64) *api.ConditionView {
	text, _ := code.Text()
	return &api.ConditionView{Code: code, Message: text.Message, Next: text.Next, ObservedAt: stamp(at)}
}

func resultView(a *attempt) *api.ResultView {
	return &api.ResultView{
		Attempt: a.id, Schema: a.result.Schema, Length: a.result.Length, SHA256: a.result.SHA256, CommittedAt: stamp(*a.ended),
	}
}

// viewAttempt adds an attempt to a job's view, with what the job shows of its
// last execution.
func (t *transaction) viewAttempt(view *api.Job, a *attempt) error {
	shown := api.JobAttempt{
		Attempt: a.id, Provider: a.provider, State: a.state, Quiet: a.lapsed(t.now), Counted: a.counted,
		Admitted: stamp(a.admitted), LeaseExpires: stamp(a.leaseExpires), Ended: stampOrNil(a.ended), Executions: []api.Execution{},
	}
	if a.beat.Seq > 0 {
		shown.Phase, shown.LastHeard = &a.beat.Phase, stampOrNil(&a.observed)
	}
	if a.state == api.AttemptInProgress {
		admitted := stamp(a.admitted)
		view.RunningSince = &admitted
		if a.beat.Condition != "" {
			shown.Condition = conditionView(a.beat.Condition, a.conditionAt)
			view.Condition = shown.Condition
		}
	}
	if a.state == api.AttemptFailed {
		text, _ := a.failCode.Text()
		shown.Failure = &api.FailureView{Code: a.failCode, Text: text.Message, Next: a.failNext, Message: a.failMessage, Entered: a.entered}
		if a.failNext == "" {
			shown.Failure.Next = text.Next
		}
	}
	provenance, err := a.provenanceOf()
	if err != nil {
		return err
	}
	if provenance != nil && len(provenance.Executions) > 0 {
		shown.Executions = provenance.Executions
		last := &provenance.Executions[len(provenance.Executions)-1]
		view.OOM, view.MemoryPeak, view.MemoryLimit = last.OOM, nil, nil
		if last.Peaks != nil {
			view.MemoryPeak = last.Peaks.MemoryBytes
		}
		if last.Limits != nil {
			view.MemoryLimit = &last.Limits.MemoryBytes
		}
	}
	if _, err := t.row([]any{&shown.Receipts.Total, &shown.Receipts.Verified},
		`SELECT COUNT(*), COALESCE(SUM(CASE WHEN trust = ? THEN 1 ELSE 0 END), 0) FROM host_receipts WHERE attempt = ?`,
		api.TrustVerified, a.id); err != nil {
		return err
	}
	view.Attempts = append(view.Attempts, shown)
	return nil
}

func (a *attempt) provenanceOf() (*api.Provenance, error) {
	if len(a.provenance) == 0 {
		return nil, nil
	}
	provenance := new(api.Provenance)
	if err := api.Decode(a.provenance, api.RouteComplete.MaxRequest, provenance); err != nil {
		return nil, err
	}
	return provenance, nil
}

// Provenance of a job, per attempt.
func (t *transaction) provenance(j *job) (api.JobProvenance, error) {
	answer := api.JobProvenance{Job: j.id, Kind: j.kind, Input: j.input, Attempts: []api.AttemptProvenance{}}
	attempts, err := t.attempts(j.id)
	if err != nil {
		return answer, err
	}
	for _, a := range attempts {
		provenance, err := a.provenanceOf()
		if err != nil {
			return answer, err
		}
		shown := api.AttemptProvenance{Attempt: a.id, Provider: a.provider, State: a.state, Provenance: provenance}
		if provenance != nil {
			for i := range provenance.Executions {
				if provenance.Executions[i].Entered {
					shown.Executions++
				}
			}
		}
		if j.result != nil && *j.result == a.id {
			answer.Result = resultView(a)
		}
		answer.Attempts = append(answer.Attempts, shown)
	}
	return answer, nil
}

// verdict is the OOM verdict in words, with its counters.
func verdict(oom *protocol.OOM) string {
	switch {
	case oom == nil:
		return "no verdict on memory"
	case oom.Verdict == protocol.VerdictKilled && oom.Scope != nil:
		return "the kernel killed for memory (scope " + string(*oom.Scope) + ")"
	case oom.Verdict == protocol.VerdictKilled:
		return "the kernel killed for memory"
	case oom.Verdict == protocol.VerdictNotKilled:
		return "the kernel did not kill for memory"
	}
	return "whether the kernel killed for memory is unknown"
}
