package notice

import (
	"sync"
	"time"
)

// Bounds of the queue (I33).
const (
	maxLines = 4096
	maxBytes = 4 << 20
)

// reporter writes the line about lines that were dropped; it may wait.
type reporter interface {
	Warn(message string, args ...any)
}

// entry is one line on its way; a marker stands for those dropped at its place.
type entry struct {
	size    int
	deliver func() error
	lost    int64 // of a marker
}

// queue holds lines until its goroutine has written them.
type queue struct {
	report reporter
	wake   chan struct{} // capacity 1
	over   chan struct{} // closed when the goroutine has ended

	mu      sync.Mutex // guards what follows
	entries []entry
	bytes   int
	lost    int64 // dropped since the last marker
	closing bool
}

func newQueue(report reporter) *queue {
	q := &queue{report: report, wake: make(chan struct{}, 1), over: make(chan struct{})}
	go q.run()
	return q
}

// add takes a line or drops it; it never waits.
func (q *queue) add(size int, deliver func() error) {
	q.mu.Lock()
	switch {
	case q.closing || len(q.entries) >= maxLines || q.bytes+size > maxBytes:
		q.lost++
	default:
		if q.lost > 0 {
			q.entries, q.lost = append(q.entries, entry{lost: q.lost}), 0
		}
		q.entries = append(q.entries, entry{size: size, deliver: deliver})
		q.bytes += size
	}
	q.mu.Unlock()
	q.poke()
}

func (q *queue) poke() {
	select {
	case q.wake <- struct{}{}:
	default: // one wake-up is enough for all
	}
}

// next takes the first entry; ok is false where there is none. An empty queue
// behind dropped lines yields their marker.
func (q *queue) next() (e entry, ok, closing bool) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if len(q.entries) == 0 {
		if q.lost > 0 {
			e.lost, q.lost = q.lost, 0
			return e, true, q.closing
		}
		return entry{}, false, q.closing
	}
	e = q.entries[0]
	q.entries[0] = entry{} // let its bytes go
	q.entries = q.entries[1:]
	q.bytes -= e.size
	return e, true, q.closing
}

// run is the one goroutine that waits for whoever reads the lines.
func (q *queue) run() {
	defer close(q.over)
	for {
		e, ok, closing := q.next()
		switch {
		case ok && e.deliver != nil:
			if err := e.deliver(); err != nil {
				q.mu.Lock()
				q.lost++
				q.mu.Unlock()
				q.pause(closing)
			}
		case ok:
			q.report.Warn("log_lines_dropped", "lines", e.lost, "remark", "whoever reads the log did not keep up")
		case closing:
			return
		default:
			<-q.wake
		}
	}
}

// failurePause keeps a sink that fails at once from being tried in a hot loop.
const failurePause = 100 * time.Millisecond

func (q *queue) pause(closing bool) {
	if !closing {
		time.Sleep(failurePause)
	}
}

// close lets the goroutine write what is queued, and waits for that at most
// for the time given.
func (q *queue) close(wait time.Duration) {
	q.mu.Lock()
	q.closing = true
	q.mu.Unlock()
	q.poke()
	select {
	case <-q.over:
	case <-time.After(wait):
	}
}
