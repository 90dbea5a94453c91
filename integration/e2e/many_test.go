//go:build e2e

package e2e

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/quittance/quittance/integration/controllertest"
)

// manyJobs is how many jobs the story "soak" runs: QUITTANCE_JOBS, 1,000 in the
// long form.
func manyJobs(t *testing.T) int {
	t.Helper()
	text := os.Getenv("QUITTANCE_JOBS")
	if text == "" {
		return 40
	}
	n, err := strconv.Atoi(text)
	if err != nil || n < 1 {
		t.Fatalf("QUITTANCE_JOBS is %q, not a number of jobs", text)
	}
	return n
}

// kept is what the controller's lanes leave on disk: the attempt store and the
// inputs.
func kept(t *testing.T, s *controllertest.Site) (files int, bytes int64) {
	t.Helper()
	for _, dir := range []string{"attempts", "inputs"} {
		err := filepath.WalkDir(filepath.Join(s.StateDir(), dir), func(_ string, e fs.DirEntry, err error) error {
			if errors.Is(err, fs.ErrNotExist) {
				return nil // removed meanwhile
			}
			if err != nil || e.IsDir() {
				return err
			}
			info, err := e.Info()
			if errors.Is(err, fs.ErrNotExist) {
				return nil // likewise
			}
			if err == nil {
				files, bytes = files+1, bytes+info.Size()
			}
			return err
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	return files, bytes
}

// Story: soak. Many jobs go through four lanes that share one claims registry and
// one number sequence, with a history of 8 (I30, I32, I33). Each is executed
// once; disk, descriptors, goroutines, memory, slots and frontier are at the end as they
// were once the history had filled.
func TestManyJobs(t *testing.T) {
	const history = 8
	jobs := manyJobs(t)
	figures := filepath.Join(t.TempDir(), "figures.sock")
	if err := os.Chmod(filepath.Dir(figures), 0o777); err != nil {
		t.Fatal(err)
	}
	if err := os.Chmod(filepath.Dir(filepath.Dir(figures)), 0o755); err != nil {
		t.Fatal(err)
	}
	s := kit.NewSite(t, controllertest.Options{Lanes: 4, Flags: []string{"--lanes-history", fmt.Sprint(history), "--metrics-listen", "unix:" + figures, "--log-level", "info"}})
	controller := s.Serve()
	run := func(name string, n int) {
		t.Helper()
		ids := map[string]string{}
		for i := range n {
			text := fmt.Sprint(name, " ", i)
			ids[text] = s.Submit(text)
		}
		until := time.Now().Add(controllertest.Patience + time.Duration(n)*5*time.Second)
		for tick := time.NewTicker(200 * time.Millisecond); s.Open(); <-tick.C {
			if time.Now().After(until) {
				t.Fatal("jobs are still open")
			}
		}
		for text, id := range ids {
			finished(t, s, id, text)
		}
		s.AwaitReleased()
	}
	run("first", history)
	files, bytes := kept(t, s)
	resident := controller.ResidentBytes()
	descriptors, goroutines := controller.Descriptors(), scrape(t, s, figures).value("quittance_goroutines")
	run("job", jobs)
	if n := s.Executions(); n != jobs+history {
		t.Fatalf("%d executions, want %d", n, jobs+history)
	}
	host := s.AwaitReleased()
	if n := int(host.Frontiers.Released); n != jobs+history || host.Slots.Used != 0 || host.Slots.Unreleased != 0 {
		t.Errorf("frontier %d, want %d; slots %+v", n, jobs+history, host.Slots)
	}
	var nowFiles int
	var nowBytes int64
	s.Eventually("history is trimmed", func() (bool, error) {
		nowFiles, nowBytes = kept(t, s)
		return nowFiles <= files, nil
	})
	if nowBytes > bytes+bytes/10 {
		t.Errorf("the lanes keep %d bytes, %d before", nowBytes, bytes)
	}
	// What the tests' own questions hold for a moment is allowed for.
	var nowDescriptors int
	var nowGoroutines float64
	s.Eventually("descriptors are as at the start", func() (bool, error) {
		nowDescriptors = controller.Descriptors()
		return nowDescriptors <= descriptors+2, nil
	})
	s.Eventually("goroutines are as at the start", func() (bool, error) {
		nowGoroutines = scrape(t, s, figures).value("quittance_goroutines")
		return nowGoroutines <= goroutines+4, nil
	})
	// Go's heap is given back late: what grows with the jobs would go beyond it.
	nowResident := controller.ResidentBytes()
	s.Eventually("memory is as before", func() (bool, error) {
		nowResident = controller.ResidentBytes()
		return nowResident <= resident+32<<20, nil
	})
	t.Logf("%d jobs: %d files and %d bytes kept (%d and %d before), %d descriptors (%d), %.0f goroutines (%.0f), %d MiB resident (%d)",
		jobs, nowFiles, nowBytes, files, bytes, nowDescriptors, descriptors, nowGoroutines, goroutines, nowResident>>20, resident>>20)
	controller.Stop()
	if report := s.Command("store", "check"); strings.Contains(report, "active ") || !strings.Contains(report, fmt.Sprintf("history     %d records", history)) {
		t.Fatalf("the store at the end:\n%s", report)
	}
}
