package attempt

import (
	"bytes"
	"errors"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/quittance/quittance/protocol"
)

const (
	testGeneration = protocol.ID("0123456789abcdef0123456789abcdef")
	testDigest     = protocol.Digest("sha256:e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855")
	testTime       = protocol.Timestamp(1796046230776540)
)

func testOrigin() Origin {
	return Origin{
		Scope: Scope{"https://jobs.example.org", "node-1", "controller", "1"},
		Key:   "k-1", Job: "job-1", Kind: "ocr.page.v1",
		Input:         Input{"image/png", 3, testDigest},
		MaxExecutions: 2,
		Start:         []byte(`{"key":"k-1"}`),
		Created:       testTime,
	}
}

var testAdmission = Admission{"att-1", Reply{201, "r-1", []byte(`{"attempt":"att-1"}`)}}

// must applies events that have to be allowed.
func must(t *testing.T, r Record, events ...Event) Record {
	t.Helper()
	for _, e := range events {
		next, err := Step(r, e)
		if err != nil {
			t.Fatalf("%s in %s: %v", e.event(), r.State(), err)
		}
		r = next
	}
	return r
}

func fresh(t *testing.T) Record {
	t.Helper()
	r, err := New(testOrigin())
	if err != nil {
		t.Fatal(err)
	}
	return r
}

var (
	allocated = Allocated{testGeneration, 7, "ocr", testDigest}
	prepared  = Prepared{Preparation{testDigest, testDigest, testDigest}}
	entered   = Entered{testTime}
	complete  = OutcomeChosen{Outcome{Operation: OperationComplete, Body: []byte("{}"), Evidence: []byte("e")}, testTime}
	failed    = OutcomeChosen{Outcome{Operation: OperationFail, Body: []byte("{}"), Evidence: []byte("e")}, testTime}
	consumed  = Settled{testGeneration, 7, SettlementConsumed}
	suppress  = CandidateSuppressed{Candidate{OperationComplete, []byte("{}")}, []byte("e"), EndCancelled, Reply{Status: 200}, testTime}
	confirmed = Confirmed{Reply{200, "r-2", []byte("{}")}, testTime}
	answered  = ReceiptsAnswered{ReceiptsAnswer{true, Reply{Status: 200}}}
	saved     = ReceiptsSaved{testGeneration, 7, "host+1+key", []SavedReceipt{{3, []byte("leaf"), []byte("proof")}}}
	over      = Over{Reason: EndCancelled, Reply: Reply{Status: 200}, At: testTime}
)

// ready is a record of the state in which every guard of the event is met.
func ready(t *testing.T, s State, e Event) Record {
	r := fresh(t)
	if s == StateStartPending {
		return r
	}
	r = must(t, r, Admitted{testAdmission})
	switch e.(type) {
	case Allocated:
	case Unallocated, Prepared:
		r = must(t, r, allocated)
	case Entered:
		r = must(t, r, allocated, prepared)
	default:
		r = must(t, r, allocated, prepared, entered)
	}
	if _, ok := e.(ReceiptsAnswered); ok {
		r = must(t, r, consumed)
	}
	if s == StateAcknowledged {
		return r
	}
	if !WasEntered(r) {
		r = must(t, fresh(t), Admitted{testAdmission}, allocated, prepared, entered)
	}
	switch s {
	case StateTerminalPending:
		return must(t, r, complete)
	case StateTerminalConfirmed:
		return must(t, r, complete, confirmed)
	case StateTerminalHeld:
		return must(t, r, complete, Held{HoldMismatch, Reply{Status: 409}, testTime})
	case StateSuppressed:
		return must(t, r, suppress)
	case StateEnded:
		return must(t, r, over)
	}
	t.Fatalf("no such state: %s", s)
	return nil
}

var columns = []State{StateStartPending, StateAcknowledged, StateTerminalPending, StateTerminalConfirmed,
	StateTerminalHeld, StateSuppressed, StateEnded}

var samples = map[string]Event{
	"StartSending": StartSending{testTime}, "Admitted": Admitted{testAdmission}, "Over": over,
	"Allocated": allocated, "Unallocated": Unallocated{testGeneration, 7}, "Prepared": prepared, "Entered": entered,
	"ExecutionFailed": ExecutionFailed{"worker_lost"}, "OutcomeChosen": complete, "CandidateSuppressed": suppress,
	"Confirmed": confirmed, "Held": Held{HoldMismatch, Reply{Status: 409}, testTime},
	"Resolved": Resolved{Resolution{0, "looked", testTime}}, "Settled": consumed, "ReceiptsSaved": saved,
	"ReceiptsAnswered": answered, "Noted": Noted{Fact{"late", "text", testTime}},
}

// TestTransitionTable runs Step against the table in the package comment: every
// state with every event, allowed and refused.
func TestTransitionTable(t *testing.T) {
	doc, err := os.ReadFile("doc.go")
	if err != nil {
		t.Fatal(err)
	}
	names := map[string]State{}
	rows := 0
	for line := range strings.Lines(string(doc)) {
		cells := strings.Split(strings.TrimSpace(strings.TrimPrefix(strings.TrimSpace(line), "//")), "|")
		if len(cells) != len(columns)+1 {
			continue
		}
		for i := range cells {
			cells[i] = strings.TrimSpace(cells[i])
		}
		if cells[0] == "event" {
			for i, name := range cells[1:] {
				names[name] = columns[i]
			}
			continue
		}
		e, ok := samples[cells[0]]
		if !ok {
			t.Fatalf("the table has event %q, which the test does not know", cells[0])
		}
		if e.event() != cells[0] {
			t.Errorf("event %q names itself %q", cells[0], e.event())
		}
		rows++
		for i, want := range cells[1:] {
			before := ready(t, columns[i], e)
			image := protocol.AppendCanonical(nil, before)
			after, err := Step(before, e)
			if want == "-" {
				refusal, ok := errors.AsType[*TransitionError](err)
				if !ok {
					t.Errorf("%s in %s: got %v, want a refusal", cells[0], columns[i], err)
				} else if refusal.State != columns[i] || refusal.Event != cells[0] {
					t.Errorf("%s in %s: the refusal names %s in %s", cells[0], columns[i], refusal.Event, refusal.State)
				}
				if !cmp.Equal(after, before, cmp.AllowUnexported()) {
					t.Errorf("%s in %s: a refusal changed the record", cells[0], columns[i])
				}
			} else if err != nil || after.State() != names[want] {
				t.Errorf("%s in %s: got %v, %v; want %s", cells[0], columns[i], after, err, want)
			} else if _, err := Encode(after); err != nil {
				t.Errorf("%s in %s: the next record cannot be written: %v", cells[0], columns[i], err)
			}
			if !bytes.Equal(image, protocol.AppendCanonical(nil, before)) {
				t.Errorf("%s in %s: Step wrote into the record that it was given", cells[0], columns[i])
			}
		}
	}
	if rows != len(samples) {
		t.Errorf("the table has %d events, the test %d", rows, len(samples))
	}
}

// TestGuards goes through the rules beside the table.
func TestGuards(t *testing.T) {
	second := Allocated{testGeneration, 8, "ocr", testDigest}
	acknowledged := []Event{Admitted{testAdmission}}
	in := append(slices.Clone(acknowledged), allocated, prepared, entered)
	with := func(base []Event, more ...Event) []Event { return append(slices.Clone(base), more...) }
	for name, row := range map[string]struct {
		before []Event
		event  Event
		ok     bool
	}{
		// I27: one bounded replacement, only after the first was entered, failed and consumed.
		"second while the first runs":             {in, second, false},
		"second after failure, not consumed":      {with(in, ExecutionFailed{"worker_lost"}), second, false},
		"second after failure, stuck":             {with(in, ExecutionFailed{"worker_lost"}, Settled{testGeneration, 7, SettlementStuck}), second, false},
		"second without entry":                    {with(acknowledged, allocated, ExecutionFailed{"unavailable"}, consumed), second, false},
		"second consumed without failure":         {with(in, consumed), second, false},
		"second after failure and consumption":    {with(in, ExecutionFailed{"worker_lost"}, consumed), second, true},
		"second with the number of the first":     {with(in, ExecutionFailed{"worker_lost"}, consumed), allocated, false},
		"third":                                   {with(in, ExecutionFailed{"worker_lost"}, consumed, second, prepared, entered, ExecutionFailed{"worker_lost"}, Settled{testGeneration, 8, SettlementConsumed}), Allocated{testGeneration, 9, "ocr", testDigest}, false},
		"entry twice":                             {in, entered, false},
		"entry unprepared":                        {with(acknowledged, allocated), entered, false},
		"entry after failure":                     {with(acknowledged, allocated, prepared, ExecutionFailed{"unavailable"}), entered, false},
		"entry after consumption":                 {with(acknowledged, allocated, prepared, consumed), entered, false},
		"prepared twice":                          {with(acknowledged, allocated, prepared), prepared, false},
		"unallocated after preparation":           {with(acknowledged, allocated, prepared), Unallocated{testGeneration, 7}, false},
		"unallocated with another number":         {with(acknowledged, allocated), Unallocated{testGeneration, 8}, false},
		"unallocated after settlement":            {with(acknowledged, allocated, consumed), Unallocated{testGeneration, 7}, false},
		"failure without class":                   {in, ExecutionFailed{}, false},
		"failure twice":                           {with(in, ExecutionFailed{"worker_lost"}), ExecutionFailed{"protocol"}, false},
		"complete without entry":                  {with(acknowledged, allocated, prepared), complete, false},
		"complete after failure":                  {with(in, ExecutionFailed{"worker_lost"}), complete, false},
		"complete by the replacement":             {with(in, ExecutionFailed{"worker_lost"}, consumed, second, prepared, entered), complete, true},
		"fail without execution":                  {acknowledged, failed, true},
		"complete with candidate":                 {in, OutcomeChosen{Outcome{OperationComplete, []byte("{}"), []byte("e"), &Candidate{OperationComplete, []byte("x")}}, testTime}, false},
		"fail with candidate":                     {in, OutcomeChosen{Outcome{OperationFail, []byte("{}"), []byte("e"), &Candidate{OperationComplete, []byte("x")}}, testTime}, true},
		"evidence of zero bytes":                  {in, OutcomeChosen{Outcome{Operation: OperationFail, Body: []byte("{}")}, testTime}, false},
		"evidence over the bound":                 {in, OutcomeChosen{Outcome{Operation: OperationFail, Body: []byte("{}"), Evidence: make([]byte, MaxEvidenceBytes+1)}, testTime}, false},
		"evidence at the bound":                   {in, OutcomeChosen{Outcome{Operation: OperationFail, Body: []byte("{}"), Evidence: make([]byte, MaxEvidenceBytes)}, testTime}, true},
		"another outcome (I28)":                   {with(in, complete), failed, false},
		"the same outcome again":                  {with(in, complete), complete, false},
		"candidate without entry":                 {with(acknowledged, allocated, prepared), suppress, false},
		"over with a second admission":            {acknowledged, Over{Reason: EndExpired, Admission: &testAdmission, At: testTime}, false},
		"over after the outcome":                  {with(in, complete), over, false},
		"start answered with an ended attempt":    {nil, Over{Reason: EndFailed, Admission: &testAdmission, Reply: testAdmission.Reply, At: testTime}, true},
		"resolve a hold that needs none":          {with(in, complete, Held{HoldExpired, Reply{Status: 409}, testTime}), Resolved{Resolution{0, "", testTime}}, false},
		"resolve twice":                           {with(in, complete, Held{HoldMismatch, Reply{Status: 409}, testTime}, Resolved{Resolution{0, "", testTime}}), Resolved{Resolution{0, "", testTime}}, false},
		"consumed again":                          {with(in, consumed), consumed, true},
		"consumed, then stuck":                    {with(in, consumed), Settled{testGeneration, 7, SettlementStuck}, false},
		"stuck, then consumed":                    {with(in, Settled{testGeneration, 7, SettlementStuck}), consumed, true},
		"generation gone, then consumed":          {with(in, Settled{testGeneration, 7, SettlementGenerationGone}), consumed, false},
		"settled to open":                         {in, Settled{testGeneration, 7, SettlementOpen}, true},
		"settled back to open":                    {with(in, consumed), Settled{testGeneration, 7, SettlementOpen}, false},
		"settlement unknown":                      {in, Settled{testGeneration, 7, "eaten"}, false},
		"settled in another generation":           {in, Settled{protocol.ID(strings.Repeat("f", 32)), 7, SettlementConsumed}, false},
		"receipts with one lost":                  {with(in, saved), ReceiptsSaved{testGeneration, 7, "host+1+key", []SavedReceipt{{4, []byte("leaf"), []byte("proof")}}}, false},
		"receipts with one more":                  {with(in, saved), ReceiptsSaved{testGeneration, 7, "host+1+key", []SavedReceipt{{3, []byte("leaf"), []byte("newer")}, {4, []byte("leaf"), []byte("proof")}}}, true},
		"receipts with a changed leaf":            {with(in, saved), ReceiptsSaved{testGeneration, 7, "host+1+key", []SavedReceipt{{3, []byte("other"), []byte("proof")}}}, false},
		"receipts of another host key":            {with(in, saved), ReceiptsSaved{testGeneration, 7, "host+2+key", saved.Receipts}, false},
		"receipts out of order":                   {in, ReceiptsSaved{testGeneration, 7, "k", []SavedReceipt{{4, []byte("l"), []byte("p")}, {3, []byte("l"), []byte("p")}}}, false},
		"receipts answered before settlement":     {with(in, complete, confirmed), answered, false},
		"receipts answered without allocation":    {with(acknowledged, over), answered, false},
		"receipts answered again":                 {with(in, consumed, complete, confirmed, answered), answered, true},
		"receipts answered differently":           {with(in, consumed, complete, confirmed, answered), ReceiptsAnswered{ReceiptsAnswer{false, Reply{Status: 409}}}, false},
		"admission without reference":             {nil, Admitted{Admission{"", Reply{Status: 201}}}, false},
		"reply longer than can be kept":           {nil, Admitted{Admission{"att-1", Reply{201, "", make([]byte, MaxReplyBytes+1)}}}, false},
		"fact with a name that is free text":      {nil, Noted{Fact{"Free Text", "x", testTime}}, false},
		"sending with an expiry without a form":   {nil, StartSending{-1}, false},
		"fact with text that is no UTF-8":         {nil, Noted{Fact{"late", "\xff", testTime}}, false},
		"profile name out of form":                {acknowledged, Allocated{testGeneration, 7, "../ocr", testDigest}, false},
		"number zero":                             {acknowledged, Allocated{testGeneration, 0, "ocr", testDigest}, false},
		"candidate kept with FAIL after a cancel": {in, suppress, true},
	} {
		t.Run(name, func(t *testing.T) {
			before := must(t, fresh(t), row.before...)
			after, err := Step(before, row.event)
			if row.ok != (err == nil) {
				t.Fatalf("got %v, want allowed = %v", err, row.ok)
			}
			if err != nil && !cmp.Equal(before, after) {
				t.Error("a refusal changed the record")
			}
		})
	}
}

// An offering that is not pure gets one execution (I27).
func TestNoReplacementUnlessPure(t *testing.T) {
	o := testOrigin()
	o.MaxExecutions = 1
	r, err := New(o)
	if err != nil {
		t.Fatal(err)
	}
	rec := must(t, r, Admitted{testAdmission}, allocated, prepared, entered, ExecutionFailed{"worker_lost"}, consumed)
	if _, err := Step(rec, Allocated{testGeneration, 8, "ocr", testDigest}); err == nil {
		t.Fatal("a second execution was allowed")
	}
}

// The latest expiry of all sends stands, in whichever order they are made.
func TestLatestExpiryIsTheHighest(t *testing.T) {
	r := must(t, fresh(t), StartSending{testTime + 5}, StartSending{testTime})
	if got := *r.(StartPending).LatestExpiry; got != testTime+5 {
		t.Fatalf("got %v", got)
	}
}

// The first facts stay, later ones are counted.
func TestFactsAreBounded(t *testing.T) {
	r := fresh(t)
	for i := range MaxFacts + 3 {
		r = must(t, r, Noted{Fact{"late", strings.Repeat("x", i), testTime}})
	}
	f := FactsOf(r)
	if len(f.Kept) != MaxFacts || f.Dropped != 3 || f.Kept[0].Text != "" {
		t.Fatalf("kept %d, dropped %d", len(f.Kept), f.Dropped)
	}
}

// I32: what holds a lane, what may be archived, what permits a release.
func TestObligations(t *testing.T) {
	in := []Event{Admitted{testAdmission}, allocated, prepared, entered}
	hold := func(why HoldReason) Event { return Held{why, Reply{Status: 409}, testTime} }
	for name, row := range map[string]struct {
		events                   []Event
		holds, archive, released bool
	}{
		"start pending":                     {nil, true, false, false},
		"acknowledged":                      {in, true, false, false},
		"acknowledged, consumed":            {append(slices.Clone(in), consumed), true, false, false},
		"terminal pending":                  {append(slices.Clone(in), complete, consumed), true, false, false},
		"confirmed, not consumed":           {append(slices.Clone(in), complete, confirmed), false, false, false},
		"confirmed, consumed, unanswered":   {append(slices.Clone(in), complete, confirmed, consumed, saved), false, false, false},
		"confirmed, consumed, answered":     {append(slices.Clone(in), complete, confirmed, consumed, saved, answered), false, true, false},
		"held expired":                      {append(slices.Clone(in), complete, consumed, hold(HoldExpired), answered), false, true, false},
		"held mismatch":                     {append(slices.Clone(in), complete, consumed, hold(HoldMismatch), answered), true, false, false},
		"held mismatch, receipts saved":     {append(slices.Clone(in), complete, consumed, saved, hold(HoldMismatch)), true, false, true},
		"held opposite, stuck":              {append(slices.Clone(in), complete, Settled{testGeneration, 7, SettlementStuck}, hold(HoldOppositeOutcome)), true, false, true},
		"held mismatch, resolved":           {append(slices.Clone(in), complete, consumed, hold(HoldMismatch), Resolved{Resolution{0, "", testTime}}, answered), false, true, false},
		"held not visible, allocation open": {append(slices.Clone(in), complete, hold(HoldNotVisible)), false, false, false},
		"ended at start":                    {[]Event{over}, false, true, false},
		"ended, allocation open":            {append(slices.Clone(in), over), false, false, false},
		"ended, allocation stuck":           {append(slices.Clone(in), over, Settled{testGeneration, 7, SettlementStuck}, answered), false, true, false},
		"suppressed":                        {append(slices.Clone(in), suppress), false, false, false},
		"suppressed, consumed":              {append(slices.Clone(in), suppress, consumed, answered), false, true, false},
	} {
		t.Run(name, func(t *testing.T) {
			r := must(t, fresh(t), row.events...)
			if got := HoldsLane(r); got != row.holds {
				t.Errorf("HoldsLane = %v", got)
			}
			if got := Archivable(r); got != row.archive {
				t.Errorf("Archivable = %v", got)
			}
			if got := PermitsRelease(r); got != row.released {
				t.Errorf("PermitsRelease = %v", got)
			}
		})
	}
}

// Two records that go on from one share nothing that either writes.
func TestBranchesShareNoWrites(t *testing.T) {
	base := must(t, fresh(t), Noted{Fact{"a", "", testTime}}, Noted{Fact{"b", "", testTime}}, Noted{Fact{"c", "", testTime}})
	one := must(t, base, Noted{Fact{"one", "", testTime}})
	two := must(t, base, Noted{Fact{"two", "", testTime}})
	if FactsOf(one).Kept[3].Name != "one" || FactsOf(two).Kept[3].Name != "two" {
		t.Errorf("facts are %v and %v", FactsOf(one).Kept, FactsOf(two).Kept)
	}
	base = must(t, fresh(t), Admitted{testAdmission}, allocated, prepared, entered, ExecutionFailed{"worker_lost"}, consumed)
	first := must(t, base, Allocated{testGeneration, 8, "ocr", testDigest})
	second := must(t, base, Allocated{testGeneration, 9, "ocr", testDigest})
	if ExecutionsOf(first)[1].Number != 8 || ExecutionsOf(second)[1].Number != 9 {
		t.Error("executions are shared")
	}
}
