package command

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os/exec"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/quittance/quittance/cmd/agentctl/internal/checkup"
	"github.com/quittance/quittance/cmd/agentctl/internal/exit"
	"github.com/quittance/quittance/cmd/agentctl/internal/table"
	"github.com/quittance/quittance/cmd/internal/commandline"
	"github.com/quittance/quittance/protocol"
)

// Bounds of the examination by hostagent.
const (
	doctorTime     = 2 * time.Minute
	maxCheckupSize = 1 << 20
)

func (a *app) doctorCommand() *cobra.Command {
	var program, config string
	cmd := &cobra.Command{
		Use:   "doctor",
		Short: "Check the agent and this machine, and say what to do",
		Long: `Check the agent by its own answers, and the machine by running hostagent
doctor, which needs root: state directory, ledger, disk, users, init, clock,
cgroups, engine, profiles, and leftovers that belong to no allocation.

Exit status: 0 no check failed (warnings do not count), 1 one did.`,
		Args: commandline.Exactly(0),
		RunE: func(cmd *cobra.Command, _ []string) error { return a.doctor(cmd.Context(), program, config) },
	}
	cmd.Flags().StringVar(&program, "hostagent", "hostagent", "the hostagent program")
	cmd.Flags().StringVar(&config, "config", "", "the agent's configuration file, where it is not the usual one")
	return cmd
}

func (a *app) doctor(ctx context.Context, program, config string) error {
	var all protocol.Checkup
	host, generation, err := a.host(ctx)
	var profiles []protocol.ProfileInfo
	if err == nil {
		profiles, err = generation.Profiles(ctx)
	}
	if err != nil {
		all.Checks = append(all.Checks, checkup.Unreachable(err))
	} else {
		all.Checks = append(all.Checks, checkup.Of(host, profiles)...)
	}
	machine, err := examine(ctx, program, config)
	if err != nil {
		machine.Checks = []protocol.Check{checkup.Unexamined(err)}
	}
	all.Checks = append(all.Checks, machine.Checks...)
	if err := a.showCheckup(all); err != nil {
		return err
	}
	if all.Failed() {
		return exit.With(exit.Failure, errors.New("a check failed"))
	}
	return nil
}

// examine runs hostagent doctor. It ends with a failure where a check failed:
// what it printed counts.
func examine(ctx context.Context, program, config string) (protocol.Checkup, error) {
	ctx, cancel := context.WithTimeout(ctx, doctorTime)
	defer cancel()
	args := []string{"doctor", "--json"}
	if config != "" {
		args = append(args, "--config", config)
	}
	var out, complaint bytes.Buffer
	cmd := exec.CommandContext(ctx, program, args...)
	cmd.Stdout, cmd.Stderr = &out, &complaint
	failed := cmd.Run()
	var c protocol.Checkup
	if err := protocol.DecodeStrict(bytes.TrimSpace(out.Bytes()), maxCheckupSize, &c); err != nil {
		if failed != nil {
			return c, fmt.Errorf("%w %s", failed, strings.TrimSpace(complaint.String()))
		}
		return c, fmt.Errorf("its answer is malformed: %w", err)
	}
	return c, nil
}

func (a *app) showCheckup(c protocol.Checkup) error {
	if a.json() {
		return a.printJSON(c)
	}
	t := table.New("CHECK", "STATE", "FOUND")
	for _, check := range c.Checks {
		t.Row(check.Name, string(check.State), check.Found)
	}
	if err := t.Write(a.out); err != nil {
		return err
	}
	first := true
	for _, check := range c.Checks {
		if check.Remedy == "" {
			continue
		}
		if first {
			first = false
			if err := a.print("\n"); err != nil {
				return err
			}
		}
		if err := a.print(fmt.Sprintf("%s: %s\n", table.Clean(check.Name), table.Clean(check.Remedy))); err != nil {
			return err
		}
	}
	return nil
}
