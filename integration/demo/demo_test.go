//go:build e2e

package main

import (
	"os"
	"testing"
)

// The demonstration is a test of the whole: it checks every claim that it
// prints, that nothing is left behind among them. The image cache is the
// repository's own, as for make demo.
func TestDemo(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Fatal("the e2e lane needs root")
	}
	t.Chdir("../..")
	if err := run(t.Context(), "build/images", false); err != nil {
		t.Fatal(err)
	}
}
