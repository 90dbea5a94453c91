// Package hostclient speaks to one hostagent over its private socket: one
// method per route, typed, bounded and strict. The controller and agentctl are
// its users.
//
// It sends what it is told to send, once. It never repeats a request, never
// follows a new generation by itself and decides nothing from an answer: what an
// unknown effect means is the caller's to find out by reading (I11).
//
// # Errors
//
//	*protocol.Problem   refused: the agent said so, this request had no effect
//	*UnreachableError   refused: nothing was sent
//	*LostError          unknown: sent, and no answer that can be relied on came back
//	*protocol.DecodeError  refused: the request itself is malformed; nothing was sent
//
// [DispositionOf] tells them apart. A refusal speaks only for its own request: it
// never clears the unknown of an earlier send of the same effect.
package hostclient
