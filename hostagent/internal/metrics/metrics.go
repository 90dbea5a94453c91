// Package metrics counts and times what the agent does, for Prometheus.
//
// It owns the names, labels and buckets of every figure, and the wrappers that
// take times where a part does not. Labels have few values, known beforehand:
// routes, codes, kinds; never numbers, purposes or file names. It must not
// decide anything, and nothing may depend on what it counts: a figure that
// cannot be read is left out of the scrape.
package metrics

import (
	"context"
	"strings"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/quittance/quittance/hostagent/internal/core"
	"github.com/quittance/quittance/protocol"
)

// Figures are the agent's counters. The zero value is not usable; see [New].
type Figures struct {
	requests       *prometheus.CounterVec
	requestSeconds *prometheus.HistogramVec
	engineCalls    *prometheus.CounterVec
	engineSeconds  *prometheus.HistogramVec
	receipts       *prometheus.CounterVec
	exits          *prometheus.CounterVec
	verdicts       *prometheus.CounterVec
	retirements    *prometheus.CounterVec
	createSeconds  prometheus.Histogram
	startSeconds   prometheus.Histogram
	retireSeconds  prometheus.Histogram
	commitSeconds  prometheus.Histogram
	commitEntries  prometheus.Counter
	devicesLeased  *prometheus.GaugeVec
}

// Buckets in seconds: of calls to other processes, and of one commit.
var (
	callBuckets   = []float64{.005, .01, .025, .05, .1, .25, .5, 1, 2.5, 5, 10, 30, 60}
	commitBuckets = []float64{.0005, .001, .002, .004, .008, .016, .032, .064, .125, .25, .5, 1, 2, 4}
)

// New makes the figures and registers them.
func New(r prometheus.Registerer) (*Figures, error) {
	counter := func(name, help string, labels ...string) *prometheus.CounterVec {
		return prometheus.NewCounterVec(prometheus.CounterOpts{Name: "quittance_agent_" + name, Help: help}, labels)
	}
	times := func(name, help string, buckets []float64, labels ...string) *prometheus.HistogramVec {
		return prometheus.NewHistogramVec(prometheus.HistogramOpts{Name: "quittance_agent_" + name, Help: help, Buckets: buckets}, labels)
	}
	f := &Figures{
		requests:       counter("requests_total", "Requests on the private socket that were answered.", "operation", "disposition", "code"),
		requestSeconds: times("request_seconds", "Time from a request's arrival to its answer; waits that the client asked for are in it.", callBuckets, "operation"),
		engineCalls:    counter("engine_calls_total", "Calls to the container engine that ended.", "operation", "disposition"),
		engineSeconds:  times("engine_call_seconds", "Time of a call to the container engine.", callBuckets, "operation"),
		receipts:       counter("receipts_total", "Receipts that became durable.", "kind"),
		exits:          counter("exits_total", "Exits of workers, by who saw them.", "source"),
		verdicts:       counter("oom_verdicts_total", "Exits of workers, by whether the kernel killed for memory and for whose limit.", "verdict", "scope"),
		retirements:    counter("retirements_total", "Allocations retired, by the reason that stands.", "reason"),
		devicesLeased: prometheus.NewGaugeVec(prometheus.GaugeOpts{
			Name: "quittance_agent_devices_leased", Help: "Devices that allocations hold, by CDI kind.",
		}, []string{"kind"}),
		commitEntries: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "quittance_agent_ledger_entries_total", Help: "Ledger entries that became durable.",
		}),
	}
	one := func(name, help string, buckets []float64) prometheus.Histogram {
		return prometheus.NewHistogram(prometheus.HistogramOpts{Name: "quittance_agent_" + name, Help: help, Buckets: buckets})
	}
	f.createSeconds = one("create_seconds", "Time to make a container, up to its created process.", callBuckets)
	f.startSeconds = one("start_seconds", "Time to start a container's process.", callBuckets)
	f.retireSeconds = one("retire_seconds", "Time from the intent to retire to the retired receipt.", callBuckets)
	f.commitSeconds = one("ledger_commit_seconds", "Time from a decision to its entries being durable.", commitBuckets)
	f.begin()
	for _, c := range []prometheus.Collector{
		f.requests, f.requestSeconds, f.engineCalls, f.engineSeconds, f.receipts, f.exits, f.verdicts, f.retirements,
		f.createSeconds, f.startSeconds, f.retireSeconds, f.commitSeconds, f.commitEntries, f.devicesLeased,
	} {
		if err := r.Register(c); err != nil {
			return nil, err
		}
	}
	return f, nil
}

// begin makes the series whose first increment an alert must not miss.
func (f *Figures) begin() {
	for _, k := range protocol.Kinds() {
		f.receipts.WithLabelValues(string(k))
	}
	for _, s := range []protocol.ExitSource{protocol.ExitFromEngine, protocol.ExitFromPIDFD, protocol.ExitFromReboot, protocol.ExitFromNone} {
		f.exits.WithLabelValues(string(s))
	}
	f.verdicts.WithLabelValues(string(protocol.VerdictNotKilled), "")
	f.verdicts.WithLabelValues(string(protocol.VerdictUnknown), "")
	for _, s := range []protocol.Scope{protocol.ScopeContainer, protocol.ScopeHost, protocol.ScopeDaemon, protocol.ScopeUnknown} {
		f.verdicts.WithLabelValues(string(protocol.VerdictKilled), string(s))
	}
}

// Request counts one answered request; problem is nil for a success.
func (f *Figures) Request(operation string, problem *protocol.Problem, took time.Duration) {
	disposition, code := string(protocol.Done), ""
	if problem != nil {
		disposition, code = string(problem.Disposition), string(problem.Code)
	}
	f.requests.WithLabelValues(operation, disposition, code).Inc()
	f.requestSeconds.WithLabelValues(operation).Observe(took.Seconds())
}

// Commit counts entries that became durable together.
func (f *Figures) Commit(entries int, took time.Duration) {
	f.commitEntries.Add(float64(entries))
	f.commitSeconds.Observe(took.Seconds())
}

// Receipt counts a receipt that became durable.
func (f *Figures) Receipt(kind protocol.Kind) { f.receipts.WithLabelValues(string(kind)).Inc() }

// Started takes the times of a started receipt.
func (f *Figures) Started(b protocol.StartedBody) {
	f.createSeconds.Observe(seconds(b.Durations.CreateMillis))
	f.startSeconds.Observe(seconds(b.Durations.StartMillis))
}

// Exited counts an exit and its verdict.
func (f *Figures) Exited(b protocol.ExitedBody) {
	f.exits.WithLabelValues(string(b.Exit.Source)).Inc()
	scope := ""
	if b.OOM.Scope != nil {
		scope = string(*b.OOM.Scope)
	}
	f.verdicts.WithLabelValues(string(b.OOM.Verdict), scope).Inc()
}

// Retired counts a retirement.
func (f *Figures) Retired(b protocol.RetiredBody) {
	f.retirements.WithLabelValues(string(b.Reason)).Inc()
	if b.Dispatched {
		f.retireSeconds.Observe(seconds(b.Durations.StopMillis + b.Durations.RemoveMillis))
	}
}

// Leased moves the count of devices that allocations hold by +1 or -1 for each
// of the devices.
func (f *Figures) Leased(all []protocol.Device, by int) {
	for _, d := range protocol.DistinctDevices(all) {
		f.devicesLeased.WithLabelValues(deviceKind(d.Name)).Add(float64(by))
	}
}

func seconds(millis int64) float64 { return float64(millis) / 1000 }

// State is what the agent is like at the time of a scrape.
type State struct {
	Host  protocol.Host // of what GET host answers: frontiers, index, slots, engine, owner
	Space core.Space
	// Profiles are the profiles read, Available those of them that can be used.
	Profiles, Available int
}

// Watch registers what is read at each scrape. read may fail: then the scrape
// has everything else.
func Watch(r prometheus.Registerer, read func(context.Context) (State, error)) error {
	return r.Register(&watcher{read: read})
}

// readTime bounds one look at the state.
const readTime = 5 * time.Second

type watcher struct {
	read func(context.Context) (State, error)
}

// gauges are the figures of a [State].
var gauges = []struct {
	desc  *prometheus.Desc
	value func(State) float64
}{
	{desc("slots_max", "Allocations at once that may be not consumed."), func(s State) float64 { return float64(s.Host.Slots.Max) }},
	{desc("slots_used", "Allocations that are not consumed."), func(s State) float64 { return float64(s.Host.Slots.Used) }},
	{desc("stuck", "Allocations that cannot be stopped or removed."), func(s State) float64 { return float64(s.Host.Slots.Stuck) }},
	{desc("unreleased_max", "Consumed allocations that may be not released."), func(s State) float64 { return float64(s.Host.Slots.MaxUnreleased) }},
	{desc("unreleased", "Consumed allocations whose history is not released."), func(s State) float64 { return float64(s.Host.Slots.Unreleased) }},
	{desc("accepted_number", "The highest number accepted."), func(s State) float64 { return float64(s.Host.Frontiers.Accepted) }},
	{desc("released_number", "The highest number released."), func(s State) float64 { return float64(s.Host.Frontiers.Released) }},
	{desc("receipt_index", "Index of the newest durable receipt."), func(s State) float64 { return float64(s.Host.Index.Head) }},
	{desc("receipts_kept", "Receipts that are kept."), func(s State) float64 { return float64(s.Host.Index.Head - s.Host.Index.First + 1) }},
	{desc("engine_available", "1 while the container engine answers and what it holds was compared."), func(s State) float64 { return truth(s.Host.Engine.Available) }},
	{desc("draining", "1 while new work is refused by an operator."), func(s State) float64 { return truth(s.Host.Draining) }},
	{desc("witness_required", "1 until the owner has presented what it holds."), func(s State) float64 { return truth(s.Host.WitnessRequired) }},
	{desc("owner_heard_timestamp_seconds", "When the owner's last request came, Unix time; 0: not since the start."), func(s State) float64 {
		if s.Host.OwnerHeard == nil {
			return 0
		}
		return float64(s.Host.OwnerHeard.Time().UnixMilli()) / 1000
	}},
	{desc("ledger_room_bytes", "Bytes prepared for further ledger entries, besides a release's segment."), func(s State) float64 { return float64(s.Space.Room) }},
	{desc("ledger_full", "1 while the ledger's file system has no room for new work."), func(s State) float64 { return truth(s.Space.Full) }},
	{desc("profiles", "Profiles that were read."), func(s State) float64 { return float64(s.Profiles) }},
	{desc("profiles_available", "Profiles that can be used now."), func(s State) float64 { return float64(s.Available) }},
}

func desc(name, help string, labels ...string) *prometheus.Desc {
	return prometheus.NewDesc("quittance_agent_"+name, help, labels, nil)
}

var devices = desc("devices", "Devices that could be granted, held ones included, by CDI kind.", "kind")

// deviceKind is the part of a CDI device's name that says what it is.
func deviceKind(name string) string {
	kind, _, _ := strings.Cut(name, "=")
	return kind
}

func truth(b bool) float64 {
	if b {
		return 1
	}
	return 0
}

// Describe implements [prometheus.Collector].
func (w *watcher) Describe(to chan<- *prometheus.Desc) {
	for _, g := range gauges {
		to <- g.desc
	}
	to <- devices
}

// Collect implements [prometheus.Collector].
func (w *watcher) Collect(to chan<- prometheus.Metric) {
	ctx, cancel := context.WithTimeout(context.Background(), readTime)
	defer cancel()
	state, err := w.read(ctx)
	for _, g := range gauges {
		if err != nil {
			to <- prometheus.NewInvalidMetric(g.desc, err)
			continue
		}
		to <- prometheus.MustNewConstMetric(g.desc, prometheus.GaugeValue, g.value(state))
	}
	kinds := map[string]int{}
	for _, d := range protocol.DistinctDevices(state.Host.Devices) {
		kinds[deviceKind(d.Name)]++
	}
	for kind, n := range kinds {
		to <- prometheus.MustNewConstMetric(devices, prometheus.GaugeValue, float64(n), kind)
	}
}
