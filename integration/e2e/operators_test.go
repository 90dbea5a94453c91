//go:build e2e

package e2e

import (
	"path/filepath"
	"strings"
	"testing"

	"github.com/quittance/quittance/controller/api"
	"github.com/quittance/quittance/controller/api/operator"
	"github.com/quittance/quittance/integration/controllertest"
)

const holdingOffering = `kind       = "test-holding.v1"
profile    = "test"
adapter    = "http"
on_restart = "hold"
[input]
content_type = "text/plain"
from         = "job"
[request]
path    = "/predict"
timeout = "1m"
[response]
content_type = "application/json"
max          = "64KiB"
`

// operators is the client of the controller's operators' socket, as root.
func operators(s *controllertest.Site) *operator.Client {
	return operator.New(filepath.Join(s.StateDir(), "admin.sock"))
}

// I27, I32: the controller is killed inside an execution whose offering says
// hold. Its lane waits for a person, other lanes go on; what is lost is said;
// resume ends the attempt as interrupted and nothing runs again.
func TestOperatorResumesAHold(t *testing.T) {
	s := kit.NewSite(t, controllertest.Options{Lanes: 2})
	s.Offering("holding", holdingOffering)
	controller := s.Serve()
	text := "hold person"
	id := s.Create(api.CreateJob{Kind: "test-holding.v1", Input: &api.CreateData{Text: &text}})
	s.AwaitExecutions(1)
	controller.Kill()
	controller = s.Serve()
	admin := operators(s)
	var held operator.Attempt
	s.Eventually("the attempt waits for a person", func() (bool, error) {
		list, err := admin.List(t.Context())
		if err != nil {
			return false, nil // it is starting
		}
		for _, a := range list.Attempts {
			if a.Job == id && a.Waiting != nil && len(a.Waiting.Offers) == 2 {
				held = a
			}
		}
		return held.Key != "", nil
	})
	if held.State != "acknowledged" || !held.HoldsLane || held.Waiting.Offers[0].Lost == "" {
		t.Fatalf("%+v", held)
	}
	if record, err := admin.Record(t.Context(), held.Key); err != nil || !strings.Contains(string(record), held.Reference) {
		t.Fatalf("%s, %v", record, err)
	}
	s.Eventually("it is decided", func() (bool, error) {
		// Between two tries nobody waits for a decision.
		_, err := admin.Resume(t.Context(), held.Key)
		return err == nil, nil
	})
	job := s.Await(id)
	if job.State != api.JobFailed || job.Failure.Code != api.FailInterrupted || !job.Failure.Entered || len(job.Attempts) != 1 {
		t.Fatalf("job is %s, failure %+v", job.State, job.Failure)
	}
	s.OpenGate()
	finished(t, s, s.Submit("goes on"), "goes on")
	if n := s.Executions(); n != 2 {
		t.Fatalf("%d executions, want 2", n)
	}
	s.AwaitReleased()
	controller.Stop()
}

// controller drain: what runs finishes, nothing new is taken, the service goes
// on and the process stays until it is stopped.
func TestDrainByCommand(t *testing.T) {
	s := kit.NewSite(t, controllertest.Options{})
	controller := s.Serve()
	first := s.Submit("hold drain")
	s.AwaitExecutions(1)
	s.Flag("--admin-socket", filepath.Join(s.StateDir(), "admin.sock"))
	if said := s.Command("drain"); said != "draining; 1 attempts are not resolved\n" {
		t.Fatalf("drain said %q", said)
	}
	second := s.Submit("after the drain")
	s.OpenGate()
	finished(t, s, first, "hold drain")
	s.Eventually("the lanes are done", func() (bool, error) { return strings.Contains(controller.Log(), "drained: nothing is in flight"), nil })
	if job := s.Job(second); job.State != api.JobOpen || len(job.Attempts) != 0 {
		t.Fatalf("a drained controller took job %s: %+v", second, job.Attempts)
	}
	controller.Stop()
	s.Serve()
	finished(t, s, second, "after the drain")
}
