package core

import (
	"encoding/base64"
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
	s.allocate(1, "group", purpose, testOwner)
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
