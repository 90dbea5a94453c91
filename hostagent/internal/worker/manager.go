package worker

import (
	"context"
	"errors"
	"fmt"
	"os"
	"sync"
	"time"

	"github.com/hashicorp/go-hclog"

	"github.com/quittance/quittance/hostagent/internal/cgroup"
	"github.com/quittance/quittance/hostagent/internal/core"
	"github.com/quittance/quittance/hostagent/internal/engine"
	"github.com/quittance/quittance/hostagent/internal/failpoint"
	"github.com/quittance/quittance/hostagent/internal/logsink"
	"github.com/quittance/quittance/protocol"
)

// Config is what workers need.
type Config struct {
	Engine     Engine
	Groups     *cgroup.Manager
	Generation protocol.ID
	BootID     protocol.ID
	LogDir     string // of the captures
	// ExitGrace is how long the engine may take to report an exit that the
	// pidfd has shown already; then the exit is recorded without its code.
	ExitGrace time.Duration
	// Inject makes what leased devices add to a container, or says why it would
	// not be what was leased.
	Inject func(leased []protocol.Device, digest protocol.Digest) (engine.Injection, error)
	// Post gives an event to core. It may block until core takes it.
	Post   func(core.Event)
	Logger hclog.Logger
	// Purpose names the controller's attempt in log lines; nil leaves it out.
	Purpose func(protocol.Number) string
}

// Manager runs the workers. It implements core.Workers.
type Manager struct {
	cfg Config
	ctx context.Context // ends when the agent stops
	end context.CancelFunc
	all sync.WaitGroup

	mu      sync.Mutex
	workers map[protocol.Number]*worker // guarded by mu
}

// New prepares a manager; Close ends it.
func New(cfg Config) *Manager {
	ctx, end := context.WithCancel(context.Background())
	return &Manager{cfg: cfg, ctx: ctx, end: end, workers: map[protocol.Number]*worker{}}
}

// Close tells every worker to end, leaving the containers as they are, and
// waits for them. Post must not block for ever by then.
func (m *Manager) Close() {
	m.end()
	m.all.Wait()
}

// queueLength is more than core can have under way for one number: at most one
// effect that ends in a result, one stop and one forget.
const queueLength = 4

// Do implements core.Workers.
func (m *Manager) Do(e core.Effect) {
	switch e := e.(type) {
	case core.SweepEffect:
		m.all.Go(func() { m.sweep(e) })
	case core.DiscardEffect:
		m.all.Go(func() { m.discard(e) })
	case core.CreateEffect:
		m.worker(e.Number).give(e)
	case core.StartEffect:
		m.worker(e.Number).give(e)
	case core.WatchEffect:
		m.worker(e.Number).give(e)
	case core.StopEffect:
		m.worker(e.Number).give(e)
	case core.InspectEffect:
		m.worker(e.Number).give(e)
	case core.RemoveEffect:
		m.worker(e.Number).give(e)
	case core.ForgetEffect:
		m.mu.Lock()
		w := m.workers[e.Number]
		delete(m.workers, e.Number)
		m.mu.Unlock()
		w.give(e)
	default:
		panic(fmt.Sprintf("worker: no way to carry out a %T", e))
	}
}

// about is the logger of a number.
func (m *Manager) about(n protocol.Number) hclog.Logger {
	log := m.cfg.Logger.With("number", int64(n))
	if m.cfg.Purpose != nil {
		log = log.With("purpose", m.cfg.Purpose(n))
	}
	return log
}

// worker finds the goroutine of a number, or starts it.
func (m *Manager) worker(n protocol.Number) *worker {
	m.mu.Lock()
	defer m.mu.Unlock()
	w := m.workers[n]
	if w == nil {
		w = &worker{m: m, number: n, effects: make(chan core.Effect, queueLength), log: m.about(n)}
		m.workers[n] = w
		m.all.Go(w.run)
	}
	return w
}

// ErrNotRunning says that the allocation has no running container to dial.
var ErrNotRunning = errors.New("worker: the allocation does not run")

// Dial connects to the worker inside the allocation's container; the caller
// closes the socket. Errors are those of package channel, or [ErrNotRunning].
// ctx must have a deadline.
func (m *Manager) Dial(ctx context.Context, n protocol.Number, network, address string) (*os.File, error) {
	m.mu.Lock()
	w := m.workers[n]
	m.mu.Unlock()
	if w == nil {
		return nil, ErrNotRunning
	}
	w.taskMu.RLock()
	defer w.taskMu.RUnlock()
	if w.task == nil {
		return nil, ErrNotRunning
	}
	return w.task.Dial(ctx, network, address)
}

// Live reads the counters of a started allocation now. Where they are gone or
// not ours, ok is false.
func (m *Manager) Live(n protocol.Number, started *protocol.StartedBody) (oom protocol.OOM, peaks protocol.Peaks, ok bool) {
	group, err := m.cfg.Groups.Find(started.Container.Nonce, started.Cgroup)
	if err != nil {
		return oom, peaks, false
	}
	reading, err := group.Read()
	if err != nil || reading.Source == protocol.CountersFromNone {
		return oom, peaks, false
	}
	m.mu.Lock()
	w := m.workers[n]
	m.mu.Unlock()
	var events int64
	if w != nil {
		events = w.limitEvents.Load()
	}
	return cgroup.Verdict(started.Baseline, reading, cgroup.Evidence{LimitEvents: events}), reading.Peaks, true
}

// Captured reads what a container wrote.
func (m *Manager) Captured(n protocol.Number, nonce protocol.ID) (protocol.Log, error) {
	return logsink.Read(m.cfg.LogDir, nonce, n)
}

// sweep removes a container of a number that was retired before it appeared.
func (m *Manager) sweep(e core.SweepEffect) {
	log := m.cfg.Logger.With("number", int64(e.Number), "container", e.ID)
	log.Warn("container_appeared_late", "remedy", "none needed: its number is retired, it is being removed")
	w := &worker{m: m, number: e.Number, log: log, quiet: true}
	removal, err := w.removeAll(m.ctx, core.RemoveEffect{Number: e.Number, Nonce: e.Nonce})
	if err != nil {
		log.Error("late_container_not_removed", "error", err)
		return
	}
	log.Info("late_container_removed", "container", string(removal.Container), "cgroup", string(removal.Cgroup))
}

// GiveUp ends and removes everything of one container of a generation that is
// abandoned, by its exact identity and in retirement's own steps. What is found
// absent is passed over. It repeats until nothing is left, or until ctx ends:
// the error then says which step it was in and why that failed.
func (m *Manager) GiveUp(ctx context.Context, nonce protocol.ID) (protocol.Removal, error) {
	w := &worker{m: m, log: m.cfg.Logger.With("nonce", string(nonce)), quiet: true}
	return w.removeAll(ctx, core.RemoveEffect{Nonce: nonce})
}

// discard removes the capture of a released allocation.
func (m *Manager) discard(e core.DiscardEffect) {
	if _, err := logsink.Remove(m.cfg.LogDir, e.Nonce); err != nil {
		m.cfg.Logger.Error("capture_not_removed", "number", int64(e.Number), "error", err)
	}
	failpoint.Hit(failpoint.CaptureRemoved)
}
