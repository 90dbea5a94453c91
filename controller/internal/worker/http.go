package worker

import (
	"context"
	"errors"
	"io"
	"mime"
	"net"
	"net/http"
	"strings"
	"sync"
	"time"

	"github.com/go-json-experiment/json/jsontext"

	"github.com/quittance/quittance/controller/internal/offering"
	"github.com/quittance/quittance/protocol"
)

// HTTP is the adapter "http": one request, one bounded response, Host:
// localhost, no redirects, no retry, over a channel of its own.
type HTTP struct {
	offer *offering.Offering
	dial  Dialer

	mu       sync.Mutex
	prepares uint64 // counts Prepare calls; the latest is the only live one
	ready    bool   // the latest preparation succeeded and was not executed
	channel  *trackedConn
	input    Input
	closed   bool
}

// NewHTTP makes the adapter of one attempt's allocation.
func NewHTTP(offer *offering.Offering, dial Dialer) *HTTP {
	return &HTTP{offer: offer, dial: dial}
}

var _ Adapter = (*HTTP)(nil)

// Prepare implements [Adapter]: admission of size, digest, content type and
// schema, then the channel that the execution will use.
func (a *HTTP) Prepare(ctx context.Context, in Input, _ Report) (Handle, error) {
	a.mu.Lock()
	a.prepares++
	this := a.prepares
	old := a.channel
	a.channel, a.ready = nil, false
	a.mu.Unlock()
	if old != nil {
		old.shut()
	}

	if err := a.admit(in); err != nil {
		return Handle{}, err
	}
	timed, cancel := context.WithTimeoutCause(ctx, a.offer.PrepareTimeout, errPrepare)
	defer cancel()
	conn, err := a.dial.Channel(timed)
	if err != nil {
		if stopped := context.Cause(ctx); stopped != nil {
			return Handle{}, stopped
		}
		if errors.Is(err, ErrGone) {
			return Handle{}, fail(WorkerLost, err, "the worker ended during preparation")
		}
		return Handle{}, fail(Unavailable, err, "no channel to the ready worker")
	}

	a.mu.Lock()
	defer a.mu.Unlock()
	if a.closed || a.prepares != this {
		return Handle{}, errors.Join(ErrHandle, conn.Close())
	}
	a.channel, a.input, a.ready = &trackedConn{Conn: conn}, in, true
	return Handle{owner: a, prepared: this, Digest: in.SHA256}, nil
}

var (
	errPrepare = errors.New("prepare_timeout passed")
	errExecute = errors.New("request.timeout passed")
)

func (a *HTTP) admit(in Input) error {
	rule := a.offer.Input
	if in.Length > rule.MaxBytes {
		return fail(InvalidInput, nil, "the input has %d bytes; this offering takes at most %d", in.Length, rule.MaxBytes)
	}
	if !sameMedia(in.ContentType, rule.ContentType) {
		return fail(InvalidInput, nil, "the input's content type is not %s", rule.ContentType)
	}
	if rule.Schema == nil && !isJSON(rule.ContentType) {
		return nil
	}
	if rule.From == offering.FromUpload {
		return nil // an upload is bytes; its length and digest were verified
	}
	data, err := io.ReadAll(io.NewSectionReader(in.Bytes, 0, in.Length))
	if err != nil {
		return fail(Protocol, err, "the input cannot be read back")
	}
	if protocol.DigestOf(data) != in.SHA256 {
		return fail(Protocol, errChanged, "the input changed after it was verified")
	}
	if !jsontext.Value(data).IsValid() {
		return fail(InvalidInput, nil, "the input is not one JSON value")
	}
	if rule.Schema != nil {
		if err := rule.Schema.Check(data); err != nil {
			return fail(InvalidInput, err, "the input does not match the schema: %v", err)
		}
	}
	return nil
}

// Execute implements [Adapter]. The request's timeout counts from here to the
// last byte of the answer.
func (a *HTTP) Execute(ctx context.Context, h Handle, _ Report) (Outcome, error) {
	a.mu.Lock()
	if h.owner != a || h.prepared != a.prepares || !a.ready || a.closed {
		a.mu.Unlock()
		return Outcome{}, ErrHandle
	}
	a.ready = false
	conn, in := a.channel, a.input
	a.mu.Unlock()
	defer conn.shut()

	timed, cancel := context.WithTimeoutCause(ctx, a.offer.Request.Timeout, errExecute)
	defer cancel()
	out, err := a.exchange(timed, conn, in)
	// A reply whose last byte came after the deadline is refused even if it was
	// already buffered.
	if timed.Err() == nil && err == nil {
		return out, nil
	}
	switch cause := context.Cause(timed); {
	case context.Cause(ctx) != nil:
		return Outcome{}, context.Cause(ctx)
	case errors.Is(cause, errExecute):
		return Outcome{}, fail(WorkerTimeout, errExecute, "no whole answer within %s", a.offer.Request.Timeout)
	}
	return Outcome{}, err
}

func (a *HTTP) exchange(ctx context.Context, conn *trackedConn, in Input) (Outcome, error) {
	taken := false
	transport := &http.Transport{
		DialContext: func(context.Context, string, string) (net.Conn, error) {
			if taken {
				return nil, errSecondDial
			}
			taken = true
			return conn, nil
		},
		DisableKeepAlives:      true,
		DisableCompression:     true,
		MaxResponseHeaderBytes: protocol.MaxHeaderBytes,
	}
	defer transport.CloseIdleConnections()

	body := newCheckedReader(in)
	req, err := http.NewRequestWithContext(ctx, a.offer.Request.Method, "http://localhost"+a.offer.Request.Path, io.NopCloser(body))
	if err != nil {
		return Outcome{}, fail(Protocol, err, "the offering's request cannot be built")
	}
	req.ContentLength = in.Length
	if in.Length == 0 {
		if in.SHA256 != protocol.DigestOf(nil) {
			return Outcome{}, fail(Protocol, errChanged, "the input changed after it was verified")
		}
		req.Body = http.NoBody
	}
	req.Header.Set("Content-Type", in.ContentType)
	req.Header.Set("Accept", a.offer.Response.ContentType)
	req.Header.Set("User-Agent", "quittance")

	// RoundTrip follows no redirect and, with one connection and no GetBody,
	// sends nothing twice.
	resp, err := transport.RoundTrip(req)
	if err != nil {
		return Outcome{}, classify(conn, err, "while the request was sent or the answer's head read")
	}
	out, err := a.answer(conn, resp)
	if closeErr := resp.Body.Close(); err == nil && closeErr != nil {
		err = classify(conn, closeErr, "at the end of the answer")
	}
	return out, err
}

var errSecondDial = errors.New("one execution uses one channel")

func (a *HTTP) answer(conn *trackedConn, resp *http.Response) (Outcome, error) {
	if resp.StatusCode != http.StatusOK {
		evidence, _ := io.ReadAll(io.LimitReader(resp.Body, MaxEvidence)) // a cut refusal is still a refusal
		f := fail(WorkerFailed, nil, "the worker answered with status %d", resp.StatusCode)
		f.Evidence = evidence
		return Outcome{}, f
	}
	rule := a.offer.Response
	if resp.ContentLength < 0 && len(resp.TransferEncoding) == 0 {
		return Outcome{}, fail(Protocol, nil, "the answer has neither a length nor chunks, so a cut one could not be told from a whole one")
	}
	if len(resp.Header.Values("Content-Encoding")) > 0 {
		return Outcome{}, fail(Protocol, nil, "the answer has a content encoding; none was asked for")
	}
	contentType := resp.Header.Get("Content-Type")
	if !sameMedia(contentType, rule.ContentType) {
		return Outcome{}, fail(Protocol, nil, "the answer's content type is not %s", rule.ContentType)
	}
	if resp.ContentLength > rule.MaxBytes {
		return Outcome{}, fail(Protocol, nil, "the answer announces %d bytes; this offering takes at most %d", resp.ContentLength, rule.MaxBytes)
	}
	data, err := io.ReadAll(io.LimitReader(resp.Body, rule.MaxBytes+1))
	if err != nil {
		return Outcome{}, classify(conn, err, "in the middle of the answer's body")
	}
	if int64(len(data)) > rule.MaxBytes {
		return Outcome{}, fail(Protocol, nil, "the answer is longer than %d bytes", rule.MaxBytes)
	}
	if isJSON(rule.ContentType) && !jsontext.Value(data).IsValid() {
		return Outcome{}, fail(Protocol, nil, "the answer is not one JSON value")
	}
	if rule.Schema != nil {
		if err := rule.Schema.Check(data); err != nil {
			return Outcome{}, fail(Protocol, err, "the answer does not match the schema: %v", err)
		}
	}
	return Outcome{ContentType: rule.ContentType, Body: data, Warnings: len(resp.Header.Values("Warning"))}, nil
}

// classify tells a lost worker from a malformed answer: only what the channel
// itself reported makes it lost.
func classify(conn *trackedConn, err error, when string) error {
	if errors.Is(err, errChanged) {
		return fail(Protocol, err, "the input changed after it was verified; the request was not finished")
	}
	if conn.broken() || errors.Is(err, io.ErrUnexpectedEOF) || errors.Is(err, io.EOF) {
		return fail(WorkerLost, err, "the channel ended %s", when)
	}
	return fail(Protocol, err, "the worker's answer is malformed")
}

// Close implements [Adapter].
func (a *HTTP) Close() error {
	a.mu.Lock()
	a.closed, a.ready = true, false
	conn := a.channel
	a.channel = nil
	a.mu.Unlock()
	if conn != nil {
		conn.shut()
	}
	return nil
}

// trackedConn remembers whether the stream itself failed or ended.
type trackedConn struct {
	net.Conn
	mu   sync.Mutex
	died bool
}

func (c *trackedConn) note(err error) {
	if err == nil {
		return
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.died = true
}

func (c *trackedConn) broken() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.died
}

func (c *trackedConn) Read(p []byte) (int, error) {
	n, err := c.Conn.Read(p)
	c.note(err)
	return n, err
}

func (c *trackedConn) Write(p []byte) (int, error) {
	n, err := c.Conn.Write(p)
	c.note(err)
	return n, err
}

// shut ends the stream in both directions at once and closes it. Errors mean
// that it had ended already.
func (c *trackedConn) shut() {
	if half, ok := c.Conn.(interface{ CloseWrite() error }); ok {
		_ = half.CloseWrite()
	}
	_ = c.Conn.SetDeadline(time.Unix(1, 0))
	_ = c.Conn.Close()
}

func sameMedia(got, want string) bool {
	g, _, err := mime.ParseMediaType(got)
	if err != nil {
		return false
	}
	w, _, err := mime.ParseMediaType(want)
	return err == nil && g == w
}

func isJSON(contentType string) bool {
	m, _, err := mime.ParseMediaType(contentType)
	return err == nil && (m == "application/json" || strings.HasSuffix(m, "+json"))
}
