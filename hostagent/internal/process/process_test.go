package process

import (
	"context"
	"errors"
	"os"
	"os/exec"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// child starts this test binary as a process that waits for its input to end.
func child(t *testing.T) (*exec.Cmd, Identity) {
	t.Helper()
	cmd := exec.Command("cat")
	stdin, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = stdin.Close()
		_ = cmd.Process.Kill() // fine where it has ended
		_ = cmd.Wait()
	})
	id, err := Identify(int64(cmd.Process.Pid))
	if err != nil {
		t.Fatal(err)
	}
	return cmd, id
}

func open(t *testing.T, id Identity) *Handle {
	t.Helper()
	h, err := Open(id)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = h.Close() })
	return h
}

// I17: a signal reaches the process that was proved, and its end is seen.
func TestSignalAndWait(t *testing.T) {
	_, id := child(t)
	h := open(t, id)
	if exited, err := h.Exited(); exited || err != nil {
		t.Fatalf("exited %v, %v", exited, err)
	}
	if err := h.Signal(unix.SIGKILL); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	if err := h.Wait(ctx); err != nil {
		t.Fatal(err)
	}
	if exited, err := h.Exited(); !exited || err != nil {
		t.Errorf("exited %v, %v after Wait", exited, err)
	}
	if err := h.Wait(ctx); err != nil {
		t.Errorf("wait again: %v", err)
	}
}

// FR-20: the number belongs to another process now: no handle, so no signal.
func TestOtherStartTimeIsRefused(t *testing.T) {
	cmd, id := child(t)
	stranger := Identity{PID: id.PID, StartTicks: id.StartTicks - 1}
	if _, err := Open(stranger); !errors.Is(err, ErrGone) {
		t.Errorf("open: %v, want ErrGone", err)
	}
	if _, err := Observe(stranger); !errors.Is(err, ErrGone) {
		t.Errorf("observe: %v, want ErrGone", err)
	}
	if err := cmd.Process.Signal(unix.Signal(0)); err != nil {
		t.Errorf("the other process was touched: %v", err)
	}
}

func TestGoneProcess(t *testing.T) {
	cmd, id := child(t)
	h := open(t, id)
	if err := cmd.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	if err := cmd.Wait(); err == nil {
		t.Fatal("killed and yet no error")
	}
	if err := h.Signal(unix.SIGTERM); !errors.Is(err, ErrGone) {
		t.Errorf("signal: %v, want ErrGone", err)
	}
	if exited, err := h.Exited(); !exited || err != nil {
		t.Errorf("exited %v, %v", exited, err)
	}
	if _, err := Open(id); !errors.Is(err, ErrGone) {
		t.Errorf("open: %v, want ErrGone", err)
	}
	if _, err := Identify(id.PID); !errors.Is(err, ErrGone) {
		t.Errorf("identify: %v, want ErrGone", err)
	}
}

func TestWaitEndsWithItsContext(t *testing.T) {
	_, id := child(t)
	h := open(t, id)
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- h.Wait(ctx) }()
	cancel()
	if err := <-done; !errors.Is(err, context.Canceled) {
		t.Errorf("wait: %v, want the context's error", err)
	}
	// The handle is as good as before.
	if err := h.Signal(unix.SIGKILL); err != nil {
		t.Fatal(err)
	}
	ctx, cancel = context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	if err := h.Wait(ctx); err != nil {
		t.Errorf("wait after a cancelled one: %v", err)
	}
}

func TestWaitEndsWithClose(t *testing.T) {
	_, id := child(t)
	h := open(t, id)
	done := make(chan error, 1)
	go func() { done <- h.Wait(context.Background()) }()
	if err := h.Close(); err != nil {
		t.Fatal(err)
	}
	if err := <-done; !errors.Is(err, os.ErrClosed) {
		t.Errorf("wait: %v, want os.ErrClosed", err)
	}
}

// An identity that no worker can have never becomes a handle: not the agent's
// own init, not "every process of a group".
func TestImpossibleIdentities(t *testing.T) {
	for _, id := range []Identity{{PID: 1, StartTicks: 1}, {PID: 0, StartTicks: 1}, {PID: -1, StartTicks: 1}, {PID: 77}} {
		if _, err := Open(id); err == nil {
			t.Errorf("%+v was opened", id)
		}
	}
}

func TestObserve(t *testing.T) {
	_, id := child(t)
	seen, err := Observe(id)
	if err != nil || !strings.Contains("RSD", seen.State) {
		t.Errorf("observed %+v, %v", seen, err)
	}
}

func TestBootIDAndClock(t *testing.T) {
	id, err := BootID()
	if err != nil || !id.Valid() {
		t.Errorf("boot id %q, %v", id, err)
	}
	first := Now()
	if second := Now(); first <= 0 || second < first {
		t.Errorf("clock %v then %v", first, second)
	}
}

func TestParseSignal(t *testing.T) {
	if sig, err := ParseSignal("SIGTERM"); sig != unix.SIGTERM || err != nil {
		t.Errorf("SIGTERM: %v, %v", sig, err)
	}
	for _, name := range []string{"", "TERM", "sigterm", "15"} {
		if _, err := ParseSignal(name); err == nil {
			t.Errorf("%q was taken for a signal", name)
		}
	}
}

const tail = " 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 17 18 987654 20\n"

// The command in the line is the process's own choice.
func TestParseStat(t *testing.T) {
	for name, line := range map[string]string{
		"plain": "42 (worker) S" + tail, "brackets": "42 (a) R (b) S" + tail, "spaces": "42 (x y\n) S" + tail,
	} {
		if got, err := parseStat([]byte(line)); err != nil || got != (stat{state: "S", startTicks: 987654}) {
			t.Errorf("%s: %+v, %v", name, got, err)
		}
	}
	for name, line := range map[string]string{
		"empty": "", "no command": "42 worker S" + tail, "short": "42 (worker) S 1 2", "no number": strings.Replace("42 (w) S"+tail, "987654", "x", 1),
	} {
		if got, err := parseStat([]byte(line)); err == nil {
			t.Errorf("%s: %+v, want an error", name, got)
		}
	}
}

func FuzzParseStat(f *testing.F) {
	f.Add([]byte("42 (worker) S" + tail))
	f.Add([]byte("42 (a) R (b) S" + tail))
	f.Fuzz(func(t *testing.T, line []byte) {
		s, err := parseStat(line)
		if err == nil && s.state == "" {
			t.Errorf("%q: no state and no error", line)
		}
	})
}
