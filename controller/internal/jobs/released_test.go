package jobs

import (
	"encoding/json"
	"os"
	"path/filepath"
	"testing"
	"time"
)

// releases are the fixtures: each is what a released version had written, none
// is ever changed, and integration/checks knows that none is missing.
func releases(t *testing.T) []string {
	t.Helper()
	found, err := filepath.Glob(filepath.Join("testdata", "released", "v*"))
	if err != nil || len(found) == 0 {
		t.Fatal(found, err)
	}
	return found
}

// releasedPaths are the questions whose answers must stay the same: of what
// ended, because leases lapse.
func releasedPaths(jobs []string, upload string) []string {
	paths := []string{"/v1/jobs?state=finished", "/v1/jobs?state=failed", "/v1/uploads/" + upload}
	for _, job := range jobs {
		paths = append(paths, "/v1/jobs/"+job, "/v1/jobs/"+job+"/result", "/v1/jobs/"+job+"/receipts")
	}
	return paths
}

// openReleased copies a release's directory and opens it; location is the
// database that was made of it, "" for SQLite.
func openReleased(t *testing.T, directory, location string) {
	t.Helper()
	copied := filepath.Join(t.TempDir(), "jobs")
	if err := os.CopyFS(copied, os.DirFS(directory)); err != nil {
		t.Fatal(err)
	}
	text, err := os.ReadFile(filepath.Join(directory, "answers.json"))
	if err != nil {
		t.Fatal(err)
	}
	var answers map[string]string
	if err := json.Unmarshal(text, &answers); err != nil {
		t.Fatal(err)
	}
	token := answers["token"]
	delete(answers, "token")
	if len(answers) != len(releasedPaths(make([]string, 2), "")) {
		t.Fatalf("%d answers", len(answers))
	}
	// The provider of the fixture keeps its identity: this one is another.
	f := openAs(t, location, "node-of-today", func(c *Config) { c.Directory = copied })
	answersAs(t, f, token, answers)
	// Nothing of it depends on the day.
	f.s.store.Shift(10000 * time.Hour)
	answersAs(t, f, token, answers)
	// It is not only read: work goes on in it.
	job := f.create("op-new", "hello")
	f.node.complete(f.node.start(&job, "key-new").Attempt, "world")
	equal(t, "result", string(f.user(f.token, "GET", "/v1/jobs/"+job.Job+"/result", nil).body), "world")
}

// answersAs asks again: all that was answered then must be answered now. Members
// that a later version adds may be there.
func answersAs(t *testing.T, f *fixture, token string, answers map[string]string) {
	t.Helper()
	for path, want := range answers {
		got := string(f.user(token, "GET", path, nil).body)
		var now, then any
		if json.Unmarshal([]byte(want), &then) != nil {
			equal(t, "GET "+path, got, want) // a result's own bytes
			continue
		}
		if err := json.Unmarshal([]byte(got), &now); err != nil || !holds(now, then) {
			t.Errorf("GET %s answers\n%s\nwant\n%s", path, got, want)
		}
	}
}

// holds reports whether an answer has everything that an older one had, but for
// the time of the answer.
func holds(now, then any) bool {
	switch then := then.(type) {
	case map[string]any:
		now, ok := now.(map[string]any)
		for name, value := range then {
			if name != "service_time" && name != "request_id" && (!ok || !holds(now[name], value)) {
				return false
			}
		}
		return ok
	case []any:
		now, ok := now.([]any)
		if !ok || len(now) != len(then) {
			return false
		}
		for i := range then {
			if !holds(now[i], then[i]) {
				return false
			}
		}
		return true
	}
	return now == then
}

// The SQLite database of every release is opened, answers as it did, and goes on.
func TestReleasedOnSQLite(t *testing.T) {
	for _, release := range releases(t) {
		t.Run(filepath.Base(release), func(t *testing.T) {
			openReleased(t, filepath.Join(release, "sqlite"), "")
		})
	}
}
