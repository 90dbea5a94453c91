package uds

import (
	"bufio"
	"net"
	"net/http"
	"os"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/quittance/quittance/protocol"
)

// pair is both ends of a connected private socket.
func pair(t *testing.T) (client, agent *net.UnixConn) {
	t.Helper()
	fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	var ends [2]*net.UnixConn
	for i, fd := range fds {
		f := os.NewFile(uintptr(fd), "end")
		c, err := net.FileConn(f)
		if err != nil {
			t.Fatal(err)
		}
		if err := f.Close(); err != nil {
			t.Fatal(err)
		}
		ends[i] = c.(*net.UnixConn)
	}
	return ends[0], ends[1]
}

// FuzzOpenChannel: whatever an agent answers to a channel request, the client
// returns; it has a channel exactly where one byte came with one connected
// stream, and it keeps no descriptor beside that (I4, I33).
func FuzzOpenChannel(f *testing.F) {
	const switching = "HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: " + protocol.UpgradeToChannel + "\r\n\r\n"
	f.Add([]byte(switching), true, []byte{1}, byte(1), false)
	f.Add([]byte(switching), true, []byte{1}, byte(2), false)
	f.Add([]byte(switching), true, []byte{1, 2, 3}, byte(1), false)
	f.Add([]byte(switching), true, []byte{1}, byte(1), true)
	f.Add([]byte("HTTP/1.1 101 Switching Protocols\r\nUpgrade: h2c\r\n\r\n"), false, []byte{}, byte(0), false)
	f.Add([]byte("HTTP/1.1 409 Conflict\r\nContent-Length: 2\r\n\r\n{}"), false, []byte{}, byte(0), false)
	f.Add([]byte("HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nffffffffffffffff\r\n"), false, []byte{}, byte(0), false)
	f.Fuzz(func(t *testing.T, head []byte, switches bool, payload []byte, count byte, pipes bool) {
		if len(head) > 64<<10 || len(payload) > 64 {
			return
		}
		count %= 5
		before := openDescriptors(t)
		client, agent := pair(t)
		over := make(chan struct{})
		go func() {
			defer close(over)
			answerAs(t, agent, head, switches, payload, int(count), pipes)
		}()
		if err := client.SetDeadline(time.Now().Add(5 * time.Second)); err != nil {
			t.Fatal(err)
		}
		req, err := http.NewRequestWithContext(t.Context(), http.MethodPost, "http://agent/channel", http.NoBody)
		if err != nil {
			t.Fatal(err)
		}
		channel, err := openChannel(client, req)
		if want := switches && len(payload) == 1 && count == 1 && !pipes; (err == nil) != want {
			t.Errorf("error %v, want a channel: %v", err, want)
		}
		if channel != nil {
			if err := channel.Close(); err != nil {
				t.Error(err)
			}
		}
		if err := client.Close(); err != nil {
			t.Error(err)
		}
		<-over
		// Fewer are left where another test's were still to be closed.
		after := openDescriptors(t)
		for deadline := time.Now().Add(10 * time.Second); after > before && time.Now().Before(deadline); after = openDescriptors(t) {
			time.Sleep(time.Millisecond) // a poll with a deadline, not a synchronisation
		}
		if after > before {
			t.Errorf("%d descriptors, %d before", after, before)
		}
	})
}

// answerAs is an agent that answers head and ends, or that switches and then
// sends the payload with so many descriptors.
func answerAs(t *testing.T, agent *net.UnixConn, head []byte, switches bool, payload []byte, count int, pipes bool) {
	defer agent.Close()
	reader := bufio.NewReader(agent)
	if _, err := http.ReadRequest(reader); err != nil {
		t.Error(err)
		return
	}
	if !switches {
		_, _ = agent.Write(head) // the client may have gone already
		return
	}
	_, err := agent.Write([]byte("HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: " + protocol.UpgradeToChannel + "\r\n\r\n"))
	if err != nil {
		t.Error(err)
		return
	}
	if b, err := reader.ReadByte(); err != nil || b != goAhead {
		t.Errorf("asked with %d, %v", b, err)
		return
	}
	var fds []int
	defer func() {
		for _, fd := range fds {
			if err := unix.Close(fd); err != nil {
				t.Error(err)
			}
		}
	}()
	for range count {
		var two [2]int
		var err error
		if pipes {
			err = unix.Pipe2(two[:], unix.O_CLOEXEC)
		} else {
			two, err = unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
		}
		if err != nil {
			t.Error(err)
			return
		}
		fds = append(fds, two[:]...)
	}
	var rights []byte
	if count > 0 {
		sent := make([]int, count)
		for i := range sent {
			sent[i] = fds[2*i]
		}
		rights = unix.UnixRights(sent...)
	}
	if len(payload) == 0 {
		return // descriptors need a byte to travel with
	}
	if _, _, err := agent.WriteMsgUnix(payload, rights, nil); err != nil {
		t.Error(err)
	}
}
