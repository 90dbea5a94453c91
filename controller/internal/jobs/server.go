package jobs

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"io"
	"net/http"
	"net/url"
	"os"
	"path"
	"runtime/debug"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/hashicorp/go-hclog"

	"github.com/quittance/quittance/controller/api"
	"github.com/quittance/quittance/controller/internal/jobs/blobs"
	"github.com/quittance/quittance/controller/internal/jobs/database"
	"github.com/quittance/quittance/controller/internal/jobs/records"
	"github.com/quittance/quittance/controller/internal/signing"
	"github.com/quittance/quittance/protocol"
)

// Deadlines of one request.
const (
	operationTimeout = 30 * time.Second
	waitTimeout      = api.MaxWaitSeconds*time.Second + operationTimeout
	writeTimeout     = 60 * time.Second // an answer, on top of what came before it
)

// call is one request on its way through the checks.
type call struct {
	s     *Service
	w     http.ResponseWriter
	r     *http.Request
	route api.Route
	id    string // of the request
	began time.Time
	query url.Values
	body  []byte

	provider string            // of a signed request
	who      records.Principal // of a request with a token

	// What the request is about, beyond its path; "" where that is not known.
	job, key string
}

// handler answers a call whose caller, headers and body were accepted.
type handler func(*call) error

// endpoint is a route with what it demands.
type endpoint struct {
	route  api.Route
	params []string      // query members that it knows
	role   records.Role  // of the token; "" for provider routes and open ones
	open   bool          // neither token nor signature
	raw    bool          // the handler reads the body itself
	limit  time.Duration // of the handler; 0: operationTimeout
	handle handler
}

func (s *Service) endpoints() []endpoint {
	wait := []string{"wait", "after"}
	return []endpoint{
		{route: api.RouteHello, handle: hello},
		{route: api.RouteFeed, params: []string{"kind", "attempted", "limit", "cursor"}, handle: feed},
		{route: api.RouteInput, handle: input},
		{route: api.RouteUploads, handle: uploads},
		{route: api.RouteGrant, handle: grant},
		{route: api.RouteStart, handle: start},
		{route: api.RouteAttempt, handle: attempt},
		{route: api.RouteInventory, params: []string{"state", "limit", "cursor"}, handle: inventory},
		{route: api.RouteProgress, handle: progress},
		{route: api.RouteComplete, handle: complete},
		{route: api.RouteFail, handle: fail},
		{route: api.RouteReceipts, handle: attachReceipts},
		{route: api.RouteStore, open: true, handle: serveGranted},
		{route: api.RouteOpenAPI, open: true, handle: describe},

		{route: api.RouteCreateJob, role: records.RoleSubmitter, handle: createJob},
		{route: api.RouteListJobs, role: records.RoleReader, params: append([]string{"state", "kind", "label", "limit", "cursor"}, wait...), limit: waitTimeout, handle: listJobs},
		{route: api.RouteGetJob, role: records.RoleReader, params: wait, limit: waitTimeout, handle: getJob},
		{route: api.RouteEvents, role: records.RoleReader, limit: streamLimit + operationTimeout, handle: streamEvents},
		{route: api.RouteResult, role: records.RoleReader, handle: result},
		{route: api.RouteJobReceipts, role: records.RoleReader, handle: reading((*records.Store).Receipts)},
		{route: api.RouteProvenance, role: records.RoleReader, handle: reading((*records.Store).Provenance)},
		{route: api.RouteWhy, role: records.RoleReader, handle: reading((*records.Store).Why)},
		{route: api.RouteCancel, role: records.RoleSubmitter, handle: changing((*records.Store).Cancel)},
		{route: api.RouteClose, role: records.RoleSubmitter, handle: changing((*records.Store).Close)},
		{route: api.RouteRetry, role: records.RoleSubmitter, handle: retryJob},
		{route: api.RouteCreateUpload, role: records.RoleSubmitter, raw: true, limit: s.config.UploadTimeout, handle: createUpload},
		{route: api.RouteGetUpload, role: records.RoleReader, handle: getUpload},
		{route: api.RouteListOfferings, role: records.RoleReader, handle: listOfferings},
	}
}

func (s *Service) routes() http.Handler {
	mux := http.NewServeMux()
	for _, e := range s.endpoints() {
		mux.HandleFunc(e.route.Pattern(), func(w http.ResponseWriter, r *http.Request) {
			c := &call{s: s, w: w, r: r, began: time.Now(), route: e.route, id: w.Header().Get(api.HeaderRequestID)}
			if err := c.run(e); err != nil {
				c.refuse(err)
			}
		})
	}
	mux.HandleFunc("/", func(w http.ResponseWriter, r *http.Request) {
		c := &call{s: s, w: w, r: r, began: time.Now(), id: w.Header().Get(api.HeaderRequestID)}
		c.refuse(unrouted(mux, w, r))
	})
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set(api.HeaderRequestID, newRequestID())
		w.Header().Set("Cache-Control", "no-store")
		w.Header().Set("X-Content-Type-Options", "nosniff")
		if strings.HasPrefix(r.URL.Path, "/provider/") {
			w.Header().Set(api.HeaderTopology, s.topology)
		}
		defer s.recovered(w, r)
		if r.ContentLength != 0 {
			// Also a body that no handler reads is waited for no longer than this.
			deadline := time.Now().Add(s.config.ReadTimeout)
			if err := http.NewResponseController(w).SetReadDeadline(deadline); err != nil && !errors.Is(err, http.ErrNotSupported) {
				s.log.Error("no_read_deadline", "error", err)
			}
		}
		// The mux would redirect an unclean path; a signed target is never
		// changed on the way, so such a path has no route.
		if r.URL.Path != path.Clean(r.URL.Path) || r.Method == http.MethodHead {
			c := &call{s: s, w: w, r: r, began: time.Now(), id: w.Header().Get(api.HeaderRequestID)}
			c.refuse(unrouted(mux, w, r))
			return
		}
		mux.ServeHTTP(w, r)
	})
}

func newRequestID() string {
	var b [12]byte
	rand.Read(b[:])
	return "req-" + hex.EncodeToString(b[:])
}

// unrouted tells a wrong method from an unknown path.
func unrouted(mux *http.ServeMux, w http.ResponseWriter, r *http.Request) *api.Problem {
	var allowed []string
	for _, method := range []string{http.MethodGet, http.MethodPost, http.MethodPut} {
		probe := &http.Request{Method: method, URL: r.URL, Host: r.Host}
		if _, pattern := mux.Handler(probe); pattern != "/" && pattern != "" && r.URL.Path == path.Clean(r.URL.Path) {
			allowed = append(allowed, method)
		}
	}
	if len(allowed) == 0 {
		return api.NewProblem(api.CodeNotFound, "There is no such route.", "See the API's description at /openapi.json.")
	}
	w.Header().Set("Allow", strings.Join(allowed, ", "))
	return api.NewProblem(api.CodeMethodNotAllowed, "This route exists for "+strings.Join(allowed, ", ")+".", "Use that method.")
}

// recovered turns a panic of a handler into a problem and a log line.
func (s *Service) recovered(w http.ResponseWriter, r *http.Request) {
	cause := recover()
	if cause == nil {
		return
	}
	if cause == http.ErrAbortHandler {
		panic(cause)
	}
	s.log.Error("panic", "request", w.Header().Get(api.HeaderRequestID), "cause", cause, "stack", string(debug.Stack()))
	c := &call{s: s, w: w, r: r, began: time.Now(), id: w.Header().Get(api.HeaderRequestID)}
	c.write(c.internal())
}

// run passes a call through the checks and hands it to its handler.
func (c *call) run(e endpoint) error {
	if err := c.checkVersion(e); err != nil {
		return err
	}
	if err := c.checkContent(e); err != nil {
		return err
	}
	if err := c.checkQuery(e.params); err != nil {
		return err
	}
	limit := e.limit
	if limit == 0 {
		limit = operationTimeout
	}
	if err := c.deadlines(e, limit); err != nil {
		return err
	}
	switch {
	case e.route.Provider:
		return c.runSigned(e, limit)
	case !e.open:
		if err := c.authenticate(e.role); err != nil {
			return err
		}
	}
	if err := c.readBody(e); err != nil {
		return err
	}
	return c.bounded(limit, e.handle)
}

// deadlines bounds what the connection may take. A route without a body gets no
// read deadline: one that passes during a wait would look like a client that went
// away.
func (c *call) deadlines(e endpoint, limit time.Duration) error {
	control := http.NewResponseController(c.w)
	read := time.Time{}
	switch {
	case e.raw:
		read = time.Now().Add(limit)
	case e.route.MaxRequest > 0:
		read = time.Now().Add(c.s.config.ReadTimeout)
	}
	err := errors.Join(control.SetReadDeadline(read), control.SetWriteDeadline(time.Now().Add(limit+c.s.config.ReadTimeout+writeTimeout)))
	if errors.Is(err, http.ErrNotSupported) {
		return nil
	}
	return err
}

// bounded runs the handler with a deadline on its operations.
func (c *call) bounded(limit time.Duration, handle handler) error {
	ctx, cancel := context.WithTimeout(c.r.Context(), limit)
	defer cancel()
	c.r = c.r.WithContext(ctx)
	return handle(c)
}

// runSigned verifies the signature. The operation's deadline lies no later than
// the signature's expiry: whoever sees a later date on a reply knows that an
// earlier send has no effect any more.
func (c *call) runSigned(e endpoint, limit time.Duration) error {
	pending, problem := c.s.verifier.Begin(c.r, e.route.MaxRequest > 0)
	if problem != nil {
		return problem
	}
	if err := c.readBody(e); err != nil {
		return err
	}
	verified, problem := pending.Verify(c.body)
	if problem != nil {
		return problem
	}
	c.provider = verified.Provider
	left := time.Until(verified.Expires.Add(time.Second))
	return c.bounded(min(limit, left), e.handle)
}

func (c *call) checkVersion(e endpoint) error {
	values := c.r.Header.Values(api.HeaderVersion)
	if len(values) == 0 {
		if e.open || (!e.route.Provider && c.r.Method == http.MethodGet) {
			return nil
		}
		problem := api.NewProblem(api.CodeVersionRequired, "The request names no version of the API.", "Send "+api.HeaderVersion+": "+strconv.Itoa(api.Version)+".")
		problem.Field, problem.Versions = api.HeaderVersion, []int{api.Version}
		return problem
	}
	if len(values) != 1 || values[0] != strconv.Itoa(api.Version) {
		problem := api.NewProblem(api.CodeUnknownVersion, "This version of the API is not known here.", "Send one of the versions listed.")
		problem.Field, problem.Versions = api.HeaderVersion, []int{api.Version}
		return problem
	}
	return nil
}

func badRequest(field, detail string) *api.Problem {
	problem := api.NewProblem(api.CodeBadRequest, detail, "Correct the request; nothing was changed.")
	problem.Field = field
	return problem
}

// checkContent judges the content headers against the route's ceiling, before a
// byte of the body is read.
func (c *call) checkContent(e endpoint) error {
	if len(c.r.TransferEncoding) != 0 && e.route.MaxRequest > 0 || e.route.MaxRequest > 0 && c.r.ContentLength < 0 {
		return api.NewProblem(api.CodeLengthRequired, "The body has no Content-Length.", "Send it with its length.")
	}
	if len(c.r.Header.Values("Content-Encoding")) != 0 {
		return api.NewProblem(api.CodeUnsupportedType, "Content-Encoding is not supported.", "Send the bytes as they are.")
	}
	if e.route.MaxRequest == 0 {
		if c.r.ContentLength != 0 {
			return badRequest("body", "This request has no body.")
		}
		names := []string{"Content-Type", api.HeaderContentDigest}
		if e.route.Provider {
			names = append(names, "Content-Length")
		}
		for _, name := range names {
			if len(c.r.Header.Values(name)) != 0 {
				return badRequest(name, "A request without a body has no content headers.")
			}
		}
		return nil
	}
	if c.r.ContentLength > e.route.MaxRequest {
		problem := api.NewProblem(api.CodeTooLarge, "The body is longer than the "+strconv.FormatInt(e.route.MaxRequest, 10)+" bytes that this route takes.", "Send less.")
		c.hangUp()
		return problem
	}
	if !e.raw && !slices.Equal(c.r.Header.Values("Content-Type"), []string{api.ContentJSON}) {
		return api.NewProblem(api.CodeUnsupportedType, "The body must be "+api.ContentJSON+".", "Send Content-Type: "+api.ContentJSON+".")
	}
	return nil
}

func (c *call) checkQuery(known []string) error {
	query, err := url.ParseQuery(c.r.URL.RawQuery)
	if err != nil {
		return badRequest("query", "The query is not well formed.")
	}
	for name, values := range query {
		if !slices.Contains(known, name) {
			return badRequest("query", "The query has a member that this route does not know.")
		}
		if len(values) != 1 {
			return badRequest(name, "The query has "+name+" twice.")
		}
	}
	c.query = query
	return nil
}

// readBody reads a bounded body. A nil body means that the route has none.
func (c *call) readBody(e endpoint) error {
	if e.route.MaxRequest == 0 || e.raw {
		return nil
	}
	body := make([]byte, c.r.ContentLength)
	if _, err := io.ReadFull(c.r.Body, body); err != nil {
		c.hangUp()
		if errors.Is(err, os.ErrDeadlineExceeded) {
			return api.NewProblem(api.CodeTimeout, "The body did not arrive in time.", "Send the request again.")
		}
		return badRequest("body", "The body ended before its announced length.")
	}
	c.body = body
	return nil
}

// hangUp ends the connection after the answer: what the client may still send is
// neither read nor waited for.
func (c *call) hangUp() {
	c.w.Header().Set("Connection", "close")
	if err := http.NewResponseController(c.w).SetReadDeadline(time.Now()); err != nil && !errors.Is(err, http.ErrNotSupported) {
		c.log(err)
	}
}

// decode reads the body's message strictly.
func (c *call) decode(message any) error {
	return api.Decode(c.body, c.route.MaxRequest, message)
}

// bearer is the token of the Authorization header, "" where there is none of
// the right form.
func (c *call) bearer() string {
	values := c.r.Header.Values("Authorization")
	if len(values) != 1 {
		return ""
	}
	scheme, token, ok := strings.Cut(values[0], " ")
	if !ok || !strings.EqualFold(scheme, "Bearer") || len(token) > 128 {
		return ""
	}
	return token
}

func (c *call) authenticate(role records.Role) error {
	token := c.bearer()
	if token == "" {
		c.w.Header().Set("WWW-Authenticate", "Bearer")
		return api.NewProblem(api.CodeUnauthenticated, "The request has no bearer token.", "Send Authorization: Bearer with a token of this service.")
	}
	who, err := c.s.store.Authenticate(c.r.Context(), token)
	if err != nil {
		c.w.Header().Set("WWW-Authenticate", "Bearer")
		return err
	}
	if !who.Role.Allows(role) {
		return api.NewProblem(api.CodeForbidden, "The token's role is "+string(who.Role)+"; this needs "+string(role)+".", "Use a token with that role.")
	}
	c.who = who
	return nil
}

// refuse answers with the problem that an error stands for.
func (c *call) refuse(err error) {
	var problem *api.Problem
	var decode *protocol.DecodeError
	switch {
	case errors.As(err, &problem):
	case errors.As(err, &decode):
		problem = badRequest(decode.Field, "The body is refused: "+decode.Error()+".")
	case errors.Is(err, syscall.ENOSPC), errors.Is(err, database.ErrFull):
		c.log(err)
		problem = api.NewProblem(api.CodeNoSpace, "The service's disk is full; nothing was changed.", "Tell the operator; send the same request again later.")
	case errors.Is(err, blobs.ErrMismatch), errors.Is(err, blobs.ErrMissing):
		c.log(err)
		problem = c.internal()
	default:
		c.log(err)
		problem = api.NewProblem(api.CodeUnavailable, "The service cannot answer now.", "Send the same request again.")
	}
	if c.r.Method == http.MethodGet {
		problem.Effect = api.EffectNone
	}
	c.write(problem)
}

func (c *call) internal() *api.Problem {
	return api.NewProblem(api.CodeInternal, "The service failed.", "Tell the operator the request's id; its log has the cause.")
}

func (c *call) log(err error) {
	if errors.Is(err, context.Canceled) && c.r.Context().Err() != nil {
		// The caller went away: a lane that stops observing does so in the
		// middle of a heartbeat. Nobody reads the answer, and nothing is wrong.
		c.s.log.Debug("caller_gone", "request", c.id, "operation", c.route.Name)
		return
	}
	c.s.log.Error("request_failed", "request", c.id, "operation", c.route.Name, "error", err)
}

// note writes one line per effect and refusal: who, what, with what outcome, and
// never a message's content (I37). Reads and heartbeats are for debugging.
func (c *call) note(status int, code api.Code) {
	if observe := c.s.config.Observe; observe != nil {
		observe(c.route.Name, code, time.Since(c.began))
	}
	level := hclog.Info
	if c.r.Method == http.MethodGet || c.route.Name == api.RouteProgress.Name {
		level = hclog.Debug
	}
	if level >= c.s.log.GetLevel() {
		c.identify()
	}
	event, fields := "request_done", []any{"request", c.id, "operation", c.route.Name, "status", status}
	if code != "" {
		event, fields = "request_refused", append(fields, "code", code)
	}
	for _, part := range []struct{ name, value string }{
		{"provider", c.provider}, {"workspace", c.who.Workspace}, {"principal", c.who.Name},
		{"job", c.job}, {"key", c.key}, {"attempt", c.r.PathValue("attempt")}, {"upload", c.r.PathValue("upload")},
	} {
		if part.value != "" {
			fields = append(fields, part.name, part.value)
		}
	}
	c.s.log.Log(level, event, fields...)
}

// identifyTime bounds the look at which job an attempt is of.
const identifyTime = time.Second

// identify finds the job that the request is about, so that one id is in every
// line from the job's creation on. Strangers cause no look at the database.
func (c *call) identify() {
	if c.job == "" {
		c.job = c.r.PathValue("job")
	}
	reference := c.r.PathValue("attempt")
	if c.job != "" || reference == "" || c.provider == "" {
		return
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(c.r.Context()), identifyTime)
	defer cancel()
	job, key, err := c.s.store.JobOf(ctx, c.provider, reference)
	if err != nil {
		c.s.log.Debug("attempt_not_identified", "request", c.id, "attempt", reference, "error", err)
		return
	}
	c.job, c.key = job, key
}

func (c *call) write(problem *api.Problem) {
	c.w.Header().Set("Content-Type", api.ContentProblem)
	c.send(problem.Status, api.Encode(problem))
	c.note(problem.Status, problem.Code)
}

// answer sends a message. One that its reader would refuse for its size is our
// own fault and is not sent (I33).
func (c *call) answer(status int, message any) error {
	body := api.Encode(message)
	if int64(len(body)) > c.route.MaxResponse {
		c.s.log.Error("answer_too_large", "request", c.id, "operation", c.route.Name, "bytes", len(body))
		return c.internal()
	}
	c.w.Header().Set("Content-Type", api.ContentJSON)
	c.send(status, body)
	c.note(status, "")
	return nil
}

// send writes a whole answer at once: nobody waits for what is noted of it
// afterwards. A client that went away is nobody's failure: what it asked for is
// durable or was refused.
func (c *call) send(status int, body []byte) {
	c.w.Header().Set("Content-Length", strconv.Itoa(len(body)))
	c.w.WriteHeader(status)
	_, err := c.w.Write(body)
	if err == nil {
		err = http.NewResponseController(c.w).Flush()
	}
	if err != nil {
		c.s.log.Debug("answer_not_delivered", "request", c.id, "error", err)
	}
}

var _ signing.KeySource = (*keys)(nil)
