package witness

import (
	"crypto/sha256"
	"encoding/base64"
	"fmt"
	"slices"
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

// execute writes the whole life of a job's allocation.
func (m *machine) execute(number protocol.Number, job string) {
	oom := protocol.OOM{Verdict: protocol.VerdictUnknown, Source: protocol.CountersFromNone}
	m.accept(number, "att."+job+".0")
	m.write(protocol.KindStarted, number, protocol.StartedBody{})
	m.write(protocol.KindExited, number, protocol.ExitedBody{OOM: oom, LogSink: protocol.LogSinkOK})
	m.retire(number)
	m.write(protocol.KindConsumed, number, protocol.ConsumedBody{RetiredIndex: protocol.Index(len(m.leaves) - 1), RetiredLeaf: digest})
}

// released writes a receipt that no allocation and no job has.
func (m *machine) released() {
	m.write(protocol.KindReleased, 0, protocol.ReleasedBody{Except: []protocol.Number{}})
}

func (m *machine) retire(number protocol.Number) {
	m.write(protocol.KindRetired, number, protocol.RetiredBody{Reason: protocol.ReasonRequested,
		OOM:     protocol.OOM{Verdict: protocol.VerdictUnknown, Source: protocol.CountersFromNone},
		LogSink: protocol.LogSinkOK,
		Removal: protocol.Removal{Task: protocol.RemovedAbsent, Container: protocol.RemovedAbsent, Snapshot: protocol.RemovedAbsent,
			Cgroup: protocol.RemovedAbsent, LogSink: protocol.RemovedAbsent, Devices: protocol.RemovedAbsent}})
}

// takeOne notes one leaf.
func (m *machine) takeOne(leaf []byte) error {
	return m.w.Take("leaf " + base64.StdEncoding.EncodeToString(leaf))
}

// send notes the leaves from an index on; the first error is returned.
func (m *machine) send(from int) error {
	for _, leaf := range m.leaves[from:] {
		if err := m.takeOne(leaf); err != nil {
			return err
		}
	}
	return nil
}

// checkpoint notes a signed checkpoint of the whole log; TestRoot proves root.
func (m *machine) checkpoint() error {
	return m.w.Take("checkpoint " + base64.StdEncoding.EncodeToString([]byte(m.sign())))
}

// sign makes a checkpoint of the whole log.
func (m *machine) sign() string {
	text, err := tlog.SignCheckpoint(m.signer, tlog.Tree{Size: int64(len(m.leaves)), Root: root(m.t, m.leaves)})
	if err != nil {
		m.t.Fatal(err)
	}
	return text
}

// root is that of a tree of which every leaf is held.
func root(t *testing.T, leaves [][]byte) hash {
	all, err := tree{leaves: leaves}.span(0, len(leaves))
	if err != nil || !all.known || len(all.unseen) > 0 {
		t.Fatalf("%+v, %v", all, err)
	}
	return all.hash
}

// path is the inclusion proof of RFC 6962, section 2.1.1.
func path(t *testing.T, i int, leaves [][]byte) []hash {
	if len(leaves) == 1 {
		return nil
	}
	half := 1
	for half*2 < len(leaves) {
		half *= 2
	}
	if i < half {
		return append(path(t, i, leaves[:half]), root(t, leaves[half:]))
	}
	return append(path(t, i-half, leaves[half:]), root(t, leaves[:half]))
}

// prove notes a receipt with its proof in the log of now.
func (m *machine) prove(job string, i int) error { return m.proveAs(job, i, m.leaves[i]) }

// proveAs notes another leaf in the place of the proved one.
func (m *machine) proveAs(job string, i int, leaf []byte) error {
	proof := tlog.Proof{Index: protocol.Index(i), Checkpoint: m.sign()}
	for _, h := range path(m.t, i, m.leaves) {
		proof.Hashes = append(proof.Hashes, h)
	}
	return m.w.Take(fmt.Sprintf("proved %s %s %s", job, base64.StdEncoding.EncodeToString(leaf),
		base64.StdEncoding.EncodeToString([]byte(proof.Format()))))
}

// bundle notes all receipts of a range as those of a job.
func (m *machine) bundle(job string, from, to int) error {
	for i := from; i < to; i++ {
		if err := m.prove(job, i); err != nil {
			return err
		}
	}
	return nil
}

// skip notes that the agent begins with an index.
func (m *machine) skip(first int) error { return m.w.Take(fmt.Sprintf("gap %d", first)) }

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

// The roots of RFC 6962 trees, written out from its definition, and the proof of
// each leaf in each tree.
func TestRoot(t *testing.T) {
	leaf := func(i int) hash { return sha256.Sum256([]byte{0, byte(i)}) }
	join := func(l, r hash) hash {
		return sha256.Sum256([]byte("\x01" + string(l[:]) + string(r[:])))
	}
	for n, want := range map[int]hash{
		0: sha256.Sum256(nil),
		1: leaf(0),
		2: join(leaf(0), leaf(1)),
		3: join(join(leaf(0), leaf(1)), leaf(2)),
		5: join(join(join(leaf(0), leaf(1)), join(leaf(2), leaf(3))), leaf(4)),
		7: join(join(join(leaf(0), leaf(1)), join(leaf(2), leaf(3))), join(join(leaf(4), leaf(5)), leaf(6))),
	} {
		var leaves [][]byte
		for i := range n {
			leaves = append(leaves, []byte{byte(i)})
		}
		if got := root(t, leaves); got != want {
			t.Errorf("%d leaves: %x, expected %x", n, got, want)
		}
	}
	if empty := fmt.Sprintf("%x", root(t, nil)); !strings.HasPrefix(empty, "e3b0c44298fc1c14") {
		t.Errorf("the empty tree is %s", empty)
	}
}

// Every proof leads to the root, and what it shows on the way is true; with any
// hash of it changed, left out or added it leads elsewhere or nowhere.
func TestClimb(t *testing.T) {
	var leaves [][]byte
	for n := range 20 {
		leaves = append(leaves, []byte{byte(n)})
		want := root(t, leaves)
		for i := range leaves {
			proof := path(t, i, leaves)
			got, shown, err := climb(i, len(leaves), leafHash(leaves[i]), proof)
			if err != nil || got != want {
				t.Fatalf("leaf %d of %d: %x, %v", i, len(leaves), got, err)
			}
			for at, h := range shown {
				lo, hi := at.index<<at.level, (at.index+1)<<at.level
				if hi > len(leaves) || root(t, leaves[lo:hi]) != h {
					t.Errorf("leaf %d of %d: the proof shows a wrong subtree %v", i, len(leaves), at)
				}
			}
			if _, _, err := climb(i, len(leaves), leafHash(leaves[i]), append(slices.Clone(proof), want)); err == nil {
				t.Errorf("leaf %d of %d: a proof that is too long passed", i, len(leaves))
			}
			if len(proof) == 0 {
				continue
			}
			if got, _, err := climb(i, len(leaves), leafHash(leaves[i]), proof[1:]); err == nil && got == want {
				t.Errorf("leaf %d of %d: a proof that is too short passed", i, len(leaves))
			}
			forged := slices.Clone(proof)
			forged[0][0] ^= 1
			if got, _, err := climb(i, len(leaves), leafHash(leaves[i]), forged); err != nil || got == want {
				t.Errorf("leaf %d of %d: a forged proof passed: %v", i, len(leaves), err)
			}
		}
	}
	for _, index := range []int{-1, 3} {
		if _, _, err := climb(index, 3, hash{}, nil); err == nil {
			t.Errorf("index %d of 3 passed", index)
		}
	}
}
