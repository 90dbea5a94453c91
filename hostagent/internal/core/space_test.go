package core

import (
	"strings"
	"testing"
	"testing/synctest"

	"github.com/quittance/quittance/hostagent/internal/ledger"
	"github.com/quittance/quittance/hostagent/internal/receiptlog"
	"github.com/quittance/quittance/protocol"
	"github.com/quittance/quittance/protocol/tlog"
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
		"plenty":                       {Space{Room: 10 * one, AfterRelease: 10 * one, Release: 1 << 20}, true, true, 0},
		"exactly enough":               {Space{Room: 2*one + consumptionBytes, AfterRelease: one + consumptionBytes, Release: 1 << 20}, true, true, 0},
		"one byte too little":          {Space{Room: 2*one + consumptionBytes - 1, AfterRelease: one + consumptionBytes - 1, Release: 1 << 20}, false, false, preparedMillis},
		"too little for a burn":        {Space{Room: one + consumptionBytes + burnBytes - 1, AfterRelease: 9 * one, Release: 1 << 20}, false, true, preparedMillis},
		"no segment for a release":     {Space{Room: 10 * one, AfterRelease: 10 * one}, false, false, preparedMillis},
		"a base that takes more space": {Space{Room: 10 * one, AfterRelease: 10 * one, Release: 1}, true, true, 0},
		"full":                         {Space{Room: 10 * one, AfterRelease: 10 * one, Release: 1 << 20, Full: true}, false, true, 1000},
		"full, and a larger base":      {Space{Room: 10 * one, AfterRelease: 10 * one, Release: 4000, Full: true}, false, false, 1000},
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

// Where every slot is taken and the ledger has what it is configured for, the
// answer is that every slot is taken.
func TestCapacityBeforeSpace(t *testing.T) {
	s := newSim(t)
	s.witness()
	for n := range protocol.Number(s.bounds.MaxSlots) {
		if r := s.allocate(n+1, "group", "p", testOwner); r.Problem != nil {
			t.Fatal(r.Problem)
		}
	}
	held := int64(s.bounds.MaxSlots + s.bounds.MaxUnreleased)
	s.session.Space = Space{Room: ReserveBytes(int64(s.bounds.MaxSlots), held), Release: 1 << 20}
	next := protocol.Number(s.bounds.MaxSlots + 1)
	if p := s.allocate(next, "group", "p", testOwner).Problem; p == nil || p.Code != protocol.CodeCapacity {
		t.Errorf("%+v", p)
	}
	// A burn takes no slot: the reserve has its space.
	r := s.ask(func(id RequestID) Event {
		return Retire{ID: id, Caller: controller(testOwner), Number: next, Body: protocol.RetireRequest{Purpose: "p"}}
	})
	if r.Problem != nil {
		t.Error(r.Problem)
	}
}

// written is what the groups take in a ledger, each with an attest behind it.
func written(groups [][]Entry) (bytes int64) {
	const record = 72 // its header and padding at most
	for _, group := range groups {
		bytes += record
		for _, e := range group {
			bytes += record + int64(len(e.Payload))
		}
	}
	return bytes
}

// awful is the longest text in JSON.
func awful(bytes int) string { return strings.Repeat("\x01", bytes) }

// What a burnt number writes at most is what is kept for it.
func TestBurnBytes(t *testing.T) {
	s := newSim(t)
	s.witness()
	purpose := strings.Repeat("p", 128)
	before := len(s.groups)
	s.ask(func(id RequestID) Event {
		return Retire{ID: id, Caller: controller(testOwner), Number: 1, Body: protocol.RetireRequest{Purpose: purpose, Note: awful(protocol.MaxNoteBytes)}}
	})
	burnt := len(s.groups)
	s.consume(1, purpose)
	if a := s.state.Allocation(1); a == nil || !a.Consumed {
		t.Fatalf("%+v", a)
	}
	if all, last := written(s.groups[before:]), written(s.groups[burnt:]); all > burnBytes || last > consumptionBytes {
		t.Fatalf("%d bytes, %d of them for consumed; %d and %d are kept", all, last, burnBytes, consumptionBytes)
	}
}

// I33, I36: the longest life of a container that is killed for memory and fails
// to be stopped all the time, with everything at full length, fits into what is
// kept for it; and the base that it is in is as large at most as is said.
func TestLongestLifeFits(t *testing.T) {
	s := newSim(t)
	s.witness()
	purpose, huge := strings.Repeat("p", 128), int64(1<<62)
	before := len(s.groups)
	if r := s.allocate(1, "observe", purpose, testOwner); r.Problem != nil {
		t.Fatal(r.Problem)
	}
	s.step(WorkCreated{Number: 1, Body: createdBody(1, *s.state.Allocation(1).Accepted.Nonce, firstBoot)})
	s.step(WorkStarted{Number: 1, StartMillis: 1})
	const longest = 720 * 60 // minutes: the most that max_lifetime may be
	for range longest {
		s.now.BootMillis += 60_000
		s.step(WorkOOM{Number: 1, Counters: protocol.Counters{OOM: &huge, OOMKill: &huge, OOMGroupKill: &huge, Max: &huge, FailCnt: &huge}})
	}
	s.ask(func(id RequestID) Event {
		return Retire{ID: id, Caller: controller(testOwner), Number: 1, Body: protocol.RetireRequest{Purpose: purpose, Note: awful(protocol.MaxNoteBytes)}}
	})
	for minute := range longest {
		s.now.BootMillis += 60_000
		s.step(WorkProgress{
			Number: 1, Step: []string{"stop", "kill"}[minute%2], Error: awful(2 * protocol.MaxErrorBytes), WaitChannel: awful(64),
			ProcessState: "D", SinceMillis: 1 << 40,
		})
	}
	if a := s.state.Allocation(1); a.OOMReceipts < 16 || a.StuckReceipts < 16 {
		t.Fatalf("%d and %d receipts", a.OOMReceipts, a.StuckReceipts)
	}
	body := exitFacts(137, protocol.VerdictKilled)
	body.Peaks = protocol.Peaks{MemoryBytes: &huge, PIDs: &huge, CPUMicros: &huge}
	s.step(WorkExited{Number: 1, Body: body})
	s.step(WorkRemoved{Number: 1, Removal: allRemoved})
	s.consume(1, purpose)
	if a := s.state.Allocation(1); !a.Consumed {
		t.Fatalf("the life did not end: %+v", a)
	}
	if bytes := written(s.groups[before:]); bytes > BytesPerAllocation || bytes < BytesPerAllocation/4 {
		t.Errorf("a life writes %d bytes; %d are kept", bytes, BytesPerAllocation)
	}

	// The same in a log of its own.
	signer, _, err := tlog.NewSigner(testGeneration)
	if err != nil {
		t.Fatal(err)
	}
	leaves := &leafSource{}
	log := receiptlog.New(leaves, signer)
	for _, group := range s.groups {
		for _, e := range group {
			if e.Receipt {
				log.Append(e.Payload)
				log.Durable([]ledger.Entry{leaves.add(e.Payload)})
			}
		}
	}
	var kept []protocol.Index
	for _, w := range s.state.Kept() {
		kept = append(kept, w.Entry.Index)
	}
	snapshot, err := log.Snapshot(0, kept)
	if err != nil {
		t.Fatal(err)
	}
	if is, said := int64(len(EncodeBase(s.state, snapshot.Bytes()))), s.state.baseBytes(0); is > said || is < said/4 {
		t.Errorf("a base of %d bytes; said are %d", is, said)
	}
}

// leafSource has the leaves of a log.
type leafSource struct{ entries []ledger.Entry }

func (l *leafSource) add(leaf []byte) ledger.Entry {
	l.entries = append(l.entries, ledger.Entry{
		Sequence: uint64(len(l.entries) + 1), Kind: ledger.KindReceipt, Position: ledger.Position(len(l.entries) + 1), Payload: leaf,
	})
	return l.entries[len(l.entries)-1]
}

func (l *leafSource) Read(p ledger.Position) (ledger.Entry, error) { return l.entries[p-1], nil }

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
