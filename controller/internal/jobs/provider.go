package jobs

import (
	"io"
	"net/http"
	"strconv"

	"github.com/quittance/quittance/controller/api"
	"github.com/quittance/quittance/controller/internal/jobs/records"
	"github.com/quittance/quittance/protocol"
)

// pathID is an identifier of the path; one out of form names nothing.
func (c *call) pathID(name string, valid func(string) bool) (string, error) {
	id := c.r.PathValue(name)
	if !valid(id) {
		return "", records.Refuse(api.CodeNotFound)
	}
	return id, nil
}

// samePath refuses a body that names another attempt than the path.
func (c *call) samePath(id string) error {
	if id != c.r.PathValue("attempt") {
		return badRequest("/attempt", "The body names another attempt than the path.")
	}
	return nil
}

// page reads limit and cursor.
func (c *call) page(required bool) (limit int, cursor string, err error) {
	limit = api.DefaultPageItems
	if text := c.query.Get("limit"); text != "" || required {
		limit, err = strconv.Atoi(text)
		if err != nil || limit < 1 || limit > api.MaxPageItems || strconv.Itoa(limit) != text {
			return 0, "", badRequest("limit", "limit must be from 1 to "+strconv.Itoa(api.MaxPageItems)+".")
		}
	}
	cursor = c.query.Get("cursor")
	if len(cursor) > api.MaxCursorBytes || (c.query.Has("cursor") && cursor == "") {
		return 0, "", badRequest("cursor", "cursor is not one that this service gave.")
	}
	return limit, cursor, nil
}

func hello(c *call) error {
	var message api.Hello
	if err := c.decode(&message); err != nil {
		return err
	}
	if err := records.CheckSchemas(&message); err != nil {
		return err
	}
	answer, err := c.s.store.Hello(c.r.Context(), c.provider, &message)
	if err != nil {
		return err
	}
	return c.answer(http.StatusOK, &answer)
}

func feed(c *call) error {
	limit, cursor, err := c.page(true)
	if err != nil {
		return err
	}
	kind, attempted := c.query.Get("kind"), c.query.Get("attempted")
	if !api.ValidKind(kind) {
		return badRequest("kind", "kind is required: one job kind.")
	}
	if attempted != "true" && attempted != "false" {
		return badRequest("attempted", "attempted is required: true or false.")
	}
	answer, err := c.s.store.Feed(c.r.Context(), c.provider, kind, attempted == "true", limit, cursor)
	if err != nil {
		return err
	}
	return c.answer(http.StatusOK, &answer)
}

func input(c *call) error {
	id, err := c.pathID("job", api.ValidJobID)
	if err != nil {
		return err
	}
	answer, err := c.s.store.Input(c.r.Context(), c.provider, id)
	if err != nil {
		return err
	}
	return c.answer(http.StatusOK, &answer)
}

func uploads(c *call) error {
	id, err := c.pathID("job", api.ValidJobID)
	if err != nil {
		return err
	}
	answer, err := c.s.store.Uploads(c.r.Context(), c.provider, id)
	if err != nil {
		return err
	}
	return c.answer(http.StatusOK, &answer)
}

func grant(c *call) error {
	job, err := c.pathID("job", api.ValidJobID)
	if err != nil {
		return err
	}
	upload, err := c.pathID("upload", api.ValidUploadID)
	if err != nil {
		return err
	}
	var message api.GrantRequest
	if err := c.decode(&message); err != nil {
		return err
	}
	granted, err := c.s.store.Grant(c.r.Context(), c.provider, job, upload, message.Attempt)
	if err != nil {
		return err
	}
	return c.answer(http.StatusCreated, &api.Grant{
		Upload: upload, URL: c.s.config.PublicOrigin + "/store/v1/uploads/" + upload, Bearer: granted.Bearer,
		Expires: granted.Expires, Length: granted.Length, SHA256: granted.SHA256,
	})
}

// serveGranted is the store: it knows grants and nothing else of a caller.
func serveGranted(c *call) error {
	upload, err := c.pathID("upload", api.ValidUploadID)
	if err != nil {
		return err
	}
	bearer := c.bearer()
	if bearer == "" {
		return records.Refuse(api.CodeGrantInvalid)
	}
	length, digest, err := c.s.store.Redeem(c.r.Context(), upload, bearer)
	if err != nil {
		return err
	}
	file, err := c.s.store.OpenUpload(digest, length)
	if err != nil {
		return err
	}
	c.bytesHeader(length, digest)
	c.w.WriteHeader(http.StatusOK)
	if _, err := io.CopyN(c.w, file, length); err != nil {
		c.s.log.Debug("upload_not_delivered", "request", c.id, "error", err)
		if err := file.Close(); err != nil {
			c.s.log.Warn("upload_not_closed", "request", c.id, "error", err)
		}
		// The length is out already; only a broken connection says that the
		// bytes are not whole.
		panic(http.ErrAbortHandler)
	}
	return file.Close()
}

// bytesHeader announces exact bytes, never to be interpreted by a browser.
func (c *call) bytesHeader(length int64, digest protocol.Digest) {
	header := c.w.Header()
	header.Set("Content-Type", api.ContentBytes)
	header.Set("Content-Length", strconv.FormatInt(length, 10))
	header.Set(api.HeaderContentDigest, digestField(digest))
}

func start(c *call) error {
	var message api.Start
	if err := c.decode(&message); err != nil {
		return err
	}
	c.job, c.key = message.Job, message.Key
	answer, err := c.s.store.Start(c.r.Context(), c.provider, &message, c.body)
	if err != nil {
		return err
	}
	status := http.StatusCreated
	if answer.Replayed {
		status = http.StatusOK
	}
	return c.answer(status, &answer)
}

func attempt(c *call) error {
	id, err := c.pathID("attempt", api.ValidAttemptID)
	if err != nil {
		return err
	}
	answer, err := c.s.store.Attempt(c.r.Context(), c.provider, id)
	if err != nil {
		return err
	}
	return c.answer(http.StatusOK, &answer)
}

func inventory(c *call) error {
	limit, cursor, err := c.page(true)
	if err != nil {
		return err
	}
	if c.query.Get("state") != string(api.AttemptInProgress) {
		return badRequest("state", "state is required and must be in_progress.")
	}
	answer, err := c.s.store.Inventory(c.r.Context(), c.provider, limit, cursor)
	if err != nil {
		return err
	}
	return c.answer(http.StatusOK, &answer)
}

func progress(c *call) error {
	id, err := c.pathID("attempt", api.ValidAttemptID)
	if err != nil {
		return err
	}
	var message api.Progress
	if err := c.decode(&message); err != nil {
		return err
	}
	answer, err := c.s.store.Progress(c.r.Context(), c.provider, id, &message)
	if err != nil {
		return err
	}
	return c.answer(http.StatusOK, &answer)
}

func complete(c *call) error {
	var message api.Complete
	if err := c.decode(&message); err != nil {
		return err
	}
	if err := c.samePath(message.Attempt); err != nil {
		return err
	}
	answer, err := c.s.store.Complete(c.r.Context(), c.provider, &message, c.body)
	if err != nil {
		return err
	}
	return c.answer(http.StatusOK, &answer)
}

func fail(c *call) error {
	var message api.Fail
	if err := c.decode(&message); err != nil {
		return err
	}
	if err := c.samePath(message.Attempt); err != nil {
		return err
	}
	answer, err := c.s.store.Fail(c.r.Context(), c.provider, &message, c.body)
	if err != nil {
		return err
	}
	return c.answer(http.StatusOK, &answer)
}

func attachReceipts(c *call) error {
	var message api.HostReceipts
	if err := c.decode(&message); err != nil {
		return err
	}
	if err := c.samePath(message.Attempt); err != nil {
		return err
	}
	answer, err := c.s.store.AttachReceipts(c.r.Context(), c.provider, &message)
	if err != nil {
		return err
	}
	return c.answer(http.StatusOK, &answer)
}
