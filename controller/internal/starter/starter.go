// Package starter takes a selected job to an admitted attempt: the record with
// the exact START bytes first, then START with these bytes until its answer is
// settled. It owns START's repetition and the rule of when a refusal may be
// believed. It must not know how jobs are selected or what an attempt does.
package starter

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/hashicorp/go-hclog"

	"github.com/quittance/quittance/controller/api"
	"github.com/quittance/quittance/controller/internal/attempt"
	"github.com/quittance/quittance/controller/internal/claims"
	"github.com/quittance/quittance/controller/internal/failpoint"
	"github.com/quittance/quittance/controller/internal/journal"
	"github.com/quittance/quittance/controller/internal/provider"
	"github.com/quittance/quittance/controller/internal/retry"
	"github.com/quittance/quittance/controller/internal/store"
	"github.com/quittance/quittance/protocol"
)

// API is what this package needs of the job service.
type API interface {
	Start(ctx context.Context, body []byte, beforeSend func(expires time.Time) error) (api.Admission, attempt.Reply, error)
}

// Store is what this package needs of the attempt store.
type Store interface {
	journal.Store
	Create(ctx context.Context, r attempt.StartPending) (store.Entry, error)
	ID() protocol.ID
}

// Starter makes attempts. It may be used by every lane.
type Starter struct {
	API    API
	Store  Store
	Claims *claims.Table
	Scope  attempt.Scope
	Policy retry.Policy
	Log    hclog.Logger
}

// Begin claims a new attempt key and writes the StartPending record; nothing is
// sent. executions is how often the work may run at most, 2 only where the
// offering is pure (I27). Errors are those of the store.
func (s *Starter) Begin(ctx context.Context, lane int, job api.FeedJob, executions int) (*journal.Attempt, error) {
	key := attempt.KeyPrefix(job.Job) + string(protocol.NewID())
	start := api.Start{Key: key, Job: job.Job, Kind: job.Kind, Store: s.Store.ID(), Lane: lane, Input: job.Input}
	if err := start.Validate(); err != nil {
		return nil, fmt.Errorf("starter: %w", err)
	}
	claim, err := s.Claims.Claim(key)
	if err != nil {
		return nil, err
	}
	entry, err := s.Store.Create(ctx, attempt.StartPending{
		Origin: attempt.Origin{
			Scope: s.Scope, Lane: lane, Key: key, Job: job.Job, Kind: job.Kind,
			Input:         attempt.Input{Schema: job.Input.Schema, Length: job.Input.Length, SHA256: job.Input.SHA256},
			MaxExecutions: executions,
			Start:         api.Encode(start),
			Created:       protocol.TimestampOf(time.Now()),
		},
	})
	if err != nil {
		claim.Release()
		return nil, err
	}
	failpoint.Hit(failpoint.StartPending)
	return journal.Open(s.Store, entry, claim), nil
}

// errWaiting: the refusal may not be believed yet, because an earlier send
// whose answer is unknown could still take effect.
var errWaiting = errors.New("an earlier send of this START may still take effect")

// Send repeats the record's START until the record is Acknowledged or Ended.
// An error leaves it StartPending: the window is over, ctx ended, or the service
// refused in a way that no repetition mends.
func (s *Starter) Send(ctx context.Context, j *journal.Attempt) error {
	record, ok := j.Record().(attempt.StartPending)
	if !ok {
		return nil
	}
	t := &try{s: s, j: j}
	if record.LatestExpiry != nil {
		t.unknown = record.LatestExpiry.Time() // sends of an earlier process
	}
	err := s.Policy.Do(ctx, func(ctx context.Context) error { return t.send(ctx, record.Origin.Start) }, t.permits, func(n retry.Notice) {
		s.Log.Warn("START not settled", append(provider.Fields(n.Err), "attempt", j.Key(), "job", record.Origin.Job, "tries", n.Tries, "wait", n.Wait, "error", n.Err)...)
	})
	if err != nil {
		return fmt.Errorf("starter: %w", err)
	}
	return nil
}

// try is one window of repetition.
type try struct {
	s *Starter
	j *journal.Attempt
	// unknown is the latest signature expiry of any send whose answer is not
	// known; zero where there is none.
	unknown time.Time
}

func (t *try) send(ctx context.Context, body []byte) error {
	var expires time.Time
	admission, reply, err := t.s.API.Start(ctx, body, func(at time.Time) error {
		expires = at
		err := t.j.Apply(ctx, attempt.StartSending{Expires: protocol.TimestampOf(at)})
		failpoint.Hit(failpoint.StarterSending)
		return err
	})
	failpoint.Hit(failpoint.StarterSent)
	if err == nil {
		return t.admitted(ctx, admission, reply)
	}
	failure, settled := provider.StartRefused(err)
	if !settled {
		if f, ok := errors.AsType[*provider.Failure](err); !ok || f.Disposition != protocol.Refused {
			t.unknown = later(t.unknown, expires)
		}
		return err
	}
	if !t.unknown.IsZero() && !failure.Date.After(t.unknown) {
		return errors.Join(errWaiting, err)
	}
	t.s.Log.Info("START refused", "attempt", t.j.Key(), "code", failure.Code)
	return t.j.Apply(ctx, attempt.Over{Reason: attempt.EndStartRefused, Reply: failure.Reply, At: now()})
}

func (t *try) admitted(ctx context.Context, admission api.Admission, reply attempt.Reply) error {
	admitted := attempt.Admission{Reference: admission.Attempt, Reply: reply}
	if admission.State != api.AttemptInProgress {
		reason := EndOf(admission.State)
		return t.j.Apply(ctx, attempt.Over{Reason: reason, Admission: &admitted, Reply: reply, At: now()})
	}
	if err := t.j.Claim().Bind(admission.Attempt); err != nil {
		return err
	}
	// The answer is settled, so its record is written to its end.
	return t.j.Apply(context.WithoutCancel(ctx), attempt.Admitted{Admission: admitted})
}

// permits says which failures the same bytes may be sent again after.
func (t *try) permits(err error) bool {
	if errors.Is(err, errWaiting) || provider.Repeatable(err) {
		return true
	}
	f, ok := errors.AsType[*provider.Failure](err)
	return ok && f.Code == api.CodeHelloRequired // the next hello mends it
}

// EndOf is the end reason that an attempt's terminal state stands for.
func EndOf(s api.AttemptState) attempt.EndReason {
	switch s {
	case api.AttemptCompleted:
		return attempt.EndCompleted
	case api.AttemptFailed:
		return attempt.EndFailed
	}
	return attempt.EndExpired
}

func later(a, b time.Time) time.Time {
	if b.After(a) {
		return b
	}
	return a
}

func now() protocol.Timestamp { return protocol.TimestampOf(time.Now()) }
