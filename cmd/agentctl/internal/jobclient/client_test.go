package jobclient

import (
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/quittance/quittance/controller/api"
)

const token = "qt-secret"

// client speaks to a real HTTP server that answers with h.
func client(t *testing.T, h http.HandlerFunc) *Client {
	t.Helper()
	server := httptest.NewServer(h)
	t.Cleanup(server.Close)
	c, err := New(server.URL, token)
	if err != nil {
		t.Fatal(err)
	}
	return c
}

func send(t *testing.T, w http.ResponseWriter, status int, body string) {
	t.Helper()
	w.WriteHeader(status)
	if _, err := io.WriteString(w, body); err != nil {
		t.Error(err)
	}
}

const aJob = "job-00000000000000000000000000000001"

// Every way in which an answer can fail has its class: refused, unreachable or
// lost (I11), and nothing that is too long or malformed is believed (I33, I34).
func TestAnswers(t *testing.T) {
	refusal := string(api.Encode(api.NewProblem(api.CodeNotFound, "no such job", "list them")))
	for name, c := range map[string]struct {
		answer func(w http.ResponseWriter)
		lost   string // "": not lost
		code   api.Code
	}{
		"refusal":               {func(w http.ResponseWriter) { send(t, w, 404, refusal) }, "", api.CodeNotFound},
		"refusal, other status": {func(w http.ResponseWriter) { send(t, w, 500, refusal) }, "status 500 without a problem", ""},
		"a proxy's page":        {func(w http.ResponseWriter) { send(t, w, 502, "<html>") }, "status 502 without a problem", ""},
		"redirect": {func(w http.ResponseWriter) {
			w.Header().Set("Location", "http://127.0.0.1:1/elsewhere")
			send(t, w, 307, "")
		}, "status 307 without a problem", ""},
		"broken off": {func(http.ResponseWriter) { panic(http.ErrAbortHandler) }, "no whole answer", ""},
		"cut": {func(w http.ResponseWriter) {
			w.Header().Set("Content-Length", "100")
			send(t, w, 200, "{")
			panic(http.ErrAbortHandler)
		}, "no whole answer", ""},
		"not JSON":       {func(w http.ResponseWriter) { send(t, w, 200, "hello") }, "malformed answer", ""},
		"missing member": {func(w http.ResponseWriter) { send(t, w, 200, `{"job":"x"}`) }, "malformed answer", ""},
		"unknown member": {func(w http.ResponseWriter) { send(t, w, 200, `{"job":"`+aJob+`","text":"","evidence":[],"more":1}`) }, "malformed answer", ""},
		"too long":       {func(w http.ResponseWriter) { send(t, w, 200, strings.Repeat(" ", int(api.RouteWhy.MaxResponse)+1)) }, "longer than 65536 bytes", ""},
	} {
		t.Run(name, func(t *testing.T) {
			got, err := client(t, func(w http.ResponseWriter, _ *http.Request) { c.answer(w) }).Why(t.Context(), aJob)
			lost, isLost := errors.AsType[*LostError](err)
			problem, isProblem := errors.AsType[*api.Problem](err)
			switch {
			case c.lost != "" && (!isLost || !strings.Contains(lost.Error(), c.lost)):
				t.Errorf("%v", err)
			case c.lost == "" && (!isProblem || problem.Code != c.code):
				t.Errorf("%v", err)
			}
			if got.Job != "" || strings.Contains(err.Error(), token) {
				t.Errorf("%+v, %v", got, err)
			}
		})
	}
}

func TestUnreachable(t *testing.T) {
	c, err := New("http://127.0.0.1:1", token)
	if err != nil {
		t.Fatal(err)
	}
	_, err = c.Why(t.Context(), aJob)
	if _, ok := errors.AsType[*UnreachableError](err); !ok || strings.Contains(err.Error(), token) {
		t.Errorf("%v", err)
	}
}

// A lost answer to an idempotent effect is asked for again with the same key
// and bytes, at most three times (I12); a refusal is not.
func TestEffectsAreRepeatedAlike(t *testing.T) {
	var calls atomic.Int64
	var first string
	c := client(t, func(w http.ResponseWriter, r *http.Request) {
		body, err := io.ReadAll(r.Body)
		if err != nil {
			t.Error(err)
		}
		seen := r.Header.Get(api.HeaderIdempotencyKey) + string(body)
		if calls.Add(1) == 1 {
			first = seen
		} else if seen != first {
			t.Errorf("repeated as %q, first %q", seen, first)
		}
		panic(http.ErrAbortHandler)
	})
	_, err := c.Create(t.Context(), "my-operation", api.CreateJob{Kind: "langid.text.v1"})
	if _, ok := errors.AsType[*LostError](err); !ok || calls.Load() != effectTries {
		t.Errorf("%d calls, %v", calls.Load(), err)
	}
	calls.Store(0)
	c = client(t, func(w http.ResponseWriter, _ *http.Request) {
		calls.Add(1)
		send(t, w, 409, string(api.Encode(api.NewProblem(api.CodeNotRetryable, "", ""))))
	})
	if _, err := c.Retry(t.Context(), "my-operation", aJob); err == nil || calls.Load() != 1 {
		t.Errorf("%d calls, %v", calls.Load(), err)
	}
}

// A result whose bytes do not have the announced digest is not believed.
func TestResultDigest(t *testing.T) {
	for digest, good := range map[string]bool{
		"sha-256=:LPJNul+wow4m6DsqxbninhsWHlwfp0JecwQzYpOLmCQ=:": true, // of "hello"
		"sha-256=:AAAAul+wow4m6DsqxbninhsWHlwfp0JecwQzYpOLmCQ=:": false,
		"": false,
	} {
		c := client(t, func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set(api.HeaderContentDigest, digest)
			w.Header().Set(api.HeaderSchema, "text/plain")
			send(t, w, 200, "hello")
		})
		got, err := c.Result(t.Context(), aJob)
		if (err == nil) != good || (good && (string(got.Bytes) != "hello" || got.Schema != "text/plain")) {
			t.Errorf("%q: %+v, %v", digest, got, err)
		}
	}
}

// What is sent: version, token, escaped path, and no content headers without a
// body.
func TestRequests(t *testing.T) {
	c := client(t, func(w http.ResponseWriter, r *http.Request) {
		if r.Header.Get(api.HeaderVersion) != "1" || r.Header.Get("Authorization") != "Bearer "+token {
			t.Errorf("headers %v", r.Header)
		}
		if r.Header.Get("Content-Type") != "" || r.ContentLength != 0 {
			t.Errorf("content headers without a body: %v", r.Header)
		}
		if r.URL.EscapedPath() != "/v1/jobs/a%2F..%3Fb" || r.URL.RawQuery != "after=7&wait=2s" {
			t.Errorf("%s?%s", r.URL.EscapedPath(), r.URL.RawQuery)
		}
		send(t, w, 404, string(api.Encode(api.NewProblem(api.CodeNotFound, "", ""))))
	})
	if _, err := c.Job(t.Context(), "a/..?b", 7, 2*time.Second); err == nil {
		t.Error("answered")
	}
}

func TestNewRefuses(t *testing.T) {
	for _, base := range []string{"", "127.0.0.1:8470", "ftp://x", "http://", "http://x/path", "http://x?q=1", "http://user@x", "http://x\n"} {
		if _, err := New(base, token); err == nil {
			t.Errorf("URL %q accepted", base)
		}
	}
	for _, bad := range []string{"", "two words", "line\n", "ümlaut"} {
		if _, err := New("http://x", bad); err == nil || (bad != "" && strings.Contains(err.Error(), bad)) {
			t.Errorf("token %q: %v", bad, err)
		}
	}
}
