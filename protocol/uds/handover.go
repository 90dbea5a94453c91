package uds

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/quittance/quittance/protocol"
)

// handoverTimeout bounds each wait of a hand-over on either side.
const handoverTimeout = protocol.RequestTimeoutSeconds * time.Second

// goAhead is the byte that each side sends; its value means nothing.
const goAhead = 'q'

// WantsChannel reports whether a request asks for the upgrade that [Handover]
// answers. A handler checks it before it opens anything.
func WantsChannel(r *http.Request) bool {
	return strings.EqualFold(r.Header.Get("Upgrade"), protocol.UpgradeToChannel) &&
		headerHasToken(strings.Join(r.Header.Values("Connection"), ","), "upgrade")
}

func headerHasToken(value, token string) bool {
	for part := range strings.SplitSeq(value, ",") {
		if strings.EqualFold(strings.TrimSpace(part), token) {
			return true
		}
	}
	return false
}

// Handover answers a channel request of [Server] with 101 and hands out a
// duplicate of channel's descriptor, as the package comment draws it. It takes
// the connection over and closes it; channel stays the caller's to close.
//
// After an error the peer may or may not hold the channel: the caller counts it
// as handed out.
func Handover(w http.ResponseWriter, r *http.Request, channel syscall.Conn) error {
	conn, buffered, err := http.NewResponseController(w).Hijack()
	if err != nil {
		return fmt.Errorf("hand over channel: %w", err)
	}
	err = handover(conn, buffered.Reader, channel)
	if closeErr := conn.Close(); err == nil && closeErr != nil {
		err = closeErr
	}
	if err != nil {
		return fmt.Errorf("hand over channel: %w", err)
	}
	return nil
}

func handover(conn net.Conn, buffered *bufio.Reader, channel syscall.Conn) error {
	counted, ok := conn.(*countedConn)
	if !ok {
		return errors.New("the connection is not one of this server's")
	}
	if buffered.Buffered() > 0 {
		return errors.New("the peer sent bytes before the 101")
	}
	if err := conn.SetDeadline(time.Now().Add(handoverTimeout)); err != nil {
		return err
	}
	const answer = "HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: " + protocol.UpgradeToChannel + "\r\n\r\n"
	if _, err := io.WriteString(conn, answer); err != nil {
		return err
	}
	var b [1]byte
	if _, err := io.ReadFull(conn, b[:]); err != nil {
		return fmt.Errorf("wait for the peer's byte: %w", err)
	}
	raw, err := channel.SyscallConn()
	if err != nil {
		return err
	}
	var sendErr error
	// Inside Control the descriptor cannot be closed and reused.
	if err := raw.Control(func(fd uintptr) {
		n, oobn, err := counted.WriteMsgUnix([]byte{goAhead}, unix.UnixRights(int(fd)), nil)
		if err == nil && (n != 1 || oobn == 0) {
			err = io.ErrShortWrite
		}
		sendErr = err
	}); err != nil {
		return err
	}
	return sendErr
}

// DialError means that the socket could not be reached: nothing was sent.
type DialError struct{ Err error }

func (e *DialError) Error() string { return "dial private socket: " + e.Err.Error() }
func (e *DialError) Unwrap() error { return e.Err }

// Refusal is an agent's answer other than 101 to a channel request: nothing was
// handed over.
type Refusal struct {
	Status int
	Header http.Header
	Body   []byte // at most [protocol.MaxAnswerBytes]
}

func (e *Refusal) Error() string { return fmt.Sprintf("channel refused with status %d", e.Status) }

// OpenChannel sends req, a POST of a channel route, over a connection of its own
// to the socket at path, and returns the connected stream that the agent hands
// over: close-on-exec, and checked to be exactly one connected stream socket;
// whatever else came is closed. The Upgrade headers are set here. Its errors are
// *[DialError], *[Refusal], or a loss after sending: then a channel may have been
// counted and dropped.
func OpenChannel(ctx context.Context, path string, req *http.Request) (net.Conn, error) {
	conn, err := Dial(ctx, path)
	if err != nil {
		return nil, &DialError{err}
	}
	// The connection is finished after this exchange whatever happens; a close
	// error says nothing about the descriptor that was received.
	defer conn.Close()
	// A bound of its own, should the caller's context have none.
	if err := conn.SetDeadline(time.Now().Add(3 * handoverTimeout)); err != nil {
		return nil, &DialError{err}
	}
	stop := context.AfterFunc(ctx, func() {
		_ = conn.SetDeadline(time.Unix(1, 0)) // fails only once conn is closed: nothing waits then
	})
	defer stop()
	channel, err := openChannel(conn, req)
	if err != nil && ctx.Err() != nil {
		return nil, context.Cause(ctx)
	}
	return channel, err
}

func openChannel(conn *net.UnixConn, req *http.Request) (net.Conn, error) {
	req = req.Clone(req.Context())
	req.Header.Set("Connection", "Upgrade")
	req.Header.Set("Upgrade", protocol.UpgradeToChannel)
	if err := req.Write(conn); err != nil {
		return nil, fmt.Errorf("send channel request: %w", err)
	}
	reader := bufio.NewReaderSize(io.LimitReader(conn, protocol.MaxHeaderBytes+protocol.MaxAnswerBytes), 4096)
	resp, err := http.ReadResponse(reader, req)
	if err != nil {
		return nil, fmt.Errorf("read answer to channel request: %w", err)
	}
	if resp.StatusCode != http.StatusSwitchingProtocols {
		body, err := io.ReadAll(io.LimitReader(resp.Body, protocol.MaxAnswerBytes+1))
		if err != nil {
			return nil, fmt.Errorf("read answer to channel request: %w", err)
		}
		if len(body) > protocol.MaxAnswerBytes {
			return nil, fmt.Errorf("answer to channel request is longer than %d bytes", protocol.MaxAnswerBytes)
		}
		return nil, &Refusal{Status: resp.StatusCode, Header: resp.Header, Body: body}
	}
	if !strings.EqualFold(resp.Header.Get("Upgrade"), protocol.UpgradeToChannel) {
		return nil, errors.New("agent switched to another protocol than " + protocol.UpgradeToChannel)
	}
	if reader.Buffered() > 0 {
		return nil, errors.New("agent sent bytes before it was asked for the channel")
	}
	if _, err := conn.Write([]byte{goAhead}); err != nil {
		return nil, fmt.Errorf("ask for the channel: %w", err)
	}
	return receiveChannel(conn)
}

// maxDescriptors is the most that one message can carry (SCM_MAX_FD).
const maxDescriptors = 253

// receiveChannel reads the one byte and the one descriptor.
func receiveChannel(conn *net.UnixConn) (net.Conn, error) {
	var data [2]byte
	oob := make([]byte, unix.CmsgSpace(maxDescriptors*4))
	// net sets MSG_CMSG_CLOEXEC.
	n, oobn, flags, _, err := conn.ReadMsgUnix(data[:], oob)
	if err != nil {
		return nil, fmt.Errorf("receive channel: %w", err)
	}
	files, err := descriptors(oob[:oobn])
	defer func() {
		for _, f := range files {
			f.Close() // a duplicate lives on in the connection
		}
	}()
	switch {
	case err != nil:
		return nil, fmt.Errorf("receive channel: %w", err)
	case flags&(unix.MSG_CTRUNC|unix.MSG_TRUNC) != 0:
		return nil, errors.New("receive channel: message was cut")
	case n != 1 || len(files) != 1:
		return nil, fmt.Errorf("receive channel: got %d bytes and %d descriptors, want one of each", n, len(files))
	}
	if err := checkStream(int(files[0].Fd())); err != nil {
		return nil, fmt.Errorf("receive channel: %w", err)
	}
	channel, err := net.FileConn(files[0])
	if err != nil {
		return nil, fmt.Errorf("receive channel: %w", err)
	}
	return channel, nil
}

// descriptors takes every descriptor out of control messages. Those it returns
// are the caller's to close, also beside an error.
func descriptors(oob []byte) ([]*os.File, error) {
	if len(oob) == 0 {
		return nil, nil
	}
	messages, err := unix.ParseSocketControlMessage(oob)
	if err != nil {
		return nil, err
	}
	var files []*os.File
	var other error
	for i := range messages {
		m := &messages[i]
		if m.Header.Level != unix.SOL_SOCKET || m.Header.Type != unix.SCM_RIGHTS {
			other = errors.New("got a control message that is not descriptors")
			continue
		}
		fds, err := unix.ParseUnixRights(m)
		if err != nil {
			other = err
			continue
		}
		for _, fd := range fds {
			files = append(files, os.NewFile(uintptr(fd), "channel"))
		}
	}
	return files, other
}

// checkStream refuses what is not a connected stream socket.
func checkStream(fd int) error {
	kind, err := unix.GetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_TYPE)
	if err != nil {
		return errors.New("descriptor is not a socket")
	}
	if kind != unix.SOCK_STREAM {
		return errors.New("descriptor is not a stream socket")
	}
	if _, err := unix.Getpeername(fd); err != nil {
		return errors.New("descriptor is not a connected socket")
	}
	return nil
}
