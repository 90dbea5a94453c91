//go:build e2e

package e2e

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/quittance/quittance/controller/api"
	"github.com/quittance/quittance/integration/controllertest"
	"github.com/quittance/quittance/protocol"
)

// I9, I26–I32: the node loses its ledger under a running job, or gets an older
// copy of it that does not know the job's number. Its operator abandons the
// generation; the controller ends the attempt with unknown facts, executes
// nothing twice, and goes on in the new generation by itself.
func TestGenerationAbandonedUnderAJob(t *testing.T) {
	ledgerOf := func(s *controllertest.Site) string { return filepath.Join(s.Lab.StateDir(), "ledger") }
	for what, lose := range map[string]func(t *testing.T, s *controllertest.Site, older string){
		"the ledger is gone": func(t *testing.T, s *controllertest.Site, _ string) {
			if err := os.RemoveAll(ledgerOf(s)); err != nil {
				t.Fatal(err)
			}
		},
		"an older ledger is restored": func(t *testing.T, s *controllertest.Site, older string) {
			if err := os.RemoveAll(ledgerOf(s)); err != nil {
				t.Fatal(err)
			}
			if err := os.CopyFS(ledgerOf(s), os.DirFS(older)); err != nil {
				t.Fatal(err)
			}
			s.Lab.Start()
			refusedAsBehind(t, s)
			s.Lab.Stop()
		},
	} {
		t.Run(what, func(t *testing.T) { abandonedUnderAJob(t, lose) })
	}
}

// refusedAsBehind shows that under the older ledger nothing is accepted and
// nothing is touched, and that the refusal says how to go on.
func refusedAsBehind(t *testing.T, s *controllertest.Site) {
	t.Helper()
	_, err := s.Lab.Operator().In(s.Lab.Generation).Retire(t.Context(), 2, protocol.RetireRequest{Purpose: "another"}, 0)
	if problem, ok := errors.AsType[*protocol.Problem](err); !ok || problem.Code != protocol.CodeLedgerBehind ||
		!strings.Contains(problem.Detail, "ledger abandon "+string(s.Lab.Generation)) {
		t.Errorf("number 2 under an older ledger: %v", err)
	}
	if host, err := s.Lab.Operator().Host(t.Context()); err != nil || host.Frontiers.Accepted != 1 {
		t.Errorf("the older ledger: %+v, %v", host.Frontiers, err)
	}
	if left := strings.Join(s.Lab.Leftovers(), "\n"); strings.Count(left, "task q-") != 1 {
		t.Errorf("the unknown container was touched:\n%s", left)
	}
}

func abandonedUnderAJob(t *testing.T, lose func(t *testing.T, s *controllertest.Site, older string)) {
	s := kit.NewSite(t, controllertest.Options{})
	s.Serve()
	finished(t, s, s.Submit("before"), "before")
	older := filepath.Join(t.TempDir(), "older")
	s.Lab.Command("ledger", "backup", older)
	lost := s.Submit("hold abandon")
	s.AwaitExecutions(2)
	s.Lab.Kill()
	old := s.Lab.Generation
	lose(t, s, older)
	abandon(s)
	s.Lab.Start()
	var job api.Job
	s.Eventually("the lost job has ended", func() (bool, error) { // without receipts: they went with the ledger
		job = s.Job(lost)
		return job.State.Terminal(), nil
	})
	if job.State != api.JobFailed || len(job.Attempts) != 1 || job.Failure == nil {
		t.Fatalf("job is %s with %d attempts, failure %+v", job.State, len(job.Attempts), job.Failure)
	}
	if code := job.Failure.Code; code != api.FailWorkerLost && code != api.FailInterrupted {
		t.Errorf("failure %+v", job.Failure)
	}
	executions := job.Attempts[0].Executions
	if len(executions) != 1 || executions[0].Generation != old || !executions[0].Entered || executions[0].Exit != nil ||
		executions[0].OOM != nil && executions[0].OOM.Verdict != protocol.VerdictUnknown {
		t.Errorf("executions %+v", executions)
	}
	if n := s.Executions(); n != 2 {
		t.Errorf("%d executions, want one of each job", n)
	}
	next := s.Submit("after")
	finished(t, s, next, "after")
	s.VerifyReceipts(next)
	host := s.AwaitReleased()
	if host.Generation != s.Lab.Generation || host.Frontiers.Accepted != 1 {
		t.Errorf("host %s with frontiers %+v", host.Generation, host.Frontiers)
	}
}

// abandon begins a new generation on a stopped agent.
func abandon(s *controllertest.Site) {
	for line := range strings.Lines(s.Lab.Command("ledger", "abandon", string(s.Lab.Generation))) {
		if text, ok := strings.CutPrefix(line, "generation"); ok {
			s.Lab.Generation = protocol.ID(strings.TrimSpace(text))
		} else if text, ok := strings.CutPrefix(line, "host key"); ok {
			s.Lab.HostKey = strings.TrimSpace(text)
		}
	}
}

// I9: the node's ledger is an older copy. The controller, which has seen more,
// has no number handed out by it and says why; once the newest one is back,
// work goes on by itself.
func TestOlderLedgerUnderAController(t *testing.T) {
	s := kit.NewSite(t, controllertest.Options{})
	controller := s.Serve()
	finished(t, s, s.Submit("one"), "one")
	s.AwaitReleased()
	ledger, aside, backup := filepath.Join(s.Lab.StateDir(), "ledger"), filepath.Join(s.Lab.StateDir(), "newest"), filepath.Join(t.TempDir(), "backup")
	s.Lab.Command("ledger", "backup", backup)
	finished(t, s, s.Submit("two"), "two")
	s.AwaitReleased()

	s.Lab.Kill()
	if err := os.Rename(ledger, aside); err != nil {
		t.Fatal(err)
	}
	if err := os.CopyFS(ledger, os.DirFS(backup)); err != nil {
		t.Fatal(err)
	}
	s.Lab.Start()
	id := s.Submit("three")
	s.Eventually("the controller says why it takes nothing", func() (bool, error) {
		return strings.Contains(controller.Log(), "ledger is behind what was seen"), nil
	})
	host, err := s.Lab.Operator().Host(t.Context())
	if err != nil || host.Frontiers.Accepted != 1 || s.Executions() != 2 {
		t.Fatalf("accepted %d, %d executions, %v", host.Frontiers.Accepted, s.Executions(), err)
	}

	s.Lab.Kill()
	if err := os.RemoveAll(ledger); err != nil {
		t.Fatal(err)
	}
	if err := os.Rename(aside, ledger); err != nil {
		t.Fatal(err)
	}
	s.Lab.Start()
	finished(t, s, id, "three")
	if n := s.Executions(); n != 3 {
		t.Errorf("%d executions, want 3", n)
	}
	if host := s.AwaitReleased(); host.Frontiers.Accepted != 3 {
		t.Errorf("%d numbers were used, want 3", host.Frontiers.Accepted)
	}
}
