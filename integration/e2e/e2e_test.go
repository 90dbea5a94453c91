//go:build e2e

package e2e

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"testing"

	"github.com/quittance/quittance/controller/api"
	"github.com/quittance/quittance/integration/controllertest"
	"github.com/quittance/quittance/protocol"
)

var kit *controllertest.Kit

func TestMain(m *testing.M) { os.Exit(controllertest.Main(m, "", &kit)) }

func answerTo(text string) string {
	sum := sha256.Sum256([]byte(text))
	return fmt.Sprintf(`{"length":%d,"sha256":"%s"}`, len(text), hex.EncodeToString(sum[:]))
}

func finished(t *testing.T, s *controllertest.Site, id, text string) api.Job {
	t.Helper()
	job := s.Await(id)
	if job.State != api.JobFinished || len(job.Attempts) != 1 {
		t.Fatalf("job is %s with %d attempts, failure %+v", job.State, len(job.Attempts), job.Failure)
	}
	if got := string(s.Result(id)); got != answerTo(text) {
		t.Fatalf("result %s, want %s", got, answerTo(text))
	}
	return job
}

// The main path: a user's job goes through a real container as another user
// without access to the engine, and everything is proved and released.
func TestJobEndToEnd(t *testing.T) {
	s := kit.NewSite(t, controllertest.Options{})
	controller := s.Serve()
	id := s.Submit("hello")
	job := finished(t, s, id, "hello")
	if n := s.Executions(); n != 1 {
		t.Fatalf("%d executions, want 1", n)
	}
	a := job.Attempts[0]
	if len(a.Executions) != 1 || !a.Executions[0].Entered || a.Executions[0].Number != 1 || a.Executions[0].OOM.Verdict != protocol.VerdictNotKilled {
		t.Fatalf("%+v", a.Executions)
	}
	s.VerifyReceipts(id)
	if a.Receipts.Verified != 0 {
		t.Fatal("receipts are shown as verified although nobody registered the host key")
	}
	s.Command("hostkey", "add", s.Lab.HostKey)
	if counts := s.Job(id).Attempts[0].Receipts; counts.Verified != counts.Total {
		t.Fatalf("%d of %d receipts are verified once the host key is registered", counts.Verified, counts.Total)
	}
	s.AwaitReleased()
	controller.Stop()
	if report := s.Command("store", "check"); strings.Contains(report, "active ") {
		t.Fatalf("a stopped controller holds attempts:\n%s", report)
	}
}

// I1: the controller's user cannot open the engine's socket, and its binary
// contains no engine client.
func TestControllerHasNoEngine(t *testing.T) {
	s := kit.NewSite(t, controllertest.Options{})
	get := exec.Command(s.Lab.Worker(), "get", s.Lab.Engine.Address(), "/")
	get.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: controllertest.UID, Gid: controllertest.GID}}
	out, err := get.CombinedOutput()
	if err == nil || !bytes.Contains(out, []byte("permission denied")) {
		t.Fatalf("as the controller's user: %v, %s", err, out)
	}
	for _, path := range []string{s.Lab.StateDir(), s.Lab.Engine.Dir() + "/root"} {
		list := exec.Command("ls", path)
		list.SysProcAttr = get.SysProcAttr
		if out, err := list.CombinedOutput(); err == nil {
			t.Errorf("the controller's user reads %s:\n%s", path, out)
		}
	}
	modules, err := exec.Command("go", "version", "-m", kit.Controller()).Output()
	if err != nil {
		t.Fatal(err)
	}
	if !bytes.Contains(modules, []byte("cmd/controller")) || bytes.Contains(modules, []byte("containerd/containerd")) {
		t.Fatalf("modules of the controller:\n%s", modules)
	}
}

func TestUploadEndToEnd(t *testing.T) {
	s := kit.NewSite(t, controllertest.Options{})
	s.Serve()
	text := strings.Repeat("an upload that is longer than one buffer ", 20_000)
	id := s.Create(api.CreateJob{Kind: "test-upload.v1", Uploads: []string{s.Upload("text/plain", []byte(text))}})
	finished(t, s, id, text)
	left, err := os.ReadDir(s.StateDir() + "/inputs")
	if err != nil {
		t.Fatal(err)
	}
	s.AwaitReleased()
	if len(left) != 0 {
		// The file goes once the allocation is retired, which the receipts show.
		s.Eventually("the private file is gone", func() (bool, error) {
			left, err := os.ReadDir(s.StateDir() + "/inputs")
			return len(left) == 0, err
		})
	}
}

// FR-26, FR-27, I26: START is answered three times, the lanes hear it once; the
// same bytes each time, one attempt, one execution.
func TestStartRepliesLost(t *testing.T) {
	s := kit.NewSite(t, controllertest.Options{Lossy: true})
	s.StartAPI()
	s.Proxy.Lose("/attempts", 2)
	s.StartWork()
	id := s.Submit("start lost")
	finished(t, s, id, "start lost")
	sameBytes(t, s.Proxy.Bodies("/attempts"), 3)
	if n := s.Executions(); n != 1 {
		t.Fatalf("%d executions, want 1", n)
	}
	s.VerifyReceipts(id)
	s.AwaitReleased()
}

// FR-27, I26, I29: COMPLETE is committed at the first send, its reply lost
// twice; the same bytes are confirmed by a matching receipt.
func TestCompleteRepliesLost(t *testing.T) {
	s := kit.NewSite(t, controllertest.Options{Lossy: true})
	s.StartAPI()
	s.Proxy.Lose("/complete", 2)
	s.StartWork()
	id := s.Submit("complete lost")
	finished(t, s, id, "complete lost")
	s.AwaitReleased()
	sameBytes(t, s.Proxy.Bodies("/complete"), 3)
	if n := s.Executions(); n != 1 {
		t.Fatalf("%d executions, want 1", n)
	}
}

func sameBytes(t *testing.T, bodies [][]byte, want int) {
	t.Helper()
	if len(bodies) != want {
		t.Fatalf("%d requests, want %d", len(bodies), want)
	}
	for _, b := range bodies {
		if !bytes.Equal(b, bodies[0]) {
			t.Fatal("a repeated request has other bytes")
		}
	}
}

// FR-15: the agent is killed while the worker computes and comes back; the
// channel lives on, the job succeeds, one container was created.
func TestAgentKilledDuringRun(t *testing.T) {
	s := kit.NewSite(t, controllertest.Options{})
	s.Serve()
	id := s.Submit("hold agent")
	s.AwaitExecutions(1)
	s.Lab.Kill()
	s.Lab.Start()
	s.OpenGate()
	finished(t, s, id, "hold agent")
	if n := s.Executions(); n != 1 {
		t.Fatalf("%d executions, want 1", n)
	}
	s.VerifyReceipts(id)
	if host := s.AwaitReleased(); host.Frontiers.Accepted != 1 {
		t.Fatalf("%d numbers were used, want 1", host.Frontiers.Accepted)
	}
}

// A kill by the kernel inside the allocation fails the job for exactly that
// reason, with the counters and the peak.
func TestKernelKillFailsJob(t *testing.T) {
	s := kit.NewSite(t, controllertest.Options{})
	s.Serve()
	id := s.Submit("eat 200")
	job := s.Await(id)
	if job.State != api.JobFailed || job.Failure == nil || job.Failure.Code != api.FailWorkerOOM || !job.Failure.Entered {
		t.Fatalf("job is %s, failure %+v", job.State, job.Failure)
	}
	e := job.Attempts[0].Executions[0]
	if e.OOM.Verdict != protocol.VerdictKilled || e.OOM.Scope == nil || *e.OOM.Scope != protocol.ScopeContainer ||
		e.OOM.Counters.OOMKill == nil || *e.OOM.Counters.OOMKill < 1 || e.Peaks.MemoryBytes == nil || *e.Peaks.MemoryBytes < 60<<20 {
		t.Fatalf("facts %+v %+v", e.OOM, e.Peaks)
	}
	s.VerifyReceipts(id)
	s.AwaitReleased()
}

// Story: real OOM and one replacement. The kernel kills the first execution; the
// identical request succeeds on the second allocation, which was accepted only
// after the first was consumed (FR-30, I27).
func TestKernelKillAndOneReplacement(t *testing.T) {
	s := kit.NewSite(t, controllertest.Options{})
	s.Serve()
	text := "eatonce 200"
	job := finished(t, s, s.Create(api.CreateJob{Kind: "test-pure.v1", Input: &api.CreateData{Text: &text}}), text)
	e := job.Attempts[0].Executions
	if len(e) != 2 || !e[0].Entered || !e[1].Entered || e[0].OOM.Verdict != protocol.VerdictKilled || e[1].OOM.Verdict != protocol.VerdictNotKilled {
		t.Fatalf("executions %+v", e)
	}
	if n := s.Executions(); n != 2 {
		t.Fatalf("%d executions, want 2", n)
	}
	var consumed, accepted protocol.Index
	for _, r := range s.Receipts(job.Job) {
		switch {
		case r.Number == e[0].Number && r.Kind == protocol.KindConsumed:
			consumed = r.Index
		case r.Number == e[1].Number && r.Kind == protocol.KindAccepted:
			accepted = r.Index
		}
	}
	if consumed == 0 || accepted <= consumed {
		t.Fatalf("the second was accepted at %d, the first consumed at %d", accepted, consumed)
	}
	s.VerifyReceipts(job.Job)
	s.AwaitReleased()
}

// FR-30: at most one replacement; the second kill ends the job.
func TestKernelKillsTwice(t *testing.T) {
	s := kit.NewSite(t, controllertest.Options{})
	s.Serve()
	text := "eat 200"
	job := s.Await(s.Create(api.CreateJob{Kind: "test-pure.v1", Input: &api.CreateData{Text: &text}}))
	if job.State != api.JobFailed || job.Failure.Code != api.FailWorkerOOM || len(job.Attempts) != 1 || len(job.Attempts[0].Executions) != 2 {
		t.Fatalf("job is %s, failure %+v, attempts %+v", job.State, job.Failure, job.Attempts)
	}
	if n := s.Executions(); n != 2 {
		t.Fatalf("%d executions, want 2", n)
	}
	s.AwaitReleased()
}

// FR-04: a worker that ends by itself, even with 137, was not killed for memory.
func TestWorkerLost(t *testing.T) {
	s := kit.NewSite(t, controllertest.Options{})
	s.Serve()
	job := s.Await(s.Submit("exit 137"))
	if job.State != api.JobFailed || job.Failure.Code != api.FailWorkerLost {
		t.Fatalf("job is %s, failure %+v", job.State, job.Failure)
	}
	if e := job.Attempts[0].Executions[0]; e.OOM.Verdict != protocol.VerdictNotKilled || e.Exit == nil || e.Exit.Code == nil || *e.Exit.Code != 137 {
		t.Fatalf("facts %+v %+v", e.Exit, e.OOM)
	}
	s.AwaitReleased()
}

func TestWorkerRefuses(t *testing.T) {
	s := kit.NewSite(t, controllertest.Options{})
	s.Serve()
	job := s.Await(s.Submit("refuse"))
	if job.State != api.JobFailed || job.Failure.Code != api.FailWorkerFailed {
		t.Fatalf("job is %s, failure %+v", job.State, job.Failure)
	}
	s.AwaitReleased()
}

// A user's cancel stops the worker, ends the attempt as cancelled and frees the
// lane for the next job without a person.
func TestCancelDuringRun(t *testing.T) {
	s := kit.NewSite(t, controllertest.Options{})
	s.Serve()
	id := s.Submit("hold cancel")
	s.AwaitExecutions(1)
	s.Cancel(id)
	job := s.Await(id)
	if job.State != api.JobCancelled || job.Result != nil || job.Attempts[0].Failure == nil || job.Attempts[0].Failure.Code != api.FailCancelled {
		t.Fatalf("job is %s, attempt %+v", job.State, job.Attempts[0])
	}
	s.AwaitReleased()
	finished(t, s, s.Submit("next"), "next")
}

// systemctl stop finishes what runs and takes nothing new.
func TestDrainFinishesWhatRuns(t *testing.T) {
	s := kit.NewSite(t, controllertest.Options{Lossy: true})
	s.StartAPI()
	lanes := s.StartWork()
	first := s.Submit("hold drain")
	s.AwaitExecutions(1)
	lanes.Signal(syscall.SIGTERM)
	s.Eventually("the stop is noticed", func() (bool, error) { return strings.Contains(lanes.Log(), "nothing new is taken"), nil })
	second := s.Submit("after the stop")
	s.OpenGate()
	lanes.AwaitExit()
	finished(t, s, first, "hold drain")
	if job := s.Job(second); job.State != api.JobOpen || len(job.Attempts) != 0 {
		t.Fatalf("a stopping controller took job %s: %+v", second, job.Attempts)
	}
	s.StartWork()
	finished(t, s, second, "after the stop")
}

// The same where service and lanes are one process: the service outlives the
// signal until the lanes are done.
func TestDrainOfServe(t *testing.T) {
	s := kit.NewSite(t, controllertest.Options{})
	controller := s.Serve()
	id := s.Submit("hold serve")
	s.AwaitExecutions(1)
	controller.Signal(syscall.SIGTERM)
	s.Eventually("the stop is noticed", func() (bool, error) { return strings.Contains(controller.Log(), "nothing new is taken"), nil })
	s.OpenGate()
	controller.AwaitExit()
	s.Serve()
	finished(t, s, id, "hold serve")
	if n := s.Executions(); n != 1 {
		t.Fatalf("%d executions, want 1", n)
	}
}

// Two signals: the running attempt is stopped, its worker retired, and the
// outcome is published before the process ends.
func TestStopInterruptsWhatRuns(t *testing.T) {
	s := kit.NewSite(t, controllertest.Options{Lossy: true})
	s.StartAPI()
	lanes := s.StartWork()
	id := s.Submit("hold stop")
	s.AwaitExecutions(1)
	lanes.Signal(syscall.SIGTERM)
	s.Eventually("the stop is noticed", func() (bool, error) { return strings.Contains(lanes.Log(), "nothing new is taken"), nil })
	lanes.Signal(syscall.SIGTERM)
	lanes.AwaitExit()
	job := s.Await(id)
	if job.State != api.JobFailed || job.Failure.Code != api.FailInterrupted || !job.Failure.Entered {
		t.Fatalf("job is %s, failure %+v", job.State, job.Failure)
	}
	s.VerifyReceipts(id)
	if n := s.Executions(); n != 1 {
		t.Fatalf("%d executions, want 1", n)
	}
}

// A store of another scope is refused before anything is sent; rotation keeps
// the store's identity, so the host still obeys it.
func TestRotateStore(t *testing.T) {
	s := kit.NewSite(t, controllertest.Options{})
	controller := s.Serve()
	finished(t, s, s.Submit("before"), "before")
	s.AwaitReleased()
	controller.Stop()

	s.Flag("--provider-generation", "2")
	refused := s.Launch("serve")
	refused.AwaitExit()
	if !strings.Contains(refused.Log(), "another scope") {
		t.Fatalf("a store of another scope was opened:\n%s", refused.Log())
	}
	s.Command("store", "rotate", "--aside", s.StateDir()+"/attempts.1")
	s.Serve()
	finished(t, s, s.Submit("after"), "after")
	if host := s.AwaitReleased(); host.Frontiers.Released != 2 {
		t.Fatalf("released up to %d, want 2", host.Frontiers.Released)
	}
}

// Three jobs through two lanes: each is executed once, and history is released
// to the last number.
func TestLanesShareOneHost(t *testing.T) {
	s := kit.NewSite(t, controllertest.Options{Lanes: 2})
	controller := s.Serve()
	var ids []string
	for i := range 3 {
		ids = append(ids, s.Submit(fmt.Sprint("job ", i)))
	}
	for i, id := range ids {
		finished(t, s, id, fmt.Sprint("job ", i))
	}
	if n := s.Executions(); n != 3 {
		t.Fatalf("%d executions, want 3", n)
	}
	if host := s.AwaitReleased(); host.Frontiers.Released != 3 {
		t.Fatalf("released up to %d, want 3", host.Frontiers.Released)
	}
	controller.Stop()
}
