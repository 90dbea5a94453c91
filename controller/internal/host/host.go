// Package host is the controller's side of one node's private socket: the
// number sequence, retirement and consumption, receipts with their
// verification, the witness, release and channels. It owns the question "what
// did the agent durably do", and classes every failure as refused or unknown
// (I11). It must not know attempts' records, the job service or workers, and
// it keeps nothing on disk: what has to last, its [Witness] keeps.
//
// # Numbers
//
// One allocator per process owns the sequence. It settles number N before it
// proposes N + 1, and the attempt's intent to use N is durable before N is
// proposed. After a lost reply only an acceptance, a number_conflict or a burn
// settles a number; a refusal does not, because the first request may still be
// on its way.
//
//	free ──intent, PUT N──► accepted | conflict ──► free     (settled)
//	  ▲               │
//	  │               ├ refused, nothing lost before ──► withdrawn, free (N not consumed)
//	  │               └ lost ──► unsettled(N) ──same PUT──► accepted | conflict
//	  └──────────────────────────────┴──retire N──► retired or burnt
//
// Retiring the number of an intent settles it in every case: an accepted
// allocation is retired, a number never accepted is burnt, and a
// number_conflict shows that it is somebody else's.
package host

import (
	"context"
	"errors"
	"fmt"
	"net"
	"slices"
	"sync"
	"time"

	"github.com/hashicorp/go-hclog"

	"github.com/quittance/quittance/protocol"
	"github.com/quittance/quittance/protocol/hostclient"
	"github.com/quittance/quittance/protocol/tlog"
)

// Client is what this package needs of the private socket; [Dial] makes the
// real one. Errors are those of protocol/hostclient.
type Client interface {
	Host(ctx context.Context) (protocol.Host, error)
	Profiles(ctx context.Context, generation protocol.ID) ([]protocol.ProfileInfo, error)
	Allocate(ctx context.Context, generation protocol.ID, n protocol.Number, req protocol.AllocateRequest) (protocol.EffectAnswer, error)
	Get(ctx context.Context, generation protocol.ID, n protocol.Number, until protocol.State, wait time.Duration) (protocol.Allocation, error)
	List(ctx context.Context, generation protocol.ID) ([]protocol.Allocation, error)
	Retire(ctx context.Context, generation protocol.ID, n protocol.Number, req protocol.RetireRequest) (protocol.EffectAnswer, error)
	Consume(ctx context.Context, generation protocol.ID, n protocol.Number, req protocol.ConsumeRequest) (protocol.EffectAnswer, error)
	Release(ctx context.Context, generation protocol.ID, req protocol.ReleaseRequest) (protocol.ReleaseAnswer, error)
	Witness(ctx context.Context, generation protocol.ID, req protocol.WitnessRequest) (protocol.WitnessAnswer, error)
	Receipt(ctx context.Context, generation protocol.ID, index protocol.Index) ([]byte, error)
	Proof(ctx context.Context, generation protocol.ID, index protocol.Index) (tlog.Proof, error)
	Channel(ctx context.Context, generation protocol.ID, n protocol.Number, purpose string) (net.Conn, error)
}

// Seen is what a controller's store holds of one generation: the last
// checkpoint and the highest receipt. Zero values mean nothing yet.
type Seen struct {
	Checkpoint string
	Highest    *protocol.Seen
}

// Witness keeps [Seen] durably per generation. SaveSeen must not return before
// it is durable.
type Witness interface {
	Seen(generation protocol.ID) (Seen, error)
	SaveSeen(ctx context.Context, generation protocol.ID, seen Seen) error
}

// Options tune a [Host].
type Options struct {
	Owner protocol.ID // the attempt store's id
	Log   hclog.Logger
	// Backoff is the pause between repetitions of one request; it doubles up to
	// BackoffMax.
	Backoff    time.Duration
	BackoffMax time.Duration
}

// Host is one node's agent as this controller sees it.
type Host struct {
	client  Client
	witness Witness
	opts    Options

	// sequence holds one token: who has it is the allocator.
	sequence chan struct{}
	// unsettled is the number whose PUT got no answer; owned by whoever holds
	// the token.
	unsettled *proposal

	seenMu sync.Mutex // serialises changes of what the witness keeps

	mu    sync.Mutex // guards what follows
	host  protocol.Host
	key   *tlog.PublicKey
	known bool
}

type proposal struct {
	generation protocol.ID
	number     protocol.Number
	request    protocol.AllocateRequest
}

// New makes a Host; nothing is sent before the first call.
func New(client Client, witness Witness, opts Options) *Host {
	if opts.Log == nil {
		opts.Log = hclog.NewNullLogger()
	}
	if opts.Backoff <= 0 {
		opts.Backoff = 100 * time.Millisecond
	}
	if opts.BackoffMax < opts.Backoff {
		opts.BackoffMax = 5 * time.Second
	}
	return &Host{client: client, witness: witness, opts: opts, sequence: make(chan struct{}, 1)}
}

// UnknownError says that an effect may have happened: read the truth again.
type UnknownError struct {
	Operation  string
	Generation protocol.ID
	Number     protocol.Number // of the allocation; for release the frontier
	Cause      error
}

func (e *UnknownError) Error() string {
	return fmt.Sprintf("host: %s %d of generation %s: unknown effect: %v", e.Operation, e.Number, e.Generation, e.Cause)
}

// Fields are the fields of a notice about err: operation, disposition and the
// identities of what it concerns; none where err is no failure of an effect on
// the host.
func Fields(err error) []any {
	u, ok := errors.AsType[*UnknownError](err)
	if !ok {
		return nil
	}
	return []any{"operation", u.Operation, "disposition", string(protocol.Unknown), "generation", string(u.Generation), "number", int64(u.Number)}
}

func (e *UnknownError) Unwrap() error { return e.Cause }

// BehindError says that the agent's ledger holds less than this controller has
// seen (I9). Nothing more is asked of it until a person has looked.
type BehindError struct{ Detail string }

func (e *BehindError) Error() string {
	return "host: the agent's ledger is behind what was seen: " + e.Detail + "; see the runbook \"ledger_behind\""
}

// OlderError says that the agent released history beyond all that this
// controller holds of it: an older copy of the attempt store was put back.
// Nothing is asked of the agent until a person has decided (I9).
type OlderError struct{ Generation protocol.ID }

func (e *OlderError) Error() string {
	return fmt.Sprintf("host: this attempt store holds less than the agent was shown before it released history: an older copy was put back. "+
		"Put the newest one back; where it is lost, stop the controller and run `controller store forget %s`, which says what is lost first", e.Generation)
}

// NeedsPerson reports whether err says that ledger and attempt store do not
// agree, which no repetition mends.
func NeedsPerson(err error) bool {
	_, behind := errors.AsType[*BehindError](err)
	_, older := errors.AsType[*OlderError](err)
	return behind || older
}

// Sync reads the host and, where the agent asks for it or did not hear it yet
// in this process, presents the witness.
func (h *Host) Sync(ctx context.Context) (protocol.Host, error) {
	host, err := h.client.Host(ctx)
	if err != nil {
		return protocol.Host{}, fmt.Errorf("host: read: %w", err)
	}
	key, err := tlog.ParsePublicKey(host.HostKey)
	if err != nil {
		return protocol.Host{}, fmt.Errorf("host: host key: %w", err)
	}
	if key.Generation() != host.Generation {
		return protocol.Host{}, errors.New("host: the host key names another generation than the host")
	}
	h.mu.Lock()
	first := !h.known || h.host.Generation != host.Generation
	if h.known && h.host.Generation == host.Generation && h.host.HostKey != host.HostKey {
		h.mu.Unlock()
		return protocol.Host{}, errors.New("host: the host key changed within a generation; a new key needs a new generation")
	}
	h.host, h.key = host, key
	h.mu.Unlock()
	if first || host.WitnessRequired {
		if err := h.PresentWitness(ctx); err != nil {
			return protocol.Host{}, err
		}
	}
	h.mu.Lock()
	h.known = true
	h.mu.Unlock()
	return host, nil
}

func (h *Host) identity() (protocol.ID, *tlog.PublicKey) {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.host.Generation, h.key
}

// PresentWitness shows the agent the checkpoint and the highest receipt that
// this controller holds, verifies that its log extends them, and saves the
// checkpoint that it answered with.
func (h *Host) PresentWitness(ctx context.Context) error {
	h.seenMu.Lock()
	defer h.seenMu.Unlock()
	generation, key := h.identity()
	seen, err := h.witness.Seen(generation)
	if err != nil {
		return fmt.Errorf("host: witness: %w", err)
	}
	req := protocol.WitnessRequest{Highest: seen.Highest}
	if seen.Checkpoint != "" {
		req.Checkpoint = &seen.Checkpoint
	}
	answer, err := h.client.Witness(ctx, generation, req)
	if err != nil {
		if problem, ok := errors.AsType[*protocol.Problem](err); ok {
			switch problem.Code {
			case protocol.CodeLedgerBehind:
				return &BehindError{problem.Detail}
			case protocol.CodePruned:
				return &OlderError{generation}
			}
		}
		return fmt.Errorf("host: witness: %w", err)
	}
	now, err := tlog.ParseCheckpoint(answer.Checkpoint, key)
	if err != nil {
		return fmt.Errorf("host: witness: checkpoint: %w", err)
	}
	if seen.Checkpoint != "" {
		before, err := tlog.ParseCheckpoint(seen.Checkpoint, key)
		if err != nil {
			return fmt.Errorf("host: witness: the saved checkpoint: %w", err)
		}
		proof, err := tlog.ParseHashes(answer.Consistency)
		if err != nil {
			return fmt.Errorf("host: witness: consistency: %w", err)
		}
		if err := tlog.VerifyConsistency(before.Tree, now.Tree, proof); err != nil {
			return &BehindError{"its log does not extend the saved checkpoint: " + err.Error()}
		}
	}
	if answer.Checkpoint == seen.Checkpoint {
		return nil
	}
	seen.Checkpoint = answer.Checkpoint
	if err := h.witness.SaveSeen(ctx, generation, seen); err != nil {
		return fmt.Errorf("host: witness: save: %w", err)
	}
	return nil
}

// Profiles lists what the agent offers, by name.
func (h *Host) Profiles(ctx context.Context) (map[string]protocol.ProfileInfo, error) {
	generation, _ := h.identity()
	list, err := h.client.Profiles(ctx, generation)
	if err != nil {
		return nil, fmt.Errorf("host: profiles: %w", err)
	}
	all := make(map[string]protocol.ProfileInfo, len(list))
	for _, p := range list {
		all[p.Name] = p
	}
	return all, nil
}

// Channel opens a connected stream to the worker of an allocation. A refusal
// is a *[protocol.Problem]: not_connectable, exited, retiring, channel_limit. A
// hand-over that was lost is asked for again until ctx ends: nothing was said
// over it, and the agent counts it as handed out.
func (h *Host) Channel(ctx context.Context, n protocol.Number, purpose string) (net.Conn, error) {
	generation, _ := h.identity()
	pause := h.pauses("channel", generation, n, purpose)
	for {
		conn, err := h.client.Channel(ctx, generation, n, purpose)
		if err == nil || answered(err) {
			// not_connectable is an answer: the ready rule has its own pace.
			return conn, err
		}
		if waitErr := pause(ctx, err); waitErr != nil {
			return nil, errors.Join(waitErr, err)
		}
	}
}

// waitStep bounds one long-poll.
const waitStep = 30 * time.Second

// Wait reads an allocation until it has reached or passed a state. Reads may
// be repeated, so lost ones are, until ctx ends. A stuck allocation is returned
// as it is: nobody can wait for the kernel.
func (h *Host) Wait(ctx context.Context, n protocol.Number, until protocol.State) (protocol.Allocation, error) {
	generation, _ := h.identity()
	pause := h.pauses("read", generation, n, "")
	for {
		a, err := h.client.Get(ctx, generation, n, until, waitStep)
		switch {
		case err == nil && (Reached(a, until) || a.Stuck != nil):
			return a, nil
		case err != nil && settled(err):
			return protocol.Allocation{}, fmt.Errorf("host: allocation %d: %w", n, err)
		case err == nil:
			pause = h.pauses("read", generation, n, "")
		}
		if waitErr := pause(ctx, err); waitErr != nil {
			return protocol.Allocation{}, errors.Join(waitErr, err)
		}
	}
}

var order = []protocol.State{
	protocol.StateAccepted, protocol.StateCreating, protocol.StateStarted, protocol.StateRetiring,
	protocol.StateExited, protocol.StateRetired, protocol.StateConsumed, protocol.StateReleased,
}

// Reached reports whether the allocation is in state s or past it. An
// allocation that retires before it ever started has passed started.
func Reached(a protocol.Allocation, s protocol.State) bool {
	return slices.Index(order, a.State) >= slices.Index(order, s)
}

// answered reports whether err is the agent's answer to the request itself
// rather than a loss.
func answered(err error) bool {
	problem, ok := errors.AsType[*protocol.Problem](err)
	return ok && problem.Code != protocol.CodeTooManyConnections && problem.Code != protocol.CodeTimeout
}

// settled reports whether err is an answer that repeating the same request
// would not change.
func settled(err error) bool {
	problem, _ := errors.AsType[*protocol.Problem](err)
	return answered(err) && problem.RetryAfterMillis == 0
}

// pauses returns a function that waits a little longer each time, or until ctx
// ends; then it returns the context's cause. Why the operation on number n is
// sent again is a notice, once per reason.
func (h *Host) pauses(operation string, generation protocol.ID, n protocol.Number, purpose string) func(ctx context.Context, why error) error {
	next, said := h.opts.Backoff, ""
	return func(ctx context.Context, why error) error {
		if why != nil && why.Error() != said {
			said = why.Error()
			log := h.opts.Log
			if purpose != "" {
				log = log.With("attempt", purpose)
			}
			log.Warn("host request sent again", "operation", operation, "disposition", string(hostclient.DispositionOf(why)), "generation", string(generation), "number", int64(n), "error", why)
		}
		select {
		case <-ctx.Done():
			return context.Cause(ctx)
		case <-time.After(next):
		}
		next = min(2*next, h.opts.BackoffMax)
		return nil
	}
}
