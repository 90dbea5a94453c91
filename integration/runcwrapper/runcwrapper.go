// Package runcwrapper puts a program in front of runc that fails on demand: it
// delays a command, hangs, fails after the effect, or reports success without
// any. Tests use it; the product does not.
//
// It owns the wrapper's program and how a test arms it. It must not know what a
// command means: faults choose the next call of one by its name, and everything
// else goes to the real runtime as it is.
package runcwrapper

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
	"time"
)

// Way is how a command of the runtime fails.
type Way string

// The ways.
const (
	Delay     Way = "delay"      // takes Pause longer and works
	Hang      Way = "hang"       // does nothing and does not return until its caller ends it, or after LongestHang
	FailAfter Way = "fail-after" // works and says that it did not
	Nothing   Way = "nothing"    // does nothing and says that it worked
)

// Ways are all of them.
var Ways = []Way{Delay, Hang, FailAfter, Nothing}

// Bounds of the ways that take time.
const (
	Pause       = time.Second
	LongestHang = time.Minute
)

// The wrapper's environment, which an engine and its shims inherit.
const (
	FaultsVariable  = "QUITTANCE_RUNC_FAULTS" // the folder in which commands are armed
	RuntimeVariable = "QUITTANCE_RUNC"        // the real runtime
)

// Wrapper is an installed wrapper.
type Wrapper struct{ dir string }

// Install builds the wrapper and puts it before the real runtime for every
// program that the test starts from now on, an engine for example.
func Install(t testing.TB) *Wrapper {
	t.Helper()
	real, err := exec.LookPath("runc")
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	bin, faults := filepath.Join(dir, "bin"), filepath.Join(dir, "faults")
	for _, d := range []string{bin, faults} {
		if err := os.Mkdir(d, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	build := exec.CommandContext(t.Context(), "go", "build", "-o", filepath.Join(bin, "runc"), "github.com/quittance/quittance/integration/runcwrapper/runc")
	build.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("build the wrapper: %v\n%s", err, out)
	}
	t.Setenv(FaultsVariable, faults)
	t.Setenv(RuntimeVariable, real)
	t.Setenv("PATH", bin+":"+os.Getenv("PATH"))
	return &Wrapper{faults}
}

// Arm makes the next call of a command fail.
func (w *Wrapper) Arm(command string, way Way) error {
	return os.WriteFile(filepath.Join(w.dir, command), []byte(way), 0o600)
}

// Disarm takes back what no call has met.
func (w *Wrapper) Disarm(command string) error {
	err := os.Remove(filepath.Join(w.dir, command))
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	return err
}

// Met waits until a call has met the fault.
func (w *Wrapper) Met(ctx context.Context, command string) error {
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	for {
		_, err := os.Stat(filepath.Join(w.dir, command))
		if errors.Is(err, fs.ErrNotExist) {
			return nil
		}
		if err != nil {
			return err
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("runc %s was not called: %w", command, ctx.Err())
		case <-tick.C:
		}
	}
}
