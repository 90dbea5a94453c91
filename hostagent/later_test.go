package hostagent

import (
	"strings"
	"testing"

	"github.com/quittance/quittance/hostagent/internal/journal"
	"github.com/quittance/quittance/hostagent/internal/ledger"
	"github.com/quittance/quittance/protocol"
	"github.com/quittance/quittance/protocol/tlog"
)

// A sound ledger in which a later program wrote what this one does not know is
// refused, with the way out, and no restart tries it again and again; the file
// is as it was for the program that can read it.
func TestLedgerOfALaterProgram(t *testing.T) {
	for what, record := range map[string]ledger.Record{
		"an intent":  {Kind: ledger.KindIntent, Payload: []byte(`{"v":1,"intent":"teleport","number":1,"boot":{"boot_id":"b0000000000000000000000000000001","ms":1},"body":{}}`)},
		"its form":   {Kind: ledger.KindIntent, Payload: []byte(`{"v":2,"intent":"retire","number":1,"boot":{"boot_id":"b0000000000000000000000000000001","ms":1},"body":{}}`)},
		"a receipt":  {Kind: ledger.KindReceipt, Payload: []byte(`later`)},
		"its number": {Kind: ledger.KindReceipt, Payload: protocol.EncodeReceipt("00112233445566778899aabbccddeeff", 1, protocol.KindUndrained, 0, 1, protocol.DrainBody{})},
	} {
		c, made := oldNode(t)
		l, err := ledger.Open(ledgerDir(c), ledgerOptions(c))
		if err != nil {
			t.Fatal(err)
		}
		done := make(chan error, 1)
		if err := l.Append([]ledger.Record{record}, func(_ []ledger.Entry, err error) { done <- err }); err != nil {
			t.Fatal(err)
		}
		if err := <-done; err != nil {
			t.Fatal(err)
		}
		if err := l.Close(); err != nil {
			t.Fatal(err)
		}
		signer, err := tlog.LoadKeyFile(hostKeyFile(c))
		if err != nil {
			t.Fatal(err)
		}
		for range 2 { // the refusal changes nothing
			_, _, err = journal.Open(ledgerDir(c), ledgerOptions(c), signer)
			if err == nil || !IsUnmending(err) || !strings.Contains(err.Error(), ledgerDir(c)) {
				t.Errorf("%s: %v, unmending %v", what, err, IsUnmending(err))
			}
		}
		if report, err := CheckLedger(c); err != nil || report.Generation != made.Generation {
			t.Errorf("%s: the ledger itself: %+v, %v", what, report, err)
		}
	}
}
