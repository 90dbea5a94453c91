//go:build failpoints

package failpoint

import (
	"fmt"
	"os"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"syscall"

	"golang.org/x/sys/unix"
)

// strike is what is armed in this process.
type strike struct {
	point   Point // "" for none
	arrival int   // counted from 1
	action  string

	mu       sync.Mutex
	arrivals int    // at point so far; guarded by mu
	due      string // the action that waits for its moment, "" for none; guarded by mu
}

var armed = arm(os.Getenv("QUITTANCE_FAILPOINT"))

// arm reads the setting. A misspelt one ends the process: it would let a test
// pass without any strike.
func arm(setting string) *strike {
	if setting == "" {
		return &strike{}
	}
	s, err := parse(setting)
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(2)
	}
	return s
}

// parse reads NAME[#ARRIVAL]:ACTION.
func parse(setting string) (*strike, error) {
	place, action, _ := strings.Cut(setting, ":")
	name, count, counted := strings.Cut(place, "#")
	s := &strike{arrival: 1, action: action}
	for _, p := range Points() {
		if name == string(p) {
			s.point = p
		}
	}
	var err error
	if counted {
		s.arrival, err = strconv.Atoi(count)
	}
	switch {
	case s.point == "":
		return nil, fmt.Errorf("QUITTANCE_FAILPOINT names no failpoint: %s", name)
	case err != nil || s.arrival < 1:
		return nil, fmt.Errorf("QUITTANCE_FAILPOINT: the arrival at %s must be a number from 1", name)
	}
	switch action {
	case "kill", "stop", "fail", "failsync", "nospace", "drop":
		return s, nil
	}
	return nil, fmt.Errorf("QUITTANCE_FAILPOINT knows no such action at %s: use kill, stop, fail, failsync, nospace or drop", name)
}

// Hit does what is armed at p, when this is the arrival that is meant.
func Hit(p Point) {
	if p != armed.point {
		return
	}
	armed.mu.Lock()
	armed.arrivals++
	meant := armed.arrivals == armed.arrival
	armed.mu.Unlock()
	if !meant {
		return
	}
	switch armed.action {
	case "kill":
		mark()
		signalSelf(unix.SIGKILL)
		select {} // the signal ends the process before anything else of it runs on
	case "stop":
		mark()
		signalSelf(unix.SIGSTOP)
	default:
		armed.mu.Lock()
		armed.due = armed.action
		armed.mu.Unlock()
	}
}

// signalSelf is taken by this very thread, on its way back: nothing after the
// point has run by then.
func signalSelf(sig syscall.Signal) {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	if err := unix.Tgkill(os.Getpid(), unix.Gettid(), sig); err != nil {
		fmt.Fprintf(os.Stderr, "failpoint: %v\n", err)
		os.Exit(2)
	}
}

// take uses the waiting action up, once, if it is one of those given.
func take(actions ...string) string {
	armed.mu.Lock()
	defer armed.mu.Unlock()
	for _, a := range actions {
		if armed.due == a {
			armed.due = ""
			mark()
			return a
		}
	}
	return ""
}

// Write is asked before each write to the ledger; an error is the write's.
func Write() error {
	switch take("fail", "nospace") {
	case "fail":
		return fmt.Errorf("failpoint %s: %w", armed.point, unix.EIO)
	case "nospace":
		return fmt.Errorf("failpoint %s: %w", armed.point, unix.ENOSPC)
	}
	return nil
}

// Sync is asked between a write to the ledger and its sync; an error is the
// sync's.
func Sync() error {
	if take("failsync") != "" {
		return fmt.Errorf("failpoint %s: %w", armed.point, unix.EIO)
	}
	return nil
}

// DropReply tells that the reply which is about to be sent is to be lost.
func DropReply() bool { return take("drop") != "" }

// mark tells the test that the strike takes place now.
func mark() {
	fmt.Fprintf(os.Stderr, "failpoint %s: %s\n", armed.point, armed.action)
	file := os.Getenv("QUITTANCE_FAILPOINT_MARK")
	if file == "" {
		return
	}
	if err := os.WriteFile(file, []byte(armed.point), 0o600); err != nil {
		fmt.Fprintf(os.Stderr, "failpoint: %v\n", err)
		os.Exit(2)
	}
}
