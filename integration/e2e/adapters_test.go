//go:build e2e

package e2e

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/go-json-experiment/json/jsontext"

	"github.com/quittance/quittance/controller/api"
	"github.com/quittance/quittance/integration/controllertest"
	"github.com/quittance/quittance/integration/workers/images"
)

// A real model in real containers, spoken to in each protocol by the shipped
// examples: one answer each, with what the server claims beside it.
func TestAdaptersEndToEnd(t *testing.T) {
	s := kit.NewSite(t, controllertest.Options{})
	built, err := images.Build(t.Context(), t.TempDir(), "langid")
	if err != nil {
		t.Fatal(err)
	}
	ref := strings.TrimSpace(s.Lab.Command("image", "import", built.File))
	const text = "Der Ausschuss hat beschlossen, am Donnerstag zu beraten."
	rows := map[string]struct {
		input  api.CreateData
		answer string
		claims map[string]string
	}{
		"openai": {api.CreateData{JSON: jsontext.Value(`{"stream":true,"stream_options":{"include_usage":true},"messages":[{"role":"user","content":"` + text + `"}]}`)},
			`"content":"German"`, map[string]string{"model": "langid", "total_tokens": "9"}},
		"kserve": {api.CreateData{JSON: jsontext.Value(`{"inputs":[{"name":"text","shape":[1],"datatype":"BYTES","data":["` + text + `"]}]}`)},
			`"data":["deu"]`, map[string]string{"model": "langid", "model_version": "1"}},
		"framed": {api.CreateData{Text: new(text)}, `"language":"deu"`, nil},
	}
	for name := range rows {
		pinned, err := images.Pin(read(t, "profiles/langid-"+name+".toml"), ref)
		if err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(filepath.Dir(s.Lab.StateDir()), "profiles", "langid-"+name+".toml"), pinned, 0o644); err != nil {
			t.Fatal(err)
		}
		s.Offering("langid-"+name, string(read(t, "offerings/langid-"+name+".toml")))
	}
	s.Lab.Reload()
	s.Serve()
	for name, row := range rows {
		id := s.Create(api.CreateJob{Kind: "langid." + name + ".v1", Input: &row.input})
		job := s.Await(id)
		if job.State != api.JobFinished || len(job.Attempts) != 1 || len(job.Attempts[0].Executions) != 1 {
			t.Fatalf("%s: job is %s with %d attempts, failure %+v", name, job.State, len(job.Attempts), job.Failure)
		}
		if result := string(s.Result(id)); !strings.Contains(result, row.answer) {
			t.Errorf("%s: result %s, want %s in it", name, result, row.answer)
		}
		claims := map[string]string{}
		for _, a := range s.Provenance(id).Attempts {
			if a.Provenance.Adapter != name {
				t.Errorf("%s: the provenance names the adapter %s", name, a.Provenance.Adapter)
			}
			for _, c := range a.Provenance.Claimed {
				claims[c.Name] = c.Value
			}
		}
		for n, want := range row.claims {
			if claims[n] != want {
				t.Errorf("%s: the provenance claims %v, want %s = %s", name, claims, n, want)
			}
		}
		s.VerifyReceipts(id)
	}
	s.AwaitReleased()
}

// read is a shipped example.
func read(t *testing.T, name string) []byte {
	t.Helper()
	data, err := os.ReadFile(filepath.Join("../../packaging/etc", name))
	if err != nil {
		t.Fatal(err)
	}
	return data
}
