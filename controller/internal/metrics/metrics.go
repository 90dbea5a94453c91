// Package metrics counts and times what the controller does, for Prometheus.
//
// It owns the names, labels and buckets of every figure, and the wrapper that
// takes times at the host's socket. Labels have few values, known beforehand:
// operations, states, codes, the kinds of offerings; never jobs, attempts or
// workspaces. It must not decide anything, and nothing may depend on what it
// counts: a figure that cannot be read is left out of the scrape.
package metrics

import (
	"context"
	"time"

	"github.com/go-json-experiment/json"
	"github.com/prometheus/client_golang/prometheus"

	"github.com/quittance/quittance/controller/api"
	"github.com/quittance/quittance/controller/internal/attempt"
	"github.com/quittance/quittance/controller/internal/provider"
	"github.com/quittance/quittance/controller/internal/retry"
	"github.com/quittance/quittance/protocol"
)

// Figures are the controller's counters. The zero value is not usable; see [New].
type Figures struct {
	exchanges       *prometheus.CounterVec
	exchangeSeconds *prometheus.HistogramVec
	hostRequests    *prometheus.CounterVec
	hostSeconds     *prometheus.HistogramVec
	transitions     *prometheus.CounterVec
	outcomes        *prometheus.CounterVec
	writeSeconds    prometheus.Histogram
	backoffs        *prometheus.CounterVec
	backoffSeconds  *prometheus.CounterVec
	requests        *prometheus.CounterVec
	requestSeconds  *prometheus.HistogramVec
}

// Buckets in seconds: of exchanges with other processes, and of one write.
var (
	callBuckets  = []float64{.005, .01, .025, .05, .1, .25, .5, 1, 2.5, 5, 10, 30, 60}
	writeBuckets = []float64{.0005, .001, .002, .004, .008, .016, .032, .064, .125, .25, .5, 1, 2, 4}
)

// New makes the figures and registers them.
func New(r prometheus.Registerer) (*Figures, error) {
	counter := func(name, help string, labels ...string) *prometheus.CounterVec {
		return prometheus.NewCounterVec(prometheus.CounterOpts{Name: "quittance_" + name, Help: help}, labels)
	}
	times := func(name, help string, labels ...string) *prometheus.HistogramVec {
		return prometheus.NewHistogramVec(prometheus.HistogramOpts{Name: "quittance_" + name, Help: help, Buckets: callBuckets}, labels)
	}
	f := &Figures{
		exchanges:       counter("controller_exchanges_total", "Exchanges with the job service that ended, by class (ok, or what ended them) and effect.", "operation", "class", "disposition"),
		exchangeSeconds: times("controller_exchange_seconds", "Time of an exchange with the job service.", "operation"),
		hostRequests:    counter("controller_host_requests_total", "Requests to the host agent that ended.", "operation", "disposition", "code"),
		hostSeconds:     times("controller_host_request_seconds", "Time of a request to the host agent; waits that were asked for are in it.", "operation"),
		transitions:     counter("controller_transitions_total", "Attempt records that reached a state, durably.", "state"),
		outcomes:        counter("controller_outcomes_total", "Outcomes chosen for attempts; code is empty for a result.", "operation", "code"),
		writeSeconds: prometheus.NewHistogram(prometheus.HistogramOpts{
			Name: "quittance_controller_store_write_seconds", Help: "Time to make one attempt record durable.", Buckets: writeBuckets,
		}),
		backoffs:       counter("controller_backoffs_total", "Waits before a request was sent again.", "operation"),
		backoffSeconds: counter("controller_backoff_seconds_total", "Time spent in waits before a request was sent again.", "operation"),
		requests:       counter("jobs_requests_total", "Requests that the job service answered; code is empty for a success.", "operation", "code"),
		requestSeconds: times("jobs_request_seconds", "Time from a request's arrival at the job service to its answer; waits that the client asked for are in it.", "operation"),
	}
	for _, s := range states {
		f.transitions.WithLabelValues(string(s))
	}
	f.outcomes.WithLabelValues(string(attempt.OperationComplete), "")
	for _, c := range []prometheus.Collector{
		f.exchanges, f.exchangeSeconds, f.hostRequests, f.hostSeconds, f.transitions, f.outcomes, f.writeSeconds,
		f.backoffs, f.backoffSeconds, f.requests, f.requestSeconds,
	} {
		if err := r.Register(c); err != nil {
			return nil, err
		}
	}
	return f, nil
}

var states = []attempt.State{
	attempt.StateStartPending, attempt.StateAcknowledged, attempt.StateTerminalPending, attempt.StateTerminalConfirmed,
	attempt.StateTerminalHeld, attempt.StateSuppressed, attempt.StateEnded,
}

// Exchange counts one exchange with the job service; failure is nil for a
// success.
func (f *Figures) Exchange(operation string, failure *provider.Failure, took time.Duration) {
	class, disposition := "ok", string(protocol.Done)
	if failure != nil {
		class, disposition = string(failure.Class), string(failure.Disposition)
	}
	f.exchanges.WithLabelValues(operation, class, disposition).Inc()
	f.exchangeSeconds.WithLabelValues(operation).Observe(took.Seconds())
}

// Written counts one durable write of an attempt record.
func (f *Figures) Written(from, to attempt.Record, took time.Duration) {
	f.writeSeconds.Observe(took.Seconds())
	if from != nil && from.State() == to.State() {
		return
	}
	f.transitions.WithLabelValues(string(to.State())).Inc()
	if pending, chosen := to.(attempt.TerminalPending); chosen {
		f.outcomes.WithLabelValues(string(pending.Outcome.Operation), failureCode(pending.Outcome)).Inc()
	}
}

// failureCode is the code of a FAIL's body, which is our own.
func failureCode(o attempt.Outcome) string {
	var body struct {
		Code api.FailureCode `json:"code"`
	}
	if o.Operation != attempt.OperationFail {
		return ""
	}
	if err := json.Unmarshal(o.Body, &body); err != nil {
		return "unreadable"
	}
	return string(body.Code)
}

// Waiting returns what a retry policy of an operation calls before each wait.
func (f *Figures) Waiting(operation string) func(retry.Notice) {
	f.backoffs.WithLabelValues(operation)
	f.backoffSeconds.WithLabelValues(operation)
	return func(n retry.Notice) {
		f.backoffs.WithLabelValues(operation).Inc()
		f.backoffSeconds.WithLabelValues(operation).Add(n.Wait.Seconds())
	}
}

// Request counts one answered request of the job service; code is "" for a
// success.
func (f *Figures) Request(operation string, code api.Code, took time.Duration) {
	f.requests.WithLabelValues(operation, string(code)).Inc()
	f.requestSeconds.WithLabelValues(operation).Observe(took.Seconds())
}

// Lanes are what the lanes of a process are like at the time of a scrape.
type Lanes struct {
	Lanes    int
	Busy     int                   // with an attempt
	Attempts map[attempt.State]int // records that are not archived
	Breakers map[string]bool       // by the offering's kind; true: it takes no job
	Blocked  map[string]bool       // by reason, of a fixed few; true: nothing is admitted for it
	HostSeen bool                  // the host's agent answered last time
	Behind   *int64                // receipts of the host that were not read; nil where that is not known
}

// Watch registers what is read of the lanes at each scrape.
func Watch(r prometheus.Registerer, read func() Lanes) error { return r.Register(&lanesWatcher{read}) }

// WatchJobs registers the open jobs by kind, which are read at each scrape.
func WatchJobs(r prometheus.Registerer, read func(context.Context) (map[string]int64, error)) error {
	return r.Register(&jobsWatcher{read})
}

func desc(name, help string, labels ...string) *prometheus.Desc {
	return prometheus.NewDesc("quittance_"+name, help, labels, nil)
}

var (
	lanesDesc    = desc("controller_lanes", "Lanes of this process.")
	busyDesc     = desc("controller_lanes_busy", "Lanes that have an attempt.")
	attemptsDesc = desc("controller_attempts", "Attempt records that are not archived.", "state")
	breakerDesc  = desc("controller_breaker_open", "1 while an offering takes no job because its last attempts failed.", "kind")
	blockedDesc  = desc("controller_admission_blocked", "1 while nothing is admitted for this reason: drain (asked for), room (none left for now), person (somebody has to look) or fault; the log says more.", "reason")
	hostDesc     = desc("controller_host_reachable", "1 if the host's agent answered the last time it was asked.")
	behindDesc   = desc("controller_receipts_behind", "Receipts of the host that this controller has not read, at the last look.")
	openDesc     = desc("jobs_open", "Jobs that wait for an attempt or have one running, by kind.", "kind")
)

type lanesWatcher struct{ read func() Lanes }

// Describe implements [prometheus.Collector].
func (w *lanesWatcher) Describe(to chan<- *prometheus.Desc) {
	for _, d := range []*prometheus.Desc{lanesDesc, busyDesc, attemptsDesc, breakerDesc, blockedDesc, hostDesc, behindDesc} {
		to <- d
	}
}

// Collect implements [prometheus.Collector].
func (w *lanesWatcher) Collect(to chan<- prometheus.Metric) {
	l := w.read()
	gauge := func(d *prometheus.Desc, v float64, labels ...string) {
		to <- prometheus.MustNewConstMetric(d, prometheus.GaugeValue, v, labels...)
	}
	gauge(lanesDesc, float64(l.Lanes))
	gauge(busyDesc, float64(l.Busy))
	for _, s := range states {
		gauge(attemptsDesc, float64(l.Attempts[s]), string(s))
	}
	for kind, open := range l.Breakers {
		gauge(breakerDesc, truth(open), kind)
	}
	for reason, is := range l.Blocked {
		gauge(blockedDesc, truth(is), reason)
	}
	gauge(hostDesc, truth(l.HostSeen))
	if l.Behind != nil {
		gauge(behindDesc, float64(*l.Behind))
	}
}

func truth(b bool) float64 {
	if b {
		return 1
	}
	return 0
}

// readTime bounds one look at the database.
const readTime = 5 * time.Second

type jobsWatcher struct {
	read func(context.Context) (map[string]int64, error)
}

// Describe implements [prometheus.Collector].
func (w *jobsWatcher) Describe(to chan<- *prometheus.Desc) { to <- openDesc }

// Collect implements [prometheus.Collector].
func (w *jobsWatcher) Collect(to chan<- prometheus.Metric) {
	ctx, cancel := context.WithTimeout(context.Background(), readTime)
	defer cancel()
	open, err := w.read(ctx)
	if err != nil {
		to <- prometheus.NewInvalidMetric(openDesc, err)
		return
	}
	for kind, n := range open {
		to <- prometheus.MustNewConstMetric(openDesc, prometheus.GaugeValue, float64(n), kind)
	}
}
