package core

import (
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
