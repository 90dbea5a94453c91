//go:build failpoints

package failpoint

import (
	"os"
	"syscall"
)

// chosen is the point at which this process dies; set once at start.
var chosen = os.Getenv("QUITTANCE_FAILPOINT")

// Hit ends the process by SIGKILL if name is the point chosen.
func Hit(name string) {
	if chosen != name+":kill" {
		return
	}
	if err := syscall.Kill(os.Getpid(), syscall.SIGKILL); err != nil {
		panic("failpoint: cannot kill this process: " + err.Error())
	}
	select {} // the signal is on its way
}
