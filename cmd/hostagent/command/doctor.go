package command

import (
	"errors"
	"fmt"
	"io"
	"strings"

	"github.com/hashicorp/go-hclog"
	"github.com/spf13/cobra"

	"github.com/quittance/quittance/cmd/internal/commandline"
	"github.com/quittance/quittance/hostagent"
	"github.com/quittance/quittance/protocol"
)

// errUnwell ends doctor where a check failed; what failed stands above it.
var errUnwell = errors.New("a check failed")

func doctorCommand(load loader) *cobra.Command {
	var asJSON bool
	cmd := &cobra.Command{
		Use: "doctor", Short: "Check this machine and say what to do; the agent may run or not", Args: commandline.Exactly(0),
		RunE: func(cmd *cobra.Command, _ []string) error {
			c, err := load(cmd)
			var checkup protocol.Checkup
			if err != nil {
				checkup = hostagent.DoctorRefused(err)
			} else {
				// What the parts log is in the checks.
				checkup = hostagent.Doctor(cmd.Context(), c, hclog.NewNullLogger())
			}
			if asJSON {
				fmt.Fprintln(cmd.OutOrStdout(), string(protocol.AppendCanonical(nil, checkup)))
			} else {
				printCheckup(cmd.OutOrStdout(), checkup)
			}
			if checkup.Failed() {
				return errUnwell
			}
			return nil
		},
	}
	cmd.Flags().BoolVar(&asJSON, "json", false, "print the checks for programs")
	return cmd
}

func printCheckup(out io.Writer, checkup protocol.Checkup) {
	for _, c := range checkup.Checks {
		fmt.Fprintf(out, "%-8s %s: %s\n", c.State, c.Name, strings.ReplaceAll(c.Found, "\n", "; "))
		if c.Remedy != "" {
			fmt.Fprintf(out, "         → %s\n", c.Remedy)
		}
	}
}
