//go:build engine

package hostile

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"runtime"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/quittance/quittance/integration/agenttest"
	"github.com/quittance/quittance/protocol"
	"github.com/quittance/quittance/protocol/hostclient"
)

// stranger is a user in the socket's group with no role.
const stranger = 65534

// dialAs connects as another user: credentials are a thread's, and the kernel
// hands the server those of the thread that connects.
func dialAs(t *testing.T, id int, path string) *net.UnixConn {
	t.Helper()
	type result struct {
		conn net.Conn
		err  error
	}
	done := make(chan result, 1)
	go func() {
		runtime.LockOSThread() // and never unlocked: the thread ends with this goroutine
		fd, err := unix.Socket(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
		if err != nil {
			done <- result{nil, err}
			return
		}
		f := os.NewFile(uintptr(fd), "caller")
		defer f.Close()
		for _, call := range []uintptr{unix.SYS_SETRESGID, unix.SYS_SETRESUID} {
			if _, _, failure := syscall.RawSyscall(call, uintptr(id), uintptr(id), uintptr(id)); failure != 0 {
				done <- result{nil, failure}
				return
			}
		}
		if err := unix.Connect(fd, &unix.SockaddrUnix{Name: path}); err != nil {
			done <- result{nil, err}
			return
		}
		conn, err := net.FileConn(f)
		done <- result{conn, err}
	}()
	r := <-done
	if r.err != nil {
		t.Fatal(r.err)
	}
	return r.conn.(*net.UnixConn)
}

func dial(t *testing.T, lab *agenttest.Lab) *net.UnixConn {
	t.Helper()
	conn, err := net.Dial("unix", lab.Socket())
	if err != nil {
		t.Fatal(err)
	}
	if err := conn.SetDeadline(time.Now().Add(wait)); err != nil {
		t.Fatal(err)
	}
	return conn.(*net.UnixConn)
}

// closeAll closes connections whose other end may have closed already.
func closeAll(t *testing.T, conns []*net.UnixConn) {
	t.Helper()
	for _, conn := range conns {
		if err := conn.Close(); err != nil && !errors.Is(err, net.ErrClosed) {
			t.Error(err)
		}
	}
}

// problem reads one refusal.
func problem(t *testing.T, from io.Reader) protocol.Problem {
	t.Helper()
	answer, err := http.ReadResponse(bufio.NewReader(from), nil)
	if err != nil {
		t.Fatal(err)
	}
	defer answer.Body.Close()
	text, err := io.ReadAll(answer.Body)
	if err != nil {
		t.Fatal(err)
	}
	var p protocol.Problem
	if err := protocol.DecodeStrict(text[:len(text)-1], protocol.MaxBodyBytes, &p); err != nil {
		t.Fatalf("%v: %s", err, text)
	}
	return p
}

// Callers that abuse the socket cost bounded means, have no effect, and take
// nothing from the controller; afterwards the agent holds what it held before.
func TestCallers(t *testing.T) {
	lab := kit.NewLab(t, "--socket-group", fmt.Sprint(stranger))
	lab.Profile("echo", agenttest.Profile{Args: []string{"serve"}, Channels: 1 << 20})
	lab.Start()
	c := newController(t, lab)
	n := c.start("echo")
	if status, _ := c.ask(n, "GET", "/health"); status != 200 {
		t.Fatalf("status %d", status)
	}
	files := lab.OpenFiles()
	before, err := lab.Operator().Host(t.Context())
	if err != nil {
		t.Fatal(err)
	}

	// served shows that the controller is served promptly meanwhile.
	served := func(t *testing.T) {
		t.Helper()
		began := time.Now()
		if a, err := c.gen.Get(t.Context(), n, "", 0); err != nil || a.State != protocol.StateStarted {
			t.Errorf("the controller: %+v, %v", a, err)
		}
		if took := time.Since(began); took > 9*time.Second {
			t.Errorf("the controller waited %s", took)
		}
	}
	// calm waits until every connection and descriptor is given back.
	calm := func(t *testing.T) {
		t.Helper()
		lab.Eventually("the agent's descriptors are as before", func() (bool, error) { return lab.OpenFiles() <= files, nil })
		served(t)
	}
	// room keeps the caller itself from the limit on its connections: the agent
	// learns only later that one was closed. Connections are accepted in their
	// order, so an answer shows that those before it were.
	dialled := 0
	room := func() {
		t.Helper()
		if dialled++; dialled%8 == 0 {
			if _, err := lab.Operator().Host(t.Context()); err != nil {
				t.Fatal(err)
			}
			lab.Eventually("the agent has closed what was left", func() (bool, error) { return lab.OpenFiles() <= files+8, nil })
		}
	}
	header := func(owner protocol.ID) string {
		return "Host: agent\r\nQuittance-Version: 1\r\nQuittance-Owner: " + string(owner) + "\r\n"
	}
	path := func(rest string) string { return "/v1/" + string(lab.Generation) + "/" + rest }
	owner := *before.Owner

	t.Run("another user", func(t *testing.T) {
		for _, line := range []string{
			"GET /v1/host", "GET " + path("receipts"), "PUT " + path("witness"), "PUT " + path("allocations/2"), "PUT " + path("allocations/1/retirement"),
			"POST " + path("allocations/1/channel"), "PUT " + path("release"), "PUT " + path("drain"), "DELETE " + path("drain"), "PUT " + path("owner"),
		} {
			conn := dialAs(t, stranger, lab.Socket())
			if _, err := io.WriteString(conn, line+" HTTP/1.1\r\n"+header(owner)+"Connection: Upgrade\r\nUpgrade: quittance-channel\r\n\r\n"); err != nil {
				t.Fatal(err)
			}
			if p := problem(t, conn); p.Code != protocol.CodeForbidden || p.Status != 403 || p.Disposition != protocol.Refused {
				t.Errorf("%s: %+v", line, p)
			}
			closeAll(t, []*net.UnixConn{conn})
		}
		calm(t)
	})
	t.Run("another owner", func(t *testing.T) {
		other := lab.Controller(protocol.NewID())
		refused := func(what string, err error) {
			t.Helper()
			if !hostclient.IsCode(err, protocol.CodeOtherOwner) {
				t.Errorf("%s: %v", what, err)
			}
		}
		_, err := other.Allocate(t.Context(), n+1, c.request("echo"))
		refused("allocate", err)
		_, err = other.Allocate(t.Context(), n, c.request("echo"))
		refused("the same allocation", err)
		_, err = other.Retire(t.Context(), n, protocol.RetireRequest{Purpose: purpose}, 0)
		refused("retire", err)
		_, err = other.Consume(t.Context(), n, protocol.ConsumeRequest{Purpose: purpose, LeafHash: protocol.Digest("sha256:" + strings.Repeat("0", 64))})
		refused("consume", err)
		_, err = other.Channel(t.Context(), n, purpose)
		refused("channel", err)
		_, err = other.Release(t.Context(), protocol.ReleaseRequest{Frontier: 1, Except: []protocol.Number{}})
		refused("release", err)
		_, err = other.Witness(t.Context(), protocol.WitnessRequest{})
		refused("witness", err)
		if _, err := other.Get(t.Context(), n, "", 0); err != nil {
			t.Errorf("a read: %v", err)
		}
		calm(t)
	})
	t.Run("more connections than one user may have", func(t *testing.T) {
		var held []*net.UnixConn
		defer func() { closeAll(t, held) }()
		for range protocol.MaxConnectionsPerUID {
			held = append(held, dialAs(t, stranger, lab.Socket()))
		}
		one := dialAs(t, stranger, lab.Socket())
		held = append(held, one)
		if _, err := io.WriteString(one, "GET /healthz HTTP/1.1\r\nHost: agent\r\n\r\n"); err != nil {
			t.Fatal(err)
		}
		if p := problem(t, one); p.Code != protocol.CodeTooManyConnections {
			t.Errorf("%+v", p)
		}
		for range 200 { // beyond the courtesy they are closed at once
			held = append(held, dialAs(t, stranger, lab.Socket()))
		}
		served(t)
		if now := lab.OpenFiles(); now > files+protocol.MaxConnectionsPerUID+32 {
			t.Errorf("%d descriptors for one user's connections", now-files)
		}
		closeAll(t, held)
		calm(t)
	})
	t.Run("slow loris", func(t *testing.T) { // I33
		var held []*net.UnixConn
		defer func() { closeAll(t, held) }()
		ended := make(chan time.Duration, 60)
		began := time.Now()
		for i := range cap(ended) {
			conn := dialAs(t, stranger, lab.Socket())
			held = append(held, conn)
			text := "GET /v1/host HTTP/1.1\r\nHost: agent\r\nX-Slow: "
			if i%2 == 1 {
				text = "PUT " + path("witness") + " HTTP/1.1\r\n" + header(owner) + "Content-Length: 60000\r\n\r\n{"
			}
			if _, err := io.WriteString(conn, text); err != nil {
				t.Fatal(err)
			}
			go func() {
				tick := time.NewTicker(500 * time.Millisecond)
				defer tick.Stop()
				for range tick.C {
					if _, err := conn.Write([]byte("a")); err != nil {
						ended <- time.Since(began)
						return
					}
				}
			}()
		}
		served(t)
		for range cap(ended) {
			select {
			case took := <-ended:
				if took > time.Minute {
					t.Errorf("a slow request was borne for %s", took)
				}
			case <-time.After(wait):
				t.Fatal("a slow request is borne for ever")
			}
		}
		closeAll(t, held)
		calm(t)
	})
	t.Run("huge headers", func(t *testing.T) { // I33
		conn := dial(t, lab)
		go func() { // the agent answers and closes long before all is sent
			_, _ = io.WriteString(conn, "GET /v1/host HTTP/1.1\r\nHost: agent\r\nX-Filler: "+strings.Repeat("x", 4<<20)+"\r\n\r\n")
		}()
		answer, err := http.ReadResponse(bufio.NewReader(conn), nil)
		if err != nil || answer.StatusCode != http.StatusRequestHeaderFieldsTooLarge {
			t.Errorf("%v, %v", answer, err)
		}
		closeAll(t, []*net.UnixConn{conn})
		calm(t)
	})
	t.Run("half requests", func(t *testing.T) {
		request := "PUT " + path("allocations/2/retirement") + " HTTP/1.1\r\n" + header(owner) + "Content-Type: application/json\r\nContent-Length: 32\r\n\r\n" +
			`{"purpose":"attempt-2","note":"` // a burn, one byte short
		for i := range len(request) + 1 {
			room()
			conn := dial(t, lab)
			if _, err := io.WriteString(conn, request[:i]); err != nil {
				t.Fatal(err)
			}
			closeAll(t, []*net.UnixConn{conn})
		}
		calm(t)
	})
	t.Run("descriptors sent to the agent", func(t *testing.T) { // I4
		null, err := os.Open(os.DevNull)
		if err != nil {
			t.Fatal(err)
		}
		defer null.Close()
		fd := int(null.Fd())
		conn := dial(t, lab)
		defer closeAll(t, []*net.UnixConn{conn})
		rights := unix.UnixRights(fd, fd, fd, fd)
		for _, part := range []string{"GET /v1/host HTTP/1.1\r\n", "Host: agent\r\n", "\r\n"} {
			if _, _, err := conn.WriteMsgUnix([]byte(part), rights, nil); err != nil {
				t.Fatal(err)
			}
		}
		answer, err := http.ReadResponse(bufio.NewReader(conn), nil)
		if err != nil || answer.StatusCode != 200 {
			t.Fatalf("%v, %v", answer, err)
		}
		if now := lab.OpenFiles(); now > files+2 { // this connection's own
			t.Errorf("%d descriptors more", now-files)
		}
		closeAll(t, []*net.UnixConn{conn})
		calm(t)
	})
	t.Run("gone at every byte of a hand-over", func(t *testing.T) {
		text := `{"purpose":"` + purpose + `"}`
		request := "POST " + path(fmt.Sprintf("allocations/%d/channel", n)) + " HTTP/1.1\r\n" + header(owner) +
			fmt.Sprintf("Connection: Upgrade\r\nUpgrade: quittance-channel\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n%s", len(text), text)
		const answer = "HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: quittance-channel\r\n\r\n"
		// step goes up to sent bytes of the request, then got bytes of the answer,
		// then with the go-ahead, then with the byte that carries the descriptor.
		step := func(sent, got int, goAhead, take bool) {
			t.Helper()
			room()
			conn := dial(t, lab)
			defer closeAll(t, []*net.UnixConn{conn})
			if _, err := io.WriteString(conn, request[:sent]); err != nil {
				t.Fatal(err)
			}
			read := make([]byte, got)
			if _, err := io.ReadFull(conn, read); err != nil || string(read) != answer[:got] {
				t.Fatalf("%q, %v", read, err)
			}
			if goAhead {
				if _, err := conn.Write([]byte("q")); err != nil {
					t.Fatal(err)
				}
			}
			if take {
				// A reader without room for the descriptor: the kernel closes it.
				if _, err := io.ReadFull(conn, make([]byte, 1)); err != nil {
					t.Fatal(err)
				}
			}
		}
		for i := range len(request) + 1 {
			step(i, 0, false, false)
		}
		for i := 1; i <= len(answer); i++ {
			step(len(request), i, false, false)
		}
		step(len(request), len(answer), true, false)
		step(len(request), len(answer), true, true)
		calm(t)
		// Whoever stays gets a channel that works.
		if status, _ := c.ask(n, "GET", "/health"); status != 200 {
			t.Errorf("status %d", status)
		}
		calm(t)
	})

	after, err := lab.Operator().Host(t.Context())
	if err != nil || after.Frontiers != before.Frontiers || after.Index != before.Index || *after.Owner != owner || after.Draining {
		t.Errorf("they had an effect: %v\nbefore %+v\nafter  %+v", err, before, after)
	}
	c.retire(n)
	c.settled()
}
