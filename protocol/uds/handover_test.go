package uds

import (
	"context"
	"errors"
	"io"
	"net"
	"net/http"
	"os"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/quittance/quittance/protocol"
)

func channelRequest(t *testing.T) *http.Request {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), http.MethodPost, "http://agent/channel", strings.NewReader(`{"purpose":"p"}`))
	if err != nil {
		t.Fatal(err)
	}
	return req
}

// worker listens as a worker does and echoes one connection.
func worker(t *testing.T) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { l.Close() })
	go func() {
		c, err := l.Accept()
		if err != nil {
			return // the test ended first
		}
		defer c.Close()
		if _, err := io.Copy(c, c); err != nil {
			t.Errorf("echo: %v", err)
		}
	}()
	return l.Addr().String()
}

func TestHandover(t *testing.T) {
	address := worker(t)
	handed := make(chan error, 1)
	path := serve(t, func(w http.ResponseWriter, r *http.Request) {
		if !WantsChannel(r) {
			t.Error("the request does not ask for the upgrade")
		}
		c, err := net.Dial("tcp", address)
		if err != nil {
			t.Error(err)
			return
		}
		handed <- Handover(w, r, c.(*net.TCPConn))
		if err := c.Close(); err != nil {
			t.Error(err)
		}
	}, Limits{})
	c, err := OpenChannel(t.Context(), path, channelRequest(t))
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	if err := <-handed; err != nil {
		t.Error(err)
	}
	if got := c.RemoteAddr().String(); got != address {
		t.Errorf("connected to %s, want the worker at %s itself", got, address)
	}
	raw, err := c.(*net.TCPConn).SyscallConn()
	if err != nil {
		t.Fatal(err)
	}
	if err := raw.Control(func(fd uintptr) {
		flags, err := unix.FcntlInt(fd, unix.F_GETFD, 0)
		if err != nil || flags&unix.FD_CLOEXEC == 0 {
			t.Errorf("descriptor flags %x, %v: not close-on-exec", flags, err)
		}
	}); err != nil {
		t.Fatal(err)
	}
	if err := c.SetDeadline(time.Now().Add(10 * time.Second)); err != nil {
		t.Fatal(err)
	}
	if _, err := io.WriteString(c, "hello"); err != nil {
		t.Fatal(err)
	}
	b := make([]byte, 5)
	if _, err := io.ReadFull(c, b); err != nil || string(b) != "hello" {
		t.Errorf("echo: %q %v", b, err)
	}
}

func TestRefusedBefore101(t *testing.T) {
	path := serve(t, func(w http.ResponseWriter, r *http.Request) {
		WriteProblem(w, protocol.NewProblem(protocol.CodeExited, "it has ended", "retire it"))
	}, Limits{})
	_, err := OpenChannel(t.Context(), path, channelRequest(t))
	refusal, ok := errors.AsType[*Refusal](err)
	if !ok || refusal.Status != 409 || !strings.Contains(string(refusal.Body), `"code":"exited"`) {
		t.Errorf("got %v", err)
	}
	_, err = OpenChannel(t.Context(), path+"x", channelRequest(t))
	if _, ok := errors.AsType[*DialError](err); !ok {
		t.Errorf("no socket: got %v, want *DialError", err)
	}
}

// The server's side against a client that breaks the order.
func TestHandoverWaitsForTheByte(t *testing.T) {
	handed := make(chan error, 1)
	path := serve(t, func(w http.ResponseWriter, r *http.Request) {
		pair, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
		if err != nil {
			t.Error(err)
			return
		}
		a, b := os.NewFile(uintptr(pair[0]), "a"), os.NewFile(uintptr(pair[1]), "b")
		handed <- Handover(w, r, a)
		a.Close()
		b.Close()
	}, Limits{})
	const request = "POST /channel HTTP/1.1\r\nHost: agent\r\nConnection: Upgrade\r\nUpgrade: quittance-channel\r\nContent-Length: 0\r\n\r\n"

	t.Run("client leaves after the 101", func(t *testing.T) {
		c := dial(t, path)
		if resp := exchange(t, c, request); resp.StatusCode != 101 || resp.Header.Get("Upgrade") != "quittance-channel" {
			t.Errorf("answer %v", resp)
		}
		if err := c.CloseWrite(); err != nil {
			t.Fatal(err)
		}
		if err := <-handed; err == nil || !strings.Contains(err.Error(), "wait for the peer's byte") {
			t.Errorf("got %v", err)
		}
		// Nothing was sent after the 101, no descriptor either.
		oob := make([]byte, 1024)
		n, oobn, _, _, err := c.ReadMsgUnix(make([]byte, 8), oob)
		if n != 0 || oobn != 0 {
			t.Errorf("got %d bytes and %d of control data, %v", n, oobn, err)
		}
	})
	t.Run("bytes before the 101", func(t *testing.T) {
		c := dial(t, path)
		if _, err := io.WriteString(c, request+"q"); err != nil {
			t.Fatal(err)
		}
		oob := make([]byte, 1024)
		data := make([]byte, 1024)
		for {
			n, oobn, _, _, err := c.ReadMsgUnix(data, oob)
			if oobn != 0 {
				t.Fatal("a descriptor was sent into a stream that was out of step")
			}
			if n == 0 || err != nil {
				break
			}
		}
		<-handed
	})
	t.Run("without the upgrade headers", func(t *testing.T) {
		for header, want := range map[string]bool{
			"Upgrade: quittance-channel\r\nConnection: keep-alive, upgrade": true,
			"Upgrade: websocket\r\nConnection: Upgrade":                     false,
			"Upgrade: quittance-channel":                                    false,
			"Connection: Upgrade":                                           false,
		} {
			h := http.Header{}
			for line := range strings.SplitSeq(header, "\r\n") {
				k, v, _ := strings.Cut(line, ": ")
				h.Set(k, v)
			}
			if got := WantsChannel(&http.Request{Header: h}); got != want {
				t.Errorf("%q: %v", header, got)
			}
		}
	})
}

// agent plays the agent's side by hand.
func agent(t *testing.T, send func(c *net.UnixConn)) string {
	t.Helper()
	path := socketPath(t)
	l := listen(t, path, Options{})
	go func() {
		c, err := l.Accept()
		if err != nil {
			return // the test ended first
		}
		defer c.Close()
		req, err := readRequest(c)
		if err != nil {
			t.Errorf("read request %v: %v", req, err)
			return
		}
		send(c.(*net.UnixConn))
	}()
	return path
}

func readRequest(c net.Conn) (string, error) {
	b := make([]byte, 4096)
	n, err := c.Read(b)
	return string(b[:n]), err
}

const switching = "HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: quittance-channel\r\n\r\n"

func socketpair(t *testing.T, kind int) (int, *os.File) {
	t.Helper()
	pair, err := unix.Socketpair(unix.AF_UNIX, kind|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	return pair[0], os.NewFile(uintptr(pair[1]), "peer")
}

// A client takes exactly one connected stream socket and closes whatever else
// came.
func TestClientTakesOnlyOneConnectedStream(t *testing.T) {
	type sent struct {
		fds  []int
		data string
		want string
	}
	file := func(t *testing.T) int {
		fd, err := unix.Open(os.DevNull, unix.O_RDONLY|unix.O_CLOEXEC, 0)
		if err != nil {
			t.Fatal(err)
		}
		return fd
	}
	socket := func(t *testing.T) int {
		fd, err := unix.Socket(unix.AF_INET, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
		if err != nil {
			t.Fatal(err)
		}
		return fd
	}
	stream := func(t *testing.T, kind int) int {
		fd, peer := socketpair(t, kind)
		t.Cleanup(func() { peer.Close() })
		return fd
	}
	for name, tc := range map[string]func(t *testing.T) sent{
		"none":        func(t *testing.T) sent { return sent{nil, "q", "got 1 bytes and 0 descriptors"} },
		"end of file": func(t *testing.T) sent { return sent{nil, "", "EOF"} },
		"two": func(t *testing.T) sent {
			return sent{[]int{stream(t, unix.SOCK_STREAM), stream(t, unix.SOCK_STREAM)}, "q", "got 1 bytes and 2 descriptors"}
		},
		"two bytes": func(t *testing.T) sent {
			return sent{[]int{stream(t, unix.SOCK_STREAM)}, "qq", "got 2 bytes and 1 descriptors"}
		},
		"a file": func(t *testing.T) sent { return sent{[]int{file(t)}, "q", "descriptor is not a socket"} },
		"datagrams": func(t *testing.T) sent {
			return sent{[]int{stream(t, unix.SOCK_DGRAM)}, "q", "descriptor is not a stream socket"}
		},
		"sequenced": func(t *testing.T) sent {
			return sent{[]int{stream(t, unix.SOCK_SEQPACKET)}, "q", "descriptor is not a stream socket"}
		},
		"not connected":    func(t *testing.T) sent { return sent{[]int{socket(t)}, "q", "descriptor is not a connected socket"} },
		"connected stream": func(t *testing.T) sent { return sent{[]int{stream(t, unix.SOCK_STREAM)}, "q", ""} },
	} {
		t.Run(name, func(t *testing.T) {
			s := tc(t)
			before := openDescriptors(t)
			path := agent(t, func(c *net.UnixConn) {
				if _, err := io.WriteString(c, switching); err != nil {
					t.Error(err)
				}
				if _, err := c.Read(make([]byte, 1)); err != nil {
					t.Error(err)
				}
				if s.data != "" {
					if _, _, err := c.WriteMsgUnix([]byte(s.data), unix.UnixRights(s.fds...), nil); err != nil {
						t.Error(err)
					}
				}
				for _, fd := range s.fds {
					if err := unix.Close(fd); err != nil {
						t.Error(err)
					}
				}
			})
			c, err := OpenChannel(t.Context(), path, channelRequest(t))
			if s.want == "" {
				if err != nil {
					t.Fatal(err)
				}
				if err := c.Close(); err != nil {
					t.Error(err)
				}
			} else if err == nil || !strings.Contains(err.Error(), s.want) {
				t.Errorf("got %v, want %q", err, s.want)
			}
			// Everything received is closed: in the end there are no more
			// descriptors than before, the listener's two included.
			deadline := time.Now().Add(10 * time.Second)
			for openDescriptors(t) > before+2-len(s.fds) {
				if time.Now().After(deadline) {
					t.Fatalf("descriptors leaked: %d before, %d now", before, openDescriptors(t))
				}
				time.Sleep(time.Millisecond) // a poll with a deadline, not a synchronisation
			}
		})
	}
}

func openDescriptors(t *testing.T) int {
	t.Helper()
	entries, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		t.Fatal(err)
	}
	return len(entries)
}

func TestClientRefusesWrongAnswers(t *testing.T) {
	for name, tc := range map[string]struct{ answer, want string }{
		"other protocol":  {"HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\r\n", "another protocol"},
		"bytes too early": {switching + "q", "sent bytes before"},
		"not HTTP":        {"hello\r\n\r\n", "read answer"},
		"cut":             {"HTTP/1.1 409 Conflict\r\nContent-Length: 10\r\n\r\n{}", "read answer"},
		"nothing":         {"", "read answer"},
	} {
		t.Run(name, func(t *testing.T) {
			path := agent(t, func(c *net.UnixConn) {
				if _, err := io.WriteString(c, tc.answer); err != nil {
					t.Error(err)
				}
			})
			_, err := OpenChannel(t.Context(), path, channelRequest(t))
			if err == nil || !strings.Contains(err.Error(), tc.want) {
				t.Errorf("got %v, want %q", err, tc.want)
			}
		})
	}
}

// A dead agent behind a socket unit accepts and says nothing: the caller's
// context ends the wait.
func TestSilentAgent(t *testing.T) {
	asked := make(chan struct{})
	release := make(chan struct{})
	path := agent(t, func(*net.UnixConn) { close(asked); <-release })
	defer close(release)
	ctx, cancel := context.WithCancelCause(t.Context())
	cause := errors.New("enough")
	go func() { <-asked; cancel(cause) }()
	if _, err := OpenChannel(ctx, path, channelRequest(t)); !errors.Is(err, cause) {
		t.Errorf("got %v, want the context's cause", err)
	}
}
