//go:build e2e

package e2e

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"

	"github.com/quittance/quittance/controller/api"
	"github.com/quittance/quittance/integration/controllertest"
	"github.com/quittance/quittance/integration/workers/images"
	"github.com/quittance/quittance/protocol"
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

// failingProfile is the fault worker behind one of its protocols.
const failingProfile = `name  = "failing-%s"
image = "quittance.local/misbehave"
args  = ["/usr/bin/misbehave", "-mode", %q]
user  = "65532:65532"
[resources]
memory = "48MiB"
pids   = 64
[channel]
address = "tcp://127.0.0.1:8080"
ready   = { connect = true, timeout = "30s", interval = "20ms" }
[lifecycle]
stop_grace = "1s"
[process]
init = true
`

// failingOffering is one kind of it, with its adapter's own lines.
func failingOffering(kind, adapter, timeout, content, path string) string {
	return fmt.Sprintf(`kind    = %q
profile = "failing-%s"
adapter = %q
[input]
content_type = %q
from         = "job"
[request]
%stimeout = %q
[response]
content_type = "application/json"
max          = "64KiB"
`, kind, adapter, adapter, content, path, timeout)
}

// exitDead is how the fault worker exits where it dies.
const exitDead = 3

// I4, I22, FR-36: every failure class of the protocols kserve and framed, one by
// one, by a real process in a real container that fails so. The class is told by
// what came over the channel, by our own timer and by the host's facts; what the
// worker said is kept as evidence and repeated to nobody; the lane goes on.
func TestAdaptersFail(t *testing.T) {
	s := kit.NewSite(t, controllertest.Options{Lanes: 4, Flags: []string{"--lanes-history", "64"}})
	built, err := images.Build(t.Context(), t.TempDir(), "misbehave")
	if err != nil {
		t.Fatal(err)
	}
	ref := strings.TrimSpace(s.Lab.Command("image", "import", built.File))
	for _, adapter := range []string{"kserve", "framed"} {
		pinned, err := images.Pin(fmt.Appendf(nil, failingProfile, adapter, adapter), ref)
		if err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(filepath.Dir(s.Lab.StateDir()), "profiles", "failing-"+adapter+".toml"), pinned, 0o644); err != nil {
			t.Fatal(err)
		}
		content, path := "text/plain", ""
		if adapter == "kserve" {
			content, path = "application/json", "path = \"/v2/models/misbehave/infer\"\n"
		}
		s.Offering(adapter, failingOffering("failing."+adapter+".v1", adapter, "1m", content, path))
		s.Offering(adapter+"-short", failingOffering("failing."+adapter+"-short.v1", adapter, "1s", content, path))
	}
	s.Lab.Reload()
	controller := s.Serve()

	const words = "- what a worker says is nobody's message"
	s.Secret("the worker's words", []byte(words), "*/jobs", "*/attempts*") // they are the input too
	type row struct {
		verb    string
		code    api.FailureCode // "" for a result
		said    bool            // the worker's words are evidence
		verdict protocol.Verdict
	}
	const well, killed = protocol.VerdictNotKilled, protocol.VerdictKilled
	fine := row{verb: "fine", verdict: well}
	// Three bad ends in a row would pause the offering: a good one comes between.
	rows := map[string][]row{
		"kserve": {
			{verb: "error", code: api.FailWorkerFailed, said: true, verdict: well},
			{verb: "error-ok", code: api.FailWorkerFailed, said: true, verdict: well},
			{verb: "malformed", code: api.FailProtocol, verdict: well},
			{verb: "foreign", code: api.FailProtocol, verdict: well},
			fine,
			{verb: "oversized", code: api.FailProtocol, verdict: well},
			{verb: "half", code: api.FailWorkerLost, verdict: well},
			{verb: "oom", code: api.FailWorkerOOM, verdict: killed},
			fine,
		},
		"framed": {
			{verb: "invalid", code: api.FailInvalidInput, said: true, verdict: well}, // before execution
			{verb: "error", code: api.FailWorkerFailed, said: true, verdict: well},
			{verb: "malformed", code: api.FailProtocol, verdict: well},
			{verb: "foreign", code: api.FailProtocol, verdict: well},
			fine,
			{verb: "oversized", code: api.FailProtocol, verdict: well},
			{verb: "announces", code: api.FailProtocol, verdict: well},
			fine,
			{verb: "half", code: api.FailWorkerLost, verdict: well},
			{verb: "oom", code: api.FailWorkerOOM, verdict: killed},
			fine,
		},
	}
	silent := row{verb: "silent", code: api.FailWorkerTimeout, verdict: well}
	create := func(adapter, kind, verb string) string {
		text := verb + " " + words
		input := api.CreateData{Text: &text}
		if adapter == "kserve" {
			input = api.CreateData{JSON: jsontext.Value(fmt.Sprintf(`{"inputs":[{"name":"text","shape":[1],"datatype":"BYTES","data":[%q]}]}`, text))}
		}
		return s.Create(api.CreateJob{Kind: kind, Input: &input})
	}
	evidence := map[string]bool{} // by job: whether it must hold the worker's words
	check := func(adapter, id string, want row) {
		t.Helper()
		name, entered := adapter+" "+want.verb, want.verb != "invalid"
		job := s.Await(id)
		if len(job.Attempts) != 1 || len(job.Attempts[0].Executions) != 1 {
			t.Fatalf("%s: job is %s, attempts %+v", name, job.State, job.Attempts)
		}
		e := job.Attempts[0].Executions[0]
		switch {
		case want.code == "":
			if job.State != api.JobFinished || !bytes.Contains(s.Result(id), []byte(words)) {
				t.Errorf("%s: job is %s, failure %+v", name, job.State, job.Failure)
			}
		case job.State != api.JobFailed || job.Failure.Code != want.code || job.Failure.Entered != entered || e.Entered != entered:
			t.Errorf("%s: job is %s, failure %+v, want %s", name, job.State, job.Failure, want.code)
		case strings.Contains(job.Failure.Message+job.Failure.Next, words):
			t.Errorf("%s: the message is the worker's: %q", name, job.Failure.Message)
		}
		if e.OOM == nil || e.OOM.Verdict != want.verdict || want.verdict == killed && (e.OOM.Counters.OOMKill == nil || *e.OOM.Counters.OOMKill < 1) {
			t.Errorf("%s: facts %+v", name, e.OOM)
		}
		if want.verb == "half" && (e.Exit == nil || e.Exit.Code == nil || *e.Exit.Code != exitDead) {
			t.Errorf("%s: exit %+v, want %d", name, e.Exit, exitDead)
		}
		s.VerifyReceipts(id)
		evidence[id] = want.said
	}
	mute := map[string]string{} // they take longest and run beside the others
	for adapter := range rows {
		mute[adapter] = create(adapter, "failing."+adapter+"-short.v1", silent.verb)
	}
	for i := range max(len(rows["kserve"]), len(rows["framed"])) {
		jobs := map[string]string{}
		for adapter, all := range rows { // one job of each kind at a time
			if i < len(all) {
				jobs[adapter] = create(adapter, "failing."+adapter+".v1", all[i].verb)
			}
		}
		for adapter, id := range jobs {
			check(adapter, id, rows[adapter][i])
		}
	}
	for adapter, id := range mute {
		check(adapter, id, silent)
	}
	s.AwaitReleased()
	controller.Stop()
	if strings.Contains(controller.Log(), "offering pauses") {
		t.Error("an offering paused")
	}
	for _, k := range s.Records() {
		var kept struct {
			Worker []byte `json:"worker"`
		}
		if k.Record.Outcome == nil || json.Unmarshal(k.Record.Outcome.Evidence, &kept) != nil {
			t.Fatalf("job %s: no evidence is kept: %+v", k.Record.Origin.Job, k.Record.Outcome)
		}
		said, known := evidence[k.Record.Origin.Job]
		if !known || bytes.Contains(kept.Worker, []byte(words)) != said {
			t.Errorf("job %s (known %v): the evidence keeps %q of the worker, its words must be in it: %v", k.Record.Origin.Job, known, kept.Worker, said)
		}
		delete(evidence, k.Record.Origin.Job)
	}
	if len(evidence) > 0 {
		t.Errorf("no record of the jobs %v", evidence)
	}
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
