package uds

import (
	"bytes"
	"net"
	"net/http"
	"os"
	"os/exec"
	"testing"
	"time"
)

// childEnv makes this test binary play the agent that systemd started.
const childEnv = "QUITTANCE_TEST_ACTIVATED_SOCKET"

func TestMain(m *testing.M) {
	if path := os.Getenv(childEnv); path != "" {
		os.Exit(activatedChild(path))
	}
	os.Exit(m.Run())
}

// activatedChild serves on the socket that it was given until its standard input
// ends.
func activatedChild(path string) int {
	l, err := Listen(path, Options{Activation: true})
	if err != nil {
		println(err.Error())
		return 1
	}
	if os.Getenv("LISTEN_FDS") != "" {
		println("LISTEN_FDS is still set: children would take the socket for theirs")
		return 1
	}
	s := NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusNoContent) }), Limits{})
	done := make(chan error, 1)
	go func() { done <- s.Serve(l) }()
	if _, err := os.Stdin.Read(make([]byte, 1)); err == nil {
		println("unexpected input")
		return 1
	}
	if err := s.Close(); err != nil {
		println(err.Error())
		return 1
	}
	if err := <-done; err != nil {
		println(err.Error())
		return 1
	}
	return 0
}

// The protocol of socket units with a real process: LISTEN_FDS, LISTEN_PID, and
// descriptor 3. A connection made before the agent exists is answered by it, and
// the socket outlives it.
func TestSocketUnit(t *testing.T) {
	path := socketPath(t)
	unit, err := net.ListenUnix("unix", &net.UnixAddr{Name: path, Net: "unix"})
	if err != nil {
		t.Fatal(err)
	}
	defer unit.Close()
	file, err := unit.File()
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	early := dial(t, path)

	for _, tc := range []struct {
		name, configured string
		client           func() *net.UnixConn
	}{
		{"first agent", path, func() *net.UnixConn { return early }},
		{"second agent", path, func() *net.UnixConn { return dial(t, path) }},
		{"configured elsewhere", path + "2", nil},
	} {
		t.Run(tc.name, func(t *testing.T) {
			var stderr bytes.Buffer
			child := exec.CommandContext(t.Context(), "/bin/sh", "-c", `LISTEN_PID=$$ exec "$0"`, os.Args[0])
			child.Env = append(os.Environ(), childEnv+"="+tc.configured, "LISTEN_FDS=1")
			child.ExtraFiles = []*os.File{file}
			child.Stderr = &stderr
			child.WaitDelay = 10 * time.Second
			stdin, err := child.StdinPipe()
			if err != nil {
				t.Fatal(err)
			}
			if err := child.Start(); err != nil {
				t.Fatal(err)
			}
			if tc.client != nil {
				if resp := exchange(t, tc.client(), "GET / HTTP/1.1\r\nHost: agent\r\n\r\n"); resp.StatusCode != http.StatusNoContent {
					t.Errorf("status %d", resp.StatusCode)
				}
			}
			if err := stdin.Close(); err != nil {
				t.Fatal(err)
			}
			err = child.Wait()
			if (err == nil) != (tc.client != nil) {
				t.Errorf("child: %v: %s", err, stderr.Bytes())
			}
			if tc.client == nil && !bytes.Contains(stderr.Bytes(), []byte("make them agree")) {
				t.Errorf("child said %q", stderr.Bytes())
			}
		})
	}
}
