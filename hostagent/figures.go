package hostagent

import (
	"context"
	"fmt"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/quittance/quittance/hostagent/internal/core"
	"github.com/quittance/quittance/hostagent/internal/metrics"
	"github.com/quittance/quittance/protocol"
)

// look reads what a scrape shows beside the counters.
func (a *agent) look(ctx context.Context) (metrics.State, error) {
	id := a.core.NewRequestID()
	reply, err := a.core.Ask(ctx, id, core.GetHost{ID: id})
	if err != nil {
		return metrics.State{}, err
	}
	view, ok := reply.Body.(*core.HostView)
	if !ok {
		return metrics.State{}, fmt.Errorf("read the host: got %T", reply.Body)
	}
	id = a.core.NewRequestID()
	if reply, err = a.core.Ask(ctx, id, core.GetProfiles{ID: id}); err != nil {
		return metrics.State{}, err
	}
	list, ok := reply.Body.(*protocol.ProfileList)
	if !ok {
		return metrics.State{}, fmt.Errorf("read the profiles: got %T", reply.Body)
	}
	first, head, _ := a.journal.Receipts().Head()
	state := metrics.State{Space: a.journal.Space(), Profiles: len(list.Profiles), Host: protocol.Host{
		Engine: view.Engine, Frontiers: view.Frontiers, Index: protocol.IndexRange{First: first, Head: head}, Slots: view.Slots,
		Devices: view.Devices, Draining: view.Draining, OwnerHeard: view.OwnerHeard, WitnessRequired: view.WitnessRequired,
	}}
	for _, p := range list.Profiles {
		if p.Available {
			state.Available++
		}
	}
	return state, nil
}

// RegisterFigures registers every figure of an agent that does not run, for
// tests that compare their names with what is shipped.
func RegisterFigures(r prometheus.Registerer) error {
	if _, err := metrics.New(r); err != nil {
		return err
	}
	return metrics.Watch(r, func(context.Context) (metrics.State, error) { return metrics.State{}, nil })
}
