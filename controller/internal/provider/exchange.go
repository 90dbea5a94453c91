package provider

import (
	"bytes"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"sync"
	"sync/atomic"
	"time"

	"github.com/quittance/quittance/controller/api"
	"github.com/quittance/quittance/controller/internal/attempt"
	"github.com/quittance/quittance/controller/internal/signing"
	"github.com/quittance/quittance/protocol"
)

// maxProblemBytes bounds the body of an unsuccessful answer.
const maxProblemBytes = attempt.MaxReplyBytes

// Config names the job service and bounds every exchange with it.
type Config struct {
	Origin       string          // scheme, host and port: "https://jobs.example.org"
	StoreOrigins []string        // origins that read grants may name; none: Origin only
	Topology     string          // the value of Quittance-Topology that every answer must have
	Signer       *signing.Signer // signs every request
	UserAgent    string          // program and version
	Timeout      time.Duration   // of one exchange, connect to last byte
	FetchTimeout time.Duration   // of one upload transfer
	TLS          *tls.Config     // roots; nil: the system's
	// Dial replaces the connection to the origin's host, for a service on a
	// Unix socket or behind another address. Nil: TCP to the host named.
	Dial func(ctx context.Context) (net.Conn, error)
	// Observe, where it is set, is told of every exchange that ended; failure is
	// nil for a success.
	Observe func(operation string, failure *Failure, took time.Duration)
}

// Client makes exchanges with one job service. It keeps no connection and may
// be used from any goroutine.
type Client struct {
	cfg    Config
	origin *url.URL
	stores map[string]bool // allowed origins of read grants
	tls    *tls.Config
}

// New checks the configuration and makes a client; it sends nothing.
func New(cfg Config) (*Client, error) {
	origin, err := parseOrigin(cfg.Origin)
	if err != nil {
		return nil, fmt.Errorf("provider: api origin %w", err)
	}
	switch {
	case cfg.Topology == "":
		return nil, errors.New("provider: topology is required: the name that the service answers with")
	case cfg.Signer == nil:
		return nil, errors.New("provider: a signing key is required")
	case cfg.Timeout <= 0 || cfg.FetchTimeout <= 0:
		return nil, errors.New("provider: timeouts must be positive")
	}
	c := &Client{cfg: cfg, origin: origin, stores: map[string]bool{}, tls: &tls.Config{}}
	if cfg.TLS != nil {
		c.tls = cfg.TLS.Clone()
	}
	c.tls.NextProtos = []string{"http/1.1"}
	c.tls.MinVersion = max(c.tls.MinVersion, tls.VersionTLS12)
	c.tls.ClientSessionCache = tls.NewLRUClientSessionCache(8)
	stores := cfg.StoreOrigins
	if len(stores) == 0 {
		stores = []string{cfg.Origin}
	}
	for _, s := range stores {
		u, err := parseOrigin(s)
		if err != nil {
			return nil, fmt.Errorf("provider: store origin %w", err)
		}
		c.stores[u.String()] = true
	}
	return c, nil
}

// Origin is the service's origin in normal form.
func (c *Client) Origin() string { return c.origin.String() }

func parseOrigin(s string) (*url.URL, error) {
	u, err := url.Parse(s)
	if err != nil || u.Host == "" || u.Scheme != "https" && u.Scheme != "http" ||
		u.Path != "" || u.RawQuery != "" || u.Fragment != "" || u.User != nil || u.Opaque != "" {
		return nil, errors.New(`must be an origin such as "https://jobs.example.org", without path, query or user`)
	}
	return u, nil
}

// call is one exchange to make.
type call struct {
	route  api.Route
	target *url.URL
	body   []byte // nil: none
	// beforeSend is told the signature's expiry before anything is sent; its
	// error ends the exchange unsent.
	beforeSend func(expires time.Time) error
}

// answer is a whole answer with a success status.
type answer struct {
	reply attempt.Reply
	raw   []byte
	about Failure // what is known of the exchange, should the content fail a check
}

// exchange makes one exchange and settles it. On failure the error is a
// *[Failure].
func (c *Client) exchange(parent context.Context, k call) (*answer, *Failure) {
	began := time.Now()
	a, f := c.settle(parent, k)
	c.observe(k.route, f, began)
	return a, f
}

func (c *Client) observe(route api.Route, f *Failure, began time.Time) {
	if c.cfg.Observe != nil {
		c.cfg.Observe(route.Name, f, time.Since(began))
	}
}

// settle is exchange itself.
func (c *Client) settle(parent context.Context, k call) (*answer, *Failure) {
	f := &Failure{Operation: k.route.Name}
	unsent := func(cause error) (*answer, *Failure) {
		f.Class, f.Disposition, f.Cause = ClassNotSent, protocol.Refused, cause
		return nil, f
	}
	if int64(len(k.body)) > k.route.MaxRequest {
		return unsent(fmt.Errorf("the request is longer than %d bytes", k.route.MaxRequest))
	}
	ctx, cancel := context.WithTimeout(parent, c.cfg.Timeout)
	defer cancel()
	request, err := c.request(ctx, k)
	if err != nil {
		return unsent(err)
	}
	signature, err := c.cfg.Signer.Sign(request, k.body)
	if err != nil {
		return unsent(err)
	}
	f.Expires = signature.Expires
	if k.beforeSend != nil {
		if err := k.beforeSend(signature.Expires); err != nil {
			return unsent(err)
		}
	}
	got, err := c.roundTrip(ctx, request, func(status int) int64 {
		if success(status) {
			return k.route.MaxResponse
		}
		return maxProblemBytes
	})
	f.take(got)
	if err != nil {
		if errors.Is(err, errContract) {
			f.Class, f.Disposition, f.Cause = ClassMalformed, protocol.Unknown, err
			return nil, c.refine(f, k.route, got)
		}
		f.Class, f.Disposition, f.Repeat = classifyTransport(parent, ctx, got, err)
		if k.route.Name == api.RouteGrant.Name && f.Disposition == protocol.Unknown {
			f.Repeat = false // it may have been issued
		}
		f.Cause = transportError{err, got.ended}
		return nil, f
	}
	return c.classify(f, k.route, got)
}

func (c *Client) request(ctx context.Context, k call) (*http.Request, error) {
	var body io.Reader
	if k.body != nil {
		body = bytes.NewReader(k.body)
	}
	request, err := http.NewRequestWithContext(ctx, k.route.Method, k.target.String(), body)
	if err != nil {
		return nil, err
	}
	request.GetBody = nil // nothing below us may send it twice
	request.Header.Set("Accept", api.ContentJSON)
	request.Header.Set("User-Agent", c.cfg.UserAgent)
	request.Header.Set(api.HeaderVersion, fmt.Sprint(api.Version))
	if k.body != nil {
		request.Header.Set("Content-Type", api.ContentJSON)
	}
	return request, nil
}

// received is what came back before an exchange was settled.
type received struct {
	sent   bool // at least one byte of the request was written
	ended  bool // the connection ended or failed while an answer was read
	status int
	header http.Header
	body   []byte
	wire   *wire
}

// errContract marks an answer that is whole as far as it was read and breaks
// the contract.
var errContract = errors.New("the answer breaks the contract")

// roundTrip opens a connection, sends the request, reads at most limit(status)
// bytes of body and closes the connection before it returns.
func (c *Client) roundTrip(ctx context.Context, request *http.Request, limit func(status int) int64) (received, error) {
	got := received{}
	response, closeAll, err := c.open(ctx, request, &got)
	if err != nil {
		return got, err
	}
	most := limit(response.StatusCode)
	if response.ContentLength > most {
		closeAll(false)
		return got, fmt.Errorf("%w: its body is longer than %d bytes", errContract, most)
	}
	got.body, err = io.ReadAll(io.LimitReader(response.Body, most+1))
	got.ended = got.wire.ended.Load()
	if err == nil && int64(len(got.body)) > most {
		got.body = got.body[:most]
		err = fmt.Errorf("%w: its body is longer than %d bytes", errContract, most)
	}
	closeAll(err == nil)
	return got, err
}

// open sends the request on a connection of its own and returns when the head
// of the answer is there. closeAll, which must be called, closes the
// connection; where open fails it is closed already.
func (c *Client) open(ctx context.Context, request *http.Request, got *received) (*http.Response, func(graceful bool), error) {
	conn, err := c.connect(ctx, request.URL)
	if err != nil {
		return nil, nil, err
	}
	transport := &http.Transport{
		DialContext:            conn.once,
		DialTLSContext:         conn.once,
		DisableKeepAlives:      true,
		DisableCompression:     true,
		MaxResponseHeaderBytes: api.MaxHeaderBytes,
		Protocols:              new(http.Protocols),
	}
	transport.Protocols.SetHTTP1(true)
	response, err := transport.RoundTrip(request)
	got.sent, got.ended, got.wire = conn.wrote.Load(), conn.ended.Load(), conn
	if err != nil {
		return nil, nil, errors.Join(err, conn.abort())
	}
	got.status, got.header = response.StatusCode, response.Header
	return response, func(graceful bool) {
		// The body's own close would read on; the connection is not used again.
		if graceful {
			_ = conn.Close() // the whole answer is here: nothing depends on the goodbye
		} else {
			_ = conn.abort()
		}
		_ = response.Body.Close()
		got.sent = true
	}, nil
}

// wire is the one connection of an exchange.
type wire struct {
	net.Conn          // plain, or TLS over raw
	raw      net.Conn // the socket
	wrote    atomic.Bool
	ended    atomic.Bool // a read has failed, or found the end
	taken    atomic.Bool
	closed   sync.Once
}

// connect dials and, for https, completes the handshake.
func (c *Client) connect(ctx context.Context, target *url.URL) (*wire, error) {
	var raw net.Conn
	var err error
	if c.cfg.Dial != nil && target.Host == c.origin.Host {
		raw, err = c.cfg.Dial(ctx)
	} else {
		raw, err = new(net.Dialer).DialContext(ctx, "tcp", hostPort(target))
	}
	if err != nil {
		return nil, err
	}
	if target.Scheme != "https" {
		return &wire{Conn: raw, raw: raw}, nil
	}
	cfg := c.tls.Clone()
	if cfg.ServerName == "" {
		cfg.ServerName = target.Hostname()
	}
	conn := tls.Client(raw, cfg)
	if err := conn.HandshakeContext(ctx); err != nil {
		closeErr := raw.Close()
		var verify *tls.CertificateVerificationError
		var alert tls.AlertError
		var record tls.RecordHeaderError
		if errors.As(err, &verify) || errors.As(err, &alert) || errors.As(err, &record) {
			err = fmt.Errorf("%w: %w", errNotPeer, err)
		}
		if closeErr != nil && !errors.Is(closeErr, net.ErrClosed) {
			err = errors.Join(err, closeErr)
		}
		return nil, err
	}
	return &wire{Conn: conn, raw: raw}, nil
}

func hostPort(u *url.URL) string {
	port := u.Port()
	if port == "" {
		port = map[string]string{"https": "443", "http": "80"}[u.Scheme]
	}
	return net.JoinHostPort(u.Hostname(), port)
}

// once hands the connection to the transport, a single time.
func (w *wire) once(context.Context, string, string) (net.Conn, error) {
	if w.taken.Swap(true) {
		return nil, errors.New("an exchange uses one connection")
	}
	return w, nil
}

// Read implements [net.Conn].
func (w *wire) Read(p []byte) (int, error) {
	n, err := w.Conn.Read(p)
	if err != nil {
		w.ended.Store(true)
	}
	return n, err
}

// Write implements [net.Conn].
func (w *wire) Write(p []byte) (int, error) {
	w.wrote.Store(true)
	return w.Conn.Write(p)
}

// Close implements [net.Conn]; only the first call of Close or abort counts.
func (w *wire) Close() (err error) {
	w.closed.Do(func() { err = w.Conn.Close() })
	return err
}

// abort closes the socket without a TLS goodbye that could wait for the peer.
func (w *wire) abort() (err error) {
	w.closed.Do(func() { err = w.raw.Close() })
	return err
}
