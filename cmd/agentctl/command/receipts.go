package command

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/spf13/cobra"

	"github.com/quittance/quittance/cmd/agentctl/internal/exit"
	"github.com/quittance/quittance/cmd/agentctl/internal/table"
	"github.com/quittance/quittance/cmd/agentctl/internal/words"
	"github.com/quittance/quittance/cmd/internal/commandline"
	"github.com/quittance/quittance/protocol"
	"github.com/quittance/quittance/protocol/hostclient"
)

// followWait is how long one request for new receipts waits at the agent.
const followWait = 30 * time.Second

func (a *app) receiptsCommand() *cobra.Command {
	var after int64
	var follow, raw bool
	cmd := &cobra.Command{
		Use:   "receipts [FILE]",
		Short: "List the receipts in their order",
		Long: `Lists receipts from the first one that the agent still serves, or from after
the given index. With --raw (or -o json) each line is exactly the signed bytes of
one receipt. With FILE (- reads standard input), lists receipts that --raw saved,
without asking the agent and without verifying them: see verify.`,
		Args: commandline.AtMost(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			if len(args) == 1 {
				if follow || cmd.Flags().Changed("after") {
					return exit.With(exit.Usage, errors.New("--follow and --after ask the agent; they do not go with FILE"))
				}
				return a.savedReceipts(args[0], raw || a.json())
			}
			var from *protocol.Index
			if cmd.Flags().Changed("after") {
				if after < 0 {
					return exit.With(exit.Usage, errors.New("--after must be an index from 0"))
				}
				index := protocol.Index(after)
				from = &index
			}
			return a.receipts(cmd.Context(), from, follow, raw || a.json())
		},
	}
	cmd.Flags().Int64Var(&after, "after", 0, "begin after this index")
	cmd.Flags().BoolVar(&follow, "follow", false, "go on with new receipts as they are written")
	cmd.Flags().BoolVar(&raw, "raw", false, "the exact bytes, one receipt a line")
	return cmd
}

func (a *app) receipts(ctx context.Context, after *protocol.Index, follow, raw bool) error {
	_, generation, err := a.host(ctx)
	if err != nil {
		return err
	}
	header := !raw
	for {
		query := hostclient.ReceiptsQuery{After: after}
		if follow && after != nil {
			query.Wait = followWait
		}
		read := func() ([]hostclient.Leaf, error) { return generation.Receipts(ctx, query) }
		var leaves []hostclient.Leaf
		if follow && after != nil {
			leaves, err = patiently(ctx, a, "host agent", read)
		} else {
			leaves, err = read()
		}
		if first, pruned := prunedBelow(err); pruned && follow && after != nil {
			// The controller released history faster than it was read here: say
			// what is missing and go on (I8).
			if _, err := fmt.Fprintf(a.err, "agentctl: receipts %d to %d were released before they could be read here\n", *after+1, first-1); err != nil {
				return err
			}
			before := first - 1
			after = &before
			continue
		}
		if err != nil {
			if follow && ctx.Err() != nil {
				return nil // the person ended it
			}
			return exit.Reading(err)
		}
		if err := a.showReceipts(leaves, header, raw); err != nil {
			return err
		}
		if len(leaves) > 0 {
			header = false
			last := leaves[len(leaves)-1].Receipt.Index
			after = &last
		}
		if len(leaves) < protocol.MaxReceiptsPage && !follow {
			return nil
		}
		if after == nil {
			return errors.New("the agent serves no receipt at all; even genesis is missing")
		}
	}
}

// savedReceipts lists what receipts --raw saved.
func (a *app) savedReceipts(file string, raw bool) error {
	data, err := readBounded(file, maxFile, a.in)
	if err != nil {
		return fmt.Errorf("receipts: %w", err)
	}
	var leaves []hostclient.Leaf
	for line := range bytes.Lines(data) {
		line = bytes.TrimSuffix(line, []byte("\n"))
		r, err := protocol.DecodeReceipt(line)
		if err != nil {
			return fmt.Errorf("%s, line %d: %w", file, len(leaves)+1, err)
		}
		leaves = append(leaves, hostclient.Leaf{Bytes: line, Receipt: r})
	}
	return a.showReceipts(leaves, !raw, raw)
}

// prunedBelow reports the first index that the agent still serves, where it
// refused because earlier ones are gone.
func prunedBelow(err error) (first protocol.Index, pruned bool) {
	p, ok := errors.AsType[*protocol.Problem](err)
	if !ok || p.Code != protocol.CodePruned || p.FirstIndex == nil {
		return 0, false
	}
	return *p.FirstIndex, true
}

// Widths of the columns of receipts: fixed, because they are written as they
// come.
const receiptLine = "%-8v  %-20v  %-7v  %-13v  %v\n"

func (a *app) showReceipts(leaves []hostclient.Leaf, header, raw bool) error {
	if header {
		if err := a.print(fmt.Sprintf(receiptLine, "INDEX", "TIME", "NUMBER", "KIND", "WHAT")); err != nil {
			return err
		}
	}
	for _, leaf := range leaves {
		if raw {
			if err := a.print(string(leaf.Bytes) + "\n"); err != nil {
				return err
			}
			continue
		}
		r := leaf.Receipt
		n := ""
		if r.Number != nil {
			n = r.Number.String()
		}
		line := fmt.Sprintf(receiptLine, r.Index, words.Time(r.At), n, table.Clean(string(r.Kind)), table.Clean(words.Receipt(r)))
		if err := a.print(line); err != nil {
			return err
		}
	}
	return nil
}

// history is what is consumed and still kept, and what stops its release.
type history struct {
	Frontiers  protocol.Frontiers  `json:"frontiers"`
	Index      protocol.IndexRange `json:"index"`
	Unreleased []protocol.Number   `json:"unreleased"` // consumed, above the released frontier
	Carried    []protocol.Number   `json:"carried"`    // at or below it, kept because they are stuck or not consumed
	Releasable protocol.Number     `json:"releasable"` // highest frontier that could be released now
	Blocker    protocol.Number     `json:"blocker"`    // first number that stops more; 0: none
	BlockedBy  string              `json:"blocked_by"`
	Max        int                 `json:"max_unreleased"`
}

// historyOf derives the history from what the agent keeps. The list holds
// every number that is not released.
func historyOf(host protocol.Host, list []protocol.Allocation) history {
	h := history{
		Frontiers: host.Frontiers, Index: host.Index, Releasable: host.Frontiers.Accepted, Max: host.Slots.MaxUnreleased,
		Unreleased: []protocol.Number{}, Carried: []protocol.Number{},
	}
	for _, x := range list {
		switch {
		case x.Number <= host.Frontiers.Released:
			h.Carried = append(h.Carried, x.Number)
		case x.State == protocol.StateConsumed:
			h.Unreleased = append(h.Unreleased, x.Number)
		case x.Stuck != nil:
			// A release can pass over it.
		case h.Blocker == 0 || x.Number < h.Blocker:
			h.Blocker, h.BlockedBy = x.Number, heldBy(x)
		}
	}
	if h.Blocker != 0 {
		h.Releasable = h.Blocker - 1
	}
	return h
}

func (a *app) readHistory(ctx context.Context) (history, error) {
	host, generation, err := a.host(ctx)
	if err != nil {
		return history{}, err
	}
	list, err := generation.List(ctx, "")
	if err != nil {
		return history{}, exit.Reading(err)
	}
	return historyOf(host, list), nil
}

func (a *app) historyCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "history",
		Short: "Show what is consumed and unreleased, and what blocks its release",
		Args:  commandline.Exactly(0),
		RunE: func(cmd *cobra.Command, _ []string) error {
			h, err := a.readHistory(cmd.Context())
			if err != nil {
				return err
			}
			if a.json() {
				return a.printJSON(h)
			}
			var f table.Facts
			f.Add("released", "up to number "+h.Frontiers.Released.String())
			f.Add("accepted", "up to number "+h.Frontiers.Accepted.String())
			f.Add("receipts kept", fmt.Sprintf("%d to %d", h.Index.First, h.Index.Head))
			f.Add("consumed, unreleased", fmt.Sprintf("%d of %d: %s", len(h.Unreleased), h.Max, numbersWords(h.Unreleased)))
			f.Add("carried along", numbersWords(h.Carried))
			f.Add("blocked by", blockerWords(h))
			return f.Write(a.out)
		},
	}
}

func numbersWords(numbers []protocol.Number) string {
	if len(numbers) == 0 {
		return "none"
	}
	text := ""
	for i := 0; i < len(numbers); {
		last := i
		for last+1 < len(numbers) && numbers[last+1] == numbers[last]+1 {
			last++
		}
		if text != "" {
			text += ", "
		}
		text += numbers[i].String()
		if last > i {
			text += "-" + numbers[last].String()
		}
		i = last + 1
	}
	return text
}

func blockerWords(h history) string {
	if h.Blocker == 0 {
		return "nothing"
	}
	return fmt.Sprintf("number %s, held by %s", h.Blocker, h.BlockedBy)
}

func (a *app) releaseStatusCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "release-status",
		Short: "Show the released frontier and how far it could move now",
		Args:  commandline.Exactly(0),
		RunE: func(cmd *cobra.Command, _ []string) error {
			h, err := a.readHistory(cmd.Context())
			if err != nil {
				return err
			}
			if a.json() {
				return a.printJSON(h)
			}
			text := fmt.Sprintf("released frontier %s; ", h.Frontiers.Released)
			switch {
			case h.Releasable > h.Frontiers.Released:
				text += fmt.Sprintf("the controller may release up to %s", h.Releasable)
			case h.Frontiers.Accepted == h.Frontiers.Released:
				text += "everything accepted is released"
			default:
				text += "nothing more can be released now"
			}
			if h.Blocker != 0 {
				text += "; blocked by " + blockerWords(h)
			}
			if len(h.Carried) > 0 {
				text += "; carried along: " + numbersWords(h.Carried)
			}
			return a.print(table.Clean(text) + "\n")
		},
	}
}
