package controllertest

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"runtime"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/quittance/quittance/protocol/uds"
)

// Relay stands between a controller and the agent's private socket, with a
// weather. It carries descriptors as well as bytes, and the agent sees the
// controller's user: whoever connects to the relay must be that user anyway.
type Relay struct {
	path, upstream string
	weather        *Weather
	listener       *net.UnixListener
	report         func(error)

	mu     sync.Mutex
	open   map[*net.UnixConn]bool // nil once closed
	lose   chan struct{}          // closed with the next reply's loss; nil: none is to be lost
	served sync.WaitGroup
}

// NewRelay puts a relay before the site's agent. Every later controller uses it.
func (s *Site) NewRelay(w *Weather) *Relay {
	s.T.Helper()
	path := s.path("relay.sock")
	l, err := net.ListenUnix("unix", &net.UnixAddr{Name: path, Net: "unix"})
	if err != nil {
		s.T.Fatal(err)
	}
	if err := os.Chown(path, UID, GID); err != nil {
		s.T.Fatal(err)
	}
	r := &Relay{path: path, upstream: s.Lab.Socket(), weather: w, listener: l, open: map[*net.UnixConn]bool{}, report: func(err error) { s.T.Error(err) }}
	s.T.Cleanup(r.close)
	r.served.Go(r.accept)
	s.Flag("--host-socket", filepath.Clean(path))
	return r
}

// Lose drops the next reply to a request that changes something: the agent has
// acted, the controller learns nothing. The channel is closed once that reply is
// lost. A nil weather makes no other fault.
func (r *Relay) Lose() <-chan struct{} {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.lose = make(chan struct{})
	return r.lose
}

// loses takes the loss of the next reply up.
func (r *Relay) loses() chan struct{} {
	r.mu.Lock()
	defer r.mu.Unlock()
	lost := r.lose
	r.lose = nil
	return lost
}

func (r *Relay) accept() {
	for {
		c, err := r.listener.AcceptUnix()
		if err != nil {
			if !errors.Is(err, net.ErrClosed) {
				r.report(fmt.Errorf("relay: %w", err))
			}
			return
		}
		if !r.own(c) {
			return
		}
		r.served.Go(func() {
			defer r.drop(c)
			r.serve(c)
		})
	}
}

// own registers a connection, so that close ends it; it is false, and the
// connection closed, once the relay is.
func (r *Relay) own(c *net.UnixConn) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.open == nil {
		_ = c.Close() // nobody waits for it any more
		return false
	}
	r.open[c] = true
	return true
}

func (r *Relay) drop(c *net.UnixConn) {
	r.mu.Lock()
	defer r.mu.Unlock()
	delete(r.open, c)
	_ = c.Close() // a broken connection is what a relay is for
}

func (r *Relay) close() {
	if err := r.listener.Close(); err != nil {
		r.report(fmt.Errorf("relay: %w", err))
	}
	r.mu.Lock()
	for c := range r.open {
		_ = c.Close() // as in drop
	}
	r.open = nil
	r.mu.Unlock()
	r.served.Wait()
}

// serve carries one connection, which is one exchange: the client keeps none
// alive. Errors are lost connections, which the client sees as such.
func (r *Relay) serve(client *net.UnixConn) {
	var raw bytes.Buffer
	reader := bufio.NewReader(io.TeeReader(client, &raw))
	request, err := http.ReadRequest(reader)
	if err != nil {
		return
	}
	if _, err := io.Copy(io.Discard, request.Body); err != nil {
		return
	}
	fault, late := r.weather.next()
	channel := uds.WantsChannel(request)
	if fault == FaultDuplicate && channel {
		fault = FaultDropReply // a second channel would be a second effect, which no network makes
	}
	if request.Method != http.MethodGet && !channel {
		if lost := r.loses(); lost != nil {
			fault = FaultDropReply
			defer close(lost)
		}
	}
	switch fault {
	case FaultDropRequest:
		return
	case FaultDelay:
		<-time.After(late)
	case FaultDuplicate:
		first, err := r.deliver(raw.Bytes())
		if err != nil {
			return
		}
		_, err = io.Copy(io.Discard, first)
		r.drop(first)
		if err != nil {
			return
		}
	}
	agent, err := r.deliver(raw.Bytes())
	if err != nil {
		return
	}
	defer r.drop(agent)
	// What the client says after its request (the byte of a hand-over), and its
	// end, go on to the agent.
	r.served.Go(func() {
		_, _ = io.Copy(agent, client)
		r.drop(agent)
	})
	carry(client, agent, fault)
}

// deliver sends a request over a connection of its own.
func (r *Relay) deliver(request []byte) (*net.UnixConn, error) {
	agent, err := dialAs(r.upstream)
	if err != nil {
		return nil, err
	}
	if !r.own(agent) {
		return nil, net.ErrClosed
	}
	if _, err := agent.Write(request); err != nil {
		r.drop(agent)
		return nil, err
	}
	return agent, nil
}

// carry brings the agent's answer, descriptors included, to the client until
// either is gone, or until the fault says otherwise.
func carry(client, agent *net.UnixConn, fault Fault) {
	data, oob := make([]byte, 64<<10), make([]byte, unix.CmsgSpace(16*4))
	for {
		n, oobn, _, _, err := agent.ReadMsgUnix(data, oob)
		if n == 0 || err != nil {
			return
		}
		rights, err := receivedRights(oob[:oobn])
		if err == nil {
			switch fault {
			case FaultDropReply: // read to its end, so that the agent has finished
			case FaultReset:
				_, err = client.Write(data[:n/2])
				if err == nil {
					err = io.ErrClosedPipe
				}
			default:
				var control []byte
				if len(rights) > 0 {
					control = unix.UnixRights(rights...)
				}
				_, _, err = client.WriteMsgUnix(data[:n], control, nil)
			}
		}
		for _, fd := range rights {
			err = errors.Join(err, unix.Close(fd))
		}
		if err != nil {
			return
		}
	}
}

func receivedRights(oob []byte) ([]int, error) {
	if len(oob) == 0 {
		return nil, nil
	}
	messages, err := unix.ParseSocketControlMessage(oob)
	if err != nil {
		return nil, err
	}
	var all []int
	for i := range messages {
		fds, err := unix.ParseUnixRights(&messages[i])
		if err != nil {
			return all, err
		}
		all = append(all, fds...)
	}
	return all, nil
}

// dialAs connects as the controller's user: the agent asks the kernel who
// connected, and the kernel remembers the thread that did.
func dialAs(path string) (*net.UnixConn, error) {
	type result struct {
		conn *net.UnixConn
		err  error
	}
	done := make(chan result, 1)
	go func() {
		// Never unlocked: a thread with other credentials ends with its goroutine.
		runtime.LockOSThread()
		const keep = ^uintptr(0)
		for _, call := range []struct{ number, id uintptr }{{unix.SYS_SETRESGID, GID}, {unix.SYS_SETRESUID, UID}} {
			if _, _, errno := unix.RawSyscall(call.number, keep, call.id, keep); errno != 0 {
				done <- result{nil, errno}
				return
			}
		}
		conn, err := net.DialUnix("unix", nil, &net.UnixAddr{Name: path, Net: "unix"})
		done <- result{conn, err}
	}()
	r := <-done
	return r.conn, r.err
}
