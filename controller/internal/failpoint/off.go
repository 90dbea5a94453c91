//go:build !failpoints

package failpoint

// Hit does nothing in a program that was built without failpoints.
func Hit(Point) {}

// Write lets every write of the attempt store go on.
func Write() error { return nil }

// Sync lets every sync of a file of the attempt store go on.
func Sync() error { return nil }

// SyncDir lets every sync of a directory of the attempt store go on.
func SyncDir() error { return nil }
