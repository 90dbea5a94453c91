// Package breaker decides, from how the last attempts of one offering ended,
// whether it may take another job. It is pure: time comes in. It must not know
// what an offering is or how an attempt is made.
//
//	          n-th bad end in a row                 pause over
//	closed ───────────────────────► open ───────────────────────► trying
//	  ▲ ▲                            ▲  a bad end, longer pause     │ │
//	  │ └── good end                 └──────────────────────────────┘ │
//	  └───────────────────────────── good end ────────────────────────┘
//
// While trying, one job at a time is taken. An end that says nothing of the
// worker (a cancel, a refused input) changes nothing but lets the next try
// begin.
package breaker

import "time"

// End is how an attempt ended, as far as its worker is to blame.
type End int

// The ends.
const (
	Neutral End = iota // says nothing of the worker
	Good               // the worker answered
	Bad                // unavailable, worker_lost or protocol
)

// Bounds of a breaker.
const (
	Limit      = 3 // bad ends in a row that open it
	FirstPause = 30 * time.Second
	MaxPause   = 30 * time.Minute // pauses double up to it
)

// Breaker is the state of one offering. The zero value is closed.
type Breaker struct {
	bad    int           // bad ends in a row
	pause  time.Duration // the last one; 0 while closed
	until  time.Time     // of the pause
	trying bool          // a try is under way; only while pause is not 0
}

// Open reports whether no job may be taken at the given time, and when the next
// try may begin; zero where that waits for the end of the present try.
func (b *Breaker) Open(now time.Time) (open bool, until time.Time) {
	switch {
	case b.pause == 0:
		return false, time.Time{}
	case b.trying:
		return true, time.Time{}
	case now.Before(b.until):
		return true, b.until
	}
	return false, time.Time{}
}

// Took says that a job was taken.
func (b *Breaker) Took() { b.trying = b.pause != 0 }

// Ended says how an attempt ended.
func (b *Breaker) Ended(end End, now time.Time) {
	b.trying = false
	switch end {
	case Good:
		*b = Breaker{}
	case Bad:
		if b.bad++; b.bad < Limit {
			return
		}
		b.pause = min(max(2*b.pause, FirstPause), MaxPause)
		b.until = now.Add(b.pause)
	}
}
