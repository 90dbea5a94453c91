// Package console serves the operators of a running controller: what the
// attempts wait for, their records, decisions and the drain. It owns admin.sock
// and who may use it, root and the process's own user. It must not write a
// record: decisions go to whoever drives the attempt (package desk).
package console

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"os"
	"slices"

	"github.com/hashicorp/go-hclog"

	"github.com/quittance/quittance/controller/api/operator"
	"github.com/quittance/quittance/controller/internal/attempt"
	"github.com/quittance/quittance/controller/internal/desk"
	"github.com/quittance/quittance/controller/internal/store"
	"github.com/quittance/quittance/protocol"
	"github.com/quittance/quittance/protocol/uds"
)

// Store is what this package reads of the attempt store.
type Store interface {
	Active() []store.Entry
	Get(key string) (store.Entry, bool)
	History() []store.HistoryEntry
	Archived(h store.HistoryEntry) (store.Entry, error)
}

// Config is what a console is made of.
type Config struct {
	Store Store
	Desk  *desk.Desk
	Drain func() // begins the drain; may be called again
	// Blocked says why no job is taken now, or "".
	Blocked func() string
	Log     hclog.Logger
}

// Console serves one socket.
type Console struct {
	Config
	listener net.Listener
	server   *uds.Server
}

// Listen makes the socket at path, mode 0600.
func Listen(path string, cfg Config) (*Console, error) {
	l, err := uds.Listen(path, uds.Options{Mode: 0o600})
	if err != nil {
		return nil, fmt.Errorf("admin_socket: %w", err)
	}
	c := &Console{Config: cfg, listener: l}
	c.server = uds.NewServer(c.handler(), uds.Limits{})
	return c, nil
}

// Serve answers until Close; it returns nil then.
func (c *Console) Serve() error { return c.server.Serve(c.listener) }

// Close ends every exchange and removes the socket.
func (c *Console) Close() error { return c.server.Close() }

func (c *Console) handler() http.Handler {
	mux := http.NewServeMux()
	answer := func(pattern string, serve func(r *http.Request) (any, error)) {
		mux.HandleFunc(pattern, func(w http.ResponseWriter, r *http.Request) {
			body, err := serve(r)
			if err != nil {
				uds.WriteProblem(w, problemOf(err))
				return
			}
			w.Header().Set("Content-Type", protocol.ContentJSON)
			data, raw := body.([]byte)
			if !raw {
				data = protocol.AppendCanonical(nil, body)
			}
			// A peer that is gone cannot be told so.
			_, _ = w.Write(data)
		})
	}
	answer("GET /v1/attempts", func(*http.Request) (any, error) { return c.list(), nil })
	answer("GET /v1/attempts/{key}", func(r *http.Request) (any, error) {
		e, archived, err := c.find(r.PathValue("key"))
		if err != nil {
			return nil, err
		}
		return c.view(e, archived), nil
	})
	answer("GET /v1/attempts/{key}/record", func(r *http.Request) (any, error) {
		e, _, err := c.find(r.PathValue("key"))
		if err != nil {
			return nil, err
		}
		return attempt.Encode(e.Record)
	})
	answer("POST /v1/attempts/{key}/resume", func(r *http.Request) (any, error) {
		if err := body(r, &operator.Nothing{}); err != nil {
			return nil, err
		}
		return c.decide(r, desk.Decision{Action: desk.Resume})
	})
	answer("POST /v1/attempts/{key}/resolve", func(r *http.Request) (any, error) {
		var asked operator.Resolve
		if err := body(r, &asked); err != nil {
			return nil, err
		}
		return c.decide(r, desk.Decision{Action: desk.Resolve, Reference: asked.Reference, Note: asked.Note})
	})
	answer("POST /v1/drain", func(r *http.Request) (any, error) {
		if err := body(r, &operator.Nothing{}); err != nil {
			return nil, err
		}
		c.Log.Info("an operator drains the controller")
		c.Drain()
		running := 0
		for _, e := range c.Store.Active() {
			if attempt.HoldsLane(e.Record) {
				running++
			}
		}
		return operator.Drained{Running: running}, nil
	})
	mux.HandleFunc("/", func(w http.ResponseWriter, _ *http.Request) {
		uds.WriteProblem(w, protocol.NewProblem(protocol.CodeNotFound, "no such route", "use agentctl attempts"))
	})
	return allowed(mux)
}

// allowed lets root and the process's own user in.
func allowed(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if peer, ok := uds.PeerFrom(r.Context()); !ok || peer.UID != 0 && peer.UID != os.Geteuid() {
			uds.WriteProblem(w, protocol.NewProblem(protocol.CodeForbidden, "only root and the controller's own user are its operators", "ask as one of them"))
			return
		}
		next.ServeHTTP(w, r)
	})
}

func body(r *http.Request, v any) error {
	data := make([]byte, protocol.MaxBodyBytes)
	n := 0
	for {
		read, err := r.Body.Read(data[n:]) // it lies in memory, within the ceiling
		n += read
		if err != nil || n == len(data) {
			break
		}
	}
	return protocol.DecodeStrict(data[:n], protocol.MaxBodyBytes, v)
}

// find looks among active and archived records.
func (c *Console) find(key string) (e store.Entry, archived bool, err error) {
	if e, ok := c.Store.Get(key); ok {
		return e, false, nil
	}
	history := c.Store.History()
	at := slices.IndexFunc(history, func(h store.HistoryEntry) bool { return h.Key == key })
	if at < 0 {
		return e, false, store.ErrNotFound
	}
	e, err = c.Store.Archived(history[at])
	return e, true, err
}

func (c *Console) list() operator.List {
	list := operator.List{Attempts: []operator.Attempt{}, Blocked: c.Blocked()}
	for _, e := range c.Store.Active() {
		list.Attempts = append(list.Attempts, c.view(e, false))
	}
	slices.SortFunc(list.Attempts, func(a, b operator.Attempt) int {
		if a.Created != b.Created {
			return int(a.Created.Time().Compare(b.Created.Time()))
		}
		return slices.Compare([]byte(a.Key), []byte(b.Key))
	})
	return list
}

func (c *Console) view(e store.Entry, archived bool) operator.Attempt {
	origin := attempt.OriginOf(e.Record)
	admission, _ := attempt.AdmissionOf(e.Record)
	view := operator.Attempt{
		Key: e.Key, Reference: admission.Reference, Lane: origin.Lane, State: string(e.Record.State()), Job: origin.Job, Kind: origin.Kind,
		Created: origin.Created, HoldsLane: attempt.HoldsLane(e.Record), Archived: archived, Executions: []operator.Execution{},
	}
	for _, x := range attempt.ExecutionsOf(e.Record) {
		view.Executions = append(view.Executions, operator.Execution{
			Generation: x.Generation, Number: x.Number, Settlement: string(x.Settlement), Entered: x.Entered, Failure: x.Failure,
		})
	}
	if w, ok := c.Desk.Waiting(e.Key); ok {
		view.Waiting = &operator.Waiting{Step: w.Step, Reason: w.Reason, Since: w.Since, Until: w.Until, Offers: []operator.Offer{}}
		for _, o := range w.Offers {
			view.Waiting.Offers = append(view.Waiting.Offers, operator.Offer{Action: string(o.Action), Lost: o.Lost})
		}
	}
	return view
}

func (c *Console) decide(r *http.Request, d desk.Decision) (any, error) {
	key := r.PathValue("key")
	if _, _, err := c.find(key); err != nil {
		return nil, err
	}
	peer, _ := uds.PeerFrom(r.Context())
	d.UID = int64(peer.UID)
	if err := c.Desk.Decide(r.Context(), key, d); err != nil {
		return nil, err
	}
	c.Log.Info("an operator decided", "attempt", key, "action", d.Action, "uid", d.UID)
	return operator.Decided{Key: key, Action: string(d.Action)}, nil
}

// problemOf is what an operator is told.
func problemOf(err error) *protocol.Problem {
	refused := func(code protocol.Code, detail, next string) *protocol.Problem {
		p := protocol.NewProblem(protocol.CodeBusy, detail, next) // a conflict with what is the case now
		p.Code = code
		return p
	}
	if p, ok := errors.AsType[*protocol.Problem](err); ok {
		return p
	}
	if d, ok := errors.AsType[*protocol.DecodeError](err); ok {
		return protocol.NewProblem(protocol.CodeBadRequest, d.Error(), "correct the request")
	}
	if _, ok := errors.AsType[*desk.NotOfferedError](err); ok {
		return refused(operator.CodeNotOffered, "the attempt waits, and not for this decision", "agentctl attempts show says what may be decided")
	}
	switch {
	case errors.Is(err, store.ErrNotFound):
		return protocol.NewProblem(protocol.CodeNotFound, "the attempt store has no record with this key", "agentctl attempts list shows the active ones")
	case errors.Is(err, desk.ErrNotWaiting):
		return refused(operator.CodeNotWaiting, "the attempt does not wait for a decision", "look at it again with agentctl attempts show")
	case errors.Is(err, desk.ErrOtherReference):
		return refused(operator.CodeOtherReference, "the reference is not this attempt's", "agentctl attempts show prints it")
	case errors.Is(err, context.Canceled):
		return protocol.NewProblem(protocol.CodeUnavailable, "the request ended before it was decided", "look at the attempt again")
	}
	return protocol.NewProblem(protocol.CodeInternal, "the decision could not be written; the journal has the cause", "look at the attempt again")
}
