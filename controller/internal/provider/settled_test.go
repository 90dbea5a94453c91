package provider

import (
	"context"
	"net"
	"os"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/quittance/quittance/controller/api"
)

// watched is a connection that a test looks into from the client's side.
type watched struct {
	net.Conn
	closed *atomic.Bool
	onRead func(n int)
}

func (w watched) Read(p []byte) (int, error) {
	n, err := w.Conn.Read(p)
	if w.onRead != nil {
		w.onRead(n)
	}
	return n, err
}

func (w watched) Close() error {
	w.closed.Store(true)
	return w.Conn.Close()
}

// watch makes a client whose connection is watched.
func watch(p *peer, closed *atomic.Bool, onRead func(n int)) *Client {
	return p.client(func(cfg *Config) {
		cfg.Dial = func(ctx context.Context) (net.Conn, error) {
			conn, err := new(net.Dialer).DialContext(ctx, "tcp", p.listener.Addr().String())
			return watched{conn, closed, onRead}, err
		}
	})
}

// The socket is closed when the call returns, not some time later: whatever is
// decided next is decided on a settled exchange.
func TestSettledOnReturn(t *testing.T) {
	whole := jsonAnswer("201 Created", api.ContentJSON, string(api.Encode(admission())))
	for name, script := range map[string]func(*peerConn){
		"success":     says(whole),
		"problem":     says(problem(api.CodeJobBusy)),
		"oversized":   says(head("200 OK", "Content-Type: application/json", "Content-Length: 99999999") + "x"),
		"endless":     says(head("503 X", "Transfer-Encoding: chunked") + "fffff\r\n" + strings.Repeat("x", 0xfffff)),
		"cut":         ends(whole[:len(whole)-3]),
		"not HTTP":    ends("hello\r\n"),
		"no answer":   ends(""),
		"bad headers": ends("HTTP/1.1 200 OK\r\n:\r\n\r\n"),
	} {
		t.Run(name, func(t *testing.T) {
			p := newPeer(t, false, script)
			var closed atomic.Bool
			_, _, err := watch(p, &closed, nil).Start(background(), startBody(), nil)
			if !closed.Load() {
				t.Errorf("the socket is open after %v", err)
			}
			if (err == nil) != (name == "success") {
				t.Error(err)
			}
			p.allClosed(1)
		})
	}
}

// No late hand-over: a transfer whose last byte comes together with the stop
// hands nothing over.
func TestNoLateHandOver(t *testing.T) {
	answer := storeHead() + string(payload)
	p := newPeer(t, false, says(answer))
	ctx, cancel := context.WithCancel(background())
	defer cancel()
	var closed atomic.Bool
	read := 0
	c := watch(p, &closed, func(n int) {
		if read += n; read >= len(answer) {
			cancel()
		}
	})
	dir := privateDir(t)
	file, err := c.Fetch(ctx, payloadGrant(p), dir, NewBudget(1<<20, 1))
	if f := failure(t, err); file != nil || f.Class != ClassStopped || f.Repeat {
		t.Errorf("got %v, %v", file, f)
	}
	if names, err := os.ReadDir(dir); err != nil || len(names) != 0 {
		t.Errorf("left %v, %v", names, err)
	}
	p.allClosed(1)
}
