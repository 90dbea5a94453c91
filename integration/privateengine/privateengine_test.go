//go:build engine

package privateengine

import (
	"errors"
	"net"
	"os"
	"os/exec"
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

// A container that still runs at the end is ended with everything that its shim
// keeps elsewhere on the machine.
func TestDestroyWithARunningContainer(t *testing.T) {
	dir := shortDir(t)
	e := start(t, dir)
	rootfs := filepath.Join(filepath.Dir(dir), "rootfs")
	if err := os.MkdirAll(rootfs, 0o755); err != nil {
		t.Fatal(err)
	}
	program, err := os.ReadFile("/usr/bin/catatonit") // static, and able to wait for ever
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(rootfs, "wait"), program, 0o755); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { // the directories that the namespace got, empty by now
		dirs, err := filepath.Glob("/sys/fs/cgroup/*/privateengine-test")
		if err != nil {
			t.Error(err)
		}
		for _, dir := range append(dirs, filepath.Join(runtimeRoot, "privateengine-test")) {
			if err := unix.Rmdir(dir); err != nil && !errors.Is(err, unix.ENOENT) {
				t.Errorf("remove %s: %v", dir, err)
			}
		}
	})
	id := "privateengine-test-" + filepath.Base(filepath.Dir(dir))
	run := exec.CommandContext(t.Context(), "ctr", "--address", e.Address(), "--namespace", "privateengine-test",
		"run", "--detach", "--null-io", "--rootfs", rootfs, id, "/wait", "-P")
	if out, err := run.CombinedOutput(); err != nil {
		t.Fatalf("ctr: %v: %s", err, out)
	}
	shims, err := e.Shims()
	if err != nil || len(shims) != 1 || shims[0].ContainerID != id || shims[0].Namespace != "privateengine-test" {
		t.Fatalf("shims %+v, %v", shims, err)
	}
	state := filepath.Join(runtimeRoot, "privateengine-test", id)
	if _, err := os.Lstat(state); err != nil {
		t.Errorf("the runtime keeps its state elsewhere: %v", err)
	}
	if left, err := e.Leftovers(); err != nil || len(left) == 0 || left[0] != "shim "+id {
		t.Errorf("left %v, %v, want the shim first", left, err)
	}
	if !listen(t)[e.socketOf(shims[0])] {
		t.Error("the shim listens elsewhere")
	}
	if err := e.Destroy(); err != nil {
		t.Fatal(err)
	}
	if _, err := os.Lstat(state); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("runtime state: %v", err)
	}
	if listen(t)[e.socketOf(shims[0])] {
		t.Error("the shim's socket is left")
	}
	if left, err := e.Leftovers(); err != nil || len(left) != 0 {
		t.Errorf("left %v, %v", left, err)
	}
}

// listen is the names of all shims' sockets.
func listen(t *testing.T) map[string]bool {
	t.Helper()
	entries, err := os.ReadDir(shimSockets)
	if err != nil {
		t.Fatal(err)
	}
	names := map[string]bool{}
	for _, entry := range entries {
		names[filepath.Join(shimSockets, entry.Name())] = true
	}
	return names
}

func TestRefusals(t *testing.T) {
	if _, err := Start(t.Context(), Config{Dir: "/tmp/" + strings.Repeat("x", 100)}); err == nil || !strings.Contains(err.Error(), "too long") {
		t.Errorf("long directory: %v", err)
	}
	if _, err := Start(t.Context(), Config{Dir: shortDir(t), Binary: "/absent/containerd"}); err == nil || !strings.Contains(err.Error(), "install") {
		t.Errorf("no binary: %v, want the remedy", err)
	}
}
