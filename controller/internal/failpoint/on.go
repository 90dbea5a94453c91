//go:build failpoints

package failpoint

import (
	"os"
	"runtime"
	"strconv"
	"strings"
	"sync/atomic"

	"golang.org/x/sys/unix"
)

// chosen is the point at which this process is struck, and how; set once at
// start.
var chosen, action, _ = strings.Cut(os.Getenv("QUITTANCE_FAILPOINT"), ":")

// struck is set by the first arrival.
var struck atomic.Bool

// Hit does what was chosen if name is the point chosen, once.
func Hit(name string) {
	if name != chosen || struck.Swap(true) {
		return
	}
	switch action {
	case "kill":
		mark()
		signalSelf(unix.SIGKILL)
		select {} // the signal is on its way
	case "stop":
		mark()
		signalSelf(unix.SIGSTOP)
	default:
		panic("failpoint: QUITTANCE_FAILPOINT must end in :kill or :stop")
	}
}

// signalSelf is taken by this very thread, on its way back: nothing after the
// point has run by then.
func signalSelf(sig unix.Signal) {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	if err := unix.Tgkill(os.Getpid(), unix.Gettid(), sig); err != nil {
		panic("failpoint: cannot signal this process: " + err.Error())
	}
}

// mark tells the test that the strike takes place now, and in which process.
func mark() {
	file := os.Getenv("QUITTANCE_FAILPOINT_MARK")
	if file == "" {
		return
	}
	if err := os.WriteFile(file, []byte(strconv.Itoa(os.Getpid())), 0o600); err != nil {
		panic("failpoint: " + err.Error())
	}
}
