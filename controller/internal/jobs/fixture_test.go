package jobs

import (
	"bytes"
	"context"
	"crypto/ed25519"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"reflect"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/quittance/quittance/controller/api"
	"github.com/quittance/quittance/controller/internal/signing"
	"github.com/quittance/quittance/protocol"
)

// fixture is a service behind a real HTTP server, with an administrator's token
// and one provider that announces the kinds "echo" and "page".
type fixture struct {
	t      testing.TB
	s      *Service
	origin string
	token  string
	node   *node
}

// node is a provider.
type node struct {
	f      *fixture
	name   string
	signer *signing.Signer
	store  protocol.ID
	seq    int64
}

// open starts a service; location is a database as in Config, "" for SQLite.
func open(t testing.TB, location string, change func(*Config)) *fixture {
	t.Helper()
	return openAs(t, location, "node-1", change)
}

// openAs is open with another name for its provider.
func openAs(t testing.TB, location, provider string, change func(*Config)) *fixture {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	config := Config{
		Directory: filepath.Join(t.TempDir(), "jobs"), Database: location, PublicOrigin: "http://" + listener.Addr().String(),
		SweepInterval: time.Hour, // tests sweep by hand
	}
	if change != nil {
		change(&config)
	}
	s, err := Open(t.Context(), config)
	if err != nil {
		t.Fatal(err)
	}
	server := httptest.NewUnstartedServer(s.Handler())
	if err := server.Listener.Close(); err != nil {
		t.Fatal(err)
	}
	server.Listener = listener
	server.Start()
	t.Cleanup(func() {
		s.Interrupt()
		server.Close()
		if err := s.Close(); err != nil {
			t.Error(err)
		}
	})
	f := &fixture{t: t, s: s, origin: config.PublicOrigin}
	f.token = f.newToken("default", "alice", "admin")
	f.node = f.newNode(provider)
	f.node.hello(2)
	return f
}

func (f *fixture) newToken(workspace, principal, role string) string {
	f.t.Helper()
	token, err := f.s.CreateToken(context.Background(), TokenSpec{Workspace: workspace, Principal: principal, Role: role})
	if err != nil {
		f.t.Fatal(err)
	}
	return token
}

func (f *fixture) newNode(name string) *node {
	f.t.Helper()
	public, private, err := ed25519.GenerateKey(nil)
	if err != nil {
		f.t.Fatal(err)
	}
	line, err := signing.AuthorizedLine(name, public)
	if err != nil {
		f.t.Fatal(err)
	}
	if err := f.s.AddProviderKey(context.Background(), line); err != nil {
		f.t.Fatal(err)
	}
	signer, err := signing.NewSigner(private, time.Now)
	if err != nil {
		f.t.Fatal(err)
	}
	return &node{f: f, name: name, signer: signer, store: protocol.NewID()}
}

// reply is a settled response.
type reply struct {
	status int
	header http.Header
	body   []byte
}

// request is one request that a test may bend before it is sent.
type request struct {
	method, path string
	body         []byte
	header       http.Header
	bend         func(*http.Request) // after signing
}

func (f *fixture) send(r request, sign *signing.Signer) reply {
	f.t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 2*time.Minute)
	defer cancel()
	var reader io.Reader
	if r.body != nil {
		reader = bytes.NewReader(r.body)
	}
	sent, err := http.NewRequestWithContext(ctx, r.method, f.origin+r.path, reader)
	if err != nil {
		f.t.Fatal(err)
	}
	sent.Header.Set(api.HeaderVersion, "1")
	if r.body != nil {
		sent.Header.Set("Content-Type", api.ContentJSON)
	}
	for name, values := range r.header {
		sent.Header[name] = values
	}
	if sign != nil {
		if _, err := sign.Sign(sent, r.body); err != nil {
			f.t.Fatal(err)
		}
	}
	if r.bend != nil {
		r.bend(sent)
	}
	response, err := http.DefaultClient.Do(sent)
	if err != nil {
		f.t.Fatal(err)
	}
	body, err := io.ReadAll(response.Body)
	if err != nil {
		f.t.Fatal(err)
	}
	if err := response.Body.Close(); err != nil {
		f.t.Fatal(err)
	}
	if response.Header.Get(api.HeaderRequestID) == "" {
		f.t.Fatalf("%s %s: no request id", r.method, r.path)
	}
	got := reply{status: response.StatusCode, header: response.Header, body: body}
	described(f.t, sent, r.body, got)
	return got
}

// user sends a request with a token.
func (f *fixture) user(token, method, path string, message any, header ...string) reply {
	f.t.Helper()
	r := request{method: method, path: path, header: http.Header{"Authorization": {"Bearer " + token}}}
	if message != nil {
		r.body = encode(message)
	}
	for i := 0; i < len(header); i += 2 {
		r.header.Set(header[i], header[i+1])
	}
	return f.send(r, nil)
}

func encode(message any) []byte {
	switch m := message.(type) {
	case []byte:
		return m
	case string:
		return []byte(m)
	}
	return api.Encode(message)
}

// send sends a signed request.
func (n *node) send(method, path string, message any) reply {
	n.f.t.Helper()
	r := request{method: method, path: path}
	if message != nil {
		r.body = encode(message)
	}
	got := n.f.send(r, n.signer)
	if got.header.Get(api.HeaderTopology) != n.f.s.Topology() {
		n.f.t.Fatalf("%s %s: topology %q", method, path, got.header.Get(api.HeaderTopology))
	}
	return got
}

// must decodes a successful answer.
func must[T any](t testing.TB, status int, got reply) T {
	t.Helper()
	var message T
	if got.status != status {
		t.Fatalf("status %d, want %d: %s", got.status, status, got.body)
	}
	if err := api.Decode(got.body, 32<<20, &message); err != nil {
		t.Fatalf("%v in %s", err, got.body)
	}
	return message
}

// refused checks a problem.
func refused(t testing.TB, code api.Code, got reply) api.Problem {
	t.Helper()
	var problem api.Problem
	if err := api.Decode(got.body, 32<<20, &problem); err != nil {
		t.Fatalf("want %s, got status %d: %s", code, got.status, got.body)
	}
	if problem.Code != code || problem.Status != got.status || got.status != code.Status() || problem.Detail == "" || problem.Next == "" ||
		got.header.Get("Content-Type") != api.ContentProblem || problem.Effect != api.EffectNone {
		t.Fatalf("want %s, got status %d: %s", code, got.status, got.body)
	}
	return problem
}

func (n *node) announcement(lanes int) *api.Hello {
	n.seq++
	digest := protocol.DigestOf([]byte("profile"))
	return &api.Hello{
		Store: n.store, Seq: n.seq, Lanes: lanes, Versions: api.HelloVersions{Controller: "test", API: []int{1}},
		Offerings: []api.HelloOffering{
			{Kind: "echo", Profile: "echo", ProfileDigest: digest, Adapter: "http", Available: true,
				Input: api.HelloInput{From: api.InputFromJob, MaxBytes: api.MaxInputBytes}},
			{Kind: "page", Profile: "page", ProfileDigest: digest, Adapter: "http", Available: true,
				Input: api.HelloInput{From: api.InputFromUpload, ContentType: "image/png", MaxBytes: api.MaxUploadBytes}},
			{Kind: "typed", Profile: "echo", ProfileDigest: digest, Adapter: "http", Available: true,
				Input: api.HelloInput{From: api.InputFromJob, MaxBytes: 1000,
					Schema: []byte(`{"type":"object","required":["n"],"properties":{"n":{"type":"integer","maximum":9}}}`)}},
		},
	}
}

func (n *node) hello(lanes int) api.HelloAnswer {
	n.f.t.Helper()
	return must[api.HelloAnswer](n.f.t, 200, n.send("POST", "/provider/v1/hello", n.announcement(lanes)))
}

// create makes a job of kind echo.
func (f *fixture) create(key, text string) api.Job {
	f.t.Helper()
	answer := must[api.CreateJobAnswer](f.t, 201, f.user(f.token, "POST", "/v1/jobs",
		&api.CreateJob{Kind: "echo", Input: &api.CreateData{Text: &text}}, api.HeaderIdempotencyKey, key))
	return answer.Job
}

func (f *fixture) job(id string) api.Job {
	f.t.Helper()
	return must[api.Job](f.t, 200, f.user(f.token, "GET", "/v1/jobs/"+id, nil))
}

func (n *node) startOf(j *api.Job, key string) *api.Start {
	return &api.Start{Key: key, Job: j.Job, Kind: j.Kind, Store: n.store, Input: j.Input}
}

func (n *node) start(j *api.Job, key string) api.Admission {
	n.f.t.Helper()
	return must[api.Admission](n.f.t, 201, n.send("POST", "/provider/v1/attempts", n.startOf(j, key)))
}

func (n *node) progress(attempt string, seq int64, phase api.Phase, condition *api.Condition) reply {
	n.f.t.Helper()
	return n.send("PUT", "/provider/v1/attempts/"+attempt+"/progress",
		&api.Progress{Store: n.store, Seq: seq, Phase: phase, Condition: condition})
}

func completeOf(attempt, text string) *api.Complete {
	return &api.Complete{
		Attempt: attempt, Schema: "text/plain", Length: int64(len(text)), SHA256: protocol.DigestOf([]byte(text)), Data: api.Bytes(text),
		Provenance: api.Provenance{Controller: "test", Adapter: "http", Executions: []api.Execution{}, Claimed: []api.Claim{}},
	}
}

func (n *node) complete(attempt, text string) reply {
	n.f.t.Helper()
	return n.send("POST", "/provider/v1/attempts/"+attempt+"/complete", completeOf(attempt, text))
}

func (n *node) fail(attempt string, code api.FailureCode, entered bool) reply {
	n.f.t.Helper()
	return n.send("POST", "/provider/v1/attempts/"+attempt+"/fail",
		&api.Fail{Attempt: attempt, Code: code, Message: "because", Entered: entered})
}

func (n *node) feed(kind string, attempted bool) api.Feed {
	n.f.t.Helper()
	return must[api.Feed](n.f.t, 200, n.send("GET",
		"/provider/v1/jobs?kind="+kind+"&attempted="+strconv.FormatBool(attempted)+"&limit=100", nil))
}

func (f *fixture) upload(token, contentType string, data []byte) reply {
	f.t.Helper()
	return f.send(request{method: "POST", path: "/v1/uploads", body: data, header: http.Header{
		"Authorization": {"Bearer " + token}, "Content-Type": {contentType}, "Content-Digest": {signing.ContentDigest(data)},
	}}, nil)
}

func equal(t testing.TB, what string, got, want any) {
	t.Helper()
	if !reflect.DeepEqual(got, want) {
		t.Fatalf("%s: got %v, want %v", what, got, want)
	}
}

func contains(t testing.TB, text, part string) {
	t.Helper()
	if !strings.Contains(text, part) {
		t.Fatalf("%q is not in %q", part, text)
	}
}
