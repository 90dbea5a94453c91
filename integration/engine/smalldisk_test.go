//go:build engine

package engine_test

import (
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/quittance/quittance/integration/agenttest"
	"github.com/quittance/quittance/protocol"
	"github.com/quittance/quittance/protocol/hostclient"
)

// smallDisk mounts a small ext4 on a loop device.
func smallDisk(t *testing.T, bytes int64) string {
	t.Helper()
	// Short, because sockets lie below it.
	dir, err := os.MkdirTemp("", "qd")
	if err != nil {
		t.Fatal(err)
	}
	image, disk := filepath.Join(dir, "image"), filepath.Join(dir, "d")
	t.Cleanup(func() {
		if err := os.RemoveAll(dir); err != nil {
			t.Error(err)
		}
	})
	if err := os.Mkdir(disk, 0o755); err != nil {
		t.Fatal(err)
	}
	file, err := os.Create(image)
	if err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(file.Truncate(bytes), file.Close()); err != nil {
		t.Fatal(err)
	}
	for _, command := range [][]string{
		// Without blocks kept for root: the agent and the engine are root.
		{"mkfs.ext4", "-q", "-m", "0", image},
		{"mount", "-o", "loop", image, disk},
	} {
		if out, err := exec.CommandContext(t.Context(), command[0], command[1:]...).CombinedOutput(); err != nil {
			t.Fatalf("%v: %v\n%s", command, err, out)
		}
	}
	t.Cleanup(func() {
		if out, err := exec.Command("umount", disk).CombinedOutput(); err != nil {
			t.Errorf("umount: %v\n%s", err, out)
		}
	})
	return disk
}

// fillDisk writes until nothing more fits.
func fillDisk(t *testing.T, filler string) {
	t.Helper()
	file, err := os.OpenFile(filler, os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o600)
	if err != nil {
		t.Fatal(err)
	}
	for size := 1 << 20; size >= 512; size /= 2 {
		for err = nil; err == nil; {
			_, err = file.Write(make([]byte, size))
		}
		if !errors.Is(err, syscall.ENOSPC) {
			t.Fatal(err)
		}
	}
	if err := file.Close(); err != nil {
		t.Fatal(err)
	}
}

// The one file system that agent and engine share, a real ext4, is full to the
// last block: the ballast is given up, so that the engine too can remove what
// runs; every allocation is retired with its receipts, consumed and released,
// new work is refused with the reason, and goes on once space is back, without
// a restart of anything (I36, FR-22).
func TestSharedDiskFull(t *testing.T) {
	disk := smallDisk(t, 192<<20)
	t.Setenv("TMPDIR", disk) // everything of the lab lies on it
	lab := kit.NewLab(t, "--max-slots", "4")
	lab.Profile("echo", agenttest.Profile{Args: []string{"serve"}})
	lab.Start()
	c := newCaller(t, lab)
	c.witness()
	for n := range protocol.Number(3) {
		c.running(n + 1)
	}
	request := c.request("echo")
	filler := filepath.Join(disk, "filler")
	lab.Eventually("new work is refused", func() (bool, error) {
		fillDisk(t, filler)
		_, err := c.gen.Allocate(t.Context(), 4, protocol.AllocateRequest{Profile: "absent", ProfileDigest: request.ProfileDigest, Purpose: "probe"})
		if !hostclient.IsCode(err, protocol.CodeProfileUnknown) {
			return false, err
		}
		// The first fill makes the agent give its ballast up, for the engine.
		_, err = os.Stat(filepath.Join(lab.StateDir(), "ledger", "ballast"))
		return errors.Is(err, os.ErrNotExist), nil
	})
	if _, err := c.gen.Allocate(t.Context(), 4, request); !hostclient.IsCode(err, protocol.CodeNoSpace) || !strings.Contains(err.Error(), "file system") {
		t.Fatalf("new work on a full disk: %v", err)
	}
	for n := range protocol.Number(3) {
		r := c.retire(n + 1)
		if r.Reason != protocol.ReasonRequested || r.Removal.Container != protocol.RemovedByUs || r.Removal.Snapshot != protocol.RemovedByUs {
			t.Errorf("number %d: reason %s, removal %+v", n+1, r.Reason, r.Removal)
		}
		c.consume(n + 1)
	}
	c.leaves()
	if _, err := c.gen.Release(t.Context(), protocol.ReleaseRequest{Frontier: 3, Except: []protocol.Number{}}); err != nil {
		t.Errorf("release with the disk full: %v", err)
	}
	if left := lab.Leftovers(); len(left) != 0 {
		t.Errorf("left on the machine: %v", left)
	}
	if err := os.Remove(filler); err != nil {
		t.Fatal(err)
	}
	lab.Eventually("new work is accepted again", func() (bool, error) {
		_, err := c.gen.Allocate(t.Context(), 4, request)
		if hostclient.IsCode(err, protocol.CodeNoSpace) {
			return false, nil
		}
		return err == nil, err
	})
	c.await(4, protocol.StateStarted)
	c.retire(4)
}
