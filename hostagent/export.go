package hostagent

import (
	"io"

	"github.com/quittance/quittance/hostagent/internal/ledger"
)

// ExportReceipts writes the receipts that the ledger's segments hold to w, one
// exact leaf a line, in the order of their indices, as GET receipts does: those
// since the last release. The agent need not run and is not disturbed. Nothing
// is written of a damaged ledger. Intents are the agent's own and are left out.
func ExportReceipts(c Config, w io.Writer) (LedgerReport, error) {
	return ledger.Export(ledgerDir(c), ledgerOptions(c), func(e ledger.Entry) error {
		if e.Kind != ledger.KindReceipt {
			return nil
		}
		_, err := w.Write(append(e.Payload, '\n'))
		return err
	})
}
