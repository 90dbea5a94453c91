package controllertest

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"

	"github.com/quittance/quittance/controller/api"
	"github.com/quittance/quittance/protocol"
)

// Kept is one record of the attempt store, as far as an audit from outside
// needs it. Its members are those of the canonical form.
type Kept struct {
	State  string `json:"state"`
	Record struct {
		Origin struct {
			Key           string `json:"key"`
			Job           string `json:"job"`
			Start         []byte `json:"start"`
			MaxExecutions int    `json:"max_executions"`
		} `json:"origin"`
		Admission *struct {
			Reference string `json:"reference"`
		} `json:"admission"`
		Executions []struct {
			Number     protocol.Number     `json:"number"`
			Settlement string              `json:"settlement"`
			Entered    *protocol.Timestamp `json:"entered"`
		} `json:"executions"`
		Outcome *struct {
			Operation string `json:"operation"`
			Body      []byte `json:"body"`
			Evidence  []byte `json:"evidence"`
		} `json:"outcome"`
		Reason string `json:"reason"`
	} `json:"record"`
}

// Records exports the store of a controller that is stopped.
func (s *Site) Records() []Kept {
	s.T.Helper()
	var all []Kept
	for line := range strings.Lines(s.Command("store", "export")) {
		var k Kept
		if err := json.Unmarshal([]byte(line), &k, jsontext.AllowDuplicateNames(false)); err != nil {
			s.T.Fatalf("store export: %v", err)
		}
		all = append(all, k)
	}
	return all
}

// Jobs reads every job.
func (s *Site) Jobs() []api.Job {
	s.T.Helper()
	var all []api.Job
	for cursor := ""; ; {
		path := "/v1/jobs?limit=100"
		if cursor != "" {
			path += "&cursor=" + cursor
		}
		status, data := s.call(http.MethodGet, path, "", "", nil)
		page := decode[api.JobList](s, status, data)
		all = append(all, page.Jobs...)
		if page.NextCursor == nil {
			return all
		}
		cursor = *page.NextCursor
	}
}

// Trace counts the requests that workers began to work on by the digest of
// their bytes.
func (s *Site) Trace() map[string]int {
	s.T.Helper()
	data, err := os.ReadFile(filepath.Join(s.gate, "executions"))
	if err != nil && !os.IsNotExist(err) {
		s.T.Fatal(err)
	}
	trace := map[string]int{}
	for line := range strings.Lines(string(data)) {
		trace[strings.TrimSpace(line)]++
	}
	return trace
}

// Ledger is what an audit counted.
type Ledger struct {
	Jobs, Finished, Failed, Cancelled int
	Attempts                          int
	Executions                        int // entered, of all attempts
	Ran                               int // begun inside workers
	MostExecutions                    int // of one attempt
	Confirmed                         int // terminal outcomes, equal on both sides
	Ended                             int // attempts that the service ended, or START refused
	Numbers                           int // allocations, all consumed
	Sent, Replays                     int // START, COMPLETE and FAIL, and those of them that repeated bytes
	Failures                          map[api.FailureCode]int
}

func (l Ledger) String() string {
	return fmt.Sprintf("%d jobs (%d finished, %d failed %v, %d cancelled), %d attempts, %d executions entered, %d run, at most %d of one attempt, "+
		"%d outcomes confirmed on both sides, %d attempts ended otherwise, %d START, COMPLETE and FAIL sent, %d of them replays",
		l.Jobs, l.Finished, l.Failed, l.Failures, l.Cancelled, l.Attempts, l.Executions, l.Ran, l.MostExecutions, l.Confirmed, l.Ended, l.Sent, l.Replays)
}

// Audit compares what the job service, the attempt store, the workers and the
// wire say of every job: point 3 of the crash matrix, exact. texts are the
// inputs by job. The lanes are stopped and the store kept every record; the
// service answers.
func (s *Site) Audit(texts map[string]string) Ledger {
	s.T.Helper()
	a := &auditor{s: s, records: map[string]Kept{}, byKey: map[string]Kept{}, numbers: map[protocol.Number]string{}, trace: s.Trace(), Ledger: Ledger{Failures: map[api.FailureCode]int{}}}
	a.store()
	jobs := s.Jobs()
	if len(jobs) != len(texts) {
		s.T.Errorf("the service has %d jobs, %d were created", len(jobs), len(texts))
	}
	for _, job := range jobs {
		text, ok := texts[job.Job]
		if !ok {
			s.T.Errorf("nobody created job %s", job.Job)
			continue
		}
		a.job(job, text)
	}
	for reference := range a.records {
		s.T.Errorf("the store knows attempt %s, the service does not", reference)
	}
	for digest, n := range a.trace {
		s.T.Errorf("%d executions of an input that no job has, or more than its attempts entered: %s", n, digest)
	}
	a.wire()
	return a.Ledger
}

// maxBody bounds a retained COMPLETE or FAIL.
const maxBody = 4 << 20

type auditor struct {
	Ledger
	s       *Site
	records map[string]Kept // not yet met at the service, by reference
	byKey   map[string]Kept
	numbers map[protocol.Number]string // attempt, by allocation
	trace   map[string]int             // not yet explained
}

// store reads the controller's side.
func (a *auditor) store() {
	t := a.s.T
	t.Helper()
	for _, k := range a.s.Records() {
		r := k.Record
		if _, twice := a.byKey[r.Origin.Key]; twice {
			t.Errorf("two records have the key %s", r.Origin.Key)
		}
		a.byKey[r.Origin.Key] = k
		entered := 0
		for _, e := range r.Executions {
			if e.Settlement != "consumed" {
				t.Errorf("allocation %d of attempt %s is %s", e.Number, r.Origin.Key, e.Settlement)
			}
			if other, twice := a.numbers[e.Number]; twice {
				t.Errorf("attempts %s and %s have allocation %d", other, r.Origin.Key, e.Number)
			}
			a.numbers[e.Number] = r.Origin.Key
			a.Numbers++
			if e.Entered != nil {
				entered++
			}
		}
		if entered > r.Origin.MaxExecutions {
			t.Errorf("attempt %s entered %d executions, at most %d may", r.Origin.Key, entered, r.Origin.MaxExecutions)
		}
		a.MostExecutions = max(a.MostExecutions, entered)
		switch {
		case k.State == "terminal_confirmed":
			a.Confirmed++
		case k.State == "ended" || k.State == "suppressed":
			a.Ended++
		default:
			t.Errorf("attempt %s is left %s", r.Origin.Key, k.State)
		}
		if r.Admission != nil {
			a.records[r.Admission.Reference] = k
		}
	}
}

// job compares one job's two sides.
func (a *auditor) job(job api.Job, text string) {
	t := a.s.T
	t.Helper()
	a.Jobs++
	switch job.State {
	case api.JobFinished:
		a.Finished++
		if got := a.s.Result(job.Job); !bytes.Equal(got, AnswerTo(text)) {
			t.Errorf("job %s has the result %s, want %s", job.Job, got, AnswerTo(text))
		}
	case api.JobFailed:
		a.Failed++
		a.Failures[job.Failure.Code]++
	case api.JobCancelled:
		a.Cancelled++
	default:
		t.Errorf("job %s is %s", job.Job, job.State)
	}
	entered, completed := 0, 0
	for _, attempt := range job.Attempts {
		a.Attempts++
		entered += a.attempt(job, attempt)
		if attempt.State == api.AttemptCompleted {
			completed++
		}
	}
	if want := job.State == api.JobFinished; (completed == 1) != want || completed > 1 {
		t.Errorf("job %s is %s with %d completed attempts", job.Job, job.State, completed)
	}
	a.Executions += entered
	sum := sha256.Sum256([]byte(text))
	digest := hex.EncodeToString(sum[:])
	ran := a.trace[digest]
	a.Ran += ran
	if ran <= entered {
		delete(a.trace, digest)
	}
	if job.State == api.JobFinished && ran == 0 {
		t.Errorf("job %s has a result that nobody worked out", job.Job)
	}
}

// attempt compares one attempt's two sides and returns its entered executions.
func (a *auditor) attempt(job api.Job, attempt api.JobAttempt) (entered int) {
	t := a.s.T
	t.Helper()
	k, ok := a.records[attempt.Attempt]
	if !ok {
		t.Errorf("the service knows attempt %s of job %s, the store does not", attempt.Attempt, job.Job)
		return 0
	}
	delete(a.records, attempt.Attempt)
	r := k.Record
	if r.Origin.Job != job.Job {
		t.Errorf("attempt %s belongs to job %s at the service and to %s in the store", attempt.Attempt, job.Job, r.Origin.Job)
	}
	for _, e := range r.Executions {
		if e.Entered != nil {
			entered++
		}
	}
	if attempt.State == api.AttemptInProgress || attempt.State == api.AttemptExpired {
		t.Errorf("attempt %s is %s", attempt.Attempt, attempt.State)
	}
	if k.State != "terminal_confirmed" {
		return entered
	}
	switch body := r.Outcome.Body; r.Outcome.Operation {
	case "complete":
		var c api.Complete
		if err := api.Decode(body, maxBody, &c); err != nil {
			t.Errorf("attempt %s: %v", attempt.Attempt, err)
		} else if attempt.State != api.AttemptCompleted || job.Result == nil || job.Result.Attempt != attempt.Attempt || c.SHA256 != job.Result.SHA256 || c.Attempt != attempt.Attempt {
			t.Errorf("attempt %s is %s, the store confirmed its COMPLETE", attempt.Attempt, attempt.State)
		} else if result := a.s.Result(job.Job); !bytes.Equal(c.Data, result) {
			t.Errorf("attempt %s: the confirmed bytes differ from the service's", attempt.Attempt)
		}
	case "fail":
		var f api.Fail
		if err := api.Decode(body, maxBody, &f); err != nil {
			t.Errorf("attempt %s: %v", attempt.Attempt, err)
		} else if attempt.State != api.AttemptFailed || attempt.Failure == nil || f.Code != attempt.Failure.Code || f.Message != attempt.Failure.Message || f.Entered != attempt.Failure.Entered || f.Entered != (entered > 0) {
			t.Errorf("attempt %s is %s, failure %+v; the store confirmed FAIL %s", attempt.Attempt, attempt.State, attempt.Failure, f.Code)
		}
	}
	var numbers, announced []protocol.Number
	for _, e := range r.Executions {
		numbers = append(numbers, e.Number)
	}
	for _, e := range attempt.Executions {
		announced = append(announced, e.Number)
	}
	if len(announced) > 0 && !slices.Equal(numbers, announced) {
		t.Errorf("attempt %s has the allocations %v in the store and %v at the service", attempt.Attempt, numbers, announced)
	}
	return entered
}

// wire compares every START, COMPLETE and FAIL that the proxy saw with the
// bytes that were retained (I26).
func (a *auditor) wire() {
	t := a.s.T
	t.Helper()
	if a.s.Proxy == nil {
		return
	}
	starts, terminals := map[string][]byte{}, map[string][]byte{}
	for _, k := range a.byKey {
		starts[string(k.Record.Origin.Start)] = k.Record.Origin.Start
		if k.Record.Admission != nil && k.Record.Outcome != nil {
			operation := "/" + k.Record.Outcome.Operation
			terminals[k.Record.Admission.Reference+operation] = k.Record.Outcome.Body
		}
	}
	seen := map[string]bool{}
	for _, e := range a.s.Proxy.Exchanges() {
		_, name, attempt := strings.Cut(e.Path, "/provider/v1/attempts")
		if !attempt || strings.HasSuffix(name, "/progress") || strings.HasSuffix(name, "/receipts") {
			continue
		}
		retained, known := starts[string(e.Body)]
		if name != "" {
			retained, known = terminals[strings.TrimPrefix(name, "/")]
		}
		if !known || !bytes.Equal(retained, e.Body) {
			t.Errorf("bytes were sent to %s that no record retains", e.Path)
		}
		a.Sent++
		identity := name + string(e.Body)
		if seen[identity] {
			a.Replays++
		}
		seen[identity] = true
	}
}

// AnswerTo is what the test worker answers to a text that it does not refuse.
func AnswerTo(text string) []byte {
	sum := sha256.Sum256([]byte(text))
	return fmt.Appendf(nil, `{"length":%d,"sha256":"%s"}`, len(text), hex.EncodeToString(sum[:]))
}

// Open reports whether any job may still change.
func (s *Site) Open() bool {
	s.T.Helper()
	for _, state := range []api.JobState{api.JobOpen, api.JobClosed} {
		status, data := s.call(http.MethodGet, "/v1/jobs?limit=1&state="+string(state), "", "", nil)
		if len(decode[api.JobList](s, status, data).Jobs) > 0 {
			return true
		}
	}
	return false
}
