//go:build failpoints

package failpoint

import (
	"golang.org/x/sys/unix"

	"github.com/quittance/quittance/protocol/strike"
)

var armed = strike.Arm(names(), []string{"fail", "failsync", "failname"})

func names() []string {
	var all []string
	for _, p := range Points() {
		all = append(all, string(p))
	}
	return all
}

// Hit does what is armed at p, when this is the arrival that is meant.
func Hit(p Point) { armed.Hit(string(p)) }

// Write is asked before each write to a file of the attempt store; an error is
// the write's.
func Write() error { return armed.Fail("fail", unix.EIO) }

// Sync is asked between the writes to a file of the attempt store and its sync;
// an error is the sync's.
func Sync() error { return armed.Fail("failsync", unix.EIO) }

// SyncDir is asked before each sync of a directory of the attempt store; an
// error is the sync's.
func SyncDir() error { return armed.Fail("failname", unix.EIO) }
