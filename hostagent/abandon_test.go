package hostagent

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/quittance/quittance/hostagent/internal/engine"
	"github.com/quittance/quittance/hostagent/internal/ledger"
	"github.com/quittance/quittance/protocol"
	"github.com/quittance/quittance/protocol/tlog"
)

// oldNode is a state directory with a ledger that is to be given up.
func oldNode(t *testing.T) (Config, Created) {
	t.Helper()
	c := testConfig(t)
	made, err := Init(c, "test")
	if err != nil {
		t.Fatal(err)
	}
	return c, made
}

// checkReplaced looks at what an abandonment has made, whatever cut it short.
func checkReplaced(t *testing.T, c Config, old Created, r replacement, made Created) {
	t.Helper()
	if made.Generation != r.Next {
		t.Errorf("made generation %s, want %s", made.Generation, r.Next)
	}
	report, err := CheckLedger(c)
	if err != nil || report.Generation != r.Next || report.Receipts != 1 {
		t.Errorf("the new ledger: %+v, %v", report, err)
	}
	var leaf bytes.Buffer
	if _, err := ExportReceipts(c, &leaf); err != nil {
		t.Fatal(err)
	}
	receipt, err := protocol.DecodeReceipt(bytes.TrimSpace(leaf.Bytes()))
	if err != nil {
		t.Fatal(err)
	}
	genesis, err := protocol.BodyOf[protocol.GenesisBody](receipt)
	if err != nil || genesis.Abandoned == nil || genesis.Abandoned.Generation != old.Generation || genesis.HostKey != made.HostKey {
		t.Errorf("genesis %+v, %v", genesis, err)
	}
	if _, err := os.Lstat(replacementFile(c)); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("the intent is still there: %v", err)
	}
	// The old ledger and key are kept, and readable.
	aside := ledgerDir(c) + abandonedSuffix + string(old.Generation)
	if report, err := ledger.Check(aside, ledger.Options{}); err != nil || report.Generation != old.Generation {
		t.Errorf("the old ledger: %+v, %v", report, err)
	}
	key, err := tlog.LoadKeyFile(hostKeyFile(c) + abandonedSuffix + string(old.Generation))
	if err != nil || key.PublicKey() != old.HostKey {
		t.Errorf("the old key: %v", err)
	}
	if err := checkStateDir(c); err != nil {
		t.Errorf("the agent would not start: %v", err)
	}
}

// I9, I10, I15: cut short after any step, the replacement is completed by the
// next call, to the same generation; meanwhile neither init nor the agent
// touches the directory.
func TestReplaceIsCompleted(t *testing.T) {
	for done := 0; ; done++ {
		c, old := oldNode(t)
		index := protocol.Index(0)
		digest := protocol.Digest("sha256:" + strings.Repeat("0", 64))
		r := replacement{protocol.AbandonedPrevious{Generation: old.Generation, Index: &index, LeafHash: &digest, Also: []protocol.ID{protocol.NewID()}}, protocol.NewID()}
		if err := writeDurably(replacementFile(c), protocol.AppendCanonical(nil, r)); err != nil {
			t.Fatal(err)
		}
		steps := replaceSteps(c, r, "test")
		if done == len(steps) {
			if done != 6 {
				t.Errorf("%d steps were cut after, want 6", done)
			}
			return
		}
		for _, step := range steps[:done] {
			if err := step(); err != nil {
				t.Fatalf("cut after %d: %v", done, err)
			}
		}
		if _, err := Init(c, "test"); err == nil || !strings.Contains(err.Error(), "ledger abandon "+string(old.Generation)) {
			t.Errorf("cut after %d: init: %v", done, err)
		}
		if err := checkStateDir(c); !IsUnmending(err) {
			t.Errorf("cut after %d: the agent would start: %v", done, err)
		}
		again, err := readReplacement(c)
		if err != nil || again.Next != r.Next || *again.Previous.Index != index {
			t.Fatalf("cut after %d: read again %+v, %v", done, again, err)
		}
		made, err := replace(c, again, "test")
		if err != nil {
			t.Fatalf("cut after %d: %v", done, err)
		}
		checkReplaced(t, c, old, r, made)
	}
}

// A key file that was torn while it was made is none.
func TestReplaceWithTornKey(t *testing.T) {
	c, old := oldNode(t)
	r := replacement{protocol.AbandonedPrevious{Generation: old.Generation}, protocol.NewID()}
	steps := replaceSteps(c, r, "test")
	for _, step := range steps[:2] {
		if err := step(); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.WriteFile(hostKeyFile(c), []byte("PRIVATE+K"), 0o600); err != nil {
		t.Fatal(err)
	}
	made, err := replace(c, r, "test")
	if err != nil {
		t.Fatal(err)
	}
	checkReplaced(t, c, old, r, made)
}

// Every trace of a generation names it, and none is taken for another one.
func TestKnownGenerations(t *testing.T) {
	c, old := oldNode(t)
	for what, lose := range map[string]func(){
		"all":    func() {},
		"ledger": func() { remove(t, ledgerDir(c)) },
		"marker": func() { remove(t, markerFile(c)) },
		"key":    func() { remove(t, hostKeyFile(c)) }, // the public key tells
	} {
		lose()
		if got := fmt.Sprint(knownGenerations(c)); got != "["+string(old.Generation)+"]" {
			t.Errorf("without %s: %s", what, got)
		}
	}
	remove(t, hostKeyFile(c)+".pub")
	if got := knownGenerations(c); len(got) != 0 {
		t.Errorf("without anything: %v", got)
	}
}

func remove(t *testing.T, path string) {
	t.Helper()
	if err := os.RemoveAll(path); err != nil {
		t.Fatal(err)
	}
}

// FR-33: only names that carry a nonce of ours are removed by it.
func TestNonceInLeftover(t *testing.T) {
	nonce := strings.Repeat("0a", 16)
	for l, want := range map[engine.Leftover]protocol.ID{
		{Kind: "container", Name: "q-" + nonce}:                              protocol.ID(nonce),
		{Kind: "cgroup", Name: nonce}:                                        protocol.ID(nonce),
		{Kind: "mount", Name: "/run/x/quittance/q-" + nonce + "/rootfs"}:     protocol.ID(nonce),
		{Kind: "cgroup", Name: "q-" + nonce}:                                 "",
		{Kind: "container", Name: "other"}:                                   "",
		{Kind: "container", Name: "q-" + nonce[1:]}:                          "",
		{Kind: "log-sink", Name: "process 12"}:                               "",
		{Kind: "snapshot", Name: filepath.Base(nonce)}:                       "",
		{Kind: "container", Name: "not-q-" + nonce}:                          "",
		{Kind: "mount", Name: "/run/x/quittance/aq-" + nonce + "/rootfs"}:    "",
		{Kind: "mount", Name: "/run/x/quittance/q-" + nonce + "b" + "/root"}: "",
	} {
		got, ok := nonceIn(l)
		if got != want || ok != (want != "") {
			t.Errorf("%+v: %q, %v", l, got, ok)
		}
	}
}

// One process at a time uses a state directory.
func TestStateDirIsLocked(t *testing.T) {
	c, _ := oldNode(t)
	lock, err := lockState(c)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := lockState(c); err == nil || !strings.Contains(err.Error(), "stop that agent first") {
		t.Errorf("a second one: %v", err)
	}
	if err := lock.Close(); err != nil {
		t.Fatal(err)
	}
	again, err := lockState(c)
	if err != nil {
		t.Fatal(err)
	}
	if err := again.Close(); err != nil {
		t.Error(err)
	}
}
