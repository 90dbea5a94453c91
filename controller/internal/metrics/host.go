package metrics

import (
	"context"
	"errors"
	"net"
	"time"

	"github.com/quittance/quittance/controller/internal/host"
	"github.com/quittance/quittance/protocol"
	"github.com/quittance/quittance/protocol/tlog"
)

// Host counts and times what is asked of the host agent.
func (f *Figures) Host(next host.Client) host.Client { return &timedHost{next, f} }

type timedHost struct {
	next    host.Client
	figures *Figures
}

func (h *timedHost) ended(operation string, began time.Time, err error) {
	disposition, code := string(protocol.Done), ""
	if problem, answered := errors.AsType[*protocol.Problem](err); answered {
		disposition, code = string(problem.Disposition), string(problem.Code)
	} else if err != nil {
		disposition, code = string(protocol.Unknown), "lost"
	}
	h.figures.hostRequests.WithLabelValues(operation, disposition, code).Inc()
	h.figures.hostSeconds.WithLabelValues(operation).Observe(time.Since(began).Seconds())
}

func timed[T any](h *timedHost, operation string, ask func() (T, error)) (T, error) {
	began := time.Now()
	answer, err := ask()
	h.ended(operation, began, err)
	return answer, err
}

// Host implements [host.Client].
func (h *timedHost) Host(ctx context.Context) (protocol.Host, error) {
	return timed(h, "host", func() (protocol.Host, error) { return h.next.Host(ctx) })
}

// Profiles implements [host.Client].
func (h *timedHost) Profiles(ctx context.Context, generation protocol.ID) ([]protocol.ProfileInfo, error) {
	return timed(h, "profiles", func() ([]protocol.ProfileInfo, error) { return h.next.Profiles(ctx, generation) })
}

// Allocate implements [host.Client].
func (h *timedHost) Allocate(ctx context.Context, generation protocol.ID, n protocol.Number, req protocol.AllocateRequest) (protocol.EffectAnswer, error) {
	return timed(h, "allocate", func() (protocol.EffectAnswer, error) { return h.next.Allocate(ctx, generation, n, req) })
}

// Get implements [host.Client].
func (h *timedHost) Get(ctx context.Context, generation protocol.ID, n protocol.Number, until protocol.State, wait time.Duration) (protocol.Allocation, error) {
	return timed(h, "get", func() (protocol.Allocation, error) { return h.next.Get(ctx, generation, n, until, wait) })
}

// List implements [host.Client].
func (h *timedHost) List(ctx context.Context, generation protocol.ID) ([]protocol.Allocation, error) {
	return timed(h, "list", func() ([]protocol.Allocation, error) { return h.next.List(ctx, generation) })
}

// Retire implements [host.Client].
func (h *timedHost) Retire(ctx context.Context, generation protocol.ID, n protocol.Number, req protocol.RetireRequest) (protocol.EffectAnswer, error) {
	return timed(h, "retire", func() (protocol.EffectAnswer, error) { return h.next.Retire(ctx, generation, n, req) })
}

// Consume implements [host.Client].
func (h *timedHost) Consume(ctx context.Context, generation protocol.ID, n protocol.Number, req protocol.ConsumeRequest) (protocol.EffectAnswer, error) {
	return timed(h, "consume", func() (protocol.EffectAnswer, error) { return h.next.Consume(ctx, generation, n, req) })
}

// Release implements [host.Client].
func (h *timedHost) Release(ctx context.Context, generation protocol.ID, req protocol.ReleaseRequest) (protocol.ReleaseAnswer, error) {
	return timed(h, "release", func() (protocol.ReleaseAnswer, error) { return h.next.Release(ctx, generation, req) })
}

// Witness implements [host.Client].
func (h *timedHost) Witness(ctx context.Context, generation protocol.ID, req protocol.WitnessRequest) (protocol.WitnessAnswer, error) {
	return timed(h, "witness", func() (protocol.WitnessAnswer, error) { return h.next.Witness(ctx, generation, req) })
}

// Receipt implements [host.Client].
func (h *timedHost) Receipt(ctx context.Context, generation protocol.ID, index protocol.Index) ([]byte, error) {
	return timed(h, "receipt", func() ([]byte, error) { return h.next.Receipt(ctx, generation, index) })
}

// Proof implements [host.Client].
func (h *timedHost) Proof(ctx context.Context, generation protocol.ID, index protocol.Index) (tlog.Proof, error) {
	return timed(h, "proof", func() (tlog.Proof, error) { return h.next.Proof(ctx, generation, index) })
}

// Channel implements [host.Client].
func (h *timedHost) Channel(ctx context.Context, generation protocol.ID, n protocol.Number, purpose string) (net.Conn, error) {
	return timed(h, "channel", func() (net.Conn, error) { return h.next.Channel(ctx, generation, n, purpose) })
}
