package uds

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/quittance/quittance/protocol"
)

func socketPath(t *testing.T) string {
	t.Helper()
	// Not t.TempDir: its path carries the test's name and may pass 107 bytes.
	dir, err := os.MkdirTemp("", "uds")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := os.RemoveAll(dir); err != nil {
			t.Error(err)
		}
	})
	return filepath.Join(dir, "agent.sock")
}

func listen(t *testing.T, path string, o Options) net.Listener {
	t.Helper()
	l, err := Listen(path, o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { l.Close() }) // often closed before
	return l
}

func dial(t *testing.T, path string) *net.UnixConn {
	t.Helper()
	c, err := Dial(t.Context(), path)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
	if err := c.SetDeadline(time.Now().Add(20 * time.Second)); err != nil {
		t.Fatal(err)
	}
	return c
}

// serve runs a handler on a fresh socket until the test ends.
func serve(t *testing.T, h http.HandlerFunc, limits Limits) string {
	t.Helper()
	path := socketPath(t)
	l := listen(t, path, Options{})
	s := NewServer(h, limits)
	done := make(chan error, 1)
	go func() { done <- s.Serve(l) }()
	t.Cleanup(func() {
		if err := s.Close(); err != nil {
			t.Error(err)
		}
		if err := <-done; err != nil {
			t.Errorf("Serve: %v", err)
		}
	})
	return path
}

func names(t *testing.T, dir string) []string {
	t.Helper()
	entries, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	out := []string{}
	for _, e := range entries {
		out = append(out, e.Name())
	}
	return out
}

func TestListenMakesAndRemovesTheSocket(t *testing.T) {
	path := socketPath(t)
	gid := os.Getegid()
	l := listen(t, path, Options{Mode: 0o660, GID: &gid})
	info, err := os.Lstat(path)
	if err != nil || info.Mode() != os.ModeSocket|0o660 {
		t.Errorf("socket: %v %v", info.Mode(), err)
	}
	if got := l.Addr().String(); got != path {
		t.Errorf("address %s, want %s", got, path)
	}
	if got := fmt.Sprint(names(t, filepath.Dir(path))); got != "[agent.sock agent.sock.lock]" {
		t.Errorf("left beside the socket: %s", got)
	}
	dial(t, path)
	if err := l.Close(); err != nil {
		t.Error(err)
	}
	if err := l.Close(); err != nil {
		t.Errorf("second Close: %v", err)
	}
	if got := fmt.Sprint(names(t, filepath.Dir(path))); got != "[agent.sock.lock]" {
		t.Errorf("left after Close: %s", got)
	}
}

// FR-24: a stale socket of a dead agent is replaced, a live agent's is not, and
// what is not a socket is not touched.
func TestFR24(t *testing.T) {
	t.Run("stale", func(t *testing.T) {
		path := socketPath(t)
		dead, err := net.ListenUnix("unix", &net.UnixAddr{Name: path, Net: "unix"})
		if err != nil {
			t.Fatal(err)
		}
		dead.SetUnlinkOnClose(false)
		if err := dead.Close(); err != nil {
			t.Fatal(err)
		}
		// What an agent leaves that was killed while binding.
		if err := os.Mkdir(path+".new", 0o700); err != nil {
			t.Fatal(err)
		}
		if err := unix.Mknod(path+".new/s", unix.S_IFSOCK|0o600, 0); err != nil {
			t.Fatal(err)
		}
		listen(t, path, Options{})
		dial(t, path)
	})
	t.Run("live, with lock", func(t *testing.T) {
		path := socketPath(t)
		listen(t, path, Options{})
		if _, err := Listen(path, Options{}); !errors.Is(err, ErrInUse) {
			t.Errorf("got %v, want ErrInUse", err)
		}
		dial(t, path) // the first one still answers
	})
	t.Run("live, without lock", func(t *testing.T) { // a socket unit's
		path := socketPath(t)
		other, err := net.Listen("unix", path)
		if err != nil {
			t.Fatal(err)
		}
		defer other.Close()
		if _, err := Listen(path, Options{}); !errors.Is(err, ErrInUse) {
			t.Errorf("got %v, want ErrInUse", err)
		}
		dial(t, path)
	})
	t.Run("both start at once", func(t *testing.T) {
		path := socketPath(t)
		const agents = 8
		var start, wait sync.WaitGroup
		start.Add(1)
		listeners := make(chan net.Listener, agents)
		failures := make(chan error, agents)
		for range agents {
			wait.Go(func() {
				start.Wait()
				l, err := Listen(path, Options{})
				if err != nil {
					failures <- err
					return
				}
				listeners <- l
			})
		}
		start.Done()
		wait.Wait()
		if len(listeners) != 1 {
			t.Fatalf("%d agents listen, want 1", len(listeners))
		}
		for range agents - 1 {
			if err := <-failures; !errors.Is(err, ErrInUse) {
				t.Errorf("got %v, want ErrInUse", err)
			}
		}
		dial(t, path)
		if err := (<-listeners).Close(); err != nil {
			t.Error(err)
		}
	})
	for name, put := range map[string]func(path string) error{
		"regular file": func(path string) error { return os.WriteFile(path, []byte("precious"), 0o600) },
		"directory":    func(path string) error { return os.Mkdir(path, 0o700) },
		"link":         func(path string) error { return os.Symlink("/nowhere", path) },
		"fifo":         func(path string) error { return unix.Mkfifo(path, 0o600) },
	} {
		t.Run(name, func(t *testing.T) {
			path := socketPath(t)
			if err := put(path); err != nil {
				t.Fatal(err)
			}
			before, err := os.Lstat(path)
			if err != nil {
				t.Fatal(err)
			}
			if _, err := Listen(path, Options{}); !errors.Is(err, ErrNotSocket) {
				t.Errorf("got %v, want ErrNotSocket", err)
			}
			after, err := os.Lstat(path)
			if err != nil || !os.SameFile(before, after) {
				t.Errorf("it was touched: %v", err)
			}
		})
	}
}

func TestCloseLeavesAnotherSocketAlone(t *testing.T) {
	path := socketPath(t)
	l := listen(t, path, Options{})
	if err := os.Remove(path); err != nil {
		t.Fatal(err)
	}
	other, err := net.Listen("unix", path)
	if err != nil {
		t.Fatal(err)
	}
	defer other.Close()
	if err := l.Close(); err != nil {
		t.Error(err)
	}
	dial(t, path)
}

func TestListenRefusesPaths(t *testing.T) {
	for _, path := range []string{"relative.sock", "/tmp/../tmp/x.sock", "/" + strings.Repeat("x", 107)} {
		if _, err := Listen(path, Options{}); err == nil {
			t.Errorf("%q was accepted", path)
		}
	}
}

// The socket unit's listener is taken as it is, and only if it is the configured
// one.
func TestSocketActivation(t *testing.T) {
	path := socketPath(t)
	unit, err := net.ListenUnix("unix", &net.UnixAddr{Name: path, Net: "unix"})
	if err != nil {
		t.Fatal(err)
	}
	defer unit.Close()
	pass := func(t *testing.T, want string) (net.Listener, error) {
		f, err := unit.File()
		if err != nil {
			t.Fatal(err)
		}
		defer f.Close()
		return fromFile(want, f)
	}
	l, err := pass(t, path)
	if err != nil {
		t.Fatal(err)
	}
	if err := l.Close(); err != nil {
		t.Error(err)
	}
	dial(t, path) // closing ours leaves the unit's
	if _, err := pass(t, path+"2"); err == nil || !strings.Contains(err.Error(), "make them agree") {
		t.Errorf("another path: %v", err)
	}
	null, err := os.Open(os.DevNull)
	if err != nil {
		t.Fatal(err)
	}
	defer null.Close()
	if _, err := fromFile(path, null); err == nil {
		t.Error("a file was accepted")
	}
	tcp, err := net.ListenTCP("tcp", &net.TCPAddr{IP: net.IPv4(127, 0, 0, 1)})
	if err != nil {
		t.Fatal(err)
	}
	defer tcp.Close()
	f, err := tcp.File()
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if _, err := fromFile(path, f); err == nil {
		t.Error("a TCP socket was accepted")
	}
}

func TestPeerIsTheKernels(t *testing.T) {
	peers := make(chan Peer, 1)
	path := serve(t, func(w http.ResponseWriter, r *http.Request) {
		p, ok := PeerFrom(r.Context())
		if !ok {
			t.Error("no peer")
		}
		peers <- p
	}, Limits{})
	exchange(t, dial(t, path), "GET / HTTP/1.1\r\nHost: agent\r\n\r\n")
	if got, want := <-peers, (Peer{UID: os.Getuid(), GID: os.Getgid(), PID: os.Getpid()}); got != want {
		t.Errorf("got %+v, want %+v", got, want)
	}
	if _, ok := PeerFrom(context.Background()); ok {
		t.Error("a peer out of nothing")
	}
}

// exchange sends raw bytes and reads one answer.
func exchange(t *testing.T, c net.Conn, request string) *http.Response {
	t.Helper()
	if _, err := io.WriteString(c, request); err != nil {
		t.Fatal(err)
	}
	return answer(t, c)
}

func answer(t *testing.T, c net.Conn) *http.Response {
	t.Helper()
	resp, err := http.ReadResponse(bufio.NewReader(c), nil)
	if err != nil {
		t.Fatal(err)
	}
	return resp
}

func problemIn(t *testing.T, resp *http.Response) protocol.Problem {
	t.Helper()
	if got := resp.Header.Get("Content-Type"); got != protocol.ContentProblem {
		t.Fatalf("content type %q, status %d", got, resp.StatusCode)
	}
	var p protocol.Problem
	if err := json.NewDecoder(resp.Body).Decode(&p); err != nil {
		t.Fatal(err)
	}
	return p
}

func TestBodyCeiling(t *testing.T) { // I33
	sizes := make(chan int, 10)
	path := serve(t, func(w http.ResponseWriter, r *http.Request) {
		b, err := io.ReadAll(r.Body)
		if err != nil {
			t.Error(err)
		}
		sizes <- len(b)
	}, Limits{BodyBytes: 1000})
	resp := exchange(t, dial(t, path), "PUT / HTTP/1.1\r\nHost: agent\r\nContent-Length: 1000\r\n\r\n"+strings.Repeat("x", 1000))
	if resp.StatusCode != 200 || <-sizes != 1000 {
		t.Errorf("exactly the ceiling: status %d", resp.StatusCode)
	}
	for name, request := range map[string]string{
		"announced": "PUT / HTTP/1.1\r\nHost: agent\r\nContent-Length: 1001\r\n\r\n",
		"chunked":   "PUT / HTTP/1.1\r\nHost: agent\r\nTransfer-Encoding: chunked\r\n\r\n3e9\r\n" + strings.Repeat("x", 1001) + "\r\n",
	} {
		resp := exchange(t, dial(t, path), request)
		if p := problemIn(t, resp); resp.StatusCode != 413 || p.Code != protocol.CodeTooLarge || p.Disposition != protocol.Refused {
			t.Errorf("%s: %+v", name, p)
		}
	}
	resp = exchange(t, dial(t, path), "PUT / HTTP/1.1\r\nHost: agent\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n")
	if p := problemIn(t, resp); p.Code != protocol.CodeBadRequest {
		t.Errorf("malformed chunk: %+v", p)
	}
	if len(sizes) != 0 {
		t.Error("the handler was called for a refused request")
	}
}

func TestHeaderCeiling(t *testing.T) { // I33
	path := serve(t, func(http.ResponseWriter, *http.Request) { t.Error("handler called") }, Limits{})
	resp := exchange(t, dial(t, path), "GET / HTTP/1.1\r\nHost: agent\r\nX: "+strings.Repeat("x", 40<<10)+"\r\n\r\n")
	if resp.StatusCode != http.StatusRequestHeaderFieldsTooLarge {
		t.Errorf("status %d", resp.StatusCode)
	}
}

func TestSlowRequestIsCut(t *testing.T) { // I33
	path := serve(t, func(http.ResponseWriter, *http.Request) { t.Error("handler called") }, Limits{RequestTimeout: 2 * time.Second}) // within which the whole of a header arrives on a slow machine
	t.Run("header", func(t *testing.T) {
		t.Parallel()
		c := dial(t, path)
		if _, err := io.WriteString(c, "GET / HTTP/1.1\r\nHos"); err != nil {
			t.Fatal(err)
		}
		if data, err := io.ReadAll(c); err != nil || len(data) != 0 && !strings.HasPrefix(string(data), "HTTP/1.1 4") {
			t.Errorf("got %q, %v; want the connection closed", data, err)
		}
	})
	t.Run("body", func(t *testing.T) {
		t.Parallel()
		resp := exchange(t, dial(t, path), "PUT / HTTP/1.1\r\nHost: agent\r\nContent-Length: 10\r\n\r\nx")
		if p := problemIn(t, resp); p.Code != protocol.CodeTimeout || !resp.Close {
			t.Errorf("got %+v, close %v", p, resp.Close)
		}
	})
}

// The deadline of the request must not end a long poll, and a peer that hangs up
// must end it.
func TestLongPollOutlivesRequestTimeout(t *testing.T) {
	const timeout = time.Second // within which a request arrives on a slow machine
	hungUp := make(chan struct{})
	path := serve(t, func(w http.ResponseWriter, r *http.Request) {
		wait := 2 * timeout
		if r.URL.Path == "/forever" {
			wait = 20 * time.Second
		}
		timer := time.NewTimer(wait)
		defer timer.Stop()
		select {
		case <-timer.C:
		case <-r.Context().Done():
			if r.URL.Path == "/forever" {
				close(hungUp)
			} else {
				t.Error("the request's deadline ended its handler")
			}
		}
	}, Limits{RequestTimeout: timeout})
	for _, request := range []string{"GET / HTTP/1.1\r\nHost: agent\r\n\r\n", "PUT / HTTP/1.1\r\nHost: agent\r\nContent-Length: 2\r\n\r\n{}"} {
		if resp := exchange(t, dial(t, path), request); resp.StatusCode != 200 {
			t.Errorf("status %d", resp.StatusCode)
		}
	}
	c := dial(t, path)
	if _, err := io.WriteString(c, "GET /forever HTTP/1.1\r\nHost: agent\r\n\r\n"); err != nil {
		t.Fatal(err)
	}
	if err := c.Close(); err != nil {
		t.Fatal(err)
	}
	select {
	case <-hungUp:
	case <-time.After(10 * time.Second):
		t.Error("the handler was not told that its peer had gone")
	}
}

func TestConnectionsPerUID(t *testing.T) { // I33
	const limit = 3
	path := serve(t, func(w http.ResponseWriter, r *http.Request) {}, Limits{ConnectionsPerUID: limit, RequestTimeout: time.Minute})
	const get = "GET / HTTP/1.1\r\nHost: agent\r\n\r\n"
	var kept []*net.UnixConn
	for range limit {
		c := dial(t, path)
		if resp := exchange(t, c, get); resp.StatusCode != 200 {
			t.Fatalf("status %d", resp.StatusCode)
		}
		kept = append(kept, c)
	}
	resp := exchange(t, dial(t, path), get)
	if p := problemIn(t, resp); resp.StatusCode != 429 || p.Code != protocol.CodeTooManyConnections || !resp.Close {
		t.Errorf("over the limit: %+v", p)
	}
	// Of many silent connections over the limit a few are kept for their answer,
	// and all others closed.
	closed := make(chan struct{}, 2*courtesy)
	for range 2 * courtesy {
		c := dial(t, path)
		go func() {
			if _, err := c.Read(make([]byte, 1)); errors.Is(err, io.EOF) {
				closed <- struct{}{}
			}
		}()
	}
	deadline := time.After(10 * time.Second)
	for i := range courtesy {
		select {
		case <-closed:
		case <-deadline:
			t.Fatalf("%d of %d silent connections were closed, want at least %d", i, 2*courtesy, courtesy)
		}
	}
	for _, c := range kept {
		if err := c.Close(); err != nil {
			t.Fatal(err)
		}
	}
}

// A freed place is usable again.
func TestClosedConnectionFreesItsPlace(t *testing.T) {
	path := serve(t, func(w http.ResponseWriter, r *http.Request) {}, Limits{ConnectionsPerUID: 1})
	const get = "GET / HTTP/1.1\r\nHost: agent\r\nConnection: close\r\n\r\n"
	deadline := time.Now().Add(10 * time.Second)
	for served := 0; served < 5; {
		c := dial(t, path)
		resp := exchange(t, c, get)
		if resp.StatusCode == 200 {
			served++
		} else if time.Now().After(deadline) {
			t.Fatal("the place was never freed")
		}
		if err := c.Close(); err != nil {
			t.Fatal(err)
		}
	}
}

func TestWriteProblem(t *testing.T) {
	path := serve(t, func(w http.ResponseWriter, r *http.Request) {
		p := protocol.NewProblem(protocol.CodeNotConnectable, "a <b>", "wait")
		p.RetryAfterMillis = 1001
		WriteProblem(w, p)
	}, Limits{})
	resp := exchange(t, dial(t, path), "GET / HTTP/1.1\r\nHost: agent\r\n\r\n")
	body, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatal(err)
	}
	const want = `{"type":"about:blank","title":"Service Unavailable","status":503,"code":"not_connectable","disposition":"refused","detail":"a <b>","next":"wait","retry_after_ms":1001}` + "\n"
	if string(body) != want || resp.Header.Get("Retry-After") != "2" {
		t.Errorf("Retry-After %q\n got %s\nwant %s", resp.Header.Get("Retry-After"), body, want)
	}
}

// I4: a descriptor that a peer sends to the agent is closed at once.
func TestReceivedDescriptorsAreClosed(t *testing.T) {
	path := serve(t, func(w http.ResponseWriter, r *http.Request) {}, Limits{})
	var pipe [2]int
	if err := unix.Pipe2(pipe[:], unix.O_CLOEXEC|unix.O_NONBLOCK); err != nil {
		t.Fatal(err)
	}
	reader := os.NewFile(uintptr(pipe[0]), "reader")
	defer reader.Close()
	c := dial(t, path)
	const get = "GET / HTTP/1.1\r\nHost: agent\r\n\r\n"
	if _, _, err := c.WriteMsgUnix([]byte(get), unix.UnixRights(pipe[1]), nil); err != nil {
		t.Fatal(err)
	}
	if err := unix.Close(pipe[1]); err != nil {
		t.Fatal(err)
	}
	if resp := answer(t, c); resp.StatusCode != 200 {
		t.Fatalf("status %d", resp.StatusCode)
	}
	// The connection is still open; the pipe's only other end was the sent one.
	if err := reader.SetReadDeadline(time.Now().Add(10 * time.Second)); err != nil {
		t.Fatal(err)
	}
	if _, err := reader.Read(make([]byte, 1)); !errors.Is(err, io.EOF) {
		t.Errorf("got %v, want EOF: the agent kept the descriptor", err)
	}
}
