package vm

import (
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// A standstill alone is answered by a second run, once, which leaves what the
// first left; whatever else fails is the verdict, and what explains it is shown.
func TestRun(t *testing.T) {
	script, err := filepath.Abs("run.sh")
	if err != nil {
		t.Fatal(err)
	}
	for name, row := range map[string]struct {
		runs   []string // what each run does, in its folder
		passes bool
		shows  []string
		keeps  []string // below build/vm
	}{
		"passes":            {runs: []string{"echo fine > table.txt"}, passes: true, shows: []string{"fine"}},
		"fails":             {runs: []string{"echo why > failure-row.log; echo said > console.log; exit 1"}, shows: []string{"why", "said"}},
		"stands still":      {runs: []string{"touch stood-still; echo one > console.log; exit 1", "echo two > console.log"}, passes: true, keeps: []string{"first-run/console.log"}},
		"stands still ever": {runs: []string{"touch stood-still; exit 1", "touch stood-still; exit 1"}, shows: []string{"once more"}},
		"fails afterwards": {runs: []string{"touch stood-still; echo one > failure-one.log; exit 1", "echo two > failure-two.log; exit 1"},
			shows: []string{"two"}, keeps: []string{"first-run/failure-one.log", "failure-two.log"}},
	} {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			// Each run takes the next of them; one too many fails.
			text := "echo >> runs; cd build/vm; case $(wc -l < ../../runs) in\n"
			for i, run := range row.runs {
				text += string(rune('1'+i)) + ") " + run + " ;;\n"
			}
			if err := os.WriteFile(filepath.Join(dir, "command"), []byte(text+"*) exit 9 ;;\nesac\n"), 0o644); err != nil {
				t.Fatal(err)
			}
			cmd := exec.CommandContext(t.Context(), "sh", script, "sh", "command")
			cmd.Dir = dir
			said, err := cmd.CombinedOutput()
			if _, failed := errors.AsType[*exec.ExitError](err); err != nil && !failed {
				t.Fatal(err)
			}
			if (err == nil) != row.passes {
				t.Errorf("%v, expected a pass: %t\n%s", err, row.passes, said)
			}
			for _, wanted := range row.shows {
				if !strings.Contains(string(said), wanted) {
					t.Errorf("%q is not shown:\n%s", wanted, said)
				}
			}
			for _, kept := range row.keeps {
				if _, err := os.Stat(filepath.Join(dir, "build/vm", kept)); err != nil {
					t.Error(err)
				}
			}
			if runs, err := os.ReadFile(filepath.Join(dir, "runs")); err != nil || len(runs) != len(row.runs) {
				t.Errorf("%d runs, expected %d: %v", len(runs), len(row.runs), err)
			}
		})
	}
}
