package controllertest

import (
	"fmt"
	"math/rand/v2"
	"strings"
	"sync"
	"time"
)

// Fault is what befalls one exchange.
type Fault int

// The faults. Whether the other side acted is unknown to the sender of every
// one of them but none and delayed.
const (
	FaultNone        Fault = iota
	FaultDropRequest       // the connection breaks before anything was delivered
	FaultDropReply         // the other side acted, its answer is lost
	FaultDuplicate         // delivered twice; the answer to the second arrives
	FaultDelay             // delivered late
	FaultReset             // the connection is reset in the middle of the answer
	faults
)

func (f Fault) String() string {
	return [...]string{"none", "request dropped", "reply dropped", "duplicated", "delayed", "reset"}[f]
}

// maxDelay bounds a delayed delivery.
const maxDelay = 150 * time.Millisecond

// Weather decides from a seed what befalls each exchange, and counts it. It may
// be shared by proxies.
type Weather struct {
	mu     sync.Mutex
	random *rand.Rand
	share  float64 // of the exchanges that something befalls
	counts [faults]int
}

// NewWeather makes a weather in which a share, from 0 to 1, of the exchanges
// meets a fault, each kind as often as the others.
func NewWeather(seed uint64, share float64) *Weather {
	return &Weather{random: rand.New(rand.NewPCG(seed, 1)), share: share}
}

// next draws the fault of one exchange. A nil weather is calm.
func (w *Weather) next() (Fault, time.Duration) {
	if w == nil {
		return FaultNone, 0
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	f := FaultNone
	if w.random.Float64() < w.share {
		f = FaultNone + 1 + Fault(w.random.IntN(int(faults)-1))
	}
	w.counts[f]++
	if f == FaultDelay {
		return f, time.Duration(w.random.Int64N(int64(maxDelay)))
	}
	return f, 0
}

// Calm ends the faults.
func (w *Weather) Calm() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.share = 0
}

// Count is how often a fault was drawn.
func (w *Weather) Count(f Fault) int {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.counts[f]
}

// String lists the counts.
func (w *Weather) String() string {
	var words []string
	for f := range faults {
		words = append(words, fmt.Sprintf("%s %d", f, w.Count(f)))
	}
	return strings.Join(words, ", ")
}
