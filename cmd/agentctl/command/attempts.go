package command

import (
	"context"
	"errors"
	"fmt"

	"github.com/spf13/cobra"

	"github.com/quittance/quittance/cmd/agentctl/internal/exit"
	"github.com/quittance/quittance/cmd/agentctl/internal/table"
	"github.com/quittance/quittance/cmd/agentctl/internal/words"
	"github.com/quittance/quittance/cmd/internal/commandline"
	"github.com/quittance/quittance/controller/api/operator"
	"github.com/quittance/quittance/protocol"
)

func (a *app) attemptsCommand() *cobra.Command {
	var socket string
	attempts := &cobra.Command{
		Use:   "attempts",
		Short: "What the running controller's attempts wait for, and decisions about them",
		Long: `Attempts of the controller of this node, over its operators' socket: root and the
controller's own user may ask. An outage, a cancel or a restart never needs a
person; what does says so here, with what is lost by each decision. list also says
why no job is taken, while none is.`,
	}
	attempts.PersistentFlags().StringVar(&socket, "admin-socket", or(a.env("QUITTANCE_ADMIN_SOCKET"), operator.DefaultSocket), "the controller's operators' socket (QUITTANCE_ADMIN_SOCKET)")
	client := func() *operator.Client { return operator.New(socket) }
	attempts.AddCommand(&cobra.Command{
		Use: "list", Short: "List the attempts that are not archived", Args: commandline.Exactly(0),
		RunE: func(cmd *cobra.Command, _ []string) error { return a.listAttempts(cmd.Context(), client()) },
	}, &cobra.Command{
		Use: "show KEY", Short: "Show one attempt, what it waits for and what may be decided", Args: commandline.Exactly(1),
		RunE: func(cmd *cobra.Command, args []string) error { return a.showAttempt(cmd.Context(), client(), args[0]) },
	}, &cobra.Command{
		Use: "export KEY", Short: "Print the whole record in its canonical form; it holds job input and result", Args: commandline.Exactly(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			record, err := client().Record(cmd.Context(), args[0])
			if err != nil {
				return exit.Reading(err)
			}
			return a.print(string(record) + "\n")
		},
	}, a.resumeCommand(client), a.resolveCommand(client))
	return attempts
}

func (a *app) listAttempts(ctx context.Context, c *operator.Client) error {
	list, err := c.List(ctx)
	if err != nil {
		return exit.Reading(err)
	}
	if a.json() {
		return a.printJSON(list)
	}
	t := table.New("KEY", "LANE", "STATE", "JOB", "KIND", "WAITS FOR", "DECISION")
	for _, x := range list.Attempts {
		step, decision := "", ""
		if w := x.Waiting; w != nil {
			step = w.Step
			decision = offerWords(w.Offers)
		}
		t.Row(x.Key, x.Lane, x.State, x.Job, x.Kind, step, decision)
	}
	if err := t.Write(a.out); err != nil || list.Blocked == "" {
		return err
	}
	var f table.Facts
	f.Add("no job is taken", list.Blocked)
	return f.Write(a.out)
}

// offerWords names the decisions that are possible.
func offerWords(offers []operator.Offer) string {
	text := ""
	for _, o := range offers {
		if text != "" {
			text += " or "
		}
		text += o.Action
	}
	return text
}

func (a *app) showAttempt(ctx context.Context, c *operator.Client, key string) error {
	x, err := c.Show(ctx, key)
	if err != nil {
		return exit.Reading(err)
	}
	if a.json() {
		return a.printJSON(x)
	}
	var f table.Facts
	f.Add("key", x.Key)
	f.Add("reference", x.Reference)
	f.Add("state", x.State)
	f.Add("job", x.Job)
	f.Add("kind", x.Kind)
	f.Add("created", words.Time(x.Created))
	switch {
	case x.Archived:
		f.Add("lane", "none: it is archived")
	case x.HoldsLane:
		f.Add("lane", fmt.Sprintf("%d, held", x.Lane))
	default:
		f.Add("lane", x.Lane)
	}
	for _, e := range x.Executions {
		text := e.Settlement
		if e.Entered != nil {
			text += ", entered " + words.Time(*e.Entered)
		}
		if e.Failure != "" {
			text += ", " + e.Failure
		}
		f.Add(fmt.Sprintf("allocation %d", e.Number), text)
	}
	if w := x.Waiting; w != nil {
		f.Add("waits for", w.Step)
		f.Add("because", w.Reason)
		f.Add("since", words.Time(w.Since))
		again := "when told to, not by itself"
		if w.Until != 0 {
			again = words.Time(w.Until)
		}
		f.Add("tries again", again)
		for _, o := range w.Offers {
			f.Add(o.Action+" loses", o.Lost)
		}
	}
	return f.Write(a.out)
}

// errNotConfirmed: what is lost was said, and nothing was done.
var errNotConfirmed = errors.New("nothing was done: repeat it with --yes")

// announce says what is lost by a decision before it is taken.
func (a *app) announce(ctx context.Context, c *operator.Client, key, action string, yes bool) error {
	x, err := c.Show(ctx, key)
	if err != nil {
		return exit.Reading(err)
	}
	if x.Waiting != nil {
		for _, o := range x.Waiting.Offers {
			if o.Action != action {
				continue
			}
			if _, err := fmt.Fprintf(a.err, "%s of %s (%s, job %s) loses: %s\n", action, key, x.State, x.Job, o.Lost); err != nil {
				return err
			}
			if !yes {
				return exit.With(exit.Usage, errNotConfirmed)
			}
			return nil
		}
	}
	return nil // the controller refuses it and says why
}

func (a *app) resumeCommand(client func() *operator.Client) *cobra.Command {
	var yes bool
	cmd := &cobra.Command{
		Use:   "resume KEY",
		Short: "Make an attempt that waits go on now",
		Long: `Takes the step that an attempt waits to repeat up at once. An attempt that was
entered before a restart and whose offering says hold ends as interrupted; nothing
runs again. What is lost is said first; --yes does it.`,
		Args: commandline.Exactly(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			c := client()
			if err := a.announce(cmd.Context(), c, args[0], "resume", yes); err != nil {
				return err
			}
			answer, err := c.Resume(cmd.Context(), args[0])
			return a.decided(answer, err)
		},
	}
	cmd.Flags().BoolVar(&yes, "yes", false, "do it; without this only what is lost is said")
	return cmd
}

func (a *app) resolveCommand(client func() *operator.Client) *cobra.Command {
	var yes bool
	var r operator.Resolve
	cmd := &cobra.Command{
		Use:   "resolve KEY",
		Short: "Free the lane that an attempt holds, once somebody looked at it",
		Long: `Writes into the attempt's record that it was looked at, by whom and why, and frees
its lane. Nothing is sent and nothing runs. --reference is the service's identity
of the attempt as show prints it, typed again so that it is the right one. What
is lost is said first; --yes does it.`,
		Args: commandline.Exactly(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			if err := r.Validate(); err != nil {
				return exit.With(exit.Usage, err)
			}
			c := client()
			if err := a.announce(cmd.Context(), c, args[0], "resolve", yes); err != nil {
				return err
			}
			answer, err := c.Resolve(cmd.Context(), args[0], r)
			return a.decided(answer, err)
		},
	}
	cmd.Flags().StringVar(&r.Reference, "reference", "", "the service's identity of the attempt (required)")
	cmd.Flags().StringVar(&r.Note, "note", "", "why, for the record (required)")
	cmd.Flags().BoolVar(&yes, "yes", false, "do it; without this only what is lost is said")
	return cmd
}

func (a *app) decided(answer operator.Decided, err error) error {
	if err != nil {
		return err
	}
	if a.json() {
		return a.print(string(protocol.AppendCanonical(nil, answer)) + "\n")
	}
	return a.print(fmt.Sprintf("%s: %s taken\n", answer.Key, answer.Action))
}
