package controller

import (
	"context"
	"crypto/ed25519"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"time"

	"github.com/hashicorp/go-hclog"

	"github.com/quittance/quittance/controller/api"
	"github.com/quittance/quittance/controller/internal/attempt"
	"github.com/quittance/quittance/controller/internal/claims"
	"github.com/quittance/quittance/controller/internal/desk"
	"github.com/quittance/quittance/controller/internal/executor"
	"github.com/quittance/quittance/controller/internal/host"
	"github.com/quittance/quittance/controller/internal/lane"
	"github.com/quittance/quittance/controller/internal/metrics"
	"github.com/quittance/quittance/controller/internal/observer"
	"github.com/quittance/quittance/controller/internal/offering"
	"github.com/quittance/quittance/controller/internal/provider"
	"github.com/quittance/quittance/controller/internal/publisher"
	"github.com/quittance/quittance/controller/internal/recovery"
	"github.com/quittance/quittance/controller/internal/retry"
	"github.com/quittance/quittance/controller/internal/service"
	"github.com/quittance/quittance/controller/internal/signing"
	"github.com/quittance/quittance/controller/internal/starter"
	"github.com/quittance/quittance/controller/internal/store"
	"github.com/quittance/quittance/protocol"
)

// Bounds of the waits that are not configuration.
const (
	exitWait     = 5 * time.Second  // for the host's exited after a loss, before retirement is asked
	workerEnd    = time.Minute      // for a worker's end once retirement is asked
	finalWait    = 30 * time.Second // after the stop, for what is not settled
	capacityTime = time.Minute      // of allocations refused for want of room
)

// work is the lanes with what they share.
type work struct {
	store   *store.Store
	service *service.Service
	desk    *desk.Desk
}

// openWork opens the attempt store and makes the lanes; nothing is sent.
func openWork(ctx context.Context, c Config, mode Mode, f *face, o Options) (*work, error) {
	offers, err := offering.LoadDir(c.Lanes.OfferingsDir)
	if err != nil {
		return nil, err
	}
	client, err := newProvider(ctx, c, mode, f, o)
	if err != nil {
		return nil, err
	}
	kept := storeConfig(c, client.Origin())
	kept.Written = o.figures.Written
	records, err := openStore(kept, o.Logger)
	if err != nil {
		return nil, err
	}
	if err := prepareInputs(c.UploadsDir(), records); err != nil {
		return nil, errors.Join(err, records.Close())
	}
	agent := host.New(o.figures.Host(host.Dial(c.Host.Socket, records.ID())), seenStore{records}, host.Options{Owner: records.ID(), Log: o.Logger.Named("host")})
	decisions := &desk.Desk{}
	w := &work{records, compose(c, o, offers, client, records, agent, decisions), decisions}
	if err := metrics.Watch(o.Figures, func() metrics.Lanes { return w.look(agent) }); err != nil {
		return nil, errors.Join(err, records.Close())
	}
	return w, nil
}

func (w *work) close() error { return w.store.Close() }

func compose(c Config, o Options, offers []offering.Offering, client *provider.Client, records *store.Store, agent *host.Host, decisions *desk.Desk) *service.Service {
	policy := func(operation string, window time.Duration) retry.Policy {
		return retry.Policy{Window: window, Initial: c.Retry.BackoffMin.Duration, Max: c.Retry.BackoffMax.Duration, Waiting: o.figures.Waiting(operation)}
	}
	reads := policy("read", c.Lanes.ObservationGap.Duration)
	table := &claims.Table{}
	observed := observedAPI{client, records}
	log := o.Logger
	begin := &starter.Starter{
		API: client, Store: records, Claims: table, Policy: policy("start", c.Retry.StartWindow.Duration), Log: log.Named("starter"),
		Scope: storeConfig(c, client.Origin()).Scope,
	}
	run := executor.Config{
		API: client, Host: agent, Log: log.Named("executor"), InputsDir: c.UploadsDir(), Reads: reads, Capacity: policy("allocate", capacityTime),
		ExitWait: exitWait, StopWait: workerEnd, Controller: o.Version,
	}
	publish := &publisher.Publisher{API: client, Policy: policy("terminal", c.Retry.TerminalWindow.Duration), Log: log.Named("publisher")}
	settle := &recovery.Recovery{API: observed, Host: agent, Reads: reads, Log: log.Named("recovery"), Controller: o.Version}
	return service.New(service.Config{
		API: client, Store: records, Host: agent, Claims: table, Offerings: offers, Lanes: c.Lanes.Count,
		Poll: c.Lanes.Poll.Duration, StopTimeout: c.Lanes.StopTimeout.Duration, FinalWait: finalWait,
		Gap: c.Lanes.ObservationGap.Duration, Margin: c.Lanes.ClockMargin.Duration, Version: o.Version, Log: log.Named("service"),
		Repeat: publish.Repeat,
		NewLane: func(number int) *lane.Lane {
			return &lane.Lane{
				Number: number, Starter: begin, Executor: run, Publisher: publish, Recovery: settle, Host: agent, Observed: observed,
				Interval: c.Lanes.Heartbeat.Duration, Gap: c.Lanes.ObservationGap.Duration, Pace: policy("lane", time.Hour), Store: records, Desk: decisions,
				Log: log.Named("lane"),
			}
		},
	})
}

// newProvider makes the signed client of the job service.
func newProvider(ctx context.Context, c Config, mode Mode, f *face, o Options) (*provider.Client, error) {
	key, err := signing.LoadOrCreateKey(c.ProviderKey(), c.Provider.ID)
	if err != nil {
		return nil, fmt.Errorf("provider.key_file: %w", err)
	}
	signer, err := signing.NewSigner(key, time.Now)
	if err != nil {
		return nil, err
	}
	cfg := provider.Config{
		Origin: c.Provider.API, Topology: c.Provider.Topology, Signer: signer, UserAgent: "quittance-controller/" + o.Version, Observe: o.figures.Exchange,
		Timeout: c.Lanes.Exchange.Duration, FetchTimeout: c.Lanes.Transfer.Duration,
	}
	if mode == Serve {
		// The lanes of this process are a provider like any other: their key is
		// registered, their exchanges are signed and go through the listener.
		if err := f.register(ctx, c.Provider.ID, key); err != nil {
			return nil, err
		}
		cfg.Origin, cfg.Topology, cfg.TLS = f.origin, f.jobs.Topology(), f.roots
		cfg.Dial = f.dial
	}
	return provider.New(cfg)
}

// ProviderLine is this node's public key in the form that the job service
// registers; the key is made where there is none.
func ProviderLine(c Config) (string, error) {
	if err := os.MkdirAll(c.StateDir, 0o700); err != nil {
		return "", fmt.Errorf("state_dir: %w", err)
	}
	key, err := signing.LoadOrCreateKey(c.ProviderKey(), c.Provider.ID)
	if err != nil {
		return "", fmt.Errorf("provider.key_file: %w", err)
	}
	public, ok := key.Public().(ed25519.PublicKey)
	if !ok {
		return "", errors.New("provider.key_file: holds no Ed25519 key")
	}
	return signing.AuthorizedLine(c.Provider.ID, public)
}

// prepareInputs makes the folder of inputs and removes what an earlier process
// left there, except of attempts whose allocations are not settled yet: their
// lane removes it once they are.
func prepareInputs(dir string, records *store.Store) error {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return fmt.Errorf("inputs: %w", err)
	}
	if err := executor.Sweep(dir, func(key string) bool {
		e, known := records.Get(key)
		return known && !attempt.HostSettled(e.Record)
	}); err != nil {
		return fmt.Errorf("inputs: %w", err)
	}
	return nil
}

// openStore opens the attempt store; the first start makes it. A directory that
// is there without a store is an error: opening never creates.
func openStore(cfg store.Config, log hclog.Logger) (*store.Store, error) {
	if _, err := os.Stat(cfg.Dir); errors.Is(err, fs.ErrNotExist) {
		if err := store.Create(cfg); err != nil {
			return nil, fmt.Errorf("attempt store: %w", err)
		}
		log.Info("attempt store made", "dir", cfg.Dir)
	}
	s, err := store.Open(cfg)
	if err != nil {
		return nil, fmt.Errorf("attempt store: %w", err)
	}
	for _, name := range s.Leftovers() {
		log.Warn("a write that was never acknowledged was removed", "file", name)
	}
	return s, nil
}

// storeConfig is the attempt store of a configuration at a job service.
func storeConfig(c Config, origin string) store.Config {
	return store.Config{
		Dir: c.AttemptsDir(), MaxActive: c.Lanes.MaxActive, History: c.Lanes.History, DiskReserve: c.Lanes.DiskReserve.Bytes,
		Scope: attempt.Scope{APIOrigin: origin, Provider: c.Provider.ID, Consumer: c.Provider.Consumer, Generation: c.Provider.Generation},
	}
}

// apiOrigin is the job service that the lanes of a mode talk to.
func apiOrigin(c Config, mode Mode) string {
	if mode == Work {
		return c.Provider.API
	}
	return c.LoopbackAPI()
}

// seenStore keeps the witness in the attempt store.
type seenStore struct{ *store.Store }

// Seen implements [host.Witness].
func (s seenStore) Seen(generation protocol.ID) (host.Seen, error) {
	w, _ := s.Witness(generation)
	return host.Seen{Checkpoint: w.Checkpoint, Highest: w.Highest}, nil
}

// SaveSeen implements [host.Witness].
func (s seenStore) SaveSeen(ctx context.Context, generation protocol.ID, seen host.Seen) error {
	return s.SetWitness(ctx, generation, store.Witness{Checkpoint: seen.Checkpoint, Highest: seen.Highest})
}

// observedAPI is the observer's view of the job service.
type observedAPI struct {
	client *provider.Client
	store  *store.Store
}

// Attempt implements [observer.API].
func (a observedAPI) Attempt(ctx context.Context, reference string) (observer.Reading, error) {
	read, reply, err := a.client.Attempt(ctx, reference)
	if f, ok := errors.AsType[*provider.Failure](err); ok && f.Class == provider.ClassRefused && f.Code == api.CodeNotFound {
		return observer.Reading{Reply: f.Reply}, nil
	}
	if err != nil {
		return observer.Reading{}, err
	}
	return observer.Reading{Visible: true, State: read.State, JobState: read.JobState, Reply: reply}, nil
}

// Progress implements [observer.API]: every heartbeat is built anew with a
// higher number.
func (a observedAPI) Progress(ctx context.Context, reference string, phase api.Phase, condition *api.Condition) error {
	_, err := a.client.Progress(ctx, reference, api.Progress{Store: a.store.ID(), Seq: a.store.NextSequence(), Phase: phase, Condition: condition})
	return err
}
