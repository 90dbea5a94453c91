package command

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/spf13/cobra"

	"github.com/quittance/quittance/cmd/agentctl/internal/exit"
	"github.com/quittance/quittance/cmd/agentctl/internal/table"
	"github.com/quittance/quittance/cmd/internal/commandline"
	"github.com/quittance/quittance/protocol"
	"github.com/quittance/quittance/protocol/hostclient"
)

func (a *app) drainCommand() *cobra.Command {
	var wait time.Duration
	cmd := &cobra.Command{
		Use:   "drain",
		Short: "Refuse new allocations, and watch the running ones end",
		Long: `Tells the agent to refuse new allocations; those that exist go on and end as
usual. It stays so over restarts until agentctl undrain. With --wait it shows how
many are left until none is; draining a draining agent changes nothing.`,
		Args: commandline.Exactly(0),
		RunE: func(cmd *cobra.Command, _ []string) error {
			if wait < 0 {
				return exit.With(exit.Usage, errors.New("--wait must not be negative"))
			}
			return a.drain(cmd.Context(), wait)
		},
	}
	cmd.Flags().DurationVar(&wait, "wait", 0, "wait at most so long until no allocation is left")
	return cmd
}

func (a *app) drain(ctx context.Context, wait time.Duration) error {
	_, generation, err := a.host(ctx)
	if err != nil {
		return err
	}
	answer, err := generation.Drain(ctx)
	if err != nil {
		return err
	}
	if wait > 0 && answer.Active > 0 {
		if answer, err = a.awaitDrained(ctx, generation, answer, wait); err != nil {
			return err
		}
	}
	if a.json() {
		return a.printJSON(answer)
	}
	return a.print(drainWords(answer) + "\n")
}

func drainWords(answer protocol.DrainAnswer) string {
	switch {
	case !answer.Draining:
		return "not draining: new allocations are accepted"
	case answer.Active == 0:
		return "drained: no allocation is left"
	case answer.Active == 1:
		return "draining: 1 allocation is not retired"
	}
	return fmt.Sprintf("draining: %d allocations are not retired", answer.Active)
}

// errNotDrained: the drain stands, and allocations are left.
var errNotDrained = errors.New("allocations are left; the drain stands: look at agentctl allocations")

// awaitDrained shows what is left whenever that changes. Repeating the drain is
// how it is read: doing so again changes nothing.
func (a *app) awaitDrained(ctx context.Context, generation *hostclient.Generation, answer protocol.DrainAnswer, wait time.Duration) (protocol.DrainAnswer, error) {
	ctx, cancel := context.WithTimeout(ctx, wait)
	defer cancel()
	for {
		if _, err := fmt.Fprintln(a.err, drainWords(answer)); err != nil {
			return answer, err
		}
		for before := answer.Active; answer.Active == before; {
			select {
			case <-ctx.Done():
				return answer, errNotDrained
			case <-time.After(pause):
			}
			now, err := patiently(ctx, a, "agent", func() (protocol.DrainAnswer, error) { return generation.Drain(ctx) })
			if err != nil {
				if ctx.Err() != nil {
					return answer, errNotDrained
				}
				return answer, err
			}
			if answer = now; answer.Active == 0 {
				return answer, nil
			}
		}
	}
}

func (a *app) undrainCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "undrain",
		Short: "Accept new allocations again",
		Args:  commandline.Exactly(0),
		RunE: func(cmd *cobra.Command, _ []string) error {
			_, generation, err := a.host(cmd.Context())
			if err != nil {
				return err
			}
			answer, err := generation.Undrain(cmd.Context())
			if err != nil {
				return err
			}
			if a.json() {
				return a.printJSON(answer)
			}
			return a.print(drainWords(answer) + "\n")
		},
	}
}

// ownership is what owner show prints for programs.
type ownership struct {
	Generation      protocol.ID         `json:"generation"`
	Owner           *protocol.ID        `json:"owner"`
	Heard           *protocol.Timestamp `json:"heard"`
	WitnessRequired bool                `json:"witness_required"`
}

func (a *app) ownerCommand() *cobra.Command {
	owner := &cobra.Command{
		Use:   "owner",
		Short: "Show or change the controller that the host agent obeys",
		Long: `A generation obeys one owner: the controller whose attempt store has this id. The
first accepted allocation binds it; only an operator changes it.`,
		Args: commandline.Exactly(0),
	}
	owner.AddCommand(&cobra.Command{
		Use:   "show",
		Short: "Show the owner and when it was heard",
		Args:  commandline.Exactly(0),
		RunE: func(cmd *cobra.Command, _ []string) error {
			host, _, err := a.host(cmd.Context())
			if err != nil {
				return err
			}
			if a.json() {
				return a.printJSON(ownership{host.Generation, host.Owner, host.OwnerHeard, host.WitnessRequired})
			}
			var f table.Facts
			f.Add("generation", host.Generation)
			f.Add("controller", controllerWords(host))
			return f.Write(a.out)
		},
	}, a.setOwnerCommand())
	return owner
}

func (a *app) setOwnerCommand() *cobra.Command {
	var from string
	cmd := &cobra.Command{
		Use:   "set STORE",
		Short: "Make the host agent obey another controller's attempt store",
		Long: `Gives the generation to the attempt store with this id, as controller store check
prints it on the new controller's machine. The new owner may act on every
allocation of the generation; the old one may act on none any more, so stop it
first. --from names the present owner, or none: the change is refused where another
one is in place.`,
		Args: commandline.Exactly(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			to := protocol.ID(args[0])
			if !to.Valid() {
				return exit.With(exit.Usage, errors.New("STORE must be 32 lower-case hexadecimal digits, as controller store check prints them"))
			}
			if from != "none" && !protocol.ID(from).Valid() {
				return exit.With(exit.Usage, errors.New("--from must name the present owner, or be none: agentctl owner show prints it"))
			}
			return a.setOwner(cmd.Context(), from, to)
		},
	}
	cmd.Flags().StringVar(&from, "from", "", "the owner that loses the generation, or none (required)")
	return cmd
}

func (a *app) setOwner(ctx context.Context, from string, to protocol.ID) error {
	host, generation, err := a.host(ctx)
	if err != nil {
		return err
	}
	present := "none"
	if host.Owner != nil {
		present = string(*host.Owner)
	}
	// The same change again is the same change.
	if present != from && present != string(to) {
		return exit.With(exit.Refused, fmt.Errorf("the present owner is %s, not %s: look again before you take the generation away from it", present, from))
	}
	answer, err := generation.SetOwner(ctx, to)
	if err != nil {
		return err
	}
	if a.json() {
		return a.printJSON(answer)
	}
	if answer.Receipt == nil || string(answer.Receipt) == "null" {
		return a.print(fmt.Sprintf("%s is the owner already\n", to))
	}
	return a.print(fmt.Sprintf("owner changed from %s to %s; it presents its receipts before it allocates\n", present, to))
}
