package hostagent

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/hashicorp/go-hclog"
	"golang.org/x/sys/unix"

	"github.com/quittance/quittance/hostagent/internal/ledger"
	"github.com/quittance/quittance/protocol"
	"github.com/quittance/quittance/protocol/tlog"
)

func testConfig(t *testing.T) Config {
	c := DefaultConfig()
	c.StateDir = filepath.Join(t.TempDir(), "state")
	c.MaxSlots = 1
	return c
}

// Creating and opening are different verbs: a second init refuses, whatever is
// left of the first ledger, and run never makes one.
func TestInitOnceAndRunNever(t *testing.T) {
	c := testConfig(t)
	c.CgroupRoot = "/" + filepath.Base(t.TempDir()) // never made: run ends before
	if err := Run(context.Background(), c, Options{Logger: hclog.NewNullLogger()}); err == nil || !strings.Contains(err.Error(), "hostagent init") || !IsUnmending(err) {
		t.Errorf("run without a state directory: %v", err)
	}
	made, err := Init(c, "test")
	if err != nil {
		t.Fatal(err)
	}
	if !made.Generation.Valid() || !strings.HasPrefix(made.HostKey, "quittance/"+string(made.Generation)+"+") {
		t.Errorf("made %+v", made)
	}
	if _, err := Init(c, "test"); !errors.Is(err, ledger.ErrExists) {
		t.Errorf("a second init: %v", err)
	}
	report, err := CheckLedger(c)
	if err != nil || report.Generation != made.Generation || report.Receipts != 1 {
		t.Errorf("check: %+v, %v", report, err)
	}
	// The ledger is lost and its marker remembers it (I9).
	if err := os.RemoveAll(ledgerDir(c)); err != nil {
		t.Fatal(err)
	}
	if _, err := Init(c, "test"); !errors.Is(err, ledger.ErrExists) {
		t.Errorf("init after a loss: %v", err)
	}
	if _, err := CheckLedger(c); !IsUnmending(err) {
		t.Errorf("check after a loss: %v", err)
	}
}

// A state directory that is not as init made it waits for a person; one whose disk
// fails is tried again, for ever, or a fault that passes would keep the agent down.
func TestFailingDiskIsTriedAgain(t *testing.T) {
	for _, tc := range []struct {
		err  error
		want bool
	}{
		{&fs.PathError{Op: "stat", Path: "/x", Err: unix.ENOENT}, true},
		{&fs.PathError{Op: "open", Path: "/x", Err: unix.EACCES}, true},
		{errors.New("host key is damaged"), true},
		{&fs.PathError{Op: "stat", Path: "/x", Err: unix.EIO}, false},
		{fmt.Errorf("read host key: %w", &fs.PathError{Op: "read", Path: "/x", Err: unix.EIO}), false},
		{&fs.PathError{Op: "open", Path: "/x", Err: unix.ENFILE}, false},
	} {
		if err := unusable(tc.err); IsUnmending(err) != tc.want || !errors.Is(err, tc.err) {
			t.Errorf("%v: unmending is not %t", err, tc.want)
		}
	}
}

// An init that ended between the host key and the ledger is completed with the
// same key.
func TestInitIsCompleted(t *testing.T) {
	c := testConfig(t)
	if err := os.Mkdir(c.StateDir, 0o700); err != nil {
		t.Fatal(err)
	}
	generation := protocol.NewID()
	if _, err := tlog.CreateKeyFile(hostKeyFile(c), generation); err != nil {
		t.Fatal(err)
	}
	made, err := Init(c, "test")
	if err != nil || made.Generation != generation {
		t.Errorf("made %+v, %v; want generation %s", made, err, generation)
	}
}

// I37: what others can read is no place for the host key.
func TestInitRefusesOpenDirectory(t *testing.T) {
	c := testConfig(t)
	if err := os.Mkdir(c.StateDir, 0o755); err != nil {
		t.Fatal(err)
	}
	if _, err := Init(c, "test"); err == nil || !strings.Contains(err.Error(), "chmod 0700") {
		t.Errorf("init: %v", err)
	}
}

// What the bounds allow on disk is computed from them, for directories that do
// not exist yet too (I33): five segments of 4 MiB of the ledger (one in use, one
// spare as the reserve and one for a release, one full of what is kept of ten
// lives, one with the base before) and the ballast.
func TestWorstCase(t *testing.T) {
	c := testConfig(t)
	c.MaxSlots, c.MaxUnreleased = 2, 8
	usages, err := WorstCase(c)
	if err != nil {
		t.Fatal(err)
	}
	want := map[string]int64{
		filepath.Join(c.StateDir, "ledger"): 5*4<<20 + 16<<20,
		filepath.Join(c.StateDir, "logs"):   10 * 256 << 10,
	}
	for _, u := range usages {
		if u.Bytes != want[u.Path] || u.Free <= 0 || !strings.HasPrefix(u.Path, u.FileSystem) {
			t.Errorf("%+v, want %d bytes", u, want[u.Path])
		}
		delete(want, u.Path)
	}
	if len(want) != 0 {
		t.Errorf("missing %v", want)
	}
}

// Before anything is accepted the ledger takes what is counted where nothing is
// kept, by the sizes of its files, whatever bounds are configured (I33, I36).
func TestWorstCaseOfAnEmptyLedger(t *testing.T) {
	for _, bounds := range [][2]int64{{2, 8}, {40, 60}} {
		c := testConfig(t)
		c.MaxSlots, c.MaxUnreleased = bounds[0], bounds[1]
		if _, err := Init(c, "test"); err != nil {
			t.Fatal(err)
		}
		l, err := ledger.Open(ledgerDir(c), ledgerOptions(c))
		if err != nil {
			t.Fatal(err)
		}
		if err := l.Close(); err != nil {
			t.Fatal(err)
		}
		files, err := os.ReadDir(ledgerDir(c))
		if err != nil {
			t.Fatal(err)
		}
		var took int64
		for _, file := range files {
			info, err := file.Info()
			if err != nil {
				t.Fatal(err)
			}
			took += info.Size()
		}
		if want := ledger.Footprint(ledgerOptions(c), 0); took != want {
			t.Errorf("%v: %d files take %d bytes, %d are counted", bounds, len(files), took, want)
		}
		usages, err := WorstCase(c)
		if err != nil || usages[0].Path != ledgerDir(c) || usages[0].Bytes <= took {
			t.Errorf("%v: it takes %d bytes already; %+v, %v", bounds, took, usages, err)
		}
	}
}

// I36: every base within ordinary bounds fits into one prepared segment; a
// segment stays within what the ledger takes.
func TestSegmentHoldsEveryBase(t *testing.T) {
	for _, tc := range []struct{ slots, unreleased, want int64 }{
		{1, 1, 4 << 20},
		{16, 256, 272*56<<10 + 8192},
		{16, 1000, 1016*56<<10 + 8192},
		{64, 4096, 64 << 20},
	} {
		c := testConfig(t)
		c.MaxSlots, c.MaxUnreleased = tc.slots, tc.unreleased
		if got := ledgerOptions(c).Segment; got != tc.want || got%4096 != 0 {
			t.Errorf("%d and %d: segment of %d bytes, want %d", tc.slots, tc.unreleased, got, tc.want)
		}
	}
}
