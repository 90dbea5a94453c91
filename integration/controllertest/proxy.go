package controllertest

import (
	"bytes"
	"context"
	"errors"
	"io"
	"net"
	"net/http"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"
)

// Proxy stands between lanes and job service. It forwards every request as it
// is, can lose the replies of some (the service has acted, the lanes learn
// nothing), and can have a weather. It keeps what was sent.
type Proxy struct {
	listener net.Listener
	server   *http.Server
	upstream string
	client   *http.Transport

	mu     sync.Mutex
	losses map[string]int      // left, by the path's end
	bodies map[string][][]byte // of every request, by the path's end
	sent   []Exchange          // everything that changes something, as the lanes sent it

	weather *Weather // nil: calm

	cut     bool // no request gets through
	refused int  // requests that met the cut
}

// Exchange is one request of the lanes that the proxy saw.
type Exchange struct {
	Path   string
	Body   []byte
	Status int // of the answer that went back whole, 0 where none did
}

// Weather gives the proxy a weather; call it before any lanes run.
func (p *Proxy) Weather(w *Weather) { p.weather = w }

// Exchanges are the requests other than GET so far, in the order of their ends.
func (p *Proxy) Exchanges() []Exchange {
	p.mu.Lock()
	defer p.mu.Unlock()
	return slices.Clone(p.sent)
}

func newProxy(t testing.TB, upstream string) *Proxy {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	p := &Proxy{listener: l, upstream: upstream, client: &http.Transport{DisableKeepAlives: true}, losses: map[string]int{}, bodies: map[string][][]byte{}}
	p.server = &http.Server{Handler: p}
	go func() {
		if err := p.server.Serve(l); !errors.Is(err, http.ErrServerClosed) {
			t.Errorf("proxy: %v", err)
		}
	}()
	return p
}

// Address is where the lanes reach the service.
func (p *Proxy) Address() string { return p.listener.Addr().String() }

func (p *Proxy) close() {
	if err := p.server.Close(); err != nil {
		panic(err)
	}
	p.client.CloseIdleConnections()
}

// Lose drops the next n replies to requests whose path ends in suffix.
func (p *Proxy) Lose(suffix string, n int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.losses[suffix] = n
}

// Left is how many of the replies that Lose was told of are still to be lost.
func (p *Proxy) Left(suffix string) int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.losses[suffix]
}

// Cut breaks every connection before the service hears of it, until it is undone.
func (p *Proxy) Cut(on bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.cut = on
}

// Refused counts the requests that met a cut.
func (p *Proxy) Refused() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.refused
}

func (p *Proxy) meetsCut() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.cut {
		p.refused++
	}
	return p.cut
}

// Bodies are the bodies of the requests whose path ended in suffix, in order.
func (p *Proxy) Bodies(suffix string) [][]byte {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.bodies[suffix]
}

func (p *Proxy) lost(path string, body []byte) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	lost := false
	for suffix, left := range p.losses {
		if strings.HasSuffix(path, suffix) {
			p.bodies[suffix] = append(p.bodies[suffix], body)
			if left > 0 {
				p.losses[suffix]--
				lost = true
			}
		}
	}
	return lost
}

// ServeHTTP implements http.Handler. Method, target, headers and body go on
// unchanged, or the signature would not fit.
func (p *Proxy) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	body, err := io.ReadAll(r.Body)
	if err != nil || p.meetsCut() {
		panic(http.ErrAbortHandler)
	}
	status := 0
	if r.Method != http.MethodGet {
		defer func() { p.note(Exchange{r.URL.Path, body, status}) }()
	}
	fault, late := p.weather.next()
	lost := r.Method != http.MethodGet && p.lost(r.URL.Path, body) || fault == FaultDropReply
	switch fault {
	case FaultDropRequest:
		panic(http.ErrAbortHandler)
	case FaultDelay:
		<-time.After(late)
	case FaultDuplicate:
		first := p.forward(r, body)
		_, err := io.Copy(io.Discard, first.Body)
		if errors.Join(err, first.Body.Close()) != nil {
			panic(http.ErrAbortHandler)
		}
	}
	answer := p.forward(r, body)
	defer answer.Body.Close() // read only
	if lost {
		panic(http.ErrAbortHandler) // the connection breaks without a byte of the answer
	}
	for name, values := range answer.Header {
		w.Header()[name] = values
	}
	w.WriteHeader(answer.StatusCode)
	if fault == FaultReset {
		reset(w, answer.Body)
	}
	if _, err := io.Copy(w, answer.Body); err != nil {
		panic(http.ErrAbortHandler)
	}
	status = answer.StatusCode
}

func (p *Proxy) note(e Exchange) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.sent = append(p.sent, e)
}

// forward delivers a request once.
func (p *Proxy) forward(r *http.Request, body []byte) *http.Response {
	// A request that arrived is delivered, whoever still waits for its answer.
	out, err := http.NewRequestWithContext(context.WithoutCancel(r.Context()), r.Method, "http://"+p.upstream+r.URL.RequestURI(), bytes.NewReader(body))
	if err != nil {
		panic(http.ErrAbortHandler)
	}
	out.Header, out.Host = r.Header, r.Host
	if len(body) == 0 {
		out.Body, out.ContentLength = nil, 0
	}
	answer, err := p.client.RoundTrip(out)
	if err != nil {
		panic(http.ErrAbortHandler)
	}
	return answer
}

// reset sends the head and half of what is there of the answer, then resets the
// connection, which the other side sees as ECONNRESET.
func reset(w http.ResponseWriter, body io.Reader) {
	half := make([]byte, 64)
	n, err := io.ReadFull(body, half)
	if n > 1 && (err == nil || errors.Is(err, io.ErrUnexpectedEOF)) {
		_, err = w.Write(half[:n/2])
	}
	control := http.NewResponseController(w)
	err = errors.Join(err, control.Flush())
	conn, _, hijack := control.Hijack()
	if hijack != nil {
		panic(http.ErrAbortHandler)
	}
	if tcp, ok := conn.(*net.TCPConn); ok {
		err = errors.Join(err, tcp.SetLinger(0))
	}
	_ = errors.Join(err, conn.Close()) // whatever failed, the connection is broken, as intended
	panic(http.ErrAbortHandler)
}
