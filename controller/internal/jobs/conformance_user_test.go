package jobs

import (
	"fmt"
	"net/http"
	"os"
	"sync"
	"testing"
	"time"

	"github.com/quittance/quittance/controller/api"
)

func feedPages(t *testing.T, f *fixture) {
	var want []string
	for i := range 5 {
		want = append(want, f.create(fmt.Sprint("op-", i), "x").Job)
	}
	var got []string
	cursor := ""
	for {
		page := must[api.Feed](t, 200, f.node.send("GET", "/provider/v1/jobs?kind=echo&attempted=false&limit=2"+cursor, nil))
		equal(t, "repeated", [3]any{page.Kind, page.Attempted, page.Limit}, [3]any{"echo", false, 2})
		for _, item := range page.Jobs {
			got = append(got, item.Job)
		}
		if page.NextCursor == nil {
			break
		}
		cursor = "&cursor=" + *page.NextCursor
	}
	equal(t, "oldest first, each once", got, want)
	var listed []string
	cursor = ""
	for {
		page := must[api.JobList](t, 200, f.user(f.token, "GET", "/v1/jobs?limit=2"+cursor, nil))
		for _, item := range page.Jobs {
			listed = append([]string{item.Job}, listed...)
		}
		if page.NextCursor == nil {
			break
		}
		cursor = "&cursor=" + *page.NextCursor
	}
	equal(t, "newest first, each once", listed, want)
	problem := refused(t, api.CodeBadRequest, f.node.send("GET", "/provider/v1/jobs?kind=echo&attempted=false&limit=2&cursor=AAAA", nil))
	equal(t, "field", problem.Field, "cursor")
}

func createConverges(t *testing.T, f *fixture) {
	text := "x"
	create := &api.CreateJob{Kind: "echo", Input: &api.CreateData{Text: &text}, Labels: []api.Label{{Name: "team", Value: "a"}}}
	const callers = 8
	answers := make([]reply, callers)
	var group sync.WaitGroup
	barrier := make(chan struct{})
	for i := range callers {
		group.Go(func() {
			<-barrier
			answers[i] = f.user(f.token, "POST", "/v1/jobs", create, api.HeaderIdempotencyKey, "same")
		})
	}
	close(barrier)
	group.Wait()
	created := 0
	ids := map[string]bool{}
	for _, got := range answers {
		if got.status == http.StatusCreated {
			created++
		}
		answer := must[api.CreateJobAnswer](t, got.status, got)
		equal(t, "replay", answer.IdempotentReplay, got.status == http.StatusOK)
		ids[answer.Job.Job] = true
	}
	equal(t, "created once, one job", [2]int{created, len(ids)}, [2]int{1, 1})
	equal(t, "jobs", len(must[api.JobList](t, 200, f.user(f.token, "GET", "/v1/jobs?label=team%3Da", nil)).Jobs), 1)
	equal(t, "other label", len(must[api.JobList](t, 200, f.user(f.token, "GET", "/v1/jobs?label=team%3Db", nil)).Jobs), 0)

	other := "y"
	refused(t, api.CodeIdempotencyReuse, f.user(f.token, "POST", "/v1/jobs",
		&api.CreateJob{Kind: "echo", Input: &api.CreateData{Text: &other}}, api.HeaderIdempotencyKey, "same"))
	refused(t, api.CodeUnknownKind, f.user(f.token, "POST", "/v1/jobs", &api.CreateJob{Kind: "none"}, api.HeaderIdempotencyKey, "k"))
	for _, input := range []string{`{"n":10}`, `{"n":"1"}`, `{}`, `{"n":1`, `{"n":1,"n":2}`, `[]`} {
		data := api.Bytes(input)
		problem := refused(t, api.CodeInvalidInput, f.user(f.token, "POST", "/v1/jobs",
			&api.CreateJob{Kind: "typed", Input: &api.CreateData{Base64: &data}}, api.HeaderIdempotencyKey, "k"))
		contains(t, problem.Field, "/input")
	}
	must[api.CreateJobAnswer](t, 201, f.user(f.token, "POST", "/v1/jobs",
		&api.CreateJob{Kind: "typed", Input: &api.CreateData{JSON: []byte(`{"n": 9}`)}}, api.HeaderIdempotencyKey, "k"))
	refused(t, api.CodeInvalidInput, f.user(f.token, "POST", "/v1/jobs", &api.CreateJob{Kind: "page"}, api.HeaderIdempotencyKey, "l"))
}

// Story: weak client. In its retry window four retries under fresh keys and one
// deliberate twin leave two jobs.
func retryWindow(t *testing.T, f *fixture) {
	token, err := f.s.CreateToken(t.Context(), TokenSpec{Workspace: "default", Principal: "weak", Role: "submitter", RetryWindow: 30 * time.Minute})
	if err != nil {
		t.Fatal(err)
	}
	text := "x"
	create := &api.CreateJob{Kind: "echo", Input: &api.CreateData{Text: &text}}
	first := must[api.CreateJobAnswer](t, 201, f.user(token, "POST", "/v1/jobs", create, api.HeaderIdempotencyKey, "1"))
	for i := range 4 {
		f.s.store.Shift(7 * time.Minute) // aliases extend nothing
		again := must[api.CreateJobAnswer](t, 200, f.user(token, "POST", "/v1/jobs", create, api.HeaderIdempotencyKey, fmt.Sprint("again-", i)))
		equal(t, "converged", again.Job.Job, first.Job.Job)
	}
	twin := *create
	twin.NewIntent = true
	second := must[api.CreateJobAnswer](t, 201, f.user(token, "POST", "/v1/jobs", &twin, api.HeaderIdempotencyKey, "twin"))
	if second.Job.Job == first.Job.Job {
		t.Fatal("the twin is the first job")
	}
	refused(t, api.CodeAmbiguousIntent, f.user(token, "POST", "/v1/jobs", create, api.HeaderIdempotencyKey, "bare"))
	equal(t, "a recorded alias still answers",
		must[api.CreateJobAnswer](t, 200, f.user(token, "POST", "/v1/jobs", create, api.HeaderIdempotencyKey, "again-0")).Job.Job, first.Job.Job)
	equal(t, "jobs", len(must[api.JobList](t, 200, f.user(token, "GET", "/v1/jobs", nil)).Jobs), 2)
	f.s.store.Shift(3 * time.Minute) // the first window, counted from the first acceptance, is over
	equal(t, "the twin's window is open",
		must[api.CreateJobAnswer](t, 200, f.user(token, "POST", "/v1/jobs", create, api.HeaderIdempotencyKey, "later")).Job.Job, second.Job.Job)
	// An upload that the first job took is no obstacle to finding that job.
	upload := must[api.Upload](t, 201, f.upload(token, "image/png", []byte("p")))
	page := &api.CreateJob{Kind: "page", Uploads: []string{upload.Upload}}
	made := must[api.CreateJobAnswer](t, 201, f.user(token, "POST", "/v1/jobs", page, api.HeaderIdempotencyKey, "page-1"))
	equal(t, "converged",
		must[api.CreateJobAnswer](t, 200, f.user(token, "POST", "/v1/jobs", page, api.HeaderIdempotencyKey, "page-2")).Job.Job, made.Job.Job)
	// Without a window, and for another principal, fresh keys are fresh jobs.
	must[api.CreateJobAnswer](t, 201, f.user(f.token, "POST", "/v1/jobs", create, api.HeaderIdempotencyKey, "other"))
}

// Another workspace's id answers exactly like one that does not exist.
func workspaces(t *testing.T, f *fixture) {
	job := f.create("op", "x")
	upload := must[api.Upload](t, 201, f.upload(f.token, "image/png", []byte("p")))
	stranger := f.newToken("other", "mallory", "admin")
	for _, route := range []struct{ method, path string }{
		{"GET", ""}, {"GET", "/result"}, {"GET", "/receipts"}, {"GET", "/provenance"}, {"GET", "/why"}, {"GET", "/events"},
		{"GET", "?wait=1s"}, {"POST", "/cancel"}, {"POST", "/close"}, {"POST", "/retry"},
	} {
		foreign := f.user(stranger, route.method, "/v1/jobs/"+job.Job+route.path, nil, api.HeaderIdempotencyKey, "k")
		absent := f.user(stranger, route.method, "/v1/jobs/"+api.NewJobID()+route.path, nil, api.HeaderIdempotencyKey, "k")
		refused(t, api.CodeNotFound, foreign)
		equal(t, route.path, string(foreign.body), string(absent.body))
	}
	refused(t, api.CodeNotFound, f.user(stranger, "GET", "/v1/uploads/"+upload.Upload, nil))
	refused(t, api.CodeUploadMissing, f.user(stranger, "POST", "/v1/jobs",
		&api.CreateJob{Kind: "page", Uploads: []string{upload.Upload}}, api.HeaderIdempotencyKey, "k"))
	equal(t, "list", len(must[api.JobList](t, 200, f.user(stranger, "GET", "/v1/jobs", nil)).Jobs), 0)
	// The same operation id in another workspace is another operation.
	text := "x"
	must[api.CreateJobAnswer](t, 201, f.user(stranger, "POST", "/v1/jobs",
		&api.CreateJob{Kind: "echo", Input: &api.CreateData{Text: &text}}, api.HeaderIdempotencyKey, "op"))
	equal(t, "unchanged", f.job(job.Job).Version, job.Version)

	// Roles.
	reader, submitter := f.newToken("default", "bob", "reader"), f.newToken("default", "carol", "submitter")
	must[api.Job](t, 200, f.user(reader, "GET", "/v1/jobs/"+job.Job, nil))
	refused(t, api.CodeForbidden, f.user(reader, "POST", "/v1/jobs/"+job.Job+"/cancel", nil))
	refused(t, api.CodeForbidden, f.user(reader, "POST", "/v1/jobs", &api.CreateJob{Kind: "echo"}, api.HeaderIdempotencyKey, "k"))
	refused(t, api.CodeForbidden, f.upload(reader, "image/png", []byte("p")))
	cancelled := must[api.Job](t, 200, f.user(submitter, "POST", "/v1/jobs/"+job.Job+"/cancel", nil))
	equal(t, "created_by is the first commit's", cancelled.CreatedBy, "alice")
}

func collection(t *testing.T, f *fixture) {
	unused := must[api.Upload](t, 201, f.upload(f.token, "image/png", []byte("unused")))
	used := must[api.Upload](t, 201, f.upload(f.token, "image/png", []byte("used")))
	page := must[api.CreateJobAnswer](t, 201, f.user(f.token, "POST", "/v1/jobs",
		&api.CreateJob{Kind: "page", Uploads: []string{used.Upload}}, api.HeaderIdempotencyKey, "page")).Job
	job := f.create("op", "the input")
	a := f.node.start(&job, "key").Attempt
	must[api.CompleteReceipt](t, 200, f.node.complete(a, "the result"))
	f.s.store.Shift(25 * time.Hour)
	swept, err := f.s.store.Sweep(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	// The unused upload's file goes in the sweep after its row.
	equal(t, "swept", [2]int{swept.Uploads, swept.Blobs}, [2]int{1, 1})
	if _, err := f.s.store.OpenUpload(unused.SHA256, unused.Length); err == nil {
		t.Fatal("the unused file is still there")
	}
	file, err := f.s.store.OpenUpload(used.SHA256, used.Length)
	if err != nil {
		t.Fatal(err)
	}
	if err := file.Close(); err != nil {
		t.Fatal(err)
	}
	equal(t, "result", string(f.user(f.token, "GET", "/v1/jobs/"+job.Job+"/result", nil).body), "the result")
	f.node.hello(2)
	must[api.Input](t, 200, f.node.send("GET", "/provider/v1/jobs/"+page.Job+"/input", nil))
	// Bytes that were collected can come again.
	again := must[api.Upload](t, 201, f.upload(f.token, "image/png", []byte("unused")))
	if file, err = f.s.store.OpenUpload(again.SHA256, again.Length); err != nil {
		t.Fatal(err)
	}
	if err := file.Close(); err != nil {
		t.Fatal(err)
	}
	if entries, err := os.ReadDir(f.s.config.BlobDirectory); err != nil || len(entries) == 0 {
		t.Fatalf("%d entries, %v", len(entries), err)
	}
}

// FR-27: of many starts at once exactly one is admitted.
func startsRace(t *testing.T, f *fixture) {
	job := f.create("op", "x")
	nodes := []*node{f.node}
	for i := range 5 {
		n := f.newNode(fmt.Sprint("racer-", i))
		n.hello(1)
		nodes = append(nodes, n)
	}
	var starts []func() reply
	for _, n := range nodes {
		starts = append(starts, func() reply { return n.send("POST", "/provider/v1/attempts", n.startOf(&job, "key")) })
	}
	replies := together(starts...)
	admitted := 0
	for _, got := range replies {
		if got.status == http.StatusCreated {
			admitted++
			continue
		}
		refused(t, api.CodeJobBusy, got)
	}
	equal(t, "admitted", admitted, 1)
	equal(t, "attempts", len(f.job(job.Job).Attempts), 1)
}

// together runs calls behind one barrier and returns their replies in order.
func together(calls ...func() reply) []reply {
	replies := make([]reply, len(calls))
	barrier := make(chan struct{})
	var group sync.WaitGroup
	for i, call := range calls {
		group.Go(func() {
			<-barrier
			replies[i] = call()
		})
	}
	close(barrier)
	group.Wait()
	return replies
}

// FR-28, I28: COMPLETE, FAIL and cancel at once: one outcome, and every equal
// request gets its receipt.
func outcomesRace(t *testing.T, f *fixture) {
	for round := range 5 {
		job := f.create(fmt.Sprint("race-", round), "x")
		a := f.node.start(&job, fmt.Sprint("race-", round)).Attempt
		complete := func() reply { return f.node.complete(a, "r") }
		fail := func() reply { return f.node.fail(a, api.FailWorkerLost, true) }
		cancel := func() reply { return f.user(f.token, "POST", "/v1/jobs/"+job.Job+"/cancel", nil) }
		replies := together(complete, fail, complete, fail, cancel, complete, fail)
		completed := replies[0].status == 200
		fresh := 0
		for i, got := range replies {
			switch {
			case i == 4: // the cancel
				if got.status != 200 {
					refused(t, api.CodeJobNotOpen, got)
				}
			case (i%2 == 0) != (i > 4): // a COMPLETE
				if !completed {
					refused(t, api.CodeOppositeOutcome, got)
				} else if !must[api.CompleteReceipt](t, 200, got).Replayed {
					fresh++
				}
			default:
				if completed {
					refused(t, api.CodeOppositeOutcome, got)
				} else if !must[api.FailReceipt](t, 200, got).Replayed {
					fresh++
				}
			}
		}
		equal(t, "committed once", fresh, 1)
		shown := f.job(job.Job)
		want := map[bool]api.JobState{true: api.JobFinished, false: api.JobFailed}[completed]
		if replies[4].status == 200 {
			want = api.JobCancelled
		}
		equal(t, "state", shown.State, want)
	}
}

// FR-27: when a lapsed attempt's outcome meets the next admission, exactly one of
// them wins.
func lateOutcomeRaces(t *testing.T, f *fixture) {
	other := f.newNode("node-2")
	other.hello(api.MaxLanes)
	for round := range 5 {
		text := "x"
		job := must[api.CreateJobAnswer](t, 201, f.user(f.token, "POST", "/v1/jobs", &api.CreateJob{
			Kind: "echo", Input: &api.CreateData{Text: &text}, Limits: &api.JobLimits{Attempts: 2},
		}, api.HeaderIdempotencyKey, fmt.Sprint("late-", round))).Job
		a := f.node.start(&job, fmt.Sprint("late-", round)).Attempt
		f.s.store.Shift(11 * time.Minute)
		replies := together(
			func() reply { return f.node.complete(a, "late") },
			func() reply {
				return other.send("POST", "/provider/v1/attempts", other.startOf(&job, fmt.Sprint("late-", round)))
			})
		shown := f.job(job.Job)
		if replies[0].status == 200 {
			must[api.CompleteReceipt](t, 200, replies[0])
			refused(t, api.CodeJobNotOpen, replies[1])
			equal(t, "state", shown.State, api.JobFinished)
			continue
		}
		refused(t, api.CodeAttemptExpired, replies[0])
		next := must[api.Admission](t, 201, replies[1])
		equal(t, "attempts", [2]api.AttemptState{shown.Attempts[0].State, shown.Attempts[1].State},
			[2]api.AttemptState{api.AttemptExpired, api.AttemptInProgress})
		must[api.CompleteReceipt](t, 200, other.complete(next.Attempt, "done"))
	}
}
