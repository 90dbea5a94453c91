//go:build !failpoints

package failpoint

// Hit does nothing in a program that was built without failpoints.
func Hit(Point) {}

// Write lets every write to the ledger go on.
func Write() error { return nil }

// Sync lets every sync of the ledger go on.
func Sync() error { return nil }

// DropReply lets every reply be sent.
func DropReply() bool { return false }
