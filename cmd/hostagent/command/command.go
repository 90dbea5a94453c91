// Package command is hostagent's command line: verbs, flags and what is
// printed. It owns no behaviour; every verb is one call into package hostagent.
package command

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"strings"

	"github.com/hashicorp/go-hclog"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/spf13/cobra"
	"golang.org/x/sys/unix"

	"github.com/quittance/quittance/cmd/internal/commandline"
	"github.com/quittance/quittance/cmd/internal/exposition"
	"github.com/quittance/quittance/cmd/internal/notice"
	"github.com/quittance/quittance/hostagent"
)

// Version is the program's version, set by the linker in packages.
var Version = "development"

func version() string { return commandline.Version(Version) }

// Exit codes beside 0 (done) and 1 (failed: trying again may help). The unit
// does not restart the agent after exitUnmending. After exitUsage it does: Go
// itself ends with 2 after a panic and after the watchdog's signal.
const (
	exitUsage     = commandline.ExitUsage
	exitUnmending = 78 // a restart cannot mend it: configuration, ledger, host key (EX_CONFIG)
)

// Main runs the command line and returns the process's exit code.
func Main(args []string) int {
	// The log sink runs before anything else of this program: it must not read,
	// log or open anything that its worker could notice.
	if len(args) == 2 && args[0] == hostagent.LogSinkVerb {
		return hostagent.LogSink(args[1])
	}
	root := New()
	root.SetArgs(args)
	err := root.ExecuteContext(context.Background())
	if err == nil {
		return 0
	}
	if status, ok := errors.AsType[exitStatus](err); ok {
		return int(status) // what it had to say is in its log
	}
	notice.Print("hostagent: " + err.Error())
	if commandline.IsUsage(err) {
		return exitUsage
	}
	if hostagent.IsUnmending(err) {
		return exitUnmending
	}
	return 1
}

// openLog makes the program's log; the caller closes it.
func openLog(c hostagent.Config) *notice.Log {
	return notice.Open(notice.Options{Name: "hostagent", Level: c.LogLevel, Format: notice.Format(c.LogFormat)})
}

// New makes the whole command tree.
func New() *cobra.Command {
	root := commandline.Root("hostagent", "Run inference containers for a controller that never touches the engine",
		"hostagent is the privileged part of Quittance: it creates, limits, watches and removes the\n"+
			"containers that an administrator described in profiles, and publishes what it did as durable,\n"+
			"signed receipts over a private Unix socket.\n\n"+
			"Exit status: 0 done, 1 failed and may succeed later, 2 usage, 78 a restart cannot mend it\n"+
			"(configuration, ledger, host key).", version())
	file := root.PersistentFlags().String("config", hostagent.DefaultConfigFile, "configuration file")
	defaults := hostagent.DefaultConfig()
	for _, k := range hostagent.ConfigKeys() {
		root.PersistentFlags().String(flagName(k.Name), defaults.Value(k.Name), k.Doc)
	}
	load := func(cmd *cobra.Command) (hostagent.Config, error) {
		flags := map[string]string{}
		for _, k := range hostagent.ConfigKeys() {
			if value, given := commandline.Given(cmd, []string{flagName(k.Name)})[flagName(k.Name)]; given {
				flags[k.Name] = value
			}
		}
		return hostagent.LoadConfig(hostagent.ConfigSources{
			File: *file, Required: cmd.Flags().Changed("config"), Environ: os.Environ(), Flags: flags,
		})
	}
	root.AddCommand(runCommand(load), initCommand(load), configCommand(load), imageCommand(load), ledgerCommand(load), leftoversCommand(load), doctorCommand(load),
		containerCommand(), logSinkCommand())
	return root
}

func flagName(key string) string { return strings.ReplaceAll(key, "_", "-") }

type loader func(*cobra.Command) (hostagent.Config, error)

func runCommand(load loader) *cobra.Command {
	return &cobra.Command{
		Use: "run", Short: "Run the agent until SIGTERM; SIGHUP reads the profiles again", Args: commandline.Exactly(0),
		RunE: func(cmd *cobra.Command, _ []string) error {
			c, err := load(cmd)
			if err != nil {
				return err
			}
			ctx, stop := signal.NotifyContext(cmd.Context(), unix.SIGTERM, unix.SIGINT)
			defer stop()
			reload := make(chan struct{})
			hangups := make(chan os.Signal, 1)
			signal.Notify(hangups, unix.SIGHUP)
			defer signal.Stop(hangups)
			go forward(ctx, hangups, reload)
			log := openLog(c)
			defer log.Close()
			figures := exposition.NewRegistry("hostagent", version())
			return serveFigures(c, figures, log, func() error {
				return hostagent.Run(ctx, c, hostagent.Options{Version: version(), Reload: reload, Logger: log, Figures: figures})
			})
		},
	}
}

// serveFigures answers scrapes, where the configuration says so, for as long as
// run runs. A socket that cannot be made is no reason to leave workers without
// their agent.
func serveFigures(c hostagent.Config, figures *prometheus.Registry, log hclog.Logger, run func() error) error {
	if c.MetricsSocket == "" {
		return run()
	}
	log = log.Named("metrics")
	gid, err := c.MetricsGroupID()
	if err != nil {
		return fmt.Errorf("metrics_group: %w", err)
	}
	server, err := exposition.Open(exposition.Config{
		Address: "unix:" + c.MetricsSocket, GID: gid, Registry: figures,
		ErrorLog: log.StandardLogger(&hclog.StandardLoggerOptions{ForceLevel: hclog.Debug}),
	})
	if err != nil {
		log.Error("figures_not_served", "socket", c.MetricsSocket, "error", err)
		return run()
	}
	err = run()
	if closing := server.Close(); closing != nil {
		log.Warn("figures_close_failed", "error", closing)
	}
	return err
}

// forward turns hang-ups into reloads until ctx ends.
func forward(ctx context.Context, hangups <-chan os.Signal, reload chan<- struct{}) {
	for {
		select {
		case <-ctx.Done():
			return
		case <-hangups:
		}
		select {
		case <-ctx.Done():
			return
		case reload <- struct{}{}:
		}
	}
}

func initCommand(load loader) *cobra.Command {
	return &cobra.Command{
		Use: "init", Short: "Make a new generation: ledger, host key and genesis receipt", Args: commandline.Exactly(0),
		RunE: func(cmd *cobra.Command, _ []string) error {
			c, err := load(cmd)
			if err != nil {
				return err
			}
			made, err := hostagent.Init(c, version())
			if err != nil {
				return err
			}
			fmt.Fprintf(cmd.OutOrStdout(), "generation %s\nhost key   %s\n", made.Generation, made.HostKey)
			return nil
		},
	}
}

func configCommand(load loader) *cobra.Command {
	config := &cobra.Command{Use: "config", Short: "Look at the configuration"}
	config.AddCommand(&cobra.Command{
		Use: "check", Short: "Print the effective configuration, and every problem at once", Args: commandline.Exactly(0),
		RunE: func(cmd *cobra.Command, _ []string) error {
			c, err := load(cmd)
			fmt.Fprint(cmd.OutOrStdout(), c.String())
			if err != nil {
				return err
			}
			usages, err := hostagent.WorstCase(c)
			for _, u := range usages {
				fmt.Fprintf(cmd.OutOrStdout(), "# %s: at most %d MiB in %s, on %s (%d MiB free)\n", u.What, u.Bytes>>20, u.Path, u.FileSystem, u.Free>>20)
			}
			return err
		},
	}, &cobra.Command{
		Use: "example", Short: "Print the documented example file", Args: commandline.Exactly(0),
		RunE: func(cmd *cobra.Command, _ []string) error {
			fmt.Fprint(cmd.OutOrStdout(), hostagent.ExampleConfig())
			return nil
		},
	})
	return config
}

func imageCommand(load loader) *cobra.Command {
	image := &cobra.Command{Use: "image", Short: "Bring images into the engine"}
	image.AddCommand(&cobra.Command{
		Use: "import FILE", Short: "Load an OCI archive and print what a profile pins", Args: commandline.Exactly(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			c, err := load(cmd)
			if err != nil {
				return err
			}
			log := openLog(c)
			defer log.Close()
			images, err := hostagent.ImportImage(cmd.Context(), c, log, args[0])
			for _, i := range images {
				fmt.Fprintln(cmd.OutOrStdout(), i.Pinned)
			}
			return err
		},
	}, &cobra.Command{
		Use: "pull REF", Short: "Fetch an image from a registry and print what a profile pins", Args: commandline.Exactly(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			c, err := load(cmd)
			if err != nil {
				return err
			}
			log := openLog(c)
			defer log.Close()
			i, err := hostagent.PullImage(cmd.Context(), c, log, args[0])
			if err != nil {
				return err
			}
			fmt.Fprintln(cmd.OutOrStdout(), i.Pinned)
			return nil
		},
	})
	return image
}

func leftoversCommand(load loader) *cobra.Command {
	return &cobra.Command{
		Use: "leftovers", Short: "List everything of the agent's on this machine, what lives included", Args: commandline.Exactly(0),
		RunE: func(cmd *cobra.Command, _ []string) error {
			c, err := load(cmd)
			if err != nil {
				return err
			}
			log := openLog(c)
			defer log.Close()
			found, err := hostagent.Leftovers(cmd.Context(), c, log)
			for _, line := range found {
				fmt.Fprintln(cmd.OutOrStdout(), line)
			}
			return err
		},
	}
}

func logSinkCommand() *cobra.Command {
	return &cobra.Command{
		Use: hostagent.LogSinkVerb + " ARGUMENT", Short: "Keep a container's output; started by the engine's shim", Hidden: true, Args: commandline.Exactly(1),
		RunE: func(*cobra.Command, []string) error {
			return errors.New("log-sink is started by the engine's shim, with its argument alone") // Main runs it
		},
	}
}
