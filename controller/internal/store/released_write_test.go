//go:build fixture

package store

import (
	"flag"
	"os"
	"path/filepath"
	"testing"

	"github.com/quittance/quittance/protocol"
)

var releasedDir = flag.String("released", "", "where the store of a new release goes, as testdata/released/VERSION")

// A fixture for the tests of all later versions: a store with an attempt at each
// step of its life and one in its history, as it lies on disk while it is open,
// and what every later program must read from it. The reserves, which are zeros,
// are left out. packaging/fixtures.sh runs it.
func TestWriteReleased(t *testing.T) {
	if *releasedDir == "" {
		t.Fatal("-released is required")
	}
	cfg := releasedConfig(filepath.Join(t.TempDir(), "store"))
	s := created(t, cfg)
	defer mustClose(t, s)
	finish(t, s, "old", 1)
	for i, key := range stages() {
		mustApply(t, s, mustCreate(t, s, key), stage(i)[:i]...)
	}
	if err := s.SetWitness(t.Context(), testGeneration, Witness{"c", &protocol.Seen{Index: 3, LeafHash: testDigest}}); err != nil {
		t.Fatal(err)
	}
	target := filepath.Join(*releasedDir, "store")
	if err := os.CopyFS(target, os.DirFS(cfg.Dir)); err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{lockFile, reserveDir} {
		if err := os.RemoveAll(filepath.Join(target, name)); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.WriteFile(filepath.Join(*releasedDir, "expect.txt"), []byte(describe(t, s)), 0o644); err != nil {
		t.Fatal(err)
	}
}
