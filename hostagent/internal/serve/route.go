package serve

import (
	"errors"
	"io"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/quittance/quittance/protocol"
)

// access says who may use a route.
type access int

const (
	readers     access = iota // every controller and operator, owner or not
	either                    // controllers with an owner, and operators
	controllers               // controllers with an owner
	operators                 // operators
)

// route is one method of one path. In a pattern {n} is a number, {i} an index.
type route struct {
	method  string
	pattern string
	access  access
	query   []string // the keys that it knows
	body    bool     // it takes a JSON body
	serve   func(h *Handler, r *request) (answer, *protocol.Problem)
}

// absolute are the routes outside any generation, generational those below
// /v1/{generation}/.
var (
	absolute = []route{
		{method: "GET", pattern: "/healthz", serve: (*Handler).health},
		{method: "GET", pattern: "/v1/host", serve: (*Handler).host},
	}
	generational = []route{
		{method: "PUT", pattern: "witness", access: controllers, body: true, serve: (*Handler).witness},
		{method: "GET", pattern: "profiles", serve: (*Handler).profiles},
		{method: "PUT", pattern: "allocations/{n}", access: controllers, body: true, serve: (*Handler).allocate},
		{method: "GET", pattern: "allocations/{n}", query: []string{"until", "wait"}, serve: (*Handler).allocation},
		{method: "GET", pattern: "allocations", query: []string{"state"}, serve: (*Handler).allocations},
		{method: "POST", pattern: "allocations/{n}/channel", access: controllers, body: true, serve: (*Handler).channel},
		{method: "PUT", pattern: "allocations/{n}/retirement", access: either, query: []string{"wait"}, body: true, serve: (*Handler).retire},
		{method: "PUT", pattern: "allocations/{n}/consumption", access: controllers, body: true, serve: (*Handler).consume},
		{method: "GET", pattern: "allocations/{n}/log", serve: (*Handler).log},
		{method: "PUT", pattern: "release", access: controllers, body: true, serve: (*Handler).release},
		{method: "GET", pattern: "receipts", query: []string{"after", "limit", "wait"}, serve: (*Handler).receipts},
		{method: "GET", pattern: "receipts/{i}", serve: (*Handler).receipt},
		{method: "GET", pattern: "receipts/{i}/proof", serve: (*Handler).proof},
		{method: "GET", pattern: "checkpoint", serve: (*Handler).checkpoint},
		{method: "GET", pattern: "consistency", query: []string{"from"}, serve: (*Handler).consistency},
		{method: "PUT", pattern: "drain", access: operators, serve: (*Handler).drain},
		{method: "DELETE", pattern: "drain", access: operators, serve: (*Handler).undrain},
		{method: "PUT", pattern: "owner", access: operators, body: true, serve: (*Handler).setOwner},
	}
)

// route finds the route of a request and reads what its path carries.
func (h *Handler) route(w http.ResponseWriter, req *request) (route, *protocol.Problem) {
	// The path as it was sent: no route has a character that needs escaping.
	path := req.http.URL.EscapedPath()
	table, rest := absolute, path
	if below, ok := strings.CutPrefix(path, "/v1/"); ok && path != "/v1/host" {
		generation, r, ok := strings.Cut(below, "/")
		if !ok {
			return route{}, notFound()
		}
		if protocol.ID(generation) != h.cfg.Generation {
			p := protocol.NewProblem(protocol.CodeOtherGeneration,
				"this agent's ledger is of another generation", "read GET /v1/host and decide anew")
			p.Generation = h.cfg.Generation
			return route{}, p
		}
		table, rest = generational, r
	}
	var allowed []string
	for _, candidate := range table {
		n, i, ok, problem := match(candidate.pattern, rest)
		if !ok {
			continue
		}
		if candidate.method != req.http.Method {
			allowed = append(allowed, candidate.method)
			continue
		}
		req.number, req.index = n, i
		return candidate, problem
	}
	if allowed != nil {
		w.Header().Set("Allow", strings.Join(allowed, ", "))
		return route{}, protocol.NewProblem(protocol.CodeMethodNotAllowed,
			"this route does not know the request's method", "use "+strings.Join(allowed, " or "))
	}
	return route{}, notFound()
}

func notFound() *protocol.Problem {
	return protocol.NewProblem(protocol.CodeNotFound, "there is no such route", "see the protocol's list of routes")
}

// match compares a path with a pattern. A path that has the pattern's form and
// a malformed number matches with the problem that says so.
func match(pattern, path string) (n protocol.Number, i protocol.Index, ok bool, p *protocol.Problem) {
	want, got := strings.Split(pattern, "/"), strings.Split(path, "/")
	if len(want) != len(got) {
		return 0, 0, false, nil
	}
	for k := range want {
		switch want[k] {
		case "{n}":
			var err error
			if n, err = protocol.ParseNumber(got[k]); err != nil {
				p = protocol.NewProblem(protocol.CodeBadNumber, "the path's "+err.Error(), "send a number of that form")
			}
		case "{i}":
			var err error
			if i, err = parseIndex(got[k]); err != nil {
				p = badRequest("index", err.Error())
			}
		default:
			if want[k] != got[k] {
				return 0, 0, false, nil
			}
		}
	}
	return n, i, true, p
}

var errIndex = errors.New("must be a plain decimal from 0, without sign or leading zeros")

// parseIndex reads a plain decimal from 0.
func parseIndex(s string) (protocol.Index, error) {
	if s == "" || len(s) > 16 || len(s) > 1 && s[0] == '0' {
		return 0, errIndex
	}
	for k := range len(s) {
		if s[k] < '0' || s[k] > '9' {
			return 0, errIndex
		}
	}
	v, err := strconv.ParseInt(s, 10, 64)
	if err != nil {
		return 0, errIndex
	}
	return protocol.Index(v), nil
}

// parseQuery accepts exactly the keys that a route knows, each at most once.
func parseQuery(r *http.Request, known []string) (map[string]string, *protocol.Problem) {
	values, err := url.ParseQuery(r.URL.RawQuery)
	if err != nil {
		return nil, badRequest("query", "is malformed")
	}
	query := map[string]string{}
	for key, all := range values {
		switch {
		case !slices.Contains(known, key):
			return nil, badRequest("query", "has a key that this route does not know; it knows: "+orNone(known))
		case len(all) != 1:
			return nil, badRequest(key, "is given more than once")
		}
		query[key] = all[0]
	}
	return query, nil
}

func orNone(keys []string) string {
	if len(keys) == 0 {
		return "none"
	}
	return strings.Join(keys, ", ")
}

// wait reads the query's wait as a deadline on the boot-time clock, 0 for none.
func (h *Handler) wait(r *request) (deadlineMillis int64, p *protocol.Problem) {
	text, ok := r.query["wait"]
	if !ok {
		return 0, nil
	}
	d, err := time.ParseDuration(text)
	if err != nil || d <= 0 || d > protocol.MaxWaitSeconds*time.Second {
		return 0, badRequest("wait", "must be a duration above 0s and at most 60s, as in 30s")
	}
	return h.cfg.Now().BootMillis + max(1, d.Milliseconds()), nil
}

// checkBody refuses a body of another type, or one where none belongs.
func checkBody(r *http.Request, wanted bool) *protocol.Problem {
	if !wanted {
		if r.ContentLength != 0 {
			return badRequest("body", "is not part of this request: send none")
		}
		return nil
	}
	if types := r.Header.Values("Content-Type"); len(types) > 1 || len(types) == 1 && types[0] != protocol.ContentJSON {
		return badRequest("Content-Type", "must be absent or "+protocol.ContentJSON+" (curl: --json instead of --data)")
	}
	return nil
}

// decode reads a request's body strictly (I34).
func decode(r *request, into any) *protocol.Problem {
	data, err := io.ReadAll(io.LimitReader(r.http.Body, protocol.MaxBodyBytes+1))
	if err != nil {
		return badRequest("body", "broke off")
	}
	if len(data) > protocol.MaxBodyBytes {
		return protocol.NewProblem(protocol.CodeTooLarge, "the body is longer than 65536 bytes", "send a smaller request")
	}
	err = protocol.DecodeStrict(data, protocol.MaxBodyBytes, into)
	if err == nil {
		// A witness that lost a member would say that its store holds nothing (I9).
		err = protocol.CheckPresence(data, into)
	}
	if err == nil {
		return nil
	}
	if malformed, ok := errors.AsType[*protocol.DecodeError](err); ok {
		if malformed.Field == "" {
			return badRequest("body", malformed.Reason)
		}
		return badRequest(malformed.Field, malformed.Reason)
	}
	return badRequest("body", "cannot be read")
}
