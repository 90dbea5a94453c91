package hostclient

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/quittance/quittance/protocol"
	"github.com/quittance/quittance/protocol/tlog"
	"github.com/quittance/quittance/protocol/uds"
)

const (
	gen   = protocol.ID("00112233445566778899aabbccddeeff")
	owner = protocol.ID("ffeeddccbbaa99887766554433221100")
	hash  = protocol.Digest("sha256:e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855")
)

func socketPath(t *testing.T) string {
	t.Helper()
	dir, err := os.MkdirTemp("", "hc")
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

// agent serves h on a real private socket.
func agent(t *testing.T, h http.HandlerFunc) string {
	t.Helper()
	path := socketPath(t)
	l, err := uds.Listen(path, uds.Options{})
	if err != nil {
		t.Fatal(err)
	}
	s := uds.NewServer(h, uds.Limits{})
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

// rawAgent answers every connection's first bytes with the text given, and
// closes it.
func rawAgent(t *testing.T, answer string) string {
	t.Helper()
	path := socketPath(t)
	l, err := uds.Listen(path, uds.Options{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { l.Close() })
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return // the test ended
			}
			if _, err := c.Read(make([]byte, 64<<10)); err == nil {
				if _, err := io.WriteString(c, answer); err != nil {
					t.Logf("answer: %v", err) // the client may be gone
				}
			}
			c.Close()
		}
	}()
	return path
}

func controller(path string) *Client {
	return New(path, Options{Owner: func() protocol.ID { return owner }})
}

const allocationJSON = `{"number":7,"state":"accepted","stuck":null,"owner":"ffeeddccbbaa99887766554433221100","purpose":"p","profile":"ocr","profile_digest":null,"limits":null,"devices":[],"container":null,"reason":null,"exit":null,"oom":null,"peaks":null,"read_at":null,"log_sink":null,"channels":0,"step":"","step_error":"","receipts":[]}`

// Every route: what is sent, written out, and what comes back.
func TestRoutes(t *testing.T) {
	effect := `{"disposition":"done","receipt":{"v":1},"leaf_hash":null,"allocation":` + allocationJSON + `}`
	var got string
	var status int
	var reply string
	path := agent(t, func(w http.ResponseWriter, r *http.Request) {
		body, err := io.ReadAll(r.Body)
		if err != nil {
			t.Error(err)
		}
		got = r.Method + " " + r.RequestURI
		if len(body) > 0 {
			got += " " + r.Header.Get("Content-Type") + " " + string(body)
		}
		if v := r.Header.Get(protocol.HeaderVersion); v != "1" {
			t.Errorf("version %q", v)
		}
		if o := r.Header.Get(protocol.HeaderOwner); o != string(owner) {
			t.Errorf("owner %q", o)
		}
		w.WriteHeader(status)
		if _, err := io.WriteString(w, reply); err != nil {
			t.Error(err)
		}
	})
	c := controller(path)
	g := c.In(gen)
	one := protocol.Index(41)
	leaf := protocol.EncodeReceipt(gen, 42, protocol.KindUnstuck, 7, 0, protocol.UnstuckBody{StuckMillis: 5})
	ctx := t.Context()
	show := func(v any, err error) string {
		if err != nil {
			return "error: " + err.Error()
		}
		return string(protocol.AppendCanonical(nil, v))
	}
	for _, tc := range []struct {
		call   func() string
		status int
		want   string
		reply  string
		result string
	}{
		{func() string { return show(c.Health(ctx)) }, 200, "GET /healthz", `{"status":"ok"}`, `{"status":"ok"}`},
		{func() string { return show(g.Profiles(ctx)) }, 200, "GET /v1/" + string(gen) + "/profiles", `{"profiles":[]}`, `[]`},
		{
			func() string {
				return show(g.Allocate(ctx, 7, protocol.AllocateRequest{Profile: "ocr", ProfileDigest: hash, Purpose: "p"}))
			},
			201, "PUT /v1/" + string(gen) + `/allocations/7 application/json {"profile":"ocr","profile_digest":"` + string(hash) + `","purpose":"p"}`, effect, effect,
		},
		{func() string { return show(g.Get(ctx, 7, "", 0)) }, 200, "GET /v1/" + string(gen) + "/allocations/7", allocationJSON, allocationJSON},
		{
			func() string { return show(g.Get(ctx, 7, protocol.StateRetired, 30*time.Second)) },
			200, "GET /v1/" + string(gen) + "/allocations/7?until=retired&wait=30s", allocationJSON, allocationJSON,
		},
		{func() string { return show(g.List(ctx, "")) }, 200, "GET /v1/" + string(gen) + "/allocations", `{"allocations":[` + allocationJSON + `]}`, `[` + allocationJSON + `]`},
		{func() string { return show(g.List(ctx, protocol.StateStarted)) }, 200, "GET /v1/" + string(gen) + "/allocations?state=started", `{"allocations":[]}`, `[]`},
		{
			func() string {
				return show(g.Retire(ctx, 7, protocol.RetireRequest{Purpose: "p", Note: "<n>"}, 1500*time.Millisecond))
			},
			202, "PUT /v1/" + string(gen) + `/allocations/7/retirement?wait=1.5s application/json {"purpose":"p","note":"<n>"}`, effect, effect,
		},
		{
			func() string { return show(g.Consume(ctx, 7, protocol.ConsumeRequest{Purpose: "p", LeafHash: hash})) },
			200, "PUT /v1/" + string(gen) + `/allocations/7/consumption application/json {"purpose":"p","leaf_hash":"` + string(hash) + `"}`, effect, effect,
		},
		{
			func() string {
				return show(g.Release(ctx, protocol.ReleaseRequest{Frontier: 9, Except: []protocol.Number{3}}))
			},
			200, "PUT /v1/" + string(gen) + `/release application/json {"frontier":9,"except":[3]}`,
			`{"disposition":"done","frontier":9,"carried":[3],"receipt":null}`, `{"disposition":"done","frontier":9,"carried":[3],"receipt":null}`,
		},
		{
			func() string { return show(g.Witness(ctx, protocol.WitnessRequest{})) },
			200, "PUT /v1/" + string(gen) + `/witness application/json {"checkpoint":null,"highest":null}`,
			`{"disposition":"done","checkpoint":"c","consistency":[]}`, `{"disposition":"done","checkpoint":"c","consistency":[]}`,
		},
		{
			func() string {
				leaves, err := g.Receipts(ctx, ReceiptsQuery{After: &one, Limit: 10, Wait: time.Second})
				if err != nil || len(leaves) != 1 || leaves[0].Hash != tlog.LeafHash(leaf) || leaves[0].Receipt.Index != 42 {
					return fmt.Sprint(leaves, err)
				}
				return string(leaves[0].Bytes)
			},
			200, "GET /v1/" + string(gen) + "/receipts?after=41&limit=10&wait=1s", string(leaf) + "\n", string(leaf),
		},
		{
			func() string {
				leaves, err := g.Receipts(ctx, ReceiptsQuery{})
				return fmt.Sprint(len(leaves), err)
			},
			200, "GET /v1/" + string(gen) + "/receipts?limit=1000", "", "0 <nil>",
		},
		{
			func() string {
				l, err := g.Receipt(ctx, 42)
				return fmt.Sprint(string(l.Bytes), l.Hash == tlog.LeafHash(leaf), err)
			},
			200, "GET /v1/" + string(gen) + "/receipts/42", string(leaf) + "\n", string(leaf) + "true <nil>",
		},
		{
			func() string { return fmt.Sprint(second(g.Receipt(ctx, 42))) },
			200, "GET /v1/" + string(gen) + "/receipts/42", "", "GET receipts/42: effect unknown: answer has no receipt",
		},
		{
			func() string { return fmt.Sprint(second(g.Receipt(ctx, 41))) },
			200, "GET /v1/" + string(gen) + "/receipts/41", string(leaf) + "\n", "GET receipts/41: effect unknown: receipt 42 follows where 41 is due",
		},
		{
			func() string {
				p, err := g.Proof(ctx, 5)
				return fmt.Sprint(p.Index, " ", p.Checkpoint, err)
			},
			200, "GET /v1/" + string(gen) + "/receipts/5/proof", "c2sp.org/tlog-proof@v1\nindex 5\n\nnote", "5 note<nil>",
		},
		{func() string { s, err := g.Checkpoint(ctx); return fmt.Sprint(s, err) }, 200, "GET /v1/" + string(gen) + "/checkpoint", "note", "note<nil>"},
		{
			func() string { return show(g.Consistency(ctx, 8)) },
			200, "GET /v1/" + string(gen) + "/consistency?from=8", `{"from":8,"checkpoint":"c","consistency":["x"]}`, `{"from":8,"checkpoint":"c","consistency":["x"]}`,
		},
		{
			func() string { return show(g.Log(ctx, 7)) }, 200, "GET /v1/" + string(gen) + "/allocations/7/log",
			`{"number":7,"head":"aGk=","tail":"","dropped_bytes":1,"total_bytes":3}`, `{"number":7,"head":"aGk=","tail":"","dropped_bytes":1,"total_bytes":3}`,
		},
		{
			func() string { return show(g.Drain(ctx)) }, 200, "PUT /v1/" + string(gen) + "/drain",
			`{"disposition":"done","draining":true,"active":2,"receipt":null}`, `{"disposition":"done","draining":true,"active":2,"receipt":null}`,
		},
		{
			func() string { return show(g.Undrain(ctx)) }, 200, "DELETE /v1/" + string(gen) + "/drain",
			`{"disposition":"done","draining":false,"active":2,"receipt":null}`, `{"disposition":"done","draining":false,"active":2,"receipt":null}`,
		},
		{
			func() string { return show(g.SetOwner(ctx, owner)) }, 200, "PUT /v1/" + string(gen) + `/owner application/json {"owner":"` + string(owner) + `"}`,
			`{"disposition":"done","owner":"` + string(owner) + `","receipt":null}`, `{"disposition":"done","owner":"` + string(owner) + `","receipt":null}`,
		},
	} {
		t.Run(tc.want, func(t *testing.T) {
			status, reply = tc.status, tc.reply
			result := tc.call()
			if got != tc.want {
				t.Errorf("\nsent %s\nwant %s", got, tc.want)
			}
			if result != tc.result {
				t.Errorf("\n got %s\nwant %s", result, tc.result)
			}
		})
	}
}

func TestOperatorSendsNoOwner(t *testing.T) {
	path := agent(t, func(w http.ResponseWriter, r *http.Request) {
		if _, ok := r.Header[protocol.HeaderOwner]; ok {
			t.Error("an operator's request carries an owner")
		}
		if _, err := io.WriteString(w, `{"status":"ok"}`); err != nil {
			t.Error(err)
		}
	})
	if _, err := New(path, Options{}).Health(t.Context()); err != nil {
		t.Error(err)
	}
}

// disposition sends one effect and says what the client knows of it.
func disposition(t *testing.T, c *Client) (protocol.Disposition, error) {
	t.Helper()
	_, err := c.In(gen).Allocate(t.Context(), 7, protocol.AllocateRequest{Profile: "ocr", ProfileDigest: hash, Purpose: "p"})
	if err == nil {
		t.Fatal("no error")
	}
	return DispositionOf(err), err
}

func problem(p *protocol.Problem) http.HandlerFunc {
	return func(w http.ResponseWriter, _ *http.Request) { uds.WriteProblem(w, p) }
}

func TestRefusalIsTheProblem(t *testing.T) { // I11
	p := protocol.NewProblem(protocol.CodeSequenceGap, "gap", "send 3")
	p.Expected = 3
	d, err := disposition(t, controller(agent(t, problem(p))))
	got, ok := errors.AsType[*protocol.Problem](err)
	if d != protocol.Refused || !ok || got.Expected != 3 || !IsCode(err, protocol.CodeSequenceGap) || IsCode(err, protocol.CodeReleased) {
		t.Errorf("%s %#v", d, err)
	}
}

// I11: a problem whose own disposition is unknown is never taken for a refusal.
func TestUnknownProblemIsLost(t *testing.T) {
	d, err := disposition(t, controller(agent(t, problem(protocol.NewProblem(protocol.CodeUnavailable, "stopping", "read")))))
	lost, ok := errors.AsType[*LostError](err)
	if d != protocol.Unknown || !ok || lost.Problem == nil || IsCode(err, protocol.CodeUnavailable) {
		t.Errorf("%s %#v", d, err)
	}
}

// Everything that is not a whole, strict, bounded answer leaves the effect
// unknown (I11, I33, I34).
func TestUnusableAnswersAreLost(t *testing.T) {
	ok := func(body string) string {
		return fmt.Sprintf("HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%s", len(body), body)
	}
	effect := `{"disposition":"done","receipt":null,"leaf_hash":null,"allocation":` + allocationJSON + `}`
	for name, answer := range map[string]string{
		"closed without an answer": "",
		"not HTTP":                 "hello\r\n\r\n",
		"broken off":               "HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\n{",
		"unknown member":           ok(strings.Replace(effect, `{"disposition"`, `{"new":1,"disposition"`, 1)),
		"duplicate member":         ok(strings.Replace(effect, `{"disposition"`, `{"disposition":"done","disposition"`, 1)),
		"trailing bytes":           ok(effect + "{}"),
		"wrong type":               ok(strings.Replace(effect, `"number":7`, `"number":"7"`, 1)),
		"empty":                    ok(""),
		"too long":                 ok(strings.Repeat(" ", protocol.MaxAnswerBytes+1)),
		"huge header":              "HTTP/1.1 200 OK\r\nX: " + strings.Repeat("x", 64<<10) + "\r\n\r\n",
		"redirect":                 "HTTP/1.1 307 Temporary Redirect\r\nLocation: http://elsewhere/\r\nContent-Length: 0\r\n\r\n",
		"error without problem":    "HTTP/1.1 409 Conflict\r\nContent-Length: 3\r\n\r\nno\n",
		"problem of another status": "HTTP/1.1 409 Conflict\r\nContent-Length: 114\r\n\r\n" +
			`{"type":"about:blank","title":"Gone","status":410,"code":"released","disposition":"refused","detail":"","next":""}`,
	} {
		t.Run(name, func(t *testing.T) {
			d, err := disposition(t, controller(rawAgent(t, answer)))
			if _, ok := errors.AsType[*LostError](err); d != protocol.Unknown || !ok {
				t.Errorf("%s %v", d, err)
			}
			if _, ok := errors.AsType[*protocol.Problem](err); ok {
				t.Error("taken for a refusal")
			}
			if want := map[string]string{"problem of another status": "with a problem of another status", "redirect": "status 307 without a problem", "too long": "answer is longer than 4194304 bytes"}[name]; !strings.Contains(err.Error(), want) {
				t.Errorf("got %v, want %q", err, want)
			}
		})
	}
}

func TestNothingSent(t *testing.T) {
	path := socketPath(t)
	d, err := disposition(t, controller(path))
	if _, ok := errors.AsType[*UnreachableError](err); d != protocol.Refused || !ok || !errors.Is(err, os.ErrNotExist) {
		t.Errorf("no socket: %s %v", d, err)
	}
	_, err = controller(path).In(gen).Channel(t.Context(), 7, "p")
	if _, ok := errors.AsType[*UnreachableError](err); !ok {
		t.Errorf("channel without socket: %v", err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	_, err = controller(path).Host(ctx)
	if _, ok := errors.AsType[*UnreachableError](err); !ok || !errors.Is(err, context.Canceled) {
		t.Errorf("cancelled before: %v", err)
	}
}

// Our own malformed requests are refused here, with the field and not the value.
func TestMalformedRequestsAreNotSent(t *testing.T) {
	path := agent(t, func(http.ResponseWriter, *http.Request) { t.Error("it was sent") })
	g := controller(path).In(gen)
	ctx := t.Context()
	for want, err := range map[string]error{
		"PUT allocations/7: /purpose: must be 1 to 128 characters of A-Z a-z 0-9 . _ : -":          second(g.Allocate(ctx, 7, protocol.AllocateRequest{Profile: "ocr", ProfileDigest: hash, Purpose: "a b"})),
		"PUT allocations/7/retirement: /note: is longer than 512 bytes":                            second(g.Retire(ctx, 7, protocol.RetireRequest{Purpose: "p", Note: strings.Repeat("x", 513)}, 0)),
		"GET allocations/7: wait: must be from 0 to 60 s":                                          second(g.Get(ctx, 7, "", time.Hour)),
		"GET receipts: wait: must be from 0 to 60 s":                                               second(g.Receipts(ctx, ReceiptsQuery{Wait: -1})),
		"GET receipts: limit: must be from 1 to 1000":                                              second(g.Receipts(ctx, ReceiptsQuery{Limit: 1001})),
		"POST allocations/7/channel: /purpose: must be 1 to 128 characters of A-Z a-z 0-9 . _ : -": second(g.Channel(ctx, 7, "")),
	} {
		if err == nil || err.Error() != want || DispositionOf(err) != protocol.Refused {
			t.Errorf("got %v (%s), want %s", err, DispositionOf(err), want)
		}
	}
}

func second[T any](_ T, err error) error { return err }

// A dead agent behind a socket unit accepts and says nothing.
func TestFirstByteDeadline(t *testing.T) {
	path := socketPath(t)
	l, err := net.Listen("unix", path) // nobody accepts
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	c := New(path, Options{FirstByte: 50 * time.Millisecond})
	d, err := disposition(t, c)
	if d != protocol.Unknown || !errors.Is(err, errFirstByte) {
		t.Errorf("%s %v", d, err)
	}
	_, err = c.In(gen).Channel(t.Context(), 7, "p")
	if DispositionOf(err) != protocol.Unknown || !errors.Is(err, errFirstByte) {
		t.Errorf("channel: %v", err)
	}
}

// The wait that a request asks for is not taken for silence.
func TestLongPollExtendsTheDeadline(t *testing.T) {
	path := agent(t, func(w http.ResponseWriter, r *http.Request) {
		timer := time.NewTimer(150 * time.Millisecond)
		defer timer.Stop()
		select {
		case <-timer.C:
		case <-r.Context().Done():
			t.Error("the client gave up")
		}
		if _, err := io.WriteString(w, allocationJSON); err != nil {
			t.Error(err)
		}
	})
	c := New(path, Options{FirstByte: 50 * time.Millisecond})
	if _, err := c.In(gen).Get(t.Context(), 7, protocol.StateExited, 10*time.Second); err != nil {
		t.Error(err)
	}
}

func TestBodyDeadline(t *testing.T) {
	path := agent(t, func(w http.ResponseWriter, r *http.Request) {
		w.WriteHeader(200)
		if err := http.NewResponseController(w).Flush(); err != nil {
			t.Error(err)
		}
		<-r.Context().Done()
	})
	_, err := New(path, Options{Body: 50 * time.Millisecond}).Host(t.Context())
	if !errors.Is(err, errBody) || DispositionOf(err) != protocol.Unknown {
		t.Errorf("got %v", err)
	}
}

// I13: a cancelled wait says nothing of the effect.
func TestCancelledAfterSendingIsLost(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	path := agent(t, func(w http.ResponseWriter, r *http.Request) { cancel(); <-r.Context().Done() })
	_, err := controller(path).In(gen).Consume(ctx, 7, protocol.ConsumeRequest{Purpose: "p", LeafHash: hash})
	if DispositionOf(err) != protocol.Unknown || !errors.Is(err, context.Canceled) {
		t.Errorf("got %v", err)
	}
}

// I8: never a silent gap; I33: every receipt and every page bounded.
func TestReceiptsAreContiguousAndBounded(t *testing.T) {
	leaf := func(g protocol.ID, i protocol.Index) string {
		return string(protocol.EncodeReceipt(g, i, protocol.KindUnstuck, 7, 0, protocol.UnstuckBody{})) + "\n"
	}
	for name, tc := range map[string]struct{ body, want string }{
		"gap":              {leaf(gen, 5) + leaf(gen, 7), "receipt 7 follows where 6 is due"},
		"late first":       {leaf(gen, 6), "receipt 6 follows where 5 is due"},
		"repeated":         {leaf(gen, 5) + leaf(gen, 5), "receipt 5 follows where 6 is due"},
		"other generation": {leaf(owner, 5), "receipt 5 is of another generation"},
		"too many":         {leaf(gen, 5) + leaf(gen, 6) + leaf(gen, 7) + leaf(gen, 8), "answer has more than 3 receipts"},
		"broken off":       {strings.TrimSuffix(leaf(gen, 5), "\n"), "last receipt broke off"},
		"too long":         {strings.Repeat("x", protocol.MaxReceiptBytes+1) + "\n", "receipt is longer than 16384 bytes"},
		"empty line":       {leaf(gen, 5) + "\n", "malformed receipt: is empty"},
		"re-encoded":       {strings.Replace(leaf(gen, 5), `,"`, `, "`, 1), "malformed receipt: is not in canonical form"},
	} {
		t.Run(name, func(t *testing.T) {
			path := agent(t, func(w http.ResponseWriter, _ *http.Request) {
				if _, err := io.WriteString(w, tc.body); err != nil {
					t.Logf("write: %v", err) // the client may have refused already
				}
			})
			after := protocol.Index(4)
			_, err := controller(path).In(gen).Receipts(t.Context(), ReceiptsQuery{After: &after, Limit: 3})
			if err == nil || !strings.Contains(err.Error(), tc.want) {
				t.Errorf("got %v, want %q", err, tc.want)
			}
		})
	}
	path := agent(t, func(w http.ResponseWriter, _ *http.Request) {
		if _, err := io.WriteString(w, leaf(gen, 9)+leaf(gen, 10)); err != nil {
			t.Error(err)
		}
	})
	leaves, err := controller(path).In(gen).Receipts(t.Context(), ReceiptsQuery{})
	if err != nil || len(leaves) != 2 || leaves[0].Receipt.Index != 9 {
		t.Errorf("from the first that can be served: %v %v", leaves, err)
	}
}

func TestProofOfAnotherReceiptIsLost(t *testing.T) {
	path := agent(t, func(w http.ResponseWriter, _ *http.Request) {
		if _, err := io.WriteString(w, "c2sp.org/tlog-proof@v1\nindex 6\n\nnote"); err != nil {
			t.Error(err)
		}
	})
	if _, err := controller(path).In(gen).Proof(t.Context(), 5); DispositionOf(err) != protocol.Unknown {
		t.Errorf("got %v", err)
	}
}

func TestChannel(t *testing.T) {
	worker, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer worker.Close()
	path := agent(t, func(w http.ResponseWriter, r *http.Request) {
		body, err := io.ReadAll(r.Body)
		if got := r.Method + " " + r.RequestURI + " " + string(body); err != nil || got != "POST /v1/"+string(gen)+`/allocations/7/channel {"purpose":"p"}` {
			t.Errorf("sent %s %v", got, err)
		}
		if r.Header.Get(protocol.HeaderOwner) != string(owner) || r.Header.Get(protocol.HeaderVersion) != "1" {
			t.Errorf("headers %v", r.Header)
		}
		c, err := net.Dial("tcp", worker.Addr().String())
		if err != nil {
			t.Error(err)
			return
		}
		if err := uds.Handover(w, r, c.(*net.TCPConn)); err != nil {
			t.Error(err)
		}
		if err := c.Close(); err != nil {
			t.Error(err)
		}
	})
	c, err := controller(path).In(gen).Channel(t.Context(), 7, "p")
	if err != nil {
		t.Fatal(err)
	}
	if c.RemoteAddr().String() != worker.Addr().String() {
		t.Errorf("connected to %s", c.RemoteAddr())
	}
	if err := c.Close(); err != nil {
		t.Error(err)
	}

	refusing := agent(t, problem(protocol.NewProblem(protocol.CodeRetiring, "r", "n")))
	if _, err := controller(refusing).In(gen).Channel(t.Context(), 7, "p"); !IsCode(err, protocol.CodeRetiring) {
		t.Errorf("refused: %v", err)
	}
	if _, err := controller(rawAgent(t, "")).In(gen).Channel(t.Context(), 7, "p"); DispositionOf(err) != protocol.Unknown {
		t.Errorf("lost: %v", err)
	}
}

func TestDispositionOfForeignErrors(t *testing.T) {
	if got := DispositionOf(nil); got != protocol.Done {
		t.Errorf("nil: %s", got)
	}
	if got := DispositionOf(errors.New("anything")); got != protocol.Unknown {
		t.Errorf("foreign: %s", got)
	}
}
