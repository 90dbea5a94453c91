package controllertest

import (
	"bytes"
	"crypto/sha256"
	"encoding/base64"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"strings"

	"github.com/quittance/quittance/controller/api"
	"github.com/quittance/quittance/protocol"
	"github.com/quittance/quittance/protocol/hostclient"
	"github.com/quittance/quittance/protocol/tlog"
)

func (s *Site) token() string {
	s.T.Helper()
	data, err := os.ReadFile(filepath.Join(s.StateDir(), "jobs", "first-token"))
	if err != nil {
		s.T.Fatal(err)
	}
	return strings.TrimSpace(string(data))
}

// call makes one request of a user and returns status and body.
func (s *Site) call(method, path, contentType, key string, body []byte) (int, []byte) {
	s.T.Helper()
	r, err := http.NewRequestWithContext(s.T.Context(), method, "http://"+s.listen+path, bytes.NewReader(body))
	if err != nil {
		s.T.Fatal(err)
	}
	r.Header.Set("Authorization", "Bearer "+s.token())
	r.Header.Set(api.HeaderVersion, fmt.Sprint(api.Version))
	if contentType != "" {
		r.Header.Set("Content-Type", contentType)
	}
	if key != "" {
		r.Header.Set(api.HeaderIdempotencyKey, key)
	}
	if path == "/v1/uploads" {
		sum := sha256.Sum256(body)
		r.Header.Set(api.HeaderContentDigest, "sha-256=:"+base64.StdEncoding.EncodeToString(sum[:])+":")
	}
	client := http.Client{Timeout: Patience, Transport: &http.Transport{DisableKeepAlives: true}}
	answer, err := client.Do(r)
	if err != nil {
		s.T.Fatal(err)
	}
	data, err := io.ReadAll(answer.Body)
	if err != nil {
		s.T.Fatal(err)
	}
	if err := answer.Body.Close(); err != nil {
		s.T.Fatal(err)
	}
	return answer.StatusCode, data
}

func decode[T any](s *Site, status int, data []byte) T {
	s.T.Helper()
	var v T
	if status != http.StatusOK && status != http.StatusCreated {
		s.T.Fatalf("status %d: %s", status, data)
	}
	if err := api.Decode(data, 32<<20, &v); err != nil {
		s.T.Fatalf("%v: %s", err, data)
	}
	return v
}

// Submit creates a job of the test kind with a text as its input.
func (s *Site) Submit(text string) string {
	s.T.Helper()
	return s.Create(api.CreateJob{Kind: OfferingKind, Input: &api.CreateData{Text: &text}})
}

// Create creates a job under a fresh operation id.
func (s *Site) Create(job api.CreateJob) string {
	s.T.Helper()
	// A kind is known once a provider announced it.
	var id string
	if job.Input != nil && job.Input.Text != nil {
		s.secretInput(*job.Input.Text)
	}
	s.Eventually("the job is created", func() (bool, error) {
		status, data := s.call(http.MethodPost, "/v1/jobs", api.ContentJSON, string(protocol.NewID()), api.Encode(job))
		if status == http.StatusUnprocessableEntity && bytes.Contains(data, []byte(api.CodeUnknownKind)) {
			return false, nil
		}
		id = decode[api.CreateJobAnswer](s, status, data).Job.Job
		return true, nil
	})
	return id
}

// Upload uploads bytes and returns the upload's id.
func (s *Site) Upload(contentType string, data []byte) string {
	s.T.Helper()
	s.secretInput(string(data))
	status, answer := s.call(http.MethodPost, "/v1/uploads", contentType, "", data)
	return decode[api.Upload](s, status, answer).Upload
}

// Job reads a job.
func (s *Site) Job(id string) api.Job {
	s.T.Helper()
	status, data := s.call(http.MethodGet, "/v1/jobs/"+id, "", "", nil)
	return decode[api.Job](s, status, data)
}

// Cancel asks for the job's end.
func (s *Site) Cancel(id string) {
	s.T.Helper()
	status, data := s.call(http.MethodPost, "/v1/jobs/"+id+"/cancel", "", "", nil)
	decode[api.Job](s, status, data)
}

// Await waits until the job is in a final state with its host receipts
// attached, and returns it.
func (s *Site) Await(id string) api.Job {
	s.T.Helper()
	var job api.Job
	s.Eventually("job "+id+" has ended", func() (bool, error) {
		job = s.Job(id)
		for _, a := range job.Attempts {
			if a.State == api.AttemptInProgress || len(a.Executions) > 0 && a.Receipts.Total == 0 {
				return false, nil
			}
		}
		return job.State.Terminal(), nil
	})
	return job
}

// Result is the job's exact result.
func (s *Site) Result(id string) []byte {
	s.T.Helper()
	status, data := s.call(http.MethodGet, "/v1/jobs/"+id+"/result", "", "", nil)
	if status != http.StatusOK {
		s.T.Fatalf("result: status %d: %s", status, data)
	}
	return data
}

// Receipts are the job's attached host receipts.
func (s *Site) Receipts(id string) []api.JobReceipt {
	s.T.Helper()
	status, data := s.call(http.MethodGet, "/v1/jobs/"+id+"/receipts", "", "", nil)
	return decode[api.JobReceipts](s, status, data).Receipts
}

// Provenance is what produced each outcome of a job.
func (s *Site) Provenance(id string) api.JobProvenance {
	s.T.Helper()
	status, data := s.call(http.MethodGet, "/v1/jobs/"+id+"/provenance", "", "", nil)
	return decode[api.JobProvenance](s, status, data)
}

// VerifyReceipts checks every attached receipt of a job against the host's
// key, and that the kinds of each allocation tell a whole life.
func (s *Site) VerifyReceipts(id string) {
	s.T.Helper()
	key, err := tlog.ParsePublicKey(s.Lab.HostKey)
	if err != nil {
		s.T.Fatal(err)
	}
	lives := map[protocol.Number][]protocol.Kind{}
	for _, r := range s.Receipts(id) {
		proof, err := tlog.ParseProof(r.Proof)
		if err != nil {
			s.T.Fatalf("receipt %d: %v", r.Index, err)
		}
		if _, err := proof.Verify(r.Leaf, key); err != nil {
			s.T.Fatalf("receipt %d: %v", r.Index, err)
		}
		lives[r.Number] = append(lives[r.Number], r.Kind)
	}
	if len(lives) == 0 {
		s.T.Fatalf("job %s has no receipts", id)
	}
	for n, kinds := range lives {
		text := fmt.Sprint(kinds)
		if !strings.HasPrefix(text, "[accepted") || !strings.HasSuffix(text, "retired consumed]") {
			s.T.Errorf("allocation %d's receipts are %s", n, text)
		}
	}
}

// AwaitReleased waits until every accepted number is released.
func (s *Site) AwaitReleased() protocol.Host {
	s.T.Helper()
	client := hostclient.New(s.Lab.Socket(), hostclient.Options{})
	var host protocol.Host
	s.Eventually("host history is released", func() (bool, error) {
		var err error
		if host, err = client.Host(s.T.Context()); err != nil {
			return false, err
		}
		return host.Frontiers.Accepted == host.Frontiers.Released && host.Slots.Used == 0, nil
	})
	return host
}

// Generation reads the agent as an operator.
func (s *Site) Generation() *hostclient.Generation {
	return hostclient.New(s.Lab.Socket(), hostclient.Options{}).In(s.Lab.Generation)
}

// AwaitActive waits until an allocation is in a state and returns it.
func (s *Site) AwaitActive(state protocol.State) protocol.Allocation {
	s.T.Helper()
	var found protocol.Allocation
	s.Eventually("an allocation is "+string(state), func() (bool, error) {
		ctx := s.T.Context()
		all, err := s.Generation().List(ctx, state)
		if err != nil || len(all) == 0 {
			return false, nil
		}
		found = all[0]
		return true, nil
	})
	return found
}

// AwaitExecutions waits until workers began n requests in all.
func (s *Site) AwaitExecutions(n int) {
	s.T.Helper()
	s.Eventually(fmt.Sprintf("%d executions have begun", n), func() (bool, error) {
		if got := s.Executions(); got > n {
			return false, fmt.Errorf("%d executions, want %d", got, n)
		} else {
			return got == n, nil
		}
	})
}
