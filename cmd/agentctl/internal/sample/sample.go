// Package sample makes small receipt logs with real keys, hashes and proofs
// for agentctl's tests.
//
// It owns example content only; nothing outside tests imports it.
package sample

import (
	"fmt"

	"golang.org/x/mod/sumdb/tlog"

	"github.com/quittance/quittance/protocol"
	qtlog "github.com/quittance/quittance/protocol/tlog"
)

// Fixed identities of the sample.
const (
	Generation = protocol.ID("00112233445566778899aabbccddeeff")
	Owner      = protocol.ID("ffeeddccbbaa99887766554433221100")
	Boot       = protocol.ID("0123456789abcdef0123456789abcdef")
	Digest     = protocol.Digest("sha256:e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855")
)

// Log is a receipt log in memory.
type Log struct {
	Signer *qtlog.Signer
	Leaves [][]byte
	hashes []tlog.Hash
}

// New makes an empty log with a fresh key.
func New() *Log {
	signer, _, err := qtlog.NewSigner(Generation)
	if err != nil {
		panic(err)
	}
	return &Log{Signer: signer}
}

// Key is the log's public key.
func (l *Log) Key() *qtlog.PublicKey {
	key, err := qtlog.ParsePublicKey(l.Signer.PublicKey())
	if err != nil {
		panic(err)
	}
	return key
}

// at is the time of a receipt: one second after the one before.
func (l *Log) at() protocol.Timestamp {
	return protocol.Timestamp(1_796_000_000_000_000 + int64(len(l.Leaves))*1_000_000)
}

// Append writes a receipt and returns its index and leaf hash.
func (l *Log) Append(kind protocol.Kind, number protocol.Number, body any) (protocol.Index, protocol.Digest) {
	index := protocol.Index(len(l.Leaves))
	leaf := protocol.EncodeReceipt(Generation, index, kind, number, l.at(), body)
	return index, l.AppendRaw(leaf)
}

// AppendRaw appends any bytes as a leaf.
func (l *Log) AppendRaw(leaf []byte) protocol.Digest {
	stored, err := tlog.StoredHashes(int64(len(l.Leaves)), leaf, l)
	if err != nil {
		panic(err)
	}
	l.hashes = append(l.hashes, stored...)
	l.Leaves = append(l.Leaves, leaf)
	return qtlog.LeafDigest(leaf)
}

// ReadHashes implements tlog.HashReader.
func (l *Log) ReadHashes(indexes []int64) ([]tlog.Hash, error) {
	out := make([]tlog.Hash, len(indexes))
	for i, index := range indexes {
		if index >= int64(len(l.hashes)) {
			return nil, fmt.Errorf("no hash %d", index)
		}
		out[i] = l.hashes[index]
	}
	return out, nil
}

// Tree is the log at a size.
func (l *Log) Tree(size int64) qtlog.Tree {
	root, err := tlog.TreeHash(size, l)
	if err != nil {
		panic(err)
	}
	return qtlog.Tree{Size: size, Root: root}
}

// Checkpoint signs the log at a size.
func (l *Log) Checkpoint(size int64) string {
	text, err := qtlog.SignCheckpoint(l.Signer, l.Tree(size))
	if err != nil {
		panic(err)
	}
	return text
}

// Proof proves one receipt in the log at a size.
func (l *Log) Proof(index protocol.Index, size int64) qtlog.Proof {
	hashes, err := tlog.ProveRecord(size, int64(index), l)
	if err != nil {
		panic(err)
	}
	return qtlog.Proof{Index: index, Hashes: hashes, Checkpoint: l.Checkpoint(size)}
}

// P points to a value.
func P[T any](v T) *T { return &v }

// Container is the sample container of a number.
func Container(n protocol.Number, profile string) protocol.Container {
	nonce := protocol.ID(fmt.Sprintf("%032x", int64(n)))
	return protocol.Container{
		ID: "q-" + string(nonce), Nonce: nonce, Created: 1_796_000_000_500_000, ImageDigest: Digest, SpecDigest: Digest,
		Profile: profile, ProfileDigest: Digest,
	}
}

// Genesis opens the log.
func (l *Log) Genesis() {
	versions := protocol.Versions{Agent: "1.2.3", Protocol: []int{1}}
	l.Append(protocol.KindGenesis, 0, protocol.GenesisBody{HostKey: l.Signer.PublicKey(), BootID: Boot, Versions: versions})
	l.Append(protocol.KindAgentStarted, 0, protocol.AgentStartedBody{BootID: Boot, Versions: versions})
}

// Accept accepts a number for a profile with a memory limit.
func (l *Log) Accept(n protocol.Number, profile string, memory int64) {
	container := Container(n, profile)
	l.Append(protocol.KindAccepted, n, protocol.AcceptedBody{
		Owner: Owner, Purpose: fmt.Sprintf("attempt-%s", n), Nonce: &container.Nonce, Profile: &profile,
		ProfileDigest: P(Digest), ImageDigest: P(Digest),
		Limits:  &protocol.Limits{MemoryBytes: memory, CPUMillis: 1000, PIDs: 64},
		Devices: []protocol.Device{},
	})
}

// Start starts a number's container.
func (l *Log) Start(n protocol.Number, profile string) {
	l.Append(protocol.KindStarted, n, protocol.StartedBody{
		Container: Container(n, profile), PID: 4000 + int64(n), StartTicks: 99, BootID: Boot,
		Cgroup:   protocol.CgroupRef{Mode: protocol.CgroupV1, Path: "/quittance/" + string(Container(n, profile).Nonce), Inode: 7},
		Baseline: protocol.Counters{OOMKill: P(int64(0)), FailCnt: P(int64(0))}, Durations: protocol.CreateTook{CreateMillis: 140, StartMillis: 25},
	})
}

// Ended is how a number's process ended.
type Ended struct {
	Code   int64
	Signal *int64
	Kills  int64
	Peak   int64
}

func (e Ended) exited() protocol.ExitedBody {
	oom := protocol.OOM{
		Verdict: protocol.VerdictNotKilled, Source: protocol.CountersFromV1,
		Counters: protocol.Counters{OOMKill: P(e.Kills), FailCnt: P(int64(0))},
	}
	if e.Kills > 0 {
		oom.Verdict, oom.Scope = protocol.VerdictKilled, P(protocol.ScopeContainer)
		oom.Counters.FailCnt = P(int64(12))
	}
	return protocol.ExitedBody{
		Exit: protocol.Exit{Source: protocol.ExitFromEngine, Code: &e.Code, Signal: e.Signal, At: P(protocol.Timestamp(1_796_000_009_000_000))},
		OOM:  oom, Peaks: protocol.Peaks{MemoryBytes: &e.Peak, CPUMicros: P(int64(1_500_000))},
		LogSink: protocol.LogSinkOK, RunMillis: P(int64(2500)),
	}
}

// Exit writes a number's end.
func (l *Log) Exit(n protocol.Number, e Ended) { l.Append(protocol.KindExited, n, e.exited()) }

// Retire writes a number's retirement after that end.
func (l *Log) Retire(n protocol.Number, profile string, reason protocol.Reason, e Ended) (protocol.Index, protocol.Digest) {
	exited := e.exited()
	return l.Append(protocol.KindRetired, n, protocol.RetiredBody{
		Dispatched: true, Reason: reason, RequestedBy: P("controller"), Container: P(Container(n, profile)),
		Exit: &exited.Exit, OOM: exited.OOM, Peaks: exited.Peaks, LogSink: exited.LogSink,
		Durations: protocol.RetireTook{StopMillis: 12, RemoveMillis: 70},
		Removal: protocol.Removal{
			Task: protocol.RemovedByUs, Container: protocol.RemovedByUs, Snapshot: protocol.RemovedByUs,
			Cgroup: protocol.RemovedByUs, LogSink: protocol.RemovedByUs, Devices: protocol.RemovedAbsent,
		},
	})
}

// Consume consumes a number's retirement.
func (l *Log) Consume(n protocol.Number, retired protocol.Index, leaf protocol.Digest) {
	l.Append(protocol.KindConsumed, n, protocol.ConsumedBody{RetiredIndex: retired, RetiredLeaf: leaf})
}

// Clean and Killed are the two ends of the sample.
var (
	Clean  = Ended{Code: 0, Peak: 3 << 20}
	Killed = Ended{Code: 137, Signal: P(int64(9)), Kills: 1, Peak: 64 << 20}
)

// History is a whole small history: number 1 ends well and is released, number
// 2 is killed for memory and consumed, number 3 lives.
func History() *Log {
	l := New()
	l.Genesis()
	l.Accept(1, "langid", 64<<20)
	l.Start(1, "langid")
	l.Exit(1, Clean)
	l.RetireAndConsume(1, "langid", Clean)
	l.Append(protocol.KindReleased, 0, protocol.ReleasedBody{Frontier: 1, Except: []protocol.Number{}})
	l.Accept(2, "ocr-small", 64<<20)
	l.Start(2, "ocr-small")
	l.Append(protocol.KindOOMObserved, 2, protocol.OOMObservedBody{Counters: protocol.Counters{OOMKill: P(int64(1)), FailCnt: P(int64(12))}})
	l.Exit(2, Killed)
	l.RetireAndConsume(2, "ocr-small", Killed)
	l.Accept(3, "ocr", 384<<20)
	l.Start(3, "ocr")
	return l
}

// RetireAndConsume retires a number and consumes exactly that.
func (l *Log) RetireAndConsume(n protocol.Number, profile string, e Ended) {
	index, leaf := l.Retire(n, profile, protocol.ReasonRequested, e)
	l.Consume(n, index, leaf)
}
