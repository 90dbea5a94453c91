package hostclient

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptrace"
	"net/url"
	"strconv"
	"time"

	"github.com/quittance/quittance/protocol"
	"github.com/quittance/quittance/protocol/uds"
)

// Options of a client. The zero value is an operator's.
type Options struct {
	// Owner returns the attempt store's id, sent with every request of a
	// controller. nil for operators, who send none.
	Owner func() protocol.ID
	// FirstByte bounds the time until an answer begins, beside the wait that a
	// request asks for itself. 0 means 10 s. A dead agent behind a socket unit
	// accepts and says nothing.
	FirstByte time.Duration
	// Body bounds the time from an answer's first byte to its last. 0 means 30 s.
	Body time.Duration
}

// Client speaks to one agent. It is safe for concurrent use. Every request has a
// connection of its own, so a request is never sent twice behind the caller's
// back.
type Client struct {
	path      string
	options   Options
	transport *http.Transport
}

// New makes a client of the socket at path; it does not connect.
func New(path string, o Options) *Client {
	if o.FirstByte == 0 {
		o.FirstByte = 10 * time.Second
	}
	if o.Body == 0 {
		o.Body = 30 * time.Second
	}
	return &Client{path: path, options: o, transport: &http.Transport{
		DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
			return uds.Dial(ctx, path)
		},
		DisableKeepAlives:      true,
		DisableCompression:     true,
		MaxResponseHeaderBytes: protocol.MaxHeaderBytes,
	}}
}

// request is one exchange.
type request struct {
	op     string // for errors
	method string
	path   string // escaped, from the root
	query  url.Values
	body   any           // nil, or a message
	wait   time.Duration // what the request asks the agent to wait
}

func (r request) newHTTP(ctx context.Context, c *Client) (*http.Request, error) {
	var body io.Reader
	if r.body != nil {
		if v, ok := r.body.(protocol.Validator); ok {
			if err := v.Validate(); err != nil {
				return nil, fmt.Errorf("%s: %w", r.op, err)
			}
		}
		data := protocol.AppendCanonical(nil, r.body)
		if len(data) > protocol.MaxBodyBytes {
			return nil, fmt.Errorf("%s: %w", r.op, &protocol.DecodeError{Reason: fmt.Sprintf("request is longer than %d bytes", protocol.MaxBodyBytes)})
		}
		body = bytes.NewReader(data)
	}
	target := "http://agent" + r.path
	if len(r.query) > 0 {
		target += "?" + r.query.Encode()
	}
	req, err := http.NewRequestWithContext(ctx, r.method, target, body)
	if err != nil {
		return nil, &protocol.DecodeError{Reason: r.op + ": " + err.Error()}
	}
	req.Header.Set(protocol.HeaderVersion, strconv.Itoa(protocol.Version))
	if r.body != nil {
		req.Header.Set("Content-Type", protocol.ContentJSON)
	}
	if c.options.Owner != nil {
		if owner := c.options.Owner(); owner != "" {
			req.Header.Set(protocol.HeaderOwner, string(owner))
		}
	}
	return req, nil
}

// exchange sends r and calls read with the body of a successful answer. Errors
// are as the package comment lists them.
func (c *Client) exchange(ctx context.Context, r request, read func(io.Reader) error) error {
	parent := ctx
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	deadline := time.AfterFunc(c.options.FirstByte+r.wait, func() { cancel(errFirstByte) })
	defer deadline.Stop()

	connected := false // written by the transport before RoundTrip returns
	trace := &httptrace.ClientTrace{GotConn: func(httptrace.GotConnInfo) { connected = true }}
	req, err := r.newHTTP(httptrace.WithClientTrace(ctx, trace), c)
	if err != nil {
		return err
	}
	resp, err := c.transport.RoundTrip(req)
	if err != nil {
		if cause := context.Cause(ctx); cause != nil {
			err = cause
		}
		if !connected {
			return &UnreachableError{Op: r.op, Err: err}
		}
		return &LostError{Op: r.op, Err: err}
	}
	// The connection ends with this exchange; nothing hangs on how.
	defer resp.Body.Close()
	if !deadline.Stop() {
		return &LostError{Op: r.op, Err: errFirstByte}
	}
	bodyDeadline := time.AfterFunc(c.options.Body, func() { cancel(errBody) })
	defer bodyDeadline.Stop()

	switch resp.StatusCode {
	case http.StatusOK, http.StatusCreated, http.StatusAccepted:
		err = read(resp.Body)
	default:
		return c.problem(ctx, r, resp)
	}
	if err != nil {
		if cause := context.Cause(ctx); cause != nil && (parent.Err() != nil || errors.Is(cause, errBody)) {
			err = cause
		}
		return &LostError{Op: r.op, Err: err}
	}
	return nil
}

// problem reads an answer that is not a success.
func (c *Client) problem(ctx context.Context, r request, resp *http.Response) error {
	data, err := readAll(resp.Body, protocol.MaxAnswerBytes)
	if err != nil {
		if cause := context.Cause(ctx); cause != nil {
			err = cause
		}
		return &LostError{Op: r.op, Err: err}
	}
	return problemOf(r.op, resp.StatusCode, data)
}

// problemOf makes an error of an answer: the agent's problem where it is a
// settled refusal, a loss otherwise. What is no problem at all did not come from
// a handler of the agent and settles nothing.
func problemOf(op string, status int, data []byte) error {
	var p protocol.Problem
	if err := protocol.DecodeStrict(data, protocol.MaxAnswerBytes, &p); err != nil {
		return &LostError{Op: op, Err: fmt.Errorf("status %d without a problem: %w", status, err)}
	}
	if p.Status != status || p.Code == "" {
		return &LostError{Op: op, Err: fmt.Errorf("status %d with a problem of another status", status)}
	}
	if p.Disposition != protocol.Refused {
		return &LostError{Op: op, Problem: &p}
	}
	return &p
}

// call is exchange for a JSON answer.
func call[T any](ctx context.Context, c *Client, r request) (T, error) {
	var answer T
	err := c.exchange(ctx, r, func(body io.Reader) error {
		data, err := readAll(body, protocol.MaxAnswerBytes)
		if err != nil {
			return err
		}
		return protocol.DecodeStrict(data, protocol.MaxAnswerBytes, &answer)
	})
	if err != nil {
		var none T
		return none, err
	}
	return answer, nil
}

// text is exchange for a text answer of at most limit bytes.
func (c *Client) text(ctx context.Context, r request, limit int) (string, error) {
	var answer string
	err := c.exchange(ctx, r, func(body io.Reader) error {
		data, err := readAll(body, limit)
		answer = string(data)
		return err
	})
	if err != nil {
		return "", err
	}
	return answer, nil
}

// readAll refuses more than limit bytes (I33).
func readAll(r io.Reader, limit int) ([]byte, error) {
	data, err := io.ReadAll(io.LimitReader(r, int64(limit)+1))
	if err != nil {
		return nil, err
	}
	if len(data) > limit {
		return nil, fmt.Errorf("answer is longer than %d bytes", limit)
	}
	return data, nil
}

// checkWait refuses waits that the agent would refuse.
func checkWait(wait time.Duration) error {
	if wait < 0 || wait > protocol.MaxWaitSeconds*time.Second {
		return &protocol.DecodeError{Field: "wait", Reason: fmt.Sprintf("must be from 0 to %d s", protocol.MaxWaitSeconds)}
	}
	return nil
}
