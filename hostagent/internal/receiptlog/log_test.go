package receiptlog

import (
	"bytes"
	"crypto/sha256"
	"errors"
	"fmt"
	"maps"
	"path/filepath"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/transparency-dev/formats/proof"
	merkle "github.com/transparency-dev/merkle/proof"
	"github.com/transparency-dev/merkle/rfc6962"
	"pgregory.net/rapid"

	"github.com/quittance/quittance/hostagent/internal/ledger"
	"github.com/quittance/quittance/protocol"
	"github.com/quittance/quittance/protocol/tlog"
)

const testGeneration protocol.ID = "000102030405060708090a0b0c0d0e0f"

// memory is a source that holds entries by position, as the ledger does; the
// real one is used in TestOverTheLedger.
type memory struct {
	mu       sync.Mutex
	entries  map[ledger.Position]ledger.Entry
	released ledger.Position // positions below are gone
	next     ledger.Position
}

func (m *memory) write(leaf []byte) ledger.Entry {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.next++
	e := ledger.Entry{Sequence: uint64(m.next), Kind: ledger.KindReceipt, Position: m.next, Payload: leaf}
	m.entries[m.next] = e
	return e
}

func (m *memory) Read(p ledger.Position) (ledger.Entry, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	e, ok := m.entries[p]
	if !ok || p < m.released {
		return ledger.Entry{}, ledger.ErrReleased
	}
	return e, nil
}

func newMemory() *memory { return &memory{entries: map[ledger.Position]ledger.Entry{}} }

func newSigner(t interface{ Fatal(...any) }) (*tlog.Signer, *tlog.PublicKey) {
	signer, _, err := tlog.NewSigner(testGeneration)
	if err != nil {
		t.Fatal(err)
	}
	key, err := tlog.ParsePublicKey(signer.PublicKey())
	if err != nil {
		t.Fatal(err)
	}
	return signer, key
}

// rootOf is RFC 6962's definition of the tree hash, written out.
func rootOf(leaves [][]byte) [sha256.Size]byte {
	switch len(leaves) {
	case 0:
		return sha256.Sum256(nil)
	case 1:
		return sha256.Sum256(append([]byte{0}, leaves[0]...))
	}
	k := 1
	for k*2 < len(leaves) {
		k *= 2
	}
	left, right := rootOf(leaves[:k]), rootOf(leaves[k:])
	return sha256.Sum256(slices.Concat([]byte{1}, left[:], right[:]))
}

func flat(hashes []tlog.Hash) [][]byte {
	out := make([][]byte, len(hashes))
	for i := range hashes {
		out[i] = hashes[i][:]
	}
	return out
}

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

// Snapshots that would lose or invent something are refused.
func TestSnapshotRefusals(t *testing.T) {
	signer, _ := newSigner(t)
	source := newMemory()
	l := New(source, signer)
	for i := range 20 {
		l.Append(fmt.Appendf(nil, "leaf %d", i))
		if i < 15 {
			l.Durable([]ledger.Entry{source.write(fmt.Appendf(nil, "leaf %d", i))})
		}
	}
	if _, err := l.Snapshot(16, nil); err == nil {
		t.Fatal("pruned at a size that nobody can have witnessed")
	}
	if _, err := l.Snapshot(10, []protocol.Index{3, 2}); err == nil {
		t.Fatal("carried without order")
	}
	if _, err := l.Snapshot(10, []protocol.Index{20}); err == nil {
		t.Fatal("carried a receipt that does not exist")
	}
	s, err := l.Snapshot(10, []protocol.Index{3})
	if err != nil {
		t.Fatal(err)
	}
	if err := l.Prune(s); err == nil {
		t.Fatal("pruned before the base was durable")
	}
	for i := 15; i < 20; i++ {
		l.Durable([]ledger.Entry{source.write(fmt.Appendf(nil, "leaf %d", i))})
	}
	if err := l.Prune(s); err != nil {
		t.Fatal(err)
	}
	if _, err := l.Snapshot(9, nil); err == nil {
		t.Fatal("pruned below the pruned size")
	}
	if _, err := l.Snapshot(10, []protocol.Index{4}); err == nil {
		t.Fatal("carried a receipt that was released")
	}
	if err := l.Prune(&Snapshot{pruned: 10, first: 3}); err == nil {
		t.Fatal("went back")
	}
}

// The snapshot's form, written out: it lies in ledgers on disk.
func TestSnapshotGolden(t *testing.T) {
	signer, _ := newSigner(t)
	source := newMemory()
	l := New(source, signer)
	for _, leaf := range []string{"a", "b", "c"} {
		l.Append([]byte(leaf))
		l.Durable([]ledger.Entry{source.write([]byte(leaf))})
	}
	s, err := l.Snapshot(2, []protocol.Index{0})
	if err != nil {
		t.Fatal(err)
	}
	h := func(leaf string) []byte { return rfc6962.DefaultHasher.HashLeaf([]byte(leaf)) }
	want := slices.Concat(
		[]byte("QRL1\x02\x00\x00\x00\x00\x00\x00\x00\x03\x00\x00\x00\x00\x00\x00\x00"),
		[]byte("\x03\x00\x00\x00"),
		[]byte("\x00\x00\x00\x00\x00\x00\x00\x00"), h("a"),
		[]byte("\x01\x00\x00\x00\x00\x00\x00\x00"), h("b"),
		[]byte("\x02\x00\x00\x00\x00\x00\x00\x00"), rfc6962.DefaultHasher.HashChildren(h("a"), h("b")),
		h("c"),
		[]byte("\x01\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x01\x00\x00\x00a"),
	)
	if !bytes.Equal(s.Bytes(), want) {
		t.Fatalf("snapshot\n%x, want\n%x", s.Bytes(), want)
	}
	for n := range want {
		if _, err := Restore(source, signer, want[:n]); err == nil {
			t.Fatalf("restored from %d of %d bytes", n, len(want))
		}
	}
	if _, err := Restore(source, signer, append(want, 0)); err == nil {
		t.Fatal("restored with bytes behind the end")
	}
	// A leaf that is not the one the tree has is refused.
	want[len(want)-1] = 'x'
	if _, err := Restore(source, signer, want); err == nil {
		t.Fatal("restored another leaf")
	}
}

func FuzzRestore(f *testing.F) {
	signer, _ := newSigner(f)
	source := newMemory()
	l := New(source, signer)
	for i := range 9 {
		l.Append([]byte{byte('a' + i)})
		l.Durable([]ledger.Entry{source.write([]byte{byte('a' + i)})})
		s, err := l.Snapshot(int64(i), []protocol.Index{protocol.Index(i / 2)})
		if err != nil {
			f.Fatal(err)
		}
		f.Add(s.Bytes())
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		l, err := Restore(source, signer, b)
		if err != nil {
			return
		}
		// Whatever is accepted can be worked with, and is its own encoding.
		if got := encodeSnapshot(l.tree, l.carried); !bytes.Equal(got, b) {
			t.Fatalf("%x is encoded as %x", b, got)
		}
		l.Append([]byte("next"))
		for index := range l.carried {
			if _, err := l.Proof(index); err != nil {
				t.Fatal(err)
			}
		}
	})
}

// A reader that waits is woken by the next receipt and by a release.
func TestHeadWakes(t *testing.T) {
	signer, _ := newSigner(t)
	source := newMemory()
	l := New(source, signer)
	_, head, changed := l.Head()
	if head != -1 {
		t.Fatalf("head of nothing is %d", head)
	}
	l.Append([]byte("a"))
	select {
	case <-changed:
		t.Fatal("woken for a receipt that is not durable")
	default:
	}
	l.Durable([]ledger.Entry{source.write([]byte("a"))})
	select {
	case <-changed:
	case <-time.After(time.Minute):
		t.Fatal("not woken by a receipt")
	}
	_, _, changed = l.Head()
	s, err := l.Snapshot(1, nil)
	if err != nil {
		t.Fatal(err)
	}
	if err := l.Prune(s); err != nil {
		t.Fatal(err)
	}
	select {
	case <-changed:
	case <-time.After(time.Minute):
		t.Fatal("not woken by a release")
	}
}

// A checkpoint is signed once per size.
func TestCheckpointIsKept(t *testing.T) {
	signer, _ := newSigner(t)
	source := newMemory()
	l := New(source, signer)
	first, err := l.Checkpoint()
	if err != nil {
		t.Fatal(err)
	}
	l.Append([]byte("a"))
	again, err := l.Checkpoint()
	if err != nil || again != first {
		t.Fatalf("%+v, want %+v", again, first)
	}
	l.Durable([]ledger.Entry{source.write([]byte("a"))})
	next, err := l.Checkpoint()
	if err != nil || next.Tree.Size != 1 || next.Text == first.Text {
		t.Fatalf("%+v, %v", next, err)
	}
}

// Over a real ledger: receipts and intents, a release with a carried receipt, a
// restart, readers beside all of it.
func TestOverTheLedger(t *testing.T) {
	signer, key := newSigner(t)
	dir := filepath.Join(t.TempDir(), "ledger")
	o := ledger.Options{Generation: testGeneration, Segment: ledger.MinSegment, AttestAfter: time.Hour}
	if err := ledger.Create(dir, o, []ledger.Record{{Kind: ledger.KindReceipt, Payload: []byte("leaf 0")}}); err != nil {
		t.Fatal(err)
	}
	open := func() (*ledger.Ledger, *Log) {
		t.Helper()
		led, err := ledger.Open(dir, o)
		if err != nil {
			t.Fatal(err)
		}
		rec := led.Recovered()
		l := New(led, signer)
		if rec.Base != nil {
			if l, err = Restore(led, signer, rec.Base); err != nil {
				t.Fatal(err)
			}
		}
		for e, err := range rec.Records {
			if err != nil {
				t.Fatal(err)
			}
			if e.Kind == ledger.KindReceipt {
				l.Append(e.Payload)
				l.Durable([]ledger.Entry{e})
			}
		}
		return led, l
	}
	led, l := open()
	leaf := func(i int) []byte { return fmt.Appendf(nil, "leaf %d %0800d", i, i) }
	add := func(led *ledger.Ledger, l *Log, i int) {
		t.Helper()
		done := make(chan error, 1)
		l.Append(leaf(i))
		if err := led.Append([]ledger.Record{{Kind: ledger.KindIntent, Payload: []byte("intent")}, {Kind: ledger.KindReceipt, Payload: leaf(i)}},
			func(e []ledger.Entry, err error) {
				l.Durable(e)
				done <- err
			}); err != nil {
			t.Fatal(err)
		}
		if err := <-done; err != nil {
			t.Fatal(err)
		}
	}
	stop := make(chan struct{})
	var readers sync.WaitGroup
	readers.Go(func() {
		after := protocol.Index(-1)
		for {
			_, _, changed := l.Head()
			leaves, err := l.Read(after, 7, 1<<20)
			if pruned, ok := errors.AsType[*PrunedError](err); ok {
				after = pruned.First - 1
				continue
			}
			if err != nil {
				t.Errorf("follow after %d: %v", after, err)
				return
			}
			for _, got := range leaves {
				after++
				if after > 0 && after != 200 && !bytes.Equal(got, leaf(int(after))) {
					t.Errorf("receipt %d is %.20q", after, got)
				}
			}
			if len(leaves) > 0 {
				continue
			}
			select {
			case <-changed:
			case <-stop:
				return
			}
		}
	})
	for i := 1; i < 200; i++ {
		add(led, l, i)
	}
	s, err := l.Snapshot(150, []protocol.Index{7})
	if err != nil {
		t.Fatal(err)
	}
	done := make(chan error, 1)
	l.Append([]byte("released"))
	if err := led.Release(ledger.Release{Base: s.Bytes(), Records: []ledger.Record{{Kind: ledger.KindReceipt, Payload: []byte("released")}}},
		func(e []ledger.Entry, err error) {
			l.Durable(e)
			done <- errors.Join(err, l.Prune(s))
		}); err != nil {
		t.Fatal(err)
	}
	if err := <-done; err != nil {
		t.Fatal(err)
	}
	add(led, l, 201)
	close(stop)
	readers.Wait()
	before, err := l.Checkpoint()
	if err != nil {
		t.Fatal(err)
	}
	if err := led.Close(); err != nil {
		t.Fatal(err)
	}

	led, l = open()
	after, err := l.Checkpoint()
	if err != nil || after.Tree != before.Tree {
		t.Fatalf("tree after a restart %+v, want %+v (%v)", after.Tree, before.Tree, err)
	}
	for _, row := range []struct {
		index protocol.Index
		leaf  []byte
	}{{7, leaf(7)}, {200, []byte("released")}, {201, leaf(201)}} {
		got, err := l.Leaf(row.index)
		if err != nil || !bytes.Equal(got, row.leaf) {
			t.Fatalf("receipt %d: %.20q, %v", row.index, got, err)
		}
		p, err := l.Proof(row.index)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := p.Verify(row.leaf, key); err != nil {
			t.Fatalf("receipt %d: %v", row.index, err)
		}
	}
	if _, err := l.Leaf(199); err == nil {
		t.Fatal("a released receipt is served")
	}
	if err := led.Close(); err != nil {
		t.Fatal(err)
	}
}

// BenchmarkAppend is the cost of one receipt in the tree.
func BenchmarkAppend(b *testing.B) {
	signer, _ := newSigner(b)
	source := newMemory()
	l := New(source, signer)
	leaf := bytes.Repeat([]byte{'x'}, 700)
	e := []ledger.Entry{{Kind: ledger.KindReceipt, Position: 1, Payload: leaf}}
	for b.Loop() {
		l.Append(leaf)
		l.Durable(e)
	}
}
