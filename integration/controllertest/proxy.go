package controllertest

import (
	"bytes"
	"context"
	"errors"
	"io"
	"net"
	"net/http"
	"strings"
	"sync"
	"testing"
)

// Proxy stands between lanes and job service. It forwards every request as it
// is and can lose the replies of some: the service has acted, the lanes learn
// nothing.
type Proxy struct {
	listener net.Listener
	server   *http.Server
	upstream string
	client   *http.Transport

	mu     sync.Mutex
	losses map[string]int      // left, by the path's end
	bodies map[string][][]byte // of every request, by the path's end
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
	if err != nil {
		panic(http.ErrAbortHandler)
	}
	lost := r.Method != http.MethodGet && p.lost(r.URL.Path, body)
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
	defer answer.Body.Close()
	if lost {
		panic(http.ErrAbortHandler) // the connection breaks without a byte of the answer
	}
	for name, values := range answer.Header {
		w.Header()[name] = values
	}
	w.WriteHeader(answer.StatusCode)
	if _, err := io.Copy(w, answer.Body); err != nil {
		panic(http.ErrAbortHandler)
	}
}
