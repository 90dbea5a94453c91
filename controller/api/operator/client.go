package operator

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"time"

	"github.com/quittance/quittance/protocol"
	"github.com/quittance/quittance/protocol/hostclient"
	"github.com/quittance/quittance/protocol/uds"
)

// exchangeTimeout bounds one exchange.
const exchangeTimeout = 30 * time.Second

// Client speaks to one controller. It is safe for concurrent use, and each
// request has a connection of its own. Its errors are *[protocol.Problem],
// *[hostclient.UnreachableError] where nothing was sent, and
// *[hostclient.LostError] where the answer was lost.
type Client struct {
	path string
	http http.Client
}

// New makes a client of the socket at path; it does not connect.
func New(path string) *Client {
	return &Client{path: path, http: http.Client{
		Timeout: exchangeTimeout,
		Transport: &http.Transport{
			DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
				conn, err := uds.Dial(ctx, path)
				if err != nil {
					return nil, &dialError{err}
				}
				return conn, nil
			},
			DisableKeepAlives: true, DisableCompression: true, MaxResponseHeaderBytes: protocol.MaxHeaderBytes,
		},
	}}
}

type dialError struct{ error }

func (e *dialError) Unwrap() error { return e.error }

// List reads the attempts that are not archived.
func (c *Client) List(ctx context.Context) (List, error) {
	return read[List](ctx, c, http.MethodGet, "/v1/attempts", nil)
}

// Show reads one attempt, archived ones too while they are kept.
func (c *Client) Show(ctx context.Context, key string) (Attempt, error) {
	return read[Attempt](ctx, c, http.MethodGet, path(key, ""), nil)
}

// Record reads the whole record in its canonical form.
func (c *Client) Record(ctx context.Context, key string) ([]byte, error) {
	return c.exchange(ctx, http.MethodGet, path(key, "/record"), nil, MaxRecordBytes)
}

// Resume makes an attempt go on now.
func (c *Client) Resume(ctx context.Context, key string) (Decided, error) {
	return read[Decided](ctx, c, http.MethodPost, path(key, "/resume"), Nothing{})
}

// Resolve frees the lane that an attempt holds.
func (c *Client) Resolve(ctx context.Context, key string, r Resolve) (Decided, error) {
	if err := r.Validate(); err != nil {
		return Decided{}, err
	}
	return read[Decided](ctx, c, http.MethodPost, path(key, "/resolve"), r)
}

// Drain makes the controller take nothing new.
func (c *Client) Drain(ctx context.Context) (Drained, error) {
	return read[Drained](ctx, c, http.MethodPost, "/v1/drain", Nothing{})
}

func path(key, rest string) string { return "/v1/attempts/" + url.PathEscape(key) + rest }

func read[T any](ctx context.Context, c *Client, method, path string, body any) (answer T, err error) {
	data, err := c.exchange(ctx, method, path, body, protocol.MaxAnswerBytes)
	if err != nil {
		return answer, err
	}
	if err := protocol.DecodeStrict(data, protocol.MaxAnswerBytes, &answer); err != nil {
		return answer, &hostclient.LostError{Op: method + " " + path, Err: err}
	}
	return answer, nil
}

func (c *Client) exchange(ctx context.Context, method, path string, body any, limit int) ([]byte, error) {
	op := method + " " + path
	var content io.Reader
	if body != nil {
		content = bytes.NewReader(protocol.AppendCanonical(nil, body))
	}
	request, err := http.NewRequestWithContext(ctx, method, "http://controller"+path, content)
	if err != nil {
		return nil, err
	}
	if body != nil {
		request.Header.Set("Content-Type", protocol.ContentJSON)
	}
	response, err := c.http.Do(request)
	if err != nil {
		if _, dial := errors.AsType[*dialError](err); dial {
			return nil, &hostclient.UnreachableError{Op: op, Err: err}
		}
		return nil, &hostclient.LostError{Op: op, Err: err}
	}
	data, err := io.ReadAll(io.LimitReader(response.Body, int64(limit)+1))
	err = errors.Join(err, response.Body.Close())
	if err == nil && len(data) > limit {
		err = fmt.Errorf("answer is longer than %d bytes", limit)
	}
	if err != nil {
		return nil, &hostclient.LostError{Op: op, Err: err}
	}
	if response.StatusCode == http.StatusOK {
		return data, nil
	}
	var problem protocol.Problem
	if err := protocol.DecodeStrict(data, protocol.MaxAnswerBytes, &problem); err != nil || problem.Code == "" {
		return nil, &hostclient.LostError{Op: op, Err: fmt.Errorf("status %d without a problem", response.StatusCode)}
	}
	return nil, &problem
}
