package offering

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/quittance/quittance/controller/api"
	"github.com/quittance/quittance/profiles/tomlfile"
)

const good = `
kind = "ocr.page.v1"
profile = "ocr"
adapter = "http"
input = { content_type = "image/png", from = "upload", max = "32MiB" }
request = { path = "/predict", timeout = "10m" }
response = { content_type = "application/json", max = "768KiB" }
`

func write(t *testing.T, dir, name, text string) string {
	t.Helper()
	path := filepath.Join(dir, name)
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

func TestLoadDefaults(t *testing.T) {
	o, err := Load(write(t, t.TempDir(), "a.toml", good))
	if err != nil {
		t.Fatal(err)
	}
	if !o.FailOnOOM || o.PrepareTimeout != time.Minute || o.Request.Method != "POST" || o.OnRestart != RestartFail ||
		!o.MayGoOn(JobOpen) || o.MayGoOn(JobClosed) || o.Input.MaxBytes != 32<<20 || o.Response.MaxBytes != 786432 {
		t.Fatalf("%+v", o)
	}
}

// Every problem of a file at once, each with its key; what this version does
// not do is refused and not ignored.
func TestLoadReportsEveryProblem(t *testing.T) {
	_, err := Load(write(t, t.TempDir(), "a.toml", `
kind = "No Good"
profile = "UPPER"
adapter = "grpc"
on_oom = "same"
on_restart = "again"
job_states = ["closed"]
input = { content_type = "png", from = "url", max = "1MiB" }
request = { method = "DELETE", path = "predict", timeout = "0s" }
response = { content_type = "application/json", max = "1MiB", schema = "../up.json" }
[limits]
input_calls = -1
upload_requests = -1
work_time = "48h"
`))
	if err == nil {
		t.Fatal("accepted")
	}
	for _, key := range []string{
		"kind:", "profile:", "adapter:", "on_oom:", "on_restart:", "job_states:", "input.content_type:",
		"input.from:", "request.method:", "request.path:", "request.timeout:", "response.max:", "response.schema:",
		"limits.input_calls:", "limits.upload_requests:", "limits.work_time:",
	} {
		if !strings.Contains(err.Error(), key) {
			t.Errorf("no problem names %s\n%v", key, err)
		}
	}
}

// I27: only a pure offering may run something twice, and the limit is never
// raised but by name.
func TestReplacementRules(t *testing.T) {
	for text, ok := range map[string]bool{
		"pure = true": true, "pure = true\non_oom = \"same\"": true, "pure = true\non_oom = \"ocr-large\"": true, "on_oom = \"fail\"": true,
		"on_oom = \"same\"": false, "on_oom = \"ocr-large\"": false, "pure = true\non_oom = \"ocr\"": false, "pure = true\non_oom = \"No Good\"": false,
	} {
		_, err := Load(write(t, t.TempDir(), "a.toml", good+text+"\n"))
		if ok != (err == nil) {
			t.Errorf("%q: %v", text, err)
		}
	}
}

func TestLoadDir(t *testing.T) {
	dir := t.TempDir()
	if _, err := LoadDir(dir); err == nil || !strings.Contains(err.Error(), "no *.toml") {
		t.Fatalf("an empty directory: %v", err)
	}
	write(t, dir, "a.toml", good)
	write(t, dir, "b.toml", good)
	if _, err := LoadDir(dir); err == nil || !strings.Contains(err.Error(), "one offering per kind") {
		t.Fatalf("two files of one kind: %v", err)
	}
	write(t, dir, "b.toml", strings.Replace(good, "ocr.page.v1", "ocr.line.v1", 1))
	all, err := LoadDir(dir)
	if err != nil || len(all) != 2 {
		t.Fatalf("%v, %v", all, err)
	}
}

const schema = `{"type":"object","required":["language"],"additionalProperties":false,"properties":{"language":{"type":"string"}}}`

// I37: the message names the rule, and nothing of the document.
func TestSchemaCheck(t *testing.T) {
	dir := t.TempDir()
	write(t, dir, "s.json", schema)
	o, err := Load(write(t, dir, "a.toml", strings.Replace(good, `max = "768KiB"`, `schema = "s.json"`, 1)))
	if err != nil {
		t.Fatal(err)
	}
	s := o.Response.Schema
	if err := s.Check([]byte(`{"language":"eng"}`)); err != nil {
		t.Fatal(err)
	}
	for in, want := range map[string]string{
		`{"language":7531}`:           `breaks the schema's rule /properties/language/type`,
		`{}`:                          `breaks the schema's rule /required`,
		`{"language":"a","secret":1}`: `breaks the schema's rule /additionalProperties`,
		`{"language":"x"} y`:          "is not one JSON value",
		``:                            "is not one JSON value",
	} {
		err := s.Check([]byte(in))
		if err == nil || err.Error() != want {
			t.Errorf("%s: %v, want %s", in, err, want)
		}
	}
}

// Nothing is fetched because a schema names it.
func TestSchemaFollowsNoReferenceOutside(t *testing.T) {
	for _, ref := range []string{"http://127.0.0.1:1/x.json", "file:///etc/passwd"} {
		dir := t.TempDir()
		write(t, dir, "s.json", `{"$ref":"`+ref+`"}`)
		_, err := Load(write(t, dir, "a.toml", strings.Replace(good, `max = "768KiB"`, `schema = "s.json"`, 1)))
		if err == nil || !strings.Contains(err.Error(), "references outside") {
			t.Errorf("%s: %v", ref, err)
		}
	}
}

// The shipped examples are offerings that load.
func TestShippedExamples(t *testing.T) {
	all, err := LoadDir("../../../packaging/etc/offerings")
	if err != nil {
		t.Fatal(err)
	}
	if len(all) != 6 {
		t.Fatalf("%d offerings, want langid in four protocols, ocr and ocr-small", len(all))
	}
}

// Any file is an offering that keeps its bounds, or refused with its keys.
func FuzzOffering(f *testing.F) {
	f.Add([]byte(good))
	f.Add([]byte("kind = 1"))
	f.Add([]byte("[limits]\nwork_time = \"1h\""))
	f.Fuzz(func(t *testing.T, data []byte) {
		var form file
		if tomlfile.Decode(data, &form) != nil {
			return
		}
		b := builder{path: filepath.Join(t.TempDir(), "o.toml")}
		o := b.build(form)
		if len(b.problems) > 0 {
			return
		}
		if o.Input.MaxBytes <= 0 || o.Input.MaxBytes > api.MaxUploadBytes || o.Response.MaxBytes <= 0 || o.Response.MaxBytes > api.MaxResultBytes ||
			o.Request.Timeout <= 0 || o.Request.Timeout > MaxWorkTime || o.Limits.WorkTime > MaxWorkTime || len(o.JobStates) == 0 || o.OnOOM == "" {
			t.Fatalf("accepted out of bounds: %+v", o)
		}
	})
}
