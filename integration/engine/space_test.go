//go:build engine

package engine_test

import (
	"errors"
	"os"
	"path/filepath"
	"syscall"
	"testing"

	"github.com/quittance/quittance/integration/agenttest"
	"github.com/quittance/quittance/protocol"
	"github.com/quittance/quittance/protocol/hostclient"
)

// The state directory's file system is full: new work is refused and consumes
// no number; what runs is retired, consumed and released all the same, one after
// the other, over a restart too; with space back, work goes on (I36, FR-22).
func TestDiskFull(t *testing.T) {
	disk := t.TempDir()
	if err := syscall.Mount("tmpfs", disk, "tmpfs", 0, "size=96m,mode=0700"); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := syscall.Unmount(disk, 0); err != nil {
			t.Error(err)
		}
	})
	lab := kit.NewLab(t, "--state-dir", filepath.Join(disk, "state"), "--max-slots", "6")
	lab.Profile("echo", agenttest.Profile{Args: []string{"serve"}})
	lab.Start()
	c := newCaller(t, lab)
	c.witness()
	request := c.request("echo")
	const numbers = 6 // more than the ledger has segments prepared
	for n := range protocol.Number(numbers) {
		c.allocate(n+1, "echo")
	}
	for n := range protocol.Number(numbers) {
		c.await(n+1, protocol.StateStarted)
	}
	// A released slot, so that only the disk refuses the next one.
	c.retire(2)
	c.consume(2)

	filler := filepath.Join(disk, "filler")
	fill := func() {
		t.Helper()
		file, err := os.OpenFile(filler, os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o600)
		if err != nil {
			t.Fatal(err)
		}
		block := make([]byte, 64<<10)
		for err == nil {
			_, err = file.Write(block)
		}
		if !errors.Is(err, syscall.ENOSPC) {
			t.Fatal(err)
		}
		if err := file.Close(); err != nil {
			t.Fatal(err)
		}
	}
	// The agent gives its ballast up once; that is filled as well.
	lab.Eventually("new work is refused", func() (bool, error) {
		fill()
		_, err := c.gen.Allocate(t.Context(), numbers+1, protocol.AllocateRequest{Profile: "absent", ProfileDigest: request.ProfileDigest, Purpose: "probe"})
		if !hostclient.IsCode(err, protocol.CodeProfileUnknown) {
			return false, err
		}
		_, err = c.gen.Allocate(t.Context(), numbers+1, request)
		if hostclient.IsCode(err, protocol.CodeNoSpace) {
			return true, nil
		}
		return false, err
	})
	if got := hostOf(t, lab).Frontiers.Accepted; got != numbers {
		t.Fatalf("accepted %d", got)
	}
	lab.Kill()
	fill()
	lab.Start()
	fill()
	c.witness()
	for n := range protocol.Number(numbers - 1) {
		if n++; n != 2 {
			if r := c.retire(n); r.Reason != protocol.ReasonRequested || !r.Dispatched {
				t.Errorf("retired %+v", r)
			}
			c.consume(n)
		}
		// What others write now may take the space that this gives back.
		lab.Eventually("history is released with the disk full", func() (bool, error) {
			_, err := c.gen.Release(t.Context(), protocol.ReleaseRequest{Frontier: n, Except: []protocol.Number{}})
			if hostclient.IsCode(err, protocol.CodeNoSpace) {
				return false, nil
			}
			return err == nil, err
		})
	}
	if err := os.Remove(filler); err != nil {
		t.Fatal(err)
	}
	lab.Eventually("new work is accepted again", func() (bool, error) {
		_, err := c.gen.Allocate(t.Context(), numbers+1, request)
		if hostclient.IsCode(err, protocol.CodeNoSpace) {
			return false, nil
		}
		return err == nil, err
	})
	c.await(numbers+1, protocol.StateStarted)
	c.retire(numbers)
	c.retire(numbers + 1)
}
