package jobs

import (
	"testing"
	"time"

	"github.com/quittance/quittance/controller/api"
	"github.com/quittance/quittance/protocol"
)

func pointerTo[T any](v T) *T { return &v }

// killed is an execution that the kernel ended for memory.
func killed(generation protocol.ID) api.Execution {
	return api.Execution{
		Generation: generation, Number: 7, Profile: "ocr-small", ProfileDigest: protocol.DigestOf([]byte("p")), Entered: true,
		Limits: &protocol.Limits{MemoryBytes: 64 << 20, PIDs: 64},
		Exit:   &protocol.Exit{Source: protocol.ExitFromEngine, Code: pointerTo[int64](137), Signal: pointerTo[int64](9)},
		OOM: &protocol.OOM{Verdict: protocol.VerdictKilled, Scope: pointerTo(protocol.ScopeContainer), Source: protocol.CountersFromV1,
			Counters: protocol.Counters{OOMKill: pointerTo[int64](1), FailCnt: pointerTo[int64](412)}},
		Peaks: &protocol.Peaks{MemoryBytes: pointerTo[int64](64 << 20)},
	}
}

// FR-31, I24: a kernel kill is told as what it was, with its counters, and the
// peak against the limit stands in the job.
func TestWhyTellsAKernelKillWithItsEvidence(t *testing.T) {
	f := open(t, "", nil)
	job := f.create("op", "x")
	a := f.node.start(&job, "k").Attempt
	generation := protocol.ID("0123456789abcdef0123456789abcdef")
	provenance := &api.Provenance{Controller: "test", Agent: "test", Adapter: "http",
		Executions: []api.Execution{killed(generation)}, Claimed: []api.Claim{{Name: "model", Value: "tesseract"}}}
	must[api.FailReceipt](t, 200, f.node.send("POST", "/provider/v1/attempts/"+a+"/fail",
		&api.Fail{Attempt: a, Code: api.FailWorkerOOM, Message: "m", Entered: true, Provenance: provenance}))

	shown := f.job(job.Job)
	equal(t, "verdict", [2]any{shown.OOM.Verdict, *shown.OOM.Scope}, [2]any{protocol.VerdictKilled, protocol.ScopeContainer})
	equal(t, "peak and limit", [2]int64{*shown.MemoryPeak, *shown.MemoryLimit}, [2]int64{64 << 20, 64 << 20})
	why := must[api.Why](t, 200, f.user(f.token, "GET", "/v1/jobs/"+job.Job+"/why", nil))
	for _, part := range []string{
		"failed at " + shown.Attempts[0].Ended.String() + " with worker_oom: The kernel killed the worker for memory.", "The work may have run.",
		"In allocation 7 of profile ocr-small, the kernel killed for memory (scope container); memory peaked at 64.0 MiB of 64.0 MiB.",
		"Use a smaller input",
	} {
		contains(t, why.Text, part)
	}
	equal(t, "evidence", why.Evidence, []string{"allocation 7, generation " + string(generation) + ", profile ocr-small (" +
		string(protocol.DigestOf([]byte("p"))) + "); exit code 137 seen by engine; oom killed from cgroup_v1 oom_kill=1 failcnt=412"})

	got := must[api.JobProvenance](t, 200, f.user(f.token, "GET", "/v1/jobs/"+job.Job+"/provenance", nil))
	equal(t, "executions", got.Attempts[0].Executions, 1)
	// The worker's own word stays apart from what was observed.
	equal(t, "claimed", got.Attempts[0].Provenance.Claimed, provenance.Claimed)
	equal(t, "agent", got.Attempts[0].Provenance.Agent, "test")
}

// Every state has its own words.
func TestWhyInEveryState(t *testing.T) {
	f := open(t, "", nil)
	text := func(id string) string {
		return must[api.Why](t, 200, f.user(f.token, "GET", "/v1/jobs/"+id+"/why", nil)).Text
	}
	post := func(id, what string) {
		must[api.Job](t, 200, f.user(f.token, "POST", "/v1/jobs/"+id+"/"+what, nil))
	}
	waiting := f.create("waiting", "x")
	contains(t, text(waiting.Job), "It waits for an attempt: No node has a free slot")
	closed := f.create("closed", "x")
	post(closed.Job, "close")
	contains(t, text(closed.Job), "It was closed")
	cancelled := f.create("cancelled", "x")
	a := f.node.start(&cancelled, "a").Attempt
	post(cancelled.Job, "cancel")
	contains(t, text(cancelled.Job), "Its attempt has not reported its end yet.")
	must[api.FailReceipt](t, 200, f.node.fail(a, api.FailCancelled, true))
	expired := must[api.CreateJobAnswer](t, 201, f.user(f.token, "POST", "/v1/jobs",
		&api.CreateJob{Kind: "echo", CancelAfterMs: pointerTo[int64](1)}, api.HeaderIdempotencyKey, "expired")).Job
	f.s.store.Shift(time.Second)
	if _, err := f.s.store.Sweep(t.Context()); err != nil {
		t.Fatal(err)
	}
	contains(t, text(expired.Job), "so it expired")
	reopened := f.create("reopened", "x")
	must[api.FailReceipt](t, 200, f.node.fail(f.node.start(&reopened, "b").Attempt, api.FailUnavailable, false))
	contains(t, text(reopened.Job), "The work did not begin. The attempt does not count and the job was opened again.")
	quiet := f.node.start(&reopened, "c")
	loading := api.ConditionLoadingModel
	must[api.ProgressAnswer](t, 200, f.node.progress(quiet.Attempt, 1, api.PhasePreparing, &loading))
	contains(t, text(reopened.Job), "It is in progress. The worker has started and is not ready yet.")
	f.s.store.Shift(time.Hour)
	contains(t, text(reopened.Job), "It is quiet: its lease lapsed at")
}
