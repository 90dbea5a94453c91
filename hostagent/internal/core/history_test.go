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
