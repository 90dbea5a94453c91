package jobs

import (
	"fmt"
	"net/http"
	"net/url"
	"strings"
	"testing"
	"time"

	"github.com/quittance/quittance/controller/api"
	"github.com/quittance/quittance/protocol"
)

func TestOnSQLite(t *testing.T) { conformance(t, func(*testing.T) string { return "" }) }

// conformance is what holds on every database. location gives each part a
// database of its own.
func conformance(t *testing.T, location func(*testing.T) string) {
	for _, part := range []struct {
		name string
		run  func(*testing.T, *fixture)
	}{
		{"one job, in order", oneJob},
		{"uploads and grants", uploadsAndGrants},
		{"START replays", startReplays},
		{"outcomes are exact", outcomesAreExact},
		{"heartbeats", heartbeats},
		{"leases lapse", leasesLapse},
		{"reopening is bounded", reopening},
		{"retry", retries},
		{"cancel and close", cancelAndClose},
		{"cancel_after", cancelAfter},
		{"provider identity", providerIdentity},
		{"feed pages", feedPages},
		{"create converges", createConverges},
		{"retry window", retryWindow},
		{"workspaces are apart", workspaces},
		{"collection spares what is named", collection},
		{"two starts race", startsRace},
		{"outcomes race", outcomesRace},
		{"a late outcome races the next start", lateOutcomeRaces},
	} {
		t.Run(part.name, func(t *testing.T) { part.run(t, open(t, location(t), nil)) })
	}
}

func oneJob(t *testing.T, f *fixture) {
	job := f.create("op-1", "hello")
	equal(t, "state", job.State, api.JobOpen)
	equal(t, "condition", job.Condition.Code, api.ConditionWaitingForCapacity)

	feed := f.node.feed("echo", false)
	equal(t, "open jobs", len(feed.Jobs), 1)
	equal(t, "feed identity", feed.Jobs[0].Input, job.Input)

	admission := f.node.start(&job, "key-1")
	equal(t, "admitted", admission.State, api.AttemptInProgress)
	equal(t, "feed after start", len(f.node.feed("echo", false).Jobs), 0)

	input := must[api.Input](t, 200, f.node.send("GET", "/provider/v1/jobs/"+job.Job+"/input", nil))
	equal(t, "input", string(input.Data), "hello")
	equal(t, "uploads", len(must[api.Uploads](t, 200, f.node.send("GET", "/provider/v1/jobs/"+job.Job+"/uploads", nil)).Uploads), 0)

	loading := api.ConditionLoadingModel
	must[api.ProgressAnswer](t, 200, f.node.progress(admission.Attempt, 1, api.PhasePreparing, &loading))
	shown := f.job(job.Job)
	equal(t, "condition", shown.Condition.Code, api.ConditionLoadingModel)
	must[api.ProgressAnswer](t, 200, f.node.progress(admission.Attempt, 2, api.PhaseRunning, nil))

	inventory := must[api.Inventory](t, 200, f.node.send("GET", "/provider/v1/attempts?state=in_progress&limit=100", nil))
	equal(t, "inventory", len(inventory.Attempts), 1)
	refused(t, api.CodeNoResult, f.user(f.token, "GET", "/v1/jobs/"+job.Job+"/result", nil))

	receipt := must[api.CompleteReceipt](t, 200, f.node.complete(admission.Attempt, "<b>&\x00ü"))
	equal(t, "receipt digest", receipt.SHA256, protocol.DigestOf([]byte("<b>&\x00ü")))
	equal(t, "replayed", receipt.Replayed, false)

	view := must[api.Attempt](t, 200, f.node.send("GET", "/provider/v1/attempts/"+admission.Attempt, nil))
	equal(t, "attempt", view.State, api.AttemptCompleted)
	equal(t, "job", view.JobState, api.JobFinished)

	done := f.job(job.Job)
	equal(t, "state", done.State, api.JobFinished)
	equal(t, "times", []api.JobState{done.Times[0].State, done.Times[1].State}, []api.JobState{api.JobOpen, api.JobFinished})
	result := f.user(f.token, "GET", "/v1/jobs/"+job.Job+"/result", nil)
	equal(t, "result", string(result.body), "<b>&\x00ü")
	equal(t, "schema", result.header.Get(api.HeaderSchema), "text/plain")
	equal(t, "type", result.header.Get("Content-Type"), api.ContentBytes)
	equal(t, "repeatable", string(f.user(f.token, "GET", "/v1/jobs/"+job.Job+"/result", nil).body), "<b>&\x00ü")
	equal(t, "inventory", len(must[api.Inventory](t, 200, f.node.send("GET", "/provider/v1/attempts?state=in_progress&limit=1", nil)).Attempts), 0)

	why := must[api.Why](t, 200, f.user(f.token, "GET", "/v1/jobs/"+job.Job+"/why", nil))
	contains(t, why.Text, "finished")
	list := must[api.JobList](t, 200, f.user(f.token, "GET", "/v1/jobs?state=finished&kind=echo", nil))
	equal(t, "list", list.Jobs[0].Job, job.Job)
}

func uploadsAndGrants(t *testing.T, f *fixture) {
	picture := []byte("\x89PNG picture")
	upload := must[api.Upload](t, 201, f.upload(f.token, "image/png", picture))
	if upload.Expires == nil || upload.SHA256 != protocol.DigestOf(picture) {
		t.Fatalf("upload %+v", upload)
	}
	create := &api.CreateJob{Kind: "page", Uploads: []string{upload.Upload}}
	job := must[api.CreateJobAnswer](t, 201, f.user(f.token, "POST", "/v1/jobs", create, api.HeaderIdempotencyKey, "a")).Job
	equal(t, "members", job.Uploads[0].Upload, upload.Upload)
	kept := must[api.Upload](t, 200, f.user(f.token, "GET", "/v1/uploads/"+upload.Upload, nil))
	equal(t, "owner", *kept.Job, job.Job)
	// An upload belongs to one job.
	problem := refused(t, api.CodeUploadMissing, f.user(f.token, "POST", "/v1/jobs", create, api.HeaderIdempotencyKey, "b"))
	equal(t, "field", problem.Field, "/uploads/0")

	route := "/provider/v1/jobs/" + job.Job + "/uploads/" + upload.Upload + "/grant"
	refused(t, api.CodeNotFound, f.node.send("POST", route, &api.GrantRequest{Attempt: api.NewAttemptID()}))
	admission := f.node.start(&job, "k")
	members := must[api.Uploads](t, 200, f.node.send("GET", "/provider/v1/jobs/"+job.Job+"/uploads", nil))
	equal(t, "membership", members.Uploads[0].SHA256, upload.SHA256)
	grant := must[api.Grant](t, 201, f.node.send("POST", route, &api.GrantRequest{Attempt: admission.Attempt}))
	target, err := url.Parse(grant.URL)
	if err != nil {
		t.Fatal(err)
	}
	fetch := func(bearer string) reply {
		return f.send(request{method: "GET", path: target.Path, header: http.Header{"Authorization": {"Bearer " + bearer}, api.HeaderVersion: nil}}, nil)
	}
	got := fetch(grant.Bearer)
	equal(t, "bytes", string(got.body), string(picture))
	equal(t, "lengths", got.header.Values("Content-Length"), []string{fmt.Sprint(len(picture))})
	equal(t, "digest", len(got.header.Values("Content-Digest")), 1)
	equal(t, "type", got.header.Get("Content-Type"), "application/octet-stream")
	equal(t, "cache", got.header.Get("Cache-Control"), "no-store")
	refused(t, api.CodeGrantInvalid, fetch("qg_wrong"))
	refused(t, api.CodeGrantInvalid, fetch(f.token))
	f.s.store.Shift(6 * time.Minute)
	refused(t, api.CodeGrantInvalid, fetch(grant.Bearer))
	// A grant ends with its attempt.
	grant = must[api.Grant](t, 201, f.node.send("POST", route, &api.GrantRequest{Attempt: admission.Attempt}))
	equal(t, "bytes", string(fetch(grant.Bearer).body), string(picture))
	must[api.FailReceipt](t, 200, f.node.fail(admission.Attempt, api.FailInvalidInput, false))
	refused(t, api.CodeGrantInvalid, fetch(grant.Bearer))
	refused(t, api.CodeAttemptOver, f.node.send("POST", route, &api.GrantRequest{Attempt: admission.Attempt}))

	// Declared and sent bytes must agree.
	refused(t, api.CodeDigestMismatch, f.send(request{method: "POST", path: "/v1/uploads", body: picture, header: http.Header{
		"Authorization": {"Bearer " + f.token}, "Content-Type": {"image/png"}, "Content-Digest": {digestField(protocol.DigestOf([]byte("other")))},
	}}, nil))
	// An unused upload expires.
	unused := must[api.Upload](t, 201, f.upload(f.token, "image/png", picture))
	f.s.store.Shift(25 * time.Hour)
	refused(t, api.CodeNotFound, f.user(f.token, "GET", "/v1/uploads/"+unused.Upload, nil))
	refused(t, api.CodeUploadMissing, f.user(f.token, "POST", "/v1/jobs",
		&api.CreateJob{Kind: "page", Uploads: []string{unused.Upload}}, api.HeaderIdempotencyKey, "c"))
}

// FR-26: replay is a first-class path.
func startReplays(t *testing.T, f *fixture) {
	job := f.create("op", "x")
	first := f.node.start(&job, "key")
	again := must[api.Admission](t, 200, f.node.send("POST", "/provider/v1/attempts", f.node.startOf(&job, "key")))
	equal(t, "replayed", again.Replayed, true)
	again.Replayed = false
	equal(t, "admission", again, first)

	other := f.node.startOf(&job, "key")
	other.Lane = 1
	refused(t, api.CodeKeyConflict, f.node.send("POST", "/provider/v1/attempts", other))
	refused(t, api.CodeJobBusy, f.node.send("POST", "/provider/v1/attempts", f.node.startOf(&job, "key-2")))
	must[api.CompleteReceipt](t, 200, f.node.complete(first.Attempt, "y"))
	// A terminal admission on replay says so.
	late := must[api.Admission](t, 200, f.node.send("POST", "/provider/v1/attempts", f.node.startOf(&job, "key")))
	equal(t, "state", late.State, api.AttemptCompleted)
	equal(t, "job state", late.JobState, api.JobFinished)
	refused(t, api.CodeJobNotOpen, f.node.send("POST", "/provider/v1/attempts", f.node.startOf(&job, "key-3")))

	// Refusals without effect, each with its own code.
	second := f.create("op-2", "x")
	wrong := f.node.startOf(&second, "w")
	wrong.Input.SHA256 = protocol.DigestOf([]byte("z"))
	refused(t, api.CodeInputMismatch, f.node.send("POST", "/provider/v1/attempts", wrong))
	wrong = f.node.startOf(&second, "w")
	wrong.Kind = "page"
	refused(t, api.CodeKindMismatch, f.node.send("POST", "/provider/v1/attempts", wrong))
	wrong = f.node.startOf(&second, "w")
	wrong.Store = protocol.NewID()
	refused(t, api.CodeOtherStore, f.node.send("POST", "/provider/v1/attempts", wrong))
	wrong = f.node.startOf(&second, "w")
	wrong.Job = api.NewJobID()
	refused(t, api.CodeNotFound, f.node.send("POST", "/provider/v1/attempts", wrong))
	equal(t, "attempts", len(f.job(second.Job).Attempts), 0)

	f.node.hello(1)
	f.node.start(&second, "w")
	third := f.create("op-3", "x")
	refused(t, api.CodeProviderLimit, f.node.send("POST", "/provider/v1/attempts", f.node.startOf(&third, "v")))
	stranger := f.newNode("node-2")
	refused(t, api.CodeHelloRequired, stranger.send("POST", "/provider/v1/attempts", stranger.startOf(&third, "v")))
}

// FR-28, I29: equal bytes replay; opposite outcome, other bytes and expiry differ.
func outcomesAreExact(t *testing.T, f *fixture) {
	job := f.create("op", "x")
	a := f.node.start(&job, "key").Attempt
	first := must[api.CompleteReceipt](t, 200, f.node.complete(a, "result"))
	again := must[api.CompleteReceipt](t, 200, f.node.complete(a, "result"))
	equal(t, "replayed", again.Replayed, true)
	again.Replayed = false
	equal(t, "receipt", again, first)
	refused(t, api.CodeOutcomeConflict, f.node.complete(a, "another"))
	refused(t, api.CodeOppositeOutcome, f.node.fail(a, api.FailWorkerLost, true))
	equal(t, "result", string(f.user(f.token, "GET", "/v1/jobs/"+job.Job+"/result", nil).body), "result")

	failing := f.create("op-2", "x")
	b := f.node.start(&failing, "key-2").Attempt
	message := strings.Repeat("𝄞", api.MaxMessageScalars)
	fail := &api.Fail{Attempt: b, Code: api.FailWorkerFailed, Message: message, Entered: true}
	route := "/provider/v1/attempts/" + b + "/fail"
	receipt := must[api.FailReceipt](t, 200, f.node.send("POST", route, fail))
	equal(t, "message", receipt.Message, message)
	equal(t, "reopened", receipt.Reopened, false)
	replay := must[api.FailReceipt](t, 200, f.node.send("POST", route, fail))
	equal(t, "replay", [2]any{replay.Replayed, replay.CommittedAt}, [2]any{true, receipt.CommittedAt})
	refused(t, api.CodeOppositeOutcome, f.node.complete(b, "late"))
	fail.Message = "other"
	refused(t, api.CodeOutcomeConflict, f.node.send("POST", route, fail))
	shown := f.job(failing.Job)
	equal(t, "state", shown.State, api.JobFailed)
	equal(t, "failure", shown.Failure.Message, message)
	equal(t, "code", shown.Failure.Code, api.FailWorkerFailed)
	refused(t, api.CodeNoResult, f.user(f.token, "GET", "/v1/jobs/"+failing.Job+"/result", nil))

	// Another provider's attempt does not exist for this one.
	other := f.newNode("node-2")
	other.hello(1)
	refused(t, api.CodeNotFound, other.complete(a, "result"))
	refused(t, api.CodeNotFound, other.send("GET", "/provider/v1/attempts/"+a, nil))
}

// FR-29: late progress resurrects nothing.
func heartbeats(t *testing.T, f *fixture) {
	job := f.create("op", "x")
	a := f.node.start(&job, "key").Attempt
	second := must[api.ProgressAnswer](t, 200, f.node.progress(a, 7, api.PhaseRunning, nil))
	equal(t, "lower seq", must[api.ProgressAnswer](t, 200, f.node.progress(a, 3, api.PhasePreparing, nil)), second)
	equal(t, "equal seq", must[api.ProgressAnswer](t, 200, f.node.progress(a, 7, api.PhaseRunning, nil)), second)
	refused(t, api.CodeProgressConflict, f.node.progress(a, 7, api.PhasePreparing, nil))
	refused(t, api.CodePhaseBack, f.node.progress(a, 8, api.PhasePreparing, nil))
	mine := f.node.store
	f.node.store = protocol.NewID()
	refused(t, api.CodeOtherStore, f.node.progress(a, 9, api.PhaseRunning, nil))
	f.node.store = mine
	must[api.CompleteReceipt](t, 200, f.node.complete(a, "r"))
	equal(t, "equal seq after the end", must[api.ProgressAnswer](t, 200, f.node.progress(a, 7, api.PhaseRunning, nil)), second)
	refused(t, api.CodeAttemptOver, f.node.progress(a, 10, api.PhaseRunning, nil))
	equal(t, "state", f.job(job.Job).State, api.JobFinished)
}

// FR-27, FR-34: a lapse is shown; only a person or the limit admits another.
func leasesLapse(t *testing.T, f *fixture) {
	job := f.create("op", "x")
	a := f.node.start(&job, "key").Attempt
	f.s.store.Shift(9 * time.Minute)
	must[api.ProgressAnswer](t, 200, f.node.progress(a, 1, api.PhaseRunning, nil))
	f.s.store.Shift(9 * time.Minute)
	equal(t, "quiet", f.job(job.Job).Attempts[0].Quiet, false)
	f.s.store.Shift(2 * time.Minute)
	equal(t, "quiet", f.job(job.Job).Attempts[0].Quiet, true)
	swept, err := f.s.store.Sweep(t.Context())
	if err != nil || swept.Quiet != 1 {
		t.Fatalf("swept %+v, %v", swept, err)
	}
	other := f.newNode("node-2")
	other.hello(1)
	equal(t, "no attempt left", len(other.feed("echo", false).Jobs), 0)
	refused(t, api.CodeAttemptLimit, other.send("POST", "/provider/v1/attempts", other.startOf(&job, "key")))

	retried := must[api.Job](t, 200, f.user(f.token, "POST", "/v1/jobs/"+job.Job+"/retry", nil, api.HeaderIdempotencyKey, "r"))
	equal(t, "limit", retried.AttemptLimit, 2)
	equal(t, "offered again", len(other.feed("echo", false).Jobs), 1)
	b := other.start(&job, "key").Attempt
	refused(t, api.CodeAttemptExpired, f.node.complete(a, "late"))
	refused(t, api.CodeAttemptExpired, f.node.progress(a, 2, api.PhaseRunning, nil))
	must[api.CompleteReceipt](t, 200, other.complete(b, "in time"))
	shown := f.job(job.Job)
	equal(t, "attempts", [2]api.AttemptState{shown.Attempts[0].State, shown.Attempts[1].State},
		[2]api.AttemptState{api.AttemptExpired, api.AttemptCompleted})

	// A late COMPLETE before anything else was admitted still counts.
	late := f.create("op-2", "x")
	c := f.node.start(&late, "key-2").Attempt
	f.s.store.Shift(time.Hour)
	must[api.CompleteReceipt](t, 200, f.node.complete(c, "late"))
	equal(t, "state", f.job(late.Job).State, api.JobFinished)
}

func reopening(t *testing.T, f *fixture) {
	job := f.create("op", "x")
	for i := range 5 {
		a := f.node.start(&job, fmt.Sprint("key-", i)).Attempt
		receipt := must[api.FailReceipt](t, 200, f.node.fail(a, api.FailUnavailable, false))
		equal(t, "reopened", receipt.Reopened, true)
		equal(t, "listed again", len(f.node.feed("echo", false).Jobs), 1)
	}
	shown := f.job(job.Job)
	equal(t, "state, used, reopens", [3]any{shown.State, shown.AttemptsUsed, shown.Reopens}, [3]any{api.JobOpen, 0, 5})
	a := f.node.start(&job, "key-last").Attempt
	receipt := must[api.FailReceipt](t, 200, f.node.fail(a, api.FailInterrupted, false))
	equal(t, "reopened", receipt.Reopened, false)
	equal(t, "state", f.job(job.Job).State, api.JobFailed)

	// Entered, or another code, ends it at once.
	for i, code := range []api.FailureCode{api.FailInterrupted, api.FailInvalidInput} {
		job := f.create(fmt.Sprint("end-", i), "x")
		a := f.node.start(&job, fmt.Sprint("end-", i)).Attempt
		must[api.FailReceipt](t, 200, f.node.fail(a, code, code == api.FailInterrupted))
		equal(t, "state", f.job(job.Job).State, api.JobFailed)
	}
}

func retries(t *testing.T, f *fixture) {
	job := f.create("op", "x")
	retry := "/v1/jobs/" + job.Job + "/retry"
	refused(t, api.CodeNotRetryable, f.user(f.token, "POST", retry, nil, api.HeaderIdempotencyKey, "r"))
	a := f.node.start(&job, "key").Attempt
	refused(t, api.CodeNotRetryable, f.user(f.token, "POST", retry, nil, api.HeaderIdempotencyKey, "r"))
	must[api.FailReceipt](t, 200, f.node.fail(a, api.FailWorkerLost, true))
	refused(t, api.CodeIdempotencyNeeded, f.user(f.token, "POST", retry, nil))
	refused(t, api.CodeIdempotencyReuse, f.user(f.token, "POST", retry, nil, api.HeaderIdempotencyKey, "op"))
	once := must[api.Job](t, 200, f.user(f.token, "POST", retry, nil, api.HeaderIdempotencyKey, "r"))
	equal(t, "open again", [2]any{once.State, once.AttemptLimit}, [2]any{api.JobOpen, 2})
	b := f.node.start(&job, "key-b").Attempt
	must[api.FailReceipt](t, 200, f.node.fail(b, api.FailWorkerLost, true))
	// The same operation again is the same one: no third attempt.
	again := must[api.Job](t, 200, f.user(f.token, "POST", retry, nil, api.HeaderIdempotencyKey, "r"))
	equal(t, "repeated", [2]any{again.State, again.AttemptLimit}, [2]any{api.JobFailed, 2})
	equal(t, "attempts are kept", len(again.Attempts), 2)
}

func cancelAndClose(t *testing.T, f *fixture) {
	job := f.create("op", "x")
	a := f.node.start(&job, "key").Attempt
	cancelled := must[api.Job](t, 200, f.user(f.token, "POST", "/v1/jobs/"+job.Job+"/cancel", nil))
	equal(t, "cancelled", [2]any{cancelled.State, cancelled.CancelPending}, [2]any{api.JobCancelled, true})
	again := must[api.Job](t, 200, f.user(f.token, "POST", "/v1/jobs/"+job.Job+"/cancel", nil))
	equal(t, "idempotent", again.Version, cancelled.Version)
	view := must[api.Attempt](t, 200, f.node.send("GET", "/provider/v1/attempts/"+a, nil))
	equal(t, "the attempt sees it", [2]any{view.State, view.JobState}, [2]any{api.AttemptInProgress, api.JobCancelled})
	must[api.FailReceipt](t, 200, f.node.fail(a, api.FailCancelled, true))
	ended := f.job(job.Job)
	equal(t, "ended", [2]any{ended.State, ended.CancelPending}, [2]any{api.JobCancelled, false})

	// An outcome that was chosen before the cancel is confirmed; the job stays.
	late := f.create("op-2", "x")
	b := f.node.start(&late, "key-2").Attempt
	must[api.Job](t, 200, f.user(f.token, "POST", "/v1/jobs/"+late.Job+"/cancel", nil))
	must[api.CompleteReceipt](t, 200, f.node.complete(b, "late"))
	equal(t, "state", f.job(late.Job).State, api.JobCancelled)
	refused(t, api.CodeNoResult, f.user(f.token, "GET", "/v1/jobs/"+late.Job+"/result", nil))

	closing := f.create("op-3", "x")
	c := f.node.start(&closing, "key-3").Attempt
	equal(t, "closed", must[api.Job](t, 200, f.user(f.token, "POST", "/v1/jobs/"+closing.Job+"/close", nil)).State, api.JobClosed)
	must[api.CompleteReceipt](t, 200, f.node.complete(c, "done"))
	equal(t, "finished", f.job(closing.Job).State, api.JobFinished)
	refused(t, api.CodeJobNotOpen, f.user(f.token, "POST", "/v1/jobs/"+closing.Job+"/close", nil))
	refused(t, api.CodeJobNotOpen, f.user(f.token, "POST", "/v1/jobs/"+closing.Job+"/cancel", nil))
	idle := f.create("op-4", "x")
	must[api.Job](t, 200, f.user(f.token, "POST", "/v1/jobs/"+idle.Job+"/close", nil))
	refused(t, api.CodeJobNotOpen, f.node.send("POST", "/provider/v1/attempts", f.node.startOf(&idle, "key-4")))
}

func cancelAfter(t *testing.T, f *fixture) {
	after := int64(60_000)
	create := func(key string) api.Job {
		return must[api.CreateJobAnswer](t, 201, f.user(f.token, "POST", "/v1/jobs",
			&api.CreateJob{Kind: "echo", CancelAfterMs: &after}, api.HeaderIdempotencyKey, key)).Job
	}
	idle, running := create("a"), create("b")
	f.node.start(&running, "key")
	f.s.store.Shift(61 * time.Second)
	equal(t, "not offered any more", len(f.node.feed("echo", false).Jobs), 0)
	refused(t, api.CodeJobNotOpen, f.node.send("POST", "/provider/v1/attempts", f.node.startOf(&idle, "late")))
	if swept, err := f.s.store.Sweep(t.Context()); err != nil || swept.Deadlines != 2 {
		t.Fatalf("swept %+v, %v", swept, err)
	}
	equal(t, "never started", f.job(idle.Job).State, api.JobExpired)
	equal(t, "running", f.job(running.Job).State, api.JobCancelled)
	if swept, err := f.s.store.Sweep(t.Context()); err != nil || swept.Deadlines != 0 {
		t.Fatalf("swept again %+v, %v", swept, err)
	}
}

func providerIdentity(t *testing.T, f *fixture) {
	first := f.node.hello(2)
	f.node.seq -= 2
	older := f.node.hello(5)
	equal(t, "an older announcement changes nothing", [2]any{older.Seq, older.ObservedAt}, [2]any{first.Seq, first.ObservedAt})
	f.node.seq = first.Seq

	job := f.create("op", "x")
	a := f.node.start(&job, "key").Attempt
	thief := *f.node
	thief.store, thief.seq = protocol.NewID(), 1<<40
	// I30: the loser learns who the owner is.
	if p := refused(t, api.CodeIdentityInUse, thief.send("POST", "/provider/v1/hello", thief.announcement(2))); p.Store == nil || *p.Store != f.node.store {
		t.Errorf("the refusal names %v as the owner, want %s", p.Store, f.node.store)
	}
	f.s.store.Shift(time.Hour)
	// Attempts in progress hold the identity however long it was silent.
	refused(t, api.CodeIdentityInUse, thief.send("POST", "/provider/v1/hello", thief.announcement(2)))
	failed, err := f.s.HandOver(t.Context(), "node-1", thief.store)
	if err != nil || failed != 1 {
		t.Fatalf("handed over: %d, %v", failed, err)
	}
	thief.hello(2)
	shown := f.job(job.Job)
	equal(t, "failure", [3]any{shown.State, shown.Failure.Code, shown.Failure.Entered}, [3]any{api.JobFailed, api.FailInterrupted, true})
	refused(t, api.CodeOppositeOutcome, f.node.complete(a, "r"))
	f.node.seq = 1 << 41
	refused(t, api.CodeIdentityInUse, f.node.send("POST", "/provider/v1/hello", f.node.announcement(2)))
	// Without attempts the identity lapses by itself.
	f.s.store.Shift(3 * time.Minute)
	f.node.hello(2)
}
