// Package records is the job service's durable truth: every operation of both
// faces as one transaction that either happened whole or not at all. It owns the
// rows of jobs, attempts, uploads, events, tokens and keys, and the rule that
// bytes are durable before the row that names them. What may follow what is the
// rule of package lifecycle. It must not know HTTP, signatures or who a request
// comes from beyond the names it is given.
//
// Refusals are *[api.Problem] with effect none. Every other error is a failure
// of the database or the disk whose effect the caller does not know.
package records

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"sync"
	"sync/atomic"
	"time"

	"github.com/quittance/quittance/controller/api"
	"github.com/quittance/quittance/controller/internal/jobs/blobs"
	"github.com/quittance/quittance/controller/internal/jobs/database"
	"github.com/quittance/quittance/controller/internal/jobs/lifecycle"
	"github.com/quittance/quittance/protocol"
)

// Policy holds the times and bounds that an operator may set.
type Policy struct {
	AttemptLease time.Duration // renewed by heartbeats
	HelloTTL     time.Duration // how long a store holds a provider identity after it was heard
	GrantTTL     time.Duration // life of a read grant
	UploadTTL    time.Duration // life of an upload that no job uses
	MaxReopens   int           // uncounted failures of one job
	MaxOpenJobs  int           // open and closed jobs of one workspace
	MaxIdleBytes int64         // of one workspace's uploads that no job uses
	MaxEvents    int           // kept of one job; older ones go
}

// Store runs the operations. It is safe for concurrent use, also by several
// processes on one database.
type Store struct {
	db     *database.DB
	blobs  *blobs.Store
	policy Policy
	// shift is added to the database's clock, in microseconds; only tests set it.
	shift   atomic.Int64
	changes changes
}

// New makes a store on an open database and blob directory.
func New(db *database.DB, files *blobs.Store, policy Policy) *Store {
	return &Store{db: db, blobs: files, policy: policy}
}

// Shift moves the store's clock forward, for tests of leases and expiries.
func (s *Store) Shift(d time.Duration) { s.shift.Add(d.Microseconds()) }

// changes wakes those who wait for any commit of this process.
type changes struct {
	mu      sync.Mutex
	waiting chan struct{} // closed and replaced at each change; nil while nobody waits
}

func (c *changes) happened() {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.waiting != nil {
		close(c.waiting)
		c.waiting = nil
	}
}

// Changed returns a channel that is closed at the next commit of this process.
// Commits of other processes do not close it: waiters also look now and then.
func (s *Store) Changed() <-chan struct{} {
	s.changes.mu.Lock()
	defer s.changes.mu.Unlock()
	if s.changes.waiting == nil {
		s.changes.waiting = make(chan struct{})
	}
	return s.changes.waiting
}

// transaction is one transaction with its time.
type transaction struct {
	*database.Tx
	ctx   context.Context
	now   int64 // microseconds
	store *Store
}

func (t *transaction) exec(query string, args ...any) error {
	_, err := t.Exec(t.ctx, query, args...)
	return err
}

func (t *transaction) row(targets []any, query string, args ...any) (bool, error) {
	return t.Row(t.ctx, targets, query, args...)
}

func (t *transaction) rows(each func(scan func(...any) error) error, query string, args ...any) error {
	return t.Rows(t.ctx, each, query, args...)
}

func (s *Store) begin(ctx context.Context, f func(*transaction) error) func(*database.Tx) error {
	return func(tx *database.Tx) error {
		now, err := tx.Now(ctx)
		if err != nil {
			return err
		}
		return f(&transaction{Tx: tx, ctx: ctx, now: now + s.shift.Load(), store: s})
	}
}

func (s *Store) write(ctx context.Context, f func(*transaction) error) error {
	err := s.db.Write(ctx, s.begin(ctx, f))
	if err == nil {
		s.changes.happened()
	}
	return err
}

func (s *Store) read(ctx context.Context, f func(*transaction) error) error {
	return s.db.Read(ctx, s.begin(ctx, f))
}

// job is a row of jobs.
type job struct {
	id, workspace, kind  string
	state                api.JobState
	version, changed     int64
	created              int64
	createdBy            string
	cancelAt             *int64
	input                api.Identity
	limit, used, reopens int
	admitted             bool
	opened               int64 // creation, last reopening or last retry
	live, result         *string
}

const jobColumns = `job, workspace, kind, state, version, changed, created, created_by, cancel_at,
	input_schema, input_length, input_sha256, attempt_limit, attempts_used, reopens, admitted, opened, live, result`

func (j *job) targets() []any {
	return []any{&j.id, &j.workspace, &j.kind, &j.state, &j.version, &j.changed, &j.created, &j.createdBy, &j.cancelAt,
		&j.input.Schema, &j.input.Length, &j.input.SHA256, &j.limit, &j.used, &j.reopens, &truth{&j.admitted}, &j.opened, &j.live, &j.result}
}

// truth scans 0 and 1, the form of truth in both databases.
type truth struct{ value *bool }

// Scan implements sql.Scanner.
func (t *truth) Scan(source any) error {
	*t.value = source == int64(1)
	return nil
}

func bit(b bool) int64 {
	if b {
		return 1
	}
	return 0
}

// job loads a job, or nil where there is none.
func (t *transaction) job(id string) (*job, error) {
	j := new(job)
	found, err := t.row(j.targets(), `SELECT `+jobColumns+` FROM jobs WHERE job = ?`, id)
	if err != nil || !found {
		return nil, err
	}
	return j, nil
}

// stamp orders a change of a job after every change of its workspace that was
// committed before, whatever the clock does and whichever process made it (I25):
// who waits for a workspace compares the highest stamp. On PostgreSQL, where
// transactions run side by side, the database deals the stamps out in the order
// of commits; on SQLite one transaction writes at a time and sees what stands.
func (t *transaction) stamp(j *job) (int64, error) {
	if drawn, err := t.Turn(t.ctx, j.workspace, j.changed); drawn != 0 || err != nil {
		return drawn, err
	}
	highest, err := t.workspaceVersion(j.workspace)
	return max(t.now, highest+1), err
}

// saveJob writes what operations may change in a job.
func (t *transaction) saveJob(j *job) error {
	changed, err := t.stamp(j)
	if err != nil {
		return err
	}
	j.changed = changed
	return t.exec(`UPDATE jobs SET state = ?, version = ?, changed = ?, attempt_limit = ?, attempts_used = ?, reopens = ?,
		admitted = ?, opened = ?, live = ?, result = ? WHERE job = ?`,
		j.state, j.version, j.changed, j.limit, j.used, j.reopens, bit(j.admitted), j.opened, j.live, j.result, j.id)
}

// attempt is a row of attempts.
type attempt struct {
	id, provider, key, job string
	position               int
	state                  api.AttemptState
	counted                bool
	store                  protocol.ID
	lane                   int
	startSHA256            string
	admitted, leaseExpires int64
	quiet                  bool // the lapse was recorded as an event
	ended                  *int64
	beat                   lifecycle.Heartbeat
	observed, conditionAt  int64
	outcomeSHA256          string
	result                 api.Identity
	failCode               api.FailureCode
	failMessage, failNext  string
	entered, reopened      bool
	provenance             []byte
}

const attemptColumns = `attempt, provider, attempt_key, job, position, state, counted, store, lane, start_sha256,
	admitted, lease_expires, quiet, ended, seq, phase, condition_code, observed, condition_at, outcome_sha256,
	result_schema, result_length, result_sha256, fail_code, fail_message, fail_next, entered, reopened, provenance`

func (a *attempt) targets() []any {
	return []any{&a.id, &a.provider, &a.key, &a.job, &a.position, &a.state, &truth{&a.counted}, &a.store, &a.lane, &a.startSHA256,
		&a.admitted, &a.leaseExpires, &truth{&a.quiet}, &a.ended, &a.beat.Seq, &a.beat.Phase, &a.beat.Condition, &a.observed, &a.conditionAt, &a.outcomeSHA256,
		&a.result.Schema, &a.result.Length, &a.result.SHA256, &a.failCode, &a.failMessage, &a.failNext, &truth{&a.entered}, &truth{&a.reopened}, &a.provenance}
}

func (a *attempt) values() []any {
	return []any{a.id, a.provider, a.key, a.job, a.position, a.state, bit(a.counted), a.store, a.lane, a.startSHA256,
		a.admitted, a.leaseExpires, bit(a.quiet), a.ended, a.beat.Seq, a.beat.Phase, a.beat.Condition, a.observed, a.conditionAt, a.outcomeSHA256,
		a.result.Schema, a.result.Length, a.result.SHA256, a.failCode, a.failMessage, a.failNext, bit(a.entered), bit(a.reopened), a.provenance}
}

// lapsed reports whether the attempt runs without a valid lease.
func (a *attempt) lapsed(now int64) bool {
	return a.state == api.AttemptInProgress && now >= a.leaseExpires
}

func (t *transaction) attempt(where string, args ...any) (*attempt, error) {
	a := new(attempt)
	found, err := t.row(a.targets(), `SELECT `+attemptColumns+` FROM attempts WHERE `+where, args...)
	if err != nil || !found {
		return nil, err
	}
	return a, nil
}

func (t *transaction) insertAttempt(a *attempt) error {
	return t.exec(`INSERT INTO attempts (`+attemptColumns+`) VALUES
		(?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)`, a.values()...)
}

// saveAttempt writes what operations may change in an attempt.
func (t *transaction) saveAttempt(a *attempt) error {
	return t.exec(`UPDATE attempts SET state = ?, counted = ?, lease_expires = ?, quiet = ?, ended = ?, seq = ?, phase = ?,
		condition_code = ?, observed = ?, condition_at = ?, outcome_sha256 = ?, result_schema = ?, result_length = ?, result_sha256 = ?,
		fail_code = ?, fail_message = ?, fail_next = ?, entered = ?, reopened = ?, provenance = ? WHERE attempt = ?`,
		a.state, bit(a.counted), a.leaseExpires, bit(a.quiet), a.ended, a.beat.Seq, a.beat.Phase,
		a.beat.Condition, a.observed, a.conditionAt, a.outcomeSHA256, a.result.Schema, a.result.Length, a.result.SHA256,
		a.failCode, a.failMessage, a.failNext, bit(a.entered), bit(a.reopened), a.provenance, a.id)
}

// event is what an operation adds to a job's history.
type event struct {
	kind      api.EventType
	attempt   *attempt
	phase     *api.Phase
	condition *api.Condition
	failure   *api.FailureCode
	principal *string
}

// addEvent appends to the job's history; the caller saves the job afterwards.
func (t *transaction) addEvent(j *job, e event) error {
	j.version++
	var attemptID *string
	if e.attempt != nil {
		attemptID = &e.attempt.id
	}
	if err := t.exec(`INSERT INTO events (job, idx, at, type, state, attempt, phase, condition_code, failure, principal)
		VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?)`,
		j.id, j.version, t.now, e.kind, j.state, attemptID, e.phase, e.condition, e.failure, e.principal); err != nil {
		return err
	}
	if kept := int64(t.store.policy.MaxEvents); j.version > kept {
		return t.exec(`DELETE FROM events WHERE job = ? AND idx <= ?`, j.id, j.version-kept)
	}
	return nil
}

// enter records that the job is in a state from now on.
func (t *transaction) enter(j *job, principal *string) error {
	var position int64
	if _, err := t.row([]any{&position}, `SELECT COUNT(*) FROM times WHERE job = ?`, j.id); err != nil {
		return err
	}
	if err := t.exec(`INSERT INTO times (job, position, state, at) VALUES (?, ?, ?, ?)`, j.id, position, j.state, t.now); err != nil {
		return err
	}
	return t.addEvent(j, event{kind: api.EventState, principal: principal})
}

// facts are what the lifecycle's rules ask about a job.
func (j *job) facts(live *attempt, now int64) lifecycle.Job {
	return lifecycle.Job{
		State: j.state, Limit: j.limit, Used: j.used, Reopens: j.reopens, Admitted: j.admitted,
		Live: live != nil, Lapsed: live != nil && live.lapsed(now),
	}
}

// adopt takes over what the lifecycle decided.
func (j *job) adopt(next lifecycle.Job) {
	j.state, j.limit, j.used, j.reopens, j.admitted = next.State, next.Limit, next.Used, next.Reopens, next.Admitted
}

// liveAttempt loads the job's attempt in progress, or nil.
func (t *transaction) liveAttempt(j *job) (*attempt, error) {
	if j.live == nil {
		return nil, nil
	}
	return t.attempt(`attempt = ?`, *j.live)
}

// touchBlob announces that a row naming the digest is about to be written, so
// that collection leaves its file alone for [blobGrace].
func (t *transaction) touchBlob(digest protocol.Digest, length int64) error {
	return t.exec(`INSERT INTO blobs (sha256, length, touched) VALUES (?, ?, ?)
		ON CONFLICT (sha256) DO UPDATE SET touched = excluded.touched`, digest, length, t.now)
}

// keep makes data durable before a row names it.
func (s *Store) keep(ctx context.Context, data []byte) error {
	digest := protocol.DigestOf(data)
	if err := s.db.Write(ctx, s.begin(ctx, func(t *transaction) error { return t.touchBlob(digest, int64(len(data))) })); err != nil {
		return err
	}
	_, err := s.blobs.Put(data)
	return err
}

func hexSHA256(data []byte) string {
	sum := sha256.Sum256(data)
	return hex.EncodeToString(sum[:])
}

// stamp is a time of the database in the form of messages.
func stamp(micros int64) protocol.Timestamp { return protocol.Timestamp(micros) }

func stampOrNil(micros *int64) *protocol.Timestamp {
	if micros == nil {
		return nil
	}
	at := stamp(*micros)
	return &at
}
