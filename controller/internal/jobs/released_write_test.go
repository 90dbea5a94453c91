//go:build e2e && fixture

package jobs

import (
	"bytes"
	"encoding/json"
	"flag"
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"github.com/quittance/quittance/controller/api"
)

var releasedDir = flag.String("released", "", "where the databases of a new release go, as testdata/released/VERSION")

// A fixture for the tests of all later versions: both databases after one job
// that finished, one that failed, one in progress with an upload, and one that
// waits. packaging/fixtures.sh runs it.
func TestWriteReleased(t *testing.T) {
	if *releasedDir == "" {
		t.Fatal("-released is required")
	}
	postgres := startPostgres(t)
	for name, location := range map[string]string{"sqlite": "", "postgresql": postgres.database(t)} {
		target := filepath.Join(*releasedDir, name)
		directory := filepath.Join(t.TempDir(), "jobs")
		var answers map[string]string
		t.Run(name, func(t *testing.T) {
			f := open(t, location, func(c *Config) { c.Directory = directory })
			finished := f.create("op-1", "hello")
			must[api.CompleteReceipt](t, 200, f.node.complete(f.node.start(&finished, "key-1").Attempt, "world"))
			failed := f.create("op-2", "broken")
			must[api.FailReceipt](t, 200, f.node.fail(f.node.start(&failed, "key-2").Attempt, api.FailInvalidInput, true))
			upload := must[api.Upload](t, 201, f.upload(f.token, "image/png", []byte("\x89PNG picture")))
			running := must[api.CreateJobAnswer](t, 201, f.user(f.token, "POST", "/v1/jobs",
				&api.CreateJob{Kind: "page", Uploads: []string{upload.Upload}}, api.HeaderIdempotencyKey, "op-3")).Job
			f.node.start(&running, "key-3")
			f.create("op-4", "later")
			answers = map[string]string{"token": f.token}
			for _, path := range releasedPaths([]string{finished.Job, failed.Job}, upload.Upload) {
				answers[path] = string(f.user(f.token, "GET", path, nil).body)
			}
		})
		if err := os.CopyFS(target, os.DirFS(directory)); err != nil { // closed by now
			t.Fatal(err)
		}
		if location != "" {
			found, err := filepath.Glob("/usr/lib/postgresql/*/bin/pg_dump")
			if err != nil || len(found) == 0 {
				t.Fatal("no pg_dump")
			}
			dump, err := exec.CommandContext(t.Context(), found[0], "--no-owner", "--no-acl", "--inserts", location).Output()
			if err != nil {
				t.Fatal(err)
			}
			// Commands of psql, which the reader does not need.
			var lines [][]byte
			for _, line := range bytes.SplitAfter(dump, []byte("\n")) {
				if !bytes.HasPrefix(line, []byte(`\`)) {
					lines = append(lines, line)
				}
			}
			if err := os.WriteFile(filepath.Join(target, "dump.sql"), bytes.Join(lines, nil), 0o644); err != nil {
				t.Fatal(err)
			}
		}
		text, err := json.MarshalIndent(answers, "", "  ")
		if err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(target, "answers.json"), append(text, '\n'), 0o644); err != nil {
			t.Fatal(err)
		}
	}
}
