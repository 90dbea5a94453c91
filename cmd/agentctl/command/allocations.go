package command

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/spf13/cobra"

	"github.com/quittance/quittance/cmd/agentctl/internal/exit"
	"github.com/quittance/quittance/cmd/agentctl/internal/table"
	"github.com/quittance/quittance/cmd/agentctl/internal/words"
	"github.com/quittance/quittance/cmd/internal/commandline"
	"github.com/quittance/quittance/protocol"
	"github.com/quittance/quittance/protocol/hostclient"
)

func (a *app) allocationsCommand() *cobra.Command {
	var all, stuck, again bool
	cmd := &cobra.Command{
		Use:   "allocations",
		Short: "List allocations: those that hold a slot, all unreleased, or the stuck ones",
		Args:  commandline.Exactly(0),
		RunE: func(cmd *cobra.Command, _ []string) error {
			keep := func(x protocol.Allocation) bool {
				switch {
				case stuck:
					return x.Stuck != nil
				case all:
					return true
				}
				return x.State != protocol.StateConsumed
			}
			return a.watch(cmd.Context(), again, func(ctx context.Context) error { return a.showAllocations(ctx, keep) })
		},
	}
	cmd.Flags().BoolVar(&all, "all", false, "consumed ones too, until their history is released")
	cmd.Flags().BoolVar(&stuck, "stuck", false, "only those that do not go")
	cmd.Flags().BoolVar(&again, "watch", false, "show it anew every two seconds")
	cmd.MarkFlagsMutuallyExclusive("all", "stuck")
	return cmd
}

func (a *app) showAllocations(ctx context.Context, keep func(protocol.Allocation) bool) error {
	_, generation, err := a.host(ctx)
	if err != nil {
		return err
	}
	list, err := generation.List(ctx, "")
	if err != nil {
		return exit.Reading(err)
	}
	list = slices.DeleteFunc(list, func(x protocol.Allocation) bool { return !keep(x) })
	if a.json() {
		return a.printJSON(protocol.AllocationList{Allocations: list})
	}
	t := table.New("NUMBER", "STATE", "PROFILE", "PURPOSE", "EXIT", "OOM", "PEAK MEMORY", "STEP")
	for _, x := range list {
		t.Row(x.Number, stateWords(x), profileWords(x), x.Purpose, exitWords(x.Exit), oomWords(x.OOM),
			words.Peak(x.Peaks, x.Limits), stepWords(x))
	}
	return t.Write(a.out)
}

func stateWords(x protocol.Allocation) string {
	if x.Stuck != nil {
		return string(x.State) + " (stuck)"
	}
	return string(x.State)
}

func profileWords(x protocol.Allocation) string {
	if x.Profile == nil {
		return "(burnt)"
	}
	return *x.Profile
}

func exitWords(e *protocol.Exit) string {
	switch {
	case e == nil:
		return ""
	case e.Code == nil:
		return "unknown"
	}
	return fmt.Sprint(*e.Code)
}

func oomWords(o *protocol.OOM) string {
	switch {
	case o == nil:
		return ""
	case o.Scope != nil:
		return string(o.Verdict) + "/" + string(*o.Scope)
	}
	return string(o.Verdict)
}

func stepWords(x protocol.Allocation) string {
	if x.StepError != "" {
		return x.Step + ": " + x.StepError
	}
	return x.Step
}

// inspection is what inspect shows of one number.
type inspection struct {
	Allocation protocol.Allocation `json:"allocation"`
	HeldBy     string              `json:"held_by"`
}

func (a *app) inspectCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "inspect NUMBER",
		Short: "Show one allocation: identity, facts, timeline, log, and what holds it",
		Args:  commandline.Exactly(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			n, err := number(args[0])
			if err != nil {
				return err
			}
			return a.inspect(cmd.Context(), n)
		},
	}
}

func (a *app) inspect(ctx context.Context, n protocol.Number) error {
	host, generation, err := a.host(ctx)
	if err != nil {
		return err
	}
	x, err := generation.Get(ctx, n, "", 0)
	if err != nil {
		return exit.Reading(err)
	}
	held := heldBy(x)
	if a.json() {
		return a.printJSON(inspection{x, held})
	}
	if err := a.allocationFacts(x, held, host.Time).Write(a.out); err != nil {
		return err
	}
	if err := a.timeline(ctx, generation, x); err != nil {
		return err
	}
	return a.logTail(ctx, generation, n)
}

func (a *app) allocationFacts(x protocol.Allocation, held string, now protocol.Timestamp) *table.Facts {
	var f table.Facts
	f.Add("number", x.Number)
	f.Add("state", stateWords(x))
	f.Add("held by", held)
	f.Add("profile", profileWords(x))
	if x.ProfileDigest != nil {
		f.Add("profile digest", *x.ProfileDigest)
	}
	f.Add("purpose", x.Purpose)
	f.Add("owner", x.Owner)
	if x.Limits != nil {
		f.Add("limits", words.Limits(*x.Limits))
	}
	f.Add("devices", devicesWords(x.Devices))
	if c := x.Container; c != nil {
		f.Add("container", c.ID)
		f.Add("created", words.Time(c.Created))
		f.Add("image", c.ImageDigest)
		f.Add("spec", c.SpecDigest)
	}
	if x.Reason != nil {
		f.Add("retired for", *x.Reason)
	}
	if x.Exit != nil {
		f.Add("exit", words.Exit(*x.Exit))
	}
	if x.OOM != nil {
		f.Add("kernel OOM", words.OOM(*x.OOM))
	}
	f.Add("peak memory", words.Peak(x.Peaks, x.Limits))
	if x.Peaks != nil && x.Peaks.CPUMicros != nil {
		f.Add("CPU time", words.Millis(*x.Peaks.CPUMicros/1000))
	}
	if x.ReadAt != nil {
		f.Add("counters read", words.Ago(*x.ReadAt, now))
	}
	if x.LogSink != nil {
		f.Add("log sink", *x.LogSink)
	}
	if x.Channels > 0 {
		f.Add("channels", fmt.Sprintf("%d handed out since the agent started", x.Channels))
	}
	f.Add("step", stepWords(x))
	if x.Stuck != nil {
		f.Add("stuck", words.Stuck(*x.Stuck))
	}
	return &f
}

// heldBy says what an allocation waits for before its history can go.
func heldBy(x protocol.Allocation) string {
	switch {
	case x.Stuck != nil:
		return "its container, which does not go: slot and devices stay held"
	case x.State == protocol.StateConsumed:
		return "the release of its history by the controller"
	case x.State == protocol.StateRetired:
		return "the controller, which has not consumed its retirement"
	case x.State == protocol.StateExited, x.State == protocol.StateRetiring:
		return "its removal, which is under way"
	case x.State == protocol.StateReleased:
		return ""
	}
	return "its own life: the controller retires it, or its lease or lifetime ends"
}

// timeline shows an allocation's receipts with what they say. Those whose
// bytes are no longer served are shown by their kind.
func (a *app) timeline(ctx context.Context, generation *hostclient.Generation, x protocol.Allocation) error {
	if len(x.Receipts) == 0 {
		return nil
	}
	if err := a.print("\n"); err != nil {
		return err
	}
	t := table.New("RECEIPT", "TIME", "KIND", "WHAT")
	for _, entry := range x.Receipts {
		what, err := a.what(ctx, generation, entry)
		if err != nil {
			return err
		}
		t.Row(entry.Index, words.Time(entry.At), entry.Kind, what)
	}
	return t.Write(a.out)
}

func (a *app) what(ctx context.Context, generation *hostclient.Generation, entry protocol.ReceiptEntry) (string, error) {
	query := hostclient.ReceiptsQuery{Limit: 1}
	if entry.Index > 0 {
		before := entry.Index - 1
		query.After = &before
	}
	leaves, err := generation.Receipts(ctx, query)
	if hostclient.IsCode(err, protocol.CodePruned) {
		return "(pruned; readable by its proof)", nil
	}
	if err != nil {
		return "", exit.Reading(err)
	}
	if len(leaves) != 1 || leaves[0].Receipt.Index != entry.Index {
		return "(no longer served)", nil
	}
	return words.Receipt(leaves[0].Receipt), nil
}

// tailLines is how much of a log inspect shows.
const tailLines = 10

func (a *app) logTail(ctx context.Context, generation *hostclient.Generation, n protocol.Number) error {
	log, err := generation.Log(ctx, n)
	if hostclient.IsCode(err, protocol.CodeNotFound) {
		return nil // a burnt or never started number has no log
	}
	if err != nil {
		return exit.Reading(err)
	}
	if log.TotalBytes == 0 {
		return nil
	}
	text := string(lastLines(append(slices.Clone(log.Head), log.Tail...), tailLines))
	if log.DroppedBytes > 0 {
		text = string(lastLines(log.Tail, tailLines))
	}
	return a.print("\nlast lines of its log:\n" + table.CleanLines(text))
}

// lastLines is the end of data: at most n lines.
func lastLines(data []byte, n int) []byte {
	end := len(data)
	if end > 0 && data[end-1] == '\n' {
		end--
	}
	for i := end - 1; i >= 0; i-- {
		if data[i] == '\n' {
			if n--; n == 0 {
				return data[i+1:]
			}
		}
	}
	return data
}

func (a *app) logsCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "logs NUMBER",
		Short: "Write what the log sink kept of a worker's output",
		Long: `Writes the kept head and tail of a worker's output. Between them a line on
standard error says how many bytes were not kept. On a terminal, characters that
could move its cursor are shown as escapes.`,
		Args: commandline.Exactly(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			n, err := number(args[0])
			if err != nil {
				return err
			}
			_, generation, err := a.host(cmd.Context())
			if err != nil {
				return err
			}
			log, err := generation.Log(cmd.Context(), n)
			if err != nil {
				return exit.Reading(err)
			}
			return a.showLog(log)
		},
	}
}

func (a *app) showLog(log protocol.Log) error {
	if a.json() {
		return a.printJSON(log)
	}
	show := func(data []byte) error {
		if a.terminal {
			return a.print(table.CleanLines(string(data)))
		}
		_, err := a.out.Write(data)
		return err
	}
	if err := show(log.Head); err != nil {
		return err
	}
	if log.DroppedBytes > 0 {
		if _, err := fmt.Fprintf(a.err, "agentctl: %d bytes were not kept here\n", log.DroppedBytes); err != nil {
			return err
		}
	}
	return show(log.Tail)
}

func (a *app) retireCommand() *cobra.Command {
	var reason string
	var wait time.Duration
	cmd := &cobra.Command{
		Use:   "retire NUMBER --reason TEXT",
		Short: "Retire an allocation as an operator",
		Long: `Asks the agent to stop and remove the allocation's container. The reason goes
into the retirement's receipt. Retiring what already retired changes nothing.`,
		Args: commandline.Exactly(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			n, err := number(args[0])
			if err != nil {
				return err
			}
			if reason == "" || len(reason) > protocol.MaxNoteBytes {
				return exit.With(exit.Usage, fmt.Errorf("--reason must be 1 to %d bytes: it goes into the receipt", protocol.MaxNoteBytes))
			}
			return a.retire(cmd.Context(), n, reason, wait)
		},
	}
	cmd.Flags().StringVar(&reason, "reason", "", "why, for the receipt (required)")
	cmd.Flags().DurationVar(&wait, "wait", 30*time.Second, "how long to wait for the retirement's end, at most 60s")
	return cmd
}

func (a *app) retire(ctx context.Context, n protocol.Number, reason string, wait time.Duration) error {
	_, generation, err := a.host(ctx)
	if err != nil {
		return err
	}
	x, err := generation.Get(ctx, n, "", 0)
	if err != nil {
		// Without the allocation there is no purpose to repeat: a number that
		// was never accepted is the controller's to burn.
		return exit.Reading(err)
	}
	answer, err := generation.Retire(ctx, n, protocol.RetireRequest{Purpose: x.Purpose, Note: reason}, wait)
	if err != nil {
		return err
	}
	if a.json() {
		return a.printJSON(answer)
	}
	if answer.Receipt == nil || string(answer.Receipt) == "null" {
		return a.print(fmt.Sprintf("number %s is being retired (%s)\n", n, stateWords(answer.Allocation)))
	}
	receipt, err := protocol.DecodeReceipt(answer.Receipt)
	if err != nil {
		return exit.With(exit.Unknown, errors.Join(errors.New("the answer's receipt cannot be read"), err))
	}
	return a.print(table.Clean(fmt.Sprintf("number %s retired, receipt %d: %s", n, receipt.Index, words.Receipt(receipt))) + "\n")
}
