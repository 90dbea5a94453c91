package host

import (
	"context"
	"net"
	"time"

	"github.com/quittance/quittance/protocol"
	"github.com/quittance/quittance/protocol/hostclient"
	"github.com/quittance/quittance/protocol/tlog"
)

// Dial is the [Client] of the agent's socket at path, acting as owner.
func Dial(path string, owner protocol.ID) Client {
	return socket{hostclient.New(path, hostclient.Options{Owner: func() protocol.ID { return owner }})}
}

type socket struct{ c *hostclient.Client }

func (s socket) Host(ctx context.Context) (protocol.Host, error) { return s.c.Host(ctx) }

func (s socket) Profiles(ctx context.Context, generation protocol.ID) ([]protocol.ProfileInfo, error) {
	return s.c.In(generation).Profiles(ctx)
}

func (s socket) Allocate(ctx context.Context, generation protocol.ID, n protocol.Number, req protocol.AllocateRequest) (protocol.EffectAnswer, error) {
	return s.c.In(generation).Allocate(ctx, n, req)
}

func (s socket) Get(ctx context.Context, generation protocol.ID, n protocol.Number, until protocol.State, wait time.Duration) (protocol.Allocation, error) {
	return s.c.In(generation).Get(ctx, n, until, wait)
}

func (s socket) List(ctx context.Context, generation protocol.ID) ([]protocol.Allocation, error) {
	return s.c.In(generation).List(ctx, "")
}

func (s socket) Retire(ctx context.Context, generation protocol.ID, n protocol.Number, req protocol.RetireRequest) (protocol.EffectAnswer, error) {
	return s.c.In(generation).Retire(ctx, n, req, 0)
}

func (s socket) Consume(ctx context.Context, generation protocol.ID, n protocol.Number, req protocol.ConsumeRequest) (protocol.EffectAnswer, error) {
	return s.c.In(generation).Consume(ctx, n, req)
}

func (s socket) Release(ctx context.Context, generation protocol.ID, req protocol.ReleaseRequest) (protocol.ReleaseAnswer, error) {
	return s.c.In(generation).Release(ctx, req)
}

func (s socket) Witness(ctx context.Context, generation protocol.ID, req protocol.WitnessRequest) (protocol.WitnessAnswer, error) {
	return s.c.In(generation).Witness(ctx, req)
}

func (s socket) Receipt(ctx context.Context, generation protocol.ID, index protocol.Index) ([]byte, error) {
	leaf, err := s.c.In(generation).Receipt(ctx, index)
	return leaf.Bytes, err
}

func (s socket) Proof(ctx context.Context, generation protocol.ID, index protocol.Index) (tlog.Proof, error) {
	return s.c.In(generation).Proof(ctx, index)
}

func (s socket) Channel(ctx context.Context, generation protocol.ID, n protocol.Number, purpose string) (net.Conn, error) {
	return s.c.In(generation).Channel(ctx, n, purpose)
}
