// Package chronicle tells what became durable: one log line and one count per
// receipt, each with the allocation's purpose, the controller's attempt key. It
// stands between core and the journal and passes everything on unchanged.
//
//	core ─► chronicle ─► journal
//	            │ once durable
//	            └─► one line per receipt, figures
//
// It owns the names of these events, which are the receipt kinds, and who is
// who: the purposes and devices of allocations that are not released. It must
// not decide, delay or change anything; what it cannot read it says and lets
// pass.
package chronicle

import (
	"slices"
	"sync"
	"time"

	"github.com/go-json-experiment/json"
	"github.com/hashicorp/go-hclog"

	"github.com/quittance/quittance/hostagent/internal/core"
	"github.com/quittance/quittance/protocol"
)

// Figures are what is counted; *metrics.Figures is one.
type Figures interface {
	Commit(entries int, took time.Duration)
	Receipt(kind protocol.Kind)
	Started(protocol.StartedBody)
	Exited(protocol.ExitedBody)
	Retired(protocol.RetiredBody)
	Leased(devices []protocol.Device, by int)
}

// Chronicle is a [core.Journal] that tells of another one.
type Chronicle struct {
	next    core.Journal
	log     hclog.Logger
	figures Figures

	mu   sync.Mutex // guards what follows
	open map[protocol.Number]about
}

// about is what is known of an allocation that is not released.
type about struct {
	purpose string
	devices []protocol.Device // held now
}

// New makes a chronicle of what next will make durable; state is what is
// durable already.
func New(next core.Journal, state *core.State, figures Figures, log hclog.Logger) *Chronicle {
	c := &Chronicle{next: next, log: log, figures: figures, open: map[protocol.Number]about{}}
	for _, n := range state.Numbers() {
		a := state.Allocation(n)
		known := about{purpose: a.Accepted.Purpose}
		if a.Retired == nil {
			known.devices = a.Accepted.Devices
			figures.Leased(known.devices, +1)
		}
		c.open[n] = known
	}
	return c
}

// Purpose is the purpose of an allocation that is not released, else "".
func (c *Chronicle) Purpose(n protocol.Number) string {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.open[n].purpose
}

// Append implements [core.Journal].
func (c *Chronicle) Append(entries []core.Entry, done func(error)) {
	c.next.Append(entries, c.told(entries, done))
}

// Release implements [core.Journal].
func (c *Chronicle) Release(base *core.ReleaseBase, entries []core.Entry, done func(error)) {
	c.next.Release(base, entries, c.told(entries, done))
}

// Space implements [core.Journal].
func (c *Chronicle) Space() core.Space { return c.next.Space() }

// told tells of entries once they are durable, before whoever waits for them
// acts on it.
func (c *Chronicle) told(entries []core.Entry, done func(error)) func(error) {
	began := time.Now()
	return func(err error) {
		if err == nil {
			c.figures.Commit(len(entries), time.Since(began))
			for _, e := range entries {
				if e.Receipt {
					c.tell(e.Payload)
				}
			}
		}
		done(err)
	}
}

// tell writes one receipt's line. The leaf is our own: it was encoded by core.
func (c *Chronicle) tell(leaf []byte) {
	var r protocol.Receipt
	if err := json.Unmarshal(leaf, &r); err != nil {
		c.log.Error("receipt_unreadable", "error", err)
		return
	}
	c.figures.Receipt(r.Kind)
	fields := []any{"index", int64(r.Index)}
	if r.Number == nil {
		c.whole(r, fields)
		return
	}
	fields = append(fields, "number", int64(*r.Number))
	var err error
	level := hclog.Info
	switch r.Kind {
	case protocol.KindAccepted:
		var b protocol.AcceptedBody
		if err = json.Unmarshal(r.Body, &b); err == nil {
			c.know(*r.Number, b)
			if b.Profile != nil {
				fields = append(fields, "profile", *b.Profile, "nonce", string(*b.Nonce))
			} else {
				fields = append(fields, "remark", "burnt: nothing is dispatched")
			}
		}
	case protocol.KindStarted:
		var b protocol.StartedBody
		if err = json.Unmarshal(r.Body, &b); err == nil {
			c.figures.Started(b)
			fields = append(fields, "container", b.Container.ID, "pid", b.PID, "create_ms", b.Durations.CreateMillis, "start_ms", b.Durations.StartMillis)
		}
	case protocol.KindOOMObserved:
		level = hclog.Warn
	case protocol.KindExited:
		var b protocol.ExitedBody
		if err = json.Unmarshal(r.Body, &b); err == nil {
			c.figures.Exited(b)
			fields = append(fields, exit(b)...)
		}
	case protocol.KindStuck:
		var b protocol.StuckBody
		level = hclog.Error
		if err = json.Unmarshal(r.Body, &b); err == nil {
			fields = append(fields, "step", b.Step, "process_state", b.ProcessState, "since_ms", b.SinceMillis, "error", b.Detail)
		}
	case protocol.KindRetired:
		var b protocol.RetiredBody
		if err = json.Unmarshal(r.Body, &b); err == nil {
			c.figures.Retired(b)
			c.free(*r.Number)
			fields = append(fields, "reason", string(b.Reason), "dispatched", b.Dispatched, "verdict", string(b.OOM.Verdict))
			if b.Error != "" {
				fields = append(fields, "error", b.Error)
			}
		}
	default: // unstuck, consumed, and kinds without more to say
	}
	if err != nil {
		c.log.Error("receipt_unreadable", "kind", string(r.Kind), "index", int64(r.Index), "error", err)
	}
	c.log.Log(level, string(r.Kind), append(fields, "purpose", c.Purpose(*r.Number))...)
}

func exit(b protocol.ExitedBody) []any {
	fields := []any{"source", string(b.Exit.Source), "verdict", string(b.OOM.Verdict)}
	if b.OOM.Scope != nil {
		fields = append(fields, "scope", string(*b.OOM.Scope))
	}
	if b.Exit.Code != nil {
		fields = append(fields, "code", *b.Exit.Code)
	}
	if b.RunMillis != nil {
		fields = append(fields, "run_ms", *b.RunMillis)
	}
	return fields
}

// whole tells of a receipt that concerns no single allocation; a release is
// told once for each of its numbers, so that every purpose has its end.
func (c *Chronicle) whole(r protocol.Receipt, fields []any) {
	if r.Kind != protocol.KindReleased {
		c.log.Info(string(r.Kind), fields...)
		return
	}
	var b protocol.ReleasedBody
	if err := json.Unmarshal(r.Body, &b); err != nil {
		c.log.Error("receipt_unreadable", "kind", string(r.Kind), "index", int64(r.Index), "error", err)
		return
	}
	released := c.forget(b)
	for _, n := range released {
		c.log.Info(string(r.Kind), append(slices.Clone(fields), "number", int64(n.number), "purpose", n.purpose)...)
	}
	c.log.Info("frontier_released", append(fields, "frontier", int64(b.Frontier), "numbers", len(released), "carried", len(b.Except))...)
}

func (c *Chronicle) know(n protocol.Number, b protocol.AcceptedBody) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.open[n] = about{purpose: b.Purpose, devices: b.Devices}
	c.figures.Leased(b.Devices, +1)
}

// free gives the devices of a retired allocation back.
func (c *Chronicle) free(n protocol.Number) {
	c.mu.Lock()
	defer c.mu.Unlock()
	known := c.open[n]
	c.figures.Leased(known.devices, -1)
	known.devices = nil
	c.open[n] = known
}

type gone struct {
	number  protocol.Number
	purpose string
}

// forget lets go of what a release lets go of, in order.
func (c *Chronicle) forget(b protocol.ReleasedBody) []gone {
	c.mu.Lock()
	defer c.mu.Unlock()
	var all []gone
	for n, known := range c.open {
		if n <= b.Frontier && !slices.Contains(b.Except, n) {
			all = append(all, gone{n, known.purpose})
			delete(c.open, n)
		}
	}
	slices.SortFunc(all, func(a, b gone) int { return int(a.number - b.number) })
	return all
}
