package command

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"os/signal"
	"time"

	"github.com/spf13/cobra"
	"golang.org/x/sys/unix"

	"github.com/quittance/quittance/cmd/internal/commandline"
	"github.com/quittance/quittance/hostagent"
	"github.com/quittance/quittance/protocol"
)

func ledgerCommand(load loader) *cobra.Command {
	ledger := &cobra.Command{Use: "ledger", Short: "Look at the ledger, copy it, or give it up"}
	ledger.AddCommand(&cobra.Command{
		Use: "check", Short: "Verify the ledger without changing anything", Args: commandline.Exactly(0),
		RunE: func(cmd *cobra.Command, _ []string) error {
			c, err := load(cmd)
			if err != nil {
				return err
			}
			r, err := hostagent.CheckLedger(c)
			if err != nil {
				return err
			}
			printReport(cmd, r)
			return nil
		},
	}, &cobra.Command{
		Use: "backup DIR", Short: "Copy the valid part of the ledger into a new directory; the agent may run", Args: commandline.Exactly(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			c, err := load(cmd)
			if err != nil {
				return err
			}
			r, err := hostagent.BackupLedger(c, args[0])
			if err != nil {
				return err
			}
			printReport(cmd, r)
			return nil
		},
	}, exportCommand(load), abandonCommand(load))
	return ledger
}

func exportCommand(load loader) *cobra.Command {
	return &cobra.Command{
		Use: "export", Short: "Write the ledger's receipts since the last release to standard output; the agent may run", Args: commandline.Exactly(0),
		Long: "Verifies the ledger and writes its receipts to standard output, one exact leaf a line, as\n" +
			"agentctl receipts --raw does: for a node whose agent does not start, or for an archive.",
		RunE: func(cmd *cobra.Command, _ []string) (err error) {
			c, err := load(cmd)
			if err != nil {
				return err
			}
			out := bufio.NewWriter(cmd.OutOrStdout())
			defer func() { err = errors.Join(err, out.Flush()) }()
			_, err = hostagent.ExportReceipts(c, out)
			return err
		},
	}
}

func abandonCommand(load loader) *cobra.Command {
	var wait time.Duration
	cmd := &cobra.Command{
		Use: "abandon [GENERATION]…", Short: "Give up a lost, damaged or restored ledger and begin a new generation",
		Long: "Stops and removes every container of the generation, verifies that nothing of them is left,\n" +
			"puts its ledger and host key aside and makes a new generation, whose genesis receipt says so:\n" +
			"controllers end what they had on the old one, with unknown facts, and go on. Work that runs is\n" +
			"lost. The agent must be stopped. Without a name it only says of which generations this node\n" +
			"holds something; name each whose containers are to go. Run again, it completes what was cut\n" +
			"short. Whoever verifies receipts registers the new host key.",
		Args: cobra.ArbitraryArgs,
		RunE: func(cmd *cobra.Command, args []string) error {
			if wait <= 0 {
				return commandline.Usage(errors.New("--wait must be above 0"))
			}
			var old []protocol.ID
			for _, arg := range args {
				if !protocol.ID(arg).Valid() {
					return commandline.Usage(errors.New("GENERATION must be 32 lower-case hexadecimal digits"))
				}
				old = append(old, protocol.ID(arg))
			}
			c, err := load(cmd)
			if err != nil {
				return err
			}
			ctx, stop := signal.NotifyContext(cmd.Context(), unix.SIGTERM, unix.SIGINT)
			defer stop()
			ctx, cancel := context.WithTimeout(ctx, wait)
			defer cancel()
			log := openLog(c)
			defer log.Close()
			done, err := hostagent.Abandon(ctx, c, old, version(), log)
			if err != nil {
				if _, unknown := errors.AsType[*hostagent.UnknownGenerationError](err); unknown {
					return commandline.Usage(err)
				}
				return err
			}
			printAbandoned(cmd.OutOrStdout(), done)
			return nil
		},
	}
	cmd.Flags().DurationVar(&wait, "wait", 2*time.Minute, "how long containers may take to end; past it the old generation stands")
	return cmd
}

func printAbandoned(w io.Writer, done hostagent.Abandoned) {
	head := "not readable"
	if done.Previous.Index != nil {
		head = fmt.Sprint(*done.Previous.Index)
	}
	fmt.Fprintf(w, "abandoned     %s\nlast receipt  %s\ncontainers    %d stopped and removed\n", done.Previous.Generation, head, done.Containers)
	for _, also := range done.Previous.Also {
		fmt.Fprintf(w, "and also      %s\n", also)
	}
	for _, path := range done.Aside {
		fmt.Fprintf(w, "kept          %s\n", path)
	}
	fmt.Fprintf(w, "generation    %s\nhost key      %s\n", done.Generation, done.HostKey)
}

func printReport(cmd *cobra.Command, r hostagent.LedgerReport) {
	fmt.Fprintf(cmd.OutOrStdout(), "generation  %s\nsegments    %d and %d prepared\nsequences   %d to %d, attested to %d\nbase        %d\nreceipts    %d since the base\nbad tail    %d bytes\n",
		r.Generation, r.Segments, r.Spares, r.First, r.Last, r.Attested, r.Base, r.Receipts, r.TailBytes)
}
