// Package crash holds the host agent's part of the crash lane: every failpoint
// is struck by every fault that is possible there, the life goes on to its end,
// and what is left of it is audited: nothing on the machine, one use of the
// number, receipts without a gap under the signed root, a whole ledger, a
// bystander in the same engine untouched, descriptors and goroutines given back.
//
//	points   the agent's failpoints, and arrivals at those of the ledger's commits
//	faults   who is killed, what is lost, which commit fails, a full disk
//	rows     all pairs but the impossible; the lane's list names each
//
// A run of the lane takes one of twelve parts of the rows, make test-all all of
// them. The column of the killed controller is in integration/crash/controller.
package crash
