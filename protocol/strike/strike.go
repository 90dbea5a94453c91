// Package strike is what the failpoints of both daemons are made of: it reads
// from the environment where a process is to be struck and how, and strikes it
// there, once.
//
//	QUITTANCE_FAILPOINT=NAME[#ARRIVAL]:ACTION   the first arrival unless another is named
//	QUITTANCE_FAILPOINT_MARK=FILE               is made when the strike takes place, with the process's id
//
//	kill      the process ends with SIGKILL, exactly as the kernel would end it
//	stop      the process stops with SIGSTOP, so that a test can strike another
//	          one at exactly this moment; SIGCONT lets it go on
//	others    are due from the place on, and taken by whoever asks for them first
//
// It owns the setting's form and these two actions. It knows no place, and not
// what an action that is due does. Only files with the build tag failpoints
// import it: no release does.
package strike

import (
	"errors"
	"fmt"
	"os"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"

	"golang.org/x/sys/unix"
)

// Variable and MarkVariable are the names of the settings.
const (
	Variable     = "QUITTANCE_FAILPOINT"
	MarkVariable = "QUITTANCE_FAILPOINT_MARK"
)

// The actions that every process knows.
const (
	Kill = "kill"
	Stop = "stop"
)

// Strike is what is armed in a process. Its methods may be called from any
// goroutine.
type Strike struct {
	point   string // "" for none
	arrival int    // counted from 1
	action  string

	mu       sync.Mutex
	arrivals int    // at point so far; guarded by mu
	due      string // the action that waits to be taken, "" for none; guarded by mu
}

// Arm reads the environment's setting. A misspelt one ends the process: it would
// let a test pass without any strike.
func Arm(points, actions []string) *Strike {
	setting := os.Getenv(Variable)
	if setting == "" {
		return &Strike{}
	}
	s, err := Parse(setting, points, actions)
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(2)
	}
	return s
}

// Parse reads a setting for a process that has these points and, beside kill and
// stop, these actions.
func Parse(setting string, points, actions []string) (*Strike, error) {
	place, action, _ := strings.Cut(setting, ":")
	name, count, counted := strings.Cut(place, "#")
	s := &Strike{point: name, arrival: 1, action: action}
	if !slices.Contains(points, name) {
		return nil, fmt.Errorf("%s names no failpoint: %s", Variable, name)
	}
	if counted {
		var err error
		if s.arrival, err = strconv.Atoi(count); err != nil || s.arrival < 1 {
			return nil, fmt.Errorf("%s: the arrival at %s must be a number from 1", Variable, name)
		}
	}
	if all := append([]string{Kill, Stop}, actions...); !slices.Contains(all, action) {
		return nil, fmt.Errorf("%s knows no such action at %s: use one of %s", Variable, name, strings.Join(all, ", "))
	}
	return s, nil
}

// Hit does what is armed at the point, when this is the arrival that is meant.
func (s *Strike) Hit(point string) {
	if point != s.point || !s.meant() {
		return
	}
	switch s.action {
	case Kill:
		s.mark()
		signalSelf(unix.SIGKILL)
		select {} // the signal ends the process before anything else of it runs on
	case Stop:
		s.mark()
		signalSelf(unix.SIGSTOP)
	default:
		s.mu.Lock()
		s.due = s.action
		s.mu.Unlock()
	}
}

func (s *Strike) meant() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.arrivals++
	return s.arrivals == s.arrival
}

// Take uses the action that is due up, once, if it is one of those given, and
// returns it, or "".
func (s *Strike) Take(actions ...string) string {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.due == "" || !slices.Contains(actions, s.due) {
		return ""
	}
	taken := s.due
	s.due = ""
	s.mark()
	return taken
}

// Fail returns the system's error as what failed at the point if the action is
// due, and nil otherwise.
func (s *Strike) Fail(action string, errno syscall.Errno) error {
	if s.Take(action) == "" {
		return nil
	}
	return fmt.Errorf("failpoint %s: %w", s.point, errno)
}

// signalSelf is taken by this very thread, on its way back: nothing after the
// point has run by then.
func signalSelf(sig syscall.Signal) {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	if err := unix.Tgkill(os.Getpid(), unix.Gettid(), sig); err != nil {
		fatal(err)
	}
}

// mark tells the test that the strike takes place now. The file appears with its
// content.
func (s *Strike) mark() {
	fmt.Fprintf(os.Stderr, "failpoint %s: %s\n", s.point, s.action)
	file := os.Getenv(MarkVariable)
	if file == "" {
		return
	}
	err := os.WriteFile(file+".new", []byte(strconv.Itoa(os.Getpid())), 0o600)
	if err = errors.Join(err, os.Rename(file+".new", file)); err != nil {
		fatal(err)
	}
}

func fatal(err error) {
	fmt.Fprintf(os.Stderr, "failpoint: %v\n", err)
	os.Exit(2)
}
