package command

import (
	"crypto/sha256"
	"encoding/base64"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"

	"github.com/rogpeppe/go-internal/testscript"

	"github.com/quittance/quittance/cmd/agentctl/internal/sample"
	"github.com/quittance/quittance/controller/api"
	"github.com/quittance/quittance/protocol"
)

const testToken = "qt-0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef"

// recordedService answers the job service's user side. Jobs are known by the
// last digit of their id: 1 finished, 2 failed for memory, 3 cancelled, 4
// expired, 5 ends while it is watched. The real service is asked in the
// end-to-end lane.
type recordedService struct {
	log *sample.Log

	mu      sync.Mutex // guards what follows
	created map[string]string
	losses  int // answers to creations still to be cut off
}

func recordedID(digit string) string { return "job-" + strings.Repeat("0", 31) + digit }

func newService(env *testscript.Env) (string, error) {
	service := &recordedService{log: sample.History(), created: map[string]string{}, losses: 1}
	server := httptest.NewServer(service.handler())
	env.Defer(server.Close)
	return server.URL, nil
}

func (s *recordedService) handler() http.Handler {
	mux := http.NewServeMux()
	handle := func(route api.Route, answer func(r *http.Request, body []byte) (any, *api.Problem)) {
		mux.HandleFunc(route.Pattern(), func(w http.ResponseWriter, r *http.Request) {
			body, err := io.ReadAll(r.Body)
			if err != nil {
				panic(http.ErrAbortHandler)
			}
			if route == api.RouteCreateJob && s.lose(r) {
				panic(http.ErrAbortHandler)
			}
			var v any
			problem := authorised(r)
			if problem == nil {
				v, problem = answer(r, body)
			}
			if problem != nil {
				w.Header().Set("Content-Type", api.ContentProblem)
				w.WriteHeader(problem.Status)
				write(w, api.Encode(problem))
				return
			}
			if result, ok := v.([]byte); ok {
				sum := sha256.Sum256(result)
				w.Header().Set(api.HeaderContentDigest, "sha-256=:"+base64.StdEncoding.EncodeToString(sum[:])+":")
				w.Header().Set(api.HeaderSchema, "application/json")
				write(w, result)
				return
			}
			w.Header().Set("Content-Type", api.ContentJSON)
			write(w, api.Encode(v))
		})
	}
	handle(api.RouteListOfferings, func(*http.Request, []byte) (any, *api.Problem) { return recordedOfferings(), nil })
	handle(api.RouteCreateJob, s.create)
	handle(api.RouteCreateUpload, func(r *http.Request, body []byte) (any, *api.Problem) {
		return api.Upload{
			Upload: "up-" + strings.Repeat("0", 31) + "7", ContentType: r.Header.Get("Content-Type"),
			Length: int64(len(body)), SHA256: protocol.DigestOf(body),
		}, nil
	})
	handle(api.RouteListJobs, func(r *http.Request, _ []byte) (any, *api.Problem) {
		list := api.JobList{Jobs: []api.Job{}, Version: 9}
		for _, digit := range []string{"2", "1"} {
			job := recordedJob(digit, false)
			if state := r.URL.Query().Get("state"); state == "" || state == string(job.State) {
				list.Jobs = append(list.Jobs, job)
			}
		}
		return list, nil
	})
	handle(api.RouteGetJob, func(r *http.Request, _ []byte) (any, *api.Problem) {
		return job(r, r.URL.Query().Get("wait") != "")
	})
	handle(api.RouteCancel, func(r *http.Request, _ []byte) (any, *api.Problem) { return job(r, false) })
	handle(api.RouteRetry, func(r *http.Request, _ []byte) (any, *api.Problem) {
		if r.Header.Get(api.HeaderIdempotencyKey) == "" {
			return nil, api.NewProblem(api.CodeIdempotencyNeeded, "no key", "send one")
		}
		if strings.HasSuffix(r.PathValue("job"), "1") {
			return nil, api.NewProblem(api.CodeNotRetryable, "the job is finished", "submit a new job")
		}
		return job(r, false)
	})
	handle(api.RouteResult, func(r *http.Request, _ []byte) (any, *api.Problem) {
		if !strings.HasSuffix(r.PathValue("job"), "1") {
			return nil, api.NewProblem(api.CodeNoResult, "the job has no result", "wait for it")
		}
		return []byte("{\"language\":\"eng\"}\n"), nil
	})
	handle(api.RouteWhy, func(r *http.Request, _ []byte) (any, *api.Problem) {
		return api.Why{Job: r.PathValue("job"), Text: "The kernel killed the worker.", Evidence: []string{"receipt 11: oom_kill 1"}}, nil
	})
	handle(api.RouteJobReceipts, func(r *http.Request, _ []byte) (any, *api.Problem) { return s.receipts(r.PathValue("job")), nil })
	return mux
}

// lose cuts off the first answer to each script's first creation: the client
// must repeat the same request.
func (s *recordedService) lose(r *http.Request) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.losses--
	return s.losses >= 0
}

func authorised(r *http.Request) *api.Problem {
	switch {
	case r.Header.Get("Authorization") != "Bearer "+testToken:
		return api.NewProblem(api.CodeUnauthenticated, "unknown token", "use a token of this service")
	case r.Header.Get(api.HeaderVersion) != "1":
		return api.NewProblem(api.CodeVersionRequired, "no version", "send one")
	}
	return nil
}

func (s *recordedService) create(r *http.Request, body []byte) (any, *api.Problem) {
	var request api.CreateJob
	if err := api.Decode(body, api.RouteCreateJob.MaxRequest, &request); err != nil {
		return nil, api.NewProblem(api.CodeBadRequest, err.Error(), "correct it")
	}
	if request.Input != nil && request.Input.Text != nil && *request.Input.Text == "refuse" {
		return nil, api.NewProblem(api.CodeInvalidInput, "the input does not fit", "correct it")
	}
	digit := "1"
	if len(request.Uploads) > 0 {
		digit = "2"
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	key := r.Header.Get(api.HeaderIdempotencyKey)
	before, replay := s.created[key]
	if replay && before != string(body) {
		return nil, api.NewProblem(api.CodeIdempotencyReuse, "the key is known with another payload", "take another key")
	}
	s.created[key] = string(body)
	return api.CreateJobAnswer{IdempotentReplay: replay, Job: recordedJob(digit, false)}, nil
}

func recordedOfferings() api.Offerings {
	return api.Offerings{Offerings: []api.Offering{
		{Kind: "langid.text.v1", Available: true, Providers: 1, Input: api.HelloInput{From: api.InputFromJob, ContentType: "text/plain", MaxBytes: 1 << 20}},
		{Kind: "ocr.page.v1", Available: true, Providers: 1, Input: api.HelloInput{From: api.InputFromUpload, ContentType: "image/png", MaxBytes: 100}},
	}}
}

func job(r *http.Request, waited bool) (any, *api.Problem) {
	id := r.PathValue("job")
	digit := id[len(id)-1:]
	if id != recordedID(digit) || !strings.Contains("12345", digit) {
		return nil, api.NewProblem(api.CodeNotFound, "no such job", "list the jobs")
	}
	return recordedJob(digit, waited), nil
}

func recordedJob(digit string, waited bool) api.Job {
	created := protocol.Timestamp(1_796_000_000_000_000)
	job := api.Job{
		Job: recordedID(digit), Kind: "langid.text.v1", State: api.JobFinished, Version: 4, CreatedBy: "operator", Created: created,
		Times:  []api.StateTime{{State: api.JobOpen, At: created}, {State: api.JobFinished, At: created + 3_000_000}},
		Labels: []api.Label{{Name: "team", Value: "a"}}, Input: api.Identity{Schema: "text/plain", Length: 44, SHA256: sample.Digest},
		Uploads: []api.UploadMember{}, AttemptLimit: 1, AttemptsUsed: 1,
		Attempts: []api.JobAttempt{{
			Attempt: "att-" + strings.Repeat("0", 32), Provider: "node-1", State: api.AttemptCompleted, Counted: true, Admitted: created + 1_000_000,
			LeaseExpires: created + 600_000_000, Executions: []api.Execution{}, Receipts: api.ReceiptCount{Total: 5, Verified: 5},
		}},
		MemoryPeak: sample.P(int64(3 << 20)), MemoryLimit: sample.P(int64(64 << 20)), ServiceTime: created + 60_000_000,
	}
	end := func(state api.JobState) {
		job.State, job.Times[1].State, job.Attempts[0].State = state, state, api.AttemptFailed
	}
	switch digit {
	case "1":
		job.Result = &api.ResultView{Attempt: job.Attempts[0].Attempt, Schema: "application/json", Length: 19, SHA256: protocol.DigestOf([]byte("{\"language\":\"eng\"}\n")), CommittedAt: created + 3_000_000}
	case "2":
		end(api.JobFailed)
		job.Kind = "ocr.page.v1"
		job.Failure = &api.FailureView{
			Code: api.FailWorkerOOM, Text: "The kernel killed the worker for memory.", Next: "Use a smaller input.",
			Message: "worker lost", Entered: true,
		}
		job.Attempts[0].Failure = job.Failure
		job.OOM = &protocol.OOM{Verdict: protocol.VerdictKilled, Scope: sample.P(protocol.ScopeContainer), Source: protocol.CountersFromV1, Counters: protocol.Counters{OOMKill: sample.P(int64(1))}}
		job.MemoryPeak = job.MemoryLimit
	case "3":
		end(api.JobCancelled)
	case "4":
		end(api.JobExpired)
	case "5":
		if !waited {
			phase := api.PhaseRunning
			job.State, job.Version, job.Times = api.JobOpen, 2, job.Times[:1]
			job.Attempts[0].State, job.Attempts[0].Phase = api.AttemptInProgress, &phase
			job.RunningSince = sample.P(created + 1_000_000)
		}
	}
	return job
}

// receipts are those of the sample's number 2, with their proofs.
func (s *recordedService) receipts(job string) api.JobReceipts {
	list := api.JobReceipts{Job: job, Receipts: []api.JobReceipt{}}
	for i, leaf := range s.log.Leaves {
		r, err := protocol.DecodeReceipt(leaf)
		if err != nil {
			panic(err)
		}
		if r.Number == nil || *r.Number != 2 {
			continue
		}
		list.Receipts = append(list.Receipts, api.JobReceipt{
			Attempt: "att-" + strings.Repeat("0", 32), Generation: r.Generation, Index: r.Index, Kind: r.Kind, Number: 2,
			Key: s.log.Signer.PublicKey(), Trust: api.TrustAnnounced, Leaf: leaf,
			Proof: s.log.Proof(protocol.Index(i), int64(len(s.log.Leaves))).Format(),
		})
	}
	return list
}
