package worker

import (
	"context"
	"errors"
	"fmt"
	"io"
	"sync"

	"github.com/go-json-experiment/json/jsontext"

	"github.com/quittance/quittance/controller/internal/offering"
	"github.com/quittance/quittance/protocol"
)

// Handle is one prepared request, bound to one channel and one attempt.
type Handle struct {
	owner    *adapter
	prepared uint64
	// Digest identifies the request's body as it is sent (SHA-256).
	Digest protocol.Digest
}

// ErrHandle is returned for a foreign, used or stale handle; nothing was sent.
var ErrHandle = errors.New("worker: the handle is foreign, used or stale")

// Outcome is a worker's whole answer.
type Outcome struct {
	ContentType string
	Body        []byte
	// Warnings counts what the worker warned of beside its answer; a warning
	// never fails a job.
	Warnings int
	// Claims are what the worker says of its own work, for example its model
	// and its token counts: at most [MaxClaims], each side at most
	// [MaxClaimBytes] bytes. They are claims, never facts.
	Claims []Claim
}

// Claim is one thing that a worker says of itself.
type Claim struct{ Name, Value string }

// Bounds of an outcome's claims.
const (
	MaxClaims     = 8
	MaxClaimBytes = 256
)

// Adapter prepares and executes one request of one attempt.
type Adapter interface {
	// Prepare admits the input and opens the channel of the execution. It makes
	// the worker do nothing that counts as the execution.
	Prepare(ctx context.Context, in Input, report Report) (Handle, error)
	// Execute sends the prepared request once and reads the one answer. The
	// handle is consumed before anything is sent.
	Execute(ctx context.Context, h Handle, report Report) (Outcome, error)
	// Close shuts the channels down; what was in flight ends as worker_lost.
	Close() error
}

// New makes the adapter that the offering names, for one attempt's allocation.
// key is the attempt's key, for protocols that carry an identifier; it is sent
// to the worker.
func New(offer *offering.Offering, dial Dialer, key string) Adapter {
	a := &adapter{offer: offer, dial: dial}
	switch offer.Adapter {
	case offering.AdapterHTTP:
		a.speak = plain{offer}
	case offering.AdapterOpenAI:
		a.speak = openAI{offer}
	case offering.AdapterKServe:
		a.speak = kserve{offer: offer, id: key}
	case offering.AdapterFramed:
		a.speak = framed{offer}
	default:
		panic("worker: the offering was not checked: adapter " + offer.Adapter)
	}
	return a
}

// dialect is how one kind of server is spoken to. Its errors are what package
// worker returns; the adapter that holds it turns the ends of contexts into
// stops and timeouts.
type dialect interface {
	// admit checks the input before anything is dialled and returns what will be
	// sent, which may be the input itself.
	admit(in Input) (request, error)
	// ready waits, beyond the profile's rule, until preparation makes sense.
	ready(ctx context.Context, dial Dialer, report Report) error
	// prepare speaks about r over s, where the dialect does so before execution,
	// and returns what execute will send.
	prepare(ctx context.Context, s *stream, r request, report Report) (request, error)
	// execute sends r over s and reads the one answer.
	execute(ctx context.Context, s *stream, r request) (Outcome, error)
}

// request is what will be sent, and what its answer will be held against.
type request struct {
	body Input
	// want is the dialect's own, for example how many results must come.
	want any
}

// adapter keeps the rules that every dialect shares: who may use which handle
// when, over which channel, and within which time.
type adapter struct {
	offer *offering.Offering
	dial  Dialer
	speak dialect

	mu       sync.Mutex
	prepares uint64 // counts Prepare calls; the latest is the only live one
	ready    bool   // the latest preparation succeeded and was not executed
	channel  *stream
	request  request
	closed   bool
}

var _ Adapter = (*adapter)(nil)

// The causes of an adapter's own timers.
var (
	errPrepare = errors.New("prepare_timeout passed")
	errExecute = errors.New("request.timeout passed")
)

// Prepare implements [Adapter]: admission, then the channel that the execution
// will use, then whatever the dialect says before execution.
func (a *adapter) Prepare(ctx context.Context, in Input, report Report) (Handle, error) {
	a.mu.Lock()
	a.prepares++
	this := a.prepares
	old := a.channel
	a.channel, a.ready = nil, false
	a.mu.Unlock()
	if old != nil {
		old.shut()
	}

	if err := checkInput(a.offer.Input, in); err != nil {
		return Handle{}, err
	}
	r, err := a.speak.admit(in)
	if err != nil {
		return Handle{}, err
	}
	timed, report, end := allowed(ctx, a.offer.PrepareTimeout, errPrepare, report)
	defer end()
	s, r, err := a.open(timed, r, report)
	if err == nil {
		err = context.Cause(timed) // an answer after the deadline is none
	}
	if err != nil {
		if s != nil {
			s.shut()
		}
		if stopped := context.Cause(ctx); stopped != nil {
			return Handle{}, stopped
		}
		if errors.Is(context.Cause(timed), errPrepare) {
			return Handle{}, fail(Unavailable, errors.Join(errPrepare, err), "the worker was not prepared within %s", a.offer.PrepareTimeout)
		}
		return Handle{}, err
	}

	a.mu.Lock()
	defer a.mu.Unlock()
	if a.closed || a.prepares != this {
		s.shut()
		return Handle{}, ErrHandle
	}
	a.channel, a.request, a.ready = s, r, true
	return Handle{owner: a, prepared: this, Digest: r.body.SHA256}, nil
}

func (a *adapter) open(ctx context.Context, r request, report Report) (*stream, request, error) {
	if err := a.speak.ready(ctx, a.dial, report); err != nil {
		return nil, r, err
	}
	conn, err := a.dial.Channel(ctx)
	if err != nil {
		if errors.Is(err, ErrGone) {
			return nil, r, fail(WorkerLost, err, "the worker ended during preparation")
		}
		return nil, r, fail(Unavailable, err, "no channel to the ready worker")
	}
	s := newStream(conn)
	r, err = a.speak.prepare(ctx, s, r, report)
	return s, r, err
}

// Execute implements [Adapter]. The request's timeout counts from here to the
// last byte of the answer.
func (a *adapter) Execute(ctx context.Context, h Handle, _ Report) (Outcome, error) {
	a.mu.Lock()
	if h.owner != a || h.prepared != a.prepares || !a.ready || a.closed {
		a.mu.Unlock()
		return Outcome{}, ErrHandle
	}
	a.ready = false
	s, r := a.channel, a.request
	a.mu.Unlock()
	defer s.shut()

	timed, cancel := context.WithTimeoutCause(ctx, a.offer.Request.Timeout, errExecute)
	defer cancel()
	out, err := a.speak.execute(timed, s, r)
	// A reply whose last byte came after the deadline is refused even if it was
	// already buffered.
	if timed.Err() == nil && err == nil {
		return out, nil
	}
	switch cause := context.Cause(timed); {
	case context.Cause(ctx) != nil:
		return Outcome{}, context.Cause(ctx)
	case errors.Is(cause, errExecute):
		return Outcome{}, fail(WorkerTimeout, errExecute, "no whole answer within %s", a.offer.Request.Timeout)
	}
	return Outcome{}, err
}

// Close implements [Adapter].
func (a *adapter) Close() error {
	a.mu.Lock()
	a.closed, a.ready = true, false
	s := a.channel
	a.channel = nil
	a.mu.Unlock()
	if s != nil {
		s.shut()
	}
	return nil
}

// checkInput is the offering's own admission rule.
func checkInput(rule offering.Input, in Input) error {
	if in.Length > rule.MaxBytes {
		return fail(InvalidInput, nil, "the input has %d bytes; this offering takes at most %d", in.Length, rule.MaxBytes)
	}
	if !sameMedia(in.ContentType, rule.ContentType) {
		return fail(InvalidInput, nil, "the input's content type is not %s", rule.ContentType)
	}
	if rule.Schema == nil && !isJSON(rule.ContentType) || rule.From == offering.FromUpload {
		return nil // an upload is bytes; its length and digest were verified
	}
	data, err := in.read()
	if err != nil {
		return err
	}
	if !jsontext.Value(data).IsValid() {
		return fail(InvalidInput, nil, "the input is not one JSON value")
	}
	if rule.Schema != nil {
		if err := rule.Schema.Check(data); err != nil {
			return fail(InvalidInput, err, "the input does not match the schema: %v", err)
		}
	}
	return nil
}

// read is the whole input, proved to be what was verified.
func (in Input) read() ([]byte, error) {
	data, err := io.ReadAll(io.NewSectionReader(in.Bytes, 0, in.Length))
	if err != nil {
		return nil, fail(Protocol, err, "the input cannot be read back")
	}
	if protocol.DigestOf(data) != in.SHA256 {
		return nil, fail(Protocol, errChanged, "the input changed after it was verified")
	}
	return data, nil
}

// claim adds what a worker says of itself, where it can be kept as it is.
func claim(all []Claim, name, value string) []Claim {
	if value == "" || len(value) > MaxClaimBytes || len(all) == MaxClaims || !printable(value) {
		return all
	}
	return append(all, Claim{name, value})
}

// printable reports whether s is plain ASCII without controls: names of models
// are, and nothing else is repeated beside a result.
func printable(s string) bool {
	for _, c := range []byte(s) {
		if c < 0x20 || c > 0x7e {
			return false
		}
	}
	return true
}

// count adds a non-negative whole number that a worker counted.
func count(all []Claim, name string, n *int64) []Claim {
	if n == nil || *n < 0 {
		return all
	}
	return claim(all, name, fmt.Sprint(*n))
}
