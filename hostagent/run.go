package hostagent

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"sync"
	"time"

	"github.com/coreos/go-systemd/v22/daemon"
	"github.com/hashicorp/go-hclog"
	"github.com/prometheus/client_golang/prometheus"
	"golang.org/x/sys/unix"

	"github.com/quittance/quittance/hostagent/internal/cgroup"
	"github.com/quittance/quittance/hostagent/internal/chronicle"
	"github.com/quittance/quittance/hostagent/internal/core"
	"github.com/quittance/quittance/hostagent/internal/engine"
	"github.com/quittance/quittance/hostagent/internal/failpoint"
	"github.com/quittance/quittance/hostagent/internal/journal"
	"github.com/quittance/quittance/hostagent/internal/logsink"
	"github.com/quittance/quittance/hostagent/internal/metrics"
	"github.com/quittance/quittance/hostagent/internal/process"
	"github.com/quittance/quittance/hostagent/internal/serve"
	"github.com/quittance/quittance/hostagent/internal/worker"
	"github.com/quittance/quittance/protocol"
	"github.com/quittance/quittance/protocol/tlog"
	"github.com/quittance/quittance/protocol/uds"
)

// Options are what the command line adds to the configuration.
type Options struct {
	Version string          // of the program
	Reload  <-chan struct{} // a value means: read the profiles again
	Logger  hclog.Logger
	// Figures takes the agent's metrics; nil for none.
	Figures prometheus.Registerer
}

// Bounds of the agent's own end and calls, and of what new work must leave free.
const (
	shutdownTime   = 2 * time.Second
	listTimeout    = 30 * time.Second
	listPause      = time.Second
	listAgain      = 10 * time.Second // while containers of another generation block new work
	freeForNewWork = 8 << 20          // of the state directory's file system
)

// agent is a running agent's parts, in the order in which they are made; they
// are ended in the reverse order.
type agent struct {
	cfg     Config
	log     hclog.Logger
	lock    io.Closer
	bootID  protocol.ID
	groups  *cgroup.Manager
	signer  *tlog.Signer
	journal *journal.Journal
	state   *core.State
	engine  *engine.Engine
	figures *metrics.Figures
	told    *chronicle.Chronicle
	devices *deviceTable
	workers *worker.Manager
	core    *core.Core
	server  *uds.Server
}

// Run is the agent: it returns nil once ctx has ended and everything of it is
// closed, the containers running on, and an error when it cannot start or its
// ledger fails. It opens the ledger and never creates one.
func Run(ctx context.Context, c Config, o Options) (err error) {
	if c.MemoryBudget.Bytes == 0 {
		if c.MemoryBudget.Bytes, err = machineMemory(); err != nil {
			return err
		}
	}
	a := &agent{cfg: c, log: o.Logger}
	defer func() { err = errors.Join(err, a.close()) }()
	if o.Figures == nil {
		o.Figures = prometheus.NewRegistry() // counted all the same, and never read
	}
	if a.figures, err = metrics.New(o.Figures); err != nil {
		return err
	}
	if err := a.open(ctx, o.Version); err != nil {
		return err
	}
	gid, err := c.GroupID()
	if err != nil {
		return fmt.Errorf("socket_group: %w", err)
	}
	listener, err := uds.Listen(c.Socket, uds.Options{Mode: 0o660, GID: gid, Activation: true})
	if err != nil {
		return err
	}
	failpoint.Hit(failpoint.SocketBound)
	if err := metrics.Watch(o.Figures, a.look); err != nil {
		return errors.Join(err, listener.Close())
	}
	return a.serve(ctx, func() error { return a.server.Serve(listener) }, o)
}

// machineMemory is what the kernel manages: more than that for all allocations
// together invites its host-wide OOM killer.
func machineMemory() (int64, error) {
	var info unix.Sysinfo_t
	if err := unix.Sysinfo(&info); err != nil {
		return 0, fmt.Errorf("read the machine's memory: %w", err)
	}
	return int64(info.Totalram) * int64(info.Unit), nil
}

// open makes every part; nothing runs yet but the engine's connection.
func (a *agent) open(ctx context.Context, version string) error {
	var err error
	if err = checkStateDir(a.cfg); err != nil {
		return err
	}
	if a.lock, err = lockState(a.cfg); err != nil {
		return err
	}
	// Once more: what was on its way may have got further meanwhile.
	if err = checkNotReplacing(a.cfg); err != nil {
		return err
	}
	if err = makePrivateDir(logsDir(a.cfg)); err != nil {
		return err
	}
	if a.bootID, err = process.BootID(); err != nil {
		return err
	}
	if a.groups, err = cgroup.Open(cgroup.Options{Root: a.cfg.WorkersCgroup()}); err != nil {
		return err
	}
	if a.signer, err = tlog.LoadKeyFile(hostKeyFile(a.cfg)); err != nil {
		return fmt.Errorf("%w: run `hostagent init`, or put back the key that it made", unusable(err))
	}
	options := ledgerOptions(a.cfg)
	options.Logger = a.log.Named("ledger")
	if a.journal, a.state, err = journal.Open(ledgerDir(a.cfg), options, a.signer); err != nil {
		return err
	}
	failpoint.Hit(failpoint.LedgerOpened)
	a.devices = newDeviceTable(a.cfg)
	a.told = chronicle.New(a.journal, a.state, leasedFigures{a.figures, a.devices}, a.log.Named("receipts"))
	if a.engine, err = openEngine(ctx, a.cfg, a.log); err != nil {
		return err
	}
	session := core.NewSession(a.bootID, a.groups.Mode(), core.Bounds{
		MaxSlots: int(a.cfg.MaxSlots), MaxUnreleased: int(a.cfg.MaxUnreleased), MemoryBudget: a.cfg.MemoryBudget.Bytes,
		StuckAfterMillis: a.cfg.StuckAfter.Milliseconds(),
	})
	a.workers = worker.New(worker.Config{
		Engine: a.figures.Engine(a.engine), Groups: a.groups, Generation: a.state.Generation, BootID: a.bootID, LogDir: logsDir(a.cfg),
		ExitGrace: a.cfg.ExitGrace.Duration, Inject: a.devices.inject, Post: func(e core.Event) { a.core.Post(e) }, Logger: a.log.Named("worker"),
		Purpose: a.told.Purpose,
	})
	a.core = core.New(core.Config{
		State: a.state, Session: session, Journal: a.told, Workers: a.workers, Clock: clock{}, Fed: watchdog(a.log),
	})
	return a.openServer(version)
}

func (a *agent) openServer(version string) error {
	hostKey, err := tlog.ParsePublicKey(a.signer.PublicKey())
	if err != nil {
		return err
	}
	controllers, err := a.cfg.ControllerUIDs.Resolve()
	if err != nil {
		return fmt.Errorf("controller_uids: %w", err)
	}
	operators, err := a.cfg.OperatorUIDs.Resolve()
	if err != nil {
		return fmt.Errorf("operator_uids: %w", err)
	}
	a.server = uds.NewServer(serve.New(serve.Config{
		Core: a.core, Receipts: a.journal.Receipts(), Workers: a.workers, Generation: a.state.Generation, HostKey: hostKey,
		Versions: versions(version), ControllerUIDs: controllers, OperatorUIDs: operators, Now: clock{}.Now,
		Purpose: a.told.Purpose, Observe: a.figures.Request, NoSpace: a.noSpace, Devices: a.devices.offered, Logger: a.log.Named("serve"),
	}), uds.Limits{ErrorLog: a.log.Named("http").StandardLogger(&hclog.StandardLoggerOptions{ForceLevel: hclog.Debug})})
	return nil
}

// noSpace reports that new work would eat what the engine needs to retire the
// existing (I36). The ledger looks at its own space.
func (a *agent) noSpace() bool {
	var st unix.Statfs_t
	if err := unix.Statfs(a.cfg.StateDir, &st); err != nil {
		a.log.Error("statfs_failed", "error", err)
		return true
	}
	return int64(st.Bavail)*st.Bsize < freeForNewWork
}

func openEngine(ctx context.Context, c Config, log hclog.Logger) (*engine.Engine, error) {
	self, err := os.Executable()
	if err != nil {
		return nil, fmt.Errorf("find this program for the log sink: %w", err)
	}
	return engine.Open(ctx, engine.Options{
		Address: c.EngineAddress, Snapshotter: c.Snapshotter, InitPath: c.InitPath,
		LogSink: engine.LogSinkCommand{Binary: self, Verb: LogSinkVerb, Owns: func(argument string) bool {
			sink, err := logsink.ParseArgument(argument)
			return err == nil && sink.Dir == logsDir(c)
		}},
		Deadlines: engine.Deadlines{
			Read: c.EngineReadTime.Duration, Create: c.EngineMakeTime.Duration, Start: c.EngineStartTime.Duration,
			Delete: c.EngineDropTime.Duration,
		},
		Logger: log.Named("engine"),
	})
}

// serve runs everything until ctx ends or one part fails.
func (a *agent) serve(ctx context.Context, accept func() error, o Options) error {
	ctx, stop := context.WithCancelCause(ctx)
	defer stop(nil)
	var all sync.WaitGroup
	defer all.Wait()
	defer stop(nil)

	a.sweepCaptures()
	coreOver := make(chan struct{})
	coreCtx, endCore := context.WithCancel(context.Background())
	defer endCore()
	all.Go(func() {
		defer close(coreOver)
		if err := a.core.Run(coreCtx, versions(o.Version)); err != nil {
			stop(err)
		}
	})
	offered := &offer{cfg: a.cfg, engine: a.engine, devices: a.devices, post: a.core.Post, log: a.log.Named("profiles"), last: map[string]string{}}
	poke := make(chan struct{}, 1)
	a.core.Post(core.EngineChanged{Engine: notCompared(a.engine.Health())})
	offered.read()
	offered.check(ctx)
	all.Go(func() { a.followEngine(ctx, poke) })
	all.Go(func() { offered.run(ctx, o.Reload, poke) })
	all.Go(func() {
		if err := accept(); err != nil {
			stop(fmt.Errorf("socket: %w", err))
		}
	})
	a.log.Info("serving", "socket", a.cfg.Socket, "generation", string(a.state.Generation), "cgroup", string(a.groups.Mode()),
		"engine", a.engine.Health().Version)
	a.notify(daemon.SdNotifyReady + "\nSTATUS=serving " + a.cfg.Socket)

	select {
	case <-ctx.Done():
	case <-a.journal.Failed():
		stop(a.journal.Err())
	}
	a.notify(daemon.SdNotifyStopping)
	a.log.Info("stopping", "remark", "containers run on")
	// Long polls end with their connections; a request that is being written to
	// the ledger gets the time to be answered.
	closing, cancel := context.WithTimeout(context.Background(), shutdownTime)
	defer cancel()
	if err := a.server.Shutdown(closing); err != nil {
		if err := a.server.Close(); err != nil {
			a.log.Warn("server_close_failed", "error", err)
		}
	}
	endCore()
	<-coreOver
	if err := context.Cause(ctx); err != nil && !errors.Is(err, context.Canceled) {
		return err
	}
	return nil
}

// close ends what open made, ledger and lock last: workers may still post.
func (a *agent) close() error {
	var err error
	if a.workers != nil {
		a.workers.Close()
	}
	if a.engine != nil {
		err = errors.Join(err, a.engine.Close())
	}
	if a.journal != nil {
		err = errors.Join(err, a.journal.Close())
	}
	if a.lock != nil {
		err = errors.Join(err, a.lock.Close())
	}
	return err
}

// followEngine passes the engine's health on, and what it holds after every
// connection. After a start the engine counts as available only once what it
// holds was compared with the ledger: before, a number could be handed out that
// one of its containers already has (I9). As long as containers of another
// generation block new work it looks again now and then: once they are gone,
// work goes on by itself.
func (a *agent) followEngine(ctx context.Context, poke chan<- struct{}) {
	again := time.NewTicker(listAgain)
	defer again.Stop()
	blocked := false
	resync := func() {
		var ok bool
		if blocked, ok = a.list(ctx); !ok {
			return // the next connection brings the next resync
		}
		a.core.Post(core.EngineChanged{Engine: a.engine.Health()})
		select {
		case poke <- struct{}{}:
		default: // one check is enough for all
		}
	}
	for hints := a.engine.Events(ctx); ; {
		select {
		case <-again.C:
			if blocked {
				resync()
			}
		case hint, open := <-hints:
			if !open {
				return
			}
			switch hint.Kind {
			case engine.HintUnavailable:
				a.core.Post(core.EngineChanged{Engine: notCompared(a.engine.Health())})
			case engine.HintResync:
				resync()
			case engine.HintExit, engine.HintOOM:
				// Every worker has its own witnesses; a hint adds nothing to them.
			}
		}
	}
}

// notCompared is an engine's health as long as nobody knows what it holds.
func notCompared(e protocol.Engine) protocol.Engine {
	if e.Available {
		e.Available, e.Detail = false, "what it holds is being compared with the ledger"
	}
	return e
}

// list compares what the engine holds, and tries again while it answers at all.
// It says whether containers of another generation are there.
func (a *agent) list(ctx context.Context) (foreign, ok bool) {
	pause := time.NewTicker(listPause)
	defer pause.Stop()
	for {
		call, cancel := context.WithTimeout(ctx, listTimeout)
		containers, err := a.engine.List(call)
		cancel()
		if err == nil {
			listed := make([]core.Listed, len(containers))
			for i, c := range containers {
				listed[i] = core.Listed{ID: c.ID, Generation: c.Generation, Nonce: c.Nonce, Number: c.Number}
				foreign = foreign || c.Generation != a.state.Generation
			}
			a.core.Post(core.EngineListed{Containers: listed})
			return foreign, true
		}
		a.log.Warn("engine_list_failed", "error", err)
		if !a.engine.Health().Available {
			return false, false
		}
		select {
		case <-ctx.Done():
			return false, false
		case <-pause.C:
		}
	}
}

// sweepCaptures removes captures whose allocation was released when the agent
// ended before it could.
func (a *agent) sweepCaptures() {
	nonces, err := logsink.List(logsDir(a.cfg))
	if err != nil {
		a.log.Error("captures_unlisted", "error", err)
		return
	}
	for _, nonce := range nonces {
		if a.state.ByNonce(nonce) != nil {
			continue
		}
		if _, err := logsink.Remove(logsDir(a.cfg), nonce); err != nil {
			a.log.Error("capture_not_removed", "nonce", string(nonce), "error", err)
		}
	}
}

// notify tells systemd, where it listens.
func (a *agent) notify(state string) {
	if _, err := daemon.SdNotify(false, state); err != nil {
		a.log.Warn("sd_notify_failed", "error", err)
	}
}

// watchdog returns what core's loop calls at every turn: systemd's watchdog is
// fed by that goroutine only.
func watchdog(log hclog.Logger) func() {
	interval, err := daemon.SdWatchdogEnabled(false)
	if err != nil {
		log.Warn("watchdog_unusable", "error", err)
	}
	if err != nil || interval == 0 {
		return nil
	}
	var fed time.Time
	return func() {
		if now := time.Now(); now.Sub(fed) >= interval/4 {
			fed = now
			if _, err := daemon.SdNotify(false, daemon.SdNotifyWatchdog); err != nil {
				log.Warn("watchdog_notify_failed", "error", err)
			}
		}
	}
}

// clock reads the machine's clocks.
type clock struct{}

// Now implements core.Clock.
func (clock) Now() core.Now {
	return core.Now{BootMillis: process.Now().Milliseconds(), Wall: protocol.TimestampOf(time.Now())}
}
