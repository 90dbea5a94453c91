// Package engine is the only place that talks to containerd. It turns each step
// of an allocation's life into one bounded, idempotent call with plain values:
//
//	Create ─► Start ─► Task / Wait ─► Kill ─► DeleteTask ─► DeleteContainer
//
// It owns the OCI spec (decided from the profile alone), the containerd
// namespace, container identifiers and labels, snapshots and leases. It must
// not know numbers' order, receipts, retries or policies: a call does one
// thing, once, and says whether it was done, refused or may have happened.
//
// # Dispositions
//
// An error of an effect says by [DispositionOf] what became of it: refused (no
// effect was made, or everything that was made is gone again) or unknown (look
// with [Engine.Inspect] before anything else; after a time-out the effect may
// still land until [Engine.LongestCall] has passed).
//
// # What containerd gets wrong, and what follows
//
//   - An exit status can be made up when the shim died. [Task] carries an exit
//     only where the shim that saw it still answers; in every other case the
//     caller's own pidfd is the witness and the code is unknown (I23).
//   - Events are hints without history: after every reconnection a resync hint
//     tells the caller to list and to look at every container that it knows.
//   - "Not found" from a signal means that there is no such process; only the
//     container's own record tells that a container is gone.
//   - Before anything is destroyed the container's identifier, nonce label and
//     creation time are compared with what the caller knows (I16, I17).
package engine
