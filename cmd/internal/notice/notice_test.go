package notice

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/coreos/go-systemd/v22/journal"
	"github.com/hashicorp/go-hclog"
)

// patience bounds every wait for a real condition.
const patience = 60 * time.Second

// within fails the test unless f returns in time.
func within(t *testing.T, what string, f func()) {
	t.Helper()
	done := make(chan struct{})
	go func() {
		defer close(done)
		f()
	}()
	select {
	case <-done:
	case <-time.After(patience):
		t.Fatalf("%s: still waiting", what)
	}
}

// closed closes the log and waits for its last line, however slow the machine.
func closed(t *testing.T, log *Log) {
	t.Helper()
	log.Close()
	within(t, "the queue's goroutine", func() { <-log.queue.over })
}

// Nobody reads a full pipe: every writer goes on all the same, and once somebody
// reads, the lines that were kept come whole and in order, followed by the count
// of those that were not.
func TestBlockedPipeBlocksNobody(t *testing.T) {
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	log := Open(Options{Name: "x", Level: "info", Format: JSON, Output: w})
	const total = 20_000 // with its filler more than pipe and queue hold
	filler := strings.Repeat("f", 400)
	within(t, "logging into a pipe that nobody reads", func() {
		for i := range total {
			log.Info("event", "i", i, "filler", filler)
		}
	})
	written := make(chan error, 1)
	go func() { // reading lets the queue's goroutine go on
		log.Close()
		<-log.queue.over
		written <- w.Close()
	}()
	next, dropped := 0, 0
	lines := bufio.NewScanner(r)
	for lines.Scan() {
		var line struct {
			Message string `json:"@message"`
			I       int    `json:"i"`
			Lines   int    `json:"lines"`
		}
		if err := json.Unmarshal(lines.Bytes(), &line); err != nil {
			t.Fatalf("line %q: %v", lines.Text(), err)
		}
		switch line.Message {
		case "event":
			if dropped == 0 && line.I != next {
				t.Fatalf("line %d follows line %d", line.I, next-1)
			}
			next++
		case "log_lines_dropped":
			dropped += line.Lines
		default:
			t.Fatalf("line %q", lines.Text())
		}
	}
	if err := errors.Join(lines.Err(), <-written, r.Close()); err != nil {
		t.Fatal(err)
	}
	if dropped == 0 || next == 0 || next+dropped != total {
		t.Errorf("%d lines came and %d are said to be dropped, of %d", next, dropped, total)
	}
}

// gated lets nothing be written before it is opened.
type gated struct {
	open chan struct{}
	strings.Builder
}

// Write implements [io.Writer].
func (g *gated) Write(p []byte) (int, error) {
	<-g.open
	return g.Builder.Write(p)
}

// I33: what was dropped is told at every level that a log may have.
func TestDroppedLinesAreToldAtEveryLevel(t *testing.T) {
	for _, level := range []string{"trace", "debug", "info", "warn", "error"} {
		out := &gated{open: make(chan struct{})}
		log := Open(Options{Name: "x", Level: level, Format: Text, Output: out})
		for range maxLines + 2 { // one may be on its way already
			log.Error("event")
		}
		close(out.open)
		closed(t, log)
		if got := strings.Count(out.String(), "log_lines_dropped"); got != 1 {
			t.Errorf("level %s: %d lines tell of dropped ones", level, got)
		}
	}
}

// A process ends although nobody takes its last lines.
func TestCloseGivesUp(t *testing.T) {
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	log := Open(Options{Name: "x", Level: "info", Format: Text, Output: w})
	for range 1000 {
		log.Info("event", "filler", strings.Repeat("f", 400))
	}
	within(t, "closing a log that nobody reads", log.Close)
	// The goroutine ends once its write does.
	if err := r.Close(); err != nil {
		t.Fatal(err)
	}
	within(t, "the queue's goroutine", func() { <-log.queue.over })
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
}

// Everything that was logged before Close is written, and nothing is said to be
// dropped.
func TestCloseFlushes(t *testing.T) {
	var out strings.Builder
	log := Open(Options{Name: "x", Level: "info", Format: Text, Output: &out})
	for i := range 100 {
		log.Named("part").Info("event", "i", i)
	}
	log.Debug("not this level")
	closed(t, log)
	if got := strings.Count(out.String(), "x.part: event: i="); got != 100 || strings.Contains(out.String(), "dropped") || strings.Contains(out.String(), "not this") {
		t.Errorf("%d lines:\n%s", got, out.String())
	}
}

type sent struct {
	message  string
	priority journal.Priority
	fields   map[string]string
}

// Native fields: the event, the part that speaks, and every key by its own name.
func TestJournalFields(t *testing.T) {
	var got []sent
	log := Open(Options{Name: "hostagent", Level: "info", Format: Journal, Output: io.Discard,
		send: func(m string, p journal.Priority, f map[string]string) error {
			got = append(got, sent{m, p, f})
			return nil
		}})
	log.Named("worker").With("number", int64(7)).Warn("step_failed", "step-name", "kill", "error", errors.New("no such thing"))
	log.Debug("below the level")
	if named := log.Named("jobs"); named.GetLevel() != hclog.Info || named.IsDebug() || !named.IsInfo() {
		t.Errorf("the logger says that its level is %s", named.GetLevel())
	}
	closed(t, log)
	if len(got) != 1 {
		t.Fatalf("%d entries: %+v", len(got), got)
	}
	want := map[string]string{
		"SYSLOG_IDENTIFIER": "hostagent", "QUITTANCE_EVENT": "step_failed", "QUITTANCE_LOGGER": "worker", "QUITTANCE_NUMBER": "7",
		"QUITTANCE_STEP_NAME": "kill", "QUITTANCE_ERROR": "no such thing",
	}
	if g := got[0]; g.priority != journal.PriWarning || !maps.Equal(g.fields, want) ||
		g.message != `worker: step_failed number=7 step-name=kill error="no such thing"` {
		t.Errorf("got %+v", g)
	}
}

// A journal that does not accept blocks nobody either; what was dropped is told
// when it does.
func TestJournalThatDoesNotAccept(t *testing.T) {
	gate := make(chan struct{})
	events, dropped := 0, 0
	log := Open(Options{Name: "x", Level: "info", Format: Journal, Output: io.Discard,
		send: func(_ string, _ journal.Priority, f map[string]string) error {
			<-gate
			if f["QUITTANCE_EVENT"] == "event" {
				events++
				return nil
			}
			var n int
			if _, err := fmt.Sscan(f["QUITTANCE_LINES"], &n); err != nil {
				return err
			}
			dropped += n
			return nil
		}})
	const total = maxLines + 500
	within(t, "logging to a journal that does not accept", func() {
		for i := range total {
			log.Info("event", "i", i)
		}
	})
	close(gate)
	within(t, "the queue's goroutine", func() {
		log.Close()
		<-log.queue.over
	})
	if dropped == 0 || events+dropped != total {
		t.Errorf("%d entries came and %d are said to be dropped, of %d", events, dropped, total)
	}
}

// Where the journal is gone, standard error is told instead.
func TestJournalThatFails(t *testing.T) {
	var out strings.Builder
	log := Open(Options{Name: "x", Level: "info", Format: Journal, Output: &out,
		send: func(string, journal.Priority, map[string]string) error { return errors.New("no journal") }})
	log.Error("event", "key", "value")
	closed(t, log)
	if got := out.String(); got != "<3>event key=value\n" {
		t.Errorf("got %q", got)
	}
}

func TestFieldName(t *testing.T) {
	for key, want := range map[string]string{
		"lease_ms": "QUITTANCE_LEASE_MS", "a.b-c ü": "QUITTANCE_A_B_C__", strings.Repeat("k", 99): "QUITTANCE_" + strings.Repeat("K", 54),
	} {
		if got := fieldName(key); got != want {
			t.Errorf("%s: %s, want %s", key, got, want)
		}
	}
}
