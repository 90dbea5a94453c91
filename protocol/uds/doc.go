// Package uds is the private socket itself: listening and dialling, the peer's
// credentials, the limits of one connection and of one user, and the hand-over
// of a connected stream as a file descriptor.
//
// It owns the transport and knows nothing of what is said over it: no routes,
// no roles, no allocations. The agent's server gives it a handler; package
// hostclient is its client side.
//
// # Hand-over of a channel
//
//	client                                   agent
//	POST …/channel, Upgrade ───────────────►
//	       ◄─────────────── 101 Switching Protocols
//	one byte ──────────────────────────────►        the 101 was read: no buffered
//	       ◄── one byte with one descriptor         reader can swallow what follows
//	       ◄── end of file
//
// A descriptor that a peer sends to the agent is closed by the kernel: the agent
// reads without room for control messages (I4).
package uds
