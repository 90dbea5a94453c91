package records

import (
	"context"

	"github.com/quittance/quittance/controller/api"
	"github.com/quittance/quittance/controller/internal/jobs/lifecycle"
	"github.com/quittance/quittance/protocol"
)

// Start admits an attempt. body is the request's exact bytes: the same key with
// the same bytes is a replay, answered before anything else is looked at (FR-26).
func (s *Store) Start(ctx context.Context, provider string, start *api.Start, body []byte) (api.Admission, error) {
	var admission api.Admission
	err := s.write(ctx, func(t *transaction) error {
		known, err := t.attempt(`provider = ? AND attempt_key = ?`, provider, start.Key)
		if err != nil {
			return err
		}
		if known != nil {
			if known.startSHA256 != hexSHA256(body) {
				return Refuse(api.CodeKeyConflict)
			}
			j, err := t.job(known.job)
			if err != nil {
				return err
			}
			admission = s.admission(known, j, true)
			return nil
		}
		j, err := t.admissible(provider, start)
		if err != nil {
			return err
		}
		live, err := t.liveAttempt(j)
		if err != nil {
			return err
		}
		next, code := lifecycle.Step(j.facts(live, t.now), lifecycle.Admit, s.policy.MaxReopens)
		if code != "" {
			return Refuse(code)
		}
		a := &attempt{
			id: api.NewAttemptID(), provider: provider, key: start.Key, job: j.id, state: api.AttemptInProgress, counted: true,
			store: start.Store, lane: start.Lane, startSHA256: hexSHA256(body), admitted: t.now,
			leaseExpires: t.now + s.policy.AttemptLease.Microseconds(),
		}
		if _, err := t.row([]any{&a.position}, `SELECT COUNT(*) FROM attempts WHERE job = ?`, j.id); err != nil {
			return err
		}
		if next.ExpiresLive {
			live.state, live.ended = api.AttemptExpired, &t.now
			if err := t.saveAttempt(live); err != nil {
				return err
			}
			if err := t.addEvent(j, event{kind: api.EventExpired, attempt: live}); err != nil {
				return err
			}
		}
		j.adopt(next.Job)
		j.live = &a.id
		if err := t.insertAttempt(a); err != nil {
			return err
		}
		if err := t.addEvent(j, event{kind: api.EventStarted, attempt: a}); err != nil {
			return err
		}
		admission = s.admission(a, j, false)
		return t.saveJob(j)
	})
	return admission, err
}

// admissible finds the job of a new start and refuses what does not depend on
// the job's lifecycle.
func (t *transaction) admissible(provider string, start *api.Start) (*job, error) {
	var store protocol.ID
	var lanes, running int64
	found, err := t.row([]any{&store, &lanes}, `SELECT store, lanes FROM providers WHERE provider = ?`, provider)
	switch {
	case err != nil:
		return nil, err
	case !found:
		return nil, Refuse(api.CodeHelloRequired)
	case store != start.Store:
		return nil, refuseField(api.CodeOtherStore, "/store")
	}
	j, err := t.job(start.Job)
	if err != nil {
		return nil, err
	}
	if j == nil {
		return nil, refuseField(api.CodeNotFound, "/job")
	}
	offered, err := t.offers(provider, start.Kind)
	switch {
	case err != nil:
		return nil, err
	case j.kind != start.Kind || !offered:
		return nil, refuseField(api.CodeKindMismatch, "/kind")
	case j.input != start.Input:
		return nil, refuseField(api.CodeInputMismatch, "/input")
	case j.cancelAt != nil && *j.cancelAt <= t.now:
		return nil, Refuse(api.CodeJobNotOpen)
	}
	if _, err := t.row([]any{&running}, `SELECT COUNT(*) FROM attempts WHERE provider = ? AND state = ?`,
		provider, api.AttemptInProgress); err != nil {
		return nil, err
	}
	if running >= lanes {
		return nil, Refuse(api.CodeProviderLimit)
	}
	return j, nil
}

func (s *Store) admission(a *attempt, j *job, replayed bool) api.Admission {
	return api.Admission{
		Attempt: a.id, Key: a.key, Job: a.job, State: a.state, JobState: j.state, Admitted: stamp(a.admitted),
		LeaseMillis: s.policy.AttemptLease.Milliseconds(), Replayed: replayed,
	}
}

// Attempt reads one attempt of a provider.
func (s *Store) Attempt(ctx context.Context, provider, id string) (api.Attempt, error) {
	var view api.Attempt
	err := s.read(ctx, func(t *transaction) error {
		a, err := t.attempt(`attempt = ? AND provider = ?`, id, provider)
		if err != nil {
			return err
		}
		if a == nil {
			return Refuse(api.CodeNotFound)
		}
		view, err = t.attemptView(a)
		return err
	})
	return view, err
}

func (t *transaction) attemptView(a *attempt) (api.Attempt, error) {
	j, err := t.job(a.job)
	if err != nil {
		return api.Attempt{}, err
	}
	return api.Attempt{
		Attempt: a.id, Key: a.key, Job: a.job, Kind: j.kind, State: a.state, JobState: j.state, Quiet: a.lapsed(t.now),
		Admitted: stamp(a.admitted), LeaseExpires: stamp(a.leaseExpires), Ended: stampOrNil(a.ended), ObservedAt: stamp(t.now),
	}, nil
}

// Inventory lists a provider's attempts in progress, oldest first.
func (s *Store) Inventory(ctx context.Context, provider string, limit int, cursor string) (api.Inventory, error) {
	after, id, err := parseCursor(cursor)
	if err != nil {
		return api.Inventory{}, err
	}
	page := api.Inventory{State: api.AttemptInProgress, Limit: limit}
	err = s.read(ctx, func(t *transaction) error {
		page.Attempts, page.NextCursor = []api.Attempt{}, nil
		var found []*attempt
		if err := t.rows(func(scan func(...any) error) error {
			a := new(attempt)
			found = append(found, a)
			return scan(a.targets()...)
		}, `SELECT `+attemptColumns+` FROM attempts WHERE provider = ? AND state = ? AND (admitted, attempt) > (?, ?)
			ORDER BY admitted, attempt LIMIT ?`, provider, api.AttemptInProgress, after, id, limit+1); err != nil {
			return err
		}
		for i, a := range found {
			if i == limit {
				next := formatCursor(found[i-1].admitted, found[i-1].id)
				page.NextCursor = &next
				break
			}
			view, err := t.attemptView(a)
			if err != nil {
				return err
			}
			page.Attempts = append(page.Attempts, view)
		}
		return nil
	})
	return page, err
}

// Progress takes a heartbeat and answers with the one that stands.
func (s *Store) Progress(ctx context.Context, provider, id string, progress *api.Progress) (api.ProgressAnswer, error) {
	var answer api.ProgressAnswer
	err := s.write(ctx, func(t *transaction) error {
		a, err := t.attempt(`attempt = ? AND provider = ?`, id, provider)
		if err != nil {
			return err
		}
		if a == nil {
			return Refuse(api.CodeNotFound)
		}
		if err := t.heard(provider, progress.Store); err != nil {
			return err
		}
		next := lifecycle.Heartbeat{Seq: progress.Seq, Phase: progress.Phase}
		if progress.Condition != nil {
			next.Condition = *progress.Condition
		}
		accepted, code := lifecycle.Beat(a.state, a.beat, next)
		if code != "" {
			return Refuse(code)
		}
		if accepted {
			if err := t.beat(a, next, progress.Condition); err != nil {
				return err
			}
		}
		answer = api.ProgressAnswer{
			Attempt: a.id, Seq: a.beat.Seq, Phase: a.beat.Phase, ObservedAt: stamp(a.observed),
			LeaseMillis: s.policy.AttemptLease.Milliseconds(),
		}
		if a.beat.Condition != "" {
			answer.Condition = &a.beat.Condition
		}
		return nil
	})
	return answer, err
}

// heard checks that the announced store speaks and notes that it did.
func (t *transaction) heard(provider string, store protocol.ID) error {
	changed, err := t.Exec(t.ctx, `UPDATE providers SET heard = ? WHERE provider = ? AND store = ?`, t.now, provider, store)
	if err != nil {
		return err
	}
	if changed == 0 {
		return refuseField(api.CodeOtherStore, "/store")
	}
	return nil
}

func (t *transaction) beat(a *attempt, next lifecycle.Heartbeat, condition *api.Condition) error {
	visible := next.Phase != a.beat.Phase || next.Condition != a.beat.Condition || a.quiet
	if next.Condition != a.beat.Condition {
		a.conditionAt = t.now
	}
	a.beat, a.observed, a.quiet = next, t.now, false
	a.leaseExpires = t.now + t.store.policy.AttemptLease.Microseconds()
	if err := t.saveAttempt(a); err != nil || !visible {
		return err
	}
	j, err := t.job(a.job)
	if err != nil {
		return err
	}
	if err := t.addEvent(j, event{kind: api.EventProgress, attempt: a, phase: &next.Phase, condition: condition}); err != nil {
		return err
	}
	return t.saveJob(j)
}
