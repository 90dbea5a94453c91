package witness

import (
	"errors"
	"strings"
	"testing"

	"github.com/quittance/quittance/protocol"
)

const job = "job-00000000000000000000000000000001"

// outrun is a machine whose controller released history before it was read: ten
// receipts were read, of the next job nothing until the receipt that follows it.
// The receipts of the job are 10 to 14.
func outrun(t *testing.T) *machine {
	m := newMachine(t)
	m.live(1, "a")
	m.live(2, "b")
	m.live(3, "c")
	m.released()
	m.ok(m.send(0), m.checkpoint())
	m.execute(4, job)
	m.released() // 15, which nobody was told of
	m.released()
	m.ok(m.skip(16), m.prove(NoJob, 16), m.send(16), m.w.Take("ended "+job+" finished 00"))
	return m
}

// settled is what must hold in the end (I5 I8 I10).
func (m *machine) settled() error { return errors.Join(m.w.Whole(), m.w.Story(true)) }

// A gap is filled by the job service's receipts, whether they come before the
// next checkpoint or after it; what nobody was told of stays unread.
func TestGapIsFilled(t *testing.T) {
	for name, in := range map[string]func(m *machine){
		"bundle first":     func(m *machine) { m.ok(m.bundle(job, 10, 15), m.checkpoint()) },
		"checkpoint first": func(m *machine) { m.ok(m.checkpoint(), m.bundle(job, 10, 15), m.checkpoint()) },
		"twice":            func(m *machine) { m.ok(m.bundle(job, 10, 15), m.bundle(job, 10, 15), m.checkpoint()) },
		"goes on": func(m *machine) {
			m.ok(m.bundle(job, 10, 15), m.checkpoint())
			m.live(5, "d")
			m.ok(m.send(17), m.checkpoint())
		},
		"proved before it is read": func(m *machine) {
			m.ok(m.bundle(job, 10, 15), m.checkpoint())
			m.live(5, "d")
			m.ok(m.bundle(NoJob, 17, 20), m.send(17), m.checkpoint())
		},
		"the frontier": func(m *machine) { m.ok(m.bundle(job, 10, 15), m.checkpoint(), m.w.Take("frontier 4")) },
	} {
		t.Run(name, func(t *testing.T) {
			m := outrun(t)
			in(m)
			m.ok(m.settled())
			if m.w.Unread() != 1 || !m.w.HasReceipts(job) {
				t.Errorf("%d receipts are unread, expected the one that no allocation has", m.w.Unread())
			}
		})
	}
}

// What was proved ahead of a gap fills it too, wherever a gap begins and ends:
// with every leaf of the job known, nothing that was read is in doubt.
func TestGapAnywhere(t *testing.T) {
	for from := 1; from < 12; from++ {
		for to := from + 1; to <= 17; to++ {
			m := newMachine(t)
			for n := range protocol.Number(5) {
				m.execute(n+1, strings.Replace(job, "1", string(rune('1'+n)), 1))
			}
			for _, leaf := range m.leaves[:from] {
				m.ok(m.takeOne(leaf))
			}
			m.ok(m.bundle(job, from, to), m.skip(to), m.prove(NoJob, to), m.send(to), m.checkpoint(), m.settled())
			if m.w.Unread() != 0 {
				t.Errorf("from %d to %d: %d are unread", from, to, m.w.Unread())
			}
		}
	}
}

// Each machine lost, forged or hid something behind a gap; the witness must say
// so (I5 I8 I10 I16 I20 I27).
func TestGapCatches(t *testing.T) {
	for name, c := range map[string]struct {
		betray func(m *machine) error
		says   string
	}{
		"nothing fills it": {func(m *machine) error {
			m.ok(m.checkpoint())
			return m.settled()
		}, "receipts of it and no whole allocation's"},
		"nothing fills it, and no job is known of": {func(m *machine) error {
			delete(m.w.ended, job)
			m.ok(m.checkpoint(), m.w.Take("frontier 4"))
			return m.settled()
		}, "the host accepted 4 numbers, the log tells of 3"},
		"a number is missing before the next": {func(m *machine) error {
			delete(m.w.ended, job)
			m.live(5, "d")
			m.ok(m.send(17), m.checkpoint())
			return m.settled()
		}, "accepts 5 after 3"},
		"one receipt is missing": {func(m *machine) error {
			m.ok(m.bundle(job, 10, 14), m.checkpoint())
			return m.settled()
		}, "no whole allocation's"},
		"one receipt is missing, and the job failed": {func(m *machine) error {
			delete(m.w.ended, job)
			m.ok(m.bundle(job, 10, 14), m.checkpoint())
			return m.settled()
		}, "number 4 was never consumed"},
		"the retirement is missing": {func(m *machine) error {
			delete(m.w.ended, job)
			m.ok(m.bundle(job, 10, 13), m.prove(job, 14), m.checkpoint())
			return m.settled()
		}, "of which no retirement was seen"},
		"a forged leaf": {func(m *machine) error {
			return m.proveAs(job, 11, protocol.EncodeReceipt(generation, 11, protocol.KindStarted, 4, 2, protocol.StartedBody{}))
		}, "does not stand there"},
		"a leaf of another place": {func(m *machine) error { return m.proveAs(job, 11, m.leaves[12]) }, "does not stand there"},
		"another key": {func(m *machine) error {
			m.signer = newMachine(m.t).signer
			return m.prove(job, 11)
		}, "receipt 11"},
		"another leaf than was read": {func(m *machine) error {
			m.leaves[4] = protocol.EncodeReceipt(generation, 4, protocol.KindReleased, 0, 2, protocol.ReleasedBody{Except: []protocol.Number{}})
			return m.prove(job, 4)
		}, "was noted, and another one is proved"},
		"a fork behind the gap": {func(m *machine) error {
			// What was read is gone, and all that follows is as it was.
			m.leaves[9] = protocol.EncodeReceipt(generation, 9, protocol.KindReleased, 0, 2, protocol.ReleasedBody{Except: []protocol.Number{}})
			if err := m.bundle(job, 10, 15); err != nil {
				return err
			}
			if err := m.checkpoint(); err != nil {
				return err
			}
			return m.settled()
		}, "another history"},
		"a fork in the gap": {func(m *machine) error {
			m.ok(m.bundle(job, 10, 15))
			m.leaves[15] = protocol.EncodeReceipt(generation, 15, protocol.KindReleased, 0, 2, protocol.ReleasedBody{Except: []protocol.Number{}})
			return m.checkpoint()
		}, "the signed root"},
		"a proof of a log that is longer": {func(m *machine) error {
			m.ok(m.bundle(job, 10, 15), m.checkpoint())
			m.live(5, "d")
			m.ok(m.prove(NoJob, 3))
			return m.settled()
		}, "a proof is of 20 receipts"},
		"a receipt that the log lost at its end": {func(m *machine) error {
			m.ok(m.bundle(job, 10, 15), m.checkpoint())
			m.live(5, "d")
			m.ok(m.prove(NoJob, 17))
			m.leaves = m.leaves[:17]
			return m.settled()
		}, "receipt 17 was proved, the log ends with 16"},
		"no proof over the gap": {func(m *machine) error {
			m = newMachine(m.t)
			m.live(1, "a")
			m.ok(m.send(0))
			m.released()
			m.released()
			m.ok(m.skip(4), m.send(4), m.checkpoint())
			return m.settled()
		}, "nothing shows what the signed root of 5 receipts is made of; unread: 3"},
		"what was read last is not shown": {func(m *machine) error {
			m = newMachine(m.t)
			m.live(1, "a")
			m.released()
			m.released()
			m.ok(m.send(0))
			m.released()
			m.released()
			m.released()
			m.ok(m.skip(7), m.prove(NoJob, 7), m.send(7), m.checkpoint())
			return m.settled()
		}, "nothing shows that the log still has them"},
		"receipts of another job": {func(m *machine) error {
			m.ok(m.bundle("job-2", 10, 15), m.w.Take("ended job-2 finished 00"), m.checkpoint())
			return m.settled()
		}, "whose purpose is"},
		"a receipt that is no allocation's": {func(m *machine) error {
			m.ok(m.bundle(job, 10, 16), m.checkpoint())
			return m.settled()
		}, "which is no allocation's"},
		"a gap backwards": {func(m *machine) error { return m.skip(3) }, "begins with 3"},
	} {
		t.Run(name, func(t *testing.T) {
			err := c.betray(outrun(t))
			if err == nil || !strings.Contains(err.Error(), c.says) {
				t.Errorf("got %v, expected %q", err, c.says)
			}
		})
	}
}
