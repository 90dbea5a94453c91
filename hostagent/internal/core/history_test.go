package core

import (
	"encoding/base64"
	"fmt"
	"strings"
	"testing"

	"github.com/quittance/quittance/protocol"
)

// I33: burns are bounded too, and the refusal says what stands in the way: the
// numbers that nobody consumed, not released history.
func TestBurnsAreBounded(t *testing.T) {
	s := newSim(t)
	s.witness()
	most := protocol.Number(s.bounds.MaxSlots + s.bounds.MaxUnreleased)
	for n := protocol.Number(1); n <= most+1; n++ {
		s.step(Retire{ID: RequestID(n), Caller: Caller{Owner: testOwner}, Number: n, Body: protocol.RetireRequest{Purpose: "p"}})
		p := s.replies[len(s.replies)-1].Problem
		switch {
		case n <= most && p != nil:
			t.Fatalf("burn %d: %+v", n, p)
		case n > most && (p == nil || p.Code != protocol.CodeHistoryFull || !strings.Contains(p.Detail, "6 of them not consumed") || !strings.Contains(p.Next, "consume")):
			t.Fatalf("burn %d: %+v", n, p)
		}
	}
}

// I36: a long life with everything that its parties may say at full length adds
// no more to a base than is prepared for it, proofs in a log of 2³² included.
func TestBaseBytesPerAllocation(t *testing.T) {
	s := newSim(t)
	s.witness()
	purpose, kills, peak := strings.Repeat("p", 128), int64(1<<40), int64(1<<40)
	before := len(EncodeBase(s.state, nil))
	s.offered = []Offered{{Kind: testKind, Names: []string{testKind + "=0"}, Spec: "sha256:" + hex64}}
	for i := range maxLeasedBytes/40 - 4 {
		s.offered[0].Nodes = append(s.offered[0].Nodes, fmt.Sprintf("/dev/%032d", i))
	}
	if r := s.allocate(1, "card", purpose, testOwner); r.Problem != nil {
		t.Fatalf("allocate: %+v", r.Problem)
	}
	nonce := *s.state.Allocation(1).Accepted.Nonce
	s.step(WorkCreated{Number: 1, Body: createdBody(1, nonce, firstBoot)})
	s.step(WorkStarted{Number: 1, StartMillis: 1})
	for range 8 {
		s.step(WorkOOM{Number: 1, Counters: protocol.Counters{OOM: &kills, OOMKill: &kills, OOMGroupKill: &kills, Max: &kills, FailCnt: &kills}})
	}
	s.ask(func(id RequestID) Event {
		return Retire{ID: id, Caller: controller(testOwner), Number: 1, Body: protocol.RetireRequest{Purpose: purpose, Note: strings.Repeat("n", protocol.MaxNoteBytes)}}
	})
	body := exitFacts(137, protocol.VerdictKilled)
	body.Peaks = protocol.Peaks{MemoryBytes: &peak, PIDs: &peak, CPUMicros: &peak}
	s.step(WorkExited{Number: 1, Body: body})
	s.step(WorkRemoved{Number: 1, Removal: allRemoved})
	s.consume(1, purpose)
	a := s.state.Allocation(1)
	if !a.Consumed {
		t.Fatalf("the life did not end: %+v", a)
	}
	const hashes, hash = 32, 8 + 32 // of one proof in a tree of 2³² leaves, as a snapshot stores them
	tree := 0
	for _, e := range a.entries {
		if e.Receipt {
			tree += 12 + len(e.Payload) + hash + hashes*hash
		}
	}
	size := len(EncodeBase(s.state, nil)) - before + base64.StdEncoding.EncodedLen(tree)
	if size > BaseBytesPerAllocation || size < BaseBytesPerAllocation/4 {
		t.Fatalf("one allocation adds %d bytes to a base; %d are prepared", size, BaseBytesPerAllocation)
	}
}

// I9: as long as nobody looked what the engine holds, no number is handed out,
// and none is burnt either: one of its containers may have it already.
func TestNothingBeforeTheFirstListing(t *testing.T) {
	s := newSim(t)
	s.state = s.fold()
	s.session = NewSession(firstBoot, s.mode, s.bounds)
	s.step(Started{Versions: protocol.Versions{Agent: "test", Protocol: []int{1}}})
	s.step(EngineChanged{Engine: protocol.Engine{Available: true}})
	s.step(ProfilesLoaded{Profiles: testProfiles()})
	s.witness()
	ask := map[string]func() *Reply{
		"allocate": func() *Reply { return s.allocate(1, "group", "a", testOwner) },
		"burn": func() *Reply {
			return s.ask(func(id RequestID) Event {
				return Retire{ID: id, Caller: controller(testOwner), Number: 1, Body: protocol.RetireRequest{Purpose: "a"}}
			})
		},
	}
	for name, request := range ask {
		if p := request().Problem; p == nil || p.Code != protocol.CodeEngineUnavailable || p.RetryAfterMillis == 0 || s.state.Accepted != 0 {
			t.Errorf("%s: %+v, accepted %d", name, p, s.state.Accepted)
		}
	}
	s.step(EngineListed{})
	if r := ask["burn"](); r.Problem != nil {
		t.Errorf("burn after the listing: %+v", r.Problem)
	}
}

// I33: a channel is counted before it leaves, exactly while they are few and
// never too low; one allocation's count takes few records and only the last one
// stays in a base.
func TestChannelsAreCountedInFewRecords(t *testing.T) {
	s := newSim(t)
	s.witness()
	s.allocate(1, "group", "a", testOwner)
	a := s.state.Allocation(1)
	s.step(WorkCreated{Number: 1, Body: createdBody(1, *a.Accepted.Nonce, firstBoot)})
	s.step(WorkStarted{Number: 1, StartMillis: 1})
	const most = 1<<31 - 1
	a.Profile.Channel.MaxChannels = most
	before, entries, records := len(a.entries), len(s.groups), 0
	for handed := int64(1); handed < most && handed > 0; {
		s.session.runs[1].handed = handed - 1
		s.step(HandChannel{ID: 1, Number: 1})
		switch {
		case a.Channels < handed, a.Channels > handed+handed/4, handed < exactChannels && a.Channels != handed:
			t.Fatalf("the mark is %d at %d channels", a.Channels, handed)
		}
		handed, records = a.Channels+1, records+1
	}
	if records > 100 || len(s.groups) != entries+records || len(a.entries) != before+1 {
		t.Errorf("%d records, %d groups, %d entries stay", records, len(s.groups)-entries, len(a.entries)-before)
	}
	a.Profile.Channel.MaxChannels = 2 // as the ledger says
	s.checkFold()
	if state, _, err := OpenBase(EncodeBase(s.state, nil)); err != nil || state.Allocation(1).Channels != a.Channels {
		t.Errorf("from a base: %+v, %v", state, err)
	}
}

// I5: the last number, 2⁵³−1, is one like the others; after it nothing is
// accepted, nothing wraps, and the host says that it drains, after a restart too.
func TestLastNumber(t *testing.T) {
	const last = protocol.MaxNumber
	s := newSim(t)
	s.witness()
	s.state.Accepted, s.state.Released = last-1, last-1
	draining := func() bool {
		t.Helper()
		return s.ask(func(id RequestID) Event { return GetHost{ID: id} }).Body.(*HostView).Draining
	}
	if draining() {
		t.Error("drains before the last number")
	}
	first := s.allocate(last, "group", "a", testOwner)
	if first.Problem != nil || first.Status != 201 || len(s.effects) != 1 {
		t.Fatalf("the last number: %+v, %d effects", first, len(s.effects))
	}
	if !draining() {
		t.Error("does not drain after the last number")
	}
	for _, row := range []struct {
		n       protocol.Number
		purpose string
		status  int
		code    protocol.Code
	}{
		{last, "a", 200, ""}, // I12
		{last, "b", 409, protocol.CodeNumberConflict},
		{last - 1, "a", 410, protocol.CodeReleased},
		{1, "a", 410, protocol.CodeReleased},
		{last + 1, "a", 409, protocol.CodeExhausted}, // no request can say it: the path's form ends at the last
	} {
		r := s.allocate(row.n, "group", row.purpose, testOwner)
		if r.Status != row.status || (r.Problem == nil) != (row.code == "") || r.Problem != nil && r.Problem.Code != row.code {
			t.Errorf("number %d for %s: %+v", row.n, row.purpose, r)
		}
		if len(s.effects) != 0 || s.state.Accepted != last {
			t.Errorf("number %d: %d effects, the frontier is %d", row.n, len(s.effects), s.state.Accepted)
		}
	}
	state, _, err := OpenBase(EncodeBase(s.state, nil))
	if err != nil {
		t.Fatal(err)
	}
	s.state, s.session = state, NewSession(secondBoot, s.mode, s.bounds)
	s.step(Started{})
	if !draining() {
		t.Error("does not drain after a restart")
	}
}

// I14: the first failure stays the cause, whatever fails afterwards, over a
// restart too; what fails later is said beside it.
func TestFirstFailureStaysTheCause(t *testing.T) {
	s := newSim(t)
	s.witness()
	fails := func(n protocol.Number, step, text string) {
		s.step(WorkProgress{Number: n, Step: step, Error: text, SinceMillis: s.bounds.StuckAfterMillis})
	}
	s.allocate(1, "group", "a", testOwner)
	s.step(WorkCreateFailed{Number: 1, Error: "no image"})
	fails(1, "remove cgroup", "device or resource busy")
	if a := s.state.Allocation(1); a.Stuck == nil || a.Stuck.Detail != "device or resource busy" {
		t.Errorf("the later failure is not told: %+v", a.Stuck)
	}
	s.restart(firstBoot)
	s.step(WorkNeverRan{Number: 1})
	fails(1, "remove container", "the engine is silent")
	s.step(WorkRemoved{Number: 1, Removal: allRemoved})
	if b := s.state.Allocation(1).Retired; b == nil || b.Reason != protocol.ReasonSetupFailed || b.Error != "no image" {
		t.Errorf("retired %+v", b)
	}

	// A start that failed, and a kill for memory while that is ended.
	s.witness()
	s.allocate(2, "group", "a", testOwner)
	s.step(WorkCreated{Number: 2, Body: createdBody(2, *s.state.Allocation(2).Accepted.Nonce, firstBoot)})
	s.step(WorkStartFailed{Number: 2, Error: "start timed out"})
	s.step(WorkExited{Number: 2, Body: exitFacts(137, protocol.VerdictKilled)})
	s.step(WorkRemoved{Number: 2, Removal: allRemoved})
	if b := s.state.Allocation(2).Retired; b == nil || b.Reason != protocol.ReasonSetupFailed || b.Error != "start timed out" || b.OOM.Verdict != protocol.VerdictKilled {
		t.Errorf("retired %+v", b)
	}
	s.checkFold()
}
