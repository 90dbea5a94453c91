package main

import (
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/quittance/quittance/protocol"
	"github.com/quittance/quittance/protocol/hostclient"
	"github.com/quittance/quittance/protocol/tlog"
)

const testGeneration = protocol.ID("0123456789abcdef0123456789abcdef")

// agent serves a log of ten receipts, those below first only one by one and only
// where they are kept, as after a release.
type agent struct {
	t     *testing.T
	first int
	kept  []int
	asked func(index int) // before a receipt is served
}

func (a *agent) leaf(i int) []byte {
	return protocol.EncodeReceipt(testGeneration, protocol.Index(i), protocol.KindReleased, 0, 1, protocol.ReleasedBody{Except: []protocol.Number{}})
}

func (a *agent) serves(i int) bool { return i >= a.first || slices.Contains(a.kept, i) }

func (a *agent) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	path, asked := strings.CutPrefix(r.URL.Path, "/v1/"+string(testGeneration)+"/receipts")
	parts := strings.Split(path, "/")
	switch {
	case !asked:
		http.NotFound(w, r)
	case path == "":
		after := -1
		if text := r.URL.Query().Get("after"); text != "" {
			after = a.number(text)
		}
		if after+1 < a.first {
			a.pruned(w)
			return
		}
		w.Header().Set("Content-Type", protocol.ContentReceipts)
		for i := after + 1; i < 10; i++ {
			a.write(w, string(a.leaf(i))+"\n")
		}
	case len(parts) == 2:
		i := a.number(parts[1])
		if a.asked != nil {
			a.asked(i)
		}
		if !a.serves(i) {
			a.pruned(w)
			return
		}
		w.Header().Set("Content-Type", protocol.ContentReceipts)
		a.write(w, string(a.leaf(i))+"\n")
	default:
		i := a.number(parts[1])
		if !a.serves(i) {
			a.pruned(w)
			return
		}
		w.Header().Set("Content-Type", "text/plain; charset=utf-8")
		a.write(w, tlog.Proof{Index: protocol.Index(i), Checkpoint: fmt.Sprintf("the log when %d was asked for\n", i)}.Format())
	}
}

func (a *agent) number(text string) int {
	n, err := strconv.Atoi(text)
	if err != nil {
		a.t.Error(err)
	}
	return n
}

func (a *agent) write(w io.Writer, text string) {
	if _, err := io.WriteString(w, text); err != nil {
		a.t.Error(err)
	}
}

func (a *agent) pruned(w http.ResponseWriter) {
	problem := protocol.NewProblem(protocol.CodePruned, "released", "read on")
	first := protocol.Index(a.first)
	problem.FirstIndex = &first
	w.Header().Set("Content-Type", protocol.ContentProblem)
	w.WriteHeader(problem.Status)
	a.write(w, string(protocol.AppendCanonical(nil, problem)))
}

// outrun is a follower of the agent that has noted receipt 2.
func outrun(t *testing.T, a *agent) (f *follower, notes *[]string) {
	t.Helper()
	path := filepath.Join(t.TempDir(), "agent.sock")
	listener, err := net.Listen("unix", path)
	if err != nil {
		t.Fatal(err)
	}
	server := &httptest.Server{Listener: listener, Config: &http.Server{Handler: a}}
	server.Start()
	t.Cleanup(server.Close)
	notes = &[]string{}
	return &follower{
		generation: hostclient.New(path, hostclient.Options{}).In(testGeneration), last: 2,
		emit: func(note string) error {
			verb, rest, _ := strings.Cut(note, " ")
			if verb == "gap" {
				verb = note
			} else if strings.HasPrefix(rest, noJob) {
				verb += " " + noJob
			}
			*notes = append(*notes, verb)
			return nil
		},
	}, notes
}

// Who was outrun goes on with the first receipt that is served, notes its proof
// and those of what is kept, and then what follows; nothing is skipped in
// silence (I8).
func TestOutrun(t *testing.T) {
	f, notes := outrun(t, &agent{t: t, first: 6, kept: []int{4}})
	for range 2 {
		if err := f.page(t.Context(), 0); err != nil {
			t.Fatal(err)
		}
	}
	want := []string{"gap 6", "proved -", "proved -", "leaf", "leaf", "leaf", "leaf"}
	if !slices.Equal(*notes, want) || f.last != 9 || f.gaps != 1 {
		t.Errorf("notes %q, last %d, %d gaps; expected %q", *notes, f.last, f.gaps, want)
	}
}

// Where the history is released further while the follower catches up, nothing
// is noted of that try, and the next one goes further.
func TestOutrunAgain(t *testing.T) {
	a := &agent{t: t, first: 5}
	a.asked = func(index int) {
		if index == 5 {
			a.first = 8
		}
	}
	f, notes := outrun(t, a)
	if err := f.page(t.Context(), 0); !hostclient.IsCode(err, protocol.CodePruned) || len(*notes) != 0 || f.last != 2 {
		t.Fatalf("%v, notes %q, last %d", err, *notes, f.last)
	}
	if err := f.page(t.Context(), 0); err != nil {
		t.Fatal(err)
	}
	if want := []string{"gap 8", "proved -"}; !slices.Equal(*notes, want) || f.last != 7 {
		t.Errorf("notes %q, last %d; expected %q", *notes, f.last, want)
	}
}
