package command

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"

	"github.com/spf13/cobra"

	"github.com/quittance/quittance/cmd/agentctl/internal/audit"
	"github.com/quittance/quittance/cmd/agentctl/internal/exit"
	"github.com/quittance/quittance/cmd/agentctl/internal/table"
	"github.com/quittance/quittance/cmd/internal/commandline"
	"github.com/quittance/quittance/controller/api"
	"github.com/quittance/quittance/protocol"
	"github.com/quittance/quittance/protocol/hostclient"
	"github.com/quittance/quittance/protocol/tlog"
)

// maxFile bounds a file that verify reads.
const maxFile = 1 << 30

// bundle is a log with all that is needed to verify it elsewhere: what verify
// --save writes and verify FILE reads.
type bundle struct {
	V          int         `json:"v"`
	Generation protocol.ID `json:"generation"`
	HostKey    string      `json:"host_key"` // as the agent announced it
	Checkpoint string      `json:"checkpoint"`
	FirstProof string      `json:"first_proof"` // "" where the log begins at 0
	Leaves     []api.Bytes `json:"leaves"`
}

// verification is what verify prints for programs.
type verification struct {
	Trust  api.Trust      `json:"trust"` // verified: under a key that was given; announced: under the one it came with
	Keys   []string       `json:"keys"`
	Log    *audit.Report  `json:"log"` // null for a job's receipts
	Single []singleReport `json:"receipts"`
}

// singleReport is the verdict on one receipt of a job.
type singleReport struct {
	Index  protocol.Index  `json:"index"`
	Number protocol.Number `json:"number"`
	Kind   protocol.Kind   `json:"kind"`
	Error  string          `json:"error"` // "": verified
}

func (a *app) verifyCommand() *cobra.Command {
	var keyFile, save string
	cmd := &cobra.Command{
		Use:   "verify [FILE]",
		Short: "Verify receipts: signatures, hashes, and the history that they tell",
		Long: `Without FILE, reads the agent's whole receipt log and verifies it. With FILE
(- reads standard input), verifies offline what "verify --save" or
"jobs receipts -o json" wrote; of what "receipts --raw" wrote, which has no
checkpoint, it asks the agent for one, so that receipts that the agent has since
released can still be shown to be those of its log.

--key names a file with the host's public keys, one a line, as hostagent init
wrote them (host.key.pub) and as you got them by a way that you trust. Without it
the receipts are verified against the key that they came with, which proves that
they belong together and not whose they are: that is reported as announced.`,
		Args: commandline.AtMost(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			keys, err := readKeys(keyFile)
			if err != nil {
				return err
			}
			if len(args) == 0 {
				return a.verifyAgent(cmd.Context(), keys, save)
			}
			if save != "" {
				return exit.With(exit.Usage, errors.New("--save goes without FILE: it saves what the agent serves"))
			}
			return a.verifyFile(cmd.Context(), args[0], keys)
		},
	}
	cmd.Flags().StringVar(&keyFile, "key", "", "file with the host's public keys")
	cmd.Flags().StringVar(&save, "save", "", "also write the log to this file, for verification elsewhere")
	return cmd
}

// readKeys reads public keys, one a line; empty lines and # comments pass.
func readKeys(file string) ([]*tlog.PublicKey, error) {
	if file == "" {
		return nil, nil
	}
	data, err := readBounded(file, 64<<10, nil)
	if err != nil {
		return nil, fmt.Errorf("key file: %w", err)
	}
	var keys []*tlog.PublicKey
	for i, line := range strings.Split(string(data), "\n") {
		line = strings.TrimSpace(line)
		if line == "" || strings.HasPrefix(line, "#") {
			continue
		}
		key, err := tlog.ParsePublicKey(line)
		if err != nil {
			return nil, fmt.Errorf("key file %s, line %d: %w", file, i+1, err)
		}
		keys = append(keys, key)
	}
	if len(keys) == 0 {
		return nil, fmt.Errorf("key file %s holds no key", file)
	}
	return keys, nil
}

// readBounded reads a file, or standard input for "-".
func readBounded(file string, limit int64, stdin io.Reader) (data []byte, err error) {
	source := stdin
	if file != "-" || stdin == nil {
		f, err := os.Open(file)
		if err != nil {
			return nil, err
		}
		defer func() {
			if closeErr := f.Close(); err == nil {
				err = closeErr
			}
		}()
		source = f
	}
	data, err = io.ReadAll(io.LimitReader(source, limit+1))
	if err != nil {
		return nil, err
	}
	if int64(len(data)) > limit {
		return nil, fmt.Errorf("%s is longer than %d bytes", file, limit)
	}
	return data, nil
}

func (a *app) verifyAgent(ctx context.Context, keys []*tlog.PublicKey, save string) error {
	host, generation, err := a.host(ctx)
	if err != nil {
		return err
	}
	log, err := readLog(ctx, generation)
	if err != nil {
		return err
	}
	if save != "" {
		if err := saveBundle(save, host, log); err != nil {
			return err
		}
	}
	return a.verifyLog(log, keys, host.HostKey)
}

// readLog reads the whole log and then a checkpoint that covers it: receipts
// that were written meanwhile are read too.
func readLog(ctx context.Context, generation *hostclient.Generation) (audit.Log, error) {
	var log audit.Log
	leaves, err := generation.Receipts(ctx, hostclient.ReceiptsQuery{})
	if err != nil {
		return log, exit.Reading(err)
	}
	if len(leaves) == 0 {
		return log, audit.ErrEmpty
	}
	for _, leaf := range leaves {
		log.Leaves = append(log.Leaves, leaf.Bytes)
	}
	first, last := leaves[0].Receipt.Index, leaves[len(leaves)-1].Receipt.Index
	if first > 0 {
		// Before anything else is read: the controller may release this one.
		proof, err := generation.Proof(ctx, first)
		if err != nil {
			return log, exit.Reading(err)
		}
		log.FirstProof = &proof
	}
	return log, goOn(ctx, generation, &log, &last)
}

// goOn reads the receipts after last and a checkpoint that those read cover.
func goOn(ctx context.Context, generation *hostclient.Generation, log *audit.Log, last *protocol.Index) error {
	for {
		leaves, err := generation.Receipts(ctx, hostclient.ReceiptsQuery{After: last})
		if err != nil {
			return exit.Reading(err)
		}
		for _, leaf := range leaves {
			log.Leaves = append(log.Leaves, leaf.Bytes)
			*last = leaf.Receipt.Index
		}
		if len(leaves) == protocol.MaxReceiptsPage {
			continue
		}
		log.Checkpoint, err = generation.Checkpoint(ctx)
		if err != nil {
			return exit.Reading(err)
		}
		size, err := checkpointSize(log.Checkpoint)
		if err != nil {
			return err
		}
		if size <= int64(*last)+1 {
			return nil
		}
	}
}

// checkpointSize reads the size that a checkpoint claims; its signature is
// verified later.
func checkpointSize(text string) (int64, error) {
	lines := strings.SplitN(text, "\n", 3)
	var size int64
	if len(lines) == 3 {
		if _, err := fmt.Sscanf(lines[1], "%d", &size); err == nil {
			return size, nil
		}
	}
	return 0, errors.New("the agent's checkpoint has no size")
}

func saveBundle(file string, host protocol.Host, log audit.Log) error {
	b := bundle{V: 1, Generation: host.Generation, HostKey: host.HostKey, Checkpoint: log.Checkpoint}
	if log.FirstProof != nil {
		b.FirstProof = log.FirstProof.Format()
	}
	for _, leaf := range log.Leaves {
		b.Leaves = append(b.Leaves, leaf)
	}
	if err := os.WriteFile(file, append(protocol.AppendCanonical(nil, b), '\n'), 0o644); err != nil {
		return fmt.Errorf("save: %w", err)
	}
	return nil
}

func (a *app) verifyFile(ctx context.Context, file string, keys []*tlog.PublicKey) error {
	data, err := readBounded(file, maxFile, a.in)
	if err != nil {
		return fmt.Errorf("receipts: %w", err)
	}
	if first, _, _ := bytes.Cut(data, []byte("\n")); isReceipt(first) {
		return a.verifyRaw(ctx, data, keys)
	}
	var b bundle
	bundleErr := protocol.DecodeStrict(data, maxFile, &b)
	if bundleErr == nil {
		return a.verifyBundle(b, keys)
	}
	var job api.JobReceipts
	if jobErr := api.Decode(data, maxFile, &job); jobErr == nil {
		return a.verifyJob(job, keys)
	}
	return fmt.Errorf("%s is neither what \"verify --save\" nor what \"jobs receipts -o json\" writes: %w", file, bundleErr)
}

func isReceipt(line []byte) bool {
	_, err := protocol.DecodeReceipt(line)
	return err == nil
}

// verifyRaw verifies receipts that were read earlier, one a line, under a
// checkpoint of now. Those that were written since are read from the agent.
func (a *app) verifyRaw(ctx context.Context, data []byte, keys []*tlog.PublicKey) error {
	if !bytes.HasSuffix(data, []byte("\n")) {
		return errors.New("the last receipt is not whole: it has no line feed")
	}
	host, generation, err := a.host(ctx)
	if err != nil {
		return err
	}
	log := audit.Log{Leaves: bytes.Split(bytes.TrimSuffix(data, []byte("\n")), []byte("\n"))}
	first, err := protocol.DecodeReceipt(log.Leaves[0])
	if err != nil {
		return err
	}
	last := first.Index + protocol.Index(len(log.Leaves)) - 1
	if err := goOn(ctx, generation, &log, &last); err != nil {
		return err
	}
	if first.Index > 0 {
		proof, err := generation.Proof(ctx, first.Index)
		if err != nil {
			return exit.Reading(err)
		}
		log.FirstProof = &proof
	}
	return a.verifyLog(log, keys, host.HostKey)
}

func (a *app) verifyBundle(b bundle, keys []*tlog.PublicKey) error {
	if b.V != 1 {
		return fmt.Errorf("the file has version %d; this program reads version 1", b.V)
	}
	log := audit.Log{Checkpoint: b.Checkpoint}
	for _, leaf := range b.Leaves {
		log.Leaves = append(log.Leaves, leaf)
	}
	if b.FirstProof != "" {
		proof, err := tlog.ParseProof(b.FirstProof)
		if err != nil {
			return fmt.Errorf("first proof: %w", err)
		}
		log.FirstProof = &proof
	}
	return a.verifyLog(log, keys, b.HostKey)
}

// trusted decides which keys count: those that were given, else the one that
// the receipts came with.
func trusted(given []*tlog.PublicKey, announced string) ([]*tlog.PublicKey, api.Trust, error) {
	if len(given) > 0 {
		return given, api.TrustVerified, nil
	}
	key, err := tlog.ParsePublicKey(announced)
	if err != nil {
		return nil, "", fmt.Errorf("announced key: %w", err)
	}
	return []*tlog.PublicKey{key}, api.TrustAnnounced, nil
}

func (a *app) verifyLog(log audit.Log, given []*tlog.PublicKey, announced string) error {
	keys, trust, err := trusted(given, announced)
	if err != nil {
		return err
	}
	report, err := audit.Check(log, keys...)
	if err != nil {
		return fmt.Errorf("not verified: %w", err)
	}
	if err := a.showReport(verification{Trust: trust, Keys: keyTexts(keys), Log: &report, Single: []singleReport{}}); err != nil {
		return err
	}
	if len(report.Findings) > 0 {
		return fmt.Errorf("not verified: %d findings, the first: %s", len(report.Findings), report.Findings[0])
	}
	return nil
}

func keyTexts(keys []*tlog.PublicKey) []string {
	texts := make([]string, len(keys))
	for i, k := range keys {
		texts[i] = k.String()
	}
	return texts
}

func (a *app) showReport(v verification) error {
	if a.json() {
		return a.printJSON(v)
	}
	r := v.Log
	var f table.Facts
	f.Add("generation", r.Generation)
	f.Add("receipts", fmt.Sprintf("%d to %d, contiguous", r.First, int64(r.First)+r.Receipts-1))
	f.Add("checkpoint", fmt.Sprintf("size %d, root %s", r.Size, r.Root.Hex()[:16]))
	if r.Uncovered > 0 {
		f.Add("not covered", fmt.Sprintf("%d receipts written after the checkpoint", r.Uncovered))
	}
	f.Add("numbers", fmt.Sprintf("%s, released to %s, %d not consumed", acceptedWords(r.Accepted), r.Released, r.Live))
	f.Add("signed by", trustWords(v.Trust))
	if err := f.Write(a.out); err != nil {
		return err
	}
	for _, finding := range r.Findings {
		if err := a.print(a.paint(red, "WRONG") + "  " + table.Clean(finding.String()) + "\n"); err != nil {
			return err
		}
	}
	if len(r.Findings) > 0 {
		return nil
	}
	return a.print(a.paint(green, "OK") + "  signatures, hashes and history hold\n")
}

func acceptedWords(n protocol.Number) string {
	if n == 0 {
		return "none accepted in these receipts"
	}
	return "accepted to " + n.String()
}

func trustWords(t api.Trust) string {
	if t == api.TrustVerified {
		return "a key that you gave (verified)"
	}
	return "the key that the receipts came with (announced; give --key to know whose it is)"
}

// verifyJob verifies the receipts that travel with a job, each by its own
// proof.
func (a *app) verifyJob(job api.JobReceipts, given []*tlog.PublicKey) error {
	v := verification{Trust: api.TrustVerified, Keys: keyTexts(given), Single: []singleReport{}}
	if len(given) == 0 {
		v.Trust = api.TrustAnnounced
	}
	failed := 0
	for _, r := range job.Receipts {
		single := singleReport{Index: r.Index, Number: r.Number, Kind: r.Kind}
		if err := verifySingle(r, given); err != nil {
			single.Error = err.Error()
			failed++
		}
		v.Single = append(v.Single, single)
	}
	if err := a.showSingles(v); err != nil {
		return err
	}
	switch {
	case len(v.Single) == 0:
		return audit.ErrEmpty
	case failed > 0:
		return fmt.Errorf("not verified: %d of %d receipts", failed, len(v.Single))
	}
	return nil
}

// verifySingle verifies one receipt and that its labels are its own.
func verifySingle(r api.JobReceipt, given []*tlog.PublicKey) error {
	keys, _, err := trusted(given, r.Key)
	if err != nil {
		return err
	}
	receipt, err := audit.Single(r.Leaf, r.Proof, keys...)
	if err != nil {
		return err
	}
	var n protocol.Number
	if receipt.Number != nil {
		n = *receipt.Number
	}
	if receipt.Index != r.Index || receipt.Generation != r.Generation || receipt.Kind != r.Kind || n != r.Number {
		return errors.New("the receipt is listed under labels that are not its own")
	}
	return nil
}

func (a *app) showSingles(v verification) error {
	if a.json() {
		return a.printJSON(v)
	}
	t := table.New("INDEX", "NUMBER", "KIND", "VERDICT")
	for _, s := range v.Single {
		t.Row(s.Index, s.Number, s.Kind, or(s.Error, "ok"))
	}
	if err := t.Write(a.out); err != nil {
		return err
	}
	return a.print("signed by " + trustWords(v.Trust) + "\n")
}
