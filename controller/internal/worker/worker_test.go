package worker

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/quittance/quittance/controller/internal/offering"
	"github.com/quittance/quittance/protocol"
)

// server is a real worker on a real socket: a script per accepted connection.
type server struct {
	t        *testing.T
	listener net.Listener
	accepted atomic.Int64
	wg       sync.WaitGroup
}

// raw serves each connection with handle.
func raw(t *testing.T, handle func(c net.Conn)) *server {
	t.Helper()
	l, err := net.Listen("unix", filepath.Join(t.TempDir(), "w.sock"))
	if err != nil {
		t.Fatal(err)
	}
	s := &server{t: t, listener: l}
	s.wg.Go(func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			s.accepted.Add(1)
			s.wg.Go(func() {
				defer c.Close()
				handle(c)
			})
		}
	})
	t.Cleanup(func() {
		l.Close()
		s.wg.Wait()
	})
	return s
}

func (s *server) Channel(ctx context.Context) (net.Conn, error) {
	var d net.Dialer
	return d.DialContext(ctx, "unix", s.listener.Addr().String())
}

// web serves HTTP.
func web(t *testing.T, handler http.HandlerFunc) *server {
	t.Helper()
	s := &server{t: t}
	l, err := net.Listen("unix", filepath.Join(t.TempDir(), "w.sock"))
	if err != nil {
		t.Fatal(err)
	}
	s.listener = l
	h := &http.Server{Handler: handler, ConnState: func(_ net.Conn, st http.ConnState) {
		if st == http.StateNew {
			s.accepted.Add(1)
		}
	}}
	s.wg.Go(func() { _ = h.Serve(l) })
	t.Cleanup(func() {
		h.Close()
		s.wg.Wait()
	})
	return s
}

func offer(t *testing.T, change func(*offering.Offering)) *offering.Offering {
	t.Helper()
	o := &offering.Offering{
		Kind: "k", Profile: "p", Adapter: "http",
		Input:          offering.Input{ContentType: "text/plain", From: offering.FromJob, MaxBytes: 1 << 20},
		Request:        offering.Request{Method: "POST", Path: "/predict", Timeout: time.Minute},
		Response:       offering.Response{ContentType: "application/json", MaxBytes: 1000},
		PrepareTimeout: time.Minute,
	}
	if change != nil {
		change(o)
	}
	return o
}

func quiet(context.Context, string) error { return nil }

func run(t *testing.T, ctx context.Context, o *offering.Offering, d Dialer, in Input) (Outcome, error) {
	t.Helper()
	a := New(o, d, "key")
	defer a.Close()
	h, err := a.Prepare(ctx, in, quiet)
	if err != nil {
		return Outcome{}, err
	}
	return a.Execute(ctx, h, quiet)
}

func classOf(err error) Class {
	if f, ok := errors.AsType[*Failure](err); ok {
		return f.Class
	}
	return ""
}

func TestExecuteSendsOneExactRequest(t *testing.T) {
	type seen struct {
		host, path, method, contentType, accept string
		body                                    []byte
		length                                  int64
	}
	requests := make(chan seen, 4)
	s := web(t, func(w http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		requests <- seen{r.Host, r.URL.Path, r.Method, r.Header.Get("Content-Type"), r.Header.Get("Accept"), body, r.ContentLength}
		w.Header().Set("Content-Type", "application/json; charset=utf-8")
		io.WriteString(w, `{"ok":true}`)
	})
	input := bytes.Repeat([]byte("text "), 40_000)
	out, err := run(t, t.Context(), offer(t, nil), s, MemoryInput("text/plain", input))
	if err != nil || string(out.Body) != `{"ok":true}` || out.ContentType != "application/json" {
		t.Fatalf("%+v, %v", out, err)
	}
	got := <-requests
	if got.host != "localhost" || got.path != "/predict" || got.method != "POST" || got.contentType != "text/plain" ||
		got.accept != "application/json" || !bytes.Equal(got.body, input) || got.length != int64(len(input)) {
		t.Fatalf("%q %d bytes, length %d", []string{got.host, got.path, got.method, got.contentType, got.accept}, len(got.body), got.length)
	}
	if len(requests) != 0 || s.accepted.Load() != 1 {
		t.Fatal("more than one request or connection")
	}
}

// Each class of the design, by a real server that behaves so.
func TestExecuteFailureClasses(t *testing.T) {
	readRequest := func(c net.Conn) {
		r, err := http.ReadRequest(bufio.NewReader(c))
		if err == nil {
			io.Copy(io.Discard, r.Body)
		}
	}
	reply := func(text string) func(net.Conn) {
		return func(c net.Conn) {
			readRequest(c)
			io.WriteString(c, text)
		}
	}
	head := "HTTP/1.1 200 OK\r\nContent-Type: application/json\r\n"
	for name, row := range map[string]struct {
		handle func(net.Conn)
		want   Class
	}{
		"closes before reading":      {func(net.Conn) {}, WorkerLost},
		"closes after the request":   {readRequest, WorkerLost},
		"closes in the head":         {reply("HTTP/1.1 200 OK\r\nContent-Ty"), WorkerLost},
		"closes in the body":         {reply(head + "Content-Length: 100\r\n\r\n{\"a\""), WorkerLost},
		"closes in a chunk":          {reply(head + "Transfer-Encoding: chunked\r\n\r\n40\r\n{\"a\""), WorkerLost},
		"says 500":                   {reply("HTTP/1.1 500 Oops\r\nContent-Length: 5\r\n\r\nsorry"), WorkerFailed},
		"says 400":                   {reply("HTTP/1.1 400 Bad\r\nContent-Length: 0\r\n\r\n"), WorkerFailed},
		"redirects":                  {reply("HTTP/1.1 302 Found\r\nLocation: http://localhost/other\r\nContent-Length: 0\r\n\r\n"), WorkerFailed},
		"is not HTTP":                {reply("SSH-2.0-OpenSSH_9.2\r\nnothing to see here, go on\r\n\r\n"), Protocol},
		"has no length":              {reply(head + "\r\n{}"), Protocol},
		"has another content type":   {reply("HTTP/1.1 200 OK\r\nContent-Type: text/html\r\nContent-Length: 2\r\n\r\n{}"), Protocol},
		"is compressed":              {reply(head + "Content-Encoding: gzip\r\nContent-Length: 2\r\n\r\n{}"), Protocol},
		"announces too much":         {reply(head + "Content-Length: 1001\r\n\r\n"), Protocol},
		"sends too much":             {reply(head + "Transfer-Encoding: chunked\r\n\r\n400\r\n" + strings.Repeat("1", 0x400) + "\r\n0\r\n\r\n"), Protocol},
		"is not JSON":                {reply(head + "Content-Length: 4\r\n\r\nnope"), Protocol},
		"repeats a member":           {reply(head + "Content-Length: 13\r\n\r\n{\"a\":1,\"a\":2}"), Protocol},
		"has a head without an end":  {reply("HTTP/1.1 200 OK\r\nX: " + strings.Repeat("y", 64<<10)), Protocol},
		"has a negative length":      {reply("HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: -1\r\n\r\n{}"), Protocol},
		"has a chunk that is no hex": {reply(head + "Transfer-Encoding: chunked\r\n\r\nzz\r\n{}\r\n0\r\n\r\n"), Protocol},
	} {
		t.Run(name, func(t *testing.T) {
			s := raw(t, row.handle)
			_, err := run(t, t.Context(), offer(t, nil), s, MemoryInput("text/plain", []byte("x")))
			if got := classOf(err); got != row.want {
				t.Fatalf("class %q, want %q: %v", got, row.want, err)
			}
			if s.accepted.Load() != 1 {
				t.Fatalf("%d connections: something was sent twice", s.accepted.Load())
			}
		})
	}
}

// Our own timer is the only way to worker_timeout, and it closes the channel.
func TestExecuteTimeout(t *testing.T) {
	for name, talk := range map[string]func(net.Conn){
		"silent": func(net.Conn) {},
		"slow body": func(c net.Conn) {
			io.WriteString(c, "HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: 900\r\n\r\n")
		},
	} {
		t.Run(name, func(t *testing.T) {
			closed := make(chan error, 1)
			s := raw(t, func(c net.Conn) {
				r, err := http.ReadRequest(bufio.NewReader(c))
				if err != nil {
					closed <- err
					return
				}
				io.Copy(io.Discard, r.Body)
				talk(c)
				_, err = c.Read(make([]byte, 1))
				closed <- err
			})
			o := offer(t, func(o *offering.Offering) { o.Request.Timeout = 50 * time.Millisecond })
			_, err := run(t, t.Context(), o, s, MemoryInput("text/plain", []byte("x")))
			if classOf(err) != WorkerTimeout {
				t.Fatalf("%v", err)
			}
			if err := <-closed; !errors.Is(err, io.EOF) {
				t.Fatalf("the worker saw %v, want the end of its channel", err)
			}
		})
	}
}

// I13: a stop keeps its own identity and is no failure of the worker.
func TestExecuteStopped(t *testing.T) {
	reached := make(chan struct{})
	s := web(t, func(w http.ResponseWriter, r *http.Request) {
		io.Copy(io.Discard, r.Body)
		close(reached)
		<-r.Context().Done()
	})
	stop := errors.New("the job was cancelled")
	ctx, cancel := context.WithCancelCause(t.Context())
	go func() {
		<-reached
		cancel(stop)
	}()
	_, err := run(t, ctx, offer(t, nil), s, MemoryInput("text/plain", []byte("x")))
	if !errors.Is(err, stop) || classOf(err) != "" {
		t.Fatalf("%v, want the stop itself", err)
	}
}

func TestPrepareAdmission(t *testing.T) {
	s := web(t, func(http.ResponseWriter, *http.Request) {})
	json := func(o *offering.Offering) { o.Input.ContentType = "application/json" }
	for name, row := range map[string]struct {
		change func(*offering.Offering)
		in     Input
	}{
		"too long":             {func(o *offering.Offering) { o.Input.MaxBytes = 3 }, MemoryInput("text/plain", []byte("four"))},
		"another content type": {nil, MemoryInput("image/png", []byte("x"))},
		"not JSON":             {json, MemoryInput("application/json", []byte("{"))},
		"a member twice":       {json, MemoryInput("application/json", []byte(`{"a":1,"a":1}`))},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := run(t, t.Context(), offer(t, row.change), s, row.in)
			if classOf(err) != InvalidInput {
				t.Fatalf("%v", err)
			}
		})
	}
	if s.accepted.Load() != 0 {
		t.Fatal("a refused input reached the worker")
	}
}

// The bytes are hashed again while they are sent; where they differ from what
// was verified, the request never gets its last byte.
func TestExecuteChangedInput(t *testing.T) {
	path := filepath.Join(t.TempDir(), "input")
	data := bytes.Repeat([]byte("a"), 100_000)
	if err := os.WriteFile(path, data, 0o600); err != nil {
		t.Fatal(err)
	}
	f, err := os.OpenFile(path, os.O_RDWR, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	for name, change := range map[string]func(){
		"other bytes": func() { f.WriteAt([]byte("b"), 50_000) },
		"cut":         func() { f.Truncate(99_999) },
	} {
		t.Run(name, func(t *testing.T) {
			got := make(chan string, 1)
			s := raw(t, func(c net.Conn) {
				r, err := http.ReadRequest(bufio.NewReader(c))
				if err != nil {
					got <- err.Error()
					return
				}
				n, err := io.Copy(io.Discard, r.Body)
				got <- fmt.Sprint(n < 100_000, errors.Is(err, io.ErrUnexpectedEOF))
			})
			in := Input{ContentType: "text/plain", Length: 100_000, SHA256: protocol.DigestOf(data), Bytes: f}
			a := New(offer(t, nil), s, "key")
			defer a.Close()
			h, err := a.Prepare(t.Context(), in, quiet)
			if err != nil {
				t.Fatal(err)
			}
			change()
			_, err = a.Execute(t.Context(), h, quiet)
			if classOf(err) != Protocol || !errors.Is(err, errChanged) {
				t.Fatalf("%v", err)
			}
			if g := <-got; g != "true true" {
				t.Fatalf("the worker got %s; want a request that was cut short", g)
			}
		})
	}
}

// A handle is used once, dies with the next Prepare, and is nobody else's.
func TestHandleOnce(t *testing.T) {
	s := web(t, func(w http.ResponseWriter, r *http.Request) {
		io.Copy(io.Discard, r.Body)
		w.Header().Set("Content-Type", "application/json")
		io.WriteString(w, "{}")
	})
	in := MemoryInput("text/plain", []byte("x"))
	a, b := New(offer(t, nil), s, "key"), New(offer(t, nil), s, "key")
	defer a.Close()
	defer b.Close()
	first, err := a.Prepare(t.Context(), in, quiet)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := b.Execute(t.Context(), first, quiet); !errors.Is(err, ErrHandle) {
		t.Fatalf("foreign: %v", err)
	}
	if _, err := a.Prepare(t.Context(), MemoryInput("image/png", nil), quiet); classOf(err) != InvalidInput {
		t.Fatal(err)
	}
	if _, err := a.Execute(t.Context(), first, quiet); !errors.Is(err, ErrHandle) {
		t.Fatalf("stale after a failed prepare: %v", err)
	}
	second, err := a.Prepare(t.Context(), in, quiet)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := a.Execute(t.Context(), second, quiet); err != nil {
		t.Fatal(err)
	}
	if _, err := a.Execute(t.Context(), second, quiet); !errors.Is(err, ErrHandle) {
		t.Fatalf("used: %v", err)
	}
	if _, err := a.Execute(t.Context(), Handle{}, quiet); !errors.Is(err, ErrHandle) {
		t.Fatalf("zero: %v", err)
	}
}

func TestEmptyInput(t *testing.T) {
	s := web(t, func(w http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		w.Header().Set("Content-Type", "application/json")
		fmt.Fprintf(w, "%d", len(body))
	})
	out, err := run(t, t.Context(), offer(t, nil), s, MemoryInput("text/plain", nil))
	if err != nil || string(out.Body) != "0" {
		t.Fatalf("%s, %v", out.Body, err)
	}
}

func rule(change func(*protocol.ReadyRule)) protocol.ReadyRule {
	r := protocol.ReadyRule{HTTP: "/health", Status: 200, JSONPointer: "/status", JSONValue: "READY", TimeoutMillis: 5000, IntervalMillis: 5}
	if change != nil {
		change(&r)
	}
	return r
}

// dialerFunc is a Dialer.
type dialerFunc func(context.Context) (net.Conn, error)

func (f dialerFunc) Channel(ctx context.Context) (net.Conn, error) { return f(ctx) }

// Not connectable, then loading, then ready: one kept-alive channel for the
// polls, each condition reported once, Host: localhost.
func TestReadyPollsUntilReady(t *testing.T) {
	var polls atomic.Int64
	s := web(t, func(w http.ResponseWriter, r *http.Request) {
		if r.Host != "localhost" || r.URL.Path != "/health" {
			t.Errorf("poll of %s%s", r.Host, r.URL.Path)
		}
		if polls.Add(1) < 4 {
			w.WriteHeader(503)
			return
		}
		io.WriteString(w, `{"status":"READY"}`)
	})
	refusals := 2
	dial := dialerFunc(func(ctx context.Context) (net.Conn, error) {
		if refusals > 0 {
			refusals--
			return nil, fmt.Errorf("host: %w", ErrNotConnectable)
		}
		return s.Channel(ctx)
	})
	var said []string
	err := Ready(t.Context(), dial, rule(nil), func(_ context.Context, c string) error {
		said = append(said, c)
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	if want := "[starting_worker loading_model]"; fmt.Sprint(said) != want {
		t.Errorf("reported %v, want %s", said, want)
	}
	if polls.Load() != 4 || s.accepted.Load() != 1 {
		t.Errorf("%d polls over %d channels, want 4 over 1", polls.Load(), s.accepted.Load())
	}
}

func TestReadyNever(t *testing.T) {
	for name, row := range map[string]struct {
		rule protocol.ReadyRule
		dial Dialer
	}{
		"other value":     {rule(func(r *protocol.ReadyRule) { r.TimeoutMillis = 60 }), web(t, func(w http.ResponseWriter, _ *http.Request) { io.WriteString(w, `{"status":"LOADING"}`) })},
		"not JSON":        {rule(func(r *protocol.ReadyRule) { r.TimeoutMillis = 60 }), web(t, func(w http.ResponseWriter, _ *http.Request) { io.WriteString(w, `READY`) })},
		"endless body":    {rule(func(r *protocol.ReadyRule) { r.TimeoutMillis = 60 }), web(t, func(w http.ResponseWriter, _ *http.Request) { w.Write(make([]byte, MaxReadyBody+1)) })},
		"never listening": {rule(func(r *protocol.ReadyRule) { r.TimeoutMillis = 60 }), dialerFunc(func(context.Context) (net.Conn, error) { return nil, ErrNotConnectable })},
		"silent":          {rule(func(r *protocol.ReadyRule) { r.TimeoutMillis = 60 }), raw(t, func(c net.Conn) { io.Copy(io.Discard, c) })},
		"ended":           {rule(nil), dialerFunc(func(context.Context) (net.Conn, error) { return nil, ErrGone })},
	} {
		t.Run(name, func(t *testing.T) {
			err := Ready(t.Context(), row.dial, row.rule, quiet)
			if classOf(err) != Unavailable {
				t.Fatalf("%v", err)
			}
		})
	}
}

// An outage of the job service while the attempt reports is not the worker's
// time: one that is ready by then is taken, one that is not has what was left.
func TestReadyTimeStandsStillWhileReporting(t *testing.T) {
	for name, becomes := range map[string]bool{"ready by then": true, "not ready": false} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				ready := false
				dial := dialerFunc(func(context.Context) (net.Conn, error) {
					if !ready {
						return nil, ErrNotConnectable
					}
					ours, theirs := net.Pipe()
					return ours, theirs.Close()
				})
				began := time.Now()
				err := Ready(t.Context(), dial, protocol.ReadyRule{Connect: true, TimeoutMillis: 30_000, IntervalMillis: 1000}, func(context.Context, string) error {
					time.Sleep(2 * time.Minute) // of the bubble's clock
					ready = becomes
					return nil
				})
				if took := time.Since(began); becomes && err != nil || !becomes && (classOf(err) != Unavailable || took < 150*time.Second || took > 151*time.Second) {
					t.Fatalf("%v after %s", err, took)
				}
			})
		})
	}
}

func TestReadyConnect(t *testing.T) {
	s := raw(t, func(net.Conn) {})
	if err := Ready(t.Context(), s, protocol.ReadyRule{Connect: true, TimeoutMillis: 1000, IntervalMillis: 5}, quiet); err != nil {
		t.Fatal(err)
	}
}

// A failed report blocks what follows.
func TestReadyReportFails(t *testing.T) {
	broken := errors.New("the heartbeat was refused")
	dial := dialerFunc(func(context.Context) (net.Conn, error) { return nil, ErrNotConnectable })
	err := Ready(t.Context(), dial, rule(nil), func(context.Context, string) error { return broken })
	if !errors.Is(err, broken) {
		t.Fatalf("%v", err)
	}
}

// A ready answer is a container's word: any bytes, never more than a no.
func FuzzPointerEquals(f *testing.F) {
	f.Add([]byte(`{"status":"READY"}`), "/status", "READY")
	f.Add([]byte(`{"a":{"b/c":true}}`), "/a/b~1c", "true")
	f.Add([]byte(`[1`), "", "")
	f.Fuzz(func(t *testing.T, document []byte, pointer, want string) {
		if pointerEquals(document, pointer, want) && want != "true" && want != "false" && !bytes.Contains(document, []byte(`"`)) {
			t.Fatal("a value was found in a document without strings")
		}
	})
}
