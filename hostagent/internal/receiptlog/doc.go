// Package receiptlog is the RFC 6962 view of the receipts: what index a
// receipt has, which bytes it is, and the proofs that tie them to a signed
// checkpoint.
//
// It owns the Merkle tree in memory, what is kept of it after pruning, and
// where each leaf lies in the ledger. It must not know what a receipt says,
// write anything to disk, or decide what is released: it is told.
//
// # Two sizes
//
//	0 ….. pruned ….. first ………… durable ………… queued
//
// queued grows with [Log.Append], when a leaf is handed to the ledger; durable
// with [Log.Durable], when the ledger says that it is on disk. Everything that
// is served (leaves, checkpoints, proofs) is of the durable size. A snapshot
// for a release's base is of the queued one, because the base lies behind
// everything that is queued.
//
// # Pruning
//
// Below pruned, the size that the controller's checkpoint witnessed, only
// these hashes are kept: the roots of the perfect subtrees of that prefix (at
// most 63), and for each carried leaf its hash and its path to such a root.
// Above it every hash is kept. That is enough to extend the tree, to prove
// every later size consistent with pruned and with each other, and to prove
// each leaf that is still served: those from first on, and the carried ones,
// whose bytes are kept here too.
package receiptlog
