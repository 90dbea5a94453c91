package records

import (
	"context"
	"errors"
	"time"

	"github.com/quittance/quittance/controller/api"
	"github.com/quittance/quittance/controller/internal/jobs/lifecycle"
	"github.com/quittance/quittance/protocol"
)

// blobGrace is how long a touched blob is left alone. Every request that is about
// to name a blob ends within it.
const blobGrace = time.Hour

// sweepBatch bounds the rows of one transaction.
const sweepBatch = 100

// Swept counts what one sweep did.
type Swept struct {
	Quiet, Deadlines, Uploads, Grants, Blobs int
}

// Sweep does what only time causes: attempts whose lease lapsed get their quiet
// event, jobs past cancel_after end, unused uploads, expired grants and unnamed
// blobs go. It never admits, ends or repeats an attempt. Several instances may
// sweep at once.
func (s *Store) Sweep(ctx context.Context) (Swept, error) {
	var swept Swept
	var failures []error
	for _, part := range []struct {
		count *int
		run   func(context.Context) (int, error)
	}{
		{&swept.Quiet, s.sweepQuiet}, {&swept.Deadlines, s.sweepDeadlines}, {&swept.Uploads, s.sweepUploads},
		{&swept.Grants, s.sweepGrants}, {&swept.Blobs, s.sweepBlobs},
	} {
		n, err := part.run(ctx)
		*part.count = n
		failures = append(failures, err)
	}
	if _, err := s.blobs.Sweep(blobGrace); err != nil {
		failures = append(failures, err)
	}
	return swept, errors.Join(failures...)
}

func (t *transaction) ids(query string, args ...any) ([]string, error) {
	var ids []string
	err := t.rows(func(scan func(...any) error) error {
		var id string
		if err := scan(&id); err != nil {
			return err
		}
		ids = append(ids, id)
		return nil
	}, query, args...)
	return ids, err
}

// sweepWrite runs f in a write transaction only where a read found work, so that
// an idle service writes nothing.
func (s *Store) sweepWrite(ctx context.Context, f func(t *transaction, id string) error, query string, args func(now int64) []any) (int, error) {
	count := 0
	for {
		var ids []string
		if err := s.read(ctx, func(t *transaction) (err error) {
			ids, err = t.ids(query, append(args(t.now), sweepBatch)...)
			return err
		}); err != nil || len(ids) == 0 {
			return count, err
		}
		for _, id := range ids {
			if err := s.write(ctx, func(t *transaction) error { return f(t, id) }); err != nil {
				return count, err
			}
			count++
		}
		if len(ids) < sweepBatch {
			return count, nil
		}
	}
}

func (s *Store) sweepQuiet(ctx context.Context) (int, error) {
	return s.sweepWrite(ctx, func(t *transaction, id string) error {
		a, err := t.attempt(`attempt = ?`, id)
		if err != nil || a == nil || a.quiet || !a.lapsed(t.now) {
			return err
		}
		a.quiet = true
		if err := t.saveAttempt(a); err != nil {
			return err
		}
		j, err := t.job(a.job)
		if err != nil {
			return err
		}
		if err := t.addEvent(j, event{kind: api.EventQuiet, attempt: a}); err != nil {
			return err
		}
		return t.saveJob(j)
	}, `SELECT attempt FROM attempts WHERE state = ? AND quiet = 0 AND lease_expires <= ? LIMIT ?`,
		func(now int64) []any { return []any{api.AttemptInProgress, now} })
}

func (s *Store) sweepDeadlines(ctx context.Context) (int, error) {
	return s.sweepWrite(ctx, func(t *transaction, id string) error {
		j, err := t.job(id)
		if err != nil || j == nil {
			return err
		}
		return t.step(j, lifecycle.Deadline, nil)
	}, `SELECT job FROM jobs WHERE cancel_at <= ? AND state IN (?, ?) LIMIT ?`,
		func(now int64) []any { return []any{now, api.JobOpen, api.JobClosed} })
}

func (s *Store) sweepUploads(ctx context.Context) (int, error) {
	return s.sweepWrite(ctx, func(t *transaction, id string) error {
		return t.exec(`DELETE FROM uploads WHERE upload = ? AND job IS NULL AND expires <= ?`, id, t.now)
	}, `SELECT upload FROM uploads WHERE expires <= ? AND job IS NULL LIMIT ?`, func(now int64) []any { return []any{now} })
}

func (s *Store) sweepGrants(ctx context.Context) (int, error) {
	return s.sweepWrite(ctx, func(t *transaction, hash string) error {
		return t.exec(`DELETE FROM grants WHERE hash = ? AND expires <= ?`, hash, t.now)
	}, `SELECT hash FROM grants WHERE expires <= ? LIMIT ?`, func(now int64) []any { return []any{now} })
}

// unnamed is the condition that no row names the blob b.
const unnamed = `NOT EXISTS (SELECT 1 FROM uploads u WHERE u.sha256 = b.sha256)
	AND NOT EXISTS (SELECT 1 FROM jobs j WHERE j.input_sha256 = b.sha256)
	AND NOT EXISTS (SELECT 1 FROM attempts a WHERE a.result_sha256 = b.sha256)`

// sweepBlobs removes files that no row names. Whoever is about to name one has
// touched its row first; the row is deleted and the file removed inside one
// transaction, so a writer that comes meanwhile waits for it, finds no row, and
// writes the file anew.
func (s *Store) sweepBlobs(ctx context.Context) (int, error) {
	return s.sweepWrite(ctx, func(t *transaction, digest string) error {
		deleted, err := t.Exec(ctx, `DELETE FROM blobs AS b WHERE b.sha256 = ? AND b.touched <= ? AND `+unnamed,
			digest, t.now-blobGrace.Microseconds())
		if err != nil || deleted == 0 {
			return err
		}
		return s.blobs.Remove(protocol.Digest(digest))
	}, `SELECT b.sha256 FROM blobs b WHERE b.touched <= ? AND `+unnamed+` LIMIT ?`,
		func(now int64) []any { return []any{now - blobGrace.Microseconds()} })
}
