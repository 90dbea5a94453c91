package jobs

import (
	"context"
	"encoding/base64"
	"encoding/hex"
	"errors"
	"io"
	"net/http"
	"os"
	"strconv"
	"strings"
	"sync"
	"time"
	"unicode/utf8"

	"github.com/quittance/quittance/controller/api"
	"github.com/quittance/quittance/controller/internal/jobs/openapi"
	"github.com/quittance/quittance/controller/internal/jobs/records"
	"github.com/quittance/quittance/controller/internal/signing"
	"github.com/quittance/quittance/protocol"
)

// operation is the Idempotency-Key, an opaque string.
func (c *call) operation() (string, error) {
	values := c.r.Header.Values(api.HeaderIdempotencyKey)
	if len(values) == 0 {
		problem := records.Refuse(api.CodeIdempotencyNeeded)
		problem.Field = api.HeaderIdempotencyKey
		return "", problem
	}
	if len(values) != 1 || values[0] == "" || len(values[0]) > api.MaxIdempotencyKey || !utf8.ValidString(values[0]) {
		return "", badRequest(api.HeaderIdempotencyKey, "Idempotency-Key must occur once with 1 to "+strconv.Itoa(api.MaxIdempotencyKey)+" bytes.")
	}
	return values[0], nil
}

func createJob(c *call) error {
	operation, err := c.operation()
	if err != nil {
		return err
	}
	var message api.CreateJob
	if err := c.decode(&message); err != nil {
		return err
	}
	answer, err := c.s.store.Create(c.r.Context(), c.who, operation, &message)
	if err != nil {
		return err
	}
	c.job = answer.Job.Job
	status := http.StatusCreated
	if answer.IdempotentReplay {
		status = http.StatusOK
	}
	return c.answer(status, &answer)
}

// lookAgain is how often a wait looks for commits of other processes.
const lookAgain = time.Second

// await holds a call until version moves past what the caller saw, its wait is
// over, or the service closes. Without wait it returns at once.
func (c *call) await(version func() (int64, error)) error {
	text := c.query.Get("wait")
	if !c.query.Has("wait") {
		if c.query.Has("after") {
			return badRequest("after", "after goes with wait.")
		}
		return nil
	}
	limit, err := time.ParseDuration(text)
	if err != nil || limit < 0 || limit > api.MaxWaitSeconds*time.Second {
		return badRequest("wait", "wait must be a duration from 0s to "+strconv.Itoa(api.MaxWaitSeconds)+"s.")
	}
	changed := c.s.store.Changed()
	seen, err := version()
	if err != nil {
		return err
	}
	if text := c.query.Get("after"); c.query.Has("after") {
		known, err := strconv.ParseInt(text, 10, 64)
		if err != nil || known < 0 || strconv.FormatInt(known, 10) != text {
			return badRequest("after", "after must be a version that this service gave.")
		}
		if known != seen {
			return nil
		}
	}
	leave, err := c.s.waitingPlace()
	if err != nil {
		return err
	}
	defer leave()
	timer := time.NewTimer(limit)
	defer timer.Stop()
	ticker := time.NewTicker(lookAgain)
	defer ticker.Stop()
	for {
		select {
		case <-timer.C:
			return nil
		case <-c.s.closing.Done():
			return nil
		case <-c.r.Context().Done():
			return c.r.Context().Err()
		case <-changed:
		case <-ticker.C:
		}
		changed = c.s.store.Changed()
		now, err := version()
		if err != nil || now != seen {
			return err
		}
	}
}

// waitingPlace takes a place among those who wait; leave gives it back.
func (s *Service) waitingPlace() (leave func(), err error) {
	select {
	case s.waiters <- struct{}{}:
		return func() { <-s.waiters }, nil
	default:
		return nil, api.NewProblem(api.CodeLimitReached, "The service has as many waiting requests as it may have.", "Ask again later, or without waiting.")
	}
}

func getJob(c *call) error {
	id, err := c.pathID("job", api.ValidJobID)
	if err != nil {
		return err
	}
	if err := c.await(func() (int64, error) {
		return c.s.store.Version(c.r.Context(), c.who.Workspace, id)
	}); err != nil {
		return err
	}
	job, err := c.s.store.Get(c.r.Context(), c.who.Workspace, id)
	if err != nil {
		return err
	}
	return c.answer(http.StatusOK, &job)
}

func listJobs(c *call) error {
	limit, cursor, err := c.page(false)
	if err != nil {
		return err
	}
	filter := records.Filter{Limit: limit, Cursor: cursor, State: api.JobState(c.query.Get("state")), Kind: c.query.Get("kind")}
	switch filter.State {
	case "", api.JobOpen, api.JobClosed, api.JobFinished, api.JobFailed, api.JobCancelled, api.JobExpired:
	default:
		return badRequest("state", "state must be open, closed, finished, failed, cancelled or expired.")
	}
	if filter.Kind != "" && !api.ValidKind(filter.Kind) {
		return badRequest("kind", "kind is not the name of a job kind.")
	}
	if c.query.Has("label") {
		name, value, ok := strings.Cut(c.query.Get("label"), "=")
		if !ok || name == "" {
			return badRequest("label", "label must be name=value.")
		}
		filter.LabelName, filter.LabelValue = name, value
	}
	if err := c.await(func() (int64, error) {
		return c.s.store.WorkspaceVersion(c.r.Context(), c.who.Workspace)
	}); err != nil {
		return err
	}
	list, err := c.s.store.List(c.r.Context(), c.who.Workspace, filter)
	if err != nil {
		return err
	}
	return c.answer(http.StatusOK, &list)
}

func result(c *call) error {
	id, err := c.pathID("job", api.ValidJobID)
	if err != nil {
		return err
	}
	data, identity, err := c.s.store.Result(c.r.Context(), c.who.Workspace, id)
	if err != nil {
		return err
	}
	c.bytesHeader(identity.Length, identity.SHA256)
	c.w.Header().Set(api.HeaderSchema, identity.Schema)
	c.send(http.StatusOK, data)
	return nil
}

// reading is a handler that reads something of one job.
func reading[T any](read func(s *records.Store, ctx context.Context, workspace, id string) (T, error)) handler {
	return func(c *call) error {
		id, err := c.pathID("job", api.ValidJobID)
		if err != nil {
			return err
		}
		answer, err := read(c.s.store, c.r.Context(), c.who.Workspace, id)
		if err != nil {
			return err
		}
		return c.answer(http.StatusOK, &answer)
	}
}

// changing is a handler that changes one job's state.
func changing(change func(s *records.Store, ctx context.Context, who records.Principal, id string) (api.Job, error)) handler {
	return func(c *call) error {
		id, err := c.pathID("job", api.ValidJobID)
		if err != nil {
			return err
		}
		job, err := change(c.s.store, c.r.Context(), c.who, id)
		if err != nil {
			return err
		}
		return c.answer(http.StatusOK, &job)
	}
}

func retryJob(c *call) error {
	operation, err := c.operation()
	if err != nil {
		return err
	}
	return changing(func(s *records.Store, ctx context.Context, who records.Principal, id string) (api.Job, error) {
		return s.Retry(ctx, who, operation, id)
	})(c)
}

func createUpload(c *call) error {
	types := c.r.Header.Values("Content-Type")
	if len(types) != 1 || !api.ValidSchema(types[0]) {
		return api.NewProblem(api.CodeUnsupportedType, "Content-Type must name the file's media type, without spaces.", "Send one, application/octet-stream if nothing else.")
	}
	digest, ok := signing.ParseDigest(c.r.Header.Values(api.HeaderContentDigest))
	if !ok {
		return badRequest(api.HeaderContentDigest, "Content-Digest must occur once and hold one sha-256 of the file.")
	}
	upload, err := c.s.store.Upload(c.r.Context(), c.who.Workspace, types[0], c.r.ContentLength, digest, c.r.Body)
	switch {
	case errors.Is(err, os.ErrDeadlineExceeded):
		c.hangUp()
		return api.NewProblem(api.CodeTimeout, "The file did not arrive in time.", "Upload it again; nothing was kept.")
	case errors.Is(err, io.ErrUnexpectedEOF):
		c.hangUp()
		return badRequest("body", "The body ended before its announced length.")
	case err != nil:
		return err
	}
	return c.answer(http.StatusCreated, &upload)
}

func getUpload(c *call) error {
	id, err := c.pathID("upload", api.ValidUploadID)
	if err != nil {
		return err
	}
	upload, err := c.s.store.GetUpload(c.r.Context(), c.who.Workspace, id)
	if err != nil {
		return err
	}
	return c.answer(http.StatusOK, &upload)
}

func listOfferings(c *call) error {
	offerings, err := c.s.store.Offerings(c.r.Context())
	if err != nil {
		return err
	}
	return c.answer(http.StatusOK, &offerings)
}

// document is the same for every service of this version.
var document = sync.OnceValue(openapi.Document)

func describe(c *call) error {
	c.w.Header().Set("Content-Type", api.ContentJSON)
	c.send(http.StatusOK, document())
	return nil
}

// digestField is a digest as Content-Digest has it.
func digestField(digest protocol.Digest) string {
	raw, err := hex.DecodeString(digest.Hex())
	if err != nil {
		panic("jobs: a stored digest is out of form")
	}
	return "sha-256=:" + base64.StdEncoding.EncodeToString(raw) + ":"
}
