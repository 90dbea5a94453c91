// Package desk brings operators' decisions to whoever drives an attempt.
//
// It owns who waits, why, and what may be decided about it; a decision is taken
// by the one goroutine that owns the attempt (I30), which answers how it went.
// It must not know sockets, and it changes no record.
//
//	driver: Wait(key, waiting) ─► place ──Decisions()──► Request ─► Settle(err)
//	operator: Decide(key, decision) ──────────────────►    │ waits for Settle
package desk

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"

	"github.com/quittance/quittance/protocol"
)

// Action is what an operator may decide.
type Action string

// The actions.
const (
	Resume  Action = "resume"  // go on now
	Resolve Action = "resolve" // it was looked at; the lane is free
)

// Offer is a decision that is possible, with what is lost by it.
type Offer struct {
	Action Action
	Lost   string
}

// Waiting says what an attempt waits for.
type Waiting struct {
	Step   string
	Reason string // our own words, no secret
	Since  protocol.Timestamp
	Until  protocol.Timestamp // when the step is taken up again by itself; 0 for never
	Offers []Offer
}

// Decision is an operator's.
type Decision struct {
	Action    Action
	UID       int64
	Reference string // the service's identity of the attempt, for Resolve
	Note      string // why, for Resolve
}

// ErrNotWaiting says that nobody waits for a decision about the attempt now.
var ErrNotWaiting = errors.New("desk: the attempt does not wait for a decision")

// ErrOtherReference says that the decision names another attempt.
var ErrOtherReference = errors.New("desk: the reference is not this attempt's")

// NotOfferedError says that the attempt waits, and not for this decision.
type NotOfferedError struct{ Action Action }

func (e *NotOfferedError) Error() string {
	return fmt.Sprintf("desk: the attempt cannot be decided by %s now", e.Action)
}

// Desk is where decisions are given. The zero value is ready; a nil one takes
// none.
type Desk struct {
	mu     sync.Mutex
	places map[string]*Place // by attempt key; guarded by mu
}

// Place is one driver's wait.
type Place struct {
	desk     *Desk
	key      string
	waiting  Waiting
	requests chan Request
	left     chan struct{}
}

// Request is a decision that wants its answer.
type Request struct {
	Decision
	answer chan error // one place
}

// Settle tells the operator how it went, once.
func (r Request) Settle(err error) { r.answer <- err }

// Wait takes the place of an attempt's driver until [Place.Leave].
func (d *Desk) Wait(key string, w Waiting) *Place {
	p := &Place{desk: d, key: key, waiting: w, requests: make(chan Request), left: make(chan struct{})}
	if d == nil {
		return p
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.places == nil {
		d.places = map[string]*Place{}
	}
	d.places[key] = p
	return p
}

// Decisions delivers what operators decide. Whoever receives one settles it.
func (p *Place) Decisions() <-chan Request { return p.requests }

// Leave ends the wait.
func (p *Place) Leave() {
	close(p.left)
	if p.desk == nil {
		return
	}
	p.desk.mu.Lock()
	defer p.desk.mu.Unlock()
	if p.desk.places[p.key] == p {
		delete(p.desk.places, p.key)
	}
}

// Waiting is what an attempt waits for now.
func (d *Desk) Waiting(key string) (Waiting, bool) {
	d.mu.Lock()
	defer d.mu.Unlock()
	p, ok := d.places[key]
	if !ok {
		return Waiting{}, false
	}
	return p.waiting, true
}

// Decide gives a decision to the attempt's driver and returns how it went:
// [ErrNotWaiting] and [*NotOfferedError] changed nothing. Once the driver has
// it, ctx no longer takes it back.
func (d *Desk) Decide(ctx context.Context, key string, decision Decision) error {
	d.mu.Lock()
	p, ok := d.places[key]
	d.mu.Unlock()
	if !ok {
		return ErrNotWaiting
	}
	if !slices.ContainsFunc(p.waiting.Offers, func(o Offer) bool { return o.Action == decision.Action }) {
		return &NotOfferedError{decision.Action}
	}
	r := Request{decision, make(chan error, 1)}
	select {
	case p.requests <- r:
		return <-r.answer
	case <-p.left:
		return ErrNotWaiting
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}
