package audit

import (
	"bytes"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/quittance/quittance/cmd/agentctl/internal/sample"
	"github.com/quittance/quittance/protocol"
	"github.com/quittance/quittance/protocol/tlog"
)

// stretch is a log from first on, as an agent that pruned the rest serves it.
func stretch(l *sample.Log, first int) Log {
	size := int64(len(l.Leaves))
	log := Log{Leaves: slices.Clone(l.Leaves[first:]), Checkpoint: l.Checkpoint(size)}
	if first > 0 {
		proof := l.Proof(protocol.Index(first), size)
		log.FirstProof = &proof
	}
	return log
}

// A true history verifies whole, and from every index to which it could be
// pruned (I8).
func TestTrueHistory(t *testing.T) {
	l := sample.History()
	for first := range l.Leaves {
		report, err := Check(stretch(l, first), l.Key())
		if err != nil || len(report.Findings) != 0 {
			t.Fatalf("from %d: %v, %v", first, report.Findings, err)
		}
		if report.Receipts != int64(len(l.Leaves)-first) || report.First != protocol.Index(first) {
			t.Errorf("from %d: %+v", first, report)
		}
	}
	report, err := Check(stretch(l, 0), l.Key())
	if err != nil {
		t.Fatal(err)
	}
	if report.Accepted != 3 || report.Released != 1 || report.Live != 1 || report.Uncovered != 0 ||
		report.Generation != sample.Generation || report.Root != tlog.DigestOf(l.Tree(int64(len(l.Leaves))).Root) {
		t.Errorf("%+v", report)
	}
}

// A start whose outcome nobody learnt leaves no started receipt: the engine's
// answer was lost, or the agent was killed right after the start and the worker
// ended before the next one. That is a true history (I11).
func TestStartNeverLearnt(t *testing.T) {
	l := sample.New()
	l.Genesis()
	l.Accept(1, "langid", 1)
	l.Append(protocol.KindOOMObserved, 1, protocol.OOMObservedBody{})
	l.Exit(1, sample.Killed)
	index, leaf := l.Retire(1, "langid", protocol.ReasonSetupFailed, sample.Killed)
	l.Consume(1, index, leaf)
	report, err := Check(stretch(l, 0), l.Key())
	if err != nil || len(report.Findings) != 0 {
		t.Errorf("%v, %v", report.Findings, err)
	}
}

// Receipts after the checkpoint are counted as not covered, not believed.
func TestUncoveredTail(t *testing.T) {
	l := sample.History()
	log := stretch(l, 0)
	log.Checkpoint = l.Checkpoint(5)
	report, err := Check(log, l.Key())
	if err != nil || len(report.Findings) != 0 || report.Receipts != 5 || report.Uncovered != int64(len(l.Leaves))-5 || report.Accepted != 1 {
		t.Errorf("%+v, %v", report, err)
	}
}

// Every change to the bytes is found: nothing can be altered, left out, added
// or moved under a signed checkpoint.
func TestAlteredLogs(t *testing.T) {
	l := sample.History()
	size := int64(len(l.Leaves))
	other := sample.History()
	for name, c := range map[string]struct {
		log  Log
		keys []*tlog.PublicKey
		want string
	}{
		"altered receipt": {func() Log {
			log := stretch(l, 0)
			log.Leaves[3] = bytes.Replace(log.Leaves[3], []byte(`"pid":4001`), []byte(`"pid":4002`), 1)
			return log
		}(), nil, "do not hash to the signed root"},
		"other log of the same shape": {Log{Leaves: other.Leaves, Checkpoint: l.Checkpoint(size)}, nil, "do not hash"},
		"left out":                    {Log{Leaves: append(slices.Clone(l.Leaves[:4]), l.Leaves[5:]...), Checkpoint: l.Checkpoint(size)}, nil, "follows receipt 3"},
		"cut":                         {Log{Leaves: l.Leaves[:6], Checkpoint: l.Checkpoint(size)}, nil, "covers"},
		"moved":                       {Log{Leaves: [][]byte{l.Leaves[1], l.Leaves[0]}, Checkpoint: l.Checkpoint(2)}, nil, "follows receipt 1"},
		"other key":                   {stretch(l, 0), []*tlog.PublicKey{other.Key()}, "not signed by a known host key"},
		"no proof of a pruned log":    {Log{Leaves: l.Leaves[4:], Checkpoint: l.Checkpoint(size)}, nil, "no proof of its first one"},
		"proof of another receipt":    {func() Log { log := stretch(l, 4); p := l.Proof(5, size); log.FirstProof = &p; return log }(), nil, "speaks of receipt 5"},
		"proof of another log":        {func() Log { log := stretch(l, 4); p := other.Proof(4, size); log.FirstProof = &p; return log }(), nil, "first receipt"},
		"not a receipt":               {Log{Leaves: [][]byte{[]byte("{}")}, Checkpoint: l.Checkpoint(1)}, nil, "position 0"},
		"nothing":                     {Log{Checkpoint: l.Checkpoint(0)}, nil, "no receipts"},
		"pruned, altered in the middle": {func() Log {
			log := stretch(l, 4)
			log.Leaves[5] = bytes.Replace(log.Leaves[5], []byte(`"pid":4002`), []byte(`"pid":4003`), 1)
			return log
		}(), nil, "do not hash to the signed root"},
	} {
		t.Run(name, func(t *testing.T) {
			keys := c.keys
			if keys == nil {
				keys = []*tlog.PublicKey{l.Key()}
			}
			report, err := Check(c.log, keys...)
			said := fmt.Sprint(report.Findings, err)
			if err == nil && len(report.Findings) == 0 || !strings.Contains(said, c.want) {
				t.Errorf("%s", said)
			}
		})
	}
}

// A log that hashes and is signed but tells an impossible history is found
// too: this is what an agent with a fault, or a dishonest one, would sign.
func TestImpossibleHistories(t *testing.T) {
	for name, c := range map[string]struct {
		tell func(l *sample.Log)
		want string
	}{
		"number accepted twice (I5)": {func(l *sample.Log) { l.Accept(1, "langid", 1); l.Accept(1, "langid", 1) }, "accepted a second time"},
		"card granted twice": {func(l *sample.Log) {
			for n := protocol.Number(1); n <= 2; n++ {
				l.Append(protocol.KindAccepted, n, protocol.AcceptedBody{Owner: sample.Owner, Purpose: "p", Profile: sample.P("llm"),
					Devices: []protocol.Device{{Name: "nvidia.com/gpu=" + n.String(), Nodes: []string{"/dev/nvidia0"}}}})
			}
		}, "number 2 is granted a device that number 1 holds"},
		"gap (I5)":                {func(l *sample.Log) { l.Accept(1, "langid", 1); l.Accept(3, "langid", 1) }, "accepted where 2 is due"},
		"not from 1 (I5)":         {func(l *sample.Log) { l.Accept(2, "langid", 1) }, "accepted where 1 is due"},
		"started unaccepted (I6)": {func(l *sample.Log) { l.Start(1, "langid") }, "never accepted"},
		"started twice":           {func(l *sample.Log) { l.Accept(1, "langid", 1); l.Start(1, "langid"); l.Start(1, "langid") }, "started again"},
		"exit twice (I23)": {func(l *sample.Log) {
			l.Accept(1, "langid", 1)
			l.Start(1, "langid")
			l.Exit(1, sample.Clean)
			l.Exit(1, sample.Killed)
		}, "exits a second time"},
		"exit amended (I23)": {func(l *sample.Log) {
			l.Accept(1, "langid", 1)
			l.Start(1, "langid")
			l.Exit(1, sample.Clean)
			l.Retire(1, "langid", protocol.ReasonExited, sample.Killed)
		}, "amended"},
		"retired without exit (I18)": {func(l *sample.Log) {
			l.Accept(1, "langid", 1)
			l.Start(1, "langid")
			l.Retire(1, "langid", protocol.ReasonExited, sample.Clean)
		}, "dispatched without exited"},
		"goes on after retirement": {func(l *sample.Log) {
			l.Accept(1, "langid", 1)
			l.Start(1, "langid")
			l.Exit(1, sample.Clean)
			l.Retire(1, "langid", protocol.ReasonExited, sample.Clean)
			l.Start(1, "langid")
		}, "after it was retired"},
		"consumed unretired (I20)": {func(l *sample.Log) { l.Accept(1, "langid", 1); l.Consume(1, 1, sample.Digest) }, "before it was retired"},
		"consumed another receipt (I20)": {func(l *sample.Log) {
			l.Accept(1, "langid", 1)
			l.Start(1, "langid")
			l.Exit(1, sample.Clean)
			index, _ := l.Retire(1, "langid", protocol.ReasonExited, sample.Clean)
			l.Consume(1, index, sample.Digest)
		}, "names another receipt"},
		"consumed twice (I20)": {func(l *sample.Log) {
			l.Accept(1, "langid", 1)
			l.Start(1, "langid")
			l.Exit(1, sample.Clean)
			index, leaf := l.Retire(1, "langid", protocol.ReasonExited, sample.Clean)
			l.Consume(1, index, leaf)
			l.Consume(1, index, leaf)
		}, "consumed a second time"},
		"released unconsumed (I21)": {func(l *sample.Log) {
			l.Accept(1, "langid", 1)
			l.Append(protocol.KindReleased, 0, protocol.ReleasedBody{Frontier: 1, Except: []protocol.Number{}})
		}, "never consumed"},
		"carried and not stuck (I21)": {func(l *sample.Log) {
			l.Accept(1, "langid", 1)
			l.Append(protocol.KindReleased, 0, protocol.ReleasedBody{Frontier: 1, Except: []protocol.Number{1}})
		}, "is not stuck"},
		"released what was never accepted": {func(l *sample.Log) {
			l.Accept(1, "langid", 1)
			l.Append(protocol.KindReleased, 0, protocol.ReleasedBody{Frontier: 9, Except: []protocol.Number{}})
		}, "only 1 numbers were accepted"},
		"second genesis": {func(l *sample.Log) { l.Genesis() }, "another one"},
		"kill before start": {func(l *sample.Log) {
			l.Accept(1, "langid", 1)
			l.Append(protocol.KindOOMObserved, 1, protocol.OOMObservedBody{})
			l.Start(1, "langid")
		}, "after its end"},
		"kill, and never dispatched": {func(l *sample.Log) {
			l.Accept(1, "langid", 1)
			l.Append(protocol.KindOOMObserved, 1, protocol.OOMObservedBody{})
			l.Append(protocol.KindRetired, 1, protocol.RetiredBody{Reason: protocol.ReasonSetupFailed, OOM: protocol.OOM{Verdict: protocol.VerdictUnknown, Source: protocol.CountersFromNone}, LogSink: protocol.LogSinkOK})
		}, "as never dispatched"},
	} {
		t.Run(name, func(t *testing.T) {
			l := sample.New()
			l.Genesis()
			c.tell(l)
			report, err := Check(stretch(l, 0), l.Key())
			if err != nil || len(report.Findings) == 0 || !strings.Contains(fmt.Sprint(report.Findings), c.want) {
				t.Errorf("%v, %v", report.Findings, err)
			}
		})
	}
}

// The key in genesis must be the one that signs.
func TestForeignGenesis(t *testing.T) {
	l, other := sample.New(), sample.New()
	l.Append(protocol.KindGenesis, 0, protocol.GenesisBody{
		HostKey: other.Signer.PublicKey(), BootID: sample.Boot, Versions: protocol.Versions{Agent: "1", Protocol: []int{1}},
	})
	report, err := Check(stretch(l, 0), l.Key())
	if err != nil || len(report.Findings) != 1 || !strings.Contains(report.Findings[0].Detail, "another host key") {
		t.Errorf("%v, %v", report.Findings, err)
	}
}

// A stuck number that is carried along is an allowed history, its later end
// and second release included (I19, I21).
func TestCarriedHistory(t *testing.T) {
	l := sample.New()
	l.Genesis()
	l.Accept(1, "langid", 1)
	l.Start(1, "langid")
	l.Append(protocol.KindStuck, 1, protocol.StuckBody{Step: "kill", ProcessState: "D", SinceMillis: 60000})
	l.Append(protocol.KindReleased, 0, protocol.ReleasedBody{Frontier: 1, Except: []protocol.Number{1}})
	l.Append(protocol.KindUnstuck, 1, protocol.UnstuckBody{StuckMillis: 90000})
	l.Exit(1, sample.Clean)
	l.RetireAndConsume(1, "langid", sample.Clean)
	l.Append(protocol.KindReleased, 0, protocol.ReleasedBody{Frontier: 1, Except: []protocol.Number{}})
	report, err := Check(stretch(l, 0), l.Key())
	if err != nil || len(report.Findings) != 0 || report.Live != 0 {
		t.Errorf("%+v, %v", report, err)
	}
}

// A kind that this version does not know is kept and hashed like any other.
func TestUnknownKind(t *testing.T) {
	l := sample.New()
	l.Genesis()
	l.Append("measured", 0, protocol.DrainBody{UID: 1})
	if report, err := Check(stretch(l, 0), l.Key()); err != nil || len(report.Findings) != 0 {
		t.Errorf("%v, %v", report.Findings, err)
	}
}

// The forest taken from an inclusion proof is the one that hashing leaf by
// leaf gives, for every prefix of every size up to 70.
func TestPrefixOfEverySize(t *testing.T) {
	l := sample.New()
	for i := range 70 {
		l.AppendRaw(fmt.Appendf(nil, "leaf %d", i))
	}
	for size := int64(1); size <= 70; size++ {
		var grown forest
		for n := range size {
			got, err := prefixOf(n, size, l.Proof(protocol.Index(n), size).Hashes)
			if err != nil || !slices.Equal(got.trees, grown.trees) || got.size != n {
				t.Fatalf("prefix %d of %d: %v, %v", n, size, got, err)
			}
			grown.add(tlog.LeafHash(l.Leaves[n]))
		}
		if grown.root() != l.Tree(size).Root {
			t.Fatalf("root of %d", size)
		}
	}
	proof := l.Proof(5, 70).Hashes
	for _, bad := range [][]tlog.Hash{proof[1:], append(slices.Clone(proof), proof[0]), nil} {
		if _, err := prefixOf(5, 70, bad); !errors.Is(err, errProofShape) {
			t.Errorf("%d hashes: %v", len(bad), err)
		}
	}
}

func TestSingle(t *testing.T) {
	l := sample.History()
	size := int64(len(l.Leaves))
	receipt, err := Single(l.Leaves[4], l.Proof(4, size).Format(), l.Key())
	if err != nil || receipt.Index != 4 || receipt.Kind != protocol.KindExited {
		t.Errorf("%+v, %v", receipt, err)
	}
	for name, c := range map[string]struct {
		leaf  []byte
		proof string
		key   *tlog.PublicKey
	}{
		"other leaf":  {l.Leaves[5], l.Proof(4, size).Format(), l.Key()},
		"other index": {l.Leaves[4], l.Proof(5, size).Format(), l.Key()},
		"other key":   {l.Leaves[4], l.Proof(4, size).Format(), sample.New().Key()},
		"no proof":    {l.Leaves[4], "", l.Key()},
		"no receipt":  {[]byte("x"), l.Proof(4, size).Format(), l.Key()},
	} {
		if _, err := Single(c.leaf, c.proof, c.key); err == nil {
			t.Errorf("%s: verified", name)
		}
	}
}
