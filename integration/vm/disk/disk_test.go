package disk

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// A system is used again on the day on which it was made, and only then.
func TestKeyIsOfTheDay(t *testing.T) {
	morning := time.Date(2026, 11, 30, 0, 1, 0, 0, time.UTC)
	night := time.Date(2026, 11, 30, 23, 59, 0, 0, time.UTC)
	if key(morning) != key(night) {
		t.Error("the key changes within a day")
	}
	if key(night) == key(night.Add(2*time.Minute)) {
		t.Error("the key outlives the day")
	}
	if zone := time.FixedZone("", -8*3600); key(morning) != key(morning.In(zone)) {
		t.Error("the key depends on the time zone")
	}
}

func TestCachedSystemIsUsedAgain(t *testing.T) {
	dir, now := t.TempDir(), time.Now()
	made := filepath.Join(dir, "base-"+key(now))
	if err := os.Mkdir(made, 0o755); err != nil {
		t.Fatal(err)
	}
	base, err := System(t.Context(), dir, now)
	if err != nil || base.Image != filepath.Join(made, "disk.img") {
		t.Errorf("%+v, %v", base, err)
	}
}

func TestRemoveOldLeavesWhatIsNotOurs(t *testing.T) {
	dir := t.TempDir()
	for _, name := range []string{"base-0", "building-1", "keep"} {
		if err := os.Mkdir(filepath.Join(dir, name), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.WriteFile(filepath.Join(dir, "machine.qcow2"), nil, 0o644); err != nil {
		t.Fatal(err)
	}
	if err := removeOld(dir); err != nil {
		t.Fatal(err)
	}
	left, err := os.ReadDir(dir)
	if err != nil || len(left) != 1 || left[0].Name() != "keep" {
		t.Errorf("left %v, %v", left, err)
	}
}

// A program that fails says why, bounded.
func TestRunKeepsTheOutput(t *testing.T) {
	err := run(t.Context(), "sh", "-c", "yes | head -c 100000; echo the reason >&2; exit 3")
	if err == nil || !strings.Contains(err.Error(), "the reason") || !strings.Contains(err.Error(), "exit status 3") {
		t.Errorf("%v", err)
	}
	if err != nil && len(err.Error()) > 8<<10 {
		t.Errorf("an error of %d bytes", len(err.Error()))
	}
}
