package strike

import (
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
)

var (
	points  = []string{"here", "there"}
	actions = []string{"fail", "drop"}
)

func parse(t *testing.T, setting string) *Strike {
	t.Helper()
	s, err := Parse(setting, points, actions)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

func TestMisspeltSettings(t *testing.T) {
	for setting, want := range map[string]string{
		"hear:kill":   "names no failpoint: hear",
		":kill":       "names no failpoint: ",
		"here":        "no such action at here: use one of kill, stop, fail, drop",
		"here:sleep":  "no such action at here",
		"here#0:kill": "a number from 1",
		"here#x:kill": "a number from 1",
	} {
		if _, err := Parse(setting, points, actions); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, want %s", setting, err, want)
		}
	}
}

// What is due is taken once, by who asks for it, from the arrival on that was
// named.
func TestDueOnce(t *testing.T) {
	s := parse(t, "here#2:fail")
	s.Hit("here")
	s.Hit("there")
	if err := s.Fail("fail", syscall.EIO); err != nil {
		t.Errorf("before its arrival: %v", err)
	}
	s.Hit("here")
	if got := s.Take("drop"); got != "" {
		t.Errorf("somebody who asks for another action takes %q", got)
	}
	if err := s.Fail("fail", syscall.EIO); !errors.Is(err, syscall.EIO) || !strings.Contains(err.Error(), "here") {
		t.Errorf("at its arrival: %v", err)
	}
	s.Hit("here")
	if got := s.Take("fail", "drop"); got != "" {
		t.Errorf("taken again: %q", got)
	}
}

func TestNothingArmed(t *testing.T) {
	t.Setenv(Variable, "")
	s := Arm(points, actions)
	s.Hit("")
	s.Hit("here")
	if got := s.Take("", "fail"); got != "" {
		t.Errorf("due: %q", got)
	}
}

// A process that is struck ends at the point, and has made its mark by then; one
// that is armed wrongly does not begin.
func TestKillAndMark(t *testing.T) {
	const child = "QUITTANCE_STRIKE_CHILD"
	if os.Getenv(child) != "" {
		s := Arm(points, actions)
		s.Hit("there")
		s.Hit("here")
		os.Exit(7)
	}
	run := func(setting, mark string) *os.ProcessState {
		cmd := exec.CommandContext(t.Context(), os.Args[0], "-test.run=^TestKillAndMark$")
		cmd.Env = append(os.Environ(), child+"=1", Variable+"="+setting, MarkVariable+"="+mark)
		if err := cmd.Run(); err == nil {
			t.Errorf("%s: the child passed", setting)
		}
		return cmd.ProcessState
	}
	mark := filepath.Join(t.TempDir(), "struck")
	state := run("here:kill", mark)
	if status := state.Sys().(syscall.WaitStatus); !status.Signaled() || status.Signal() != syscall.SIGKILL {
		t.Errorf("the child ended with %v", state)
	}
	if text, err := os.ReadFile(mark); err != nil || string(text) != strconv.Itoa(state.Pid()) {
		t.Errorf("the mark is %q (%v), the process was %d", text, err, state.Pid())
	}
	if state := run("hear:kill", mark); state.ExitCode() != 2 {
		t.Errorf("armed wrongly: %v", state)
	}
	if state := run("here:fail", mark); state.ExitCode() != 7 {
		t.Errorf("nobody took what was due: %v", state)
	}
}
