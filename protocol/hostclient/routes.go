package hostclient

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/url"
	"strconv"
	"time"

	"github.com/quittance/quittance/protocol"
	"github.com/quittance/quittance/protocol/tlog"
	"github.com/quittance/quittance/protocol/uds"
)

// Host reads what the agent is and where its log stands. It is how a client
// learns the generation.
func (c *Client) Host(ctx context.Context) (protocol.Host, error) {
	return call[protocol.Host](ctx, c, request{op: "GET host", method: http.MethodGet, path: "/v1/host"})
}

// Health asks whether the agent answers; the answer confers nothing (I3).
func (c *Client) Health(ctx context.Context) (protocol.Health, error) {
	return call[protocol.Health](ctx, c, request{op: "GET healthz", method: http.MethodGet, path: "/healthz"})
}

// In addresses one generation. Another one is refused with other_generation.
func (c *Client) In(generation protocol.ID) *Generation {
	return &Generation{client: c, id: generation}
}

// Generation is the routes of one generation.
type Generation struct {
	client *Client
	id     protocol.ID
}

// ID is the generation that is addressed.
func (g *Generation) ID() protocol.ID { return g.id }

func (g *Generation) request(method, route string) request {
	return request{op: method + " " + route, method: method, path: "/v1/" + url.PathEscape(string(g.id)) + "/" + route}
}

func (g *Generation) allocation(method string, n protocol.Number, rest string) request {
	return g.request(method, "allocations/"+n.String()+rest)
}

// withWait asks the agent to wait; zero asks for nothing.
func (r request) withWait(wait time.Duration) (request, error) {
	if err := checkWait(wait); err != nil {
		return r, fmt.Errorf("%s: %w", r.op, err)
	}
	if wait > 0 {
		r = r.withQuery("wait", wait.String())
		r.wait = wait
	}
	return r, nil
}

func (r request) withQuery(key, value string) request {
	query := url.Values{}
	for k, v := range r.query {
		query[k] = v
	}
	query.Set(key, value)
	r.query = query
	return r
}

// Witness presents what the caller's store holds of this log.
func (g *Generation) Witness(ctx context.Context, w protocol.WitnessRequest) (protocol.WitnessAnswer, error) {
	r := g.request(http.MethodPut, "witness")
	r.body = &w
	return call[protocol.WitnessAnswer](ctx, g.client, r)
}

// Profiles lists the profiles, unavailable ones with their reason.
func (g *Generation) Profiles(ctx context.Context) ([]protocol.ProfileInfo, error) {
	list, err := call[protocol.ProfileList](ctx, g.client, g.request(http.MethodGet, "profiles"))
	return list.Profiles, err
}

// Allocate proposes number n. The answer carries the accepted receipt, the same
// for every repetition.
func (g *Generation) Allocate(ctx context.Context, n protocol.Number, a protocol.AllocateRequest) (protocol.EffectAnswer, error) {
	r := g.allocation(http.MethodPut, n, "")
	r.body = &a
	return call[protocol.EffectAnswer](ctx, g.client, r)
}

// Get reads one allocation. With until it long-polls up to wait (at most
// [protocol.MaxWaitSeconds]) for that state to be reached or passed, and answers
// with the state then, whatever it is. until "" reads at once.
func (g *Generation) Get(ctx context.Context, n protocol.Number, until protocol.State, wait time.Duration) (protocol.Allocation, error) {
	r, err := g.allocation(http.MethodGet, n, "").withWait(wait)
	if err != nil {
		return protocol.Allocation{}, err
	}
	if until != "" {
		r = r.withQuery("until", string(until))
	}
	return call[protocol.Allocation](ctx, g.client, r)
}

// List reads every allocation that is not released; state "" means all states.
func (g *Generation) List(ctx context.Context, state protocol.State) ([]protocol.Allocation, error) {
	r := g.request(http.MethodGet, "allocations")
	if state != "" {
		r = r.withQuery("state", string(state))
	}
	list, err := call[protocol.AllocationList](ctx, g.client, r)
	return list.Allocations, err
}

// Retire asks for retirement. With wait the answer carries the retired receipt
// where it was written in that time; otherwise its Receipt is null. For the
// number after the accepted frontier it is a burn.
func (g *Generation) Retire(ctx context.Context, n protocol.Number, body protocol.RetireRequest, wait time.Duration) (protocol.EffectAnswer, error) {
	r, err := g.allocation(http.MethodPut, n, "/retirement").withWait(wait)
	if err != nil {
		return protocol.EffectAnswer{}, err
	}
	r.body = &body
	return call[protocol.EffectAnswer](ctx, g.client, r)
}

// Consume acknowledges the retired receipt that body names by its leaf hash.
func (g *Generation) Consume(ctx context.Context, n protocol.Number, body protocol.ConsumeRequest) (protocol.EffectAnswer, error) {
	r := g.allocation(http.MethodPut, n, "/consumption")
	r.body = &body
	return call[protocol.EffectAnswer](ctx, g.client, r)
}

// Release lets the agent prune history up to and including body.Frontier.
func (g *Generation) Release(ctx context.Context, body protocol.ReleaseRequest) (protocol.ReleaseAnswer, error) {
	r := g.request(http.MethodPut, "release")
	r.body = &body
	return call[protocol.ReleaseAnswer](ctx, g.client, r)
}

// Proof reads the proof of one receipt, parsed and not yet verified: call
// [tlog.Proof.Verify] with the leaf and a registered key.
func (g *Generation) Proof(ctx context.Context, index protocol.Index) (tlog.Proof, error) {
	r := g.request(http.MethodGet, "receipts/"+strconv.FormatInt(int64(index), 10)+"/proof")
	text, err := g.client.text(ctx, r, tlog.MaxProofBytes)
	if err != nil {
		return tlog.Proof{}, err
	}
	proof, err := tlog.ParseProof(text)
	if err == nil && proof.Index != index {
		err = fmt.Errorf("it speaks of receipt %d", proof.Index)
	}
	if err != nil {
		return tlog.Proof{}, &LostError{Op: r.op, Err: fmt.Errorf("malformed proof: %w", err)}
	}
	return proof, nil
}

// Checkpoint reads the signed checkpoint of the log as it is now, not yet
// verified: call [tlog.ParseCheckpoint].
func (g *Generation) Checkpoint(ctx context.Context) (string, error) {
	return g.client.text(ctx, g.request(http.MethodGet, "checkpoint"), tlog.MaxCheckpointBytes)
}

// Consistency reads a checkpoint of now and the proof that it extends the log of
// from receipts.
func (g *Generation) Consistency(ctx context.Context, from int64) (protocol.ConsistencyAnswer, error) {
	r := g.request(http.MethodGet, "consistency").withQuery("from", strconv.FormatInt(from, 10))
	return call[protocol.ConsistencyAnswer](ctx, g.client, r)
}

// Log reads the captured head and tail of a worker's output.
func (g *Generation) Log(ctx context.Context, n protocol.Number) (protocol.Log, error) {
	return call[protocol.Log](ctx, g.client, g.allocation(http.MethodGet, n, "/log"))
}

// Drain stops new allocations; operators only.
func (g *Generation) Drain(ctx context.Context) (protocol.DrainAnswer, error) {
	return call[protocol.DrainAnswer](ctx, g.client, g.request(http.MethodPut, "drain"))
}

// Undrain ends a drain; operators only.
func (g *Generation) Undrain(ctx context.Context) (protocol.DrainAnswer, error) {
	return call[protocol.DrainAnswer](ctx, g.client, g.request(http.MethodDelete, "drain"))
}

// SetOwner makes the generation obey another attempt store; operators only.
func (g *Generation) SetOwner(ctx context.Context, owner protocol.ID) (protocol.OwnerAnswer, error) {
	r := g.request(http.MethodPut, "owner")
	r.body = &protocol.OwnerRequest{Owner: owner}
	return call[protocol.OwnerAnswer](ctx, g.client, r)
}

// Channel opens a channel to the worker of number n: a connected stream whose
// other end is the worker itself. The caller closes it. A [LostError] means that
// a channel may have been counted against the profile's limit; none is open.
func (g *Generation) Channel(ctx context.Context, n protocol.Number, purpose string) (net.Conn, error) {
	r := g.allocation(http.MethodPost, n, "/channel")
	r.body = &protocol.ChannelRequest{Purpose: purpose}
	ctx, cancel := context.WithTimeoutCause(ctx, g.client.options.FirstByte, errFirstByte)
	defer cancel()
	req, err := r.newHTTP(ctx, g.client)
	if err != nil {
		return nil, err
	}
	channel, err := uds.OpenChannel(ctx, g.client.path, req)
	if err == nil {
		return channel, nil
	}
	if dial, ok := errors.AsType[*uds.DialError](err); ok {
		return nil, &UnreachableError{Op: r.op, Err: dial.Err}
	}
	if refusal, ok := errors.AsType[*uds.Refusal](err); ok {
		return nil, problemOf(r.op, refusal.Status, refusal.Body)
	}
	return nil, &LostError{Op: r.op, Err: err}
}
