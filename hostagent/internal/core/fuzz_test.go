package core

import (
	"testing"

	"github.com/quittance/quittance/protocol"
)

// A ledger that a stranger wrote, or that holds what this program never writes,
// is an error or folds to a state that can be opened, shown and written as a
// base: it never panics (FR-21).
func FuzzApply(f *testing.F) {
	// Every kind of entry that the scripts' beginnings write.
	w := newWorld(f, noDefect)
	for _, action := range []string{"allocate 1", "sync", "report 0", "sync", "report 0", "sync", "channel 1", "sync", "retire 1", "sync", "report 0", "sync", "report 0", "sync", "consume 1", "burn 2", "sync"} {
		w.act(action)
	}
	if w.err != "" {
		f.Fatal(w.err)
	}
	var valid []Entry
	for _, group := range w.groups {
		valid = append(valid, group...)
	}
	for i, e := range valid {
		f.Add(i, e.Receipt, e.Payload)
	}
	f.Add(3, true, protocol.EncodeReceipt(testGeneration, 3, protocol.KindAccepted, 1, 1, protocol.AcceptedBody{
		Owner: testOwner, Purpose: "a", Profile: new("group"), Devices: []protocol.Device{},
	}))
	f.Fuzz(func(t *testing.T, position int, receipt bool, payload []byte) {
		if position < 0 || position > len(valid) {
			return
		}
		s := NewState()
		for _, e := range valid[:position] {
			if err := Apply(s, e); err != nil {
				t.Fatal(err)
			}
		}
		if err := Apply(s, Entry{Receipt: receipt, Payload: payload}); err != nil {
			return
		}
		if s.Generation == "" {
			return // nothing but genesis begins a ledger; journal checks it
		}
		if _, _, err := OpenBase(EncodeBase(s, nil)); err != nil {
			t.Fatalf("the base of a folded state does not open: %v", err)
		}
		v := NewSession(secondBoot, protocol.CgroupV2, Bounds{MaxSlots: 9, MaxUnreleased: 9, StuckAfterMillis: 1})
		Step(s, v, Now{BootMillis: 1}, Started{})
		Step(s, v, Now{BootMillis: 2}, ListAllocations{ID: 1})
	})
}

// FuzzOpenBase: a base that was altered is refused or opens, and never panics.
func FuzzOpenBase(f *testing.F) {
	w := newWorld(f, noDefect)
	for _, action := range []string{"allocate 1", "sync", "report 0", "burn 2", "sync"} {
		w.act(action)
	}
	f.Add(EncodeBase(w.state, []byte("tree")))
	f.Add(EncodeBase(NewState(), nil))
	f.Fuzz(func(t *testing.T, payload []byte) {
		s, tree, err := OpenBase(payload)
		if err != nil {
			return
		}
		if _, _, err := OpenBase(EncodeBase(s, tree)); err != nil {
			t.Fatalf("a base that opened does not open again: %v", err)
		}
	})
}
