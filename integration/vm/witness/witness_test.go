package witness

import (
	"crypto/sha256"
	"encoding/base64"
	"fmt"
	"strings"
	"testing"

	"github.com/quittance/quittance/protocol"
	"github.com/quittance/quittance/protocol/tlog"
)

const (
	generation = protocol.ID("0123456789abcdef0123456789abcdef")
	digest     = protocol.Digest("sha256:0000000000000000000000000000000000000000000000000000000000000000")
)

// machine writes what a machine would note.
type machine struct {
	t      *testing.T
	signer *tlog.Signer
	w      *Witness
	leaves [][]byte
}

func newMachine(t *testing.T) *machine {
	signer, _, err := tlog.NewSigner(generation)
	if err != nil {
		t.Fatal(err)
	}
	m := &machine{t: t, signer: signer, w: New()}
	if err := m.w.SetKey(signer.PublicKey()); err != nil {
		t.Fatal(err)
	}
	return m
}

// write appends a receipt to the machine's log.
func (m *machine) write(kind protocol.Kind, number protocol.Number, body any) {
	m.leaves = append(m.leaves, protocol.EncodeReceipt(generation, protocol.Index(len(m.leaves)), kind, number, 1, body))
}

func (m *machine) accept(number protocol.Number, purpose string) {
	m.write(protocol.KindAccepted, number, protocol.AcceptedBody{Owner: generation, Purpose: purpose, Devices: []protocol.Device{}})
}

// live writes a burnt number's whole life.
func (m *machine) live(number protocol.Number, purpose string) {
	m.accept(number, purpose)
	m.retire(number)
	m.write(protocol.KindConsumed, number, protocol.ConsumedBody{RetiredIndex: protocol.Index(len(m.leaves) - 1), RetiredLeaf: digest})
}

func (m *machine) retire(number protocol.Number) {
	m.write(protocol.KindRetired, number, protocol.RetiredBody{Reason: protocol.ReasonRequested,
		OOM:     protocol.OOM{Verdict: protocol.VerdictUnknown, Source: protocol.CountersFromNone},
		LogSink: protocol.LogSinkOK,
		Removal: protocol.Removal{Task: protocol.RemovedAbsent, Container: protocol.RemovedAbsent, Snapshot: protocol.RemovedAbsent,
			Cgroup: protocol.RemovedAbsent, LogSink: protocol.RemovedAbsent, Devices: protocol.RemovedAbsent}})
}

// send notes the leaves from an index on; the first error is returned.
func (m *machine) send(from int) error {
	for _, leaf := range m.leaves[from:] {
		if err := m.w.Take("leaf " + base64.StdEncoding.EncodeToString(leaf)); err != nil {
			return err
		}
	}
	return nil
}

// checkpoint notes a signed checkpoint of the whole log; TestRoot proves root.
func (m *machine) checkpoint() error {
	hashes := make([][32]byte, len(m.leaves))
	for i, leaf := range m.leaves {
		hashes[i] = tlog.LeafHash(leaf)
	}
	text, err := tlog.SignCheckpoint(m.signer, tlog.Tree{Size: int64(len(hashes)), Root: root(hashes)})
	if err != nil {
		m.t.Fatal(err)
	}
	return m.w.Take("checkpoint " + base64.StdEncoding.EncodeToString([]byte(text)))
}

func (m *machine) ok(errs ...error) {
	m.t.Helper()
	for _, err := range errs {
		if err != nil {
			m.t.Fatal(err)
		}
	}
}

func TestHonestMachine(t *testing.T) {
	m := newMachine(t)
	m.live(1, "a")
	m.live(2, "b")
	m.ok(m.send(0), m.checkpoint(), m.w.Take("created op-1 job-1"), m.w.Take("created op-1 job-1"), m.w.Take("ended job-1 finished 00"))
	m.live(3, "c")
	m.ok(m.send(6), m.checkpoint(), m.w.Take("ended job-1 finished 00"), m.w.Story(true))
	if m.w.Receipts() != 9 || len(m.w.Jobs()) != 1 || m.w.Ends()["job-1"] != "finished 00" || m.w.Last() != "8" {
		t.Errorf("%d receipts, jobs %v, ends %v, last %s", m.w.Receipts(), m.w.Jobs(), m.w.Ends(), m.w.Last())
	}
}

// Each machine lost or changed something; the witness must say so.
func TestWitnessCatches(t *testing.T) {
	for name, betray := range map[string]func(m *machine) error{
		"a leaf lost": func(m *machine) error { // I8
			m.live(1, "a")
			m.ok(m.send(0))
			m.leaves = m.leaves[:2]
			m.live(2, "b")
			return m.send(2)
		},
		"a leaf lost behind the same size": func(m *machine) error { // I10
			m.live(1, "a")
			m.ok(m.send(0))
			m.leaves = m.leaves[:2]
			m.write(protocol.KindConsumed, 1, protocol.ConsumedBody{RetiredIndex: 0, RetiredLeaf: digest})
			return m.checkpoint()
		},
		"a shorter log": func(m *machine) error {
			m.live(1, "a")
			m.ok(m.send(0), m.checkpoint())
			m.leaves = m.leaves[:2]
			return m.checkpoint()
		},
		"another key": func(m *machine) error {
			m.live(1, "a")
			m.ok(m.send(0))
			signer, _, err := tlog.NewSigner(generation)
			m.ok(err)
			m.signer = signer
			return m.checkpoint()
		},
		"a checkpoint of unsent leaves": func(m *machine) error {
			m.live(1, "a")
			m.ok(m.send(0))
			m.live(2, "b")
			return m.checkpoint()
		},
		"a number used twice": func(m *machine) error { // I5
			m.live(1, "a")
			m.live(1, "b")
			m.ok(m.send(0))
			return m.w.Story(true)
		},
		"a number left out": func(m *machine) error {
			m.live(1, "a")
			m.live(3, "b")
			m.ok(m.send(0))
			return m.w.Story(false)
		},
		"a number never accepted": func(m *machine) error {
			m.retire(1)
			m.ok(m.send(0))
			return m.w.Story(false)
		},
		"consumed before retired": func(m *machine) error {
			m.accept(1, "a")
			m.write(protocol.KindConsumed, 1, protocol.ConsumedBody{RetiredIndex: 0, RetiredLeaf: digest})
			m.retire(1)
			m.ok(m.send(0))
			return m.w.Story(false)
		},
		"never consumed": func(m *machine) error {
			m.accept(1, "a")
			m.retire(1)
			m.ok(m.send(0), m.w.Story(false))
			return m.w.Story(true)
		},
		"an attempt executed twice": func(m *machine) error { // I27
			m.live(1, "a")
			m.live(2, "a")
			m.ok(m.send(0))
			return m.w.Story(true)
		},
		"a job's end changed": func(m *machine) error {
			m.ok(m.w.Take("ended job-1 finished 00"))
			return m.w.Take("ended job-1 failed 00")
		},
		"a result changed": func(m *machine) error {
			m.ok(m.w.Take("ended job-1 finished 00"))
			return m.w.Take("ended job-1 finished 01")
		},
		"a note that is none": func(m *machine) error { return m.w.Take("leaf") },
	} {
		t.Run(name, func(t *testing.T) {
			m := newMachine(t)
			if err := betray(m); err == nil {
				t.Error("not caught")
			} else {
				t.Log(err)
			}
		})
	}
}

// The roots of RFC 6962 trees, written out from its definition.
func TestRoot(t *testing.T) {
	leaf := func(i int) [32]byte { return sha256.Sum256([]byte{0, byte(i)}) }
	node := func(l, r [32]byte) [32]byte {
		return sha256.Sum256([]byte("\x01" + string(l[:]) + string(r[:])))
	}
	for n, want := range map[int][32]byte{
		0: sha256.Sum256(nil),
		1: leaf(0),
		2: node(leaf(0), leaf(1)),
		3: node(node(leaf(0), leaf(1)), leaf(2)),
		5: node(node(node(leaf(0), leaf(1)), node(leaf(2), leaf(3))), leaf(4)),
		7: node(node(node(leaf(0), leaf(1)), node(leaf(2), leaf(3))), node(node(leaf(4), leaf(5)), leaf(6))),
	} {
		var hashes [][32]byte
		for i := range n {
			hashes = append(hashes, leaf(i))
		}
		if got := root(hashes); got != want {
			t.Errorf("%d leaves: %x, expected %x", n, got, want)
		}
	}
	if empty := fmt.Sprintf("%x", root(nil)); !strings.HasPrefix(empty, "e3b0c44298fc1c14") {
		t.Errorf("the empty tree is %s", empty)
	}
}
