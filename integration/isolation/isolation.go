// Package isolation is the list of what the controller's container must refuse:
// each attempt is made from inside, by a program that stands in the controller's
// place, and each says how it was refused.
//
// It owns the attempts and what must come of each. It must not know how the
// container is made, nor on which machine: what it aims at is given as
// [Targets]. The same list runs in the e2e lane and on the whole machine of the
// vm lane.
//
//	probe           the program that makes the attempts
//	Run ─► Results ─► Judge: the table, and what was not as it must be
package isolation

import (
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"
	"syscall"
)

// Targets are things of the machine, by their names outside.
type Targets struct {
	EngineSocket string            // containerd's
	Ledger       string            // the agent's state directory
	AgentSocket  string            // may be connected to
	AgentPID     int               // the agent's process
	State        string            // the controller's own directory
	Config       string            // a directory that it may read
	Namespaces   map[string]string // of the machine: type to what /proc/PID/ns/TYPE says
}

// Attempt is one thing tried from inside.
type Attempt struct {
	// Name says what is tried, for people.
	Name string
	// Layer says what stands in the way.
	Layer string
	// Want is how it must end, any of these; [Allowed] alone is for what the
	// controller needs, so that a container that refuses everything fails too.
	Want []string
	try  func(Targets) error
}

// Allowed is the answer to what was not refused.
const Allowed = "allowed"

// Answers of the kernel that mean a refusal.
const (
	notPermitted = "operation not permitted"
	noAccess     = "permission denied"
	notThere     = "no such file or directory"
	readOnly     = "read-only file system"
	noProcess    = "no such process"
	notKnown     = "function not implemented"
	noTerminal   = "inappropriate ioctl for device"
)

// Answers of this package's own observations.
var (
	errEmpty = errors.New("empty")
	errOther = errors.New("another one")
	errNone  = errors.New("none")
)

// Result is how one attempt ended.
type Result struct{ Name, Answer string }

// Attempts is the whole list, in order.
func Attempts() []Attempt {
	return slices.Concat(needed, engine, files, processes, mounts, identities, calls)
}

// Run makes every attempt.
func Run(t Targets) []Result {
	var all []Result
	for _, a := range Attempts() {
		all = append(all, Result{a.Name, answer(a.try(t))})
	}
	return all
}

// answer is the system's error without the path, or the error's own text.
func answer(err error) string {
	if err == nil {
		return Allowed
	}
	if errors.Is(err, io.EOF) {
		return errEmpty.Error()
	}
	if number, ok := errors.AsType[syscall.Errno](err); ok {
		return number.Error()
	}
	return err.Error()
}

// Judge makes the table, and an error with everything that is not as it must
// be: a missing answer too.
func Judge(results []Result) (table string, err error) {
	answers := map[string]string{}
	for _, r := range results {
		answers[r.Name] = r.Answer
	}
	var text strings.Builder
	var problems []error
	for _, a := range Attempts() {
		got, made := answers[a.Name]
		if !made {
			got = "not tried"
		}
		fmt.Fprintf(&text, "%-60s %-30s %s\n", a.Name, got, a.Layer)
		if !slices.Contains(a.Want, got) {
			problems = append(problems, fmt.Errorf("%s: %s, expected %s", a.Name, got, strings.Join(a.Want, " or ")))
		}
	}
	return text.String(), errors.Join(problems...)
}

// Refused counts the attempts that must be refused.
func Refused() int { return len(Forbidden()) }

// Forbidden are the attempts that must be refused.
func Forbidden() []Attempt {
	return slices.DeleteFunc(Attempts(), func(a Attempt) bool { return slices.Equal(a.Want, []string{Allowed}) })
}

// Refusals are the answers to the attempts that must be refused.
func Refusals(results []Result) []Result {
	var all []Result
	for _, a := range Forbidden() {
		for _, r := range results {
			if r.Name == a.Name {
				all = append(all, r)
			}
		}
	}
	return all
}

// HostNamespaces reads the namespaces of this process for [Targets].
func HostNamespaces() (map[string]string, error) {
	all := map[string]string{}
	for _, kind := range []string{"user", "pid", "mnt", "ipc", "uts", "cgroup"} {
		link, err := os.Readlink("/proc/self/ns/" + kind)
		if err != nil {
			return nil, err
		}
		all[kind] = link
	}
	return all, nil
}
