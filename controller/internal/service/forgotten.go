package service

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"github.com/quittance/quittance/controller/api"
	"github.com/quittance/quittance/controller/internal/attempt"
	"github.com/quittance/quittance/controller/internal/provider"
	"github.com/quittance/quittance/controller/internal/store"
)

// forgotten is a job that the service offers although it must not: this store
// holds an attempt at it that the service lost, as after its database was
// restored from an older backup. Taking it would run again, and unseen, what ran
// before (I27).
type forgotten struct {
	job, key, what string
}

func (f forgotten) String() string {
	return fmt.Sprintf("the service offers job %s, of which attempt %s of this store %s; was the job database restored from an older backup? "+
		"the job is not taken: cancel it (`agentctl jobs cancel`), and submit it anew if it shall run again; the runbook job-database says more", f.job, f.key, f.what)
}

// forgot looks whether this store holds an attempt at the job that the service
// lost; nil: it does not. A job that was retried has earlier attempts too, which
// the service still shows.
func (s *Service) forgot(ctx context.Context, job string) (*forgotten, error) {
	for _, e := range s.Store.Active() {
		if attempt.OriginOf(e.Record).Job != job {
			continue
		}
		if f, err := s.lost(ctx, e); f != nil || err != nil {
			return f, err
		}
	}
	prefix := attempt.KeyPrefix(job)
	for _, h := range s.Store.History() {
		if !strings.HasPrefix(h.Key, prefix) {
			continue
		}
		e, err := s.Store.Archived(h)
		if errors.Is(err, store.ErrNotFound) {
			continue // trimmed meanwhile: as if it had been trimmed before
		}
		if err != nil {
			return nil, fmt.Errorf("an earlier attempt at job %s: %w", job, err)
		}
		if f, err := s.lost(ctx, e); f != nil || err != nil {
			return f, err
		}
	}
	return nil, nil
}

// lost looks whether the service lost one attempt of this store at an open job.
func (s *Service) lost(ctx context.Context, e store.Entry) (*forgotten, error) {
	f := &forgotten{job: attempt.OriginOf(e.Record).Job, key: e.Key}
	if c, confirmed := e.Record.(attempt.TerminalConfirmed); confirmed && c.Outcome.Operation == attempt.OperationComplete {
		f.what = "has a confirmed result" // such a job is finished for good
		return f, nil
	}
	admission, admitted := attempt.AdmissionOf(e.Record)
	if !admitted || !attempt.WasEntered(e.Record) {
		return nil, nil // nothing ran
	}
	_, _, err := s.API.Attempt(ctx, admission.Reference)
	if failure, ok := errors.AsType[*provider.Failure](err); ok && failure.Class == provider.ClassRefused && failure.Code == api.CodeNotFound {
		f.what = "was executed, and the service does not know it"
		return f, nil
	}
	if err != nil {
		return nil, &blocked{reason: "an earlier attempt at job " + f.job + " cannot be read", cause: err}
	}
	return nil, nil
}

// over deals with an attempt that the service shows in progress and that is
// archived here: its end was confirmed, refused for good or decided by a person,
// so nobody works on it any more. A confirmed outcome is sent again, byte for
// byte (I26): the job ends as it had, and nothing runs. ended tells that it has;
// otherwise why is what the reason for a lack of places adds, "" where the next
// cycle may send it once more. What permits no repeat is not sent again before a
// restart.
func (s *Service) over(ctx context.Context, a api.Attempt) (ended bool, why string, err error) {
	s.mu.Lock()
	why, given := s.refused[a.Key]
	s.mu.Unlock()
	if given {
		return false, why, nil
	}
	e, err := s.archived(a.Key)
	if err != nil {
		return false, "", fmt.Errorf("attempt %s, which the service shows in progress: %w", a.Key, err)
	}
	cause := "it has no confirmed outcome"
	if record, ok := e.Record.(attempt.TerminalConfirmed); ok {
		err := s.Repeat(ctx, a.Key, record)
		switch {
		case err == nil:
			return true, "", nil
		case ctx.Err() != nil:
			return false, "", context.Cause(ctx)
		case provider.Repeatable(err):
			s.Log.Warn("outcome not confirmed again", append(provider.Fields(err), "job", a.Job, "attempt", a.Key, "reference", a.Attempt, "error", err)...)
			return false, "", nil
		}
		cause = err.Error()
	}
	text := fmt.Sprintf("attempt %s of job %s is over here and could not be ended there: %s; was the job database restored from an older backup? the runbook job-database says how to go on", a.Key, a.Job, cause)
	why = ": " + text
	s.mu.Lock()
	s.refused[a.Key] = why
	s.mu.Unlock()
	s.Log.Error("the service shows an attempt in progress that is over", "job", a.Job, "attempt", a.Key, "reference", a.Attempt, "reason", text)
	return false, why, nil
}

// archived reads an archived record by its key; one that was trimmed meanwhile
// is empty.
func (s *Service) archived(key string) (store.Entry, error) {
	for _, h := range s.Store.History() {
		if h.Key == key {
			e, err := s.Store.Archived(h)
			if errors.Is(err, store.ErrNotFound) {
				return store.Entry{Key: key}, nil
			}
			return e, err
		}
	}
	return store.Entry{Key: key}, nil
}

// once tells of something that the service lost, once for each job.
func (s *Service) once(id, message string, fields ...any) {
	s.mu.Lock()
	told := s.told[id]
	s.told[id] = true
	s.mu.Unlock()
	if !told {
		s.Log.Error(message, fields...)
	}
}
