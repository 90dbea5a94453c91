//go:build crash

package store

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/quittance/quittance/controller/internal/attempt"
	"github.com/quittance/quittance/integration/powerloss"
	"github.com/quittance/quittance/protocol"
)

// defect is what a seeded store does wrong.
type defect string

const (
	sound         defect = "sound"
	noSync        defect = "no sync"
	everyFourth   defect = "sync every fourth"
	noFileSync    defect = "rename without file sync"
	noDirSync     defect = "rename without directory sync"
	ackBeforeSync defect = "acknowledgement before sync"
)

// defective is the operating system's file system under a store with a defect.
type defective struct {
	osFS
	defect defect
	syncs  int // used by one store, whose owner goroutine makes all changes
}

func (d *defective) skips(file bool) bool {
	switch d.defect {
	case noSync:
		return true
	case noFileSync:
		return file
	case noDirSync:
		return !file
	case everyFourth:
		d.syncs++
		return d.syncs%4 != 0
	}
	return false
}

func (d *defective) Create(name string) (File, error) {
	f, err := d.osFS.Create(name)
	if err != nil {
		return nil, err
	}
	return defectiveFile{f, d}, nil
}

func (d *defective) SyncDir(dir string) error {
	if d.skips(false) {
		return nil
	}
	return d.osFS.SyncDir(dir)
}

type defectiveFile struct {
	File
	fs *defective
}

func (f defectiveFile) Sync() error {
	if f.fs.skips(true) {
		return nil
	}
	return f.File.Sync()
}

// attempts is the store under a run of attempts as a controller makes it.
type attempts struct{ defect defect }

func (a attempts) config(dir string) Config {
	return Config{Dir: dir, Scope: testScope, MaxActive: 1, History: 2, FS: &defective{defect: a.defect}}
}

// Run implements [powerloss.Workload].
func (a attempts) Run(dir string, ack func(string)) (err error) {
	ctx := context.Background()
	if err := Create(a.config(dir)); err != nil {
		return err
	}
	ack("created")
	s, err := Open(a.config(dir))
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, s.Close()) }()
	ack(fmt.Sprintf("opens %d", s.Opens()))
	for n := 1; n <= 5; n++ {
		key := fmt.Sprintf("k%d", n)
		e, err := s.Create(ctx, attempt.StartPending{Origin: attempt.Origin{Scope: testScope, Key: key, Job: "j", Kind: "k",
			Input: attempt.Input{SHA256: testDigest}, MaxExecutions: 1, Start: make([]byte, attempt.MaxStartBytes), Created: testTime}})
		if err != nil {
			return err
		}
		ack(fmt.Sprintf("%s %d", key, e.Revision))
		for _, event := range life(key, protocol.Number(n)) {
			if a.defect == ackBeforeSync {
				ack(fmt.Sprintf("%s %d", key, e.Revision+1))
			}
			if e, err = s.Apply(ctx, e, event); err != nil {
				return err
			}
			ack(fmt.Sprintf("%s %d", key, e.Revision))
		}
		if _, err := s.Archive(ctx, key); err != nil {
			return err
		}
		ack(fmt.Sprintf("archived %d", n))
		if err := s.SetWitness(ctx, testGeneration, Witness{Highest: &protocol.Seen{Index: protocol.Index(n), LeafHash: testDigest}}); err != nil {
			return err
		}
		ack(fmt.Sprintf("witness %d", n))
		if _, err := s.Trim(ctx); err != nil {
			return err
		}
	}
	return nil
}

// Check implements [powerloss.Workload].
func (a attempts) Check(dir string, promises []string) (err error) {
	if len(promises) == 0 {
		return nil
	}
	cfg := a.config(dir)
	cfg.FS = nil
	s, err := Open(cfg)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, s.Close()) }()
	if opens := powerloss.Number(promises, "opens"); s.Opens() <= int64(opens) {
		return fmt.Errorf("opening %d after %d: sequence numbers would repeat", s.Opens(), opens)
	}
	if n := powerloss.Number(promises, "witness"); n > 0 {
		if w, ok := s.Witness(testGeneration); !ok || w.Highest == nil || int(w.Highest.Index) < n {
			return fmt.Errorf("the witness is below %d", n)
		}
	}
	archived := powerloss.Number(promises, "archived")
	found := map[string]Entry{}
	for _, e := range s.Active() {
		found[e.Key] = e
	}
	for _, h := range s.History() {
		if found[h.Key], err = s.Archived(h); err != nil {
			return err
		}
	}
	for n := 1; n <= 5; n++ {
		key := fmt.Sprintf("k%d", n)
		want := powerloss.Number(promises, key)
		e, ok := found[key]
		if n <= archived-cfg.History && !ok {
			continue // trimmed
		}
		if want > 0 && (!ok || int(e.Revision) < want) {
			return fmt.Errorf("%s was acknowledged with revision %d, found %v with revision %d", key, want, ok, e.Revision)
		}
		if want == 0 && ok && n > 1 && powerloss.Number(promises, fmt.Sprintf("k%d", n-1)) == 0 {
			return fmt.Errorf("%s came from nowhere", key)
		}
		if _, active := s.Get(key); active && n <= archived {
			return fmt.Errorf("%s was archived and is active again", key)
		}
	}
	return nil
}

// TestPowerLoss cuts the power under a real ext4 (I10, I35).
func TestPowerLoss(t *testing.T) {
	if !powerloss.Isolate(t) {
		return
	}
	powerloss.Holds(t, attempts{sound}, 40, 1)
}

// TestManyPowerCuts is TestPowerCuts over more histories.
func TestManyPowerCuts(t *testing.T) {
	for seed := range 80 {
		if cuts, err := powerCuts(uint64(1000+seed), 25, nil); err != nil {
			t.Errorf("seed %d, %d cuts: %v", 1000+seed, cuts, err)
		}
	}
}

// Every seeded defect is caught.
func TestPowerLossCatchesDefects(t *testing.T) {
	if !powerloss.Isolate(t) {
		return
	}
	for _, d := range []defect{noSync, everyFourth, noFileSync, noDirSync, ackBeforeSync} {
		t.Run(strings.ReplaceAll(string(d), " ", "-"), func(t *testing.T) { powerloss.Catches(t, attempts{d}, 1000, 1) })
	}
}
