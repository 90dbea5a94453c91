package jobclient

import (
	"context"
	"crypto/sha256"
	"encoding/base64"
	"errors"
	"net/http"
	"net/url"
	"strconv"
	"time"

	"github.com/quittance/quittance/controller/api"
	"github.com/quittance/quittance/protocol"
)

// effectTries is how often an idempotent effect is sent before its loss is
// reported: the same key and bytes have the same effect once (I12).
const effectTries = 3

// Create asks for a job under an operation id; the same id and payload answer
// with the same job, so a lost answer is asked for again.
func (c *Client) Create(ctx context.Context, operation string, job api.CreateJob) (api.CreateJobAnswer, error) {
	header := http.Header{}
	header.Set("Content-Type", api.ContentJSON)
	header.Set(api.HeaderIdempotencyKey, operation)
	return effect[api.CreateJobAnswer](ctx, c, request{route: api.RouteCreateJob, header: header, body: api.Encode(job)})
}

// Retry asks for one more attempt under an operation id.
func (c *Client) Retry(ctx context.Context, operation, job string) (api.Job, error) {
	header := http.Header{}
	header.Set(api.HeaderIdempotencyKey, operation)
	return effect[api.Job](ctx, c, request{route: api.RouteRetry, path: []string{job}, header: header})
}

// Cancel asks that a job stop; idempotent by nature.
func (c *Client) Cancel(ctx context.Context, job string) (api.Job, error) {
	return effect[api.Job](ctx, c, request{route: api.RouteCancel, path: []string{job}})
}

// effect repeats an idempotent request whose answer was lost.
func effect[T any](ctx context.Context, c *Client, r request) (T, error) {
	for try := 1; ; try++ {
		answer, err := call[T](ctx, c, r)
		if _, lost := errors.AsType[*LostError](err); !lost || try == effectTries || ctx.Err() != nil {
			return answer, err
		}
	}
}

// Upload stores a file for a job's use. It is not idempotent: an upload whose
// answer was lost expires unused, and the caller uploads again.
func (c *Client) Upload(ctx context.Context, contentType string, content []byte) (api.Upload, error) {
	sum := sha256.Sum256(content)
	header := http.Header{}
	header.Set("Content-Type", contentType)
	header.Set(api.HeaderContentDigest, "sha-256=:"+base64.StdEncoding.EncodeToString(sum[:])+":")
	if content == nil {
		content = []byte{}
	}
	return call[api.Upload](ctx, c, request{route: api.RouteCreateUpload, header: header, body: content})
}

// Job reads one job. With wait it answers when the job's version is above
// after, or when the wait ends.
func (c *Client) Job(ctx context.Context, job string, after int64, wait time.Duration) (api.Job, error) {
	r := request{route: api.RouteGetJob, path: []string{job}}
	if wait > 0 {
		r.wait = wait
		r.query = url.Values{"wait": {wait.String()}, "after": {strconv.FormatInt(after, 10)}}
	}
	return call[api.Job](ctx, c, r)
}

// Filter says which jobs are listed; empty members say nothing.
type Filter struct {
	State api.JobState
	Kind  string
	Label string // name=value
}

// List reads one page, newest first. cursor is "" for the first one.
func (c *Client) List(ctx context.Context, f Filter, limit int, cursor string) (api.JobList, error) {
	query := url.Values{"limit": {strconv.Itoa(limit)}}
	for name, value := range map[string]string{"state": string(f.State), "kind": f.Kind, "label": f.Label, "cursor": cursor} {
		if value != "" {
			query.Set(name, value)
		}
	}
	return call[api.JobList](ctx, c, request{route: api.RouteListJobs, query: query})
}

// Result is a job's result, byte-exact.
type Result struct {
	Schema string
	Bytes  []byte
}

// Result reads a job's result and checks it against its digest.
func (c *Client) Result(ctx context.Context, job string) (Result, error) {
	r := request{route: api.RouteResult, path: []string{job}}
	got, err := c.do(ctx, r)
	if err != nil {
		return Result{}, err
	}
	sum := sha256.Sum256(got.body)
	if got.header.Get(api.HeaderContentDigest) != "sha-256=:"+base64.StdEncoding.EncodeToString(sum[:])+":" {
		return Result{}, &LostError{r.route.Method + " " + r.target(), errors.New("the result does not have the digest that was announced")}
	}
	return Result{got.header.Get(api.HeaderSchema), got.body}, nil
}

// Receipts reads the signed host receipts of a job.
func (c *Client) Receipts(ctx context.Context, job string) (api.JobReceipts, error) {
	return call[api.JobReceipts](ctx, c, request{route: api.RouteJobReceipts, path: []string{job}})
}

// Why reads what happened to a job, with the evidence.
func (c *Client) Why(ctx context.Context, job string) (api.Why, error) {
	return call[api.Why](ctx, c, request{route: api.RouteWhy, path: []string{job}})
}

// Offerings reads the kinds that can be submitted.
func (c *Client) Offerings(ctx context.Context) (api.Offerings, error) {
	return call[api.Offerings](ctx, c, request{route: api.RouteListOfferings})
}

// NewOperation makes an operation id.
func NewOperation() string { return "agentctl-" + string(protocol.NewID()) }
