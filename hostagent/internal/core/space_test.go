package core

import (
	"strings"
	"testing"
	"testing/synctest"

	"github.com/quittance/quittance/protocol"
)

// Nothing is begun whose whole life, and the release of what is there, does not
// fit into what is prepared; what is there is retired and consumed (I36).
func TestSpaceForNewWork(t *testing.T) {
	one := int64(BytesPerAllocation)
	for name, c := range map[string]struct {
		space           Space
		begun, released bool
		retryMillis     int64
	}{
		"plenty":                       {Space{Room: 10 * one, Release: 1 << 20}, true, true, 0},
		"exactly enough":               {Space{Room: 2*one + consumptionBytes, Release: 1 << 20}, true, true, 0},
		"one byte too little":          {Space{Room: 2*one + consumptionBytes - 1, Release: 1 << 20}, false, true, preparedMillis},
		"too little for a burn":        {Space{Room: one + consumptionBytes + burnBytes - 1, Release: 1 << 20}, false, true, preparedMillis},
		"no segment for a release":     {Space{Room: 10 * one}, false, false, preparedMillis},
		"a base that takes more space": {Space{Room: 10 * one, Release: 1}, true, true, 0},
		"full":                         {Space{Room: 10 * one, Release: 1 << 20, Full: true}, false, true, 1000},
		"full, and a larger base":      {Space{Room: 10 * one, Release: 1, Full: true}, false, false, 1000},
		"nothing":                      {Space{Full: true}, false, false, 1000},
	} {
		t.Run(name, func(t *testing.T) {
			s := newSim(t)
			retire := func(n protocol.Number) *Reply {
				return s.ask(func(id RequestID) Event {
					return Retire{ID: id, Caller: controller(testOwner), Number: n, Body: protocol.RetireRequest{Purpose: "p"}}
				})
			}
			want := func(what string, reply *Reply, goes bool) {
				t.Helper()
				switch p := reply.Problem; {
				case goes && p != nil:
					t.Errorf("%s: %v", what, p)
				case !goes && (p == nil || p.Code != protocol.CodeNoSpace || p.RetryAfterMillis != c.retryMillis):
					t.Errorf("%s: %+v; want it refused for now", what, p)
				}
			}
			s.witness()
			want("burn", retire(1), true)
			want("consume", s.consume(1, "p"), true)
			want("allocate", s.allocate(2, "group", "p", testOwner), true)
			want("burn", retire(3), true)

			s.session.Space = c.space
			want("release", s.release(1), c.released)
			want("allocate", s.allocate(4, "group", "p", testOwner), c.begun)
			if !c.begun {
				want("burn", retire(4), c.space.Release > 0 && c.space.Room >= one+consumptionBytes+burnBytes)
			}
			want("retire", retire(2), true)
			want("consume", s.consume(3, "p"), true)
		})
	}
}

// What a burnt number writes at most is what is kept for it.
func TestBurnBytes(t *testing.T) {
	s := newSim(t)
	s.witness()
	purpose := strings.Repeat("p", 128)
	written := func(act func() *Reply) (bytes int64) {
		t.Helper()
		before := len(s.groups)
		if p := act().Problem; p != nil {
			t.Fatal(p)
		}
		for _, group := range s.groups[before:] {
			for _, e := range group {
				bytes += int64(len(e.Payload)) + 2*128 // a record's header, an attest behind it
			}
		}
		return bytes
	}
	burnt := written(func() *Reply {
		return s.ask(func(id RequestID) Event {
			return Retire{ID: id, Caller: controller(testOwner), Number: 1, Body: protocol.RetireRequest{
				Purpose: purpose, Note: strings.Repeat("\x01", protocol.MaxNoteBytes),
			}}
		})
	})
	consumed := written(func() *Reply { return s.consume(1, purpose) })
	if consumed > consumptionBytes || burnt+consumed > burnBytes {
		t.Fatalf("%d bytes up to retired and %d for consumed; %d and %d are kept", burnt, consumed, burnBytes-consumptionBytes, consumptionBytes)
	}
}

// The journal is asked before every event.
func TestSpaceIsAskedEachTime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := runCore(t)
		defer r.stop()
		r.journal.mu.Lock()
		r.journal.space = new(Space)
		r.journal.mu.Unlock()
		reply := r.ask(allocateEvent)
		if p := reply.Problem; p == nil || p.Code != protocol.CodeNoSpace {
			t.Fatalf("%+v", reply)
		}
	})
}
