package host

import (
	"context"
	"errors"
	"fmt"
	"net"
	"slices"
	"sync"
	"testing"
	"time"

	"golang.org/x/mod/sumdb/tlog"

	"github.com/quittance/quittance/protocol"
	"github.com/quittance/quittance/protocol/hostclient"
	quittancelog "github.com/quittance/quittance/protocol/tlog"
)

const owner = protocol.ID("00000000000000000000000000000001")

// agent is a small model of a host agent that keeps the numbering contract of
// the design, with a real receipt log and real signatures, and that loses
// replies as told.
type agent struct {
	t      *testing.T
	signer *quittancelog.Signer

	mu        sync.Mutex
	gen       protocol.ID
	accepted  protocol.Number
	released  protocol.Number
	all       map[protocol.Number]*protocol.Allocation
	witnessed bool
	behind    bool
	pruned    bool          // released beyond what it is shown
	refuse    protocol.Code // the next allocations are refused so
	noBurn    protocol.Code // burns are refused so
	leaves    [][]byte
	hashes    []tlog.Hash
	calls     []string
	// lose decides about a reply: "before" loses the request, "after" the reply.
	lose func(op string, n protocol.Number) string
}

func newAgent(t *testing.T) *agent {
	t.Helper()
	gen := protocol.NewID()
	signer, err := quittancelog.CreateKeyFile(t.TempDir()+"/host.key", gen)
	if err != nil {
		t.Fatal(err)
	}
	a := &agent{t: t, signer: signer, gen: gen, all: map[protocol.Number]*protocol.Allocation{}, witnessed: true}
	a.append(protocol.KindGenesis, 0, protocol.GenesisBody{HostKey: signer.PublicKey(), BootID: gen, Versions: protocol.Versions{Protocol: []int{1}}})
	return a
}

// append adds a leaf to the log; the caller holds mu or is alone.
func (a *agent) append(kind protocol.Kind, n protocol.Number, body any) protocol.ReceiptEntry {
	index := protocol.Index(len(a.leaves))
	leaf := protocol.EncodeReceipt(a.gen, index, kind, n, protocol.TimestampOf(time.Unix(1_800_000_000, 0)), body)
	stored, err := tlog.StoredHashes(int64(index), leaf, a)
	if err != nil {
		a.t.Fatal(err)
	}
	a.leaves, a.hashes = append(a.leaves, leaf), append(a.hashes, stored...)
	return protocol.ReceiptEntry{Index: index, Kind: kind, LeafHash: quittancelog.LeafDigest(leaf)}
}

// ReadHashes implements tlog.HashReader.
func (a *agent) ReadHashes(indexes []int64) ([]tlog.Hash, error) {
	out := make([]tlog.Hash, len(indexes))
	for i, at := range indexes {
		out[i] = a.hashes[at]
	}
	return out, nil
}

func (a *agent) checkpoint() string {
	size := int64(len(a.leaves))
	root, err := tlog.TreeHash(size, a)
	if err != nil {
		a.t.Fatal(err)
	}
	text, err := quittancelog.SignCheckpoint(a.signer, quittancelog.Tree{Size: size, Root: root})
	if err != nil {
		a.t.Fatal(err)
	}
	return text
}

// exchange wraps one effect with the loss that the test asked for.
func (a *agent) exchange(op string, n protocol.Number, effect func() error) error {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.calls = append(a.calls, fmt.Sprintf("%s %d", op, n))
	loss := ""
	if a.lose != nil {
		loss = a.lose(op, n)
	}
	if loss == "before" {
		return &hostclient.LostError{Op: op, Err: errors.New("lost before the agent")}
	}
	err := effect()
	if loss == "after" {
		return &hostclient.LostError{Op: op, Err: errors.New("lost on the way back")}
	}
	return err
}

func refused(code protocol.Code) error { return protocol.NewProblem(code, "refused by the model", "") }

func (a *agent) Host(context.Context) (h protocol.Host, err error) {
	err = a.exchange("host", 0, func() error {
		h = protocol.Host{
			Generation: a.gen, HostKey: a.signer.PublicKey(), Frontiers: protocol.Frontiers{Accepted: a.accepted, Released: a.released},
			WitnessRequired: !a.witnessed, Checkpoint: a.checkpoint(),
		}
		return nil
	})
	return h, err
}

func (a *agent) Profiles(context.Context, protocol.ID) ([]protocol.ProfileInfo, error) {
	return []protocol.ProfileInfo{{Name: "p"}}, nil
}

func (a *agent) accept(n protocol.Number, purpose string, profile *string) {
	a.accepted = n
	entry := a.append(protocol.KindAccepted, n, protocol.AcceptedBody{Owner: owner, Purpose: purpose, Profile: profile})
	a.all[n] = &protocol.Allocation{Number: n, State: protocol.StateStarted, Owner: owner, Purpose: purpose, Profile: profile, Receipts: []protocol.ReceiptEntry{entry}}
}

func (a *agent) Allocate(_ context.Context, _ protocol.ID, n protocol.Number, req protocol.AllocateRequest) (answer protocol.EffectAnswer, err error) {
	err = a.exchange("allocate", n, func() error {
		if known, ok := a.all[n]; ok {
			if known.Purpose != req.Purpose || known.Profile == nil || *known.Profile != req.Profile {
				return refused(protocol.CodeNumberConflict)
			}
			answer.Allocation = *known
			return nil
		}
		switch {
		case n <= a.released:
			return refused(protocol.CodeReleased)
		case n != a.accepted+1:
			return refused(protocol.CodeSequenceGap)
		case !a.witnessed:
			return refused(protocol.CodeWitnessRequired)
		case a.refuse != "":
			return refused(a.refuse)
		}
		a.accept(n, req.Purpose, &req.Profile)
		answer.Allocation = *a.all[n]
		return nil
	})
	return answer, err
}

func (a *agent) Get(ctx context.Context, _ protocol.ID, n protocol.Number, until protocol.State, _ time.Duration) (found protocol.Allocation, err error) {
	err = a.exchange("get", n, func() error {
		known, ok := a.all[n]
		if !ok {
			return refused(protocol.CodeNotFound)
		}
		found = *known
		return nil
	})
	return found, err
}

func (a *agent) List(context.Context, protocol.ID) (all []protocol.Allocation, err error) {
	err = a.exchange("list", 0, func() error {
		for _, known := range a.all {
			all = append(all, *known)
		}
		slices.SortFunc(all, func(x, y protocol.Allocation) int { return int(x.Number - y.Number) })
		return nil
	})
	return all, err
}

func (a *agent) Retire(_ context.Context, _ protocol.ID, n protocol.Number, req protocol.RetireRequest) (answer protocol.EffectAnswer, err error) {
	err = a.exchange("retire", n, func() error {
		known, ok := a.all[n]
		switch {
		case ok && known.Purpose != req.Purpose:
			return refused(protocol.CodeNumberConflict)
		case !ok && n <= a.released:
			return refused(protocol.CodeReleased)
		case !ok && n != a.accepted+1:
			return refused(protocol.CodeSequenceGap)
		case !ok && !a.witnessed:
			return refused(protocol.CodeWitnessRequired)
		case !ok && a.noBurn != "":
			return refused(a.noBurn)
		case !ok:
			a.accept(n, req.Purpose, nil)
			known = a.all[n]
		}
		if !Reached(*known, protocol.StateRetired) {
			entry := a.append(protocol.KindRetired, n, protocol.RetiredBody{Reason: protocol.ReasonRequested, Note: req.Note})
			known.State, known.Receipts = protocol.StateRetired, append(known.Receipts, entry)
		}
		answer.Allocation = *known
		return nil
	})
	return answer, err
}

func (a *agent) Consume(_ context.Context, _ protocol.ID, n protocol.Number, req protocol.ConsumeRequest) (answer protocol.EffectAnswer, err error) {
	err = a.exchange("consume", n, func() error {
		known, ok := a.all[n]
		switch {
		case !ok:
			return refused(protocol.CodeNotFound)
		case !Reached(*known, protocol.StateRetired):
			return refused(protocol.CodeNotRetired)
		case known.Receipts[1].LeafHash != req.LeafHash:
			return refused(protocol.CodeOtherReceipt)
		}
		if known.State == protocol.StateRetired {
			entry := a.append(protocol.KindConsumed, n, protocol.ConsumedBody{RetiredIndex: known.Receipts[1].Index, RetiredLeaf: req.LeafHash})
			known.State, known.Receipts = protocol.StateConsumed, append(known.Receipts, entry)
		}
		answer.Allocation = *known
		return nil
	})
	return answer, err
}

func (a *agent) Release(_ context.Context, _ protocol.ID, req protocol.ReleaseRequest) (answer protocol.ReleaseAnswer, err error) {
	err = a.exchange("release", req.Frontier, func() error {
		a.released = max(a.released, req.Frontier)
		answer = protocol.ReleaseAnswer{Frontier: a.released, Carried: req.Except}
		return nil
	})
	return answer, err
}

func (a *agent) Witness(_ context.Context, _ protocol.ID, req protocol.WitnessRequest) (answer protocol.WitnessAnswer, err error) {
	err = a.exchange("witness", 0, func() error {
		if a.behind {
			return refused(protocol.CodeLedgerBehind)
		}
		if a.pruned && (req.Checkpoint != nil || req.Highest != nil) {
			return refused(protocol.CodePruned)
		}
		answer = protocol.WitnessAnswer{Disposition: protocol.Done, Checkpoint: a.checkpoint(), Consistency: []string{}}
		if req.Checkpoint != nil {
			key, err := quittancelog.ParsePublicKey(a.signer.PublicKey())
			if err != nil {
				return err
			}
			old, err := quittancelog.ParseCheckpoint(*req.Checkpoint, key)
			if err != nil {
				return refused(protocol.CodeLedgerBehind)
			}
			if old.Tree.Size < int64(len(a.leaves)) && old.Tree.Size > 0 {
				proof, err := tlog.ProveTree(int64(len(a.leaves)), old.Tree.Size, a)
				if err != nil {
					return err
				}
				answer.Consistency = quittancelog.FormatHashes(proof)
			}
		}
		a.witnessed = true
		return nil
	})
	return answer, err
}

func (a *agent) Receipt(_ context.Context, _ protocol.ID, index protocol.Index) ([]byte, error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.leaves[index], nil
}

func (a *agent) Proof(_ context.Context, _ protocol.ID, index protocol.Index) (quittancelog.Proof, error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	hashes, err := tlog.ProveRecord(int64(len(a.leaves)), int64(index), a)
	return quittancelog.Proof{Index: index, Hashes: hashes, Checkpoint: a.checkpoint()}, err
}

func (a *agent) Channel(_ context.Context, _ protocol.ID, n protocol.Number, _ string) (conn net.Conn, err error) {
	err = a.exchange("channel", n, func() error {
		p := protocol.NewProblem(protocol.CodeNotConnectable, "refused by the model", "")
		p.RetryAfterMillis = 100 // as the agent says it
		return p
	})
	return nil, err
}

func (a *agent) log() []string {
	a.mu.Lock()
	defer a.mu.Unlock()
	return slices.DeleteFunc(slices.Clone(a.calls), func(c string) bool { return c == "host 0" || c == "witness 0" })
}

// seenMemory is a Witness that keeps nothing on disk.
type seenMemory map[protocol.ID]Seen

func (m seenMemory) Seen(generation protocol.ID) (Seen, error) { return m[generation], nil }

func (m seenMemory) SaveSeen(_ context.Context, generation protocol.ID, seen Seen) error {
	m[generation] = seen
	return nil
}

// intents records what the attempt's record would hold.
type intents struct {
	a    *agent
	open map[protocol.Number]bool
	all  []protocol.Number
}

func (i *intents) Propose(_ context.Context, _ protocol.ID, n protocol.Number) error {
	i.a.mu.Lock()
	defer i.a.mu.Unlock()
	if slices.Contains(i.a.calls, fmt.Sprintf("allocate %d", n)) && !i.open[n] && i.a.all[n] != nil {
		i.a.t.Errorf("number %d was sent before its intent was durable", n)
	}
	i.open[n], i.all = true, append(i.all, n)
	return nil
}

func (i *intents) Withdraw(_ context.Context, _ protocol.ID, n protocol.Number) error {
	delete(i.open, n)
	return nil
}
