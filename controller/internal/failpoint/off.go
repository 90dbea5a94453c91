//go:build !failpoints

package failpoint

// Hit does nothing in a binary built without the tag failpoints.
func Hit(string) {}
