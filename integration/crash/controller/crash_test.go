//go:build crash

package controller

import (
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/quittance/quittance/controller/api"
	"github.com/quittance/quittance/integration/controllertest"
	"github.com/quittance/quittance/protocol"
)

var kit *controllertest.Kit

func TestMain(m *testing.M) { os.Exit(controllertest.Main(m, "failpoints", &kit)) }

// I15, I26–I32, FR-27: one kill at each point.
func TestKillAtEveryPoint(t *testing.T) {
	for _, point := range life() {
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
			s.RestartAPI()
			compare(t, s, map[string]string{id: "one job"})
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
			s.RestartAPI()
			compare(t, s, map[string]string{id: "one job"})
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
	controller := s.Serve()
	audit(t, s, id, interrupted)
	controller.Stop()
	s.RestartAPI()
	compare(t, s, map[string]string{id: text})
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
	compare(t, s, map[string]string{id: "cancelled before its START", next: "the next job"})
}

// I15, I28, I32: killed as soon as a refusal for good is durable. An operator
// had put an older copy of the attempt store back, which failed the attempt; the
// newer one then finds the opposite outcome, and waits for a person.
func TestKillAfterTerminalHeld(t *testing.T) {
	s := kit.NewSite(t, controllertest.Options{})
	s.StartAPI()
	pending := s.StartWork("QUITTANCE_FAILPOINT=record.terminal_pending:kill")
	id := s.Submit("hold held")
	s.Eventually("the worker has begun", func() (bool, error) { return s.Executions() == 1, nil })
	attempts := filepath.Join(s.StateDir(), "attempts")
	older, newer := attempts+".older", attempts+".newer"
	copyTree(s, attempts, older)
	s.OpenGate()
	pending.AwaitExit()
	move(t, attempts, newer)
	move(t, older, attempts)
	restored := s.StartWork("QUITTANCE_FAILPOINT=record.terminal_confirmed:kill")
	restored.AwaitExit()
	if job := s.Job(id); job.State != api.JobFailed || job.Failure == nil || job.Failure.Code != api.FailInterrupted || !job.Failure.Entered {
		t.Fatalf("the older store made the job %s, failure %+v", job.State, job.Failure)
	}
	move(t, attempts, older)
	move(t, newer, attempts)
	held := s.StartWork("QUITTANCE_FAILPOINT=record.terminal_held:kill")
	held.AwaitExit()
	if !pending.Killed() || !restored.Killed() || !held.Killed() {
		t.Fatalf("killed at terminal_pending %v, terminal_confirmed %v, terminal_held %v:\n%s", pending.Killed(), restored.Killed(), held.Killed(), held.Log())
	}
	records := s.Records()
	if len(records) != 1 || records[0].State != "terminal_held" || records[0].Record.Reason != "opposite_outcome" || records[0].Record.Admission == nil {
		t.Fatalf("records after the kill: %+v", records)
	}
	s.Command("store", "resolve", records[0].Record.Origin.Key, "--reference", records[0].Record.Admission.Reference, "--note", "an older store was put back")
	work := s.StartWork()
	if next := s.Await(s.Submit("the next job")); next.State != api.JobFinished || len(next.Attempts) != 1 || s.Executions() != 2 {
		t.Fatalf("the next job is %s with %d attempts, %d executions in all", next.State, len(next.Attempts), s.Executions())
	}
	s.AwaitReleased()
	work.Stop()
	if report := s.Command("store", "check"); strings.Contains(report, "active ") || strings.Contains(report, "damage") {
		t.Fatalf("the store after the run:\n%s", report)
	}
}

// I15, I28: killed as soon as a suppressed outcome is durable. While the lanes
// could not reach the service, an operator handed their identity over, which
// failed the attempt; the answer that came meanwhile is kept and never sent.
func TestKillAfterSuppressed(t *testing.T) {
	s := kit.NewSite(t, controllertest.Options{Lossy: true})
	s.StartAPI()
	struck := s.StartWork("QUITTANCE_FAILPOINT=record.suppressed:kill")
	id := s.Submit("hold suppressed")
	s.AwaitExecutions(1)
	provider := s.Job(id).Attempts[0].Provider
	store := s.AwaitActive(protocol.StateStarted).Owner
	s.Proxy.Lose("/complete", 0) // loses none: counts them
	s.Proxy.Cut(true)
	s.Command("provider", "handover", provider, string(protocol.NewID()))
	s.OpenGate()
	before := s.Proxy.Refused()
	s.Eventually("the lanes look for the attempt in vain", func() (bool, error) { return s.Proxy.Refused() >= before+6, nil })
	s.Proxy.Cut(false)
	struck.AwaitExit()
	if records := s.Records(); !struck.Killed() || len(records) != 1 || records[0].State != "suppressed" {
		t.Fatalf("killed %v, records %+v:\n%s", struck.Killed(), records, struck.Log())
	}
	s.Command("provider", "handover", provider, string(store))
	work := s.StartWork()
	next := s.Submit("the next job")
	if job := s.Await(next); job.State != api.JobFinished || s.Executions() != 2 {
		t.Fatalf("the next job is %s, %d executions in all", job.State, s.Executions())
	}
	if job := s.Job(id); job.State != api.JobFailed || job.Failure == nil || job.Failure.Code != api.FailInterrupted || len(job.Attempts) != 1 {
		t.Fatalf("the job is %s with %d attempts, failure %+v", job.State, len(job.Attempts), job.Failure)
	}
	if sent := s.Proxy.Bodies("/complete"); len(sent) != 1 {
		t.Fatalf("%d results were sent, want only the next job's", len(sent))
	}
	s.AwaitReleased()
	work.Stop()
	compare(t, s, map[string]string{id: "hold suppressed", next: "the next job"})
}

// copyTree copies a folder with its owners, as an operator's backup does, and again
// where a file got another name meanwhile.
func copyTree(s *controllertest.Site, from, to string) {
	s.T.Helper()
	s.Eventually("the folder is copied", func() (bool, error) {
		if err := os.RemoveAll(to); err != nil {
			return false, err
		}
		out, err := exec.CommandContext(s.T.Context(), "cp", "-a", from, to).CombinedOutput()
		if err != nil {
			s.T.Logf("%v: %s", err, out)
		}
		return err == nil, nil
	})
}

func move(t *testing.T, from, to string) {
	t.Helper()
	if err := os.Rename(from, to); err != nil {
		t.Fatal(err)
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

// compare is the rest of an audit: of every job, by its input, the service and
// the store have the same attempts and the same terminal bytes, and the store is
// whole. The lanes are stopped, the service answers.
func compare(t *testing.T, s *controllertest.Site, texts map[string]string) {
	t.Helper()
	if report := s.Command("store", "check"); strings.Contains(report, "active ") || strings.Contains(report, "damage") {
		t.Fatalf("the store after the run:\n%s", report)
	}
	if l := s.Audit(texts); l.Confirmed == 0 {
		t.Errorf("no terminal bytes were compared: %s", l)
	}
}

// life is every point of a job whose first execution does not fail.
func life() []point {
	return slices.DeleteFunc(slices.Clone(points), func(p point) bool { return p.failing })
}
