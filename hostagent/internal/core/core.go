package core

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/quittance/quittance/hostagent/internal/failpoint"
	"github.com/quittance/quittance/protocol"
)

// Journal makes entries durable: the ledger together with the receipt log.
type Journal interface {
	// Append queues entries in order and does not wait for the disk. done is
	// called once they are durable, in the order of the calls, or with the
	// error after which nothing will be durable any more.
	Append(entries []Entry, done func(error))
	// Release queues entries at the head of a new segment that begins with a
	// base, and afterwards removes the segments that nothing needs any more.
	Release(base *ReleaseBase, entries []Entry, done func(error))
	// Space is asked before every event, in the goroutine of the calls above:
	// what fits into it is taken by the next of them, whatever the disk does.
	Space() Space
}

// Workers carry out effects.
type Workers interface {
	// Do begins an effect. It does not block and it does not call back before
	// it returns; results are given to [Core.Post].
	Do(Effect)
}

// Clock reads the clocks.
type Clock interface {
	Now() Now
}

// Config is what a [Core] needs.
type Config struct {
	State   *State
	Session *Session
	Journal Journal
	Workers Workers
	Clock   Clock
	// Fed is called at every turn of the loop, at least once in a tick, unless
	// what was decided waits for the ledger and nothing of it has become durable
	// since the last call: a watchdog may rely on it for both.
	Fed func()
}

// Core is the goroutine that owns state and session. Make it with [New], run
// it with [Core.Run].
type Core struct {
	cfg    Config
	events chan request
	over   chan struct{} // closed when Run has returned
	wake   chan struct{} // capacity 1: durable or failed changed
	lastID atomic.Uint64

	mu      sync.Mutex
	durable uint64 // batches that are durable; written by the journal's done
	failed  error  // the journal's first error

	// Owned by Run.
	appended uint64
	fedAt    uint64 // durable at the last call of Fed
	held     []heldOutput
	replies  map[RequestID]chan Reply
}

// request is an event on its way into the loop; reply is nil for notices.
type request struct {
	event Event
	id    RequestID
	reply chan Reply
}

// heldOutput waits for a batch to be durable.
type heldOutput struct {
	batch   uint64
	entries []Entry
	effects []Effect
	replies []Reply
}

// tickInterval is the longest time between two turns of the loop.
const tickInterval = time.Second

// ErrStopping says that the core is not running; whether a request that was on
// its way had its effect is unknown.
var ErrStopping = errors.New("the agent is stopping")

// New prepares a core; nothing runs yet.
func New(cfg Config) *Core {
	if cfg.Fed == nil {
		cfg.Fed = func() {}
	}
	return &Core{
		cfg: cfg, events: make(chan request), over: make(chan struct{}), wake: make(chan struct{}, 1),
		replies: map[RequestID]chan Reply{},
	}
}

// Run takes events until ctx ends, which returns nil, or until the journal
// fails, which returns its error: nothing was acknowledged that is not durable
// and the process must end (I35). versions go into the agent_started receipt.
func (c *Core) Run(ctx context.Context, versions protocol.Versions) error {
	defer close(c.over)
	c.step(Started{Versions: versions})
	timer := time.NewTimer(tickInterval)
	defer timer.Stop()
	for {
		c.feed()
		timer.Reset(c.untilNextDeadline())
		select {
		case <-ctx.Done():
			return nil
		case <-c.wake:
			if err := c.flush(); err != nil {
				return fmt.Errorf("ledger: %w", err)
			}
		case <-timer.C:
			c.step(Tick{})
		case r := <-c.events:
			if r.reply != nil {
				c.replies[r.id] = r.reply
			}
			c.step(r.event)
			if cancel, ok := r.event.(Cancel); ok {
				delete(c.replies, cancel.ID)
			}
		}
	}
}

// feed shows that the loop turns and that the ledger goes on. A write or a sync
// that does not come back is no error, and no wait of a client ends it: the
// watchdog is its deadline (I33), and a process that begins anew reads what the
// disk has (I35).
func (c *Core) feed() {
	c.mu.Lock()
	durable := c.durable
	c.mu.Unlock()
	if len(c.held) > 0 && c.held[0].batch > durable && c.fedAt == durable {
		return
	}
	c.fedAt = durable
	c.cfg.Fed()
}

// untilNextDeadline is how long the loop may sleep.
func (c *Core) untilNextDeadline() time.Duration {
	at, ok := NextDeadline(c.cfg.State, c.cfg.Session)
	if !ok {
		return tickInterval
	}
	left := time.Duration(at-c.cfg.Clock.Now().BootMillis) * time.Millisecond
	return min(tickInterval, max(left, time.Millisecond))
}

// step runs one event and holds its effects and replies until every entry
// decided so far is durable.
func (c *Core) step(e Event) {
	c.cfg.Session.Space = c.cfg.Journal.Space()
	out := Step(c.cfg.State, c.cfg.Session, c.cfg.Clock.Now(), e)
	if len(out.Entries) > 0 {
		c.appended++
		batch := c.appended
		done := func(err error) { c.settled(batch, err) }
		if out.Base != nil {
			c.cfg.Journal.Release(out.Base, out.Entries, done)
		} else {
			c.cfg.Journal.Append(out.Entries, done)
		}
	}
	if len(out.Entries)+len(out.Effects)+len(out.Replies) == 0 {
		return
	}
	c.held = append(c.held, heldOutput{batch: c.appended, entries: out.Entries, effects: out.Effects, replies: out.Replies})
	c.signal()
}

// settled is called by the journal, in order.
func (c *Core) settled(batch uint64, err error) {
	c.mu.Lock()
	if err != nil && c.failed == nil {
		c.failed = err
	}
	if c.failed == nil {
		c.durable = batch
	}
	c.mu.Unlock()
	c.signal()
}

func (c *Core) signal() {
	select {
	case c.wake <- struct{}{}:
	default: // one wake-up is enough for all
	}
}

// flush lets go of what has become durable.
func (c *Core) flush() error {
	c.mu.Lock()
	durable, failed := c.durable, c.failed
	c.mu.Unlock()
	done := 0
	for _, h := range c.held {
		if h.batch > durable {
			break
		}
		strike(h.entries)
		for _, e := range h.effects {
			c.cfg.Workers.Do(e)
		}
		for _, r := range h.replies {
			if reply, ok := c.replies[r.ID]; ok {
				reply <- r // capacity 1, answered once
				delete(c.replies, r.ID)
			}
		}
		done++
	}
	c.held = append(c.held[:0:0], c.held[done:]...)
	return failed
}

// strike passes the failpoints that lie right after a receipt is durable.
func strike(entries []Entry) {
	for _, e := range entries {
		if !e.Receipt {
			if in, _, err := decodeIntent(e.Payload); err == nil && in.Intent == intentRetire {
				failpoint.Hit(failpoint.RetireIntended)
			}
			continue
		}
		r, err := protocol.DecodeReceipt(e.Payload)
		if err != nil {
			panic(fmt.Sprintf("core: a receipt of our own does not decode: %v", err))
		}
		switch r.Kind {
		case protocol.KindAccepted:
			failpoint.Hit(failpoint.Accepted)
		case protocol.KindStarted:
			failpoint.Hit(failpoint.Started)
		case protocol.KindExited:
			failpoint.Hit(failpoint.Exited)
		case protocol.KindRetired:
			failpoint.Hit(failpoint.Retired)
		case protocol.KindConsumed:
			failpoint.Hit(failpoint.Consumed)
		case protocol.KindReleased:
			failpoint.Hit(failpoint.Released)
		}
	}
}

// NewRequestID makes the identity of one request.
func (c *Core) NewRequestID() RequestID { return RequestID(c.lastID.Add(1)) }

// Ask sends a request event and waits for its reply. id is the event's ID.
// A nil error means that everything in the reply is durable. [ErrStopping] and
// ctx's error leave unknown what the request did.
func (c *Core) Ask(ctx context.Context, id RequestID, e Event) (Reply, error) {
	r := request{event: e, id: id, reply: make(chan Reply, 1)}
	select {
	case c.events <- r:
	case <-ctx.Done():
		return Reply{}, ctx.Err()
	case <-c.over:
		return Reply{}, ErrStopping
	}
	select {
	case reply := <-r.reply:
		return reply, nil
	case <-c.over:
		select {
		case reply := <-r.reply:
			return reply, nil
		default:
			return Reply{}, ErrStopping
		}
	case <-ctx.Done():
		c.Post(Cancel{ID: id})
		return Reply{}, ctx.Err()
	}
}

// Post gives the core an event that has no reply. It waits until the loop takes
// it and drops it when the core is over.
func (c *Core) Post(e Event) {
	select {
	case c.events <- request{event: e}:
	case <-c.over:
	}
}
