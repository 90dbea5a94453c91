// Package command is the controller's command line: verbs, flags and what is
// printed. It owns no behaviour; every verb is one call into package controller.
package command

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"

	"github.com/hashicorp/go-hclog"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/spf13/cobra"
	"golang.org/x/sys/unix"

	"github.com/quittance/quittance/cmd/internal/commandline"
	"github.com/quittance/quittance/cmd/internal/exposition"
	"github.com/quittance/quittance/cmd/internal/notice"
	"github.com/quittance/quittance/controller"
)

// Version is the program's version, set by the linker in packages.
var Version = "development"

func version() string { return commandline.Version(Version) }

// Main runs the command line and returns the process's exit code: 0 done, 1
// failed, 2 usage, which the wrong user is too.
func Main(args []string) int {
	root := New()
	root.SetArgs(args)
	err := root.Execute()
	if err == nil {
		return 0
	}
	notice.Print("controller: " + err.Error())
	if commandline.IsUsage(err) {
		return commandline.ExitUsage
	}
	return 1
}

// loader puts the configuration together.
type loader func(*cobra.Command) (controller.Config, error)

// New makes the whole command tree.
func New() *cobra.Command {
	root := commandline.Root("controller", "Run inference jobs through a host agent, exactly once each",
		"controller is the unprivileged half of Quittance: it serves the job API, runs attempts in\n"+
			"lanes, and sees containers only through the host agent's signed receipts.\n\n"+
			"What opens the state directory is run as its owner, and refused to root:\n"+
			"runuser -u quittance-controller -- controller COMMAND\n\n"+
			"Exit status: 0 done, 1 failed, 2 usage, which the wrong user is too.", version())
	file := root.PersistentFlags().String("config", controller.DefaultConfigFile, "configuration file")
	for _, k := range controller.ConfigKeys() {
		root.PersistentFlags().String(k.Flag(), "", k.Doc+" (default "+k.Default()+")")
	}
	load := func(cmd *cobra.Command) (controller.Config, error) {
		var names []string
		for _, k := range controller.ConfigKeys() {
			names = append(names, k.Flag())
		}
		return controller.LoadConfig(*file, cmd.Flags().Changed("config"), commandline.Given(cmd, names))
	}
	// What opens the state directory or the database, to read it too, makes files
	// there and goes through open; the others open nothing of the kind.
	open := func(cmd *cobra.Command) (controller.Config, error) {
		c, err := load(cmd)
		if err != nil {
			return c, err
		}
		if err := controller.CheckCaller(c); err != nil {
			return c, commandline.Usage(err)
		}
		return c, nil
	}
	root.AddCommand(
		run(open, "serve", "Run the job service and the lanes until SIGTERM", controller.Serve),
		run(open, "api", "Run the job service alone until SIGTERM", controller.API),
		work(open),
		tokenCommand(open), providerCommand(open), hostkeyCommand(open), storeCommand(open),
		configCommand(load), drainCommand(load),
	)
	return root
}

func run(load loader, use, short string, mode controller.Mode) *cobra.Command {
	return &cobra.Command{
		Use: use, Short: short, Args: commandline.Exactly(0),
		Long: short + ".\n\nThe first SIGTERM takes nothing new and lets running attempts finish within\nlanes.stop_timeout; a second one stops them at once.",
		RunE: func(cmd *cobra.Command, _ []string) error {
			c, err := load(cmd)
			if err != nil {
				return err
			}
			first, second, end := signals(cmd.Context())
			defer end()
			log := notice.Open(notice.Options{Name: "controller", Level: c.Log.Level, Format: notice.Format(c.Log.Format)})
			defer log.Close()
			figures := exposition.NewRegistry("controller", version())
			server, err := serveFigures(c, figures, log.Named("metrics"))
			if err != nil {
				return err
			}
			err = controller.Run(first, c, mode, controller.Options{Version: version(), Logger: log, Figures: figures, Stop: second})
			if server != nil {
				err = errors.Join(err, server.Close())
			}
			return err
		},
	}
}

// serveFigures answers scrapes, where the configuration says so; nil where not.
func serveFigures(c controller.Config, figures *prometheus.Registry, log hclog.Logger) (*exposition.Server, error) {
	if c.Metrics.Listen == "" {
		return nil, nil
	}
	server, err := exposition.Open(exposition.Config{
		Address: c.Metrics.Listen, Registry: figures, ErrorLog: log.StandardLogger(&hclog.StandardLoggerOptions{ForceLevel: hclog.Debug}),
	})
	if err != nil {
		return nil, fmt.Errorf("metrics.listen: %w", err)
	}
	log.Info("figures_served", "address", server.Addr())
	return server, nil
}

func work(load loader) *cobra.Command {
	cmd := run(load, "work", "Run the lanes alone, against the job service at --api", controller.Work)
	api := cmd.Flags().String("api", "", "the same as --provider-api")
	inner := cmd.RunE
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		if *api != "" {
			if err := cmd.Flags().Set("provider-api", *api); err != nil {
				return err
			}
		}
		return inner(cmd, args)
	}
	return cmd
}

// signals ends first at the first SIGTERM or SIGINT and second at the next.
func signals(parent context.Context) (first, second context.Context, end func()) {
	first, endFirst := context.WithCancel(parent)
	second, endSecond := context.WithCancel(context.WithoutCancel(parent))
	got := make(chan os.Signal, 2)
	signal.Notify(got, unix.SIGTERM, unix.SIGINT)
	done := make(chan struct{})
	go func() {
		for _, cancel := range []context.CancelFunc{endFirst, endSecond} {
			select {
			case <-got:
				cancel()
			case <-done:
				return
			}
		}
	}()
	return first, second, func() {
		signal.Stop(got)
		close(done)
		endFirst()
		endSecond()
	}
}

func configCommand(load loader) *cobra.Command {
	config := &cobra.Command{Use: "config", Short: "Look at the configuration"}
	mode := string(controller.Serve)
	check := &cobra.Command{
		Use: "check", Short: "Print the effective configuration, and every problem at once", Args: commandline.Exactly(0),
		RunE: func(cmd *cobra.Command, _ []string) error {
			switch controller.Mode(mode) {
			case controller.Serve, controller.API, controller.Work:
			default:
				return commandline.Usage(errors.New("--mode must be serve, api or work"))
			}
			c, unread := load(cmd)
			text, wrong := controller.CheckConfig(c, controller.Mode(mode))
			fmt.Fprint(cmd.OutOrStdout(), text)
			return errors.Join(unread, wrong)
		},
	}
	check.Flags().StringVar(&mode, "mode", mode, "serve, api or work")
	config.AddCommand(check, &cobra.Command{
		Use: "example", Short: "Print the documented example file", Args: commandline.Exactly(0),
		RunE: func(cmd *cobra.Command, _ []string) error {
			fmt.Fprint(cmd.OutOrStdout(), controller.ExampleConfig())
			return nil
		},
	})
	return config
}

func tokenCommand(load loader) *cobra.Command {
	token := &cobra.Command{Use: "token", Short: "Bearer tokens of the job service's users"}
	spec := controller.TokenSpec{}
	create := &cobra.Command{
		Use: "create", Short: "Make a token and print it once; only its hash is stored", Args: commandline.Exactly(0),
		RunE: func(cmd *cobra.Command, _ []string) error {
			if spec.Principal == "" {
				return commandline.Usage(errors.New("--principal must say who uses the token"))
			}
			c, err := load(cmd)
			if err != nil {
				return err
			}
			text, err := controller.CreateToken(cmd.Context(), c, spec)
			if err != nil {
				return err
			}
			fmt.Fprintln(cmd.OutOrStdout(), text)
			return nil
		},
	}
	create.Flags().StringVar(&spec.Workspace, "workspace", "default", "workspace that the token belongs to")
	create.Flags().StringVar(&spec.Principal, "principal", "", "who uses it; shown as created_by (required)")
	create.Flags().StringVar(&spec.Role, "role", "submitter", "reader, submitter or admin")
	create.Flags().DurationVar(&spec.RetryWindow, "retry-window", 0, "for clients that cannot keep an operation id; 0: off")
	token.AddCommand(create)
	return token
}

func providerCommand(load loader) *cobra.Command {
	provider := &cobra.Command{Use: "provider", Short: "Nodes that may take jobs"}
	provider.AddCommand(&cobra.Command{
		Use: "add LINE", Short: "Register a node's public key: \"ssh-ed25519 KEY NAME\", or - for standard input", Args: commandline.Exactly(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			c, err := load(cmd)
			if err != nil {
				return err
			}
			line, err := argument(cmd, args[0])
			if err != nil {
				return err
			}
			return controller.AddProvider(cmd.Context(), c, line)
		},
	}, &cobra.Command{
		Use: "key", Short: "Print this node's own line for provider add; the key is made where there is none", Args: commandline.Exactly(0),
		RunE: func(cmd *cobra.Command, _ []string) error {
			c, err := load(cmd)
			if err != nil {
				return err
			}
			line, err := controller.ProviderLine(c)
			if err != nil {
				return err
			}
			fmt.Fprintln(cmd.OutOrStdout(), line)
			return nil
		},
	}, &cobra.Command{
		Use: "handover PROVIDER STORE", Short: "Give a node's identity to another attempt store and fail what the old one runs", Args: commandline.Exactly(2),
		Long: "Give a node's identity to another attempt store and fail what the old one runs.\n\n" +
			"PROVIDER is the node's provider.id, STORE the id that controller store check prints at the node.\n" +
			"Attempts in progress under the old store end as interrupted; their jobs can be retried.",
		RunE: func(cmd *cobra.Command, args []string) error {
			c, err := load(cmd)
			if err != nil {
				return err
			}
			failed, err := controller.HandOver(cmd.Context(), c, args[0], args[1])
			if err != nil {
				return err
			}
			fmt.Fprintf(cmd.OutOrStdout(), "handed over; %d attempts failed as interrupted\n", failed)
			return nil
		},
	})
	return provider
}

func hostkeyCommand(load loader) *cobra.Command {
	hostkey := &cobra.Command{Use: "hostkey", Short: "Host keys under which receipts count as verified"}
	hostkey.AddCommand(&cobra.Command{
		Use: "add KEY", Short: "Register a host's verifier key as `hostagent init` printed it, or - for standard input", Args: commandline.Exactly(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			c, err := load(cmd)
			if err != nil {
				return err
			}
			key, err := argument(cmd, args[0])
			if err != nil {
				return err
			}
			verified, err := controller.AddHostKey(cmd.Context(), c, key)
			if err != nil {
				return err
			}
			fmt.Fprintf(cmd.OutOrStdout(), "registered; %d receipts verified\n", verified)
			return nil
		},
	})
	return hostkey
}

func storeCommand(load loader) *cobra.Command {
	attempts := &cobra.Command{Use: "store", Short: "The attempt store of a controller that is stopped"}
	attempts.AddCommand(&cobra.Command{
		Use: "check", Short: "Read every record and report damage; nothing is changed", Args: commandline.Exactly(0),
		RunE: func(cmd *cobra.Command, _ []string) error {
			c, err := load(cmd)
			if err != nil {
				return err
			}
			report, err := controller.InspectStore(c)
			if err != nil {
				return err
			}
			fmt.Fprint(cmd.OutOrStdout(), report.Text)
			if report.Damage > 0 {
				return fmt.Errorf("%d files are damaged", report.Damage)
			}
			return nil
		},
	}, &cobra.Command{
		Use: "show KEY", Short: "Print one record in its canonical form; it holds job input and results", Args: commandline.Exactly(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			c, err := load(cmd)
			if err != nil {
				return err
			}
			text, err := controller.ShowAttempt(c, args[0])
			if err != nil {
				return err
			}
			fmt.Fprintf(cmd.OutOrStdout(), "%s\n", text)
			return nil
		},
	})
	attempts.AddCommand(&cobra.Command{
		Use: "export", Short: "Print every record in its canonical form, one a line; they hold job input and results", Args: commandline.Exactly(0),
		RunE: func(cmd *cobra.Command, _ []string) error {
			c, err := load(cmd)
			if err != nil {
				return err
			}
			out := bufio.NewWriter(cmd.OutOrStdout())
			return errors.Join(controller.ExportStore(c, out), out.Flush())
		},
	})
	var reference, note string
	resolve := &cobra.Command{
		Use: "resolve KEY", Short: "Decide about an attempt that holds its lane; says what is lost by it", Args: commandline.Exactly(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			c, err := load(cmd)
			if err != nil {
				return err
			}
			lost, err := controller.ResolveAttempt(cmd.Context(), c, args[0], reference, note)
			if err != nil {
				return err
			}
			fmt.Fprintln(cmd.OutOrStdout(), lost)
			return nil
		},
	}
	resolve.Flags().StringVar(&reference, "reference", "", "the service's identity of the attempt, as store show prints it (required)")
	resolve.Flags().StringVar(&note, "note", "", "why, for the record (required)")
	var aside, mode string
	rotate := &cobra.Command{
		Use: "rotate", Short: "Put the store aside and begin an empty one for a changed scope", Args: commandline.Exactly(0),
		Long: "Put the store aside and begin an empty one for a changed scope.\n\n" +
			"A store belongs to one job service, node, installation and generation (the keys of [provider]).\n" +
			"Where one of them changed in the configuration, the old store is moved to --aside, whole, and an\n" +
			"empty one with its id, and with what it saw of hosts, takes its place. It is refused while an\n" +
			"attempt is not archived.",
		RunE: func(cmd *cobra.Command, _ []string) error {
			if aside == "" {
				return commandline.Usage(errors.New("--aside is required: where the old store goes"))
			}
			if mode != string(controller.Serve) && mode != string(controller.Work) {
				return commandline.Usage(errors.New("--mode must be serve or work"))
			}
			c, err := load(cmd)
			if err != nil {
				return err
			}
			return controller.RotateStore(c, controller.Mode(mode), aside)
		},
	}
	rotate.Flags().StringVar(&aside, "aside", "", "directory for the old store, which must not exist yet, on the same file system (required)")
	rotate.Flags().StringVar(&mode, "mode", string(controller.Serve), "serve or work: which job service the new store is for")
	attempts.AddCommand(resolve, rotate, forgetCommand(load))
	return attempts
}

// errNotConfirmed: what is lost was said, and nothing was done.
var errNotConfirmed = errors.New("nothing was done: repeat it with --yes")

func forgetCommand(load loader) *cobra.Command {
	var yes bool
	forget := &cobra.Command{
		Use: "forget GENERATION", Short: "Go on with an older copy of the store; says what is lost by it", Args: commandline.Exactly(1),
		Long: "Forget what the store saw of a host generation's receipts.\n\nThe controller refuses to work with an older copy of its store: the agent has since\nreleased history that the copy knows nothing of. Put the newest copy back. Where it is\nlost, this is the way on. What is lost is said first; --yes does it.",
		RunE: func(cmd *cobra.Command, args []string) error {
			c, err := load(cmd)
			if err != nil {
				return err
			}
			lost, err := controller.ForgetHost(cmd.Context(), c, args[0], yes)
			if err != nil {
				return err
			}
			fmt.Fprintln(cmd.OutOrStdout(), lost)
			if !yes {
				return errNotConfirmed
			}
			return nil
		},
	}
	forget.Flags().BoolVar(&yes, "yes", false, "do it; without this only what is lost is said")
	return forget
}

func drainCommand(load loader) *cobra.Command {
	return &cobra.Command{
		Use: "drain", Short: "Make the running controller take nothing new", Args: commandline.Exactly(0),
		Long: "Make the running controller take nothing new.\n\nWhat runs may finish within lanes.stop_timeout. The process stays, and its job\nservice goes on, until it is stopped; a start takes jobs again.",
		RunE: func(cmd *cobra.Command, _ []string) error {
			c, err := load(cmd)
			if err != nil {
				return err
			}
			running, err := controller.Drain(cmd.Context(), c)
			if err != nil {
				return err
			}
			fmt.Fprintf(cmd.OutOrStdout(), "draining; %d attempts are not resolved\n", running)
			return nil
		},
	}
}

// maxArgument bounds what is read from standard input.
const maxArgument = 64 << 10

// argument is the argument itself, or standard input for "-".
func argument(cmd *cobra.Command, arg string) (string, error) {
	if arg != "-" {
		return arg, nil
	}
	data, err := io.ReadAll(io.LimitReader(cmd.InOrStdin(), maxArgument+1))
	if err == nil && len(data) > maxArgument {
		err = fmt.Errorf("standard input is longer than %d bytes", maxArgument)
	}
	return string(data), err
}
