package receiptlog

import (
	"bytes"
	"errors"
	"fmt"
	"maps"
	"slices"
	"testing"

	"github.com/transparency-dev/formats/proof"
	merkle "github.com/transparency-dev/merkle/proof"
	"github.com/transparency-dev/merkle/rfc6962"
	"pgregory.net/rapid"

	"github.com/quittance/quittance/hostagent/internal/ledger"
	_ "github.com/quittance/quittance/integration/seed"
	"github.com/quittance/quittance/protocol"
	"github.com/quittance/quittance/protocol/tlog"
)

// modelLog is the simple truth: all leaves there ever were.
type modelLog struct {
	t       *rapid.T
	source  *memory
	signer  *tlog.Signer
	key     *tlog.PublicKey
	log     *Log
	leaves  [][]byte // queued
	durable int
	first   int
	pruned  int
	carried map[protocol.Index]bool
}

func (m *modelLog) check() {
	t := m.t
	first, head, _ := m.log.Head()
	if int(first) != m.first || int(head) != m.durable-1 || int(m.log.Pruned()) != m.pruned || int(m.log.Queued()) != len(m.leaves) {
		t.Fatalf("first %d head %d pruned %d queued %d; want %d %d %d %d", first, head, m.log.Pruned(), m.log.Queued(), m.first, m.durable-1, m.pruned, len(m.leaves))
	}
	c, err := m.log.Checkpoint()
	if err != nil {
		t.Fatal(err)
	}
	parsed, err := tlog.ParseCheckpoint(c.Text, m.key)
	if err != nil {
		t.Fatal(err)
	}
	root := rootOf(m.leaves[:m.durable])
	if parsed.Tree.Size != int64(m.durable) || parsed.Tree.Root != root {
		t.Fatalf("checkpoint of size %d with root %x, want %d with %x", parsed.Tree.Size, parsed.Tree.Root, m.durable, root)
	}
	for range 6 {
		index := protocol.Index(rapid.IntRange(0, len(m.leaves)).Draw(t, "index"))
		m.checkLeaf(index, root[:])
	}
	for range 4 {
		m.checkConsistency(rapid.IntRange(0, m.durable+1).Draw(t, "from"), root[:])
	}
	m.checkRead(protocol.Index(rapid.IntRange(-1, m.durable).Draw(t, "after")))
}

func (m *modelLog) checkLeaf(index protocol.Index, root []byte) {
	t := m.t
	leaf, leafErr := m.log.Leaf(index)
	p, proofErr := m.log.Proof(index)
	switch {
	case int(index) >= m.durable:
		m.wantAhead(leafErr)
		m.wantAhead(proofErr)
		return
	case int(index) < m.first && !m.carried[index]:
		m.wantPruned(leafErr)
		m.wantPruned(proofErr)
		return
	case leafErr != nil || proofErr != nil:
		t.Fatalf("receipt %d: %v, %v", index, leafErr, proofErr)
	}
	if !bytes.Equal(leaf, m.leaves[index]) {
		t.Fatalf("receipt %d is %q, want %q", index, leaf, m.leaves[index])
	}
	// Three independent readers: ours, transparency-dev's text format and its
	// proof verification.
	if _, err := p.Verify(leaf, m.key); err != nil {
		t.Fatalf("receipt %d: %v", index, err)
	}
	var other proof.TLogProof
	if err := other.Unmarshal([]byte(p.Format())); err != nil {
		t.Fatalf("receipt %d: %v", index, err)
	}
	hashes := make([][]byte, len(other.Hashes))
	for i := range other.Hashes {
		hashes[i] = other.Hashes[i][:]
	}
	if err := merkle.VerifyInclusion(rfc6962.DefaultHasher, other.Index, uint64(m.durable), rfc6962.DefaultHasher.HashLeaf(leaf), hashes, root); err != nil {
		t.Fatalf("receipt %d: %v", index, err)
	}
	h, err := m.log.LeafHash(index)
	if err != nil || !bytes.Equal(h[:], rfc6962.DefaultHasher.HashLeaf(leaf)) {
		t.Fatalf("leaf hash of %d: %v", index, err)
	}
}

func (m *modelLog) checkConsistency(from int, root []byte) {
	c, hashes, err := m.log.Consistency(int64(from))
	older, treeErr := m.log.TreeAt(int64(from))
	switch {
	case from > m.durable:
		m.wantAhead(err)
		m.wantAhead(treeErr)
		return
	case from < m.pruned:
		m.wantPruned(treeErr)
		if from > 0 {
			m.wantPruned(err)
		}
		return
	case err != nil || treeErr != nil:
		m.t.Fatalf("consistency from %d: %v, %v", from, err, treeErr)
	}
	want := rootOf(m.leaves[:from])
	if older.Root != want || int(c.Tree.Size) != m.durable {
		m.t.Fatalf("root at %d: %x, want %x", from, older.Root, want)
	}
	if from == 0 {
		if len(hashes) != 0 {
			m.t.Fatalf("a proof from nothing has %d hashes", len(hashes))
		}
		return
	}
	if err := merkle.VerifyConsistency(rfc6962.DefaultHasher, uint64(from), uint64(m.durable), flat(hashes), want[:], root); err != nil {
		m.t.Fatalf("consistency from %d to %d: %v", from, m.durable, err)
	}
}

func (m *modelLog) checkRead(after protocol.Index) {
	limit := rapid.IntRange(0, 5).Draw(m.t, "limit")
	bytesLimit := rapid.IntRange(1, 100).Draw(m.t, "bytes")
	got, err := m.log.Read(after, limit, bytesLimit)
	switch {
	case int(after) >= m.durable:
		m.wantAhead(err)
		return
	case int(after)+1 < m.first:
		m.wantPruned(err)
		return
	case err != nil:
		m.t.Fatalf("read after %d: %v", after, err)
	}
	if len(got) > limit || limit > 0 && len(got) == 0 && int(after)+1 < m.durable {
		m.t.Fatalf("read after %d: %d receipts with limit %d", after, len(got), limit)
	}
	total := 0
	for i, leaf := range got {
		if !bytes.Equal(leaf, m.leaves[int(after)+1+i]) {
			m.t.Fatalf("read after %d: receipt %d is another one (I8)", after, int(after)+1+i)
		}
		if total += len(leaf); i > 0 && total > bytesLimit {
			m.t.Fatalf("read after %d: %d bytes with limit %d", after, total, bytesLimit)
		}
	}
}

func (m *modelLog) wantPruned(err error) {
	e, ok := errors.AsType[*PrunedError](err)
	if !ok || int(e.First) != m.first || int(e.Size) != m.pruned {
		m.t.Fatalf("%v; released history from %d is expected", err, m.first)
	}
}

func (m *modelLog) wantAhead(err error) {
	e, ok := errors.AsType[*AheadError](err)
	if !ok || int(e.Head) != m.durable-1 {
		m.t.Fatalf("%v; the head %d is expected", err, m.durable-1)
	}
}

// makeDurable makes n queued leaves durable.
func (m *modelLog) makeDurable(n int) {
	var entries []ledger.Entry
	for range n {
		entries = append(entries, m.source.write(m.leaves[m.durable]),
			ledger.Entry{Kind: ledger.KindIntent, Payload: []byte("passed over")})
		m.durable++
	}
	m.log.Durable(entries)
}

// release takes a snapshot, makes the base and what is queued durable, prunes,
// and sometimes restores the log from the snapshot as a new process does.
func (m *modelLog) release() {
	t := m.t
	size := rapid.IntRange(m.pruned, m.durable).Draw(t, "witnessed")
	var may []protocol.Index
	for index := range protocol.Index(len(m.leaves)) {
		if int(index) >= m.first || m.carried[index] {
			may = append(may, index)
		}
	}
	carried := map[protocol.Index]bool{}
	if len(may) > 0 {
		for range rapid.IntRange(0, 5).Draw(t, "carried") {
			carried[rapid.SampledFrom(may).Draw(t, "carry")] = true
		}
	}
	s, err := m.log.Snapshot(int64(size), slices.Sorted(maps.Keys(carried)))
	if err != nil {
		t.Fatal(err)
	}
	m.check() // a snapshot changes nothing
	first := len(m.leaves)
	if int(s.First()) != first {
		t.Fatalf("first of the snapshot is %d, want %d", s.First(), first)
	}
	m.append()
	m.makeDurable(len(m.leaves) - m.durable)
	behind := m.leaves[first:]
	m.first, m.pruned, m.carried = first, size, carried
	if rapid.Bool().Draw(t, "restored") {
		if m.log, err = Restore(m.source, m.signer, s.Bytes()); err != nil {
			t.Fatal(err)
		}
		for _, leaf := range behind {
			m.log.Append(leaf)
			m.log.Durable([]ledger.Entry{m.source.write(leaf)})
		}
	} else if err := m.log.Prune(s); err != nil {
		t.Fatal(err)
	}
	// What is kept below is bounded: roots, and a path for each carried leaf.
	if most := 63 + 64*len(carried); len(m.log.tree.kept) > most {
		t.Fatalf("%d hashes are kept below the pruned size, at most %d are needed", len(m.log.tree.kept), most)
	}
}

func (m *modelLog) append() {
	leaf := fmt.Appendf(nil, "leaf %d %x", len(m.leaves), rapid.Uint32().Draw(m.t, "leaf"))
	index, hash := m.log.Append(leaf)
	if int(index) != len(m.leaves) || !bytes.Equal(hash[:], rfc6962.DefaultHasher.HashLeaf(leaf)) {
		m.t.Fatalf("appended as %d", index)
	}
	m.leaves = append(m.leaves, leaf)
}

// TestModel holds the log against all leaves there ever were: every proof and
// every refusal, at every stage of pruning, over restarts (I8, I21).
func TestModel(t *testing.T) {
	signer, key := newSigner(t)
	rapid.Check(t, func(t *rapid.T) {
		source := newMemory()
		m := &modelLog{t: t, source: source, signer: signer, key: key, log: New(source, signer)}
		for range rapid.IntRange(1, 12).Draw(t, "steps") {
			switch rapid.SampledFrom([]string{"append", "append", "durable", "durable", "release"}).Draw(t, "step") {
			case "append":
				for range rapid.IntRange(1, 40).Draw(t, "leaves") {
					m.append()
				}
			case "durable":
				m.makeDurable(rapid.IntRange(0, len(m.leaves)-m.durable).Draw(t, "durable"))
			case "release":
				m.release()
			}
			m.check()
		}
	})
}
