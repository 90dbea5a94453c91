package records

import (
	"context"

	"github.com/quittance/quittance/controller/api"
	"github.com/quittance/quittance/controller/internal/jobs/lifecycle"
)

// Complete ends an attempt with a result. body is the request's exact bytes:
// equal bytes replay, others are refused (FR-28).
func (s *Store) Complete(ctx context.Context, provider string, complete *api.Complete, body []byte) (api.CompleteReceipt, error) {
	var receipt api.CompleteReceipt
	outcome := hexSHA256(body)
	var worthKeeping bool
	if err := s.read(ctx, func(t *transaction) error {
		a, how, err := t.ending(provider, complete.Attempt, true, outcome)
		if err != nil {
			return err
		}
		worthKeeping = how == lifecycle.Commit
		receipt = completeReceipt(a, true)
		return nil
	}); err != nil || !worthKeeping {
		return receipt, err
	}
	if err := s.keep(ctx, complete.Data); err != nil {
		return receipt, err
	}
	err := s.write(ctx, func(t *transaction) error {
		a, how, err := t.ending(provider, complete.Attempt, true, outcome)
		if err != nil {
			return err
		}
		if how == lifecycle.Replay {
			receipt = completeReceipt(a, true)
			return nil
		}
		a.outcomeSHA256 = outcome
		a.result = api.Identity{Schema: complete.Schema, Length: complete.Length, SHA256: complete.SHA256}
		a.provenance = api.Encode(&complete.Provenance)
		for i := range complete.Provenance.Executions {
			a.entered = a.entered || complete.Provenance.Executions[i].Entered
		}
		if err := t.complete(a); err != nil {
			return err
		}
		receipt = completeReceipt(a, false)
		return nil
	})
	return receipt, err
}

// ending loads a provider's attempt and says what a terminal request does to it.
func (t *transaction) ending(provider, id string, complete bool, outcome string) (*attempt, lifecycle.Outcome, error) {
	a, err := t.attempt(`attempt = ? AND provider = ?`, id, provider)
	if err != nil {
		return nil, 0, err
	}
	if a == nil {
		return nil, 0, Refuse(api.CodeNotFound)
	}
	how, code := lifecycle.End(a.state, complete, a.outcomeSHA256 == outcome)
	if code != "" {
		return nil, 0, Refuse(code)
	}
	return a, how, nil
}

func completeReceipt(a *attempt, replayed bool) api.CompleteReceipt {
	receipt := api.CompleteReceipt{
		Attempt: a.id, Schema: a.result.Schema, Length: a.result.Length, SHA256: a.result.SHA256, Replayed: replayed,
	}
	if a.ended != nil {
		receipt.CommittedAt = stamp(*a.ended)
	}
	return receipt
}

func (t *transaction) complete(a *attempt) error {
	j, err := t.job(a.job)
	if err != nil {
		return err
	}
	next, _ := lifecycle.Step(j.facts(a, t.now), lifecycle.Complete, t.store.policy.MaxReopens)
	a.state, a.ended = api.AttemptCompleted, &t.now
	if err := t.saveAttempt(a); err != nil {
		return err
	}
	j.adopt(next.Job)
	j.live = nil
	if next.StateChanged {
		j.result = &a.id
	}
	if err := t.addEvent(j, event{kind: api.EventCompleted, attempt: a}); err != nil {
		return err
	}
	if next.StateChanged {
		if err := t.enter(j, nil); err != nil {
			return err
		}
	}
	return t.saveJob(j)
}

// Fail ends an attempt without a result. body is the request's exact bytes.
func (s *Store) Fail(ctx context.Context, provider string, fail *api.Fail, body []byte) (api.FailReceipt, error) {
	var receipt api.FailReceipt
	outcome := hexSHA256(body)
	err := s.write(ctx, func(t *transaction) error {
		a, how, err := t.ending(provider, fail.Attempt, false, outcome)
		if err != nil {
			return err
		}
		replayed := how == lifecycle.Replay
		if !replayed {
			a.outcomeSHA256 = outcome
			a.failCode, a.failMessage, a.failNext, a.entered = fail.Code, fail.Message, fail.Next, fail.Entered
			if fail.Provenance != nil {
				a.provenance = api.Encode(fail.Provenance)
			}
			if _, err := t.fail(a); err != nil {
				return err
			}
		}
		receipt = api.FailReceipt{
			Attempt: a.id, Code: a.failCode, Message: a.failMessage, CommittedAt: stamp(*a.ended), Reopened: a.reopened, Replayed: replayed,
		}
		return nil
	})
	return receipt, err
}

// fail ends an attempt whose failure members are set, and returns its job.
func (t *transaction) fail(a *attempt) (*job, error) {
	j, err := t.job(a.job)
	if err != nil {
		return nil, err
	}
	what := lifecycle.Fail
	if a.failCode.Reopens() && !a.entered {
		what = lifecycle.FailReopening
	}
	next, _ := lifecycle.Step(j.facts(a, t.now), what, t.store.policy.MaxReopens)
	a.state, a.ended, a.reopened = api.AttemptFailed, &t.now, next.Reopened
	a.counted = !next.Reopened
	if err := t.saveAttempt(a); err != nil {
		return nil, err
	}
	j.adopt(next.Job)
	j.live = nil
	if next.Reopened {
		j.opened = t.now
	}
	if err := t.addEvent(j, event{kind: api.EventFailed, attempt: a, failure: &a.failCode}); err != nil {
		return nil, err
	}
	if next.StateChanged {
		if err := t.enter(j, nil); err != nil {
			return nil, err
		}
	}
	return j, t.saveJob(j)
}
