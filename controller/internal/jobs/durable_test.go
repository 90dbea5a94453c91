package jobs

import (
	"database/sql"
	"strings"
	"testing"
	"time"

	"github.com/quittance/quittance/controller/api"
	"github.com/quittance/quittance/controller/internal/signing"
)

// A START whose signature expires while it waits for the database has no effect:
// whoever sees a later date on a reply may conclude that (04, step 3).
func TestStartHasNoEffectAfterItsSignatureExpired(t *testing.T) {
	f := open(t, "", nil)
	job := f.create("op", "x")
	// Another process holds the database's write lock.
	other, err := sql.Open("sqlite", strings.TrimPrefix(f.s.config.Database, "sqlite:"))
	if err != nil {
		t.Fatal(err)
	}
	defer other.Close()
	lock, err := other.Conn(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer lock.Close()
	if _, err := lock.ExecContext(t.Context(), `BEGIN IMMEDIATE`); err != nil {
		t.Fatal(err)
	}
	// The signature was made almost a lifetime ago.
	f.node.signer.Learn(time.Now().Add(-signing.Lifetime + 3*time.Second))
	start := f.node.startOf(&job, "key")
	got := f.node.send("POST", "/provider/v1/attempts", start)
	var problem api.Problem
	if err := api.Decode(got.body, 1<<20, &problem); err != nil || problem.Code != api.CodeUnavailable || problem.Effect != api.EffectUnknown {
		t.Fatalf("status %d: %s %v", got.status, got.body, err)
	}
	if _, err := lock.ExecContext(t.Context(), `ROLLBACK`); err != nil {
		t.Fatal(err)
	}
	f.node.signer.Learn(time.Now())
	// A write after it, so that nothing of it can still be on its way.
	f.create("op-2", "x")
	equal(t, "attempts", len(f.job(job.Job).Attempts), 0)
	// The same bytes with a fresh signature are the first admission.
	equal(t, "replayed", must[api.Admission](t, 201, f.node.send("POST", "/provider/v1/attempts", start)).Replayed, false)
}

// The embedded service reopened: everything acknowledged is there, byte for byte.
func TestReopenedServiceAnswersTheSame(t *testing.T) {
	directory := t.TempDir()
	at := func(c *Config) { c.Directory = directory }
	var job api.Job
	var start *api.Start
	var admission api.Admission
	var receipt api.CompleteReceipt
	var before node
	t.Run("before", func(t *testing.T) {
		f := open(t, "", at)
		job = f.create("op", "x")
		start = f.node.startOf(&job, "key")
		admission = f.node.start(&job, "key")
		receipt = must[api.CompleteReceipt](t, 200, f.node.complete(admission.Attempt, "result"))
		before = *f.node
	})
	f := openAs(t, "", "node-2", at)
	n := before
	n.f = f
	text := "x"
	again := must[api.CreateJobAnswer](t, 200, f.user(f.token, "POST", "/v1/jobs",
		&api.CreateJob{Kind: "echo", Input: &api.CreateData{Text: &text}}, api.HeaderIdempotencyKey, "op"))
	equal(t, "job", again.Job.Job, job.Job)
	replayed := must[api.Admission](t, 200, n.send("POST", "/provider/v1/attempts", start))
	equal(t, "attempt", replayed.Attempt, admission.Attempt)
	confirmed := must[api.CompleteReceipt](t, 200, n.complete(admission.Attempt, "result"))
	confirmed.Replayed = false
	equal(t, "receipt", confirmed, receipt)
	equal(t, "result", string(f.user(f.token, "GET", "/v1/jobs/"+job.Job+"/result", nil).body), "result")
}
