package receiptlog

import (
	"bytes"
	"crypto/sha256"
	"errors"
	"fmt"
	"path/filepath"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/transparency-dev/merkle/rfc6962"

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
