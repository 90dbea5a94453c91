package ledger

import (
	"bytes"
	"errors"
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"
	"time"

	"pgregory.net/rapid"

	_ "github.com/quittance/quittance/integration/seed"
	"github.com/quittance/quittance/protocol"
)

// modelLog is the simple truth that the ledger is held against: numbered
// groups, of which those up to acked must be there after whatever happened,
// and behind them whole groups in order, nothing else (I5, I8, I35).
type modelLog struct {
	t       *rapid.T
	fs      *forgetFS
	r       *rand.Rand
	o       Options
	ledger  *Ledger
	history [][][]byte // payloads of group i+1
	bases   []int      // numbers of groups folded by each release queued
	acked   int        // groups acknowledged
	based   int        // folded by the newest acknowledged release
	life    int
	results chan result
	waiting int
	where   map[int]Entry // first entry of an acknowledged group
}

type result struct {
	group   int
	base    int
	entries []Entry
	err     error
}

func (m *modelLog) open() {
	var err error
	m.life++
	if m.ledger, err = Open("ledger", m.o); err != nil {
		m.t.Fatalf("open: %v", err)
	}
}

// payloads makes a group that no other life of the process can have made.
func (m *modelLog) payloads() [][]byte {
	group := make([][]byte, rapid.IntRange(1, 3).Draw(m.t, "records"))
	for i := range group {
		size := rapid.SampledFrom([]int{0, 1, 7, 300, 700, 5000, 20000}).Draw(m.t, "size")
		group[i] = append(fmt.Appendf(nil, "life %d group %d record %d ", m.life, len(m.history)+1, i), bytes.Repeat([]byte{'x'}, size)...)
	}
	return group
}

func (m *modelLog) append() {
	group := m.payloads()
	records := make([]Record, len(group))
	for i := range group {
		records[i] = Record{Kind: KindReceipt, Payload: group[i]}
	}
	number := len(m.history) + 1
	err := m.ledger.Append(records, func(e []Entry, err error) { m.results <- result{number, 0, e, err} })
	if errors.Is(err, ErrNoSpace) {
		return
	}
	if err != nil {
		m.t.Fatalf("append: %v", err)
	}
	m.history = append(m.history, group)
	m.waiting++
}

func (m *modelLog) release() {
	folded := len(m.history)
	group := m.payloads()[:1]
	base := fmt.Appendf(nil, "base %d %s", folded, strings.Repeat("b", rapid.SampledFrom([]int{0, 1000, 100000}).Draw(m.t, "base size")))
	err := m.ledger.Release(Release{Base: base, Records: []Record{{KindReceipt, group[0]}}},
		func(e []Entry, err error) { m.results <- result{folded + 1, folded, e, err} })
	if errors.Is(err, ErrNoSpace) {
		return
	}
	if err != nil {
		m.t.Fatalf("release: %v", err)
	}
	m.history = append(m.history, group)
	m.bases = append(m.bases, folded)
	m.waiting++
}

// settle waits until everything queued was answered.
func (m *modelLog) settle() {
	failed := false
	for ; m.waiting > 0; m.waiting-- {
		res := <-m.results
		if res.err != nil {
			if _, final := errors.AsType[*FailedError](res.err); !final {
				m.t.Fatalf("group %d: %v is not final", res.group, res.err)
			}
			failed = true
			continue
		}
		if failed {
			m.t.Fatalf("group %d acknowledged after a failure (I35)", res.group)
		}
		if res.group != m.acked+1 {
			m.t.Fatalf("group %d acknowledged after group %d", res.group, m.acked)
		}
		m.acked = res.group
		if res.base > 0 {
			m.based = res.base
			clear(m.where)
		}
		m.where[res.group] = res.entries[len(res.entries)-1]
	}
}

// verify compares what a new opening found with the model, and goes on from
// there: what was found counts as acknowledged from now on.
func (m *modelLog) verify() {
	rec := m.ledger.Recovered()
	folded := 0
	if rec.Base != nil {
		if _, err := fmt.Sscanf(string(rec.Base), "base %d ", &folded); err != nil {
			m.t.Fatalf("base %.40q: %v", rec.Base, err)
		}
	}
	known := folded == 0
	for _, b := range m.bases {
		known = known || b == folded
	}
	if !known || folded < m.based {
		m.t.Fatalf("base folds %d groups; acknowledged was %d", folded, m.based)
	}
	var records [][]byte
	for e, err := range rec.Records {
		if err != nil {
			m.t.Fatalf("recovered: %v", err)
		}
		records = append(records, e.Payload)
	}
	n := folded
	for len(records) > 0 {
		if n == len(m.history) || len(records) < len(m.history[n]) {
			m.t.Fatalf("found %d records behind group %d that are no whole group", len(records), n)
		}
		for i, want := range m.history[n] {
			if !bytes.Equal(records[i], want) {
				m.t.Fatalf("group %d record %d: %.40q, want %.40q", n+1, i, records[i], want)
			}
		}
		records = records[len(m.history[n]):]
		n++
	}
	if n < m.acked {
		m.t.Fatalf("groups up to %d were acknowledged, found %d", m.acked, n)
	}
	m.history, m.acked, m.based = m.history[:n], n, folded
	for group, want := range m.where {
		if group <= folded {
			continue
		}
		if got, err := m.ledger.Read(want.Position); err != nil || !bytes.Equal(got.Payload, want.Payload) {
			m.t.Fatalf("read group %d again: %.40q, %v", group, got.Payload, err)
		}
	}
}

// TestModel drives the ledger through appends, releases, power cuts, failed
// syncs, full disks and restarts, and compares it after each with the model.
func TestModel(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		f := newForgetFS()
		m := &modelLog{
			t: t, fs: f, r: rand.New(rand.NewPCG(rapid.Uint64().Draw(t, "seed"), 0)), results: make(chan result, 1000), where: map[int]Entry{},
			o: Options{Generation: protocol.NewID(), Segment: 64 << 10, AttestAfter: time.Millisecond, FS: f,
				Reserve: rapid.SampledFrom([]int64{0, 100 << 10}).Draw(t, "reserve")},
		}
		m.history = [][][]byte{{[]byte("genesis")}}
		if err := Create("ledger", m.o, []Record{{KindReceipt, []byte("genesis")}}); err != nil {
			t.Fatal(err)
		}
		m.acked = 1
		m.open()
		for range rapid.IntRange(1, 12).Draw(t, "rounds") {
			ending := rapid.SampledFrom([]string{"close", "power", "power", "power", "sync fails", "process"}).Draw(t, "ending")
			chance := rapid.SampledFrom([]float64{0, 0.3, 0.7, 1}).Draw(t, "kept")
			f.mu.Lock()
			switch ending {
			case "power":
				f.countdown = rapid.IntRange(0, 30).Draw(t, "countdown")
			case "sync fails":
				left := rapid.IntRange(0, 12).Draw(t, "syncs")
				f.fail = func(op, _ string) error {
					if op == "sync" || op == "syncdir" {
						if left--; left < 0 {
							return errIO
						}
					}
					return nil
				}
			}
			f.mu.Unlock()
			for range rapid.IntRange(0, 25).Draw(t, "operations") {
				switch rapid.SampledFrom([]string{"append", "append", "append", "settle", "idle", "release"}).Draw(t, "operation") {
				case "append":
					m.append()
				case "release":
					m.release()
				case "settle":
					m.settle()
				case "idle":
					m.settle()
					time.Sleep(2 * time.Millisecond) // lets the attest timer fire; nothing waits for it
				}
			}
			if ending == "close" || ending == "sync fails" && rapid.Bool().Draw(t, "settled") {
				m.settle()
			}
			if err := m.ledger.Close(); err != nil && ending == "close" {
				t.Fatalf("close: %v", err)
			}
			m.settle()
			switch ending {
			case "power":
				f.powerCut(m.r, chance)
			case "sync fails", "process":
				f.restart()
			}
			if _, err := Check("ledger", m.o); err != nil {
				t.Fatalf("check after %s: %v", ending, err)
			}
			if rapid.IntRange(0, 2).Draw(t, "power cut while opening") == 0 {
				f.countdown = rapid.IntRange(0, 12).Draw(t, "opening countdown")
				if l, err := Open("ledger", m.o); err == nil {
					m.ledger = l
					m.verify()
					_ = l.Close() // fails where the power went meanwhile
				} else if !errors.Is(err, errPower) {
					t.Fatalf("open: %v", err)
				}
				f.powerCut(m.r, chance)
			}
			m.open()
			m.verify()
			if rapid.Bool().Draw(t, "power cut behind the opening") {
				// What was served must be on the disk, whatever the cache held.
				if err := m.ledger.Close(); err != nil {
					t.Fatalf("close: %v", err)
				}
				f.powerCut(m.r, 0)
				m.open()
				m.verify()
			}
		}
		if err := m.ledger.Close(); err != nil {
			t.Fatalf("close: %v", err)
		}
	})
}
