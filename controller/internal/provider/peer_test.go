package provider

import (
	"bufio"
	"context"
	"crypto/ed25519"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/quittance/quittance/controller/internal/signing"
)

const testTopology = "test"

// peer is a job service that does on each connection what a test says, down to
// the bytes on the wire, and sees from its own side when the client closes.
type peer struct {
	t        *testing.T
	listener net.Listener
	tls      *tls.Config // nil: plain
	roots    *x509.CertPool
	wg       sync.WaitGroup

	mu    sync.Mutex
	conns []*peerConn // guarded by mu
}

// peerConn is one accepted connection.
type peerConn struct {
	net.Conn
	requests []*http.Request // read on this connection
	bodies   [][]byte
	closed   chan struct{} // closed when the client's end was seen
}

// newPeer serves connections with script until the test ends. script returns
// when it has said what it says; the peer then waits for the client to close.
func newPeer(t *testing.T, secure bool, script func(*peerConn)) *peer {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	p := &peer{t: t, listener: listener}
	if secure {
		server := httptest.NewTLSServer(nil) // for its certificate only
		p.tls = &tls.Config{Certificates: server.TLS.Certificates}
		p.roots = x509.NewCertPool()
		p.roots.AddCert(server.Certificate())
		server.Close()
	}
	p.wg.Go(func() {
		for {
			conn, err := listener.Accept()
			if err != nil {
				return
			}
			p.wg.Go(func() { p.serve(conn, script) })
		}
	})
	t.Cleanup(func() {
		_ = listener.Close()
		p.mu.Lock()
		for _, c := range p.conns {
			_ = c.Close()
		}
		p.mu.Unlock()
		p.wg.Wait()
	})
	return p
}

func (p *peer) serve(conn net.Conn, script func(*peerConn)) {
	c := &peerConn{Conn: conn, closed: make(chan struct{})}
	if p.tls != nil {
		c.Conn = tls.Server(conn, p.tls)
	}
	p.mu.Lock()
	p.conns = append(p.conns, c)
	p.mu.Unlock()
	script(c)
	// Whatever the script left open, the end of the client's side shows here.
	_, _ = io.Copy(io.Discard, conn)
	close(c.closed)
	_ = conn.Close()
}

// read reads one request.
func (c *peerConn) read() bool {
	request, err := http.ReadRequest(bufio.NewReader(c.Conn))
	if err != nil {
		return false
	}
	body, err := io.ReadAll(request.Body)
	if err != nil {
		return false
	}
	c.requests, c.bodies = append(c.requests, request), append(c.bodies, body)
	return true
}

// say writes bytes; the client may be gone already.
func (c *peerConn) say(s string) { _, _ = io.WriteString(c.Conn, s) }

// reset closes the connection so that the client sees a reset.
func (c *peerConn) reset() {
	if tcp, ok := c.Conn.(*net.TCPConn); ok {
		_ = tcp.SetLinger(0)
	}
	_ = c.Close()
}

// allClosed fails unless the peer has seen exactly n connections and the
// client's end of each: the exchange was settled before its result was given.
func (p *peer) allClosed(n int) []*peerConn {
	p.t.Helper()
	conns := p.seen()
	// A connection that the kernel made is seen once its turn to be accepted comes.
	for deadline := time.Now().Add(10 * time.Second); len(conns) < n && time.Now().Before(deadline); conns = p.seen() {
		time.Sleep(time.Millisecond) // polls a real condition with a deadline
	}
	if len(conns) != n {
		p.t.Errorf("%d connections, want %d", len(conns), n)
	}
	for _, c := range conns {
		select {
		case <-c.closed:
		case <-time.After(10 * time.Second):
			p.t.Error("the client left its connection open")
		}
	}
	return conns
}

// seen are the connections so far.
func (p *peer) seen() []*peerConn {
	p.mu.Lock()
	defer p.mu.Unlock()
	return append([]*peerConn(nil), p.conns...)
}

func testSigner(t testing.TB) *signing.Signer {
	t.Helper()
	signer, err := signing.NewSigner(ed25519.NewKeyFromSeed(make([]byte, ed25519.SeedSize)), time.Now)
	if err != nil {
		t.Fatal(err)
	}
	return signer
}

// client is a client of the peer.
func (p *peer) client(change ...func(*Config)) *Client {
	p.t.Helper()
	cfg := Config{
		Origin: "http://" + p.listener.Addr().String(), Topology: testTopology, Signer: testSigner(p.t),
		UserAgent: "quittance-test", Timeout: 20 * time.Second, FetchTimeout: 20 * time.Second,
	}
	if p.tls != nil {
		cfg.Origin = "https://" + p.listener.Addr().String()
		cfg.TLS = &tls.Config{RootCAs: p.roots, ServerName: "example.com"}
	}
	for _, f := range change {
		f(&cfg)
	}
	c, err := New(cfg)
	if err != nil {
		p.t.Fatal(err)
	}
	return c
}

// failure is the *Failure that err must be.
func failure(t *testing.T, err error) *Failure {
	t.Helper()
	f, ok := errors.AsType[*Failure](err)
	if !ok {
		t.Fatalf("got %v, want a *Failure", err)
	}
	return f
}

// head is a response head with the headers of our service.
func head(status string, extra ...string) string {
	lines := append([]string{"HTTP/1.1 " + status, "Quittance-Topology: " + testTopology, "X-Request-Id: r-1",
		"Date: Mon, 30 Nov 2026 16:00:00 GMT"}, extra...)
	return strings.Join(lines, "\r\n") + "\r\n\r\n"
}

// jsonAnswer is a whole answer with a JSON body.
func jsonAnswer(status, contentType, body string) string {
	return head(status, "Content-Type: "+contentType, "Content-Length: "+itoa(len(body))) + body
}

func background() context.Context { return context.Background() }
