//go:build engine

package process

import (
	"errors"
	"os"
	"os/exec"
	"strconv"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// FR-20, I17: the number of an ended process is forced onto a stranger. The
// handle that was open does not reach it, and no new one can be opened.
func TestForcedReuseReachesNobody(t *testing.T) {
	cmd, id := child(t)
	h := open(t, id)
	if err := cmd.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	if err := cmd.Wait(); err == nil {
		t.Fatal("killed and yet no error")
	}
	awaitNextTick(t, id)
	stranger := startAs(t, id.PID)
	now, err := Identify(id.PID)
	if err != nil || now.PID != id.PID {
		t.Fatalf("stranger %+v, %v", now, err)
	}
	if now.StartTicks == id.StartTicks {
		t.Fatalf("start times equal: %+v", now)
	}
	if err := h.Signal(unix.SIGKILL); !errors.Is(err, ErrGone) {
		t.Errorf("signal: %v, want ErrGone", err)
	}
	if exited, err := h.Exited(); !exited || err != nil {
		t.Errorf("exited %v, %v, want the first one's end", exited, err)
	}
	if _, err := Open(id); !errors.Is(err, ErrGone) {
		t.Errorf("open: %v, want ErrGone", err)
	}
	if err := stranger.Process.Signal(unix.Signal(0)); err != nil {
		t.Errorf("the stranger is gone: %v", err)
	}
}

// awaitNextTick waits until a process that starts now has another start time:
// within one tick the two would be told apart by the open handle only.
func awaitNextTick(t *testing.T, first Identity) {
	t.Helper()
	for range 1000 {
		cmd, id := child(t)
		if err := cmd.Process.Kill(); err != nil {
			t.Fatal(err)
		}
		if id.StartTicks != first.StartTicks {
			return
		}
		<-time.After(time.Millisecond)
	}
	t.Fatal("the clock stands still")
}

// startAs starts a process that gets exactly the number, by telling the kernel
// which one it gave out last. Somebody else may be faster: then again.
func startAs(t *testing.T, pid int64) *exec.Cmd {
	t.Helper()
	for range 1000 {
		if err := os.WriteFile("/proc/sys/kernel/ns_last_pid", []byte(strconv.FormatInt(pid-1, 10)), 0); err != nil {
			t.Fatal(err)
		}
		cmd := exec.Command("cat")
		if _, err := cmd.StdinPipe(); err != nil {
			t.Fatal(err)
		}
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		if int64(cmd.Process.Pid) == pid {
			t.Cleanup(func() {
				_ = cmd.Process.Kill()
				_ = cmd.Wait()
			})
			return cmd
		}
		if err := cmd.Process.Kill(); err != nil {
			t.Fatal(err)
		}
		_ = cmd.Wait() // killed
	}
	t.Fatalf("the number %d was never given out again", pid)
	return nil
}
