// Package tlog is the receipt log as its readers verify it: leaf hashes, signed
// checkpoints, inclusion and consistency proofs, and the host's signing key.
//
// The log is one of RFC 6962: a leaf is a receipt's canonical bytes. Checkpoints
// are C2SP tlog-checkpoints (signed notes, Ed25519) of origin
// "quittance/<generation>"; proofs of single receipts are C2SP tlog-proofs. Any
// implementation of those formats can check them.
//
// It owns formats, signing and verification. It stores no tree and reads no
// receipt: the agent's receipt log keeps the hashes, package protocol the
// meaning. A valid signature says who wrote a receipt; it confers no authority
// (I3).
package tlog
