//go:build engine

package engine_test

import (
	"net"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/quittance/quittance/integration/agenttest"
	"github.com/quittance/quittance/protocol"
)

// A real ext4 is frozen below the ledger, so that its writes hang and do not
// fail: nothing is acknowledged, the watchdog is not fed as long as something
// waits, and once the disk comes back work goes on as if nothing had been (I10,
// I33, I35).
func TestLedgerHangs(t *testing.T) {
	disk := smallDisk(t, 128<<20)
	freeze := func(how string) {
		t.Helper()
		if out, err := exec.Command("fsfreeze", how, disk).CombinedOutput(); err != nil {
			t.Errorf("fsfreeze %s: %v\n%s", how, err, out)
		}
	}
	lab := kit.NewLab(t, "--state-dir", filepath.Join(disk, "state"))
	lab.Profile("echo", agenttest.Profile{Args: []string{"serve"}})
	notices, err := net.ListenUnixgram("unixgram", &net.UnixAddr{Name: filepath.Join(t.TempDir(), "notify"), Net: "unixgram"})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := notices.Close(); err != nil {
			t.Error(err)
		}
	})
	fed := make(chan struct{}, 1024)
	go func() {
		buffer := make([]byte, 4096)
		for {
			n, err := notices.Read(buffer)
			if err != nil {
				return // closed at the end of the test
			}
			if strings.Contains(string(buffer[:n]), "WATCHDOG=1") {
				fed <- struct{}{}
			}
		}
	}()
	// A second's watchdog is fed at every turn of the loop.
	lab.Start("NOTIFY_SOCKET="+notices.LocalAddr().String(), "WATCHDOG_USEC=1000000")
	c := newCaller(t, lab)
	c.witness()
	request := c.request("echo")
	await := func(what string) {
		t.Helper()
		for len(fed) > 0 {
			<-fed
		}
		select {
		case <-fed:
		case <-time.After(time.Minute):
			t.Fatalf("%s: the watchdog is not fed", what)
		}
	}
	await("at rest")

	freeze("--freeze")
	frozen := true
	defer func() {
		if frozen {
			freeze("--unfreeze") // or nothing of the lab can be cleaned up
		}
	}()
	asked := make(chan error, 1)
	go func() {
		_, err := c.gen.Allocate(t.Context(), 1, request)
		asked <- err
	}()
	const silence = 5 * time.Second // five turns of a loop at rest
	for began, quiet := time.Now(), false; !quiet; {
		select {
		case <-fed:
		case <-time.After(silence):
			quiet = true
		}
		if time.Since(began) > 2*time.Minute {
			t.Fatal("the watchdog is fed while an acceptance waits for the disk")
		}
	}
	select {
	case err := <-asked:
		if err == nil {
			t.Fatal("acknowledged without a disk")
		}
		t.Logf("the caller gave up: %v", err)
	default:
	}
	frozen = false
	freeze("--unfreeze")
	await("with the disk back")
	if _, err := c.gen.Allocate(t.Context(), 1, request); err != nil { // I12: the same number, whatever became of it
		t.Fatal(err)
	}
	c.await(1, protocol.StateStarted)
	c.retire(1)
	c.leaves()
	if left := lab.Leftovers(); len(left) != 0 {
		t.Errorf("left on the machine: %v", left)
	}
}
