// Package protocol is what crosses the private socket between hostagent and
// its clients: numbers and identities, request and answer messages, receipts
// in their canonical bytes, dispositions, problem codes, and strict decoding.
//
// It owns the formats and nothing else: no sockets (package uds), no storage,
// no signatures (package tlog), no policy. Both the agent and the controller
// import it; it imports neither.
//
// # Versions
//
// Every request names the version that it speaks in the Quittance-Version
// header. Within a version every object is closed: a new field means a new
// version. This package speaks [Version].
package protocol
