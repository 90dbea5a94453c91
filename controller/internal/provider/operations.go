package provider

import (
	"context"
	"errors"
	"fmt"
	"net/url"
	"strconv"
	"strings"
	"time"

	"github.com/quittance/quittance/controller/api"
	"github.com/quittance/quittance/controller/internal/attempt"
	"github.com/quittance/quittance/protocol"
)

// target is the URL of a route; values, which are identifiers without a slash,
// fill its wildcards in their order.
func (c *Client) target(route api.Route, query url.Values, values ...string) *url.URL {
	path := route.Path
	for _, v := range values {
		open, end := strings.IndexByte(path, '{'), strings.IndexByte(path, '}')
		path = path[:open] + v + path[end+1:]
	}
	u := *c.origin
	u.Path, u.RawQuery = path, query.Encode()
	return &u
}

// do makes an exchange and decodes its answer strictly; check, which may be
// nil, compares the answer with the request.
func do[T any](ctx context.Context, c *Client, k call, check func(*T) error) (T, attempt.Reply, error) {
	got, f := c.exchange(ctx, k)
	if f != nil {
		var none T
		return none, f.Reply, f
	}
	return read(k.route, got, check)
}

// read decodes a whole successful answer.
func read[T any](route api.Route, got *answer, check func(*T) error) (T, attempt.Reply, error) {
	var value T
	fail := func(class Class, err error) (T, attempt.Reply, error) {
		var none T
		f := got.about
		f.Class, f.Disposition, f.Cause = class, protocol.Unknown, err
		return none, got.reply, &f
	}
	if err := api.Decode(got.raw, route.MaxResponse, &value); err != nil {
		return fail(ClassMalformed, ownNames(err))
	}
	if check != nil {
		if err := check(&value); err != nil {
			return fail(ClassMismatch, err)
		}
	}
	return value, got.reply, nil
}

// refuse is a request that is not sent because it would not be well formed.
func refuse(route api.Route, err error) error {
	return &Failure{Operation: route.Name, Class: ClassNotSent, Disposition: protocol.Refused, Cause: err}
}

// other is an answer to some other request.
func other(field string) error {
	return fmt.Errorf("the answer's %s is another than the request's", field)
}

// Hello announces this provider and returns the announcement that stands.
func (c *Client) Hello(ctx context.Context, h api.Hello) (api.HelloAnswer, error) {
	if err := h.Validate(); err != nil {
		return api.HelloAnswer{}, refuse(api.RouteHello, err)
	}
	a, _, err := do(ctx, c, call{route: api.RouteHello, target: c.target(api.RouteHello, nil), body: api.Encode(h)},
		func(a *api.HelloAnswer) error {
			switch {
			case a.Store != h.Store:
				return other("store")
			case a.Seq < h.Seq:
				return other("seq")
			case a.LeaseMillis <= 0 || a.HelloTTL <= 0 || a.LiveAttempts < 0:
				return errors.New("the answer's lease, hello_ttl or live_attempts is out of bounds")
			}
			return nil
		})
	return a, err
}

// FeedQuery asks for one page of open jobs.
type FeedQuery struct {
	Kind      string
	Attempted bool
	Limit     int    // 1 … api.MaxPageItems
	Cursor    string // "" for the first page
}

// Feed reads one page of open jobs.
func (c *Client) Feed(ctx context.Context, q FeedQuery) (api.Feed, error) {
	query := url.Values{"kind": {q.Kind}, "attempted": {strconv.FormatBool(q.Attempted)}, "limit": {strconv.Itoa(q.Limit)}}
	if q.Cursor != "" {
		query.Set("cursor", q.Cursor)
	}
	a, _, err := do(ctx, c, call{route: api.RouteFeed, target: c.target(api.RouteFeed, query)}, func(a *api.Feed) error {
		switch {
		case a.Kind != q.Kind:
			return other("kind")
		case a.Attempted != q.Attempted:
			return other("attempted")
		case a.Limit != q.Limit:
			return other("limit")
		case len(a.Jobs) > q.Limit:
			return errors.New("the answer has more jobs than its limit")
		}
		seen := map[string]bool{}
		for _, j := range a.Jobs {
			switch {
			case !api.ValidJobID(j.Job) || seen[j.Job]:
				return errors.New("the answer has a job out of form or twice")
			case j.Kind != q.Kind:
				return errors.New("the answer has a job of another kind")
			case checkIdentity(j.Input, api.MaxInputBytes) != nil || j.Uploads < 0 || j.Uploads > api.MaxUploads || j.UploadBytes < 0:
				return errors.New("the answer has a job whose input or uploads are out of bounds")
			}
			seen[j.Job] = true
		}
		return checkCursor(a.NextCursor, q.Cursor)
	})
	return a, err
}

func checkIdentity(id api.Identity, limit int64) error {
	if !api.ValidSchema(id.Schema) || id.Length < 0 || id.Length > limit || !id.SHA256.Valid() {
		return errors.New("identity out of form")
	}
	return nil
}

// checkCursor refuses a cursor that would not lead on.
func checkCursor(next *string, asked string) error {
	if next != nil && (*next == "" || len(*next) > api.MaxCursorBytes || *next == asked) {
		return errors.New("the answer's next_cursor is out of form or leads nowhere")
	}
	return nil
}

// Input reads a job's exact input bytes. want is the identity that the feed or
// the record names; other bytes are [ClassMismatch].
func (c *Client) Input(ctx context.Context, job string, want api.Identity) (api.Input, error) {
	a, _, err := do(ctx, c, call{route: api.RouteInput, target: c.target(api.RouteInput, nil, job)}, func(a *api.Input) error {
		switch {
		case a.Job != job:
			return other("job")
		case a.Schema != want.Schema || a.Length != want.Length || a.SHA256 != want.SHA256:
			return other("input identity")
		case int64(len(a.Data)) != a.Length || protocol.DigestOf(a.Data) != a.SHA256:
			return errors.New("the answer's data are not what its length and sha256 describe")
		}
		return nil
	})
	return a, err
}

// Uploads reads the full ordered membership of a job's uploads.
func (c *Client) Uploads(ctx context.Context, job string) (api.Uploads, error) {
	a, _, err := do(ctx, c, call{route: api.RouteUploads, target: c.target(api.RouteUploads, nil, job)}, func(a *api.Uploads) error {
		if a.Job != job {
			return other("job")
		}
		if len(a.Uploads) > api.MaxUploads {
			return errors.New("the answer has too many uploads")
		}
		seen := map[string]bool{}
		for _, u := range a.Uploads {
			if !api.ValidUploadID(u.Upload) || seen[u.Upload] || u.Length < 0 || u.Length > api.MaxUploadBytes || !u.SHA256.Valid() {
				return errors.New("the answer has an upload out of form or twice")
			}
			seen[u.Upload] = true
		}
		return nil
	})
	return a, err
}

// Grant asks for a read grant for one upload of the attempt's job. Issuing is
// an effect: a grant that may have been issued is not asked for again as such.
func (c *Client) Grant(ctx context.Context, job string, member api.UploadMember, reference string) (api.Grant, error) {
	ask := api.GrantRequest{Attempt: reference}
	if err := ask.Validate(); err != nil {
		return api.Grant{}, refuse(api.RouteGrant, err)
	}
	k := call{route: api.RouteGrant, target: c.target(api.RouteGrant, nil, job, member.Upload), body: api.Encode(ask)}
	a, reply, err := do(ctx, c, k, func(a *api.Grant) error {
		switch {
		case a.Upload != member.Upload:
			return other("upload")
		case a.Length != member.Length || a.SHA256 != member.SHA256:
			return other("length or sha256")
		}
		_, err := c.storeURL(a.URL)
		if err == nil && !bearerForm(a.Bearer) {
			err = errors.New("the answer's bearer is out of form")
		}
		return err
	})
	if err != nil {
		// The evidence of a failed grant may hold the bearer (I37).
		if f, ok := errors.AsType[*Failure](err); ok && success(reply.Status) {
			f.Reply.Body = nil
		}
	}
	return a, err
}

// Start sends the exact START body. beforeSend is told when the signature
// expires, before anything is sent; its error ends the exchange unsent. The
// answer's state decides whether anything runs. The reply is kept as received.
func (c *Client) Start(ctx context.Context, body []byte, beforeSend func(expires time.Time) error) (api.Admission, attempt.Reply, error) {
	var asked api.Start
	if err := api.Decode(body, api.RouteStart.MaxRequest, &asked); err != nil {
		return api.Admission{}, attempt.Reply{}, refuse(api.RouteStart, err)
	}
	k := call{route: api.RouteStart, target: c.target(api.RouteStart, nil), body: body, beforeSend: beforeSend}
	return do(ctx, c, k, checkAdmission(asked))
}

func checkAdmission(asked api.Start) func(*api.Admission) error {
	return func(a *api.Admission) error {
		switch {
		case a.Key != asked.Key:
			return other("key")
		case a.Job != asked.Job:
			return other("job")
		case !api.ValidAttemptID(a.Attempt) || !knownAttempt(a.State) || !knownJob(a.JobState) || a.LeaseMillis <= 0:
			return errors.New("the answer's attempt, states or lease are out of form")
		}
		return nil
	}
}

func knownAttempt(s api.AttemptState) bool {
	switch s {
	case api.AttemptInProgress, api.AttemptCompleted, api.AttemptFailed, api.AttemptExpired:
		return true
	}
	return false
}

func knownJob(s api.JobState) bool {
	switch s {
	case api.JobOpen, api.JobClosed, api.JobFinished, api.JobFailed, api.JobCancelled, api.JobExpired:
		return true
	}
	return false
}

// Attempt reads one attempt. A reading is never a confirmation (I29).
func (c *Client) Attempt(ctx context.Context, reference string) (api.Attempt, attempt.Reply, error) {
	return do(ctx, c, call{route: api.RouteAttempt, target: c.target(api.RouteAttempt, nil, reference)}, func(a *api.Attempt) error {
		if a.Attempt != reference {
			return other("attempt")
		}
		return checkAttempt(a)
	})
}

func checkAttempt(a *api.Attempt) error {
	if !api.ValidAttemptID(a.Attempt) || protocol.CheckPurpose(a.Key) != nil || !api.ValidJobID(a.Job) ||
		!knownAttempt(a.State) || !knownJob(a.JobState) {
		return errors.New("the answer has an attempt out of form")
	}
	return nil
}

// Inventory reads one page of this provider's attempts in progress.
func (c *Client) Inventory(ctx context.Context, limit int, cursor string) (api.Inventory, error) {
	query := url.Values{"state": {string(api.AttemptInProgress)}, "limit": {strconv.Itoa(limit)}}
	if cursor != "" {
		query.Set("cursor", cursor)
	}
	a, _, err := do(ctx, c, call{route: api.RouteInventory, target: c.target(api.RouteInventory, query)}, func(a *api.Inventory) error {
		switch {
		case a.State != api.AttemptInProgress:
			return other("state")
		case a.Limit != limit:
			return other("limit")
		case len(a.Attempts) > limit:
			return errors.New("the answer has more attempts than its limit")
		}
		for i := range a.Attempts {
			if err := checkAttempt(&a.Attempts[i]); err != nil {
				return err
			}
		}
		return checkCursor(a.NextCursor, cursor)
	})
	return a, err
}

// Progress sends a heartbeat and returns the one that stands.
func (c *Client) Progress(ctx context.Context, reference string, p api.Progress) (api.ProgressAnswer, error) {
	if err := p.Validate(); err != nil {
		return api.ProgressAnswer{}, refuse(api.RouteProgress, err)
	}
	k := call{route: api.RouteProgress, target: c.target(api.RouteProgress, nil, reference), body: api.Encode(p)}
	a, _, err := do(ctx, c, k, func(a *api.ProgressAnswer) error {
		switch {
		case a.Attempt != reference:
			return other("attempt")
		case a.Seq < p.Seq:
			return other("seq")
		case a.Seq == p.Seq && a.Phase != p.Phase:
			return other("phase")
		case a.LeaseMillis <= 0:
			return errors.New("the answer's lease is out of bounds")
		}
		return nil
	})
	return a, err
}

// Complete sends the exact COMPLETE body and returns the receipt, which
// matches it in everything that identifies it (I29), with the reply as
// received.
func (c *Client) Complete(ctx context.Context, reference string, body []byte) (api.CompleteReceipt, attempt.Reply, error) {
	var asked api.Complete
	err := api.Decode(body, api.RouteComplete.MaxRequest, &asked)
	if err == nil && asked.Attempt != reference {
		err = errors.New("the body names another attempt")
	}
	if err != nil {
		return api.CompleteReceipt{}, attempt.Reply{}, refuse(api.RouteComplete, err)
	}
	k := call{route: api.RouteComplete, target: c.target(api.RouteComplete, nil, reference), body: body}
	return do(ctx, c, k, func(a *api.CompleteReceipt) error {
		switch {
		case a.Attempt != asked.Attempt:
			return other("attempt")
		case a.Schema != asked.Schema:
			return other("schema")
		case a.Length != asked.Length:
			return other("length")
		case a.SHA256 != asked.SHA256:
			return other("sha256")
		}
		return nil
	})
}

// Fail sends the exact FAIL body and returns the receipt, which matches it
// (I29), with the reply as received.
func (c *Client) Fail(ctx context.Context, reference string, body []byte) (api.FailReceipt, attempt.Reply, error) {
	var asked api.Fail
	err := api.Decode(body, api.RouteFail.MaxRequest, &asked)
	if err == nil && asked.Attempt != reference {
		err = errors.New("the body names another attempt")
	}
	if err != nil {
		return api.FailReceipt{}, attempt.Reply{}, refuse(api.RouteFail, err)
	}
	k := call{route: api.RouteFail, target: c.target(api.RouteFail, nil, reference), body: body}
	return do(ctx, c, k, func(a *api.FailReceipt) error {
		switch {
		case a.Attempt != asked.Attempt:
			return other("attempt")
		case a.Code != asked.Code:
			return other("code")
		case a.Message != asked.Message:
			return other("message")
		}
		return nil
	})
}

// Receipts attaches signed host receipts to an attempt.
func (c *Client) Receipts(ctx context.Context, reference string, r api.HostReceipts) (api.HostReceiptsAnswer, attempt.Reply, error) {
	err := r.Validate()
	if err == nil && r.Attempt != reference {
		err = errors.New("the body names another attempt")
	}
	if err != nil {
		return api.HostReceiptsAnswer{}, attempt.Reply{}, refuse(api.RouteReceipts, err)
	}
	k := call{route: api.RouteReceipts, target: c.target(api.RouteReceipts, nil, reference), body: api.Encode(r)}
	return do(ctx, c, k, func(a *api.HostReceiptsAnswer) error {
		if a.Attempt != reference {
			return other("attempt")
		}
		if a.Added < 0 || a.Total < len(r.Receipts) || a.Verified < 0 || a.Verified > a.Total {
			return errors.New("the answer's counts do not hold the receipts sent")
		}
		return nil
	})
}
