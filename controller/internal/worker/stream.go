package worker

import (
	"bufio"
	"context"
	"errors"
	"io"
	"math"
	"net"
	"net/http"
	"time"

	"github.com/quittance/quittance/protocol"
)

// stream is one channel. It remembers whether the channel itself failed, so
// that a lost worker is told from one that speaks badly, and it bounds what is
// read before a message's length is known.
type stream struct {
	conn net.Conn
	r    *bufio.Reader
	left int64 // bytes that may still be read; only the reader uses it

	ended bool // reading failed or came to the end; only the reader uses it
}

func newStream(conn net.Conn) *stream {
	s := &stream{conn: conn, left: math.MaxInt64}
	s.r = bufio.NewReader(readerFunc(s.read))
	return s
}

type readerFunc func(p []byte) (int, error)

func (f readerFunc) Read(p []byte) (int, error) { return f(p) }

var errTooLong = errors.New("the worker's message is longer than it may be")

func (s *stream) read(p []byte) (int, error) {
	if s.left <= 0 {
		return 0, errTooLong
	}
	n, err := s.conn.Read(p[:min(int64(len(p)), s.left)])
	s.left -= int64(n)
	if err != nil {
		s.ended = true
	}
	return n, err
}

// shut ends the stream in both directions at once and closes it. Errors mean
// that it had ended already.
func (s *stream) shut() {
	if half, ok := s.conn.(interface{ CloseWrite() error }); ok {
		_ = half.CloseWrite()
	}
	_ = s.conn.SetDeadline(time.Unix(1, 0))
	_ = s.conn.Close()
}

// message is one HTTP request.
type message struct {
	method, path string
	accept       string
	body         Input
	more         bool // another request follows over this channel
}

// maxInterim bounds the interim answers (100, 103) before one answer.
const maxInterim = 8

// exchange sends one request and lets read take the one answer. It follows no
// redirect and sends nothing twice. The request is written while the answer is
// awaited: a worker may refuse it before it has read the whole, and close; what
// it said is read all the same. When exchange returns, nothing is in flight.
func (s *stream) exchange(ctx context.Context, m message, read func(*http.Response) error) error {
	req, err := http.NewRequestWithContext(ctx, m.method, "http://localhost"+m.path, http.NoBody)
	if err != nil {
		return fail(Protocol, err, "the offering's request cannot be built")
	}
	body := newCheckedReader(m.body)
	if m.body.Length > 0 {
		req.Body = io.NopCloser(body)
		req.ContentLength = m.body.Length
	} else if m.body.SHA256 != protocol.DigestOf(nil) {
		return fail(Protocol, errChanged, "the input changed after it was verified")
	}
	if m.body.ContentType != "" {
		req.Header.Set("Content-Type", m.body.ContentType)
	}
	req.Header.Set("Accept", m.accept)
	req.Header.Set("User-Agent", "quittance")
	req.Close = !m.more
	if s.r.Buffered() > 0 {
		return fail(Protocol, nil, "the worker spoke before it was asked")
	}

	release := context.AfterFunc(ctx, s.shut)
	defer release()
	sent := make(chan error, 1)
	go func() {
		err := req.Write(s.conn)
		if body.failed != nil {
			s.shut() // the request must never become whole
		}
		sent <- err
	}()
	err = s.answer(req, read)
	if err != nil {
		s.shut() // nothing more is said over this channel
	}
	sending := <-sent
	switch {
	case errors.Is(body.failed, errChanged):
		return fail(Protocol, body.failed, "the input changed after it was verified; the request was not finished")
	case body.failed != nil:
		return fail(Protocol, body.failed, "the input cannot be read back; the request was not finished")
	case err != nil:
		return err
	case sending != nil:
		// Success for a request of which the worker did not take the last byte is
		// the answer to something else.
		return fail(Protocol, sending, "the worker answered with success and had not taken the whole request")
	}
	return nil
}

func (s *stream) answer(req *http.Request, read func(*http.Response) error) error {
	resp, err := s.head(req)
	if err != nil {
		return s.classify(err, "before the answer's head was whole")
	}
	if err := read(resp); err != nil {
		return err // the body is not closed: that would read it to its end
	}
	if err := resp.Body.Close(); err != nil {
		return s.classify(err, "at the end of the answer")
	}
	return nil
}

// head reads the answer's head within its bound.
func (s *stream) head(req *http.Request) (*http.Response, error) {
	s.left = protocol.MaxHeaderBytes
	defer func() { s.left = math.MaxInt64 }()
	for range maxInterim {
		resp, err := http.ReadResponse(s.r, req)
		if err != nil || resp.StatusCode >= 200 || resp.StatusCode == http.StatusSwitchingProtocols {
			return resp, err
		}
	}
	return nil, errTooLong
}

// classify tells a lost worker from a malformed answer: only what the channel
// itself reported makes it lost.
func (s *stream) classify(err error, when string) error {
	if s.ended || errors.Is(err, io.ErrUnexpectedEOF) || errors.Is(err, io.EOF) {
		return fail(WorkerLost, err, "the channel ended %s", when)
	}
	return fail(Protocol, err, "the worker's answer is malformed")
}
