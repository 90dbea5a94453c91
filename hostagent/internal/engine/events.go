package engine

import (
	"context"
	"time"

	eventtypes "github.com/containerd/containerd/api/events"
	"github.com/containerd/containerd/v2/core/events"
	"github.com/containerd/containerd/v2/pkg/namespaces"
	"github.com/containerd/typeurl/v2"
)

// hintBuffer is how many hints may wait for the receiver before they are
// replaced by one resync.
const hintBuffer = 256

// resubscribePause is the least time between two subscriptions.
const resubscribePause = 100 * time.Millisecond

// Events delivers hints until ctx or the engine ends, then closes the channel.
// It begins with a resync once subscribed and sends another after each new
// subscription; a slow receiver loses hints and gets a resync instead.
func (e *Engine) Events(ctx context.Context) <-chan Hint {
	out := make(chan Hint, hintBuffer)
	e.wg.Go(func() {
		defer close(out)
		ctx, cancel := context.WithCancel(ctx)
		defer cancel()
		defer context.AfterFunc(e.ended, cancel)()
		s := &subscription{e: e, out: out}
		for ctx.Err() == nil {
			if !s.follow(ctx) {
				return
			}
		}
	})
	return out
}

// subscription is one receiver of hints.
type subscription struct {
	e    *Engine
	out  chan<- Hint
	lost bool // hints were dropped: a resync is owed
}

// send never blocks. Once the buffer is full every hint is dropped until there
// is room again for the resync that makes up for them.
func (s *subscription) send(h Hint) {
	if s.lost {
		select {
		case s.out <- Hint{Kind: HintResync}:
			s.lost = false
		default:
			return
		}
	}
	select {
	case s.out <- h:
	default:
		s.lost = true
	}
}

// follow waits for the engine, subscribes and forwards until the subscription
// breaks. It reports whether to go on.
func (s *subscription) follow(ctx context.Context) bool {
	available, changed := s.e.state()
	if !available {
		s.send(Hint{Kind: HintUnavailable})
		select {
		case <-ctx.Done():
			return false
		case <-changed:
			return true
		}
	}
	ctx, cancel := context.WithCancel(namespaces.WithNamespace(ctx, s.e.o.Namespace))
	defer cancel()
	envelopes, broken := s.e.client.Subscribe(ctx, `namespace==`+s.e.o.Namespace+`,topic~="^/tasks/(exit|oom|delete)$"`)
	s.send(Hint{Kind: HintResync})
	retry := time.NewTicker(resubscribePause)
	defer retry.Stop()
	for {
		select {
		case envelope := <-envelopes:
			s.forward(envelope)
		case <-changed:
			return true // away now: say so, and subscribe anew when it is back
		case err := <-broken:
			if ctx.Err() != nil {
				return false
			}
			s.e.log.Warn("engine events interrupted", "error", err)
			s.e.Check(ctx)
			select {
			case <-ctx.Done():
				return false
			case <-retry.C:
				return true
			}
		case <-retry.C:
			if s.lost {
				s.send(Hint{Kind: HintResync})
			}
		}
	}
}

func (s *subscription) forward(envelope *events.Envelope) {
	if envelope == nil || envelope.Event == nil {
		return
	}
	event, err := typeurl.UnmarshalAny(envelope.Event)
	if err != nil {
		// Of a newer daemon, perhaps: something happened, so look everywhere.
		s.send(Hint{Kind: HintResync})
		return
	}
	switch event := event.(type) {
	case *eventtypes.TaskExit:
		if event.ID == event.ContainerID {
			s.send(Hint{Kind: HintExit, ContainerID: event.ContainerID})
		}
	case *eventtypes.TaskDelete:
		s.send(Hint{Kind: HintExit, ContainerID: event.ContainerID})
	case *eventtypes.TaskOOM:
		s.send(Hint{Kind: HintOOM, ContainerID: event.ContainerID})
	}
}
