//go:build !failpoints

package failpoint

// Hit does nothing in a program that was built without failpoints.
func Hit(Point) {}
