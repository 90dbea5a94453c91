//go:build e2e

package e2e

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/go-json-experiment/json/jsontext"

	"github.com/quittance/quittance/controller/api"
	"github.com/quittance/quittance/integration/controllertest"
	"github.com/quittance/quittance/integration/workers/images"
)

const langidProfile = `name  = "langid-%[1]s"
image = "quittance.local/langid"
args  = ["/usr/bin/langid", "--listen", "127.0.0.1:8080", "--protocol", "%[1]s"]
user  = "65532:65532"
[resources]
memory = "64MiB"
pids   = 64
[channel]
address = "tcp://127.0.0.1:8080"
ready   = { %[2]s, timeout = "30s", interval = "20ms" }
[lifecycle]
stop_grace = "1s"
[process]
init = true
`

const langidOffering = `kind    = "langid-%[1]s.v1"
profile = "langid-%[1]s"
adapter = "%[1]s"
[input]
content_type = "%[2]s"
from         = "job"
[request]
%[3]s
timeout = "1m"
[response]
content_type = "application/json"
`

// A real model in real containers, spoken to in each protocol: one answer each,
// with what the server claims beside it.
func TestAdaptersEndToEnd(t *testing.T) {
	s := kit.NewSite(t, controllertest.Options{})
	built, err := images.Build(t.Context(), t.TempDir(), "langid")
	if err != nil {
		t.Fatal(err)
	}
	ref := strings.TrimSpace(s.Lab.Command("image", "import", built.File))
	rows := map[string]struct {
		ready, media, request, input, answer string
		claims                               map[string]string
	}{
		"openai": {`http = "/health", status = 200, json = "/status=READY"`, api.ContentJSON, `path = "/v1/chat/completions"`,
			`{"stream":true,"stream_options":{"include_usage":true},"messages":[{"role":"user","content":"Der Ausschuss hat beschlossen, am Donnerstag zu beraten."}]}`,
			`"content":"German"`, map[string]string{"model": "langid", "total_tokens": "9"}},
		"kserve": {`http = "/v2/health/ready", status = 200`, api.ContentJSON, `path = "/v2/models/langid/infer"`,
			`{"inputs":[{"name":"text","shape":[1],"datatype":"BYTES","data":["Der Ausschuss hat beschlossen, am Donnerstag zu beraten."]}]}`,
			`"data":["deu"]`, map[string]string{"model": "langid", "model_version": "1"}},
		"framed": {`connect = true`, "text/plain", "", "Der Ausschuss hat beschlossen, am Donnerstag zu beraten.", `"language":"deu"`, nil},
	}
	for name, row := range rows {
		pinned, err := images.Pin(fmt.Appendf(nil, langidProfile, name, row.ready), ref)
		if err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(filepath.Dir(s.Lab.StateDir()), "profiles", "langid-"+name+".toml"), pinned, 0o644); err != nil {
			t.Fatal(err)
		}
		s.Offering("langid-"+name, fmt.Sprintf(langidOffering, name, row.media, row.request))
	}
	s.Lab.Reload()
	s.Serve()
	for name, row := range rows {
		input := &api.CreateData{Text: &row.input}
		if row.media == api.ContentJSON {
			input = &api.CreateData{JSON: jsontext.Value(row.input)}
		}
		id := s.Create(api.CreateJob{Kind: "langid-" + name + ".v1", Input: input})
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
