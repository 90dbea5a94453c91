// Package serve speaks the private socket's HTTP: it turns requests into core's
// events and core's replies into answers, strictly and within bounds.
//
// It owns who may do what (peer credentials against the configured uids), the
// versions, the routes, and the decoding of paths, queries and bodies. It must
// not know allocation states, numbering or storage: what core or the receipt
// log answers is passed on as it is.
//
//	peer ─► role ─► version ─► route ─► generation ─► owner ─► query, body ─► core
//
// The first check that fails answers; nothing after it has happened.
package serve

import (
	"context"
	"net/http"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/hashicorp/go-hclog"

	"github.com/quittance/quittance/hostagent/internal/core"
	"github.com/quittance/quittance/hostagent/internal/failpoint"
	"github.com/quittance/quittance/protocol"
	"github.com/quittance/quittance/protocol/tlog"
	"github.com/quittance/quittance/protocol/uds"
)

// Core decides; *core.Core is one.
type Core interface {
	NewRequestID() core.RequestID
	Ask(ctx context.Context, id core.RequestID, e core.Event) (core.Reply, error)
	Post(e core.Event)
}

// Receipts is the receipt log, of which everything served is durable.
type Receipts interface {
	Head() (first, head protocol.Index, changed <-chan struct{})
	Read(after protocol.Index, limit, maxBytes int) ([][]byte, error)
	Leaf(index protocol.Index) ([]byte, error) // kept ones below the first index too
	LeafHash(index protocol.Index) (tlog.Hash, error)
	TreeAt(size int64) (tlog.Tree, error)
	Checkpoint() (tlog.Checkpoint, error)
	Proof(index protocol.Index) (tlog.Proof, error)
	Consistency(from int64) (tlog.Checkpoint, []tlog.Hash, error)
}

// Workers reach into running allocations.
type Workers interface {
	Dial(ctx context.Context, n protocol.Number, network, address string) (*os.File, error)
	Live(n protocol.Number, started *protocol.StartedBody) (protocol.OOM, protocol.Peaks, bool)
	Captured(n protocol.Number, nonce protocol.ID) (protocol.Log, error)
}

// Config is what a [Handler] needs.
type Config struct {
	Core           Core
	Receipts       Receipts
	Workers        Workers
	Generation     protocol.ID
	HostKey        *tlog.PublicKey
	Versions       protocol.Versions
	ControllerUIDs []int
	OperatorUIDs   []int
	Now            func() core.Now
	NoSpace        func() bool // the state directory has no room for new work
	// Devices are those that the host has now, where the profile asks for any.
	Devices func(profile string) []core.Offered
	Logger  hclog.Logger
	// Purpose names the controller's attempt in log lines; nil leaves it out.
	Purpose func(protocol.Number) string
	// Observe, where it is set, is told of every request that was answered:
	// problem is nil for a success, operation the route's pattern, or "other".
	Observe func(operation string, problem *protocol.Problem, took time.Duration)
}

// Handler answers the private socket's requests. Its requests must come from
// [uds.Server], which has read and bounded them.
type Handler struct {
	cfg Config

	mu            sync.Mutex // guards the two below
	lastForbidden time.Time
	forbidden     int // refusals since then that were not logged
}

// about is what log lines say of a number.
func (h *Handler) about(n protocol.Number) []any {
	if h.cfg.Purpose == nil {
		return []any{"number", int64(n)}
	}
	return []any{"number", int64(n), "purpose", h.cfg.Purpose(n)}
}

// New makes a handler.
func New(cfg Config) *Handler { return &Handler{cfg: cfg} }

// forbiddenLogInterval bounds the log lines that strangers can cause.
const forbiddenLogInterval = 10 * time.Second

// role is what a peer may act as.
type role struct {
	controller, operator bool
}

// request is one request on its way through the checks.
type request struct {
	http   *http.Request
	peer   uds.Peer
	role   role
	caller core.Caller
	query  map[string]string
	number protocol.Number
	index  protocol.Index
}

// answer is what a route found; body is one of the protocol's messages.
type answer struct {
	status int
	body   any
	text   string // for the routes that answer in plain text
	lines  [][]byte
	raw    func(w http.ResponseWriter) // for the routes that write themselves
}

// ServeHTTP implements [http.Handler].
func (h *Handler) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	w.Header().Set(protocol.HeaderVersion, strconv.Itoa(protocol.Version))
	began := time.Now()
	a, operation, problem := h.handle(w, r)
	if h.cfg.Observe != nil {
		h.cfg.Observe(operation, problem, time.Since(began))
	}
	if failpoint.DropReply() {
		panic(http.ErrAbortHandler) // closes the connection without an answer
	}
	switch {
	case problem != nil:
		uds.WriteProblem(w, problem)
	case a.raw != nil:
		a.raw(w)
	case a.lines != nil:
		w.Header().Set("Content-Type", protocol.ContentReceipts)
		for _, line := range a.lines {
			// A peer that is gone cannot be told so.
			_, _ = w.Write(append(slices.Clip(line), '\n'))
		}
	case a.text != "":
		w.Header().Set("Content-Type", protocol.ContentProof)
		_, _ = w.Write([]byte(a.text))
	default:
		body := append(protocol.AppendCanonical(nil, a.body), '\n')
		w.Header().Set("Content-Type", protocol.ContentJSON)
		w.Header().Set("Content-Length", strconv.Itoa(len(body)))
		w.WriteHeader(a.status)
		_, _ = w.Write(body)
	}
}

// noRoute is the operation of requests that reached no route.
const noRoute = "other"

func (h *Handler) handle(w http.ResponseWriter, r *http.Request) (a answer, operation string, p *protocol.Problem) {
	req := &request{http: r}
	if p := h.admit(req); p != nil {
		return answer{}, noRoute, p
	}
	if p := checkVersion(r); p != nil {
		return answer{}, noRoute, p
	}
	route, p := h.route(w, req)
	if p != nil {
		return answer{}, noRoute, p
	}
	operation = route.method + " " + route.pattern
	if p := h.checkCaller(req, route); p != nil {
		return answer{}, operation, p
	}
	if req.query, p = parseQuery(r, route.query); p != nil {
		return answer{}, operation, p
	}
	if p := checkBody(r, route.body); p != nil {
		return answer{}, operation, p
	}
	a, p = route.serve(h, req)
	return a, operation, p
}

// admit finds the peer's role; strangers are refused and logged, not too often.
func (h *Handler) admit(req *request) *protocol.Problem {
	peer, ok := uds.PeerFrom(req.http.Context())
	if !ok {
		return protocol.NewProblem(protocol.CodeInternal, "the connection carries no peer credentials", "report this")
	}
	req.peer = peer
	req.role = role{
		controller: slices.Contains(h.cfg.ControllerUIDs, peer.UID),
		operator:   slices.Contains(h.cfg.OperatorUIDs, peer.UID),
	}
	if req.role.controller || req.role.operator {
		return nil
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	h.forbidden++
	if now := time.Now(); now.Sub(h.lastForbidden) >= forbiddenLogInterval {
		h.cfg.Logger.Warn("peer_refused", "uid", peer.UID, "pid", peer.PID, "refusals", h.forbidden,
			"remedy", "add the uid to controller_uids or operator_uids if it should be allowed")
		h.lastForbidden, h.forbidden = now, 0
	}
	return forbidden("the user " + strconv.Itoa(peer.UID) + " is neither a controller nor an operator here")
}

func forbidden(detail string) *protocol.Problem {
	return protocol.NewProblem(protocol.CodeForbidden, detail, "use an account that the agent's configuration names for this")
}

// checkVersion reads the version that the request speaks. Without one a GET is
// answered in the current version, so that curl just works.
func checkVersion(r *http.Request) *protocol.Problem {
	values := r.Header.Values(protocol.HeaderVersion)
	if len(values) == 0 {
		if r.Method == http.MethodGet {
			return nil
		}
		p := protocol.NewProblem(protocol.CodeVersionRequired,
			"a request that is not a GET must name the protocol version that it speaks",
			"send "+protocol.HeaderVersion+": "+strconv.Itoa(protocol.Version))
		p.Versions = []int{protocol.Version}
		return p
	}
	if len(values) == 1 && values[0] == strconv.Itoa(protocol.Version) {
		return nil
	}
	p := protocol.NewProblem(protocol.CodeUnknownVersion,
		"the agent does not speak the version that "+protocol.HeaderVersion+" names", "speak one of the versions listed")
	p.Versions = []int{protocol.Version}
	return p
}

// checkCaller finds as whom the peer acts and whether that may do this.
func (h *Handler) checkCaller(req *request, route route) *protocol.Problem {
	req.caller.UID = int64(req.peer.UID)
	owners := req.http.Header.Values(protocol.HeaderOwner)
	if len(owners) > 1 || len(owners) == 1 && !protocol.ID(owners[0]).Valid() {
		return badRequest(protocol.HeaderOwner, "must be given once, as 32 lower-case hexadecimal digits")
	}
	if len(owners) == 1 && req.role.controller {
		req.caller.Owner = protocol.ID(owners[0])
		h.cfg.Core.Post(core.Heard{Owner: req.caller.Owner})
	}
	switch route.access {
	case operators:
		if !req.role.operator {
			return forbidden("only operators may do this")
		}
		req.caller.Operator, req.caller.Owner = true, ""
	case controllers:
		if !req.role.controller {
			return forbidden("only controllers may do this")
		}
		if req.caller.Owner == "" {
			return ownerRequired()
		}
	case either:
		// A user that is both acts as a controller when it names an owner.
		if req.caller.Owner == "" {
			if !req.role.operator {
				return ownerRequired()
			}
			req.caller.Operator = true
		}
	case readers:
	}
	return nil
}

func ownerRequired() *protocol.Problem {
	p := protocol.NewProblem(protocol.CodeOwnerRequired,
		"a controller's request must name its attempt store", "send "+protocol.HeaderOwner+" with the store's id")
	p.Field = protocol.HeaderOwner
	return p
}

func badRequest(field, reason string) *protocol.Problem {
	p := protocol.NewProblem(protocol.CodeBadRequest, strings.TrimPrefix(field, "/")+" "+reason, "correct it and send the request again: nothing changed")
	p.Field = field
	return p
}
