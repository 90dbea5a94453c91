package engine

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"sync"
	"time"

	containerd "github.com/containerd/containerd/v2/client"
	"github.com/containerd/containerd/v2/pkg/namespaces"
	"github.com/hashicorp/go-hclog"
	"github.com/quittance/quittance/protocol"
)

// reconnectMost bounds the pause between two attempts to reach the daemon.
const reconnectMost = 2 * time.Second

// healthTimeout is how long a daemon may take for the cheapest question.
const healthTimeout = 3 * time.Second

// Engine is a connection to one containerd. It is safe for concurrent use.
type Engine struct {
	o      Options
	client *containerd.Client
	log    hclog.Logger

	ended  context.Context // ends with Close
	cancel context.CancelFunc
	wg     sync.WaitGroup

	mu      sync.Mutex // guards what follows
	health  protocol.Engine
	changed chan struct{} // closed and replaced when health.Available changes
	images  map[string]Image
}

// Open prepares the connection. It does not require that containerd answers
// now: [Engine.Health] and the hints say when it does. The first check is made
// before it returns, so that Health is never a guess; ctx bounds that check only.
func Open(ctx context.Context, o Options) (*Engine, error) {
	o, err := withDefaults(o)
	if err != nil {
		return nil, err
	}
	client, err := containerd.New(o.Address,
		containerd.WithDefaultNamespace(o.Namespace),
		containerd.WithDefaultRuntime(o.Runtime),
		containerd.WithTimeout(reconnectMost))
	if err != nil {
		return nil, fmt.Errorf("engine: %w", err)
	}
	own, cancel := context.WithCancel(context.Background())
	e := &Engine{o: o, client: client, log: o.Logger, ended: own, cancel: cancel, changed: make(chan struct{})}
	e.Check(ctx)
	e.wg.Go(func() { e.watchHealth(own) })
	return e, nil
}

func withDefaults(o Options) (Options, error) {
	for name, path := range map[string]string{
		"address": o.Address, "init path": o.InitPath, "log sink binary": o.LogSink.Binary,
	} {
		if !filepath.IsAbs(path) {
			return o, fmt.Errorf("engine: %s must be an absolute path", name)
		}
	}
	if o.LogSink.Verb == "" {
		return o, errors.New("engine: the log sink's verb is missing")
	}
	if o.LogSink.Owns == nil {
		o.LogSink.Owns = func(string) bool { return true }
	}
	setDefault(&o.Namespace, Namespace)
	setDefault(&o.Snapshotter, "overlayfs")
	setDefault(&o.Runtime, "io.containerd.runc.v2")
	setDefault(&o.HealthInterval, 2*time.Second)
	setDefault(&o.Deadlines.Read, 10*time.Second)
	setDefault(&o.Deadlines.Create, 60*time.Second)
	setDefault(&o.Deadlines.Start, 30*time.Second)
	setDefault(&o.Deadlines.Kill, 10*time.Second)
	setDefault(&o.Deadlines.Delete, 60*time.Second)
	setDefault(&o.Deadlines.Image, 30*time.Minute)
	if o.Deadlines.Delete < leastDelete {
		return o, fmt.Errorf("engine: the deadline for deletions must be at least %s", leastDelete)
	}
	if o.Logger == nil {
		o.Logger = hclog.NewNullLogger()
	}
	return o, nil
}

func setDefault[T comparable](field *T, value T) {
	var zero T
	if *field == zero {
		*field = value
	}
}

// Close ends the connection and every watch.
func (e *Engine) Close() error {
	e.cancel()
	err := e.client.Close()
	e.wg.Wait()
	return err
}

// call gives a remote call its namespace and its deadline.
func (e *Engine) call(ctx context.Context, limit time.Duration) (context.Context, context.CancelFunc) {
	return context.WithTimeout(namespaces.WithNamespace(ctx, e.o.Namespace), limit)
}

// Health is the last known state, from checks at a fixed interval.
func (e *Engine) Health() protocol.Engine {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.health
}

// Check asks containerd now and returns what Health then says.
func (e *Engine) Check(ctx context.Context) protocol.Engine {
	ctx, cancel := e.call(ctx, healthTimeout)
	defer cancel()
	version, err := e.client.Version(ctx)
	now := protocol.Engine{Available: err == nil, Version: version.Version}
	if err != nil {
		now.Detail = fmt.Sprintf("containerd at %s does not answer; see `systemctl status containerd`", e.o.Address)
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	if err != nil {
		now.Version = e.health.Version // the last one that it told
	}
	if e.health.Available != now.Available {
		close(e.changed)
		e.changed = make(chan struct{})
		if now.Available {
			e.log.Info("engine available", "version", now.Version)
		} else {
			e.log.Warn("engine unavailable", "detail", now.Detail, "error", err)
		}
	}
	e.health = now
	return now
}

// state is Health with a channel that is closed at the next change of
// availability.
func (e *Engine) state() (available bool, changed <-chan struct{}) {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.health.Available, e.changed
}

func (e *Engine) watchHealth(ctx context.Context) {
	tick := time.NewTicker(e.o.HealthInterval)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
			e.Check(ctx)
		}
	}
}

// LongestCall is the time after which an effect whose call timed out can no
// longer land.
func (e *Engine) LongestCall() time.Duration {
	d := e.o.Deadlines
	return max(d.Read, d.Create, d.Start, d.Kill, d.Delete)
}
