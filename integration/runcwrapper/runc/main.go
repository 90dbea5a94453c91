// Command runc stands in front of the real one; see package runcwrapper.
package main

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"syscall"
	"time"

	"github.com/quittance/quittance/integration/runcwrapper"
)

// commands are those that can be armed.
var commands = []string{"create", "start", "kill", "delete"}

func main() {
	if err := run(); err != nil {
		fmt.Fprintf(os.Stderr, "runc wrapper: %v\n", err)
		os.Exit(1)
	}
}

func run() error {
	real := os.Getenv(runcwrapper.RuntimeVariable)
	way, err := take()
	if err != nil {
		return err
	}
	switch way {
	case "":
	case runcwrapper.Delay:
		time.Sleep(runcwrapper.Pause)
	case runcwrapper.Hang:
		time.Sleep(runcwrapper.LongestHang)
		return errors.New("hung")
	case runcwrapper.Nothing:
		return nil
	case runcwrapper.FailAfter:
		cmd := exec.Command(real, os.Args[1:]...)
		cmd.Stdin, cmd.Stdout, cmd.Stderr = os.Stdin, os.Stdout, os.Stderr
		if err := cmd.Run(); err != nil {
			return err
		}
		return errors.New("failed after the effect, on demand")
	default:
		return fmt.Errorf("no such way: %q", way)
	}
	return syscall.Exec(real, append([]string{"runc"}, os.Args[1:]...), os.Environ())
}

// take uses up what is armed for this call's command, "" for nothing.
func take() (runcwrapper.Way, error) {
	i := slices.IndexFunc(os.Args, func(a string) bool { return slices.Contains(commands, a) })
	if i < 0 {
		return "", nil
	}
	armed := filepath.Join(os.Getenv(runcwrapper.FaultsVariable), os.Args[i])
	mine := fmt.Sprintf("%s.%d", armed, os.Getpid())
	// Only one call gets it.
	if err := os.Rename(armed, mine); errors.Is(err, fs.ErrNotExist) {
		return "", nil
	} else if err != nil {
		return "", err
	}
	way, err := os.ReadFile(mine)
	if err != nil {
		return "", err
	}
	return runcwrapper.Way(way), os.Remove(mine)
}
