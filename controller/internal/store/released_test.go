package store

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/quittance/quittance/controller/internal/attempt"
	"github.com/quittance/quittance/protocol"
)

// releasedConfig is what the fixtures below testdata/released were written with.
func releasedConfig(dir string) Config {
	cfg := config(nil)
	cfg.Dir, cfg.MaxActive = dir, 16
	return cfg
}

// stages are the attempts of a fixture: the first has only begun, each further
// one is a step on, and the last may be archived.
func stages() (keys []string) {
	for i := range len(life("", 1)) + 1 {
		keys = append(keys, fmt.Sprintf("stage-%d", i))
	}
	return keys
}

// stage is the whole life of the attempt at an index of stages.
func stage(index int) []attempt.Event {
	return life(stages()[index], protocol.Number(index+2))
}

// describe writes down what a store says.
func describe(t *testing.T, s *Store) string {
	t.Helper()
	var b strings.Builder
	fmt.Fprintf(&b, "store %s\n", s.ID())
	for _, e := range s.Active() {
		fmt.Fprintf(&b, "active %s %s, revision %d\n", e.Key, e.Record.State(), e.Revision)
	}
	for _, h := range s.History() {
		e, err := s.Archived(h)
		if err != nil {
			t.Fatal(err)
		}
		fmt.Fprintf(&b, "history %d %s %s, revision %d\n", h.Sequence, h.Key, e.Record.State(), e.Revision)
	}
	for _, generation := range s.Generations() {
		w, _ := s.Witness(generation)
		fmt.Fprintf(&b, "witness %s to %d\n", generation, w.Highest.Index)
	}
	return b.String()
}

// The store of every release is read by this program, and its attempts go on
// from where they were to their end (I32).
func TestReleasedStores(t *testing.T) {
	releases, err := filepath.Glob("testdata/released/v*")
	if err != nil || len(releases) == 0 {
		t.Fatal(releases, err)
	}
	for _, release := range releases {
		t.Run(filepath.Base(release), func(t *testing.T) {
			cfg := releasedConfig(filepath.Join(t.TempDir(), "store"))
			if err := os.CopyFS(cfg.Dir, os.DirFS(filepath.Join(release, "store"))); err != nil {
				t.Fatal(err)
			}
			for _, name := range []string{activeDir, historyDir, hostsDir, reserveDir} { // git keeps no empty one
				if err := os.MkdirAll(filepath.Join(cfg.Dir, name), 0o700); err != nil {
					t.Fatal(err)
				}
			}
			s := opened(t, cfg)
			want, err := os.ReadFile(filepath.Join(release, "expect.txt"))
			if err != nil {
				t.Fatal(err)
			}
			if got := describe(t, s); got != string(want) {
				t.Errorf("reads\n%s\nwant\n%s", got, want)
			}
			for i, key := range stages() {
				e, found := s.Get(key)
				if !found {
					t.Fatalf("%s is not there", key)
				}
				mustApply(t, s, e, stage(i)[i:]...)
				if _, err := s.Archive(t.Context(), key); err != nil {
					t.Fatal(err)
				}
			}
			finish(t, s, "new", 100)
			mustClose(t, s)
			s = opened(t, cfg)
			if len(s.Active()) != 0 || !s.Knows("new") {
				t.Errorf("afterwards %v are active", s.Active())
			}
			mustClose(t, s)
		})
	}
}
