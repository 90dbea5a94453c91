package provider

import (
	"bytes"
	"context"
	"crypto/ed25519"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"testing"
	"time"

	"github.com/quittance/quittance/controller/api"
	"github.com/quittance/quittance/controller/internal/attempt"
	"github.com/quittance/quittance/controller/internal/jobs"
	"github.com/quittance/quittance/controller/internal/signing"
	"github.com/quittance/quittance/protocol"
)

// service is the real job service with one provider and one user.
type service struct {
	t       *testing.T
	jobs    *jobs.Service
	origin  string
	token   string
	client  *Client
	store   protocol.ID
	created int
}

func newService(t *testing.T) *service {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	origin := "http://" + listener.Addr().String()
	s, err := jobs.Open(t.Context(), jobs.Config{Directory: filepath.Join(t.TempDir(), "jobs"), PublicOrigin: origin})
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
	public, private, err := ed25519.GenerateKey(nil)
	if err != nil {
		t.Fatal(err)
	}
	line, err := signing.AuthorizedLine("node-1", public)
	if err != nil {
		t.Fatal(err)
	}
	if err := s.AddProviderKey(t.Context(), line); err != nil {
		t.Fatal(err)
	}
	token, err := s.CreateToken(t.Context(), jobs.TokenSpec{Workspace: "default", Principal: "alice", Role: "submitter"})
	if err != nil {
		t.Fatal(err)
	}
	signer, err := signing.NewSigner(private, time.Now)
	if err != nil {
		t.Fatal(err)
	}
	client, err := New(Config{Origin: origin, Topology: s.Topology(), Signer: signer, UserAgent: "quittance-test",
		Timeout: 50 * time.Second, FetchTimeout: time.Minute})
	if err != nil {
		t.Fatal(err)
	}
	return &service{t: t, jobs: s, origin: origin, token: token, client: client, store: protocol.NewID()}
}

// user makes a request of the user's side.
func (s *service) user(method, path string, header map[string]string, body []byte, answer any) {
	s.t.Helper()
	request, err := http.NewRequestWithContext(s.t.Context(), method, s.origin+path, bytes.NewReader(body))
	if err != nil {
		s.t.Fatal(err)
	}
	request.Header.Set("Authorization", "Bearer "+s.token)
	request.Header.Set(api.HeaderVersion, "1")
	request.Header.Set("Content-Type", api.ContentJSON)
	for name, value := range header {
		request.Header.Set(name, value)
	}
	response, err := http.DefaultClient.Do(request)
	if err != nil {
		s.t.Fatal(err)
	}
	data, err := io.ReadAll(response.Body)
	if closeErr := response.Body.Close(); err != nil || closeErr != nil {
		s.t.Fatal(err, closeErr)
	}
	if !success(response.StatusCode) {
		s.t.Fatalf("%s %s: status %d: %s", method, path, response.StatusCode, data)
	}
	if err := api.Decode(data, 32<<20, answer); err != nil {
		s.t.Fatal(err)
	}
}

func (s *service) create(j api.CreateJob) api.Job {
	s.t.Helper()
	s.created++
	var answer api.CreateJobAnswer
	s.user("POST", "/v1/jobs", map[string]string{api.HeaderIdempotencyKey: fmt.Sprint("op-", s.created)}, api.Encode(j), &answer)
	return answer.Job
}

func (s *service) hello(seq int64) api.HelloAnswer {
	s.t.Helper()
	a, err := s.client.Hello(background(), api.Hello{
		Store: s.store, Seq: seq, Lanes: 4, Versions: api.HelloVersions{Controller: "test", API: []int{1}},
		Offerings: []api.HelloOffering{
			{Kind: "echo", Profile: "echo", ProfileDigest: testDigest, Adapter: "http", Available: true,
				Input: api.HelloInput{From: api.InputFromJob, MaxBytes: api.MaxInputBytes}},
			{Kind: "page", Profile: "page", ProfileDigest: testDigest, Adapter: "http", Available: true,
				Input: api.HelloInput{From: api.InputFromUpload, ContentType: "image/png", MaxBytes: api.MaxUploadBytes}},
		},
	})
	if err != nil {
		s.t.Fatal(err)
	}
	return a
}

// start admits an attempt at the job and returns the exact body with the
// admission.
func (s *service) start(j api.FeedJob, key string) ([]byte, api.Admission) {
	s.t.Helper()
	body := api.Encode(api.Start{Key: key, Job: j.Job, Kind: j.Kind, Store: s.store, Input: j.Input})
	a, reply, err := s.client.Start(background(), body, nil)
	if err != nil || reply.Status != http.StatusCreated || a.Replayed || a.State != api.AttemptInProgress {
		s.t.Fatalf("%+v, %v", a, err)
	}
	return body, a
}

func (s *service) feed(kind string) api.Feed {
	s.t.Helper()
	f, err := s.client.Feed(background(), FeedQuery{Kind: kind, Limit: 50})
	if err != nil {
		s.t.Fatal(err)
	}
	return f
}

func completeBody(reference, text string) []byte {
	return api.Encode(api.Complete{Attempt: reference, Schema: "text/plain", Length: int64(len(text)), SHA256: protocol.DigestOf([]byte(text)),
		Data: api.Bytes(text), Provenance: api.Provenance{Controller: "test", Adapter: "http", Executions: []api.Execution{}, Claimed: []api.Claim{}}})
}

// refusal fails unless err is a refusal with the code.
func refusal(t *testing.T, err error, code api.Code) {
	t.Helper()
	if f := failure(t, err); f.Class != ClassRefused || f.Code != code || f.Disposition != protocol.Refused || f.Repeat || f.RequestID == "" || f.Date.IsZero() {
		t.Errorf("got %v, want %s", f, code)
	}
}

// TestWholeContract runs every operation against the real service (FR-26,
// FR-28, FR-29): the peers of the other tests lie, this one does not.
func TestWholeContract(t *testing.T) {
	s := newService(t)
	c := s.client
	if _, err := c.Feed(background(), FeedQuery{Kind: "echo", Limit: 1}); err == nil {
		t.Log("the feed needs no hello")
	}
	if a := s.hello(5); a.Seq != 5 || a.Provider != "node-1" {
		t.Errorf("hello: %+v", a)
	}
	if a := s.hello(5); a.Seq != 5 {
		t.Errorf("hello again: %+v", a)
	}
	text := "hello"
	job := s.create(api.CreateJob{Kind: "echo", Input: &api.CreateData{Text: &text}})
	feed := s.feed("echo")
	if len(feed.Jobs) != 1 || feed.Jobs[0].Job != job.Job {
		t.Fatalf("feed: %+v", feed)
	}
	found := feed.Jobs[0]
	input, err := c.Input(background(), found.Job, found.Input)
	if err != nil || string(input.Data) != text {
		t.Errorf("input: %+v, %v", input, err)
	}
	wrong := found.Input
	wrong.Length++
	if _, err := c.Input(background(), found.Job, wrong); failure(t, err).Class != ClassMismatch {
		t.Errorf("another input: %v", err)
	}

	body, a := s.start(found, "key-1")
	replay, reply, err := c.Start(background(), body, nil)
	if err != nil || reply.Status != http.StatusOK || !replay.Replayed || replay.Attempt != a.Attempt {
		t.Errorf("replay: %+v, %v", replay, err)
	}
	_, _, err = c.Start(background(), api.Encode(api.Start{Key: "key-1", Job: found.Job, Kind: "echo", Store: s.store, Lane: 1, Input: found.Input}), nil)
	refusal(t, err, api.CodeKeyConflict)
	if _, ok := StartRefused(err); ok {
		t.Error("a key conflict is not ordinary")
	}
	_, _, err = c.Start(background(), api.Encode(api.Start{Key: "key-2", Job: found.Job, Kind: "echo", Store: s.store, Input: found.Input}), nil)
	if _, ok := StartRefused(err); !ok {
		t.Errorf("a second attempt: %v", err)
	}
	inventory, err := c.Inventory(background(), 10, "")
	if err != nil || len(inventory.Attempts) != 1 || inventory.Attempts[0].Attempt != a.Attempt || inventory.Attempts[0].Key != "key-1" {
		t.Errorf("inventory: %+v, %v", inventory, err)
	}
	view, _, err := c.Attempt(background(), a.Attempt)
	if err != nil || view.State != api.AttemptInProgress || view.JobState != api.JobOpen {
		t.Errorf("attempt: %+v, %v", view, err)
	}
	beat := api.Progress{Store: s.store, Seq: 9, Phase: api.PhaseRunning}
	first, err := c.Progress(background(), a.Attempt, beat)
	if err != nil || first.Seq != 9 {
		t.Errorf("heartbeat: %+v, %v", first, err)
	}

	done := completeBody(a.Attempt, "result")
	receipt, reply, err := c.Complete(background(), a.Attempt, done)
	if err != nil || receipt.Replayed || len(reply.Body) == 0 {
		t.Errorf("complete: %+v, %v", receipt, err)
	}
	again, _, err := c.Complete(background(), a.Attempt, done)
	if err != nil || !again.Replayed || again.CommittedAt != receipt.CommittedAt {
		t.Errorf("complete again: %+v, %v", again, err)
	}
	_, _, err = c.Complete(background(), a.Attempt, completeBody(a.Attempt, "other"))
	refusal(t, err, api.CodeOutcomeConflict)
	if why, _, ok := RefusedForGood(err); !ok || why != attempt.HoldMismatch {
		t.Errorf("other bytes: %q, %v", why, ok)
	}
	_, _, err = c.Fail(background(), a.Attempt, api.Encode(api.Fail{Attempt: a.Attempt, Code: api.FailCancelled, Message: "m"}))
	if why, _, ok := RefusedForGood(err); !ok || why != attempt.HoldOppositeOutcome {
		t.Errorf("the opposite: %v", err)
	}
	if late, err := c.Progress(background(), a.Attempt, beat); err != nil || late != first {
		t.Errorf("an equal heartbeat after the end: %+v, %v", late, err)
	}
	beat.Seq++
	_, err = c.Progress(background(), a.Attempt, beat)
	refusal(t, err, api.CodeAttemptOver)
	ended, _, err := c.Start(background(), body, nil)
	if err != nil || ended.State != api.AttemptCompleted {
		t.Errorf("replay after the end: %+v, %v", ended, err)
	}
	unknown := "att-" + string(protocol.NewID())
	_, _, err = c.Fail(background(), unknown, api.Encode(api.Fail{Attempt: unknown, Code: api.FailCancelled}))
	if why, _, ok := RefusedForGood(err); !ok || why != attempt.HoldNotVisible {
		t.Errorf("an unknown attempt: %v", err)
	}
}

// TestFailAndReopen ends an attempt before entry: the job is open again.
func TestFailAndReopen(t *testing.T) {
	s := newService(t)
	s.hello(1)
	text := "x"
	s.create(api.CreateJob{Kind: "echo", Input: &api.CreateData{Text: &text}})
	_, a := s.start(s.feed("echo").Jobs[0], "key-1")
	body := api.Encode(api.Fail{Attempt: a.Attempt, Code: api.FailInterrupted, Message: "restarted é", Next: "n"})
	receipt, _, err := s.client.Fail(background(), a.Attempt, body)
	if err != nil || !receipt.Reopened || receipt.Message != "restarted é" {
		t.Fatalf("%+v, %v", receipt, err)
	}
	if f := s.feed("echo"); len(f.Jobs) != 1 {
		t.Errorf("the job is not in the feed: %+v", f)
	}
	again, _, err := s.client.Fail(background(), a.Attempt, body)
	if err != nil || !again.Replayed {
		t.Errorf("%+v, %v", again, err)
	}
}

// TestUploadTransfer goes the whole way of an upload: membership, grant,
// transfer.
func TestUploadTransfer(t *testing.T) {
	s := newService(t)
	s.hello(1)
	data := bytes.Repeat([]byte("png?"), 10_000)
	var upload api.Upload
	s.user("POST", "/v1/uploads", map[string]string{"Content-Type": "image/png", api.HeaderContentDigest: signing.ContentDigest(data)}, data, &upload)
	s.create(api.CreateJob{Kind: "page", Uploads: []string{upload.Upload}})
	found := s.feed("page").Jobs[0]
	_, a := s.start(found, "key-1")
	members, err := s.client.Uploads(background(), found.Job)
	if err != nil || len(members.Uploads) != 1 {
		t.Fatalf("%+v, %v", members, err)
	}
	grant, err := s.client.Grant(background(), found.Job, members.Uploads[0], a.Attempt)
	if err != nil {
		t.Fatal(err)
	}
	budget := NewBudget(1<<20, 2)
	file, err := s.client.Fetch(background(), grant, privateDir(t), budget)
	if err != nil {
		t.Fatal(err)
	}
	got, err := io.ReadAll(file.File)
	if err != nil || !bytes.Equal(got, data) {
		t.Errorf("read %d bytes, %v", len(got), err)
	}
	if err := file.Discard(); err != nil {
		t.Error(err)
	}
	grant.Bearer = "wrong"
	if _, err := s.client.Fetch(background(), grant, privateDir(t), budget); failure(t, err).Class != ClassMalformed {
		t.Errorf("a wrong bearer: %v", err)
	}
}

// A client of another environment or another key stops.
func TestForeignClients(t *testing.T) {
	s := newService(t)
	for name, row := range map[string]struct {
		change func(*Config)
		class  Class
		code   api.Code
	}{
		"other environment": {func(c *Config) { c.Topology = "production" }, ClassTopology, ""},
		"other key":         {func(c *Config) { c.Signer = testSigner(t) }, ClassRefused, api.CodeUnknownKey},
	} {
		cfg := s.client.cfg
		row.change(&cfg)
		c, err := New(cfg)
		if err != nil {
			t.Fatal(err)
		}
		_, _, err = c.Attempt(context.Background(), testReference)
		if f := failure(t, err); f.Class != row.class || f.Code != row.code || f.Repeat {
			t.Errorf("%s: %v", name, f)
		}
	}
}

// A clock that is an hour off is corrected by the service's answer.
func TestSkewedClock(t *testing.T) {
	s := newService(t)
	cfg := s.client.cfg
	public, private, err := ed25519.GenerateKey(nil)
	if err != nil {
		t.Fatal(err)
	}
	line, err := signing.AuthorizedLine("node-1", public)
	if err != nil {
		t.Fatal(err)
	}
	if err := s.jobs.AddProviderKey(t.Context(), line); err != nil {
		t.Fatal(err)
	}
	if cfg.Signer, err = signing.NewSigner(private, func() time.Time { return time.Now().Add(-time.Hour) }); err != nil {
		t.Fatal(err)
	}
	if s.client, err = New(cfg); err != nil {
		t.Fatal(err)
	}
	_, err = s.client.Inventory(background(), 1, "")
	if f := failure(t, err); f.Class != ClassClockSkew || !f.Repeat {
		t.Fatalf("got %v", f)
	}
	s.hello(1) // the repeat
}
