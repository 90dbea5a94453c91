package uds

import (
	"bytes"
	"context"
	"errors"
	"io"
	"log"
	"net"
	"net/http"
	"os"
	"strconv"
	"sync"
	"time"

	"github.com/quittance/quittance/protocol"
)

// Limits bound what one peer can cost (I33). The zero value of a field means
// its default.
type Limits struct {
	ConnectionsPerUID int           // [protocol.MaxConnectionsPerUID]
	HeaderBytes       int           // [protocol.MaxHeaderBytes]
	BodyBytes         int           // [protocol.MaxBodyBytes]
	RequestTimeout    time.Duration // to finish sending a request: [protocol.RequestTimeoutSeconds]
	AnswerTimeout     time.Duration // to take an answer, a long poll's wait included: 90 s
	IdleTimeout       time.Duration // between requests: 2 min
	// ErrorLog takes what net/http has to say of broken connections; nil
	// discards it.
	ErrorLog *log.Logger
}

func (l Limits) withDefaults() Limits {
	setDefault(&l.ConnectionsPerUID, protocol.MaxConnectionsPerUID)
	setDefault(&l.HeaderBytes, protocol.MaxHeaderBytes)
	setDefault(&l.BodyBytes, protocol.MaxBodyBytes)
	setDefault(&l.RequestTimeout, protocol.RequestTimeoutSeconds*time.Second)
	setDefault(&l.AnswerTimeout, (protocol.MaxWaitSeconds+30)*time.Second)
	setDefault(&l.IdleTimeout, 2*time.Minute)
	if l.ErrorLog == nil {
		l.ErrorLog = log.New(io.Discard, "", 0)
	}
	return l
}

func setDefault[T int | time.Duration](v *T, value T) {
	if *v == 0 {
		*v = value
	}
}

// courtesy is how many connections over the limit are kept for one problem
// answer; those beyond are closed at once.
const courtesy = 16

// Server serves a handler on the private socket. Every request that reaches the
// handler has arrived whole: its body lies in memory, within the ceiling, and
// its context carries the [Peer].
type Server struct {
	http   *http.Server
	limits Limits

	mu   sync.Mutex
	open map[int]int // connections by uid; guarded by mu
}

// NewServer makes a server; Serve starts it.
func NewServer(handler http.Handler, limits Limits) *Server {
	s := &Server{limits: limits.withDefaults(), open: make(map[int]int)}
	s.http = &http.Server{
		Handler:                      s.receive(handler),
		ReadHeaderTimeout:            s.limits.RequestTimeout,
		ReadTimeout:                  s.limits.RequestTimeout,
		WriteTimeout:                 s.limits.AnswerTimeout,
		IdleTimeout:                  s.limits.IdleTimeout,
		MaxHeaderBytes:               s.limits.HeaderBytes,
		ErrorLog:                     s.limits.ErrorLog,
		DisableGeneralOptionsHandler: true,
		ConnContext: func(ctx context.Context, c net.Conn) context.Context {
			counted := c.(*countedConn)
			return context.WithValue(WithPeer(ctx, counted.peer), connKey{}, counted)
		},
	}
	return s
}

// Serve accepts on l, which it closes, until Shutdown or Close; it returns nil
// after either.
func (s *Server) Serve(l net.Listener) error {
	err := s.http.Serve(&countedListener{Listener: l, server: s})
	if errors.Is(err, http.ErrServerClosed) {
		return nil
	}
	return err
}

// Shutdown stops accepting and waits for requests under way, until ctx ends.
func (s *Server) Shutdown(ctx context.Context) error { return s.http.Shutdown(ctx) }

// Close ends everything at once.
func (s *Server) Close() error { return s.http.Close() }

// receive takes the whole request in before it calls the handler.
func (s *Server) receive(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		control := http.NewResponseController(w)
		if c, ok := r.Context().Value(connKey{}).(*countedConn); ok && c.overLimit {
			w.Header().Set("Connection", "close")
			WriteProblem(w, protocol.NewProblem(protocol.CodeTooManyConnections,
				"this user already has "+strconv.Itoa(s.limits.ConnectionsPerUID)+" connections open",
				"close some of them, then send the request again"))
			return
		}
		body, problem := s.readBody(r)
		if problem != nil {
			w.Header().Set("Connection", "close") // what is left of the body is not worth reading
			WriteProblem(w, problem)
			return
		}
		// The deadline was for the request. Left standing it would end the
		// watch for the peer's hang-up, and with it the context of a long poll.
		if err := control.SetReadDeadline(time.Time{}); err != nil {
			s.limits.ErrorLog.Printf("clear read deadline: %v", err)
		}
		r.Body = io.NopCloser(bytes.NewReader(body))
		next.ServeHTTP(w, r)
	})
}

func (s *Server) readBody(r *http.Request) ([]byte, *protocol.Problem) {
	limit := s.limits.BodyBytes
	tooLarge := func() *protocol.Problem {
		return protocol.NewProblem(protocol.CodeTooLarge,
			"the request's body is longer than "+strconv.Itoa(limit)+" bytes", "send a smaller request")
	}
	if r.ContentLength > int64(limit) {
		return nil, tooLarge()
	}
	body, err := io.ReadAll(io.LimitReader(r.Body, int64(limit)+1))
	switch {
	case errors.Is(err, os.ErrDeadlineExceeded):
		return nil, protocol.NewProblem(protocol.CodeTimeout,
			"the request did not arrive whole within "+s.limits.RequestTimeout.String(), "send the request again")
	case err != nil:
		return nil, protocol.NewProblem(protocol.CodeBadRequest,
			"the request's body broke off or is malformed", "send the request again, whole")
	case len(body) > limit:
		return nil, tooLarge()
	}
	return body, nil
}

// WriteProblem answers with a problem, in canonical bytes, and with Retry-After
// (whole seconds, rounded up) where the problem says when to come back.
func WriteProblem(w http.ResponseWriter, p *protocol.Problem) {
	body := append(protocol.AppendCanonical(nil, p), '\n')
	h := w.Header()
	h.Set("Content-Type", protocol.ContentProblem)
	h.Set("Content-Length", strconv.Itoa(len(body)))
	if p.RetryAfterMillis > 0 {
		h.Set("Retry-After", strconv.FormatInt((p.RetryAfterMillis+999)/1000, 10))
	}
	w.WriteHeader(p.Status)
	// A peer that is gone cannot be told so.
	_, _ = w.Write(body)
}

type connKey struct{}

// countedConn is a connection that counts against its user until it is closed,
// handed-over channels included.
type countedConn struct {
	*net.UnixConn
	peer      Peer
	overLimit bool
	release   func()
	once      sync.Once
}

func (c *countedConn) Close() error {
	c.once.Do(c.release)
	return c.UnixConn.Close()
}

// countedListener reads each peer's credentials and counts its connections.
type countedListener struct {
	net.Listener
	server *Server
}

func (l *countedListener) Accept() (net.Conn, error) {
	for {
		c, err := l.Listener.Accept()
		if err != nil {
			return nil, err
		}
		if counted := l.server.admit(c); counted != nil {
			return counted, nil
		}
	}
}

// admit counts a connection, or closes it and returns nil.
func (s *Server) admit(c net.Conn) *countedConn {
	uc, ok := c.(*net.UnixConn)
	if !ok {
		s.refuse(c, "not a Unix socket")
		return nil
	}
	peer, err := peerOf(uc)
	if err != nil {
		s.refuse(c, err.Error())
		return nil
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	n := s.open[peer.UID]
	if n >= s.limits.ConnectionsPerUID+courtesy {
		s.refuse(c, "too many connections of uid "+strconv.Itoa(peer.UID))
		return nil
	}
	s.open[peer.UID] = n + 1
	return &countedConn{
		UnixConn: uc, peer: peer,
		overLimit: n >= s.limits.ConnectionsPerUID,
		release:   func() { s.left(peer.UID) },
	}
}

func (s *Server) refuse(c net.Conn, why string) {
	s.limits.ErrorLog.Printf("connection closed: %s", why)
	if err := c.Close(); err != nil {
		s.limits.ErrorLog.Printf("close connection: %v", err)
	}
}

func (s *Server) left(uid int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.open[uid]--; s.open[uid] == 0 {
		delete(s.open, uid)
	}
}
