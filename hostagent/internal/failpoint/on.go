//go:build failpoints

package failpoint

import (
	"golang.org/x/sys/unix"

	"github.com/quittance/quittance/protocol/strike"
)

var armed = strike.Arm(names(), []string{"fail", "failsync", "nospace", "drop"})

func names() []string {
	var all []string
	for _, p := range Points() {
		all = append(all, string(p))
	}
	return all
}

// Hit does what is armed at p, when this is the arrival that is meant.
func Hit(p Point) { armed.Hit(string(p)) }

// Write is asked before each write to the ledger; an error is the write's.
func Write() error {
	if err := armed.Fail("fail", unix.EIO); err != nil {
		return err
	}
	return armed.Fail("nospace", unix.ENOSPC)
}

// Sync is asked between a write to the ledger and its sync; an error is the
// sync's.
func Sync() error { return armed.Fail("failsync", unix.EIO) }

// DropReply tells that the reply which is about to be sent is to be lost.
func DropReply() bool { return armed.Take("drop") != "" }
