package main

import (
	"bufio"
	"context"
	"errors"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"
)

// TestMain makes this test binary the worker itself where it is asked to be.
func TestMain(m *testing.M) {
	if os.Getenv("MISBEHAVE") != "" || (len(os.Args) == 3 && os.Args[1] == childVerb) {
		main()
		os.Exit(0)
	}
	os.Exit(m.Run())
}

// fault is a running worker.
type fault struct {
	cmd    *exec.Cmd
	socket string
	client *http.Client
	exited chan struct{} // closed once reaped
}

func start(t *testing.T, mode string, more ...string) *fault {
	t.Helper()
	dir, err := os.MkdirTemp("", "mb")
	if err != nil {
		t.Fatal(err)
	}
	f := &fault{socket: filepath.Join(dir, "w.sock"), exited: make(chan struct{})}
	program, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	f.cmd = exec.Command(program, append([]string{"-mode", mode, "-listen", "unix:" + f.socket}, more...)...)
	f.cmd.Env = append(os.Environ(), "MISBEHAVE=1")
	f.cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	said, err := f.cmd.StderrPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := f.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	// It says its mode once it listens.
	if line, err := bufio.NewReader(said).ReadString('\n'); err != nil || !strings.Contains(line, mode) {
		t.Fatalf("%q, %v", line, err)
	}
	go func() { _ = f.cmd.Wait(); close(f.exited) }()
	f.client = &http.Client{Transport: &http.Transport{
		DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
			var d net.Dialer
			return d.DialContext(ctx, "unix", f.socket)
		},
		MaxResponseHeaderBytes: 64 << 10,
	}}
	t.Cleanup(func() {
		f.client.CloseIdleConnections()
		// The whole group: children outlive their parent.
		if err := syscall.Kill(-f.cmd.Process.Pid, syscall.SIGKILL); err != nil && !errors.Is(err, syscall.ESRCH) {
			t.Error(err)
		}
		<-f.exited
		if err := os.RemoveAll(dir); err != nil {
			t.Error(err)
		}
	})
	return f
}

// id is its process, as text.
func (f *fault) id() string { return strconv.Itoa(f.cmd.Process.Pid) }

// ask sends one request and returns status, the first bytes of the body and
// the error that ended it.
func (f *fault) ask(t *testing.T, method, path string, limit int64, patience time.Duration) (int, string, error) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	var body io.Reader
	if method == http.MethodPost {
		body = strings.NewReader("x")
	}
	request, err := http.NewRequestWithContext(ctx, method, "http://w"+path, body)
	if err != nil {
		t.Fatal(err)
	}
	request.Header.Set("Content-Type", "text/plain")
	response, err := f.client.Do(request)
	if err != nil {
		return 0, "", err
	}
	defer response.Body.Close()
	text, err := io.ReadAll(io.LimitReader(response.Body, limit))
	return response.StatusCode, string(text), err
}

func (f *fault) predict(t *testing.T, limit int64, patience time.Duration) (int, string, error) {
	t.Helper()
	return f.ask(t, http.MethodPost, "/predict", limit, patience)
}

func (f *fault) awaitExit(t *testing.T) int {
	t.Helper()
	select {
	case <-f.exited:
	case <-time.After(10 * time.Second):
		t.Fatal("it does not end")
	}
	return f.cmd.ProcessState.ExitCode()
}

const (
	short = 300 * time.Millisecond
	long  = 10 * time.Second
)

func TestNeverReady(t *testing.T) {
	if status, body, err := start(t, "never-ready").ask(t, "GET", "/health", 100, long); status != 503 || body != `{"status":"LOADING"}` || err != nil {
		t.Errorf("%d %q %v", status, body, err)
	}
}

func TestDeaths(t *testing.T) {
	f := start(t, "dies-ready")
	if status, body, err := f.ask(t, "GET", "/health", 100, long); status != 200 || body != `{"status":"READY"}` || err != nil {
		t.Errorf("%d %q %v", status, body, err)
	}
	if code := f.awaitExit(t); code != exitDead {
		t.Errorf("exit %d", code)
	}
	f = start(t, "dies-working")
	if _, _, err := f.predict(t, 100, long); err == nil {
		t.Error("it answered")
	}
	if code := f.awaitExit(t); code != exitDead {
		t.Errorf("exit %d", code)
	}
}

func TestSilences(t *testing.T) {
	for _, mode := range []string{"silent", "deaf"} {
		f := start(t, mode)
		if _, _, err := f.predict(t, 100, short); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("%s: %v", mode, err)
		}
		conn, err := net.Dial("unix", f.socket)
		if err != nil {
			t.Fatalf("%s does not listen: %v", mode, err)
		}
		if err := conn.Close(); err != nil {
			t.Error(err)
		}
	}
}

func TestBadAnswers(t *testing.T) {
	if status, body, err := start(t, "endless").predict(t, 4<<20, long); status != 200 || len(body) != 4<<20 || err != nil {
		t.Errorf("endless: %d, %d bytes, %v", status, len(body), err)
	}
	if status, body, err := start(t, "slow-bytes").predict(t, 2, long); status != 200 || body != "  " || err != nil {
		t.Errorf("slow-bytes: %d %q %v", status, body, err)
	}
	if _, _, err := start(t, "huge-headers").predict(t, 100, long); err == nil || !strings.Contains(err.Error(), "headers exceeded") {
		t.Errorf("huge-headers: %v", err)
	}
	if _, body, err := start(t, "half").predict(t, 1000, long); len(body) != 50 || !errors.Is(err, io.ErrUnexpectedEOF) {
		t.Errorf("half: %d bytes, %v", len(body), err)
	}
	if status, body, err := start(t, "not-json").predict(t, 100, long); status != 200 || body != "<html>sorry</html>" || err != nil {
		t.Errorf("not-json: %d %q %v", status, body, err)
	}
}

func TestChildren(t *testing.T) {
	f := start(t, "children", "-count", "5")
	if status, body, err := f.predict(t, 100, long); status != 200 || body != "{\"children\":5}\n" || err != nil {
		t.Errorf("%d %q %v", status, body, err)
	}
	if err := f.cmd.Process.Signal(syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	if code := f.awaitExit(t); code != 0 {
		t.Errorf("exit %d", code)
	}
	// The children ignore SIGTERM and outlive their parent, whose group they are.
	if err := syscall.Kill(-f.cmd.Process.Pid, 0); err != nil {
		t.Errorf("no child is left: %v", err)
	}
}

func TestIgnoresTerm(t *testing.T) {
	f := start(t, "ignores-term")
	if err := f.cmd.Process.Signal(syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	if status, body, err := f.predict(t, 100, long); status != 200 || body != "{\"ignores_term\":true}\n" || err != nil {
		t.Errorf("%d %q %v", status, body, err)
	}
}

// The parent of a killed child lives on and says what it saw: the exit status
// of PID 1 tells nothing of it (FR-05, FR-31).
func TestChildKilled(t *testing.T) {
	f := start(t, "child-killed")
	if status, body, err := f.predict(t, 100, long); status != 200 || body != "{\"signal\":9,\"status\":-1}\n" || err != nil {
		t.Errorf("%d %q %v", status, body, err)
	}
	if err := f.cmd.Process.Signal(syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	if code := f.awaitExit(t); code != 0 {
		t.Errorf("exit %d", code)
	}
}

// The search for ways out finds those that are there: here a socket, an
// address and a writable directory.
func TestTryEscapesFinds(t *testing.T) {
	root := t.TempDir()
	if err := os.Mkdir(filepath.Join(root, "tmp"), 0o755); err != nil {
		t.Fatal(err)
	}
	unixListener, err := net.Listen("unix", filepath.Join(root, "tmp", "s"))
	if err != nil {
		t.Fatal(err)
	}
	defer unixListener.Close()
	tcpListener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer tcpListener.Close()
	port := tcpListener.Addr().(*net.TCPAddr).Port
	found, err := tryEscapes(t.Context(), root, []string{"127.0.0.1:" + strconv.Itoa(port), "127.0.0.1:1"})
	if err != nil {
		t.Fatal(err)
	}
	if len(found.Connected) != 2 || len(found.Writable) < 2 || found.Root != (os.Getuid() == 0) {
		t.Errorf("%+v", found)
	}
}

func TestUnknownMode(t *testing.T) {
	program, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(program, "-mode", "nothing")
	cmd.Env = append(os.Environ(), "MISBEHAVE=1")
	err = cmd.Run()
	if exit, ok := errors.AsType[*exec.ExitError](err); !ok || exit.ExitCode() != 2 {
		t.Errorf("%v", err)
	}
}
