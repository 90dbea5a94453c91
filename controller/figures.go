package controller

import (
	"context"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/quittance/quittance/controller/internal/attempt"
	"github.com/quittance/quittance/controller/internal/host"
	"github.com/quittance/quittance/controller/internal/metrics"
)

// look reads what a scrape shows of the lanes beside the counters.
func (w *work) look(agent *host.Host) metrics.Lanes {
	shared := w.service.Snapshot()
	out := metrics.Lanes{
		Lanes: shared.Lanes, Attempts: map[attempt.State]int{}, Breakers: shared.Breakers, Blocked: map[string]bool{}, HostSeen: shared.HostSeen,
	}
	for cause, is := range shared.Causes {
		out.Blocked[string(cause)] = is
	}
	for _, e := range w.store.Active() {
		out.Attempts[e.Record.State()]++
		if attempt.HoldsLane(e.Record) {
			out.Busy++
		}
	}
	if behind, known := agent.Behind(); known && shared.HostSeen {
		out.Behind = &behind
	}
	return out
}

// RegisterFigures registers every figure of a controller that does not run, for
// tests that compare their names with what is shipped.
func RegisterFigures(r prometheus.Registerer) error {
	if _, err := metrics.New(r); err != nil {
		return err
	}
	if err := metrics.Watch(r, func() metrics.Lanes { return metrics.Lanes{} }); err != nil {
		return err
	}
	return metrics.WatchJobs(r, func(context.Context) (map[string]int64, error) { return map[string]int64{}, nil })
}
