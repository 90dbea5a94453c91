package serve

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"time"

	"github.com/quittance/quittance/hostagent/internal/channel"
	"github.com/quittance/quittance/hostagent/internal/core"
	"github.com/quittance/quittance/hostagent/internal/failpoint"
	"github.com/quittance/quittance/hostagent/internal/worker"
	"github.com/quittance/quittance/protocol"
	"github.com/quittance/quittance/protocol/uds"
)

// ask passes an event to core and its reply or problem back.
func (h *Handler) ask(r *request, id core.RequestID, e core.Event) (core.Reply, *protocol.Problem) {
	reply, err := h.cfg.Core.Ask(r.http.Context(), id, e)
	if err != nil {
		// A client that is gone reads no answer; one that waits is told that
		// the effect may have happened (I11).
		return core.Reply{}, protocol.NewProblem(protocol.CodeUnavailable,
			"the agent is stopping; whether this had an effect is unknown", "connect again and read before anything else")
	}
	return reply, reply.Problem
}

func (h *Handler) effect(r *request, id core.RequestID, e core.Event) (answer, *protocol.Problem) {
	for began := time.Now(); ; {
		reply, p := h.ask(r, id, e)
		if p == nil || p.RetryAfterMillis == 0 || p.RetryAfterMillis > momentMillis || time.Since(began) > momentsWait {
			return answer{status: reply.Status, body: reply.Body}, p
		}
		select {
		case <-r.http.Context().Done():
			return answer{}, p
		case <-time.After(time.Duration(p.RetryAfterMillis) * time.Millisecond):
		}
	}
}

// A refusal that lasts for a moment only, as while the ledger prepares its next
// segment, is waited for here, so that no client needs to.
const (
	momentMillis = 100
	momentsWait  = 2 * time.Second
)

func (h *Handler) allocate(r *request) (answer, *protocol.Problem) {
	var body protocol.AllocateRequest
	if p := decode(r, &body); p != nil {
		return answer{}, p
	}
	id := h.cfg.Core.NewRequestID()
	return h.effect(r, id, core.Allocate{
		ID: id, Caller: r.caller, Number: r.number, Body: body, Nonce: protocol.NewID(), NoSpace: h.cfg.NoSpace(),
		Devices: h.cfg.Devices(body.Profile),
	})
}

func (h *Handler) retire(r *request) (answer, *protocol.Problem) {
	deadline, p := h.wait(r)
	if p != nil {
		return answer{}, p
	}
	var body protocol.RetireRequest
	if p := decode(r, &body); p != nil {
		return answer{}, p
	}
	id := h.cfg.Core.NewRequestID()
	return h.effect(r, id, core.Retire{ID: id, Caller: r.caller, Number: r.number, Body: body, DeadlineMillis: deadline})
}

func (h *Handler) consume(r *request) (answer, *protocol.Problem) {
	var body protocol.ConsumeRequest
	if p := decode(r, &body); p != nil {
		return answer{}, p
	}
	id := h.cfg.Core.NewRequestID()
	return h.effect(r, id, core.Consume{ID: id, Caller: r.caller, Number: r.number, Body: body})
}

func (h *Handler) release(r *request) (answer, *protocol.Problem) {
	var body protocol.ReleaseRequest
	if p := decode(r, &body); p != nil {
		return answer{}, p
	}
	id := h.cfg.Core.NewRequestID()
	return h.effect(r, id, core.Release{ID: id, Caller: r.caller, Body: body})
}

func (h *Handler) drain(r *request) (answer, *protocol.Problem)   { return h.setDrain(r, true) }
func (h *Handler) undrain(r *request) (answer, *protocol.Problem) { return h.setDrain(r, false) }

func (h *Handler) setDrain(r *request, on bool) (answer, *protocol.Problem) {
	id := h.cfg.Core.NewRequestID()
	return h.effect(r, id, core.Drain{ID: id, Caller: r.caller, On: on})
}

func (h *Handler) setOwner(r *request) (answer, *protocol.Problem) {
	var body protocol.OwnerRequest
	if p := decode(r, &body); p != nil {
		return answer{}, p
	}
	id := h.cfg.Core.NewRequestID()
	return h.effect(r, id, core.SetOwner{ID: id, Caller: r.caller, Owner: body.Owner})
}

func (h *Handler) profiles(r *request) (answer, *protocol.Problem) {
	id := h.cfg.Core.NewRequestID()
	return h.effect(r, id, core.GetProfiles{ID: id})
}

// allocation reads one number, long-polling when it is told for what.
func (h *Handler) allocation(r *request) (answer, *protocol.Problem) {
	until := protocol.State(r.query["until"])
	switch until {
	case "", protocol.StateStarted, protocol.StateExited, protocol.StateRetired, protocol.StateConsumed:
	default:
		return answer{}, badRequest("until", "must be started, exited, retired or consumed")
	}
	deadline, p := h.wait(r)
	if p != nil {
		return answer{}, p
	}
	if deadline != 0 && until == "" {
		return answer{}, badRequest("wait", "needs until: say which state to wait for")
	}
	view, p := h.view(r, until, deadline)
	if p != nil {
		return answer{}, p
	}
	return answer{status: http.StatusOK, body: h.live(view)}, nil
}

func (h *Handler) view(r *request, until protocol.State, deadline int64) (*core.AllocationView, *protocol.Problem) {
	id := h.cfg.Core.NewRequestID()
	reply, p := h.ask(r, id, core.GetAllocation{ID: id, Number: r.number, Until: until, DeadlineMillis: deadline})
	if p != nil {
		return nil, p
	}
	return reply.Body.(*core.AllocationView), nil
}

// live reads the counters of an allocation anew while it has any.
func (h *Handler) live(v *core.AllocationView) *protocol.Allocation {
	if v.Live == nil {
		return &v.Allocation
	}
	if oom, peaks, ok := h.cfg.Workers.Live(v.Number, v.Live); ok {
		at := h.cfg.Now().Wall
		v.OOM, v.Peaks, v.ReadAt = &oom, &peaks, &at
	}
	return &v.Allocation
}

func (h *Handler) allocations(r *request) (answer, *protocol.Problem) {
	state, given := r.query["state"]
	switch s := protocol.State(state); s {
	case protocol.StateAccepted, protocol.StateCreating, protocol.StateStarted, protocol.StateRetiring, protocol.StateExited,
		protocol.StateRetired, protocol.StateConsumed:
	default:
		if given {
			return answer{}, badRequest("state", "must be accepted, creating, started, retiring, exited, retired or consumed")
		}
	}
	id := h.cfg.Core.NewRequestID()
	reply, p := h.ask(r, id, core.ListAllocations{ID: id, State: protocol.State(state)})
	if p != nil {
		return answer{}, p
	}
	list := &protocol.AllocationList{Allocations: []protocol.Allocation{}}
	for _, v := range reply.Body.([]core.AllocationView) {
		list.Allocations = append(list.Allocations, *h.live(&v))
	}
	return answer{status: http.StatusOK, body: list}, nil
}

// log answers what the allocation wrote. A burn wrote nothing.
func (h *Handler) log(r *request) (answer, *protocol.Problem) {
	view, p := h.view(r, "", 0)
	if p != nil {
		return answer{}, p
	}
	captured := protocol.Log{Number: r.number}
	if view.Nonce != nil {
		var err error
		if captured, err = h.cfg.Workers.Captured(r.number, *view.Nonce); err != nil {
			return answer{}, h.internal("captured output", err)
		}
	}
	return answer{status: http.StatusOK, body: &captured}, nil
}

// dialTime bounds the connect inside the container.
const dialTime = 5 * time.Second

// channel hands out a connection to the worker.
func (h *Handler) channel(r *request) (answer, *protocol.Problem) {
	if !uds.WantsChannel(r.http) {
		return answer{}, badRequest("Upgrade", "must ask for "+protocol.UpgradeToChannel+", with Connection: Upgrade")
	}
	var body protocol.ChannelRequest
	if p := decode(r, &body); p != nil {
		return answer{}, p
	}
	id := h.cfg.Core.NewRequestID()
	reply, p := h.ask(r, id, core.TakeChannel{ID: id, Caller: r.caller, Number: r.number, Body: body})
	if p != nil {
		return answer{}, p
	}
	grant := reply.Body.(*core.ChannelGrant)
	ctx, cancel := context.WithTimeout(r.http.Context(), dialTime)
	defer cancel()
	stream, err := h.cfg.Workers.Dial(ctx, grant.Number, grant.Network, grant.Address)
	if err != nil {
		h.cfg.Core.Post(core.ReturnChannel{Number: grant.Number})
		return answer{}, h.undialled(grant.Number, err)
	}
	failpoint.Hit(failpoint.ChannelDialled)
	id = h.cfg.Core.NewRequestID()
	if _, p := h.ask(r, id, core.HandChannel{ID: id, Number: grant.Number}); p != nil {
		if err := stream.Close(); err != nil {
			h.cfg.Logger.Warn("channel_close_failed", "number", int64(grant.Number), "error", err)
		}
		return answer{}, p
	}
	return answer{raw: func(w http.ResponseWriter) {
		if err := uds.Handover(w, r.http, stream); err != nil {
			h.cfg.Logger.Info("handover_broke_off", append(h.about(grant.Number), "error", err)...)
		}
		failpoint.Hit(failpoint.ChannelHandedOver)
		if err := stream.Close(); err != nil {
			h.cfg.Logger.Warn("channel_close_failed", append(h.about(grant.Number), "error", err)...)
		}
	}}, nil
}

func (h *Handler) undialled(n protocol.Number, err error) *protocol.Problem {
	switch {
	case errors.Is(err, channel.ErrNotConnectable), errors.Is(err, channel.ErrAddress):
		p := protocol.NewProblem(protocol.CodeNotConnectable,
			fmt.Sprintf("the worker of number %d does not accept a connection: %v", n, err), "try again until the ready rule's time-out")
		p.RetryAfterMillis = 100
		return p
	case errors.Is(err, channel.ErrExited), errors.Is(err, worker.ErrNotRunning):
		return protocol.NewProblem(protocol.CodeExited, fmt.Sprintf("the worker of number %d has ended", n), "read its exit and retire it")
	}
	return h.internal("dial", err)
}

// internal reports our own fault to the journal and only that to the client.
func (h *Handler) internal(what string, err error) *protocol.Problem {
	h.cfg.Logger.Error("request_failed", "what", what, "error", err)
	return protocol.NewProblem(protocol.CodeInternal, "the agent failed at: "+what, "look into the agent's journal")
}
