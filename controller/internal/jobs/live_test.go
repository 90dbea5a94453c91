package jobs

import (
	"bufio"
	"bytes"
	"context"
	"crypto/ed25519"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/hashicorp/go-hclog"

	"github.com/quittance/quittance/controller/api"
	"github.com/quittance/quittance/controller/internal/signing"
	"github.com/quittance/quittance/protocol"
)

// stream is an open event stream.
type stream struct {
	t      testing.TB
	lines  *bufio.Scanner
	cancel context.CancelFunc
}

func (f *fixture) events(job, last string) *stream {
	f.t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 2*time.Minute)
	f.t.Cleanup(cancel)
	r, err := http.NewRequestWithContext(ctx, "GET", f.origin+"/v1/jobs/"+job+"/events", nil)
	if err != nil {
		f.t.Fatal(err)
	}
	r.Header.Set("Authorization", "Bearer "+f.token)
	if last != "" {
		r.Header.Set(api.HeaderLastEventID, last)
	}
	response, err := http.DefaultClient.Do(r)
	if err != nil {
		f.t.Fatal(err)
	}
	f.t.Cleanup(func() { _ = response.Body.Close() }) // the stream was cut on purpose
	if response.StatusCode != 200 || response.Header.Get("Content-Type") != api.ContentEvents {
		f.t.Fatalf("status %d, type %s", response.StatusCode, response.Header.Get("Content-Type"))
	}
	return &stream{t: f.t, lines: bufio.NewScanner(response.Body), cancel: cancel}
}

// next reads one message: its id, type and data.
func (s *stream) next() (id, kind, data string) {
	s.t.Helper()
	for s.lines.Scan() {
		line := s.lines.Text()
		switch {
		case strings.HasPrefix(line, "id: "):
			id = line[4:]
		case strings.HasPrefix(line, "event: "):
			kind = line[7:]
		case strings.HasPrefix(line, "data: "):
			data = line[6:]
		case line == "" && kind != "":
			return id, kind, data
		}
	}
	s.t.Fatalf("the stream ended: %v", s.lines.Err())
	return "", "", ""
}

func (s *stream) event() api.Event {
	s.t.Helper()
	id, kind, data := s.next()
	var event api.Event
	if err := api.Decode([]byte(data), 1<<20, &event); err != nil {
		s.t.Fatal(err)
	}
	if fmt.Sprint(event.Index) != id || string(event.Type) != kind {
		s.t.Fatalf("id %s, type %s, data %s", id, kind, data)
	}
	return event
}

// FR-25: an event stream resumes without a gap, or says what is gone.
func TestEventsResumeExactly(t *testing.T) {
	f := open(t, "", nil)
	job := f.create("op", "x")
	live := f.events(job.Job, "")
	equal(t, "first", live.event().Type, api.EventCreated)
	equal(t, "second", live.event().Type, api.EventState)
	a := f.node.start(&job, "k").Attempt
	started := live.event()
	equal(t, "started", [2]any{started.Type, *started.Attempt}, [2]any{api.EventStarted, a})
	live.cancel()

	loading := api.ConditionLoadingModel
	must[api.ProgressAnswer](t, 200, f.node.progress(a, 1, api.PhasePreparing, &loading))
	must[api.ProgressAnswer](t, 200, f.node.progress(a, 2, api.PhasePreparing, &loading)) // nothing visible changed
	must[api.CompleteReceipt](t, 200, f.node.complete(a, "r"))
	resumed := f.events(job.Job, fmt.Sprint(started.Index))
	for i, want := range []api.EventType{api.EventProgress, api.EventCompleted, api.EventState} {
		event := resumed.event()
		equal(t, "contiguous", [2]any{event.Index, event.Type}, [2]any{started.Index + 1 + int64(i), want})
	}
	equal(t, "version", f.job(job.Job).Version, started.Index+3)

	// A place that was never reached is answered like one that is gone.
	id, kind, data := f.events(job.Job, "99").next()
	equal(t, "gone", [3]string{id, kind, data}, [3]string{"", "gone", `{"first":1,"head":6}`})
	refused(t, api.CodeBadRequest, f.user(f.token, "GET", "/v1/jobs/"+job.Job+"/events", nil, api.HeaderLastEventID, "x"))
}

// I33: a job's history is bounded, and what went is said.
func TestEventHistoryIsBounded(t *testing.T) {
	f := open(t, "", func(c *Config) { c.MaxEvents = 10 })
	job := f.create("op", "x")
	a := f.node.start(&job, "k").Attempt
	loading, fetching := api.ConditionLoadingModel, api.ConditionFetchingInput
	for i := range int64(20) { // after created, state and attempt_started
		condition := &loading
		if i%2 == 0 {
			condition = &fetching
		}
		must[api.ProgressAnswer](t, 200, f.node.progress(a, i+1, api.PhasePreparing, condition))
	}
	resumed := f.events(job.Job, "3")
	_, kind, data := resumed.next()
	equal(t, "gone", [2]string{kind, data}, [2]string{"gone", `{"first":14,"head":23}`})
	for want := int64(14); want <= 23; want++ {
		if got := resumed.event().Index; got != want {
			t.Fatalf("index %d, want %d", got, want)
		}
	}
	// The oldest place that can be resumed from is not gone.
	equal(t, "index", f.events(job.Job, "13").event().Index, int64(14))
}

func TestWaitReturnsAtTheChange(t *testing.T) {
	f := open(t, "", nil)
	job := f.create("op", "x")
	// A version that is not the present one is answered at once.
	seen := must[api.Job](t, 200, f.user(f.token, "GET", "/v1/jobs/"+job.Job+"?wait=20s&after=0", nil))
	equal(t, "version", seen.Version, job.Version)
	// Nothing happens: the wait ends with the job as it is.
	seen = must[api.Job](t, 200, f.user(f.token, "GET", fmt.Sprintf("/v1/jobs/%s?wait=10ms&after=%d", job.Job, job.Version), nil))
	equal(t, "version", seen.Version, job.Version)

	list := must[api.JobList](t, 200, f.user(f.token, "GET", "/v1/jobs", nil))
	replies := make(chan reply, 2)
	go func() {
		replies <- f.user(f.token, "GET", fmt.Sprintf("/v1/jobs/%s?wait=60s&after=%d", job.Job, job.Version), nil)
	}()
	go func() {
		replies <- f.user(f.token, "GET", fmt.Sprintf("/v1/jobs?wait=60s&after=%d", list.Version), nil)
	}()
	begun := time.Now()
	f.node.start(&job, "k")
	for range 2 {
		got := <-replies
		equal(t, "status", got.status, 200)
		contains(t, string(got.body), `"state":"in_progress"`)
	}
	if took := time.Since(begun); took > 50*time.Second {
		t.Fatalf("the waits took %v", took)
	}
	// Closing ends waits; what they answer is the truth at that time.
	go func() { replies <- f.user(f.token, "GET", "/v1/jobs/"+job.Job+"?wait=60s", nil) }()
	f.s.Interrupt()
	equal(t, "status", (<-replies).status, 200)
}

// I25: who waits for a list sees a change that is made after the clock went back.
func TestWaitSeesAChangeAfterTheClockWentBack(t *testing.T) {
	f := open(t, "", nil)
	job := f.create("op", "x")
	list := must[api.JobList](t, 200, f.user(f.token, "GET", "/v1/jobs", nil))
	f.s.store.Shift(-time.Hour)
	done := make(chan reply, 1)
	go func() {
		done <- f.user(f.token, "GET", fmt.Sprintf("/v1/jobs?wait=60s&after=%d", list.Version), nil)
	}()
	f.user(f.token, "POST", "/v1/jobs/"+job.Job+"/cancel", nil)
	begun := time.Now()
	got := must[api.JobList](t, 200, <-done)
	if got.Version <= list.Version || got.Jobs[0].State != api.JobCancelled || time.Since(begun) > 50*time.Second {
		t.Fatalf("version %d after %d, %s", got.Version, list.Version, got.Jobs[0].State)
	}
}

// I25: so does who waits over a restart during which the clock went back: what is
// changed first is not the job that was changed last before.
func TestWaitSeesAChangeAfterARestartWithTheClockBack(t *testing.T) {
	directory := t.TempDir()
	at := func(c *Config) { c.Directory = directory }
	var job api.Job
	var before api.JobList
	t.Run("before", func(t *testing.T) {
		f := open(t, "", at)
		job = f.create("op", "x")
		f.create("op-2", "x")
		before = must[api.JobList](t, 200, f.user(f.token, "GET", "/v1/jobs", nil))
	})
	f := openAs(t, "", "node-2", at)
	f.s.store.Shift(-time.Hour)
	equal(t, "cancel", f.user(f.token, "POST", "/v1/jobs/"+job.Job+"/cancel", nil).status, 200)
	after := must[api.JobList](t, 200, f.user(f.token, "GET", "/v1/jobs", nil))
	if after.Version <= before.Version {
		t.Fatalf("version %d after %d", after.Version, before.Version)
	}
}

func TestFirstTokenIsMadeOnce(t *testing.T) {
	directory := filepath.Join(t.TempDir(), "state")
	config := Config{Directory: directory, PublicOrigin: "http://127.0.0.1:1"}
	first, err := Open(t.Context(), config)
	if err != nil {
		t.Fatal(err)
	}
	token, path, made := first.FirstToken()
	if !made || !strings.HasPrefix(token, "qt_") || len(token) != 46 {
		t.Fatalf("made %v, length %d", made, len(token))
	}
	info, err := os.Stat(path)
	if err != nil || info.Mode().Perm() != 0o600 {
		t.Fatalf("%v %v", info.Mode(), err)
	}
	stored, err := os.ReadFile(path)
	if err != nil || string(stored) != token+"\n" {
		t.Fatalf("the file holds another token: %v", err)
	}
	who, err := first.store.Authenticate(t.Context(), token)
	if err != nil || who.Role != "admin" || who.Workspace != "default" {
		t.Fatalf("%+v, %v", who, err)
	}
	// A second process on the same directory, while the first runs, as the
	// administrator's commands do.
	second, err := Open(t.Context(), config)
	if err != nil {
		t.Fatal(err)
	}
	if _, _, made := second.FirstToken(); made {
		t.Fatal("a second first token")
	}
	equal(t, "topology", second.Topology(), first.Topology())
	other, err := second.CreateToken(t.Context(), TokenSpec{Workspace: "lab", Principal: "bob", Role: "reader"})
	if err != nil {
		t.Fatal(err)
	}
	if who, err := first.store.Authenticate(t.Context(), other); err != nil || who.Workspace != "lab" {
		t.Fatalf("%+v, %v", who, err)
	}
	for _, bad := range []TokenSpec{
		{"", "bob", "reader", 0}, {"lab", "", "reader", 0}, {"lab", "bob", "root", 0}, {"lab", "bob", "", 0}, {"Lab", "bob", "reader", 0},
		{"lab", "bob", "reader", -1}, {"lab", "bob", "reader", 25 * time.Hour},
	} {
		if _, err := first.CreateToken(t.Context(), bad); err == nil {
			t.Errorf("%+v was accepted", bad)
		}
	}
	for _, s := range []*Service{second, first} {
		if err := s.Close(); err != nil {
			t.Error(err)
		}
	}
}

func TestConfigIsChecked(t *testing.T) {
	good := func() Config { return Config{Directory: t.TempDir(), PublicOrigin: "http://127.0.0.1:1"} }
	for name, change := range map[string]func(*Config){
		"directory is required": func(c *Config) { c.Directory = "" },
		"public origin must be": func(c *Config) { c.PublicOrigin = "http://127.0.0.1:1/" },
		"topology must be":      func(c *Config) { c.Topology = "two words" },
		"attempt lease must be": func(c *Config) { c.AttemptLease = -1 },
		"must not be negative":  func(c *Config) { c.MaxReopens = -1 },
		"location must begin":   func(c *Config) { c.Database = "mysql://x" },
		"provider keys":         func(c *Config) { c.ProviderKeysFile = "/nonexistent" },
	} {
		config := good()
		change(&config)
		s, err := Open(t.Context(), config)
		if err == nil {
			t.Errorf("%s: accepted, %v", name, s.Close())
			continue
		}
		contains(t, err.Error(), name)
	}
	// I37: a password in the database's URL is in no message.
	config := good()
	config.Database = "postgres://user:s3cr3t@127.0.0.1:notaport/db"
	if _, err := Open(t.Context(), config); err == nil || strings.Contains(err.Error(), "s3cr3t") {
		t.Errorf("got %v", err)
	}
}

// The operator's key file takes effect without a restart; a broken one is
// reported and the last good content stands.
func TestProviderKeysFileIsReadAgain(t *testing.T) {
	path := filepath.Join(t.TempDir(), "provider_keys")
	private, err := signing.CreateKey(filepath.Join(t.TempDir(), "key"), "node-9")
	if err != nil {
		t.Fatal(err)
	}
	signer, err := signing.NewSigner(private, time.Now)
	if err != nil {
		t.Fatal(err)
	}
	other, err := signing.CreateKey(filepath.Join(t.TempDir(), "key"), "node-8")
	if err != nil {
		t.Fatal(err)
	}
	write := func(text string) {
		t.Helper()
		if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	lineOf := func(provider string, key ed25519.PrivateKey) string {
		t.Helper()
		text, err := signing.AuthorizedLine(provider, key.Public().(ed25519.PublicKey))
		if err != nil {
			t.Fatal(err)
		}
		return text + "\n"
	}
	write("# none yet\n")
	f := open(t, "", func(c *Config) { c.ProviderKeysFile = path })
	n := &node{f: f, name: "node-9", signer: signer, store: protocol.NewID()}
	refused(t, api.CodeUnknownKey, n.send("POST", "/provider/v1/hello", n.announcement(1)))
	write(lineOf("node-9", private))
	n.hello(1)
	write("nonsense\n")
	n.hello(1)
	write(lineOf("node-8", other) + "# and a line more\n")
	refused(t, api.CodeUnknownKey, n.send("POST", "/provider/v1/hello", n.announcement(1)))
	if err := os.Chmod(path, 0o666); err != nil {
		t.Fatal(err)
	}
	config := Config{Directory: t.TempDir(), PublicOrigin: "http://127.0.0.1:1", ProviderKeysFile: path}
	if _, err := Open(t.Context(), config); err == nil || !strings.Contains(err.Error(), "chmod go-w") {
		t.Fatalf("a list that anyone can write: %v", err)
	}
}

func TestRevokedAccessEndsAtOnce(t *testing.T) {
	f := open(t, "", nil)
	must[api.JobList](t, 200, f.user(f.token, "GET", "/v1/jobs", nil))
	if revoked, err := f.s.RevokeTokens(t.Context(), "default", "alice"); err != nil || revoked != 1 {
		t.Fatalf("%d, %v", revoked, err)
	}
	refused(t, api.CodeUnauthenticated, f.user(f.token, "GET", "/v1/jobs", nil))
	if err := f.s.RemoveProviderKey(t.Context(), f.node.signer.KeyID()); err != nil {
		t.Fatal(err)
	}
	refused(t, api.CodeUnknownKey, f.node.send("POST", "/provider/v1/hello", f.node.announcement(1)))
	if err := f.s.RemoveProviderKey(t.Context(), f.node.signer.KeyID()); !errors.Is(err, signing.ErrUnknownKey) {
		t.Fatalf("removed twice: %v", err)
	}
}

// I33: what one workspace may pile up is bounded, and another is not hurt by it.
func TestWorkspacesAreBounded(t *testing.T) {
	f := open(t, "", func(c *Config) { c.MaxOpenJobs, c.MaxIdleBytes = 2, 10 })
	f.create("a", "x")
	f.create("b", "x")
	text := "x"
	third := &api.CreateJob{Kind: "echo", Input: &api.CreateData{Text: &text}}
	refused(t, api.CodeLimitReached, f.user(f.token, "POST", "/v1/jobs", third, api.HeaderIdempotencyKey, "c"))
	must[api.CreateJobAnswer](t, 200, f.user(f.token, "POST", "/v1/jobs", third, api.HeaderIdempotencyKey, "b"))
	must[api.Upload](t, 201, f.upload(f.token, "image/png", []byte("0123456")))
	refused(t, api.CodeLimitReached, f.upload(f.token, "image/png", []byte("0123")))
	other := f.newToken("other", "bob", "submitter")
	must[api.CreateJobAnswer](t, 201, f.user(other, "POST", "/v1/jobs", third, api.HeaderIdempotencyKey, "c"))
	must[api.Upload](t, 201, f.upload(other, "image/png", []byte("0123")))
}

// I33: waiting requests are bounded; the one too many is told so at once.
func TestWaitsAreBounded(t *testing.T) {
	f := open(t, "", func(c *Config) { c.MaxWaiters = 1 })
	job := f.create("op", "x")
	held := f.events(job.Job, "")
	held.event()
	refused(t, api.CodeLimitReached, f.user(f.token, "GET", "/v1/jobs/"+job.Job+"?wait=1s", nil))
	refused(t, api.CodeLimitReached, f.user(f.token, "GET", "/v1/jobs/"+job.Job+"/events", nil))
	f.job(job.Job) // without waiting it answers
}

// A job's attempts are bounded, retries included, so that it stays readable.
func TestAttemptsOfOneJobAreBounded(t *testing.T) {
	f := open(t, "", nil)
	job := f.create("op", "x")
	message := strings.Repeat("\x01", api.MaxMessageScalars) // the longest form: six bytes each
	for n := range api.MaxAttempts {
		a := f.node.start(&job, fmt.Sprint("k-", n)).Attempt
		must[api.FailReceipt](t, 200, f.node.send("POST", "/provider/v1/attempts/"+a+"/fail",
			&api.Fail{Attempt: a, Code: api.FailWorkerFailed, Message: message, Next: message, Entered: true}))
		got := f.user(f.token, "POST", "/v1/jobs/"+job.Job+"/retry", nil, api.HeaderIdempotencyKey, fmt.Sprint("r-", n))
		if n == api.MaxAttempts-1 {
			refused(t, api.CodeAttemptLimit, got)
			continue
		}
		must[api.Job](t, 200, got)
	}
	equal(t, "attempts", len(f.job(job.Job).Attempts), api.MaxAttempts)
}

// An announcement whose schema cannot be used alone is refused whole.
func TestHelloRefusesSchemasThatReferElsewhere(t *testing.T) {
	f := open(t, "", nil)
	for _, schema := range []string{`{"$ref":"http://127.0.0.1:1/x"}`, `{"$ref":"file:///etc/passwd"}`, `{"type":7}`, `"text"`} {
		message := f.node.announcement(2)
		message.Offerings[1].Input.Schema = []byte(schema)
		problem := refused(t, api.CodeBadRequest, f.node.send("POST", "/provider/v1/hello", message))
		equal(t, schema, problem.Field, "/offerings/1/input/schema")
	}
}

// lockedBuffer is a log that is read while it may be written.
type lockedBuffer struct {
	mu     sync.Mutex
	buffer bytes.Buffer
}

func (b *lockedBuffer) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.buffer.Write(p)
}

func (b *lockedBuffer) String() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.buffer.String()
}

// A caller that goes away in the middle of a request, as a lane that stops
// observing does, is no error of the service.
func TestCallerWhoLeftIsNoError(t *testing.T) {
	var log lockedBuffer
	f := open(t, "", func(c *Config) {
		c.Logger = hclog.New(&hclog.LoggerOptions{Level: hclog.Debug, Output: &log})
	})
	gone, leave := context.WithCancel(t.Context())
	leave()
	request := httptest.NewRequestWithContext(gone, "GET", "/v1/jobs", nil)
	request.Header.Set("Authorization", "Bearer "+f.token)
	request.Header.Set(api.HeaderVersion, "1")
	f.s.Handler().ServeHTTP(httptest.NewRecorder(), request)
	contains(t, log.String(), "caller_gone")
	if strings.Contains(log.String(), "[ERROR]") {
		t.Fatalf("an error was logged:\n%s", log.String())
	}
}

// What is noted of a request, the look at which job it is about included, holds
// its answer back for nobody.
func TestAnswerWaitsForNoNote(t *testing.T) {
	answered := make(chan struct{})
	f := open(t, "", func(c *Config) {
		c.Observe = func(operation string, _ api.Code, _ time.Duration) {
			if operation != api.RouteAttempt.Name {
				return
			}
			select {
			case <-answered:
			case <-time.After(time.Minute):
				t.Error("the answer waits for its note")
			}
		}
	})
	job := f.create("op", "x")
	a := f.node.start(&job, "key").Attempt
	got := f.node.send("GET", "/provider/v1/attempts/"+a, nil)
	close(answered)
	equal(t, "status", got.status, 200)
}

// I37: the log says who did what and holds no token, input, result or message.
func TestLogHoldsNoSecrets(t *testing.T) {
	var log lockedBuffer
	f := open(t, "", func(c *Config) {
		c.Logger = hclog.New(&hclog.LoggerOptions{Level: hclog.Trace, Output: &log})
	})
	job := f.create("op", "s3cr3t-input")
	a := f.node.start(&job, "key").Attempt
	must[api.CompleteReceipt](t, 200, f.node.complete(a, "s3cr3t-result"))
	refused(t, api.CodeBadRequest, f.user(f.token, "POST", "/v1/jobs", `{"kind":"s3cr3t kind"}`, api.HeaderIdempotencyKey, "k"))
	refused(t, api.CodeUnauthenticated, f.user("qt_s3cr3t", "GET", "/v1/jobs", nil))
	f.s.Interrupt()
	for deadline := time.Now().Add(time.Minute); !strings.Contains(log.String(), "code=unauthenticated"); time.Sleep(10 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("the last request is not noted:\n%s", log.String())
		}
	}
	text := log.String()
	contains(t, text, "request_done: ")
	contains(t, text, "attempt="+a)
	contains(t, text, "provider=node-1")
	contains(t, text, "principal=alice")
	contains(t, text, "code=bad_request")
	for _, secret := range []string{"s3cr3t", f.token} {
		if strings.Contains(text, secret) {
			t.Fatalf("the log holds %q", secret)
		}
	}
}
