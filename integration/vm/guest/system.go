package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"slices"
	"strings"
	"syscall"
	"time"
)

// The units of the packages.
const (
	agentUnit      = "quittance-hostagent.service"
	socketUnit     = "quittance-hostagent.socket"
	workersUnitOf  = "quittance-workers.service"
	controllerUnit = "quittance-controller.service"
)

// run runs a program to its end and returns its output without the last line
// feeds. An exit status other than 0 is an error with what it said.
func run(ctx context.Context, name string, args ...string) (string, error) {
	return runAs(ctx, nil, "", name, args...)
}

func runAs(ctx context.Context, as *syscall.Credential, stdin, name string, args ...string) (string, error) {
	cmd := exec.CommandContext(ctx, name, args...)
	cmd.Dir = "/"
	cmd.Env = append(environment, "DEBIAN_FRONTEND=noninteractive")
	cmd.SysProcAttr = &syscall.SysProcAttr{Credential: as}
	cmd.Stdin = strings.NewReader(stdin)
	var out, said bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &said
	if err := cmd.Run(); err != nil {
		return strings.TrimRight(out.String(), "\n"),
			fmt.Errorf("%s %s: %w: %s", name, strings.Join(args, " "), err, last(said.String()+out.String(), 1500))
	}
	return strings.TrimRight(out.String(), "\n"), nil
}

// environment is what every program is started with.
var environment = []string{
	"PATH=/usr/sbin:/usr/bin:/sbin:/bin", "LC_ALL=C", "SYSTEMD_COLORS=0", "SYSTEMD_PAGER=cat",
	"QUITTANCE_TOKEN_FILE=/var/lib/quittance-controller/jobs/first-token",
}

// last is the end of a text.
func last(text string, bytes int) string {
	text = strings.TrimSpace(text)
	return text[max(0, len(text)-bytes):]
}

// property reads one property of a unit.
func property(ctx context.Context, unit, name string) (string, error) {
	return run(ctx, "systemctl", "show", "--value", "--property="+name, unit)
}

// properties checks properties of a unit, each "Name=value".
func properties(ctx context.Context, unit string, wanted ...string) error {
	args := []string{"show"}
	for _, w := range wanted {
		name, _, _ := strings.Cut(w, "=")
		args = append(args, "--property="+name)
	}
	out, err := run(ctx, "systemctl", append(args, unit)...)
	if err != nil {
		return err
	}
	lines := strings.Split(out, "\n")
	var problems []error
	for _, w := range wanted {
		if !slices.Contains(lines, w) {
			problems = append(problems, fmt.Errorf("%s: expected %s of %q", unit, w, out))
		}
	}
	return errors.Join(problems...)
}

// active waits until units run.
func active(ctx context.Context, units ...string) error {
	return await(ctx, patience, "the units run", func() error {
		out, err := run(ctx, "systemctl", append([]string{"show", "--value", "--property=ActiveState"}, units...)...)
		if err == nil && strings.Join(strings.Fields(out), " ") != strings.Repeat("active ", len(units)-1)+"active" {
			err = fmt.Errorf("%s are %q", strings.Join(units, ", "), out)
		}
		return err
	})
}

// await polls a condition until it holds, at most for patience; the last error
// says why it did not.
func await(ctx context.Context, patience time.Duration, what string, condition func() error) error {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	for {
		err := condition()
		if err == nil {
			return nil
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("%s: not within %s: %w", what, patience, err)
		case <-time.After(100 * time.Millisecond):
		}
	}
}

// patience bounds waits for things that take seconds here, and a fraction of one on
// real hardware: a machine many times slower must not fail by it.
const patience = 8 * time.Minute

// mainPID is the process of a service.
func mainPID(ctx context.Context, unit string) (int, error) {
	text, err := property(ctx, unit, "MainPID")
	if err != nil {
		return 0, err
	}
	var pid int
	if _, err := fmt.Sscan(text, &pid); err != nil || pid == 0 {
		return 0, fmt.Errorf("%s has no process: MainPID %q", unit, text)
	}
	return pid, nil
}

// restarted waits until a unit runs with another process than before.
func restarted(ctx context.Context, unit string, before int) error {
	return await(ctx, patience, unit+" runs again", func() error {
		if err := properties(ctx, unit, "ActiveState=active", "SubState=running"); err != nil {
			return err
		}
		pid, err := mainPID(ctx, unit)
		if err == nil && pid == before {
			err = errors.New("its process is the old one")
		}
		return err
	})
}

// writeFile writes a file of the administrator's.
func writeFile(path, text string) error { return os.WriteFile(path, []byte(text), 0o644) }

// diagnose says what explains a failure: failed units and the journal's end.
func diagnose(ctx context.Context, t *task) (string, error) {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	for _, command := range [][]string{
		{"systemctl", "--no-pager", "--failed"},
		{"systemctl", "--no-pager", "status", agentUnit, socketUnit, workersUnitOf, controllerUnit, "containerd.service"},
		{"journalctl", "--no-pager", "-b", "-n", "400", "-o", "short-monotonic"},
		{"findmnt"}, {"ps", "-eo", "pid,ppid,user,stat,wchan:20,cgroup:60,args"},
		{"hostagent", "leftovers"}, {"agentctl", "status"}, {"agentctl", "allocations"}, {"agentctl", "jobs", "list", "-o", "json"},
	} {
		// A command that fails, as systemctl status does for a stopped unit, has
		// still said something.
		out, err := run(ctx, command[0], command[1:]...)
		if err != nil {
			out += "\n" + err.Error()
		}
		if err := t.say("$ %s\n%s\n", strings.Join(command, " "), last(out, 200<<10)); err != nil {
			return "", err
		}
	}
	return "", nil
}

func powerOff(ctx context.Context, _ *task) (string, error) {
	_, err := run(ctx, "systemctl", "--no-block", "poweroff")
	return "", err
}

func reboot(ctx context.Context, _ *task) (string, error) {
	_, err := run(ctx, "systemctl", "--no-block", "reboot")
	return "", err
}
