package main

import (
	"errors"
	"net"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"
)

// The storm's children live, cannot be ended by SIGTERM, and are its group.
func TestStorm(t *testing.T) {
	f := start(t, "storm", "-count", "20")
	if status, body, err := f.predict(t, 100, long); status != 200 || body != "{\"children\":20}\n" || err != nil {
		t.Errorf("%d %q %v", status, body, err)
	}
	if err := syscall.Kill(-f.cmd.Process.Pid, syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	if status, _, err := f.predict(t, 100, long); status != 200 || err != nil {
		t.Errorf("after SIGTERM: %d %v", status, err)
	}
	alive := 0
	tasks, err := filepath.Glob(filepath.Join("/proc", f.id(), "task", "*", "children"))
	if err != nil {
		t.Fatal(err)
	}
	for _, task := range tasks {
		text, err := os.ReadFile(task)
		if err != nil && !errors.Is(err, os.ErrNotExist) {
			t.Fatal(err)
		}
		alive += len(strings.Fields(string(text)))
	}
	if alive != 20 {
		t.Errorf("%d children live", alive)
	}
}

// The path leads now to the worker and now elsewhere, as does its directory.
func TestLinks(t *testing.T) {
	dir := t.TempDir()
	target := filepath.Join(dir, "w.sock")
	elsewhere, err := net.Listen("unix", target)
	if err != nil {
		t.Fatal(err)
	}
	defer elsewhere.Close()
	f := start(t, "links", "-target", target)
	seen := map[bool]bool{} // by whether the path, or its directory, is a link
	for end := time.Now().Add(long); (!seen[true] || !seen[false]) && time.Now().Before(end); {
		own, err := os.Readlink(f.socket)
		above, errAbove := os.Readlink(filepath.Dir(f.socket))
		seen[err == nil && strings.HasSuffix(own, target) || errAbove == nil && strings.HasSuffix(above, dir)] = true
	}
	if !seen[true] || !seen[false] {
		t.Errorf("link and no link seen: %v", seen)
	}
	if err := f.cmd.Process.Signal(syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	if code := f.awaitExit(t); code != 0 {
		t.Errorf("exit %d", code)
	}
	for _, link := range []string{filepath.Dir(f.socket), filepath.Dir(f.socket) + ".link"} {
		if err := os.RemoveAll(link); err != nil {
			t.Error(err)
		}
	}
}
