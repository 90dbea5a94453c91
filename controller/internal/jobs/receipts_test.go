package jobs

import (
	"crypto/ed25519"
	"testing"
	"time"

	"github.com/quittance/quittance/controller/api"
	"github.com/quittance/quittance/controller/internal/signing"
	"github.com/quittance/quittance/protocol"
	"github.com/quittance/quittance/protocol/tlog"
	xtlog "golang.org/x/mod/sumdb/tlog"
)

// unregistered signs with a key that nobody registered.
func (f *fixture) unregistered() *signing.Signer {
	f.t.Helper()
	_, private, err := ed25519.GenerateKey(nil)
	if err != nil {
		f.t.Fatal(err)
	}
	signer, err := signing.NewSigner(private, time.Now)
	if err != nil {
		f.t.Fatal(err)
	}
	return signer
}

// host is a receipt log of one generation, small enough to prove by hand.
type host struct {
	t      testing.TB
	signer *tlog.Signer
	leaves [][]byte
	hashes []xtlog.Hash
}

func newHost(t testing.TB) *host {
	t.Helper()
	signer, _, err := tlog.NewSigner(protocol.NewID())
	if err != nil {
		t.Fatal(err)
	}
	h := &host{t: t, signer: signer}
	h.add(protocol.KindGenesis, 0, protocol.GenesisBody{HostKey: signer.PublicKey(), BootID: protocol.NewID(), Versions: protocol.Versions{Agent: "test", Protocol: []int{1}}})
	return h
}

// ReadHashes implements tlog.HashReader.
func (h *host) ReadHashes(indexes []int64) ([]xtlog.Hash, error) {
	hashes := make([]xtlog.Hash, len(indexes))
	for i, index := range indexes {
		hashes[i] = h.hashes[index]
	}
	return hashes, nil
}

func (h *host) add(kind protocol.Kind, number protocol.Number, body any) protocol.Index {
	h.t.Helper()
	index := protocol.Index(len(h.leaves))
	leaf := protocol.EncodeReceipt(h.signer.Generation(), index, kind, number, protocol.TimestampOf(time.Unix(1_800_000_000, 0)), body)
	stored, err := xtlog.StoredHashes(int64(index), leaf, h)
	if err != nil {
		h.t.Fatal(err)
	}
	h.leaves, h.hashes = append(h.leaves, leaf), append(h.hashes, stored...)
	return index
}

func (h *host) accepted(number protocol.Number, purpose string) protocol.Index {
	return h.add(protocol.KindAccepted, number, protocol.AcceptedBody{Owner: protocol.NewID(), Purpose: purpose, Devices: []protocol.Device{}})
}

func (h *host) receipt(index protocol.Index) api.HostReceipt {
	h.t.Helper()
	size := int64(len(h.leaves))
	root, err := xtlog.TreeHash(size, h)
	if err != nil {
		h.t.Fatal(err)
	}
	checkpoint, err := tlog.SignCheckpoint(h.signer, tlog.Tree{Size: size, Root: root})
	if err != nil {
		h.t.Fatal(err)
	}
	path, err := xtlog.ProveRecord(size, int64(index), h)
	if err != nil {
		h.t.Fatal(err)
	}
	proof := tlog.Proof{Index: index, Hashes: path, Checkpoint: checkpoint}
	return api.HostReceipt{Leaf: h.leaves[index], Proof: proof.Format()}
}

// receipt is a host key and a well-formed leaf, for tests that only need form.
func (f *fixture) receipt(string) (key string, leaf api.Bytes) {
	h := newHost(f.t)
	return h.signer.PublicKey(), h.leaves[0]
}

// A receipt is verified only against a key that an operator registered, otherwise
// announced; a proof that fails is invalid under any key.
func TestReceiptsAreVerifiedOnlyUnderRegisteredKeys(t *testing.T) {
	f := open(t, "", nil)
	job := f.create("op", "x")
	a := f.node.start(&job, "attempt-key").Attempt
	h := newHost(t)
	accepted := h.accepted(1, "attempt-key")
	drained := h.add(protocol.KindDrained, 0, protocol.DrainBody{UID: 0})
	route := "/provider/v1/attempts/" + a + "/receipts"
	attach := func(receipts ...api.HostReceipt) reply {
		return f.node.send("PUT", route, &api.HostReceipts{Attempt: a, Key: h.signer.PublicKey(), Receipts: receipts})
	}
	trusts := func() []api.Trust {
		t.Helper()
		var trusts []api.Trust
		for _, r := range must[api.JobReceipts](t, 200, f.user(f.token, "GET", "/v1/jobs/"+job.Job+"/receipts", nil)).Receipts {
			trusts = append(trusts, r.Trust)
		}
		return trusts
	}

	answer := must[api.HostReceiptsAnswer](t, 200, attach(h.receipt(accepted)))
	equal(t, "announced", [3]int{answer.Added, answer.Total, answer.Verified}, [3]int{1, 1, 0})
	equal(t, "trust", trusts(), []api.Trust{api.TrustAnnounced})
	if verified, err := f.s.AddHostKey(t.Context(), h.signer.PublicKey()); err != nil || verified != 1 {
		t.Fatalf("registered: %d, %v", verified, err)
	}
	equal(t, "trust", trusts(), []api.Trust{api.TrustVerified})

	// Repetition is a no-op, also after the end; a new receipt is taken then too.
	version := f.job(job.Job).Version
	equal(t, "repeated", must[api.HostReceiptsAnswer](t, 200, attach(h.receipt(accepted))).Added, 0)
	equal(t, "version", f.job(job.Job).Version, version)
	must[api.CompleteReceipt](t, 200, f.node.complete(a, "r"))
	answer = must[api.HostReceiptsAnswer](t, 200, attach(h.receipt(accepted), h.receipt(drained)))
	equal(t, "verified", [3]int{answer.Added, answer.Total, answer.Verified}, [3]int{1, 2, 2})
	equal(t, "count", f.job(job.Job).Attempts[0].Receipts, api.ReceiptCount{Total: 2, Verified: 2})

	// The proof of another receipt proves nothing.
	extra := h.add(protocol.KindUndrained, 0, protocol.DrainBody{UID: 0})
	swapped := h.receipt(extra)
	swapped.Proof = h.receipt(accepted).Proof
	answer = must[api.HostReceiptsAnswer](t, 200, attach(swapped))
	equal(t, "swapped proof", [2]int{answer.Added, answer.Verified}, [2]int{1, 2})
	equal(t, "trust", trusts(), []api.Trust{api.TrustVerified, api.TrustVerified, api.TrustInvalid})

	// The same index with another leaf, another attempt's receipt, and bytes that
	// are no receipt are refused whole.
	forged := h.receipt(accepted)
	forged.Leaf = protocol.EncodeReceipt(h.signer.Generation(), accepted, protocol.KindDrained, 0, protocol.TimestampOf(time.Unix(1, 0)), protocol.DrainBody{})
	equal(t, "field", refused(t, api.CodeReceiptConflict, attach(h.receipt(drained), forged)).Field, "/receipts/1/leaf")
	foreign := h.accepted(2, "somebody-else")
	refused(t, api.CodeReceiptConflict, attach(h.receipt(foreign)))
	equal(t, "field", refused(t, api.CodeBadRequest, attach(api.HostReceipt{Leaf: api.Bytes("{}"), Proof: "p"})).Field, "/receipts/0/leaf")
	equal(t, "field", refused(t, api.CodeBadRequest, f.node.send("PUT", route,
		&api.HostReceipts{Attempt: a, Key: "nonsense", Receipts: []api.HostReceipt{h.receipt(accepted)}})).Field, "/key")
	equal(t, "trust", len(trusts()), 3)
}

func TestReceiptsOfOneAttemptAreBounded(t *testing.T) {
	f := open(t, "", nil)
	job := f.create("op", "x")
	a := f.node.start(&job, "k").Attempt
	h := newHost(t)
	var first []api.HostReceipt
	for range api.MaxHostReceipts {
		h.add(protocol.KindDrained, 0, protocol.DrainBody{UID: 0})
	}
	for i := range api.MaxHostReceipts {
		first = append(first, h.receipt(protocol.Index(i)))
	}
	route := "/provider/v1/attempts/" + a + "/receipts"
	answer := must[api.HostReceiptsAnswer](t, 200, f.node.send("PUT", route, &api.HostReceipts{Attempt: a, Key: h.signer.PublicKey(), Receipts: first}))
	equal(t, "total", answer.Total, api.MaxHostReceipts)
	refused(t, api.CodeReceiptBounds, f.node.send("PUT", route,
		&api.HostReceipts{Attempt: a, Key: h.signer.PublicKey(), Receipts: []api.HostReceipt{h.receipt(api.MaxHostReceipts)}}))
}
