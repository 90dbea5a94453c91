package records

import (
	"context"
	"errors"
	"os"
	"time"

	"github.com/quittance/quittance/controller/api"
	"github.com/quittance/quittance/controller/internal/jobs/blobs"
	"github.com/quittance/quittance/controller/internal/jobs/lifecycle"
	"github.com/quittance/quittance/protocol"
)

// Principal is who a bearer token speaks for.
type Principal struct {
	Workspace   string
	Name        string
	Role        Role
	RetryWindow time.Duration // 0: fresh keys are always fresh operations
}

// Create makes a job, or finds the one that the operation made before. Two
// simultaneous calls converge: the loser's transaction runs again and finds the
// winner's.
func (s *Store) Create(ctx context.Context, who Principal, operation string, create *api.CreateJob) (api.CreateJobAnswer, error) {
	schema, data := create.Input.Bytes()
	input := api.Identity{Schema: schema, Length: int64(len(data)), SHA256: protocol.DigestOf(data)}
	payload := hexSHA256(api.Encode(create))
	same := *create
	same.NewIntent = false
	intent := hexSHA256(api.Encode(&same))

	// Invalid input is refused before the first write, a replay answered before
	// anything that may have changed since is looked at.
	var answer api.CreateJobAnswer
	known := false
	err := s.read(ctx, func(t *transaction) (err error) {
		var id string
		if id, err = t.operation(who, operation, payload); err != nil {
			return err
		}
		if known = id != ""; known {
			answer, err = t.createAnswer(id, true)
			return err
		}
		// A converging call names uploads that its first job already has.
		if id, err = t.converge(who, create, intent); err != nil || id != "" {
			return err
		}
		return t.acceptable(who.Workspace, create, input, data)
	})
	if err != nil || known {
		return answer, err
	}
	if err := s.keep(ctx, data); err != nil {
		return answer, err
	}
	err = s.write(ctx, func(t *transaction) error {
		id, err := t.operation(who, operation, payload)
		if err != nil {
			return err
		}
		replay := id != ""
		if !replay {
			if id, err = t.converge(who, create, intent); err != nil {
				return err
			}
			if replay = id != ""; replay {
				if err := t.putOperation(who, operation, id, payload, intent, true); err != nil {
					return err
				}
			}
		}
		if !replay {
			if id, err = t.create(who, create, input); err != nil {
				return err
			}
			if err := t.putOperation(who, operation, id, payload, intent, false); err != nil {
				return err
			}
		}
		answer, err = t.createAnswer(id, replay)
		return err
	})
	return answer, err
}

func (t *transaction) createAnswer(id string, replay bool) (api.CreateJobAnswer, error) {
	j, err := t.job(id)
	if err != nil {
		return api.CreateJobAnswer{}, err
	}
	view, err := t.view(j)
	return api.CreateJobAnswer{IdempotentReplay: replay, Job: view}, err
}

// operation finds the job that an operation id stands for, "" where it is new.
func (t *transaction) operation(who Principal, operation, payload string) (id string, err error) {
	var stands string
	found, err := t.row([]any{&id, &stands}, `SELECT job, payload FROM operations WHERE workspace = ? AND operation = ?`,
		who.Workspace, operation)
	if err != nil || !found {
		return "", err
	}
	if stands != payload {
		return "", Refuse(api.CodeIdempotencyReuse)
	}
	return id, nil
}

func (t *transaction) putOperation(who Principal, operation, job, payload, intent string, alias bool) error {
	return t.exec(`INSERT INTO operations (workspace, operation, job, payload, principal, created, intent, alias)
		VALUES (?, ?, ?, ?, ?, ?, ?, ?)`, who.Workspace, operation, job, payload, who.Name, t.now, intent, bit(alias))
}

// converge finds the job that the same principal created from the same payload
// within the retry window, which counts from that creation and is extended by
// nothing. Several such jobs are deliberate twins: none is guessed.
// Without a window, and for a deliberate twin, it is "".
func (t *transaction) converge(who Principal, create *api.CreateJob, intent string) (string, error) {
	if who.RetryWindow <= 0 || create.NewIntent {
		return "", nil
	}
	var jobs []string
	err := t.rows(func(scan func(...any) error) error {
		var id string
		if err := scan(&id); err != nil {
			return err
		}
		jobs = append(jobs, id)
		return nil
	}, `SELECT DISTINCT job FROM operations WHERE workspace = ? AND principal = ? AND intent = ? AND alias = 0 AND created > ?`,
		who.Workspace, who.Name, intent, t.now-who.RetryWindow.Microseconds())
	if err != nil || len(jobs) == 0 {
		return "", err
	}
	if len(jobs) > 1 {
		return "", Refuse(api.CodeAmbiguousIntent)
	}
	return jobs[0], nil
}

func (t *transaction) create(who Principal, create *api.CreateJob, input api.Identity) (string, error) {
	j := &job{
		id: api.NewJobID(), workspace: who.Workspace, kind: create.Kind, state: api.JobOpen, created: t.now,
		createdBy: who.Name, input: input, limit: 1, opened: t.now,
	}
	changed, err := t.stamp(j)
	if err != nil {
		return "", err
	}
	j.changed = changed
	if create.Limits != nil && create.Limits.Attempts > 0 {
		j.limit = create.Limits.Attempts
	}
	if create.CancelAfterMs != nil {
		at := t.now + *create.CancelAfterMs*1000
		j.cancelAt = &at
	}
	// Once more, and now in the transaction that takes them: uploads and bounds.
	if err := t.available(who.Workspace, create.Uploads); err != nil {
		return "", err
	}
	var open int64
	if _, err := t.row([]any{&open}, `SELECT COUNT(*) FROM jobs WHERE workspace = ? AND state IN (?, ?)`,
		who.Workspace, api.JobOpen, api.JobClosed); err != nil {
		return "", err
	}
	if open >= int64(t.store.policy.MaxOpenJobs) {
		return "", Refuse(api.CodeLimitReached)
	}
	if err := t.exec(`INSERT INTO jobs (`+jobColumns+`) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)`,
		j.id, j.workspace, j.kind, j.state, j.version, j.changed, j.created, j.createdBy, j.cancelAt,
		j.input.Schema, j.input.Length, j.input.SHA256, j.limit, j.used, j.reopens, bit(j.admitted), j.opened, j.live, j.result); err != nil {
		return "", err
	}
	for i, label := range create.Labels {
		if err := t.exec(`INSERT INTO labels (job, position, name, value) VALUES (?, ?, ?, ?)`, j.id, i, label.Name, label.Value); err != nil {
			return "", err
		}
	}
	for i, upload := range create.Uploads {
		if err := t.exec(`UPDATE uploads SET job = ?, position = ?, expires = NULL WHERE upload = ?`, j.id, i, upload); err != nil {
			return "", err
		}
	}
	if err := t.addEvent(j, event{kind: api.EventCreated, principal: &who.Name}); err != nil {
		return "", err
	}
	if err := t.enter(j, &who.Name); err != nil {
		return "", err
	}
	return j.id, t.saveJob(j)
}

// available checks that uploads of the workspace exist and that no job has them.
func (t *transaction) available(workspace string, uploads []string) error {
	for i, upload := range uploads {
		var one int64
		found, err := t.row([]any{&one}, `SELECT 1 FROM uploads WHERE upload = ? AND workspace = ? AND job IS NULL AND expires > ?`,
			upload, workspace, t.now)
		if err != nil {
			return err
		}
		if !found {
			return refuseField(api.CodeUploadMissing, pointer("/uploads", i))
		}
	}
	return nil
}

// own loads a job of the workspace; another's answers exactly like none.
func (t *transaction) own(workspace, id string) (*job, error) {
	j, err := t.job(id)
	if err != nil {
		return nil, err
	}
	if j == nil || j.workspace != workspace {
		return nil, Refuse(api.CodeNotFound)
	}
	return j, nil
}

// Get reads a job.
func (s *Store) Get(ctx context.Context, workspace, id string) (api.Job, error) {
	var view api.Job
	err := s.read(ctx, func(t *transaction) error {
		j, err := t.own(workspace, id)
		if err != nil {
			return err
		}
		view, err = t.view(j)
		return err
	})
	return view, err
}

// Version reads a job's version alone, for those who wait for a change.
func (s *Store) Version(ctx context.Context, workspace, id string) (int64, error) {
	var version int64
	err := s.read(ctx, func(t *transaction) error {
		j, err := t.own(workspace, id)
		if err == nil {
			version = j.version
		}
		return err
	})
	return version, err
}

// Filter narrows a list; empty members do not.
type Filter struct {
	State      api.JobState
	Kind       string
	LabelName  string
	LabelValue string
	Limit      int
	Cursor     string
}

// maxPageBytes ends a page early; with one more job it still fits the route's
// ceiling.
const maxPageBytes = 8 << 20

// List reads a page of the workspace's jobs, newest first.
func (s *Store) List(ctx context.Context, workspace string, filter Filter) (api.JobList, error) {
	before, id, err := parseCursor(filter.Cursor)
	if err != nil {
		return api.JobList{}, err
	}
	if filter.Cursor == "" {
		before, id = 1<<62, ""
	}
	query := `SELECT ` + jobColumns + ` FROM jobs WHERE workspace = ? AND (created, job) < (?, ?)`
	args := []any{workspace, before, id}
	if filter.State != "" {
		query, args = query+` AND state = ?`, append(args, filter.State)
	}
	if filter.Kind != "" {
		query, args = query+` AND kind = ?`, append(args, filter.Kind)
	}
	if filter.LabelName != "" {
		query += ` AND EXISTS (SELECT 1 FROM labels l WHERE l.job = jobs.job AND l.name = ? AND l.value = ?)`
		args = append(args, filter.LabelName, filter.LabelValue)
	}
	query, args = query+` ORDER BY created DESC, job DESC LIMIT ?`, append(args, filter.Limit+1)

	var list api.JobList
	err = s.read(ctx, func(t *transaction) error {
		list = api.JobList{Jobs: []api.Job{}}
		var found []*job
		if err := t.rows(func(scan func(...any) error) error {
			j := new(job)
			found = append(found, j)
			return scan(j.targets()...)
		}, query, args...); err != nil {
			return err
		}
		bytes := 0
		for i, j := range found {
			if i == filter.Limit || bytes > maxPageBytes {
				next := formatCursor(found[i-1].created, found[i-1].id)
				list.NextCursor = &next
				break
			}
			view, err := t.view(j)
			if err != nil {
				return err
			}
			list.Jobs = append(list.Jobs, view)
			bytes += len(api.Encode(&view))
		}
		list.Version, err = t.workspaceVersion(workspace)
		return err
	})
	return list, err
}

// WorkspaceVersion grows with every visible change of a job in the workspace.
func (s *Store) WorkspaceVersion(ctx context.Context, workspace string) (int64, error) {
	var version int64
	err := s.read(ctx, func(t *transaction) (err error) {
		version, err = t.workspaceVersion(workspace)
		return err
	})
	return version, err
}

func (t *transaction) workspaceVersion(workspace string) (version int64, err error) {
	_, err = t.row([]any{&version}, `SELECT COALESCE(MAX(changed), 0) FROM jobs WHERE workspace = ?`, workspace)
	return version, err
}

// Cancel ends a job at once; a running attempt sees it and stops (FR-34).
func (s *Store) Cancel(ctx context.Context, who Principal, id string) (api.Job, error) {
	return s.change(ctx, who, id, lifecycle.Cancel)
}

// Close lets a running attempt finish and admits no other.
func (s *Store) Close(ctx context.Context, who Principal, id string) (api.Job, error) {
	return s.change(ctx, who, id, lifecycle.Close)
}

func (s *Store) change(ctx context.Context, who Principal, id string, what lifecycle.Event) (api.Job, error) {
	var view api.Job
	err := s.write(ctx, func(t *transaction) error {
		j, err := t.own(who.Workspace, id)
		if err != nil {
			return err
		}
		if err := t.step(j, what, &who.Name); err != nil {
			return err
		}
		view, err = t.view(j)
		return err
	})
	return view, err
}

// step applies an event that only concerns the job's own state.
func (t *transaction) step(j *job, what lifecycle.Event, principal *string) error {
	live, err := t.liveAttempt(j)
	if err != nil {
		return err
	}
	next, code := lifecycle.Step(j.facts(live, t.now), what, t.store.policy.MaxReopens)
	if code != "" {
		return Refuse(code)
	}
	if next.Unchanged {
		return nil
	}
	j.adopt(next.Job)
	if what == lifecycle.Retry {
		j.opened = t.now
		if err := t.addEvent(j, event{kind: api.EventRetry, principal: principal}); err != nil {
			return err
		}
	}
	if next.StateChanged {
		if err := t.enter(j, principal); err != nil {
			return err
		}
	}
	return t.saveJob(j)
}

// Retry grants one more attempt. Its operation id makes a repeated call the same
// one.
func (s *Store) Retry(ctx context.Context, who Principal, operation, id string) (api.Job, error) {
	var view api.Job
	payload := hexSHA256([]byte("retry " + id))
	err := s.write(ctx, func(t *transaction) error {
		j, err := t.own(who.Workspace, id)
		if err != nil {
			return err
		}
		known, err := t.operation(who, operation, payload)
		if err != nil {
			return err
		}
		if known == "" {
			var attempts int64
			if _, err := t.row([]any{&attempts}, `SELECT COUNT(*) FROM attempts WHERE job = ?`, j.id); err != nil {
				return err
			}
			if attempts >= api.MaxAttempts {
				return Refuse(api.CodeAttemptLimit)
			}
			if err := t.step(j, lifecycle.Retry, &who.Name); err != nil {
				return err
			}
			// alias keeps the row out of the search for equal creations.
			if err := t.putOperation(who, operation, id, payload, payload, true); err != nil {
				return err
			}
		}
		view, err = t.view(j)
		return err
	})
	return view, err
}

// Result reads the exact bytes of a job's result, checked against their digest.
func (s *Store) Result(ctx context.Context, workspace, id string) ([]byte, api.Identity, error) {
	var identity api.Identity
	if err := s.read(ctx, func(t *transaction) error {
		j, err := t.own(workspace, id)
		if err != nil {
			return err
		}
		if j.result == nil {
			return Refuse(api.CodeNoResult)
		}
		a, err := t.attempt(`attempt = ?`, *j.result)
		if err == nil {
			identity = a.result
		}
		return err
	}); err != nil {
		return nil, identity, err
	}
	data, err := s.blobs.Get(identity.SHA256, identity.Length)
	return data, identity, err
}

// OpenUpload opens an upload's exact bytes. The caller closes the file.
func (s *Store) OpenUpload(digest protocol.Digest, length int64) (*os.File, error) {
	file, err := s.blobs.Open(digest, length)
	if errors.Is(err, blobs.ErrMissing) {
		return nil, Refuse(api.CodeNotFound)
	}
	return file, err
}

// Events reads up to limit events of a job after an index, the oldest that can
// be served, and the job's version.
func (s *Store) Events(ctx context.Context, workspace, id string, after int64, limit int) (events []api.Event, gone *api.EventsGone, err error) {
	err = s.read(ctx, func(t *transaction) error {
		events, gone = nil, nil
		j, err := t.own(workspace, id)
		if err != nil {
			return err
		}
		first := max(j.version-int64(s.policy.MaxEvents)+1, 1)
		if after+1 < first || after > j.version {
			gone = &api.EventsGone{First: first, Head: j.version}
			after = first - 1
		}
		return t.rows(func(scan func(...any) error) error {
			e := api.Event{Job: id}
			var at int64
			if err := scan(&e.Index, &at, &e.Type, &e.State, &e.Attempt, &e.Phase, &e.Condition, &e.Failure, &e.By); err != nil {
				return err
			}
			e.At = stamp(at)
			events = append(events, e)
			return nil
		}, `SELECT idx, at, type, state, attempt, phase, condition_code, failure, principal FROM events
			WHERE job = ? AND idx > ? ORDER BY idx LIMIT ?`, id, after, limit)
	})
	return events, gone, err
}
