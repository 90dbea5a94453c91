// Package command is agentctl's commands: it parses, asks through the clients,
// and shows.
//
// It owns the command line, the output's form and the exit status. It must not
// decide what is true: facts come from typed answers, verdicts from package
// audit, wording from package words.
package command

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"strings"
	"syscall"
	"time"

	"github.com/spf13/cobra"

	"github.com/quittance/quittance/cmd/agentctl/internal/exit"
	"github.com/quittance/quittance/cmd/internal/commandline"
	"github.com/quittance/quittance/controller/api"
	"github.com/quittance/quittance/protocol"
	"github.com/quittance/quittance/protocol/hostclient"
)

// DefaultSocket is where hostagent listens unless its configuration says
// otherwise.
const DefaultSocket = "/run/quittance/agent.sock"

// Version is set when the program is built for a package.
var Version = "development"

// app is what all commands share.
type app struct {
	in       io.Reader
	out, err io.Writer
	env      func(string) string
	terminal bool // out is a terminal

	socket  string
	output  string
	noColor bool

	api       string
	tokenFile string

	// parsed is set once a command's own code runs: an error before it is one
	// of usage.
	parsed bool
}

// Main runs agentctl with the given arguments and returns its exit status.
func Main(args []string) int {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	return run(ctx, &app{in: os.Stdin, out: os.Stdout, err: os.Stderr, env: os.Getenv, terminal: isTerminal(os.Stdout)}, args)
}

// New is the root command, for man pages and completions.
func New() *cobra.Command {
	return newRoot(&app{in: strings.NewReader(""), out: io.Discard, err: io.Discard, env: func(string) string { return "" }})
}

func isTerminal(f *os.File) bool {
	info, err := f.Stat()
	return err == nil && info.Mode()&os.ModeCharDevice != 0 && os.Getenv("TERM") != "dumb"
}

func run(ctx context.Context, a *app, args []string) int {
	root := newRoot(a)
	root.SetArgs(args)
	root.SetIn(a.in)
	root.SetOut(a.out)
	root.SetErr(a.err)
	err := root.ExecuteContext(ctx)
	if err == nil {
		return int(exit.Done)
	}
	code := exit.Of(err)
	if !a.parsed {
		code = exit.Usage
	}
	a.complain(err, code)
	return int(code)
}

// complain writes an error for people, with what to do next where the other
// side said so.
func (a *app) complain(err error, code exit.Code) {
	text := "agentctl: " + err.Error() + "\n"
	if p, ok := errors.AsType[*protocol.Problem](err); ok && p.Next != "" {
		text += "next: " + p.Next + "\n"
	}
	if p, ok := errors.AsType[*api.Problem](err); ok && p.Next != "" {
		text += "next: " + p.Next + "\n"
	}
	if code == exit.Unknown {
		text += "The effect is unknown: look at the state before you repeat it.\n"
	}
	if code == exit.Usage && !a.parsed {
		text += "Run agentctl help for the commands, or a command with --help.\n"
	}
	fmt.Fprint(a.err, text)
}

func newRoot(a *app) *cobra.Command {
	root := &cobra.Command{
		Use:   "agentctl",
		Short: "Operate a Quittance host agent, and submit and follow jobs",
		Long: `agentctl shows what the host agent of this node did and does, verifies its
receipts, and submits and follows jobs.

Exit status: 0 done, 1 error, 2 usage, 3 refused, 4 not found, 5 unavailable,
6 unknown effect; of jobs watch and jobs submit --wait also 10 failed, 11 kernel
OOM, 12 cancelled, 13 expired.`,
		SilenceErrors: true,
		SilenceUsage:  true,
		PersistentPreRunE: func(cmd *cobra.Command, _ []string) error {
			if a.output != "table" && a.output != "json" {
				return errors.New("--output must be table or json")
			}
			a.parsed = true
			return nil
		},
	}
	commandline.AddVersion(root, commandline.Version(Version))
	flags := root.PersistentFlags()
	flags.StringVar(&a.socket, "socket", or(a.env("QUITTANCE_SOCKET"), DefaultSocket), "the host agent's socket (QUITTANCE_SOCKET)")
	flags.StringVarP(&a.output, "output", "o", "table", "table for people, json for programs")
	flags.BoolVar(&a.noColor, "no-color", a.env("NO_COLOR") != "", "no colours on a terminal (NO_COLOR)")
	root.AddCommand(
		a.statusCommand(), a.allocationsCommand(), a.inspectCommand(), a.receiptsCommand(), a.historyCommand(),
		a.releaseStatusCommand(), a.verifyCommand(), a.profilesCommand(), a.devicesCommand(), a.logsCommand(), a.retireCommand(),
		a.drainCommand(), a.undrainCommand(), a.ownerCommand(), a.doctorCommand(), a.attemptsCommand(), a.jobsCommand(),
	)
	return root
}

func or(value, fallback string) string {
	if value != "" {
		return value
	}
	return fallback
}

// host opens a client of the agent and reads what it is: every command needs
// the generation.
func (a *app) host(ctx context.Context) (protocol.Host, *hostclient.Generation, error) {
	client := hostclient.New(a.socket, hostclient.Options{})
	host, err := client.Host(ctx)
	if err != nil {
		return protocol.Host{}, nil, exit.Reading(err)
	}
	return host, client.In(host.Generation), nil
}

func (a *app) json() bool { return a.output == "json" }

// printJSON writes one value in its canonical form.
func (a *app) printJSON(v any) error { return a.print(string(protocol.AppendCanonical(nil, v)) + "\n") }

func (a *app) print(text string) error {
	_, err := io.WriteString(a.out, text)
	return err
}

// Colours of states on a terminal.
const (
	red    = "31"
	green  = "32"
	yellow = "33"
)

// paint colours text on a terminal that wants it.
func (a *app) paint(colour, text string) string {
	if !a.terminal || a.noColor || text == "" {
		return text
	}
	return "\x1b[" + colour + "m" + text + "\x1b[0m"
}

// watch shows once, or again and again until the context ends.
func (a *app) watch(ctx context.Context, again bool, show func(context.Context) error) error {
	for {
		if again && a.terminal {
			// Clear the screen and go home.
			if err := a.print("\x1b[2J\x1b[H"); err != nil {
				return err
			}
		}
		if err := show(ctx); err != nil || !again {
			return err
		}
		select {
		case <-ctx.Done():
			return nil
		case <-time.After(2 * time.Second):
		}
	}
}

// patience is how long following bears somebody who does not answer, and pause
// how long it waits before it asks again.
const (
	patience = 2 * time.Minute
	pause    = time.Second
)

// patiently reads again while the other side does not answer: it may be
// starting anew, and what is followed goes on meanwhile. It returns when ctx
// ends, with the last error.
func patiently[T any](ctx context.Context, a *app, who string, read func() (T, error)) (T, error) {
	began := time.Now()
	for silent := false; ; silent = true {
		answer, err := read()
		if exit.Of(exit.Reading(err)) != exit.Unavailable || time.Since(began) > patience || ctx.Err() != nil {
			return answer, err
		}
		if !silent {
			if _, err := fmt.Fprintf(a.err, "agentctl: the %s does not answer; asking again (%v)\n", who, err); err != nil {
				return answer, err
			}
		}
		select {
		case <-ctx.Done():
			return answer, err
		case <-time.After(pause):
		}
	}
}

// number reads an allocation's number from the command line.
func number(text string) (protocol.Number, error) {
	n, err := protocol.ParseNumber(text)
	if err != nil {
		return 0, exit.With(exit.Usage, err)
	}
	return n, nil
}

// oneOf joins words for a message.
func oneOf(words ...string) string { return strings.Join(words, ", ") }
