package main

import (
	"fmt"
	"strings"
	"testing"

	"github.com/go-json-experiment/json"

	"github.com/quittance/quittance/controller/api"
	"github.com/quittance/quittance/protocol"
)

// agreeing is a job that finished at its second attempt, as the job service tells of
// it, and the two records of it in the store.
func agreeing(t *testing.T) (records []record, job api.Job) {
	t.Helper()
	data := []byte("the result")
	complete := api.Complete{Attempt: "ref-2", Schema: "text/plain", Length: int64(len(data)), SHA256: protocol.DigestOf(data), Data: data}
	fail := api.Fail{Attempt: "ref-1", Code: api.FailInterrupted, Message: "stopped", Next: "none"}
	for i, body := range [][]byte{api.Encode(fail), api.Encode(complete)} {
		records = append(records, exported(t, "terminal_confirmed", i+1, []string{"fail", "complete"}[i], body))
	}
	job = api.Job{
		Job: "job-1", State: api.JobFinished,
		Attempts: []api.JobAttempt{
			{Attempt: "ref-1", State: api.AttemptFailed, Admitted: 10, Failure: &api.FailureView{Code: api.FailInterrupted, Message: "stopped"}},
			{Attempt: "ref-2", State: api.AttemptCompleted, Admitted: 20},
		},
		Result: &api.ResultView{Attempt: "ref-2", Length: complete.Length, SHA256: complete.SHA256},
	}
	return records, job
}

// exported reads a record in the form that controller store export writes.
func exported(t *testing.T, state string, n int, operation string, body []byte) record {
	t.Helper()
	text := fmt.Sprintf(`{"v":1,"state":%q,"record":{"origin":{"lane":0,"key":"att.job-1.%d","job":"job-1","created":"2026-11-30T10:00:0%d.000000Z"},`+
		`"admission":{"reference":"ref-%d","reply":{"status":201}},"outcome":{"operation":%q,"body":%s}}}`, state, n, n, n, operation, quoteBytes(t, body))
	var r record
	if err := json.Unmarshal([]byte(text), &r); err != nil {
		t.Fatal(err)
	}
	return r
}

func quoteBytes(t *testing.T, data []byte) string {
	t.Helper()
	text, err := json.Marshal(data)
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

// I28 I29
func TestAttemptsAgree(t *testing.T) {
	records, job := agreeing(t)
	if n, err := compareAttempts(records, []api.Job{job}, 64); err != nil || n != 2 {
		t.Errorf("%d compared, %v", n, err)
	}
	// Full history: what is older than all of it may have been trimmed.
	job.Attempts[0].Admitted = records[1].Record.Origin.Created - 1
	if n, err := compareAttempts(records[1:], []api.Job{job}, 1); err != nil || n != 1 {
		t.Errorf("%d compared, %v", n, err)
	}
}

// Each store lost, doubled or changed something; the comparison must say so.
func TestAttemptsDisagree(t *testing.T) {
	for name, c := range map[string]struct {
		betray func(records []record, job *api.Job) []record
		says   string
	}{
		"lost": {func(records []record, _ *api.Job) []record { return records[:1] }, "is completed and is not in the store"},
		"lost, with a history that was trimmed": {func(records []record, job *api.Job) []record {
			job.Attempts[1].Admitted = records[0].Record.Origin.Created + 1
			return []record{records[0], records[0]}
		}, "is completed and is not in the store"},
		"twice": {func(records []record, _ *api.Job) []record { return append(records, records[1]) }, "is in the store twice"},
		"two of one attempt": {func(records []record, _ *api.Job) []record {
			again := records[1]
			again.Record.Origin.Key = "att.job-1.9"
			return append(records, again)
		}, "are both ref-2"},
		"of another job": {func(records []record, _ *api.Job) []record {
			records[0].Record.Origin.Job = "job-2"
			return records
		}, "in the store it is of job job-2"},
		"another result": {func(records []record, job *api.Job) []record {
			job.Result.SHA256 = protocol.DigestOf([]byte("another"))
			return records
		}, "the store confirmed sha256:"},
		"a result that is not of its digest": {func(records []record, _ *api.Job) []record {
			forged := api.Complete{Attempt: "ref-2", Schema: "text/plain", SHA256: protocol.DigestOf([]byte("a")), Data: []byte("b")}
			records[1].Record.Outcome.Body = api.Encode(forged)
			return records
		}, "is not of the digest"},
		"the job service lost the result": {func(records []record, job *api.Job) []record {
			job.Result, job.Attempts[1].State = nil, api.AttemptFailed
			return records
		}, "the store confirmed a result"},
		"another failure": {func(records []record, job *api.Job) []record {
			job.Attempts[0].Failure.Code = api.FailWorkerLost
			return records
		}, "the store confirmed interrupted"},
		"still under way": {func(records []record, _ *api.Job) []record {
			records[1].State = "terminal_pending"
			return records
		}, "in the store terminal_pending"},
		"completed, and ended without an outcome": {func(records []record, _ *api.Job) []record {
			records[1].State = "ended"
			return records
		}, "without an outcome"},
		"confirmed without an outcome": {func(records []record, _ *api.Job) []record {
			records[1].Record.Outcome = nil
			return records
		}, "has no outcome there"},
		"another operation": {func(records []record, _ *api.Job) []record {
			records[1].Record.Outcome.Operation = "other"
			return records
		}, `its operation is "other"`},
	} {
		t.Run(name, func(t *testing.T) {
			records, job := agreeing(t)
			records = c.betray(records, &job)
			if _, err := compareAttempts(records, []api.Job{job}, 2); err == nil || !strings.Contains(err.Error(), c.says) {
				t.Errorf("got %v, expected %q", err, c.says)
			}
		})
	}
}
