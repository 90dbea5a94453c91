package console

import (
	"bytes"
	"errors"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/hashicorp/go-hclog"

	"github.com/quittance/quittance/controller/api/operator"
	"github.com/quittance/quittance/controller/internal/attempt"
	"github.com/quittance/quittance/controller/internal/desk"
	"github.com/quittance/quittance/controller/internal/store"
	"github.com/quittance/quittance/protocol"
	"github.com/quittance/quittance/protocol/uds"
)

// records is a Store of one active and one archived record.
type records struct{ active, archived store.Entry }

func (r records) Active() []store.Entry { return []store.Entry{r.active} }
func (r records) Get(key string) (store.Entry, bool) {
	return r.active, key == r.active.Key
}
func (r records) History() []store.HistoryEntry {
	return []store.HistoryEntry{{Sequence: 1, Key: r.archived.Key}}
}
func (r records) Archived(store.HistoryEntry) (store.Entry, error) { return r.archived, nil }

func entry(t *testing.T, key string) store.Entry {
	t.Helper()
	pending, err := attempt.New(attempt.Origin{
		Scope: attempt.Scope{APIOrigin: "http://127.0.0.1:1", Provider: "node", Consumer: "c", Generation: "1"},
		Lane:  1, Key: key, Job: "job-1", Kind: "k.v1", MaxExecutions: 1, Start: []byte("{}"), Created: protocol.TimestampOf(time.Unix(1767323045, 0)),
		Input: attempt.Input{Schema: "text/plain", Length: 1, SHA256: protocol.DigestOf([]byte("x"))},
	})
	if err != nil {
		t.Fatal(err)
	}
	r, err := attempt.Step(pending, attempt.Admitted{Admission: attempt.Admission{Reference: "att-1", Reply: attempt.Reply{Status: 201, Body: []byte("{}")}}})
	if err != nil {
		t.Fatal(err)
	}
	return store.Entry{Key: key, Record: r}
}

// open serves a console on a real socket.
func open(t *testing.T) (*operator.Client, *Console, *int) {
	t.Helper()
	dir, err := os.MkdirTemp("", "qc")
	if err != nil {
		t.Fatal(err)
	}
	drains := 0
	c, err := Listen(filepath.Join(dir, "admin.sock"), Config{
		Store: records{entry(t, "att.1"), entry(t, "att.0")}, Desk: &desk.Desk{}, Drain: func() { drains++ }, Blocked: func() string { return "the host is draining" }, Log: hclog.NewNullLogger(),
	})
	if err != nil {
		t.Fatal(err)
	}
	done := make(chan error, 1)
	go func() { done <- c.Serve() }()
	t.Cleanup(func() {
		if err := errors.Join(c.Close(), <-done, os.RemoveAll(dir)); err != nil {
			t.Error(err)
		}
	})
	return operator.New(filepath.Join(dir, "admin.sock")), c, &drains
}

func code(err error) protocol.Code {
	if p, ok := errors.AsType[*protocol.Problem](err); ok {
		return p.Code
	}
	return ""
}

func TestOperatorsSeeAttempts(t *testing.T) {
	client, c, _ := open(t)
	place := c.Desk.Wait("att.1", desk.Waiting{Step: "publish", Reason: "lost", Offers: []desk.Offer{{Action: desk.Resume, Lost: "nothing"}}})
	defer place.Leave()
	list, err := client.List(t.Context())
	if err != nil || len(list.Attempts) != 1 || list.Blocked != "the host is draining" {
		t.Fatalf("%+v, %v", list, err)
	}
	a := list.Attempts[0]
	if a.Key != "att.1" || a.Reference != "att-1" || a.Lane != 1 || a.State != "acknowledged" || !a.HoldsLane || a.Archived {
		t.Fatalf("%+v", a)
	}
	if a.Waiting == nil || a.Waiting.Step != "publish" || len(a.Waiting.Offers) != 1 || a.Waiting.Offers[0].Lost != "nothing" {
		t.Fatalf("%+v", a.Waiting)
	}
	if old, err := client.Show(t.Context(), "att.0"); err != nil || !old.Archived || old.Waiting != nil {
		t.Fatalf("%+v, %v", old, err)
	}
	record, err := client.Record(t.Context(), "att.1")
	want, encodeErr := attempt.Encode(entry(t, "att.1").Record)
	if err != nil || encodeErr != nil || !bytes.Equal(record, want) {
		t.Fatalf("%s, %v, %v", record, err, encodeErr)
	}
	if _, err := client.Show(t.Context(), "att.9"); code(err) != protocol.CodeNotFound {
		t.Fatal(err)
	}
}

func TestOperatorsDecide(t *testing.T) {
	client, c, drains := open(t)
	if _, err := client.Resume(t.Context(), "att.1"); code(err) != operator.CodeNotWaiting {
		t.Fatal(err)
	}
	if _, err := client.Resume(t.Context(), "att.9"); code(err) != protocol.CodeNotFound {
		t.Fatal(err)
	}
	place := c.Desk.Wait("att.1", desk.Waiting{Offers: []desk.Offer{{Action: desk.Resolve}}})
	defer place.Leave()
	if _, err := client.Resume(t.Context(), "att.1"); code(err) != operator.CodeNotOffered {
		t.Fatal(err)
	}
	for _, want := range []error{desk.ErrOtherReference, nil} {
		go func() {
			r := <-place.Decisions()
			if r.UID != int64(os.Geteuid()) || r.Reference != "att-1" || r.Note != "looked" {
				t.Errorf("%+v", r.Decision)
			}
			r.Settle(want)
		}()
		answer, err := client.Resolve(t.Context(), "att.1", operator.Resolve{Reference: "att-1", Note: "looked"})
		if want == nil && (err != nil || answer.Action != "resolve") || want != nil && code(err) != operator.CodeOtherReference {
			t.Fatalf("%+v, %v", answer, err)
		}
	}
	if answer, err := client.Drain(t.Context()); err != nil || answer.Running != 1 || *drains != 1 {
		t.Fatalf("%+v, %v, %d drains", answer, err, *drains)
	}
}

// I34, and who may ask.
func TestRefusals(t *testing.T) {
	_, c, _ := open(t)
	ask := func(uid int, method, path, body string) (int, string) {
		r := httptest.NewRequestWithContext(uds.WithPeer(t.Context(), uds.Peer{UID: uid}), method, path, strings.NewReader(body))
		w := httptest.NewRecorder()
		c.handler().ServeHTTP(w, r)
		return w.Code, w.Body.String()
	}
	stranger := os.Geteuid() + 12345
	if status, _ := ask(stranger, http.MethodGet, "/v1/attempts", ""); status != http.StatusForbidden {
		t.Errorf("a stranger got %d", status)
	}
	for body, field := range map[string]string{
		`{"reference":"r"}`: "note", `{"reference":"r","note":"n","x":1}`: "x", `{"reference":"r","note":" "}`: "note", `{"reference":"r","note":"n"}{}`: "",
	} {
		if status, text := ask(0, http.MethodPost, "/v1/attempts/att.1/resolve", body); status != http.StatusBadRequest || !strings.Contains(text, field) {
			t.Errorf("%s: %d %s", body, status, text)
		}
	}
	if status, _ := ask(0, http.MethodGet, "/v1/else", ""); status != http.StatusNotFound {
		t.Errorf("another route: %d", status)
	}
}
