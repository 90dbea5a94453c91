package hostclient

import (
	"bytes"
	"errors"
	"testing"

	"github.com/quittance/quittance/protocol"
	"github.com/quittance/quittance/protocol/tlog"
)

// FuzzReceipts: a stretch of receipts that an agent sent is refused, or it is
// exactly the bytes that came, contiguous and of the generation asked for (I8, I33).
func FuzzReceipts(f *testing.F) {
	leaf := func(index protocol.Index) []byte {
		return append(protocol.EncodeReceipt(gen, index, protocol.KindUndrained, 0, 1, protocol.DrainBody{}), '\n')
	}
	f.Add(append(leaf(5), leaf(6)...), int64(5), 10)
	f.Add(append(leaf(5), leaf(7)...), int64(5), 10)
	f.Add(leaf(5)[:40], int64(5), 10)
	f.Add([]byte("\n\n"), int64(0), 1)
	f.Fuzz(func(t *testing.T, body []byte, first int64, limit int) {
		if limit < 0 {
			return
		}
		next := protocol.Index(first)
		leaves, err := readLeaves(bytes.NewReader(body), gen, &next, limit)
		if err != nil {
			return
		}
		var joined []byte
		for i, l := range leaves {
			if l.Receipt.Generation != gen || l.Receipt.Index != protocol.Index(first)+protocol.Index(i) || l.Hash != tlog.LeafHash(l.Bytes) {
				t.Errorf("leaf %d: %+v", i, l)
			}
			joined = append(append(joined, l.Bytes...), '\n')
		}
		if len(leaves) > limit || !bytes.Equal(joined, body) {
			t.Errorf("%d leaves are not the body of %d bytes", len(leaves), len(body))
		}
	})
}

// FuzzProblem: an answer that is no success is a settled refusal only where the
// agent says so in full; whatever else came leaves the effect unknown (I11).
func FuzzProblem(f *testing.F) {
	refusal := protocol.NewProblem(protocol.CodeCapacity, "full", "wait")
	f.Add(refusal.Status, protocol.AppendCanonical(nil, refusal))
	f.Add(503, protocol.AppendCanonical(nil, refusal))
	f.Add(500, []byte("oops"))
	f.Add(409, []byte(`{"status":409,"code":"","disposition":"refused"}`))
	f.Fuzz(func(t *testing.T, status int, data []byte) {
		err := problemOf("allocate", status, data)
		if err == nil {
			t.Fatal("no error")
		}
		_ = err.Error() // formats
		problem, settled := errors.AsType[*protocol.Problem](err)
		switch d := DispositionOf(err); {
		case settled && d == protocol.Refused && problem.Status == status && problem.Code != "":
		case d == protocol.Unknown:
		default:
			t.Errorf("status %d, %q: disposition %s, %v", status, data, d, err)
		}
	})
}
