//go:build crash

package controller

import (
	"os"
	"strings"
	"testing"

	"github.com/quittance/quittance/controller/api"
	"github.com/quittance/quittance/integration/controllertest"
)

var kit *controllertest.Kit

func TestMain(m *testing.M) { os.Exit(controllertest.Main(m, "failpoints", &kit)) }

// end is how the job must have ended after the restart.
type end string

const (
	// again: nothing was executed; the service reopened the job, a second
	// attempt answered it.
	again end = "again"
	// once: the first attempt answered it.
	once end = "once"
	// interrupted: execution was entered, so nothing may run it again.
	interrupted end = "interrupted"
)

// points lists every failpoint of the controller with its end.
var points = []struct {
	name string
	end  end
	ran  int // executions that begin before the kill
}{
	{"record.start_pending", again, 0},
	{"starter.sending", again, 0},
	{"starter.sent", again, 0},
	{"record.acknowledged", again, 0},
	{"executor.proposed", again, 0},
	{"executor.allocated", again, 0},
	{"executor.entered", interrupted, 0},
	{"executor.answered", interrupted, 1},
	{"executor.outcome", interrupted, 1},
	{"record.terminal_pending", once, 1},
	{"retirement.asked", once, 1},
	{"retirement.retired", once, 1},
	{"retirement.consumed", once, 1},
	{"retirement.saved", once, 1},
	{"publisher.sent", once, 1},
	{"record.terminal_confirmed", once, 1},
	{"maintenance.archived", once, 1},
	{"maintenance.released", once, 1},
}

// I15, I26–I32, FR-27: one kill at each point.
func TestKillAtEveryPoint(t *testing.T) {
	for _, point := range points {
		t.Run(point.name, func(t *testing.T) {
			s := kit.NewSite(t, controllertest.Options{})
			struck := s.Serve("QUITTANCE_FAILPOINT=" + point.name + ":kill")
			id := s.Submit("one job")
			struck.AwaitExit()
			if !struck.Killed() {
				t.Fatalf("the controller was not killed at its failpoint:\n%s", struck.Log())
			}
			if n := s.Executions(); n != point.ran {
				t.Fatalf("%d executions before the kill, want %d", n, point.ran)
			}
			controller := s.Serve()
			audit(t, s, id, point.end)
			controller.Stop()
			if report := s.Command("store", "check"); strings.Contains(report, "active ") || strings.Contains(report, "damage") {
				t.Fatalf("the store after the run:\n%s", report)
			}
		})
	}
}

// agentPoints are the host agent's failpoints under a running controller. At
// those before the start is durable the agent retires what it finds and the job
// is tried again; at the others the first attempt answers.
var agentPoints = []struct {
	name string
	end  end
}{
	{"accepted", again}, {"before-create", again}, {"after-create", again}, {"between-create-run", again}, {"after-run", once},
	{"started", once}, {"retire-intended", once}, {"before-exited", once}, {"exited", once}, {"task-removed", once},
	{"container-removed", once}, {"removed", once}, {"retired", once}, {"consumed", once},
	{"release-base-synced", once}, {"release-removed-one", once}, {"released", once},
}

// FR-12, FR-15, FR-27: the agent is killed at each of its points while a
// controller runs a job; the controller notices nothing but a pause.
func TestAgentKilledUnderController(t *testing.T) {
	for _, point := range agentPoints {
		t.Run(point.name, func(t *testing.T) {
			s := kit.NewSite(t, controllertest.Options{Agent: []string{"QUITTANCE_FAILPOINT=" + point.name + ":kill"}})
			controller := s.Serve()
			id := s.Submit("one job")
			s.Lab.AwaitExit()
			s.Lab.Start()
			audit(t, s, id, point.end)
			controller.Stop()
		})
	}
}

// I27: killed between the first execution, which failed and was consumed, and
// its replacement: nothing runs again.
func TestKillBeforeReplacement(t *testing.T) {
	s := kit.NewSite(t, controllertest.Options{})
	struck := s.Serve("QUITTANCE_FAILPOINT=lane.replacement:kill")
	text := "exitonce 3"
	id := s.Create(api.CreateJob{Kind: "test-pure.v1", Input: &api.CreateData{Text: &text}})
	struck.AwaitExit()
	if !struck.Killed() || s.Executions() != 1 {
		t.Fatalf("killed %v after %d executions", struck.Killed(), s.Executions())
	}
	s.Serve()
	audit(t, s, id, interrupted)
}

// I15: killed as soon as an attempt's end without any effect is durable: the
// job was cancelled before its START was sent.
func TestKillAfterEnded(t *testing.T) {
	s := kit.NewSite(t, controllertest.Options{})
	s.StartAPI()
	begun := s.StartWork("QUITTANCE_FAILPOINT=record.start_pending:kill")
	id := s.Submit("cancelled before its START")
	begun.AwaitExit()
	s.Cancel(id)
	ended := s.StartWork("QUITTANCE_FAILPOINT=record.ended:kill")
	ended.AwaitExit()
	if !begun.Killed() || !ended.Killed() {
		t.Fatalf("killed at start_pending %v, at ended %v:\n%s", begun.Killed(), ended.Killed(), ended.Log())
	}
	work := s.StartWork()
	next := s.Submit("the next job")
	audit(t, s, next, once)
	if job := s.Job(id); job.State != api.JobCancelled || len(job.Attempts) != 0 {
		t.Fatalf("job is %s with %d attempts, want cancelled with none", job.State, len(job.Attempts))
	}
	work.Stop()
	if report := s.Command("store", "check"); strings.Contains(report, "active ") || strings.Contains(report, "damage") {
		t.Fatalf("the store after the run:\n%s", report)
	}
}

func audit(t *testing.T, s *controllertest.Site, id string, want end) {
	t.Helper()
	job := s.Await(id)
	executions := s.Executions()
	switch want {
	case again:
		if job.State != api.JobFinished || len(job.Attempts) != 2 || job.Reopens != 1 || executions != 1 {
			t.Fatalf("job is %s with %d attempts, %d reopens, %d executions; want finished by the second attempt after one reopening", job.State, len(job.Attempts), job.Reopens, executions)
		}
	case once:
		if job.State != api.JobFinished || len(job.Attempts) != 1 || executions != 1 {
			t.Fatalf("job is %s with %d attempts, %d executions; want finished by the first", job.State, len(job.Attempts), executions)
		}
	case interrupted:
		if job.State != api.JobFailed || len(job.Attempts) != 1 || job.Failure == nil || job.Failure.Code != api.FailInterrupted || !job.Failure.Entered || executions > 1 {
			t.Fatalf("job is %s with %d attempts, failure %+v, %d executions; want interrupted, entered", job.State, len(job.Attempts), job.Failure, executions)
		}
	}
	s.VerifyReceipts(job.Job)
	s.AwaitReleased()
}
