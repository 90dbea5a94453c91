package attempt

import (
	"bytes"
	"flag"
	"maps"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	"pgregory.net/rapid"

	"github.com/quittance/quittance/controller/api"
	_ "github.com/quittance/quittance/integration/seed"
	"github.com/quittance/quittance/protocol"
)

var update = flag.Bool("update", false, "write the fixtures of the current version; never for an old version")

// fixtures has one record per state with every member set.
func fixtures(t *testing.T) map[string]Record {
	in := []Event{StartSending{testTime}, Noted{Fact{"late_reply", "a late reply was dropped", testTime}}, Admitted{testAdmission},
		allocated, prepared, entered, ExecutionFailed{"worker_oom"}, consumed, saved,
		Allocated{testGeneration, 8, "ocr-large", testDigest}, prepared, Entered{testTime + 1}}
	all := func(more ...Event) Record { return must(t, fresh(t), append(append([]Event(nil), in...), more...)...) }
	second := Settled{testGeneration, 8, SettlementStuck}
	failed := OutcomeChosen{Outcome{OperationFail, []byte(`{"code":"cancelled"}`), []byte{0, 1, 255}, &Candidate{OperationComplete, []byte("{}")}}, testTime}
	return map[string]Record{
		"start_pending":      must(t, fresh(t), in[0], in[1]),
		"acknowledged":       all(),
		"terminal_pending":   all(complete),
		"terminal_confirmed": all(complete, confirmed, second, answered),
		"terminal_held":      all(failed, second, Held{HoldMismatch, Reply{409, "r-3", []byte("{}")}, testTime}, Resolved{Resolution{1000, "seen", testTime}}, answered),
		"suppressed":         all(suppress, second, answered),
		"ended":              all(over, second, ReceiptsAnswered{ReceiptsAnswer{false, Reply{Status: 409}}}),
	}
}

// Every version on disk stays readable, byte for byte.
func TestFixtures(t *testing.T) {
	for name, r := range fixtures(t) {
		file := filepath.Join("testdata", "v1", name+".json")
		data, err := Encode(r)
		if err != nil {
			t.Fatal(name, err)
		}
		if *update {
			if err := os.WriteFile(file, append(data, '\n'), 0o644); err != nil {
				t.Fatal(err)
			}
		}
		want, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		want = bytes.TrimSuffix(want, []byte("\n"))
		if !bytes.Equal(data, want) {
			t.Errorf("%s: got\n%s\nwant\n%s", name, data, want)
		}
		back, err := Decode(want)
		if err != nil {
			t.Errorf("%s: %v", name, err)
		} else if !cmp.Equal(r, back, cmpopts.EquateEmpty()) {
			t.Errorf("%s: %s", name, cmp.Diff(r, back, cmpopts.EquateEmpty()))
		}
		checkAllSet(t, name, reflect.ValueOf(r))
	}
}

// checkAllSet fails for a member that no fixture of its state sets, so that a
// new member cannot be forgotten.
func checkAllSet(t *testing.T, at string, v reflect.Value) {
	t.Helper()
	switch v.Kind() {
	case reflect.Struct:
		for i := range v.NumField() {
			name := at + "." + v.Type().Field(i).Name
			switch v.Type().Field(i).Name {
			case "Lane", "Dropped", "Failure", "HostKey", "Receipts", "Candidate", "RequestID", "Body", "Attached":
				continue // zero is one of their meanings
			}
			if v.Field(i).IsZero() {
				t.Errorf("%s is not set in the fixture", name)
			}
			checkAllSet(t, name, v.Field(i))
		}
	case reflect.Pointer:
		if !v.IsNil() {
			checkAllSet(t, at, v.Elem())
		}
	}
}

// I34: what Encode would not write is refused with the member's name and
// without its value.
func TestDecodeIsStrict(t *testing.T) {
	good, err := Encode(fixtures(t)["terminal_held"])
	if err != nil {
		t.Fatal(err)
	}
	change := func(old, new string) string {
		if !strings.Contains(string(good), old) {
			t.Fatalf("the fixture has no %s", old)
		}
		return strings.Replace(string(good), old, new, 1)
	}
	for name, row := range map[string]struct{ in, want string }{
		"empty":                {"", "is empty"},
		"not JSON":             {"x", ""},
		"cut":                  {string(good[:len(good)-1]), ""},
		"trailing byte":        {string(good) + " ", "is not in canonical form"},
		"trailing value":       {string(good) + "{}", "has bytes after its end"},
		"space":                {change(`"v":1`, `"v": 1`), "is not in canonical form"},
		"unknown member":       {change(`"v":1`, `"v":1,"x":1`), "/x: is not a member"},
		"duplicate member":     {change(`"v":1`, `"v":1,"v":1`), "/v: occurs twice"},
		"unknown inside":       {change(`"lane":0`, `"lane":0,"x":1`), "/record/origin/x: is not a member"},
		"missing inside":       {change(`"lane":0,`, ``), "is not in canonical form"},
		"wrong type":           {change(`"lane":0`, `"lane":"0"`), "/record/origin/lane: has the wrong type"},
		"float":                {change(`"lane":0`, `"lane":0.0`), ""},
		"other case":           {change(`"lane"`, `"Lane"`), "/record/origin/Lane"},
		"state of another":     {change(`"state":"terminal_held"`, `"state":"ended"`), ""},
		"unknown state":        {change(`"state":"terminal_held"`, `"state":"done"`), "/state: is not a state"},
		"newer version":        {change(`"v":1`, `"v":2`), "this program reads version 1"},
		"base64 not canonical": {change(`"AAH/"`, `"AAH_"`), ""},
		"base64 with newline":  {change(`"AAH/"`, `"AA\nH/"`), ""},
		"secret not shown":     {change(`"AAH/"`, `"s3cret!"`), ""},
		"bad unicode":          {change(`"seen"`, "\"\xff\""), "is not valid UTF-8"},
		"null list":            {change(`"executions":[`, `"executions":null,"y":[`), ""},
		"hold reason":          {change(`"reason":"mismatch"`, `"reason":"whatever"`), "/record/reason: is not a hold reason"},
		"negative number":      {change(`"number":7`, `"number":-7`), "/record/executions/number"},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := Decode([]byte(row.in))
			if err == nil {
				t.Fatal("was accepted")
			}
			if !strings.Contains(err.Error(), row.want) {
				t.Errorf("got %q, want %q", err, row.want)
			}
			if strings.Contains(err.Error(), "s3cret") || strings.Contains(err.Error(), "whatever") {
				t.Errorf("the message shows the value: %q", err)
			}
		})
	}
}

// full is the largest record: every part at its ceiling at once.
func full(t *testing.T) Record {
	t.Helper()
	wide := func(n int) string { return strings.Repeat("\x01", n) } // six bytes each when escaped
	name := strings.Repeat("n", MaxNameBytes)
	reply := func() Reply { return Reply{999, name, bytes.Repeat([]byte{0xff}, MaxReplyBytes)} }
	const late = protocol.Timestamp(maxMicros)
	o := Origin{
		Scope: Scope{wide(MaxOriginBytes), name, name, name},
		Lane:  MaxLanes - 1, Key: name, Job: name, Kind: name,
		Input:         Input{wide(MaxSchemaBytes), MaxInputBytes, testDigest},
		MaxExecutions: MaxExecutions, Start: bytes.Repeat([]byte{0xff}, MaxStartBytes), Created: late,
	}
	execution := func(n protocol.Number) Execution {
		at := late
		e := Execution{
			Generation: testGeneration, Number: n, Profile: strings.Repeat("p", 40), ProfileDigest: testDigest,
			Settlement: SettlementConsumed, Preparation: &Preparation{testDigest, testDigest, testDigest},
			Entered: &at, Failure: strings.Repeat("f", MaxFailureBytes), HostKey: wide(MaxHostKeyBytes),
		}
		size := MaxSavedBytes / MaxSavedReceipts / 2
		for i := range MaxSavedReceipts {
			e.Receipts = append(e.Receipts, SavedReceipt{
				Index: protocol.Index(protocol.MaxNumber) - MaxSavedReceipts + protocol.Index(i),
				Leaf:  bytes.Repeat([]byte{0xff}, size), Proof: bytes.Repeat([]byte{0xff}, size),
			})
		}
		return e
	}
	r := TerminalHeld{
		Origin: o, Admission: Admission{name, reply()},
		Executions: []Execution{execution(protocol.MaxNumber - 1), execution(protocol.MaxNumber)},
		Outcome: Outcome{OperationFail, bytes.Repeat([]byte{0xff}, MaxFailBytes), bytes.Repeat([]byte{0xff}, MaxEvidenceBytes),
			&Candidate{OperationComplete, bytes.Repeat([]byte{0xff}, MaxCompleteBytes)}},
		Reason: HoldOppositeOutcome, Evidence: reply(), HeldAt: late,
		Resolution: &Resolution{1<<32 - 1, wide(MaxNoteBytes), late},
		Answer:     &ReceiptsAnswer{false, reply()},
		Facts:      Facts{Dropped: 1<<63 - 1},
	}
	for range MaxFacts {
		r.Facts.Kept = append(r.Facts.Kept, Fact{strings.Repeat("a", MaxFailureBytes), wide(MaxFactBytes), late})
	}
	return r
}

// I33: every part at its ceiling at once can be written, read back and is what
// the bound was computed for.
func TestEveryCeilingAtOnce(t *testing.T) {
	r := full(t)
	data, err := Encode(r)
	if err != nil {
		t.Fatal(err)
	}
	t.Logf("full record: %d bytes of %d", len(data), MaxRecordBytes)
	if MaxRecordBytes-len(data) > maxStructure {
		t.Errorf("the full record has %d bytes, the bound %d: the sum counts too much", len(data), MaxRecordBytes)
	}
	back, err := Decode(data)
	if err != nil {
		t.Fatal(err)
	}
	if !reflect.DeepEqual(r, back) {
		t.Error("the full record reads back differently")
	}
}

// The ceilings hold whatever the job service's contract lets through.
func TestCeilingsCoverTheContract(t *testing.T) {
	for _, row := range []struct {
		name         string
		ours, theirs int64
	}{
		{"START", MaxStartBytes, api.RouteStart.MaxRequest},
		{"COMPLETE", MaxCompleteBytes, api.RouteComplete.MaxRequest},
		{"FAIL", MaxFailBytes, api.RouteFail.MaxRequest},
		{"START answer", MaxReplyBytes, api.RouteStart.MaxResponse},
		{"COMPLETE receipt", MaxReplyBytes, api.RouteComplete.MaxResponse},
		{"FAIL receipt", MaxReplyBytes, api.RouteFail.MaxResponse},
		{"receipts answer", MaxReplyBytes, api.RouteReceipts.MaxResponse},
		{"input", MaxInputBytes, api.MaxInputBytes},
		{"executions", MaxExecutions, api.MaxExecutions},
		{"lanes", MaxLanes, api.MaxLanes},
		{"request id", MaxNameBytes, api.MaxRequestIDBytes},
		{"host key", MaxHostKeyBytes, api.MaxHostKeyBytes},
	} {
		if row.ours < row.theirs {
			t.Errorf("%s: we keep %d, the contract allows %d", row.name, row.ours, row.theirs)
		}
	}
	if MaxExecutions*MaxSavedReceipts > api.MaxHostReceipts || MaxProofBytes > api.MaxProofBytes || protocol.MaxReceiptBytes > api.MaxLeafBytes {
		t.Error("more receipts are kept than the service takes")
	}
}

// TestRandomHistories drives records with random events: Step never yields what
// Encode refuses, never changes its argument, and never changes what was
// chosen (I26, I28).
func TestRandomHistories(t *testing.T) {
	var events []Event
	for _, name := range slices.Sorted(maps.Keys(samples)) {
		events = append(events, samples[name])
	}
	events = append(events, failed, Settled{testGeneration, 8, SettlementConsumed}, Settled{testGeneration, 8, SettlementStuck},
		Allocated{testGeneration, 8, "ocr", testDigest}, Held{HoldExpired, Reply{Status: 409}, testTime})
	rapid.Check(t, func(t *rapid.T) {
		start, err := New(testOrigin())
		if err != nil {
			t.Fatal(err)
		}
		var r Record = start
		for range rapid.IntRange(1, 40).Draw(t, "events") {
			e := events[rapid.IntRange(0, len(events)-1).Draw(t, "event")]
			before := protocol.AppendCanonical(nil, r)
			next, err := Step(r, e)
			if !bytes.Equal(before, protocol.AppendCanonical(nil, r)) {
				t.Fatalf("%s wrote into its record", e.event())
			}
			if err != nil {
				continue
			}
			data, err := Encode(next)
			if err != nil {
				t.Fatalf("%s: %v", e.event(), err)
			}
			if back, err := Decode(data); err != nil || !cmp.Equal(next, back, cmpopts.EquateEmpty()) {
				t.Fatalf("%s: reads back as %v, %v", e.event(), back, err)
			}
			if !bytes.Equal(OriginOf(next).Start, start.Origin.Start) {
				t.Fatal("the START bytes changed")
			}
			if old, ok := outcomeOf(r); ok {
				now, ok := outcomeOf(next)
				if !ok || !cmp.Equal(old, now) {
					t.Fatal("the outcome changed")
				}
			}
			entries := 0
			for _, x := range ExecutionsOf(next) {
				if x.Entered != nil {
					entries++
				}
			}
			if entries > MaxExecutions {
				t.Fatal("more entries than executions")
			}
			r = next
		}
	})
}

func outcomeOf(r Record) (Outcome, bool) {
	switch r := r.(type) {
	case TerminalPending:
		return r.Outcome, true
	case TerminalConfirmed:
		return r.Outcome, true
	case TerminalHeld:
		return r.Outcome, true
	}
	return Outcome{}, false
}

// FuzzDecode: whatever Decode accepts, Encode writes the same bytes again.
func FuzzDecode(f *testing.F) {
	files, err := filepath.Glob("testdata/v1/*.json")
	if err != nil || len(files) == 0 {
		f.Fatal("no fixtures", err)
	}
	for _, file := range files {
		data, err := os.ReadFile(file)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(bytes.TrimSuffix(data, []byte("\n")))
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		r, err := Decode(data)
		if err != nil {
			return
		}
		again, err := Encode(r)
		if err != nil || !bytes.Equal(again, data) {
			t.Fatalf("accepted %q and wrote %q, %v", data, again, err)
		}
	})
}
