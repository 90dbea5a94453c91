//go:build fixture

package hostagent

import (
	"flag"
	"os"
	"path/filepath"
	"testing"

	"github.com/quittance/quittance/hostagent/internal/journal"
	"github.com/quittance/quittance/protocol/tlog"
)

var releasedDir = flag.String("released", "", "the fixture of a release, whose expect.txt is written")

// What this program reads from the ledger that TestWriteReleased
// (integration/engine) left: look at it before it is committed, every later
// version is held to it. packaging/fixtures.sh runs both.
func TestWriteExpected(t *testing.T) {
	if *releasedDir == "" {
		t.Fatal("-released is required")
	}
	c := stateOf(t, *releasedDir)
	signer, err := tlog.LoadKeyFile(hostKeyFile(c))
	if err != nil {
		t.Fatal(err)
	}
	j, state, err := journal.Open(ledgerDir(c), ledgerOptions(c), signer)
	if err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(*releasedDir, "expect.txt")
	if err := os.WriteFile(file, []byte(describe(t, state)), 0o644); err != nil {
		t.Error(err)
	}
	if err := j.Close(); err != nil {
		t.Error(err)
	}
}
