package worker

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"io"
	"net"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/quittance/quittance/controller/internal/offering"
)

// tcp serves each connection of a real TCP socket, as most workers have.
func tcp(t *testing.T, handle func(c net.Conn)) Dialer {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
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
	return dialerFunc(func(ctx context.Context) (net.Conn, error) {
		var d net.Dialer
		return d.DialContext(ctx, "tcp", l.Addr().String())
	})
}

// A worker that answers and closes before it read the whole request has said
// what it said: it is not lost. Success for a request that it did not take is
// none.
func TestAnswerBeforeTheWholeRequest(t *testing.T) {
	input := MemoryInput("text/plain", bytes.Repeat([]byte("x"), 8<<20))
	big := func(o *offering.Offering) { o.Input.MaxBytes = input.Length }
	for name, row := range map[string]struct {
		reply    string
		want     Class
		evidence string
	}{
		"413":     {"HTTP/1.1 413 Too Large\r\nConnection: close\r\nContent-Length: 8\r\n\r\ntoo long", WorkerFailed, "too long"},
		"503":     {"HTTP/1.1 503 Busy\r\nConnection: close\r\n\r\nbusy", WorkerFailed, "busy"},
		"success": {"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: 2\r\n\r\n{}", Protocol, ""},
		"nothing": {"", WorkerLost, ""},
		"half":    {"HTTP/1.1 413 Too La", WorkerLost, ""},
	} {
		handle := func(c net.Conn) {
			// Only the head is read; what is left unread makes the kernel reset.
			r := bufio.NewReader(c)
			if _, err := http.ReadRequest(r); err == nil {
				io.WriteString(c, row.reply)
			}
		}
		for network, dial := range map[string]Dialer{"unix": raw(t, handle), "tcp": tcp(t, handle)} {
			t.Run(name+" over "+network, func(t *testing.T) {
				a := New(offer(t, big), dial, "key")
				defer a.Close()
				h, err := a.Prepare(t.Context(), input, quiet)
				if err != nil {
					t.Fatal(err)
				}
				_, err = a.Execute(t.Context(), h, quiet)
				f, ok := errors.AsType[*Failure](err)
				if !ok || f.Class != row.want || string(f.Evidence) != row.evidence {
					t.Fatalf("%v with evidence %q, want %s with %q", err, f.Evidence, row.want, row.evidence)
				}
			})
		}
	}
}

// A worker that answers with success and leaves the rest of the request unread
// is waited for no longer than the request's timeout.
func TestAnswerAndNeverReads(t *testing.T) {
	s := raw(t, func(c net.Conn) {
		if _, err := http.ReadRequest(bufio.NewReader(c)); err != nil {
			return
		}
		io.WriteString(c, "HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: 2\r\n\r\n{}")
		for { // the end of the channel is seen by a write alone
			if _, err := io.WriteString(c, "\n"); err != nil {
				return
			}
			time.Sleep(time.Millisecond) // paces the loop; nothing waits for it
		}
	})
	input := MemoryInput("text/plain", bytes.Repeat([]byte("x"), 8<<20))
	o := offer(t, func(o *offering.Offering) { o.Input.MaxBytes, o.Request.Timeout = input.Length, 100*time.Millisecond })
	if _, err := run(t, t.Context(), o, s, input); classOf(err) != WorkerTimeout {
		t.Fatal(err)
	}
}

// Interim answers are passed over, within a bound.
func TestInterimAnswers(t *testing.T) {
	for times, want := range map[int]Class{1: "", maxInterim - 1: "", maxInterim: Protocol} {
		s := raw(t, func(c net.Conn) {
			r, err := http.ReadRequest(bufio.NewReader(c))
			if err != nil {
				return
			}
			io.Copy(io.Discard, r.Body)
			io.WriteString(c, strings.Repeat("HTTP/1.1 103 Early Hints\r\nLink: <x>\r\n\r\n", times)+
				"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: 2\r\n\r\n{}")
		})
		if _, err := run(t, t.Context(), offer(t, nil), s, MemoryInput("text/plain", []byte("x"))); classOf(err) != want {
			t.Errorf("%d interim answers: %v, want %q", times, err, want)
		}
	}
}
