package sandbox

import (
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
)

// maxState bounds one datagram; what a service says of itself is short.
const maxState = 4 << 10

// passed are the assignments of sd_notify(3) that are passed on. Others say
// something about processes, descriptors or time-outs, which are not the
// program's to decide.
var passed = []string{"READY", "STOPPING", "STATUS", "RELOADING", "MONOTONIC_USEC", "ERRNO"}

// relay passes the program's states on until it is closed.
type relay struct {
	conn *net.UnixConn
	done chan struct{}
}

func (s *supervisor) listenNotify() (*relay, error) {
	file := filepath.Join(s.path(notifyName), filepath.Base(notifyFile))
	conn, err := net.ListenUnixgram("unixgram", &net.UnixAddr{Name: file, Net: "unixgram"})
	if err != nil {
		return nil, fmt.Errorf("notification socket: %w", err)
	}
	// In this order it takes no capability to change what others own.
	id := s.config.Identity
	if err := os.Chmod(file, 0o600); err != nil {
		return nil, errors.Join(err, conn.Close())
	}
	if err := os.Chown(file, int(id.UID), int(id.GID)); err != nil {
		return nil, errors.Join(err, conn.Close())
	}
	r := &relay{conn, make(chan struct{})}
	go func() {
		defer close(r.done)
		buffer := make([]byte, maxState)
		for {
			n, err := conn.Read(buffer)
			if err != nil {
				return // closed
			}
			state := filter(string(buffer[:n]))
			if state == "" || s.config.Notify == nil {
				continue
			}
			if err := s.config.Notify(state); err != nil {
				s.config.Log.Warn("systemd was not notified", "error", err)
			}
		}
	}()
	return r, nil
}

func (r *relay) close() error {
	err := r.conn.Close()
	<-r.done
	return err
}

// filter leaves the assignments that are passed on.
func filter(state string) string {
	var kept []string
	for line := range strings.SplitSeq(state, "\n") {
		name, _, ok := strings.Cut(line, "=")
		if ok && slices.Contains(passed, name) {
			kept = append(kept, line)
		}
	}
	return strings.Join(kept, "\n")
}
