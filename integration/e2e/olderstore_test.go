//go:build e2e

package e2e

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/quittance/quittance/controller/api"
	"github.com/quittance/quittance/controller/api/operator"
	"github.com/quittance/quittance/integration/controllertest"
	"github.com/quittance/quittance/protocol"
)

// I9, I25, I27: an older copy of the attempt store, made in the middle of an
// execution, is put back after the agent released history beyond it. Nothing is
// admitted and the way on is named; what is lost is said before it is done.
// After it jobs go through again, each executed once, the one that the copy
// holds as running too, and what the copy announces counts at the service
// although it was opened less often than the newer one.
func TestOlderAttemptStore(t *testing.T) {
	s := kit.NewSite(t, controllertest.Options{})
	controller := s.Serve()
	one := s.Submit("hold one")
	s.AwaitExecutions(1)
	attempts, copied := filepath.Join(s.StateDir(), "attempts"), filepath.Join(t.TempDir(), "copy")
	s.Eventually("the attempt store is copied", func() (bool, error) {
		if err := os.RemoveAll(copied); err != nil {
			return false, err
		}
		err := os.CopyFS(copied, os.DirFS(attempts))
		if errors.Is(err, fs.ErrNotExist) {
			return false, nil // it was written meanwhile: a file has another name now
		}
		return err == nil, err
	})
	s.OpenGate()
	finished(t, s, one, "hold one")
	s.AwaitReleased()
	controller.Stop()
	for _, text := range []string{"two", "three"} { // each in a process of its own
		controller = s.Serve()
		finished(t, s, s.Submit(text), text)
		s.AwaitReleased()
		controller.Stop()
	}

	restore(t, copied, attempts)
	s.Offering("late", strings.Replace(holdingOffering, "test-holding.v1", "test-late.v1", 1))
	controller = s.Serve()
	s.Eventually("the controller says why it takes nothing", func() (bool, error) {
		return strings.Contains(controller.Log(), "an older copy was put back"), nil
	})
	s.Eventually("the operator is told the way on", func() (bool, error) {
		list, err := operators(s).List(t.Context())
		return err == nil && strings.Contains(list.Blocked, "controller store forget "+string(s.Lab.Generation)), nil
	})
	waiting := s.Submit("four")
	text := "five" // of a kind that only this copy announces
	late := s.Create(api.CreateJob{Kind: "test-late.v1", Input: &api.CreateData{Text: &text}})
	if !strings.Contains(controller.Log(), "newer announcement of this attempt store") {
		t.Errorf("the service's newer announcement was not noticed:\n%s", controller.Log())
	}
	controller.Stop()
	if job := s.Executions(); job != 3 {
		t.Fatalf("%d executions, want 3", job)
	}

	generation := string(s.Lab.Generation)
	said, err := s.Try("store", "forget", generation)
	if err == nil || !strings.HasPrefix(said, "Lost: ") || !strings.Contains(said, generation) {
		t.Fatalf("forget said %q, %v", said, err)
	}
	if again := s.Command("store", "forget", generation, "--yes"); again != said {
		t.Fatalf("forget --yes said %q", again)
	}
	controller = s.Serve()
	finished(t, s, waiting, "four")
	finished(t, s, late, "five")
	finished(t, s, one, "hold one")
	if n := s.Executions(); n != 5 {
		t.Fatalf("%d executions, want 5", n)
	}
	if host := s.AwaitReleased(); host.Frontiers.Accepted != 5 {
		t.Fatalf("%d numbers were used, want 5", host.Frontiers.Accepted)
	}
	controller.Stop()
	if report := s.Command("store", "check"); strings.Contains(report, "active ") {
		t.Fatalf("the copy's attempt is not resolved:\n%s", report)
	}
}

// restore puts a copy back as the controller's user had it.
func restore(t *testing.T, from, to string) {
	t.Helper()
	if err := os.RemoveAll(to); err != nil {
		t.Fatal(err)
	}
	if err := os.CopyFS(to, os.DirFS(from)); err != nil {
		t.Fatal(err)
	}
	err := filepath.Walk(to, func(path string, info os.FileInfo, err error) error {
		if err != nil {
			return err
		}
		mode := os.FileMode(0o600)
		if info.IsDir() {
			mode = 0o700
		}
		if err := os.Chmod(path, mode); err != nil {
			return err
		}
		return os.Chown(path, controllertest.UID, controllertest.GID)
	})
	if err != nil {
		t.Fatal(err)
	}
}

// I16, I32: the node's state is lost twice in a row, so that nothing it still
// has proves the first generation's containers gone. The attempt of that
// generation is listed with its remedy; an operator who made sure resolves it,
// it ends as interrupted, and the lane goes on.
func TestOperatorResolvesAnUnprovedGeneration(t *testing.T) {
	s := kit.NewSite(t, controllertest.Options{})
	controller := s.Serve()
	lost := s.Submit("hold twice")
	s.AwaitExecutions(1)
	controller.Kill()
	s.Lab.Kill()
	for range 2 {
		if err := os.RemoveAll(filepath.Join(s.Lab.StateDir(), "ledger")); err != nil {
			t.Fatal(err)
		}
		abandon(s)
	}
	s.Lab.Start()
	controller = s.Serve()
	admin := operators(s)
	var held operator.Attempt
	s.Eventually("the attempt is listed with its remedy", func() (bool, error) {
		list, err := admin.List(t.Context())
		if err != nil {
			return false, nil // it is starting
		}
		for _, a := range list.Attempts {
			if a.Job == lost && a.Waiting != nil && len(a.Waiting.Offers) == 2 {
				held = a
			}
		}
		return held.Key != "", nil
	})
	if held.Waiting.Offers[1].Action != "resolve" || held.Waiting.Offers[1].Lost == "" || !strings.Contains(held.Waiting.Reason, "agentctl attempts resolve") {
		t.Fatalf("%+v", held.Waiting)
	}
	s.Eventually("it is decided", func() (bool, error) {
		_, err := admin.Resolve(t.Context(), held.Key, operator.Resolve{Reference: held.Reference, Note: "leftovers shows none"})
		return err == nil, nil // between two tries nobody waits for a decision
	})
	var job api.Job
	s.Eventually("the job has ended", func() (bool, error) { // without receipts: they went with the ledger
		job = s.Job(lost)
		return job.State.Terminal(), nil
	})
	if job.State != api.JobFailed || job.Failure.Code != api.FailInterrupted || !job.Failure.Entered {
		t.Fatalf("job is %s, failure %+v", job.State, job.Failure)
	}
	finished(t, s, s.Submit("after"), "after")
	if n := s.Executions(); n != 2 {
		t.Fatalf("%d executions, want 2", n)
	}
	if host := s.AwaitReleased(); host.Frontiers.Accepted != protocol.Number(1) {
		t.Errorf("frontiers %+v", host.Frontiers)
	}
	controller.Stop()
}
