package receiptlog

import (
	"errors"
	"fmt"
	"slices"
	"sync"

	xtlog "golang.org/x/mod/sumdb/tlog"

	"github.com/quittance/quittance/hostagent/internal/ledger"
	"github.com/quittance/quittance/protocol"
	"github.com/quittance/quittance/protocol/tlog"
)

// PrunedError says that what was asked for lies in released history.
type PrunedError struct {
	First protocol.Index // the oldest receipt that is served, carried ones apart
	Size  int64          // the smallest size that can be proved consistent
}

func (e *PrunedError) Error() string {
	return fmt.Sprintf("receipt history below index %d (tree size %d) was released: go on from there", e.First, e.Size)
}

// AheadError says that somebody asked for more than the log holds. One who
// has seen it shows that the ledger is behind (I9).
type AheadError struct {
	Head protocol.Index // the highest index served; -1 when there is none
}

func (e *AheadError) Error() string {
	return fmt.Sprintf("the receipt log ends at index %d", e.Head)
}

// Source reads leaves again by position. *ledger.Ledger is one.
type Source interface {
	Read(ledger.Position) (ledger.Entry, error)
}

// Log is the receipt log. Its methods may be called from any goroutine;
// Append, Snapshot and Prune belong to the one goroutine that decides order.
type Log struct {
	source Source
	signer *tlog.Signer

	mu        sync.Mutex
	tree      *tree // of the queued size
	first     protocol.Index
	positions []ledger.Position         // of leaves first … durable−1
	pending   [][]byte                  // leaves durable … queued−1
	carried   map[protocol.Index][]byte // leaves below first that are still served
	durable   int64
	changed   chan struct{} // closed and replaced when durable or first moves
	signed    tlog.Checkpoint
}

// New is the empty log of a new generation. Leaves are read back from source,
// checkpoints signed by signer.
func New(source Source, signer *tlog.Signer) *Log {
	return &Log{source: source, signer: signer, tree: newTree(), carried: map[protocol.Index][]byte{}, changed: make(chan struct{})}
}

// Append adds a leaf when it is handed to the ledger and gives the index that
// it has and its hash. It is served only once [Log.Durable] has told of it.
// The leaf must not be changed afterwards. A leaf that readers would refuse
// (over [protocol.MaxReceiptBytes]) is a fault of the program and panics.
func (l *Log) Append(leaf []byte) (protocol.Index, tlog.Hash) {
	if len(leaf) == 0 || len(leaf) > protocol.MaxReceiptBytes {
		panic(fmt.Sprintf("receiptlog: leaf of %d bytes; 1 to %d are allowed", len(leaf), protocol.MaxReceiptBytes))
	}
	h := tlog.LeafHash(leaf)
	l.mu.Lock()
	defer l.mu.Unlock()
	index := protocol.Index(l.tree.size)
	l.tree.append(h)
	l.pending = append(l.pending, leaf)
	return index, h
}

// Durable tells that the entries are on disk, in the order of Append. Entries
// that are no receipts are passed over, so that a ledger's done callback can
// hand on what it got. When it returns, the leaves are served.
func (l *Log) Durable(entries []ledger.Entry) {
	l.mu.Lock()
	defer l.mu.Unlock()
	moved := false
	for _, e := range entries {
		if e.Kind != ledger.KindReceipt {
			continue
		}
		if len(l.pending) == 0 {
			panic("receiptlog: a receipt became durable that was never appended")
		}
		l.positions = append(l.positions, e.Position)
		l.pending[0] = nil
		l.pending = l.pending[1:]
		l.durable++
		moved = true
	}
	if moved {
		l.notify()
	}
}

func (l *Log) notify() {
	close(l.changed)
	l.changed = make(chan struct{})
}

// Queued is the number of leaves appended: the index of the next one.
func (l *Log) Queued() protocol.Index {
	l.mu.Lock()
	defer l.mu.Unlock()
	return protocol.Index(l.tree.size)
}

// Pruned is the size that the log was last pruned at: the smallest size that
// can be proved consistent with later ones.
func (l *Log) Pruned() int64 {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.tree.pruned
}

// Head is the first index served (carried ones apart), the highest one served
// (first−1 when there is none), and a channel that is closed when either moves.
func (l *Log) Head() (first, head protocol.Index, changed <-chan struct{}) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.first, l.head(), l.changed
}

func (l *Log) head() protocol.Index { return protocol.Index(l.durable - 1) }

func (l *Log) prunedError() error { return &PrunedError{First: l.first, Size: l.tree.pruned} }
func (l *Log) aheadError() error  { return &AheadError{Head: l.head()} }

// Leaf gives the bytes of a receipt that is served: one from first on, or a
// carried one. *[PrunedError] below, *[AheadError] above.
func (l *Log) Leaf(index protocol.Index) ([]byte, error) {
	l.mu.Lock()
	leaf, position, err := l.locate(index)
	l.mu.Unlock()
	if err != nil || leaf != nil {
		return leaf, err
	}
	return l.read(index, position)
}

// locate finds a served leaf's bytes or its position.
func (l *Log) locate(index protocol.Index) ([]byte, ledger.Position, error) {
	switch leaf, ok := l.carried[index]; {
	case int64(index) >= l.durable:
		return nil, 0, l.aheadError()
	case ok:
		return leaf, 0, nil
	case index < l.first:
		return nil, 0, l.prunedError()
	}
	return nil, l.positions[index-l.first], nil
}

func (l *Log) read(index protocol.Index, position ledger.Position) ([]byte, error) {
	e, err := l.source.Read(position)
	if errors.Is(err, ledger.ErrReleased) {
		// A release overtook this reader between looking up and reading.
		l.mu.Lock()
		defer l.mu.Unlock()
		return nil, l.prunedError()
	}
	if err != nil {
		return nil, fmt.Errorf("read receipt %d: %w", index, err)
	}
	return e.Payload, nil
}

// Read gives the leaves from after+1 on, at most limit of them and, after the
// first, at most maxBytes; none when after is the head. after is −1 to read
// from index 0. *[PrunedError] when after+1 lies below first, *[AheadError]
// when after lies above the head (I8).
func (l *Log) Read(after protocol.Index, limit, maxBytes int) ([][]byte, error) {
	l.mu.Lock()
	if after > l.head() {
		defer l.mu.Unlock()
		return nil, l.aheadError()
	}
	if after+1 < l.first {
		defer l.mu.Unlock()
		return nil, l.prunedError()
	}
	start := after + 1
	positions := l.positions[start-l.first:]
	positions = slices.Clone(positions[:min(len(positions), max(limit, 0))])
	l.mu.Unlock()

	leaves := make([][]byte, 0, len(positions))
	total := 0
	for i, p := range positions {
		leaf, err := l.read(start+protocol.Index(i), p)
		if err != nil {
			if _, pruned := errors.AsType[*PrunedError](err); pruned && i > 0 {
				return leaves, nil // what was read is whole and contiguous
			}
			return nil, err
		}
		if total += len(leaf); i > 0 && total > maxBytes {
			break
		}
		leaves = append(leaves, leaf)
	}
	return leaves, nil
}

// LeafHash gives the hash of any durable leaf whose hash is kept: those from
// the pruned size on and the carried ones. It answers whether a witness's
// highest receipt is ours.
func (l *Log) LeafHash(index protocol.Index) (tlog.Hash, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if int64(index) >= l.durable {
		return tlog.Hash{}, l.aheadError()
	}
	if h, ok := l.tree.leaf(int64(index)); ok {
		return h, nil
	}
	return tlog.Hash{}, l.prunedError()
}

// TreeAt gives the root at a durable size from the pruned size on.
func (l *Log) TreeAt(size int64) (tlog.Tree, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.treeAt(size)
}

func (l *Log) treeAt(size int64) (tlog.Tree, error) {
	switch {
	case size > l.durable:
		return tlog.Tree{}, l.aheadError()
	case size < l.tree.pruned:
		return tlog.Tree{}, l.prunedError()
	}
	root, err := xtlog.TreeHash(size, l.tree)
	if err != nil {
		return tlog.Tree{}, fmt.Errorf("root at size %d: %w", size, err)
	}
	return tlog.Tree{Size: size, Root: root}, nil
}

// Checkpoint is the signed checkpoint of everything durable. It is signed once
// per size.
func (l *Log) Checkpoint() (tlog.Checkpoint, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.checkpoint()
}

func (l *Log) checkpoint() (tlog.Checkpoint, error) {
	if l.signed.Text != "" && l.signed.Tree.Size == l.durable {
		return l.signed, nil
	}
	t, err := l.treeAt(l.durable)
	if err != nil {
		return tlog.Checkpoint{}, err
	}
	text, err := tlog.SignCheckpoint(l.signer, t)
	if err != nil {
		return tlog.Checkpoint{}, err
	}
	l.signed = tlog.Checkpoint{Generation: l.signer.Generation(), Tree: t, Text: text}
	return l.signed, nil
}

// Proof proves a served leaf in the current checkpoint.
func (l *Log) Proof(index protocol.Index) (tlog.Proof, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if _, _, err := l.locate(index); err != nil {
		return tlog.Proof{}, err
	}
	c, err := l.checkpoint()
	if err != nil {
		return tlog.Proof{}, err
	}
	hashes, err := xtlog.ProveRecord(c.Tree.Size, int64(index), l.tree)
	if err != nil {
		return tlog.Proof{}, fmt.Errorf("prove receipt %d: %w", index, err)
	}
	return tlog.Proof{Index: index, Hashes: hashes, Checkpoint: c.Text}, nil
}

// Consistency proves that the current checkpoint extends the tree of size
// from: nothing is needed from 0 or from the same size. *[PrunedError] below
// the pruned size, *[AheadError] above what is durable.
func (l *Log) Consistency(from int64) (tlog.Checkpoint, []tlog.Hash, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	switch {
	case from > l.durable:
		return tlog.Checkpoint{}, nil, l.aheadError()
	case from < 0 || from > 0 && from < l.tree.pruned:
		return tlog.Checkpoint{}, nil, l.prunedError()
	}
	c, err := l.checkpoint()
	if err != nil || from == 0 {
		return c, nil, err
	}
	hashes, err := xtlog.ProveTree(c.Tree.Size, from, l.tree)
	if err != nil {
		return tlog.Checkpoint{}, nil, fmt.Errorf("prove consistency from %d: %w", from, err)
	}
	return c, hashes, nil
}
