package hostagent

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/quittance/quittance/hostagent/internal/core"
	"github.com/quittance/quittance/hostagent/internal/journal"
	"github.com/quittance/quittance/hostagent/internal/ledger"
	"github.com/quittance/quittance/protocol"
	"github.com/quittance/quittance/protocol/tlog"
)

// releases are the directories of the fixtures, of which integration/checks knows
// that none is missing.
func releases(t *testing.T) []string {
	t.Helper()
	found, err := filepath.Glob(filepath.Join("testdata", "released", "v*"))
	if err != nil || len(found) == 0 {
		t.Fatal(found, err)
	}
	return found
}

// stateOf copies the state directory of a release's fixture, segments at their
// full length.
func stateOf(t *testing.T, release string) Config {
	t.Helper()
	c := testConfig(t)
	source := filepath.Join(release, "state")
	err := filepath.WalkDir(source, func(path string, entry fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		relative, err := filepath.Rel(source, path)
		if err != nil {
			return err
		}
		target := filepath.Join(c.StateDir, relative)
		if entry.IsDir() {
			return os.MkdirAll(target, 0o700)
		}
		content, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		if filepath.Ext(path) == ".segment" {
			const sizeAt = 40 // in a segment's header
			whole := make([]byte, binary.LittleEndian.Uint64(content[sizeAt:]))
			copy(whole, content)
			content = whole
		}
		return os.WriteFile(target, content, 0o600)
	})
	if err != nil {
		t.Fatal(err)
	}
	return c
}

// describe writes down what a folded ledger says.
func describe(t *testing.T, s *core.State) string {
	t.Helper()
	var b strings.Builder
	fmt.Fprintf(&b, "generation %s\nindices %d to %d\nnumbers accepted to %d, released to %d\ndraining %v\n",
		s.Generation, s.First, s.Next-1, s.Accepted, s.Released, s.Draining)
	if s.Owner != nil {
		fmt.Fprintf(&b, "owner %s\n", *s.Owner)
	}
	for _, n := range s.Numbers() {
		a := s.Allocation(n)
		fmt.Fprintf(&b, "number %d", n)
		if a.Burn() {
			b.WriteString(" burnt")
		} else {
			fmt.Fprintf(&b, " profile %s %s", a.Profile.Name, a.Accepted.Purpose)
		}
		if a.Started != nil {
			b.WriteString(" started")
		}
		if a.Exited != nil {
			fmt.Fprintf(&b, " exited %v", *a.Exited.Exit.Code)
		}
		if a.Retired != nil {
			fmt.Fprintf(&b, " retired %s", a.Retired.Reason)
		}
		if a.Consumed {
			b.WriteString(" consumed")
		}
		for _, kind := range []protocol.Kind{protocol.KindAccepted, protocol.KindStarted, protocol.KindOOMObserved, protocol.KindExited, protocol.KindRetired, protocol.KindConsumed} {
			if r := a.Receipt(kind); r != nil {
				fmt.Fprintf(&b, " %s=%d", kind, r.Entry.Index)
			}
		}
		b.WriteByte('\n')
	}
	return b.String()
}

// Every released version's ledger is read by this program: it folds to what
// that agent had promised, its receipts are there byte for byte, and the
// checkpoint that it had signed last is signed again (I9, I8).
func TestReleasedLedgers(t *testing.T) {
	for _, release := range releases(t) {
		t.Run(filepath.Base(release), func(t *testing.T) {
			fixture := func(name string) []byte {
				t.Helper()
				content, err := os.ReadFile(filepath.Join(release, name))
				if err != nil {
					t.Fatal(err)
				}
				return content
			}
			c := stateOf(t, release)
			report, err := CheckLedger(c)
			if err != nil || report.TailBytes != 0 {
				t.Fatalf("ledger check: %+v, %v", report, err)
			}
			signer, err := tlog.LoadKeyFile(hostKeyFile(c))
			if err != nil {
				t.Fatal(err)
			}
			j, state, err := journal.Open(ledgerDir(c), ledgerOptions(c), signer)
			if err != nil {
				t.Fatal(err)
			}
			defer func() {
				if err := j.Close(); err != nil {
					t.Error(err)
				}
			}()
			if got, want := describe(t, state), string(fixture("expect.txt")); got != want {
				t.Errorf("folds to\n%s\nwant\n%s", got, want)
			}
			checkpoint, err := j.Receipts().Checkpoint()
			if err != nil {
				t.Fatal(err)
			}
			if got, want := checkpoint.Text, string(fixture("checkpoint")); got != want {
				t.Errorf("signs\n%s\nwant\n%s", got, want)
			}
			leaves := bytes.Split(bytes.TrimSuffix(fixture("receipts.jsonl"), []byte("\n")), []byte("\n"))
			served := 0
			for i, want := range leaves {
				index := protocol.Index(i)
				got, err := j.Receipts().Leaf(index)
				if err != nil {
					if index >= state.First {
						t.Errorf("receipt %d: %v", index, err)
					}
					continue
				}
				served++
				if !bytes.Equal(got, want) {
					t.Errorf("receipt %d is\n%s\nwant\n%s", index, got, want)
				}
				proof, err := j.Receipts().Proof(index)
				if err != nil {
					t.Errorf("receipt %d: %v", index, err)
					continue
				}
				key, err := tlog.ParsePublicKey(signer.PublicKey())
				if err != nil {
					t.Fatal(err)
				}
				if _, err := proof.Verify(want, key); err != nil {
					t.Errorf("receipt %d: %v", index, err)
				}
			}
			if want := len(state.Kept()) + int(state.Next-state.First); served != want {
				t.Errorf("%d receipts are served, %d are expected", served, want)
			}
		})
	}
}

// The ledger of a later program is refused by every verb that reads it, with
// the remedy, and a restart is not tried (I9).
func TestLaterLedgerIsRefused(t *testing.T) {
	c := stateOf(t, releases(t)[0])
	segments, err := filepath.Glob(filepath.Join(ledgerDir(c), "*.segment"))
	if err != nil || len(segments) == 0 {
		t.Fatalf("%v, %v", segments, err)
	}
	newest := segments[len(segments)-1]
	// The header of that segment, as format 2 would have it.
	later, err := os.ReadFile(filepath.Join("testdata", "later.segment-header"))
	if err != nil {
		t.Fatal(err)
	}
	content, err := os.ReadFile(newest)
	if err != nil {
		t.Fatal(err)
	}
	copy(content, later)
	if err := os.WriteFile(newest, content, 0o600); err != nil {
		t.Fatal(err)
	}
	_, check := CheckLedger(c)
	_, export := ExportReceipts(c, new(bytes.Buffer))
	_, backup := BackupLedger(c, filepath.Join(t.TempDir(), "copy"))
	signer, err := tlog.LoadKeyFile(hostKeyFile(c))
	if err != nil {
		t.Fatal(err)
	}
	_, _, run := journal.Open(ledgerDir(c), ledgerOptions(c), signer) // as Run does
	for verb, err := range map[string]error{"check": check, "export": export, "backup": backup, "run": run} {
		refusal, ok := errors.AsType[*ledger.FormatError](err)
		if !ok || !IsUnmending(err) || refusal.Format != LedgerFormat+1 || !strings.Contains(err.Error(), "run the version that wrote it") {
			t.Errorf("%s: %v", verb, err)
		}
	}
	after, err := os.ReadFile(newest)
	if err != nil || !bytes.Equal(after, content) {
		t.Errorf("a refusal changed the ledger: %v", err)
	}
}
