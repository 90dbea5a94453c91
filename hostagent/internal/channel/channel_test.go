package channel

import (
	"context"
	"errors"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
	"time"

	"github.com/quittance/quittance/hostagent/internal/process"
	"golang.org/x/sys/unix"
)

// task is one whose root is a directory of the test and whose process is a
// child that the returned function ends.
func task(t *testing.T, root string) (*Task, func()) {
	t.Helper()
	cmd := exec.Command("cat")
	if _, err := cmd.StdinPipe(); err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	id, err := process.Identify(int64(cmd.Process.Pid))
	if err != nil {
		t.Fatal(err)
	}
	proc, err := process.Open(id)
	if err != nil {
		t.Fatal(err)
	}
	end := func() {
		_ = proc.Signal(unix.SIGKILL)
		_ = cmd.Wait()
	}
	network, err := os.Open("/proc/self/ns/net")
	if err != nil {
		t.Fatal(err)
	}
	dir, err := openPath(root, unix.O_PATH|unix.O_DIRECTORY)
	if err != nil {
		t.Fatal(err)
	}
	out := &Task{proc: proc, network: network, root: dir}
	t.Cleanup(func() {
		end()
		if err := errors.Join(out.Close(), proc.Close()); err != nil {
			t.Error(err)
		}
	})
	return out, end
}

func within(t *testing.T, d time.Duration) context.Context {
	ctx, cancel := context.WithTimeout(t.Context(), d)
	t.Cleanup(cancel)
	return ctx
}

// The socket is connected, a stream, and nobody else's.
func TestDialUnix(t *testing.T) {
	root := t.TempDir()
	l, err := net.Listen("unix", filepath.Join(root, "app.sock"))
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = l.Close() }()
	go func() {
		c, err := l.Accept()
		if err == nil {
			_, _ = c.Write([]byte("hello"))
			_ = c.Close()
		}
	}()
	worker, end := task(t, root)
	socket, err := worker.Dial(within(t, 5*time.Second), "unix", "/app.sock")
	if err != nil {
		t.Fatal(err)
	}
	if text, err := io.ReadAll(socket); string(text) != "hello" || err != nil {
		t.Errorf("read %q, %v", text, err)
	}
	if err := socket.Close(); err != nil {
		t.Error(err)
	}
	end()
	if _, err := worker.Dial(within(t, time.Second), "unix", "/app.sock"); !errors.Is(err, ErrExited) {
		t.Errorf("dial after the end: %v, want ErrExited", err)
	}
}

// I4: no link, no "..", no other kind of file leads anywhere.
func TestUnixPathsStayInside(t *testing.T) {
	outside := t.TempDir()
	l, err := net.Listen("unix", filepath.Join(outside, "host.sock"))
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = l.Close() }()
	root := t.TempDir()
	for name, target := range map[string]string{"out": outside, "sock": filepath.Join(outside, "host.sock")} {
		if err := os.Symlink(target, filepath.Join(root, name)); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.WriteFile(filepath.Join(root, "file"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	worker, _ := task(t, root)
	for path, want := range map[string]error{
		"/out/host.sock": ErrAddress, "/sock": ErrAddress, "/file": ErrAddress, "": ErrAddress, "app.sock": ErrAddress, "/a\x00b": ErrAddress,
		"/../" + outside + "/host.sock": ErrNotConnectable, "/absent": ErrNotConnectable, "/file/x": ErrNotConnectable,
	} {
		if _, err := worker.Dial(within(t, time.Second), "unix", path); !errors.Is(err, want) {
			t.Errorf("%q: %v, want %v", path, err, want)
		}
	}
}

// A listener whose backlog is full, or that is gone, is not connectable.
func TestNobodyAccepts(t *testing.T) {
	root := t.TempDir()
	fd, err := unix.Socket(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	if err := unix.Bind(fd, &unix.SockaddrUnix{Name: filepath.Join(root, "full")}); err != nil {
		t.Fatal(err)
	}
	worker, _ := task(t, root)
	if _, err := worker.Dial(within(t, time.Second), "unix", "/full"); !errors.Is(err, ErrNotConnectable) {
		t.Errorf("bound and not listening: %v, want ErrNotConnectable", err)
	}
	if err := unix.Listen(fd, 0); err != nil {
		t.Fatal(err)
	}
	var held []*os.File
	for range 100 {
		socket, err := worker.Dial(within(t, time.Second), "unix", "/full")
		if err != nil {
			if !errors.Is(err, ErrNotConnectable) {
				t.Errorf("full backlog: %v, want ErrNotConnectable", err)
			}
			break
		}
		held = append(held, socket)
	}
	if len(held) == 0 || len(held) == 100 {
		t.Errorf("%d connections fitted a backlog of none", len(held))
	}
	for _, socket := range held {
		_ = socket.Close()
	}
	if err := unix.Close(fd); err != nil {
		t.Fatal(err)
	}
}

// Only loopback addresses, and only with a deadline (I33).
func TestAddressesAndDeadlines(t *testing.T) {
	worker, _ := task(t, t.TempDir())
	for _, address := range []string{"10.0.0.1:80", "example:80", "127.0.0.1", "127.0.0.1:0", "127.0.0.1:http", "[::]:80", ""} {
		if _, err := worker.Dial(within(t, time.Second), "tcp", address); !errors.Is(err, ErrAddress) {
			t.Errorf("%q: %v, want ErrAddress", address, err)
		}
	}
	if _, err := worker.Dial(within(t, time.Second), "udp", "127.0.0.1:80"); !errors.Is(err, ErrAddress) {
		t.Errorf("udp: %v, want ErrAddress", err)
	}
	if _, err := worker.Dial(context.Background(), "tcp", "127.0.0.1:80"); err == nil {
		t.Error("a dial without a deadline was made")
	}
}
