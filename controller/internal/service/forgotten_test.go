package service

import (
	"bytes"
	"context"
	"errors"
	"maps"
	"slices"
	"strings"
	"testing"

	"github.com/hashicorp/go-hclog"

	"github.com/quittance/quittance/controller/api"
	"github.com/quittance/quittance/controller/internal/attempt"
	"github.com/quittance/quittance/controller/internal/breaker"
	"github.com/quittance/quittance/controller/internal/provider"
	"github.com/quittance/quittance/controller/internal/store"
	"github.com/quittance/quittance/protocol"
)

// remembering is a store with records of earlier attempts.
type remembering struct {
	*store.Store
	active, archived []store.Entry
}

func (r *remembering) Active() []store.Entry { return r.active }

func (r *remembering) History() (all []store.HistoryEntry) {
	for i, e := range r.archived {
		all = append(all, store.HistoryEntry{Sequence: int64(i + 1), Key: e.Key})
	}
	return all
}

func (r *remembering) Archived(h store.HistoryEntry) (store.Entry, error) {
	return r.archived[h.Sequence-1], nil
}

// I27: a job that the service offers although this store holds an attempt at it
// that the service lost is passed over, told of once, and the reason where there
// is no other. A job that was retried, or whose attempt never ran, is taken.
func TestForgottenJobIsNotTaken(t *testing.T) {
	lost := job(1, 5)
	origin := attempt.Origin{Job: lost.Job, Lane: 1}
	admission := attempt.Admission{Reference: "att-1"}
	at := protocol.Timestamp(1)
	ran, idle := []attempt.Execution{{Number: 1, Entered: &at}}, []attempt.Execution{{Number: 1}}
	completed := attempt.Outcome{Operation: attempt.OperationComplete}
	failed := attempt.Outcome{Operation: attempt.OperationFail}
	gone := error(&provider.Failure{Class: provider.ClassRefused, Code: api.CodeNotFound})
	away := error(&provider.Failure{Class: provider.ClassLost, Repeat: true})
	for name, row := range map[string]struct {
		record attempt.Record
		shown  error // why the service does not show the attempt
		passed bool
		person bool   // needs one, where it is the only job
		reason string // "" where it is taken
	}{
		"its result was confirmed":           {attempt.TerminalConfirmed{Origin: origin, Admission: admission, Executions: ran, Outcome: completed}, nil, true, true, "has a confirmed result"},
		"its result was confirmed, and lost": {attempt.TerminalConfirmed{Origin: origin, Admission: admission, Executions: ran, Outcome: completed}, gone, true, true, "has a confirmed result"},
		"it ran, and the service lost it":    {attempt.TerminalConfirmed{Origin: origin, Admission: admission, Executions: ran, Outcome: failed}, gone, true, true, "was executed"},
		"it ran and nothing was sent":        {attempt.Ended{Origin: origin, Admission: &admission, Executions: ran, Reason: attempt.EndNotVisible}, gone, true, true, "was executed"},
		"its outcome found nobody":           {attempt.TerminalHeld{Origin: origin, Admission: admission, Executions: ran, Outcome: completed, Reason: attempt.HoldNotVisible}, gone, true, true, "was executed"},
		"it ran, failed and was retried":     {attempt.TerminalConfirmed{Origin: origin, Admission: admission, Executions: ran, Outcome: failed}, nil, false, false, ""},
		"it never ran":                       {attempt.Ended{Origin: origin, Admission: &admission, Executions: idle, Reason: attempt.EndNotVisible}, gone, false, false, ""},
		"it never was admitted":              {attempt.Ended{Origin: origin, Reason: attempt.EndStartRefused}, gone, false, false, ""},
		"nobody knows yet":                   {attempt.TerminalConfirmed{Origin: origin, Admission: admission, Executions: ran, Outcome: failed}, away, true, false, "cannot be read"},
	} {
		for _, archived := range []bool{false, true} {
			if !archived && attempt.Archivable(row.record) {
				continue // maintenance comes first
			}
			s, w, records := newService(t)
			var log bytes.Buffer
			s.Log = hclog.New(&hclog.LoggerOptions{Output: &log})
			earlier := store.Entry{Key: attempt.KeyPrefix(lost.Job) + "a", Record: row.record}
			kept := &remembering{Store: records}
			if kept.active = []store.Entry{earlier}; archived {
				kept.active, kept.archived = nil, kept.active
			}
			s.Store = kept
			w.feeds, w.attempts = map[string][]api.FeedJob{"k": {lost}, "l": {}}, map[string]error{admission.Reference: row.shown}
			for range 2 {
				selection, err := s.admit(t.Context(), 0)
				if !row.passed {
					if err != nil || selection.Job.Job != lost.Job {
						t.Fatalf("%s: %+v, %v", name, selection.Job, err)
					}
					selection.Release(breaker.Neutral)
					continue
				}
				b, ok := errors.AsType[*blocked](err)
				if !ok || b.person != row.person || !strings.Contains(b.reason, lost.Job) || !strings.Contains(b.reason, row.reason) {
					t.Fatalf("%s: %v", name, err)
				}
			}
			if told := strings.Count(log.String(), "the service lost an attempt at it"); told != 1 && row.person || told != 0 && !row.person {
				t.Errorf("%s: told %d times", name, told)
			}
			if !row.person {
				continue
			}
			// Others go on, on a later page too.
			w.feeds["k+"] = []api.FeedJob{job(2, 6)}
			if selection, err := s.admit(t.Context(), 0); err != nil || selection.Job.Job != job(2, 6).Job {
				t.Errorf("%s: %+v, %v", name, selection.Job, err)
			}
		}
	}
}

// Jobs without an earlier attempt cost no exchange.
func TestFirstAttemptReadsNothing(t *testing.T) {
	s, w, _ := newService(t)
	if selection, err := s.admit(t.Context(), 0); err != nil || selection.Offering == nil {
		t.Fatalf("%+v, %v", selection, err)
	}
	if slices.ContainsFunc(w.calls, func(c string) bool { return strings.HasPrefix(c, "read ") }) {
		t.Errorf("calls %q", w.calls)
	}
}

// I26, I27: of an attempt that the service shows in progress and that is over
// here, a confirmed outcome is sent again, the same bytes. One that cannot be ended
// so keeps its place there: it is told of once, and where no place is left nothing
// is sent that would be refused.
func TestServiceLostTheEnd(t *testing.T) {
	s, w, records := newService(t)
	var log bytes.Buffer
	s.Log = hclog.New(&hclog.LoggerOptions{Output: &log})
	confirmed := attempt.TerminalConfirmed{Outcome: attempt.Outcome{Operation: attempt.OperationFail, Body: []byte("exact")}}
	s.Store = &known{remembering{Store: records, archived: []store.Entry{
		{Key: "ended", Record: attempt.Ended{Reason: attempt.EndOperator}}, {Key: "confirmed", Record: confirmed}, {Key: "refused", Record: confirmed}, {Key: "away", Record: confirmed},
	}}}
	var sent []string
	s.Repeat = func(_ context.Context, key string, record attempt.TerminalConfirmed) error {
		sent = append(sent, key+" "+string(record.Outcome.Body))
		switch key {
		case "refused":
			return errors.New("complete: refused (none)")
		case "away":
			return &provider.Failure{Class: provider.ClassLost, Repeat: true}
		}
		w.inventory = slices.DeleteFunc(w.inventory, func(page []api.Attempt) bool { return page[0].Key == key })
		return nil
	}
	shown := func(keys ...string) {
		w.inventory = nil
		for _, key := range keys {
			w.inventory = append(w.inventory, []api.Attempt{{Attempt: "att-" + key, Key: key, Job: "job-" + key}})
		}
	}
	taken := func() {
		t.Helper()
		selection, err := s.admit(t.Context(), 0)
		if err != nil || selection.Offering == nil {
			t.Fatalf("%+v, %v", selection, err)
		}
		selection.Release(breaker.Neutral)
	}
	shown("ended", "confirmed") // two lanes: the confirmed one gives its place back
	taken()
	taken()
	if told := strings.Count(log.String(), "in progress that is over"); told != 1 || !slices.Equal(sent, []string{"confirmed exact"}) {
		t.Errorf("told %d times, sent %q", told, sent)
	}
	// What permits a repeat is sent in each cycle, and no person is asked for;
	// what permits none is sent once.
	shown("away", "away")
	for range 2 {
		_, err := s.admit(t.Context(), 0)
		if b, ok := errors.AsType[*blocked](err); !ok || b.person || !strings.Contains(b.reason, "admits no more") {
			t.Fatalf("%v", err)
		}
	}
	shown("ended", "refused")
	for range 2 {
		_, err := s.admit(t.Context(), 0)
		if b, ok := errors.AsType[*blocked](err); !ok || !b.person || !strings.Contains(b.reason, "job-refused") || !strings.Contains(b.reason, "refused (none)") || !strings.Contains(b.reason, "admits no more") {
			t.Fatalf("%v", err)
		}
	}
	times := map[string]int{}
	for _, one := range sent {
		times[one]++
	}
	if want := map[string]int{"confirmed exact": 1, "away exact": 4, "refused exact": 1}; !maps.Equal(times, want) {
		t.Errorf("sent %v, want %v", times, want)
	}
	shown("ended", "trimmed meanwhile")
	if _, err := s.admit(t.Context(), 0); err == nil || !strings.Contains(err.Error(), "has no confirmed outcome") {
		t.Fatalf("%v", err)
	}
	shown("ended")
	taken()
}

// known is a store that has every key.
type known struct{ remembering }

func (*known) Knows(string) bool { return true }
