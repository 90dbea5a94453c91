package provider

import (
	"bytes"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"os"
	"strconv"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/quittance/quittance/controller/api"
	"github.com/quittance/quittance/protocol"
)

func itoa(n int) string { return strconv.Itoa(n) }

const (
	testJob       = "job-00000000000000000000000000000001"
	testReference = "att-00000000000000000000000000000001"
	testUpload    = "up-00000000000000000000000000000001"
	testStore     = protocol.ID("00000000000000000000000000000001")
)

var testDigest = protocol.DigestOf([]byte("abc"))

func startBody() []byte {
	return api.Encode(api.Start{Key: "k-1", Job: testJob, Kind: "test.v1", Store: testStore,
		Input: api.Identity{Schema: "text/plain", Length: 3, SHA256: testDigest}})
}

func admission() api.Admission {
	return api.Admission{Attempt: testReference, Key: "k-1", Job: testJob, State: api.AttemptInProgress,
		JobState: api.JobOpen, Admitted: 1, LeaseMillis: 600_000}
}

func problem(code api.Code) string {
	p := api.NewProblem(code, "detail", "next")
	return jsonAnswer(fmt.Sprintf("%d X", p.Status), api.ContentProblem, string(api.Encode(p)))
}

// row is one thing that a peer may do and what it means.
type row struct {
	script      func(*peerConn)
	class       Class
	disposition protocol.Disposition
	start, read bool // START, and a read, may be repeated
	code        api.Code
}

func says(s string) func(*peerConn) {
	return func(c *peerConn) {
		if c.read() {
			c.say(s)
		}
	}
}

// ends says s and closes.
func ends(s string) func(*peerConn) {
	return func(c *peerConn) {
		if c.read() {
			c.say(s)
			_ = c.Close()
		}
	}
}

// halfCloses says s, ends its own side and goes on listening.
func halfCloses(s string) func(*peerConn) {
	return func(c *peerConn) {
		if c.read() {
			c.say(s)
			if half, ok := c.Conn.(interface{ CloseWrite() error }); ok {
				_ = half.CloseWrite() // the client may be gone already
			}
		}
	}
}

func table() map[string]row {
	good := string(api.Encode(admission()))
	html := "<html>proxy</html>"
	answer := func(status, body string) string { return jsonAnswer(status, api.ContentJSON, body) }
	malformed := func(s string) row { return row{says(s), ClassMalformed, protocol.Unknown, false, false, ""} }
	refused := func(code api.Code) row {
		return row{says(problem(code)), ClassRefused, protocol.Refused, false, false, code}
	}
	busy := func(code api.Code) row {
		return row{says(problem(code)), ClassBusy, protocol.Refused, true, true, code}
	}
	unavailable := func(s string) row { return row{says(s), ClassUnavailable, protocol.Unknown, true, true, ""} }
	bare := func(status, body string) string {
		return "HTTP/1.1 " + status + "\r\nContent-Type: text/html\r\nContent-Length: " + itoa(len(body)) + "\r\n\r\n" + body
	}
	unsure := api.NewProblem(api.CodeJobBusy, "d", "n")
	unsure.Effect = api.EffectUnknown
	misplaced := api.NewProblem(api.CodeJobBusy, "d", "n")
	misplaced.Status = 404
	return map[string]row{
		"409 that may have had an effect": {says(jsonAnswer("409 X", api.ContentProblem, string(api.Encode(unsure)))), ClassServer, protocol.Unknown, false, false, api.CodeJobBusy},
		"code under another status":       malformed(jsonAnswer("404 X", api.ContentProblem, string(api.Encode(misplaced)))),
		// 502, 503 and 504, whatever the body.
		"502 of a proxy":          unavailable(bare("502 Bad Gateway", html)),
		"503 of the service":      unavailable(problem(api.CodeUnavailable)),
		"504 without a body":      unavailable("HTTP/1.1 504 X\r\nContent-Length: 0\r\n\r\n"),
		"503 with an endless one": unavailable(bare("503 X", strings.Repeat("x", 1<<20))),
		// 500: START may be repeated, a read not.
		"500 of the service": {says(problem(api.CodeInternal)), ClassServer, protocol.Unknown, true, false, ""},
		"500 of a proxy":     {says(bare("500 X", html)), ClassServer, protocol.Unknown, true, false, ""},
		// Lost replies.
		"no answer":            {ends(""), ClassLost, protocol.Unknown, true, true, ""},
		"half a head":          {ends("HTTP/1.1 200 OK\r\nContent-Ty"), ClassLost, protocol.Unknown, true, true, ""},
		"half a body":          {ends(answer("200 OK", good)[:len(answer("200 OK", good))-10]), ClassLost, protocol.Unknown, true, true, ""},
		"half a chunk":         {ends(head("200 OK", "Content-Type: application/json", "Transfer-Encoding: chunked") + "ff\r\n{"), ClassLost, protocol.Unknown, true, true, ""},
		"half-closed at once":  {halfCloses(""), ClassLost, protocol.Unknown, true, true, ""},
		"half-closed in body":  {halfCloses(answer("200 OK", good)[:len(answer("200 OK", good))-10]), ClassLost, protocol.Unknown, true, true, ""},
		"reset after the send": {func(c *peerConn) { c.read(); c.reset() }, ClassLost, protocol.Unknown, true, true, ""},
		// What is not HTTP at all.
		"garbage":         {ends("220 mail.example.org ESMTP s3cret\r\n"), ClassMalformed, protocol.Unknown, false, false, ""},
		"garbage headers": {ends("HTTP/1.1 200 OK\r\ns3cret s3cret\r\n\r\n"), ClassMalformed, protocol.Unknown, false, false, ""},
		"garbage chunk":   {ends(head("200 OK", "Content-Type: application/json", "Transfer-Encoding: chunked") + "s3cret\r\n"), ClassMalformed, protocol.Unknown, false, false, ""},
		"endless headers": {says("HTTP/1.1 200 OK\r\n" + strings.Repeat("X: s3cret\r\n", 10_000)), ClassMalformed, protocol.Unknown, false, false, ""},
		"endless 1xx":     {says(strings.Repeat("HTTP/1.1 103 Early\r\nX: s3cret\r\n\r\n", 10_000)), ClassMalformed, protocol.Unknown, false, false, ""},
		"two lengths":     {ends(head("200 OK", "Content-Length: 5", "Content-Length: 6") + "s3cret"), ClassMalformed, protocol.Unknown, false, false, ""},
		// Refusals without effect.
		"job not open":  refused(api.CodeJobNotOpen),
		"job busy":      refused(api.CodeJobBusy),
		"key conflict":  refused(api.CodeKeyConflict),
		"not found":     refused(api.CodeNotFound),
		"bad signature": refused(api.CodeBadSignature),
		"unknown key":   refused(api.CodeUnknownKey),
		"bad request":   refused(api.CodeBadRequest),
		"other store":   refused(api.CodeOtherStore),
		"late body":     busy(api.CodeTimeout),
		"no space":      busy(api.CodeNoSpace),
		"limit":         busy(api.CodeLimitReached),
		// The wrong environment.
		"other topology":     {says(strings.Replace(answer("201 Created", good), ": test", ": production", 1)), ClassTopology, protocol.Unknown, false, false, ""},
		"no topology":        {says(strings.Replace(answer("201 Created", good), "Quittance-Topology: test\r\n", "", 1)), ClassTopology, protocol.Unknown, false, false, ""},
		"two topologies":     {says(head("200 OK", "Quittance-Topology: test", "Content-Type: application/json", "Content-Length: 2") + "{}"), ClassTopology, protocol.Unknown, false, false, ""},
		"503 of another":     {says(strings.Replace(problem(api.CodeUnavailable), ": test", ": production", 1)), ClassTopology, protocol.Unknown, false, false, ""},
		"404 of a proxy":     {says(bare("404 Not Found", html)), ClassTopology, protocol.Unknown, false, false, ""},
		"redirect elsewhere": {says("HTTP/1.1 307 X\r\nLocation: http://127.0.0.1:1/\r\nContent-Length: 0\r\n\r\n"), ClassTopology, protocol.Unknown, false, false, ""},
		// Answers that break the contract.
		"redirect of ours":        malformed(head("307 X", "Location: /elsewhere", "Content-Length: 0")),
		"HTML with 200":           malformed(jsonAnswer("200 OK", "text/html", html)),
		"HTML as JSON":            malformed(answer("200 OK", html)),
		"empty":                   malformed(answer("200 OK", "")),
		"204":                     malformed(head("204 No Content")),
		"202":                     malformed(answer("202 Accepted", good)),
		"two values":              malformed(answer("200 OK", good+good)),
		"trailing byte":           malformed(answer("200 OK", good+"x")),
		"added member":            malformed(answer("200 OK", strings.Replace(good, "{", `{"x":1,`, 1))),
		"added text":              malformed(answer("200 OK", strings.Replace(good, "{", `{"S3cret\ns3cret html":1,`, 1))),
		"member twice":            malformed(answer("200 OK", strings.Replace(good, "{", `{"key":"k-1",`, 1))),
		"member missing":          malformed(answer("200 OK", strings.Replace(good, `,"replayed":false`, "", 1))),
		"null member":             malformed(answer("200 OK", strings.Replace(good, `"replayed":false`, `"replayed":null`, 1))),
		"bad UTF-8":               malformed(answer("200 OK", strings.Replace(good, "k-1", "k-\xff", 1))),
		"oversized by length":     malformed(head("200 OK", "Content-Type: application/json", "Content-Length: 999999999")),
		"oversized in chunks":     malformed(head("200 OK", "Content-Type: application/json", "Transfer-Encoding: chunked") + "4000\r\n" + strings.Repeat(" ", 0x4000) + "\r\n"),
		"compressed":              malformed(head("200 OK", "Content-Type: application/json", "Content-Encoding: gzip", "Content-Length: 2") + "{}"),
		"problem as JSON":         malformed(jsonAnswer("409 X", api.ContentJSON, string(api.Encode(api.NewProblem(api.CodeJobBusy, "", ""))))),
		"problem of other status": malformed(jsonAnswer("404 X", api.ContentProblem, string(api.Encode(api.NewProblem(api.CodeJobBusy, "", ""))))),
		"problem of no code":      malformed(strings.Replace(problem(api.CodeJobBusy), "job_busy", "jab_busy", 1)),
		"problem cut by HTML":     malformed(jsonAnswer("409 X", api.ContentProblem, html)),
		// Well-formed answers to some other request.
		"other key":       {says(answer("201 Created", strings.Replace(good, "k-1", "k-2", 1))), ClassMismatch, protocol.Unknown, false, false, ""},
		"other job":       {says(answer("201 Created", strings.Replace(good, testJob, testJob[:len(testJob)-1]+"2", 1))), ClassMismatch, protocol.Unknown, false, false, ""},
		"state of no API": {says(answer("201 Created", strings.Replace(good, "in_progress", "dreaming", 1))), ClassMismatch, protocol.Unknown, false, false, ""},
	}
}

// TestClassification does on the wire what each row says, over plain TCP and
// TLS, and checks what START and a read make of it. The peer sees its
// connection closed in every case.
func TestClassification(t *testing.T) {
	for name, row := range table() {
		for _, secure := range []bool{false, true} {
			t.Run(fmt.Sprintf("%s/tls=%v", name, secure), func(t *testing.T) {
				p := newPeer(t, secure, row.script)
				c := p.client()
				before := time.Now()
				_, reply, err := c.Start(background(), startBody(), nil)
				f := failure(t, err)
				if f.Class != row.class || f.Disposition != row.disposition || f.Repeat != row.start || f.Code != row.code {
					t.Errorf("START: %v, repeat %v; want %s (%s), repeat %v, code %q", f, f.Repeat, row.class, row.disposition, row.start, row.code)
				}
				if f.Status != reply.Status || f.Reply.Status != f.Status {
					t.Errorf("status %d, reply %d", f.Status, reply.Status)
				}
				if f.Expires.Before(before) {
					t.Errorf("the signature's expiry is %v", f.Expires)
				}
				if strings.Contains(f.Error(), "html") || strings.Contains(f.Error(), "s3cret") {
					t.Errorf("the service's text is in our message: %v", f)
				}
				conns := p.allClosed(1)
				if len(conns[0].requests) == 1 && !bytes.Equal(conns[0].bodies[0], startBody()) {
					t.Error("other bytes were sent than those given (I26)")
				}
				_, _, err = c.Attempt(background(), testReference)
				if f := failure(t, err); row.class != ClassMismatch && (f.Class != row.class || f.Repeat != row.read) {
					t.Errorf("read: %v, repeat %v; want %s, repeat %v", f, f.Repeat, row.class, row.read)
				}
				p.allClosed(2)
			})
		}
	}
}

// The request id and the date of every received head are kept.
func TestHeadIsKept(t *testing.T) {
	p := newPeer(t, false, says(problem(api.CodeJobBusy)))
	_, _, err := p.client().Start(background(), startBody(), nil)
	f := failure(t, err)
	if f.RequestID != "r-1" || !f.Date.Equal(time.Date(2026, 11, 30, 16, 0, 0, 0, time.UTC)) || len(f.Reply.Body) == 0 || f.Reply.RequestID != "r-1" {
		t.Errorf("got %+v", f)
	}
	if got, ok := StartRefused(err); !ok || got != f {
		t.Error("StartRefused does not see it")
	}
	bad := newPeer(t, false, says(strings.Replace(problem(api.CodeJobBusy), "r-1", "r 1\x01", 1)))
	_, _, err = bad.client().Start(background(), startBody(), nil)
	if f := failure(t, err); f.RequestID != "" {
		t.Errorf("request id %q", f.RequestID)
	}
}

// Story: stall. A peer stalls in the TLS handshake, before the head, in the body,
// or trickles, under the exchange's deadline and the caller's stop. Nothing is
// given back before the peer's side is closed.
func TestStall(t *testing.T) {
	whole := jsonAnswer("201 Created", api.ContentJSON, string(api.Encode(admission())))
	for name, row := range map[string]struct {
		secure bool
		script func(*peerConn)
		sent   bool
	}{
		"TLS":     {true, nil, false},
		"head":    {false, says(""), true},
		"in head": {false, says(whole[:40]), true},
		"body":    {false, says(whole[:len(whole)-1]), true},
		"trickle": {false, func(c *peerConn) {
			c.read()
			for i := 0; i < len(whole)-1; i++ {
				if _, err := c.Write([]byte{whole[i]}); err != nil {
					return
				}
				select {
				case <-c.closed:
					return
				case <-time.After(20 * time.Millisecond): // the peer's pace, not synchronisation
				}
			}
		}, true},
		"TLS body": {true, says(whole[:len(whole)-1]), true},
	} {
		for _, stop := range []bool{false, true} {
			t.Run(fmt.Sprintf("%s/stop=%v", name, stop), func(t *testing.T) {
				try := func(timeout time.Duration) *Failure {
					reached := make(chan struct{}, 1)
					p := newPeer(t, row.secure && row.script != nil, func(c *peerConn) {
						reached <- struct{}{}
						if row.script != nil {
							row.script(c)
						}
					})
					c := p.client(func(cfg *Config) {
						if !stop {
							cfg.Timeout = timeout
						}
						if row.secure && row.script == nil {
							cfg.Origin = "https://" + p.listener.Addr().String()
						}
					})
					ctx, cancel := context.WithCancel(background())
					defer cancel()
					if stop {
						go func() {
							<-reached
							cancel()
						}()
					}
					_, _, err := c.Start(ctx, startBody(), nil)
					p.allClosed(1)
					return failure(t, err)
				}
				want, disposition := ClassTimeout, protocol.Unknown
				if stop {
					want = ClassStopped
				}
				if !row.sent {
					disposition = protocol.Refused
				}
				timeout := 300 * time.Millisecond
				f := try(timeout)
				for !stop && f.Disposition != disposition && timeout < 30*time.Second {
					timeout *= 4 // the machine stood still before the request was sent
					f = try(timeout)
				}
				if f.Class != want || f.Repeat == stop || !stop && f.Disposition != disposition {
					t.Errorf("got %v, repeat %v", f, f.Repeat)
				}
			})
		}
	}
}

// Nothing was sent where there is no connection.
func TestUnreachable(t *testing.T) {
	blocked := newPeer(t, false, says("")).client(func(cfg *Config) {
		cfg.Timeout = 50 * time.Millisecond
		cfg.Dial = func(ctx context.Context) (net.Conn, error) {
			<-ctx.Done()
			return nil, ctx.Err()
		}
	})
	_, _, err := blocked.Start(background(), startBody(), nil)
	if f := failure(t, err); f.Class != ClassTimeout || f.Disposition != protocol.Refused || !f.Repeat {
		t.Errorf("stalled at connect: %v, repeat %v", f, f.Repeat)
	}
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	address := listener.Addr().String()
	if err := listener.Close(); err != nil {
		t.Fatal(err)
	}
	p := newPeer(t, false, says(""))
	refused := p.client(func(cfg *Config) { cfg.Origin = "http://" + address })
	_, _, err = refused.Start(background(), startBody(), nil)
	if f := failure(t, err); f.Class != ClassUnreachable || f.Disposition != protocol.Refused || !f.Repeat {
		t.Errorf("connection refused: %v, repeat %v", f, f.Repeat)
	}
	for temporary, want := range map[bool]bool{true: true, false: false} {
		lost := p.client(func(cfg *Config) {
			cfg.Dial = func(context.Context) (net.Conn, error) {
				return nil, &net.OpError{Op: "dial", Err: &net.DNSError{Err: "x", IsTemporary: temporary, IsNotFound: !temporary}}
			}
		})
		_, _, err := lost.Start(background(), startBody(), nil)
		if f := failure(t, err); f.Class != ClassUnreachable || f.Disposition != protocol.Refused || f.Repeat != want {
			t.Errorf("DNS failure, temporary %v: %v, repeat %v", temporary, f, f.Repeat)
		}
	}
	p.allClosed(0)
}

// A peer that does not prove its identity gets no byte of the request.
func TestTLSFailures(t *testing.T) {
	for name, change := range map[string]func(*Config){
		"unknown authority": func(cfg *Config) { cfg.TLS = nil },
		"other name":        func(cfg *Config) { cfg.TLS.ServerName = "other.example.org" },
		"plain peer":        nil,
	} {
		t.Run(name, func(t *testing.T) {
			read := make(chan bool, 1)
			secure := change != nil
			p := newPeer(t, secure, func(c *peerConn) {
				if secure {
					read <- c.read()
				} else {
					c.say("HTTP/1.1 400 Bad Request\r\n\r\n")
					read <- false
				}
			})
			c := p.client(func(cfg *Config) {
				cfg.Origin = "https://" + p.listener.Addr().String()
				if change != nil {
					change(cfg)
				} else {
					cfg.TLS = &tls.Config{}
				}
			})
			_, _, err := c.Start(background(), startBody(), nil)
			if f := failure(t, err); f.Class != ClassTLS || f.Disposition != protocol.Refused || f.Repeat {
				t.Errorf("got %v, repeat %v", f, f.Repeat)
			}
			if <-read {
				t.Error("the peer got a request")
			}
			p.allClosed(1)
		})
	}
}

// A clock_skew answer is applied and permits a repeat; the next signature is
// made at the service's time.
func TestClockSkewIsApplied(t *testing.T) {
	skewed := api.NewProblem(api.CodeClockSkew, "d", "n")
	service := protocol.TimestampOf(time.Now().Add(time.Hour))
	skewed.ServiceTime = &service
	p := newPeer(t, false, says(jsonAnswer("401 X", api.ContentProblem, string(api.Encode(skewed)))))
	c := p.client()
	_, _, err := c.Start(background(), startBody(), nil)
	first := failure(t, err)
	if first.Class != ClassClockSkew || first.Disposition != protocol.Refused || !first.Repeat {
		t.Fatalf("got %v, repeat %v", first, first.Repeat)
	}
	_, _, err = c.Start(background(), startBody(), nil)
	if moved := failure(t, err).Expires.Sub(first.Expires); moved < 59*time.Minute || moved > 61*time.Minute {
		t.Errorf("the second signature expires %v after the first", moved)
	}
	conns := p.allClosed(2)
	a, b := conns[0].requests[0], conns[1].requests[0]
	if a.Header.Get("Signature") == b.Header.Get("Signature") || !bytes.Equal(conns[0].bodies[0], conns[1].bodies[0]) {
		t.Error("a replay must differ in its signature and in nothing else (I26)")
	}
}

// beforeSend comes after signing and before the connection; its failure sends
// nothing.
func TestBeforeSend(t *testing.T) {
	p := newPeer(t, false, says(jsonAnswer("201 Created", api.ContentJSON, string(api.Encode(admission())))))
	disk := errors.New("disk")
	_, _, err := p.client().Start(background(), startBody(), func(expires time.Time) error {
		if time.Until(expires) <= 0 {
			t.Errorf("expiry %v", expires)
		}
		p.allClosed(0)
		return disk
	})
	if f := failure(t, err); f.Class != ClassNotSent || f.Disposition != protocol.Refused || f.Repeat || !errors.Is(err, disk) {
		t.Errorf("got %v", f)
	}
	p.allClosed(0)
	a, reply, err := p.client().Start(background(), startBody(), func(time.Time) error { return nil })
	if err != nil || a.Attempt != testReference || reply.Status != 201 || !bytes.Equal(reply.Body, api.Encode(admission())) {
		t.Errorf("got %v, %v, %v", a, reply, err)
	}
	p.allClosed(1)
}

// What is no request of this contract is not sent.
func TestMalformedRequestsAreNotSent(t *testing.T) {
	p := newPeer(t, false, says(""))
	c := p.client()
	for name, send := range map[string]func() error{
		"START":          func() error { _, _, err := c.Start(background(), []byte("{}"), nil); return err },
		"START too long": func() error { _, _, err := c.Start(background(), make([]byte, 5<<10), nil); return err },
		"COMPLETE":       func() error { _, _, err := c.Complete(background(), testReference, []byte("{}")); return err },
		"FAIL of another": func() error {
			body := api.Encode(api.Fail{Attempt: testReference, Code: api.FailCancelled})
			_, _, err := c.Fail(background(), testReference[:len(testReference)-1]+"2", body)
			return err
		},
		"hello":     func() error { _, err := c.Hello(background(), api.Hello{}); return err },
		"heartbeat": func() error { _, err := c.Progress(background(), testReference, api.Progress{}); return err },
		"receipts": func() error {
			_, _, err := c.Receipts(background(), testReference, api.HostReceipts{Attempt: testReference})
			return err
		},
		"grant": func() error { _, err := c.Grant(background(), testJob, api.UploadMember{}, "x"); return err },
	} {
		if f := failure(t, send()); f.Class != ClassNotSent || f.Disposition != protocol.Refused || f.Repeat {
			t.Errorf("%s: %v", name, f)
		}
	}
	p.allClosed(0)
}

func TestConfigRefusals(t *testing.T) {
	good := Config{Origin: "https://jobs.example.org", Topology: "t", Signer: testSigner(t), Timeout: 1, FetchTimeout: 1}
	if _, err := New(good); err != nil {
		t.Fatal(err)
	}
	for name, change := range map[string]func(*Config){
		"empty":        func(c *Config) { c.Origin = "" },
		"path":         func(c *Config) { c.Origin += "/x" },
		"user":         func(c *Config) { c.Origin = "https://a:b@jobs.example.org" },
		"scheme":       func(c *Config) { c.Origin = "ftp://jobs.example.org" },
		"topology":     func(c *Config) { c.Topology = "" },
		"signer":       func(c *Config) { c.Signer = nil },
		"timeout":      func(c *Config) { c.Timeout = 0 },
		"store origin": func(c *Config) { c.StoreOrigins = []string{"store"} },
	} {
		bad := good
		change(&bad)
		if _, err := New(bad); err == nil {
			t.Errorf("%s was accepted", name)
		}
	}
}

// Story: stall. At connect the peer's queue is full, so that no connection
// comes about. Once the call has returned nothing of it is under way: what the
// peer accepts afterwards are the connections that filled its queue, and then a
// new one.
func TestStallAtConnect(t *testing.T) {
	for _, stop := range []bool{false, true} {
		t.Run(fmt.Sprintf("stop=%v", stop), func(t *testing.T) {
			listener := fullListener(t)
			signer := testSigner(t)
			c, err := New(Config{Origin: "http://" + listener.Addr().String(), Topology: testTopology, Signer: signer, UserAgent: "quittance-test",
				Timeout: 500 * time.Millisecond, FetchTimeout: time.Minute})
			if err != nil {
				t.Fatal(err)
			}
			ctx, cancel := context.WithCancelCause(background())
			defer cancel(nil)
			want := ClassTimeout
			if stop {
				want = ClassStopped
				c.cfg.Timeout = time.Minute
				time.AfterFunc(200*time.Millisecond, func() { cancel(errors.New("stopped")) }) // during the dial, which nothing else ends
			}
			_, _, err = c.Start(ctx, startBody(), nil)
			if f := failure(t, err); f.Class != want || f.Disposition != protocol.Refused || f.Repeat == stop {
				t.Errorf("got %v, repeat %v", f, f.Repeat)
			}
			for _, filler := range listener.fillers {
				listener.accept(t, filler)
			}
			probe, err := net.Dial("tcp", listener.Addr().String())
			if err != nil {
				t.Fatal(err)
			}
			defer probe.Close()
			listener.accept(t, probe)
		})
	}
}

// queue is a listener whose queue is full of fillers.
type queue struct {
	net.Listener
	fillers []net.Conn
}

func fullListener(t *testing.T) *queue {
	t.Helper()
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	file := os.NewFile(uintptr(fd), "listener")
	if err := errors.Join(unix.Bind(fd, &unix.SockaddrInet4{Addr: [4]byte{127, 0, 0, 1}}), unix.Listen(fd, 0)); err != nil {
		t.Fatal(err)
	}
	l, err := net.FileListener(file)
	if err := errors.Join(err, file.Close()); err != nil {
		t.Fatal(err)
	}
	q := &queue{Listener: l}
	t.Cleanup(func() {
		for _, c := range q.fillers {
			_ = c.Close()
		}
		_ = l.Close()
	})
	timeouts := 0 // in a row: one alone may be the machine's
	for len(q.fillers) < 64 {
		conn, err := net.DialTimeout("tcp", l.Addr().String(), 300*time.Millisecond)
		if err == nil {
			q.fillers, timeouts = append(q.fillers, conn), 0
			continue
		}
		if timeout, ok := errors.AsType[net.Error](err); !ok || !timeout.Timeout() {
			t.Fatal(err)
		}
		if timeouts++; timeouts == 2 {
			return q
		}
	}
	t.Fatal("the queue does not fill")
	return nil
}

// accept fails unless the next connection is the one given.
func (q *queue) accept(t *testing.T, from net.Conn) {
	t.Helper()
	conn, err := q.Accept()
	if err != nil {
		t.Fatal(err)
	}
	if got, want := conn.RemoteAddr().String(), from.LocalAddr().String(); got != want {
		t.Errorf("accepted %s, want %s", got, want)
	}
	if err := conn.Close(); err != nil {
		t.Error(err)
	}
}
