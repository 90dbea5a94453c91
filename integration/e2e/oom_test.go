//go:build e2e

package e2e

import (
	"strings"
	"testing"

	"github.com/quittance/quittance/controller/api"
	"github.com/quittance/quittance/integration/controllertest"
	"github.com/quittance/quittance/protocol"
)

// observed is an offering of the worker whose children may be killed without it,
// with more lines at its head.
func observed(kind, timeout, head string) string {
	return `kind    = "` + kind + `"
profile = "observe"
adapter = "http"
` + head + `
[input]
content_type = "text/plain"
from         = "job"
[request]
path    = "/predict"
timeout = "` + timeout + `"
[response]
content_type = "application/json"
max          = "64KiB"
`
}

// FR-31, FR-32, FR-36, I22, I24: children that the kernel kills inside a living
// worker, and a worker that says it is well and never answers. What the
// submitter is told rests on the counters and on our own deadlines, never on the
// worker's word; the lane goes on each time.
func TestWorkersThatLookWell(t *testing.T) {
	s := kit.NewSite(t, controllertest.Options{})
	s.Offering("strict", observed("test-strict.v1", "1m", ""))
	s.Offering("short", observed("test-short.v1", "6s", ""))
	s.Offering("lenient", observed("test-lenient.v1", "1m", "fail_on_oom = false"))
	controller := s.Serve()
	for _, row := range []struct {
		name, kind, text string
		code             api.FailureCode // "" for a result
		verdict          protocol.Verdict
	}{
		{"FR-31: a child is killed, the answer is fine and counts as a failure", "test-strict.v1", "childeat 200", api.FailWorkerOOM, protocol.VerdictKilled},
		{"FR-31, where the offering allows it: the result stands with the fact beside it", "test-lenient.v1", "childeat 200", "", protocol.VerdictKilled},
		{"FR-32: a child is killed and the parent hangs", "test-short.v1", "childhang 200", api.FailWorkerTimeout, protocol.VerdictKilled},
		{"FR-36: health says fine, nothing is ever answered", "test-short.v1", "hang", api.FailWorkerTimeout, protocol.VerdictNotKilled},
	} {
		text := row.text
		job := s.Await(s.Create(api.CreateJob{Kind: row.kind, Input: &api.CreateData{Text: &text}}))
		if row.code == "" {
			if job.State != api.JobFinished || string(s.Result(job.Job)) != answerTo(text) {
				t.Errorf("%s: job is %s, failure %+v", row.name, job.State, job.Failure)
			}
		} else if job.State != api.JobFailed || job.Failure.Code != row.code || !job.Failure.Entered {
			t.Errorf("%s: job is %s, failure %+v", row.name, job.State, job.Failure)
		}
		if len(job.Attempts) != 1 || len(job.Attempts[0].Executions) != 1 {
			t.Fatalf("%s: %+v", row.name, job.Attempts)
		}
		e := job.Attempts[0].Executions[0]
		if e.OOM == nil || e.OOM.Verdict != row.verdict || row.verdict == protocol.VerdictKilled && (e.OOM.Counters.OOMKill == nil || *e.OOM.Counters.OOMKill < 1) {
			t.Errorf("%s: facts %+v", row.name, e.OOM)
		}
		s.VerifyReceipts(job.Job)
	}
	finished(t, s, s.Submit("after"), "after")
	if n := s.Executions(); n != 5 {
		t.Errorf("%d executions, want 5", n)
	}
	s.AwaitReleased()
	controller.Stop()
	if log := controller.Log(); strings.Contains(log, "offering pauses") {
		t.Error("the offering paused")
	}
}
