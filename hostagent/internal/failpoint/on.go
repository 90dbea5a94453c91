//go:build failpoints

package failpoint

import (
	"fmt"
	"os"
	"syscall"
)

// armed is the point at which this process ends, "" for none.
var armed = arm(os.Getenv("QUITTANCE_FAILPOINT"))

func arm(setting string) Point {
	if setting == "" {
		return ""
	}
	for _, p := range Points() {
		if setting == string(p)+":kill" {
			return p
		}
	}
	// A misspelt point would let a crash test pass without any crash.
	fmt.Fprintf(os.Stderr, "QUITTANCE_FAILPOINT names no failpoint with an action: use name:kill\n")
	os.Exit(2)
	return ""
}

// Hit ends the process with SIGKILL when p is the armed point.
func Hit(p Point) {
	if p != armed {
		return
	}
	fmt.Fprintf(os.Stderr, "failpoint %s: SIGKILL\n", p)
	if err := syscall.Kill(os.Getpid(), syscall.SIGKILL); err != nil {
		fmt.Fprintf(os.Stderr, "failpoint %s: %v\n", p, err)
		os.Exit(2)
	}
	select {} // the signal ends the process before anything else of it runs on
}
