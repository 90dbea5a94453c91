package uds

import (
	"context"
	"fmt"
	"net"

	"golang.org/x/sys/unix"
)

// Peer is who opened a connection, as the kernel recorded it at connect
// (SO_PEERCRED): it cannot be forged, and it stays true after the peer changes
// its ids or hands the connection on.
type Peer struct {
	UID int
	GID int
	PID int // 0 where the peer lives in a PID namespace that we cannot see
}

type peerKey struct{}

// PeerFrom returns the peer of the connection that a request of [Server] came
// over. It is false for a context of any other origin.
func PeerFrom(ctx context.Context) (Peer, bool) {
	p, ok := ctx.Value(peerKey{}).(Peer)
	return p, ok
}

// WithPeer returns a context that [PeerFrom] reads p from: for handlers under
// test without a socket.
func WithPeer(ctx context.Context, p Peer) context.Context {
	return context.WithValue(ctx, peerKey{}, p)
}

// peerOf asks the kernel.
func peerOf(c *net.UnixConn) (Peer, error) {
	raw, err := c.SyscallConn()
	if err != nil {
		return Peer{}, err
	}
	var cred *unix.Ucred
	var credErr error
	if err := raw.Control(func(fd uintptr) {
		cred, credErr = unix.GetsockoptUcred(int(fd), unix.SOL_SOCKET, unix.SO_PEERCRED)
	}); err != nil {
		return Peer{}, err
	}
	if credErr != nil {
		return Peer{}, fmt.Errorf("read peer credentials: %w", credErr)
	}
	return Peer{UID: int(cred.Uid), GID: int(cred.Gid), PID: int(cred.Pid)}, nil
}
