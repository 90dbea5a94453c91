package worker

import (
	"bufio"
	"fmt"
	"io"
	"net"
	"net/http"
	"testing"
	"time"

	"github.com/quittance/quittance/controller/internal/offering"
	"github.com/quittance/quittance/protocol"
)

func preparing(o *offering.Offering) { o.PreparePath = "/prepare" }

// What the prepare path returned is the one request that executes, over the
// same channel, with the digest of those bytes.
func TestPreparePath(t *testing.T) {
	type seen struct{ method, path, contentType, body string }
	requests := make(chan seen, 4)
	s := web(t, func(w http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		requests <- seen{r.Method, r.URL.Path, r.Header.Get("Content-Type"), string(body)}
		if r.URL.Path == "/prepare" {
			w.Header().Set("Content-Type", "application/x-opaque")
			io.WriteString(w, "handle 7")
			return
		}
		w.Header().Set("Content-Type", "application/json")
		io.WriteString(w, `{"ok":true}`)
	})
	a := New(offer(t, preparing), s, "key")
	defer a.Close()
	h, err := a.Prepare(t.Context(), MemoryInput("text/plain", []byte("input")), quiet)
	if err != nil {
		t.Fatal(err)
	}
	if got, want := <-requests, (seen{"POST", "/prepare", "text/plain", "input"}); got != want {
		t.Fatalf("prepared by %+v, want %+v", got, want)
	}
	if h.Digest != protocol.DigestOf([]byte("handle 7")) {
		t.Fatal("the handle's digest is not that of the prepared bytes")
	}
	out, err := a.Execute(t.Context(), h, quiet)
	if err != nil || string(out.Body) != `{"ok":true}` {
		t.Fatalf("%s, %v", out.Body, err)
	}
	if got, want := <-requests, (seen{"POST", "/predict", "application/x-opaque", "handle 7"}); got != want {
		t.Fatalf("executed by %+v, want %+v", got, want)
	}
	if s.accepted.Load() != 1 {
		t.Fatalf("%d channels, want 1", s.accepted.Load())
	}
}

// Before entry nothing is the worker's failure of execution; a refusal of the
// input is the job's fault.
func TestPreparePathFailures(t *testing.T) {
	answer := func(text string) func(net.Conn) {
		return func(c net.Conn) {
			for r := bufio.NewReader(c); ; {
				req, err := http.ReadRequest(r)
				if err != nil {
					return
				}
				io.Copy(io.Discard, req.Body)
				io.WriteString(c, text)
				if text == "" {
					return
				}
			}
		}
	}
	status := func(code int) string { return fmt.Sprintf("HTTP/1.1 %d No\r\nContent-Length: 3\r\n\r\nwhy", code) }
	for name, row := range map[string]struct {
		handle func(net.Conn)
		want   Class
	}{
		"400":             {answer(status(400)), InvalidInput},
		"413":             {answer(status(413)), InvalidInput},
		"415":             {answer(status(415)), InvalidInput},
		"422":             {answer(status(422)), InvalidInput},
		"500":             {answer(status(500)), Unavailable},
		"503":             {answer(status(503)), Unavailable},
		"redirect":        {answer(status(302)), Unavailable},
		"lost":            {answer(""), WorkerLost},
		"no content type": {answer("HTTP/1.1 200 OK\r\nContent-Length: 1\r\n\r\nx"), Protocol},
		"no length":       {answer("HTTP/1.1 200 OK\r\nContent-Type: a/b\r\n\r\nx"), Protocol},
		"too long":        {answer(fmt.Sprintf("HTTP/1.1 200 OK\r\nContent-Type: a/b\r\nContent-Length: %d\r\n\r\n", MaxPrepared+1)), Protocol},
		"ends channel":    {answer("HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Type: a/b\r\nContent-Length: 1\r\n\r\nx"), Protocol},
		"silent":          {func(c net.Conn) { io.Copy(io.Discard, c) }, Unavailable},
	} {
		t.Run(name, func(t *testing.T) {
			s := raw(t, row.handle)
			a := New(offer(t, func(o *offering.Offering) {
				if preparing(o); name == "silent" {
					o.PrepareTimeout = 300 * time.Millisecond
				}
			}), s, "key")
			defer a.Close()
			_, err := a.Prepare(t.Context(), MemoryInput("text/plain", []byte("x")), quiet)
			if classOf(err) != row.want {
				t.Fatalf("%v, want %s", err, row.want)
			}
		})
	}
}

// An answer that lies ready before the execution was asked for answers
// something else.
func TestAnswerBeforeTheQuestion(t *testing.T) {
	const early = "HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: 2\r\n\r\n{}"
	s := raw(t, func(c net.Conn) {
		r, err := http.ReadRequest(bufio.NewReader(c))
		if err != nil {
			return
		}
		io.Copy(io.Discard, r.Body)
		io.WriteString(c, "HTTP/1.1 200 OK\r\nContent-Type: a/b\r\nContent-Length: 1\r\n\r\nx"+early)
		io.Copy(io.Discard, c)
	})
	if _, err := run(t, t.Context(), offer(t, preparing), s, MemoryInput("text/plain", []byte("x"))); classOf(err) != Protocol {
		t.Fatal(err)
	}
}
