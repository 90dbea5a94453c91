package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strconv"
	"strings"
	"time"

	"github.com/go-json-experiment/json"

	"github.com/quittance/quittance/protocol"
)

// entry is one entry of the journal; fields of several values are left out.
type entry map[string]string

// at is when the entry was received, on the clock of its own boot.
func (e entry) at() time.Duration {
	micros, err := strconv.ParseInt(e["__MONOTONIC_TIMESTAMP"], 10, 64)
	if err != nil {
		return -1
	}
	return time.Duration(micros) * time.Microsecond
}

// journal reads what matches, oldest first: each match is FIELD=value or an
// option of journalctl.
func journal(ctx context.Context, matches ...string) ([]entry, error) {
	out, err := run(ctx, "journalctl", append([]string{"--no-pager", "-q", "-o", "json"}, matches...)...)
	if err != nil {
		return nil, err
	}
	var entries []entry
	for line := range strings.Lines(out) {
		var fields map[string]any
		if err := json.Unmarshal([]byte(line), &fields); err != nil {
			return nil, fmt.Errorf("journal: %w: %s", err, last(line, 300))
		}
		e := entry{}
		for name, value := range fields {
			if text, ok := value.(string); ok {
				e[name] = text
			}
		}
		entries = append(entries, e)
	}
	return entries, nil
}

// Priorities of the journal, as syslog numbers them.
const (
	priorityError   = "3"
	priorityWarning = "4"
	priorityInfo    = "6"
)

// journalFields looks for one allocation in the journal by its number alone,
// and for its worker's own output, which its profile sends there by choice.
func journalFields(ctx context.Context, _ *task) (string, error) {
	w, err := allocate(ctx, "chatty")
	if err != nil {
		return "", err
	}
	c, err := w.open(ctx) // it serves, so it has said so
	if err != nil {
		return "", err
	}
	if err := errors.Join(c.echo("chatty"), c.conn.Close()); err != nil {
		return "", err
	}
	if _, err := w.end(ctx); err != nil {
		return "", err
	}
	number := "QUITTANCE_NUMBER=" + strconv.FormatInt(int64(w.number), 10)
	var events []string
	err = await(ctx, patience, "the journal has the allocation", func() error {
		entries, err := journal(ctx, "-b", "_SYSTEMD_UNIT="+agentUnit, number)
		if err != nil {
			return err
		}
		events = nil
		seen := map[string]entry{}
		for _, e := range entries {
			seen[e["QUITTANCE_EVENT"]] = e
			events = append(events, e["QUITTANCE_EVENT"])
		}
		var problems []error
		for _, kind := range []protocol.Kind{protocol.KindAccepted, protocol.KindStarted, protocol.KindExited, protocol.KindRetired, protocol.KindConsumed} {
			e, found := seen[string(kind)]
			switch {
			case !found:
				problems = append(problems, fmt.Errorf("no event %s", kind))
			case e["PRIORITY"] != priorityInfo || e["SYSLOG_IDENTIFIER"] != "hostagent" || e["QUITTANCE_PURPOSE"] != w.purpose:
				problems = append(problems, fmt.Errorf("event %s: priority %s, identifier %s, purpose %s",
					kind, e["PRIORITY"], e["SYSLOG_IDENTIFIER"], e["QUITTANCE_PURPOSE"]))
			}
		}
		return errors.Join(problems...)
	})
	if err != nil {
		return "", err
	}
	err = await(ctx, patience, "the journal has the worker's output", func() error {
		entries, err := journal(ctx, "-b", "SYSLOG_IDENTIFIER=quittance-worker", "QUITTANCE_NONCE="+string(w.body.Container.Nonce))
		if err == nil && (len(entries) == 0 || entries[0]["MESSAGE"] != "serving") {
			err = fmt.Errorf("%d entries %v", len(entries), entries)
		}
		return err
	})
	if err != nil {
		return "", err
	}
	if err := warned(ctx); err != nil {
		return "", err
	}
	return strings.Join(events, ", "), leftovers(ctx)
}

// warned gives the agent a profile that it must refuse, and looks for what it
// says by the priority alone.
func warned(ctx context.Context) error {
	const broken = profileDir + "/broken.toml"
	if err := writeFile(broken, "name = \"broken\"\nno_such_key = 1\n"); err != nil {
		return err
	}
	_, reloadErr := run(ctx, "systemctl", "reload", agentUnit)
	err := await(ctx, patience, "the journal has the refused profile", func() error {
		entries, err := journal(ctx, "-b", "-p", "warning", "_SYSTEMD_UNIT="+agentUnit)
		if err != nil {
			return err
		}
		for _, e := range entries {
			if strings.Contains(e["MESSAGE"], "broken") && (e["PRIORITY"] == priorityWarning || e["PRIORITY"] == priorityError) && e["QUITTANCE_EVENT"] != "" {
				return nil
			}
		}
		return fmt.Errorf("none of %d warnings", len(entries))
	})
	removeErr := os.Remove(broken)
	_, againErr := run(ctx, "systemctl", "reload", agentUnit)
	return errors.Join(reloadErr, err, removeErr, againErr)
}

// journalOfJob looks for the job of controllerJob in the controller's and in the
// agent's journal, by its id.
func journalOfJob(ctx context.Context, _ *task) (string, error) {
	id, err := os.ReadFile(jobFile)
	if err != nil {
		return "", err
	}
	told, err := journal(ctx, "-b", "_SYSTEMD_UNIT="+controllerUnit, "QUITTANCE_JOB="+string(id))
	if err != nil {
		return "", err
	}
	if len(told) == 0 {
		return "", fmt.Errorf("the controller's journal has no entry with QUITTANCE_JOB=%s", id)
	}
	for _, e := range told {
		if e["QUITTANCE_EVENT"] == "" || e["PRIORITY"] == "" || e["SYSLOG_IDENTIFIER"] != "controller" {
			return "", fmt.Errorf("entry without event, priority or identifier: %v", e)
		}
	}
	accepted, err := journal(ctx, "-b", "_SYSTEMD_UNIT="+agentUnit, "QUITTANCE_EVENT="+string(protocol.KindAccepted))
	if err != nil {
		return "", err
	}
	for _, e := range accepted {
		if strings.Contains(e["QUITTANCE_PURPOSE"], string(id)) {
			return fmt.Sprintf("%d entries of the controller with the job's id; the agent's carry it as purpose", len(told)), nil
		}
	}
	return "", fmt.Errorf("none of %d accepted events of the agent carries the job's id %s", len(accepted), id)
}

// What systemd says of a unit, by message id.
const (
	unitStarting = "MESSAGE_ID=7d4958e842da4a758f6c1cdc7b36dcc5"
	unitStarted  = "MESSAGE_ID=39f53479d3a045ac8e11786248231fbf"
	unitStopping = "MESSAGE_ID=de5b426a63be47a7b6ac3eaac82e2f6f"
	unitStopped  = "MESSAGE_ID=9d1aaa27d60140bd96365438aad20286"
)

// told is when systemd last said something of a unit in a boot, 0 the current
// one and -1 the one before.
func told(ctx context.Context, boot int, unit, what string) (time.Duration, error) {
	entries, err := journal(ctx, "-b", strconv.Itoa(boot), "_PID=1", "UNIT="+unit, what)
	if err != nil {
		return 0, err
	}
	if len(entries) == 0 {
		return 0, fmt.Errorf("boot %d: systemd did not say %s of %s", boot, what, unit)
	}
	return entries[len(entries)-1].at(), nil
}

// bootOrder reads from the journal in which order the machine went down and came
// up again: the controller stopped before the agent and the agent before the
// engine; the agent was ready before the controller began. The controller had
// been enabled for that, and is not any more.
func bootOrder(ctx context.Context, _ *task) (string, error) {
	if err := await(ctx, patience, "the controller came with the boot", func() error {
		return properties(ctx, controllerUnit, "ActiveState=active", "SubState=running")
	}); err != nil {
		return "", err
	}
	steps := []struct {
		boot       int
		unit, what string
	}{
		{-1, controllerUnit, unitStopped}, {-1, agentUnit, unitStopping}, {-1, agentUnit, unitStopped}, {-1, engineUnit, unitStopping},
		{0, engineUnit, unitStarted}, {0, agentUnit, unitStarted}, {0, controllerUnit, unitStarting},
	}
	var problems []error
	var before time.Duration
	for i, step := range steps {
		at, err := told(ctx, step.boot, step.unit, step.what)
		problems = append(problems, err)
		if i > 0 && step.boot == steps[i-1].boot && at < before {
			problems = append(problems, fmt.Errorf("boot %d: %s, %s at %s, before %s, %s at %s",
				step.boot, step.unit, step.what, at, steps[i-1].unit, steps[i-1].what, before))
		}
		before = at
	}
	_, err := run(ctx, "systemctl", "disable", "--now", controllerUnit)
	return "stopped: controller, agent, engine; started: engine, agent, controller", errors.Join(append(problems, err)...)
}
