//go:build e2e

package e2e

import (
	"bytes"
	"context"
	"encoding/json"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	dto "github.com/prometheus/client_model/go"
	"github.com/prometheus/common/expfmt"
	"github.com/prometheus/common/model"

	"github.com/quittance/quittance/controller/api"
	"github.com/quittance/quittance/integration/controllertest"
)

// scraped are the figures of one scrape over a Unix socket, by name.
type scraped map[string]*dto.MetricFamily

func scrape(t *testing.T, s *controllertest.Site, socket string) scraped {
	t.Helper()
	client := http.Client{Timeout: controllertest.Patience, Transport: &http.Transport{DisableKeepAlives: true,
		DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
			var d net.Dialer
			return d.DialContext(ctx, "unix", socket)
		}}}
	answer, err := client.Get("http://figures/metrics")
	if err != nil {
		t.Fatal(err)
	}
	text, err := io.ReadAll(answer.Body)
	if err != nil {
		t.Fatal(err)
	}
	if err := answer.Body.Close(); err != nil {
		t.Fatal(err)
	}
	if found := s.Lab.Secrets.In("the figures", text); len(found) > 0 {
		t.Errorf("secret found: %v", found)
	}
	parser := expfmt.NewTextParser(model.LegacyValidation)
	families, err := parser.TextToMetricFamilies(bytes.NewReader(text))
	if err != nil {
		t.Fatal(err)
	}
	if answer.StatusCode != http.StatusOK {
		t.Fatalf("status %d", answer.StatusCode)
	}
	return families
}

// value adds up the series whose labels have the values given, as name, value, …
func (s scraped) value(name string, labels ...string) float64 {
	sum := 0.0
	for _, m := range s[name].GetMetric() {
		fits := true
		for i := 0; i < len(labels); i += 2 {
			fits = fits && slices.ContainsFunc(m.GetLabel(), func(l *dto.LabelPair) bool {
				return l.GetName() == labels[i] && l.GetValue() == labels[i+1]
			})
		}
		if fits {
			sum += m.GetCounter().GetValue() + m.GetGauge().GetValue() + float64(m.GetHistogram().GetSampleCount())
		}
	}
	return sum
}

// line is one log line in JSON.
type line map[string]any

func (l line) text(key string) string {
	s, _ := l[key].(string)
	return s
}

func logLines(t *testing.T, log string) (lines []line) {
	t.Helper()
	for text := range strings.Lines(log) {
		var l line
		if err := json.Unmarshal([]byte(text), &l); err != nil {
			t.Fatalf("log line %q: %v", text, err)
		}
		lines = append(lines, l)
	}
	return lines
}

// Figures count what happened, on real scrapes of both daemons: a job raises
// them, and a kill for memory is counted as one. Then the logs are read: one id,
// the job's, is in every line from its creation to its released receipt.
func TestFiguresAndNoticesOfTwoJobs(t *testing.T) {
	dir, err := os.MkdirTemp("", "qm")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := os.RemoveAll(dir); err != nil {
			t.Error(err)
		}
	})
	agent := filepath.Join(dir, "agent.sock")
	s := kit.NewSite(t, controllertest.Options{Agent: []string{"QUITTANCE_METRICS_SOCKET=" + agent}})
	own := filepath.Join(filepath.Dir(s.StateDir()), "figures.sock") // a directory of the controller's user
	controller := s.Serve("QUITTANCE_METRICS_LISTEN=unix:" + own)

	const text = "a canary: what a person sends is nobody else's to read"
	good, bad := s.Submit(text), s.Submit("eat 200 and tell nobody what it was for")
	finished(t, s, good, text)
	if job := s.Await(bad); job.Failure == nil || job.Failure.Code != api.FailWorkerOOM {
		t.Fatalf("job is %s, failure %+v", job.State, job.Failure)
	}
	s.AwaitReleased()

	a := scrape(t, s, agent)
	for _, want := range []struct {
		name   string
		labels []string
		value  float64
	}{
		{"quittance_agent_receipts_total", []string{"kind", "retired"}, 2},
		{"quittance_agent_receipts_total", []string{"kind", "consumed"}, 2},
		{"quittance_agent_oom_verdicts_total", []string{"verdict", "killed", "scope", "container"}, 1},
		{"quittance_agent_oom_verdicts_total", []string{"verdict", "not_killed"}, 1},
		{"quittance_agent_oom_verdicts_total", nil, 2},
		{"quittance_agent_engine_calls_total", []string{"operation", "create", "disposition", "done"}, 2},
		{"quittance_agent_requests_total", []string{"operation", "PUT allocations/{n}", "disposition", "done"}, 2},
		{"quittance_agent_accepted_number", nil, 2}, {"quittance_agent_released_number", nil, 2}, {"quittance_agent_slots_used", nil, 0},
		{"quittance_agent_engine_available", nil, 1}, {"quittance_agent_stuck", nil, 0},
		{"quittance_build_info", []string{"program", "hostagent"}, 1},
	} {
		if got := a.value(want.name, want.labels...); got != want.value {
			t.Errorf("agent: %s%v is %v, want %v", want.name, want.labels, got, want.value)
		}
	}
	for _, name := range []string{"quittance_agent_profiles_available", "quittance_agent_ledger_commit_seconds", "quittance_agent_create_seconds", "quittance_agent_owner_heard_timestamp_seconds"} {
		if a.value(name) == 0 {
			t.Errorf("agent: %s counted nothing", name)
		}
	}
	var c scraped
	s.Eventually("both attempts are archived", func() (bool, error) {
		c = scrape(t, s, own)
		return c.value("quittance_controller_attempts") == 0, nil
	})
	for _, want := range []struct {
		name   string
		labels []string
		value  float64
	}{
		{"quittance_controller_transitions_total", []string{"state", "terminal_confirmed"}, 2},
		{"quittance_controller_outcomes_total", []string{"operation", "complete", "code", ""}, 1},
		{"quittance_controller_outcomes_total", []string{"operation", "fail", "code", string(api.FailWorkerOOM)}, 1},
		{"quittance_controller_exchanges_total", []string{"operation", "start", "class", "ok", "disposition", "done"}, 2},
		{"quittance_controller_host_requests_total", []string{"operation", "allocate", "disposition", "done"}, 2},
		{"quittance_controller_host_reachable", nil, 1}, {"quittance_controller_lanes", nil, 1}, {"quittance_controller_lanes_busy", nil, 0},
		{"quittance_controller_breaker_open", []string{"kind", controllertest.OfferingKind}, 0},
		{"quittance_jobs_requests_total", []string{"operation", "complete", "code", ""}, 1},
		{"quittance_jobs_open", nil, 0},
	} {
		if got := c.value(want.name, want.labels...); got != want.value {
			t.Errorf("controller: %s%v is %v, want %v", want.name, want.labels, got, want.value)
		}
	}
	if c.value("quittance_controller_store_write_seconds") == 0 || len(c["quittance_jobs_open"].GetMetric()) == 0 {
		t.Error("controller: no write was timed, or open jobs have no series")
	}

	// I37: nothing that is said about a job says what is in it.
	for _, path := range []string{"/v1/jobs", "/v1/jobs/" + good, "/v1/jobs/" + good + "/receipts", "/v1/jobs/" + good + "/provenance", "/v1/jobs/" + bad, "/v1/jobs/" + bad + "/why"} {
		if found := s.Lab.Secrets.In(path, s.Read(path)); len(found) > 0 {
			t.Errorf("secret found: %v", found)
		}
	}
	for id, state := range map[string]api.JobState{good: api.JobFinished, bad: api.JobFailed} {
		if found := s.Lab.Secrets.In("the events of "+id, s.Events(id, state)); len(found) > 0 {
			t.Errorf("secret found: %v", found)
		}
	}
	if s.Lab.Secrets.Len() < 4 {
		t.Error("no secrets are registered: this test searches for nothing")
	}

	controller.Stop()
	if found := s.Lab.Secrets.In("store check", []byte(s.Command("store", "check"))); len(found) > 0 {
		t.Errorf("secret found: %v", found)
	}
	s.Lab.Stop()
	followed(t, good, logLines(t, controller.Log()), logLines(t, s.Lab.Log()))
}

// followed checks that a job can be followed through both logs by its id alone.
func followed(t *testing.T, id string, controller, agent []line) {
	t.Helper()
	var kinds []string
	for _, l := range agent {
		purpose := l.text("purpose")
		if _, numbered := l["number"]; numbered && !strings.Contains(purpose, ".job-") {
			t.Errorf("an agent's line of an allocation has no attempt's purpose: %v", l)
		}
		if strings.Contains(purpose, id) && l.text("@module") == "hostagent.receipts" {
			kinds = append(kinds, l.text("@message"))
		}
	}
	if got := strings.Join(kinds, " "); got != "accepted started exited retired consumed released" {
		t.Errorf("by its id the agent's log tells: %s", got)
	}
	events := map[string]bool{}
	for _, l := range controller {
		whole, err := json.Marshal(l)
		if err != nil {
			t.Fatal(err)
		}
		if bytes.Contains(whole, []byte(id)) {
			events[l.text("@message")+" "+l.text("operation")] = true
		}
		for _, key := range []string{"attempt", "key", "reference", "purpose"} {
			if v := l.text(key); v != "" && !bytes.Contains(whole, []byte("job-")) {
				t.Errorf("a line of an attempt has no job's id: %s", whole)
			}
		}
	}
	for _, want := range []string{
		"request_done createJob", "attempt begun ", "request_done start", "allocation settled ", "request_done complete",
		"outcome confirmed complete", "request_done receipts", "attempt archived ",
	} {
		if !events[want] {
			t.Errorf("the controller's log has no %q with the job's id; it has %v", want, events)
		}
	}
}

// A full pipe that nobody reads takes the logs of both daemons: jobs end all the
// same, and so do the processes.
func TestBlockedLogsBlockNoLane(t *testing.T) {
	s := kit.NewSite(t, controllertest.Options{})
	s.Lab.Stop()
	s.Lab.LogTo(fullPipe(t))
	s.Lab.Start()
	s.LogTo(fullPipe(t))
	controller := s.Serve()
	for _, text := range []string{"one", "two", "three"} {
		finished(t, s, s.Submit(text), text)
	}
	s.AwaitReleased()
	began := time.Now()
	controller.Stop()
	s.Lab.Stop()
	t.Logf("both ended within %s", time.Since(began))
}

// fullPipe is the writing end of a pipe that holds all that it can.
func fullPipe(t *testing.T) *os.File {
	t.Helper()
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := w.SetWriteDeadline(time.Now().Add(100 * time.Millisecond)); err != nil {
		t.Fatal(err)
	}
	for err == nil {
		_, err = w.Write(make([]byte, 4096))
	}
	t.Cleanup(func() {
		if err := r.Close(); err != nil {
			t.Error(err)
		}
		if err := w.Close(); err != nil {
			t.Error(err)
		}
	})
	return w
}
