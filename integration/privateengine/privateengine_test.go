//go:build engine

package privateengine

import (
	"errors"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

func start(t *testing.T, dir string) *Engine {
	t.Helper()
	e, err := Start(t.Context(), Config{Dir: dir})
	if err != nil {
		t.Fatal(err)
	}
	return e
}

// shortDir is a directory whose path leaves room for a socket.
func shortDir(t *testing.T) string {
	t.Helper()
	dir, err := os.MkdirTemp("", "qp")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := os.RemoveAll(dir); err != nil {
			t.Error(err)
		}
	})
	return filepath.Join(dir, "e")
}

func answers(e *Engine) bool {
	conn, err := net.DialTimeout("unix", e.Address(), time.Second)
	return err == nil && conn.Close() == nil
}

// Started, hung, killed, started again on the same directory, destroyed: and
// nothing is left.
func TestLifeOfADaemon(t *testing.T) {
	dir := shortDir(t)
	e := start(t, dir)
	if !answers(e) || e.Dir() != dir {
		t.Fatalf("engine in %s does not answer", e.Dir())
	}
	if group, err := unix.Getpgid(e.PID()); err != nil || group != e.PID() {
		t.Errorf("process group %d, %v, want the daemon's own", group, err)
	}
	if err := errors.Join(e.Pause(), e.Resume()); err != nil {
		t.Error(err)
	}
	if err := e.Kill(); err != nil {
		t.Fatal(err)
	}
	if answers(e) {
		t.Error("a killed daemon answers")
	}
	if err := e.Stop(); err != nil {
		t.Errorf("stop of an ended daemon: %v", err)
	}
	again := start(t, dir)
	if !answers(again) || again.PID() == e.PID() {
		t.Error("the second daemon does not answer")
	}
	if left, err := again.Leftovers(); err != nil || len(left) != 0 {
		t.Errorf("left %v, %v", left, err)
	}
	// Somebody else's mount below the directory is taken away with it.
	mount := filepath.Join(dir, "mount")
	if err := os.Mkdir(mount, 0o755); err != nil {
		t.Fatal(err)
	}
	if err := unix.Mount("tmpfs", mount, "tmpfs", 0, ""); err != nil {
		t.Fatal(err)
	}
	if left, err := again.Leftovers(); err != nil || len(left) != 1 || left[0] != "mount /mount" {
		t.Errorf("left %v, %v, want the mount", left, err)
	}
	if err := again.Destroy(); err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(dir); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("the directory is still there: %v", err)
	}
}

func TestRefusals(t *testing.T) {
	if _, err := Start(t.Context(), Config{Dir: "/tmp/" + strings.Repeat("x", 100)}); err == nil || !strings.Contains(err.Error(), "too long") {
		t.Errorf("long directory: %v", err)
	}
	if _, err := Start(t.Context(), Config{Dir: shortDir(t), Binary: "/absent/containerd"}); err == nil || !strings.Contains(err.Error(), "install") {
		t.Errorf("no binary: %v, want the remedy", err)
	}
}
