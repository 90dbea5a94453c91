package controller

import (
	"context"
	"fmt"
	"io"
	"maps"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/hashicorp/go-hclog"

	"github.com/quittance/quittance/controller/internal/attempt"
	"github.com/quittance/quittance/controller/internal/jobs"
	"github.com/quittance/quittance/controller/internal/store"
	"github.com/quittance/quittance/protocol"
)

// withJobs opens the job service's database beside a running service, without
// serving anything.
func withJobs(ctx context.Context, c Config, use func(*jobs.Service) error) error {
	if err := os.MkdirAll(c.StateDir, 0o700); err != nil {
		return fmt.Errorf("state_dir: %w", err)
	}
	s, err := jobs.Open(ctx, jobsConfig(c, c.LoopbackAPI(), hclog.NewNullLogger()))
	if err != nil {
		return err
	}
	return join([]error{use(s), s.Close()})
}

// TokenSpec says whom a new token speaks for.
type TokenSpec struct {
	Workspace   string
	Principal   string
	Role        string        // reader, submitter or admin
	RetryWindow time.Duration // 0: off
}

// CreateToken makes a bearer token, which is shown once.
func CreateToken(ctx context.Context, c Config, spec TokenSpec) (token string, err error) {
	err = withJobs(ctx, c, func(s *jobs.Service) (err error) {
		token, err = s.CreateToken(ctx, jobs.TokenSpec{
			Workspace: spec.Workspace, Principal: spec.Principal, Role: spec.Role, RetryWindow: spec.RetryWindow,
		})
		return err
	})
	return token, err
}

// AddProvider registers a node's public key: a line of ssh-ed25519, the key and
// the provider's identity.
func AddProvider(ctx context.Context, c Config, line string) error {
	return withJobs(ctx, c, func(s *jobs.Service) error { return s.AddProviderKey(ctx, line) })
}

// AddHostKey registers a host's verifier key, so that receipts proved under it
// are shown as verified. It returns how many receipts that are known already
// became verified.
func AddHostKey(ctx context.Context, c Config, text string) (verified int, err error) {
	err = withJobs(ctx, c, func(s *jobs.Service) (err error) {
		verified, err = s.AddHostKey(ctx, strings.TrimSpace(text))
		return err
	})
	return verified, err
}

// HandOver gives a provider identity to another attempt store and fails the
// attempts that the old one has in progress. It returns their number.
func HandOver(ctx context.Context, c Config, provider, to string) (failed int, err error) {
	id := protocol.ID(to)
	if !id.Valid() {
		return 0, fmt.Errorf("store: must be 32 lower-case hexadecimal digits, as `controller store check` prints it")
	}
	err = withJobs(ctx, c, func(s *jobs.Service) (err error) {
		failed, err = s.HandOver(ctx, provider, id)
		return err
	})
	return failed, err
}

// StoreReport describes a stopped attempt store.
type StoreReport struct {
	Text   string
	Damage int // files that are not what the store wrote
}

// InspectStore reads a stopped attempt store whole and changes nothing.
func InspectStore(c Config) (StoreReport, error) {
	r, err := store.Inspect(c.AttemptsDir(), nil)
	if err != nil {
		return StoreReport{}, err
	}
	var b strings.Builder
	fmt.Fprintf(&b, "store       %s\nscope       %s, provider %s, consumer %s, generation %s\nopened      %d times\n",
		r.ID, r.Scope.APIOrigin, r.Scope.Provider, r.Scope.Consumer, r.Scope.Generation, r.Opens)
	for _, e := range r.Active {
		o := attempt.OriginOf(e.Record)
		fmt.Fprintf(&b, "active      %s  %-18s lane %d  %s  %s\n", e.Key, e.Record.State(), o.Lane, o.Job, o.Kind)
	}
	fmt.Fprintf(&b, "history     %d records\n", len(r.History))
	for generation, w := range r.Witnesses {
		seen := "nothing"
		if w.Highest != nil {
			seen = fmt.Sprintf("receipt %d", w.Highest.Index)
		}
		fmt.Fprintf(&b, "witness     generation %s, %s\n", generation, seen)
	}
	for _, name := range r.Unfinished {
		fmt.Fprintf(&b, "unfinished  %s\n", name)
	}
	for _, d := range r.Damage {
		fmt.Fprintf(&b, "damage      %v\n", d)
	}
	return StoreReport{b.String(), len(r.Damage)}, nil
}

// ForgetHost removes from a stopped attempt store what it saw of a host
// generation's receipts, so that a controller with an older copy of its store
// may go on. It returns what is lost by it; without do nothing is changed.
func ForgetHost(ctx context.Context, c Config, generation string, do bool) (lost string, err error) {
	id := protocol.ID(generation)
	r, err := store.Inspect(c.AttemptsDir(), nil)
	if err != nil {
		return "", err
	}
	seen, known := r.Witnesses[id]
	if !known {
		return "", fmt.Errorf("generation: the attempt store has seen none of this name; `controller store check` lists them")
	}
	receipt := "no receipt"
	if seen.Highest != nil {
		receipt = fmt.Sprintf("its receipts up to %d", seen.Highest.Index)
	}
	lost = fmt.Sprintf("Lost: what this store saw of host generation %s (%s, and the checkpoint that it kept), which would show a ledger that was put back to an earlier state. "+
		"Attempts that were begun after this copy of the store was made are in no store: their outcomes stay as the job service has them; those still in progress there "+
		"hold every lane until `controller provider handover` fails them; their allocations are retired.", id, receipt)
	if !do {
		return lost, nil
	}
	s, err := store.Open(store.Config{
		Dir: c.AttemptsDir(), Scope: r.Scope, MaxActive: c.Lanes.MaxActive, History: c.Lanes.History, DiskReserve: c.Lanes.DiskReserve.Bytes,
	})
	if err != nil {
		return "", err
	}
	return lost, join([]error{s.ForgetGeneration(ctx, id), s.Close()})
}

// ShowAttempt is one record of a stopped attempt store in its canonical form.
func ShowAttempt(c Config, key string) ([]byte, error) {
	r, err := store.Inspect(c.AttemptsDir(), nil)
	if err != nil {
		return nil, err
	}
	entry, ok := r.Records[key]
	for _, e := range r.Active {
		if e.Key == key {
			entry, ok = e, true
		}
	}
	if !ok {
		return nil, fmt.Errorf("the attempt store has no record with this key; `controller store check` lists the active ones")
	}
	return attempt.Encode(entry.Record)
}

// ExportStore writes every record of a stopped attempt store to w, active ones
// first, one canonical document a line and each group in order of its keys. They
// hold job input and results. Damage stops it: what is not whole is not a copy.
func ExportStore(c Config, w io.Writer) error {
	r, err := store.Inspect(c.AttemptsDir(), nil)
	if err != nil {
		return err
	}
	if len(r.Damage) > 0 {
		return fmt.Errorf("the attempt store is damaged: %w; `controller store check` lists everything", r.Damage[0])
	}
	entries := r.Active
	for _, key := range slices.Sorted(maps.Keys(r.Records)) {
		entries = append(entries, r.Records[key])
	}
	for _, e := range entries {
		data, err := attempt.Encode(e.Record)
		if err != nil {
			return err
		}
		if _, err := w.Write(append(data, '\n')); err != nil {
			return err
		}
	}
	return nil
}

// RotateStore moves a stopped attempt store to aside and makes an empty one of
// the configuration's scope, with the same store id and host witnesses. It
// refuses while an attempt is not archived, and an unchanged scope.
func RotateStore(c Config, mode Mode, aside string) error {
	next := storeConfig(c, apiOrigin(c, mode))
	old := next.Scope
	if r, err := store.Inspect(next.Dir, nil); err == nil {
		old = r.Scope
	}
	if old == next.Scope {
		// A rotation that was cut short at its end has the old store aside.
		if r, err := store.Inspect(aside, nil); err == nil {
			old = r.Scope
		}
	}
	if old == next.Scope {
		return fmt.Errorf("the store's scope is the configuration's: change provider.generation first")
	}
	return store.Rotate(next, old, aside)
}

// ResolveAttempt writes an operator's decision about an attempt that holds its
// lane into the stopped store: a hold that was looked at, or an attempt that was
// entered before a restart and whose offering says hold. Nothing is sent and
// nothing runs again. reference is the service's identity of the attempt, typed
// by the person who decides. It returns what is lost by it.
func ResolveAttempt(ctx context.Context, c Config, key, reference, note string) (lost string, err error) {
	if note == "" || len(note) > attempt.MaxNoteBytes {
		return "", fmt.Errorf("note: must say why, in 1 to %d bytes", attempt.MaxNoteBytes)
	}
	r, err := store.Inspect(c.AttemptsDir(), nil)
	if err != nil {
		return "", err
	}
	s, err := store.Open(store.Config{
		Dir: c.AttemptsDir(), Scope: r.Scope, MaxActive: c.Lanes.MaxActive, History: c.Lanes.History, DiskReserve: c.Lanes.DiskReserve.Bytes,
	})
	if err != nil {
		return "", err
	}
	lost, err = resolve(ctx, s, key, reference, note)
	return lost, join([]error{err, s.Close()})
}

func resolve(ctx context.Context, s *store.Store, key, reference, note string) (lost string, err error) {
	entry, ok := s.Get(key)
	if !ok {
		return "", fmt.Errorf("the attempt store has no active record with this key")
	}
	admission, admitted := attempt.AdmissionOf(entry.Record)
	if !admitted || admission.Reference != reference {
		return "", fmt.Errorf("reference: is not this attempt's; `controller store show` prints it")
	}
	now := protocol.TimestampOf(time.Now())
	var event attempt.Event
	switch record := entry.Record.(type) {
	case attempt.TerminalHeld:
		lost = "The outcome kept in the record is never published; what the service recorded stands."
		event = attempt.Resolved{Resolution: attempt.Resolution{UID: int64(os.Getuid()), Note: note, At: now}}
	case attempt.Acknowledged:
		lost = "Whatever the worker had computed is lost; the attempt stays in progress at the service until its lease lapses."
		if entry, err = s.Update(ctx, key, attempt.Noted{Fact: attempt.Fact{Name: "operator", Text: note, At: now}}); err != nil {
			return "", err
		}
		event = attempt.Over{Reason: attempt.EndOperator, At: now}
	default:
		return "", fmt.Errorf("the attempt is %s, which needs no decision", record.State())
	}
	if _, err := s.Apply(ctx, entry, event); err != nil {
		return "", err
	}
	return lost, nil
}
