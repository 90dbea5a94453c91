// Package jobclient speaks to the job service's user side: one method per
// route, typed, bounded and strict.
//
// It owns the exchange: the token, the version header, ceilings, deadlines, and
// which errors mean what. It must not print or decide what a job's state means.
//
// # Errors
//
//	*api.Problem       the service said so; its effect says whether anything changed
//	*UnreachableError  nothing was sent
//	*LostError         sent, and no whole answer came back: an effect is unknown
package jobclient

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptrace"
	"net/url"
	"strconv"
	"strings"
	"time"

	"github.com/quittance/quittance/controller/api"
)

// deadlines of one exchange, beside the wait that a request asks for itself.
const (
	answerTimeout = 30 * time.Second
	bodyTimeout   = 2 * time.Minute
)

// Client speaks to one job service. It is safe for concurrent use.
type Client struct {
	base  string
	token string
	http  *http.Client
}

// New makes a client of the service at base, a URL without a path, with a
// bearer token. It does not connect.
func New(base, token string) (*Client, error) {
	parsed, err := url.Parse(base)
	if err != nil || (parsed.Scheme != "http" && parsed.Scheme != "https") || parsed.Host == "" ||
		strings.Trim(parsed.Path, "/") != "" || parsed.RawQuery != "" || parsed.User != nil {
		return nil, errors.New("the job service's URL must be http or https, a host, and nothing else")
	}
	if token == "" || strings.ContainsFunc(token, func(r rune) bool { return r <= ' ' || r > '~' }) {
		return nil, errors.New("the token is empty or has characters that no token has")
	}
	transport := http.DefaultTransport.(*http.Transport).Clone()
	transport.DisableCompression = true
	transport.MaxResponseHeaderBytes = api.MaxHeaderBytes
	return &Client{
		base: parsed.Scheme + "://" + parsed.Host, token: token,
		http: &http.Client{
			Transport: transport,
			// The service redirects nowhere; a token must not follow anybody.
			CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
		},
	}, nil
}

// UnreachableError means that nothing was sent.
type UnreachableError struct {
	Op  string
	Err error
}

func (e *UnreachableError) Error() string {
	return fmt.Sprintf("%s: the job service cannot be reached (is it running, and is its URL right?): %v", e.Op, e.Err)
}

// Unwrap returns the cause.
func (e *UnreachableError) Unwrap() error { return e.Err }

// LostError means that the request was sent and no whole answer came back.
type LostError struct {
	Op  string
	Err error
}

func (e *LostError) Error() string { return fmt.Sprintf("%s: no whole answer: %v", e.Op, e.Err) }

// Unwrap returns the cause.
func (e *LostError) Unwrap() error { return e.Err }

// request is one exchange.
type request struct {
	route  api.Route
	path   []string // values for the route's {names}, in order
	query  url.Values
	header http.Header
	body   []byte // nil: none
	wait   time.Duration
}

// response is a successful answer.
type response struct {
	header http.Header
	body   []byte
}

// target fills the route's path.
func (r request) target() string {
	path := r.route.Path
	for _, value := range r.path {
		open, end := strings.IndexByte(path, '{'), strings.IndexByte(path, '}')
		path = path[:open] + url.PathEscape(value) + path[end+1:]
	}
	if len(r.query) > 0 {
		path += "?" + r.query.Encode()
	}
	return path
}

// do sends r once and reads the answer within the route's ceiling.
func (c *Client) do(ctx context.Context, r request) (answer response, err error) {
	op := r.route.Method + " " + r.target()
	ctx, cancel := context.WithTimeoutCause(ctx, r.wait+answerTimeout+bodyTimeout, errors.New("no whole answer in time"))
	defer cancel()
	connected := false // written by the transport before Do returns
	traced := httptrace.WithClientTrace(ctx, &httptrace.ClientTrace{GotConn: func(httptrace.GotConnInfo) { connected = true }})
	var body io.Reader
	if r.body != nil {
		body = bytes.NewReader(r.body)
	}
	req, err := http.NewRequestWithContext(traced, r.route.Method, c.base+r.target(), body)
	if err != nil {
		return response{}, fmt.Errorf("%s: %w", op, err)
	}
	for name, values := range r.header {
		req.Header[name] = values
	}
	req.Header.Set(api.HeaderVersion, strconv.Itoa(api.Version))
	req.Header.Set("Authorization", "Bearer "+c.token)
	answered, err := c.http.Do(req)
	if err != nil {
		// The URL, which the error repeats, holds no secret; the cause says more.
		if wrapped, ok := errors.AsType[*url.Error](err); ok {
			err = wrapped.Err
		}
		if cause := context.Cause(ctx); cause != nil {
			err = cause
		}
		if !connected {
			return response{}, &UnreachableError{op, err}
		}
		return response{}, &LostError{op, err}
	}
	defer func() {
		// The answer was read; how its connection ends changes nothing of it.
		_ = answered.Body.Close()
	}()
	limit := r.route.MaxResponse
	if answered.StatusCode >= 300 {
		limit = 64 << 10
	}
	data, err := io.ReadAll(io.LimitReader(answered.Body, limit+1))
	if err != nil {
		return response{}, &LostError{op, err}
	}
	if int64(len(data)) > limit {
		return response{}, &LostError{op, fmt.Errorf("the answer is longer than %d bytes", limit)}
	}
	if answered.StatusCode >= 300 {
		return response{}, problem(op, answered.StatusCode, data)
	}
	return response{answered.Header, data}, nil
}

// problem reads an answer that is no success. What is no problem of the
// service's settles nothing: a proxy may have made it.
func problem(op string, status int, data []byte) error {
	var p api.Problem
	if err := api.Decode(data, 64<<10, &p); err != nil || p.Status != status {
		return &LostError{op, fmt.Errorf("status %d without a problem of the job service", status)}
	}
	return &p
}

// call is do for a JSON answer.
func call[T any](ctx context.Context, c *Client, r request) (T, error) {
	var answer T
	got, err := c.do(ctx, r)
	if err != nil {
		return answer, err
	}
	if err := api.Decode(got.body, r.route.MaxResponse, &answer); err != nil {
		var none T
		return none, &LostError{r.route.Method + " " + r.target(), fmt.Errorf("malformed answer: %w", err)}
	}
	return answer, nil
}
