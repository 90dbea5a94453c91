//go:build e2e

package e2e

import (
	"bytes"
	"fmt"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/quittance/quittance/controller/api"
	"github.com/quittance/quittance/integration/controllertest"
	"github.com/quittance/quittance/protocol"
)

const limitedOffering = `kind    = "test-limited.v1"
profile = "test"
adapter = "http"
[input]
content_type = "text/plain"
from         = "job"
[request]
path    = "/predict"
timeout = "1m"
[response]
content_type = "application/json"
max          = "64KiB"
[limits]
work_time = "8s"
`

// Story: three jobs through one slot. One record at a time: job 1 meets its own
// limit and fails for it; job 2's COMPLETE is answered into the void; job 3 is
// started only after that receipt. One execution each, history released to the
// last number, and the store is the same however often it is opened (I31, I32,
// FR-27, FR-34).
func TestThreeJobsThroughOneSlot(t *testing.T) {
	s := kit.NewSite(t, controllertest.Options{Lossy: true, Flags: []string{"--lanes-max-active", "1", "--lanes-history", "1"}})
	s.Offering("limited", limitedOffering)
	s.StartAPI()
	s.Proxy.Lose("/complete", 1)
	lanes := s.StartWork()
	hold := "hold limit"
	first := s.Create(api.CreateJob{Kind: "test-limited.v1", Input: &api.CreateData{Text: &hold}})
	second, third := s.Submit("two"), s.Submit("three")

	job := s.Await(first)
	if job.State != api.JobFailed || job.Failure.Code != api.FailWorkTime || !job.Failure.Entered {
		t.Fatalf("job 1 is %s, failure %+v", job.State, job.Failure)
	}
	finished(t, s, second, "two")
	finished(t, s, third, "three")
	if n := s.Executions(); n != 3 {
		t.Fatalf("%d executions, want 3", n)
	}
	if bodies := s.Proxy.Bodies("/complete"); len(bodies) != 3 || !bytes.Equal(bodies[0], bodies[1]) {
		t.Fatalf("%d COMPLETE were sent, want job 2's twice and job 3's", len(bodies))
	}
	order := []string{}
	for _, e := range s.Proxy.Exchanges() {
		if name := e.Path[strings.LastIndexByte(e.Path, '/')+1:]; e.Status/100 == 2 && (name == "attempts" || name == "complete" || name == "fail") {
			order = append(order, name)
		}
	}
	if want := []string{"attempts", "fail", "attempts", "complete", "attempts", "complete"}; !slices.Equal(order, want) {
		t.Fatalf("answered were %v, want %v", order, want)
	}
	for _, id := range []string{first, second, third} {
		s.VerifyReceipts(id)
	}
	if host := s.AwaitReleased(); host.Frontiers.Released != 3 {
		t.Fatalf("released up to %d, want 3", host.Frontiers.Released)
	}
	lanes.Stop()
	kept := s.Command("store", "export")
	if n := strings.Count(kept, "\n"); n != 1 {
		t.Fatalf("%d records are kept, want 1", n)
	}
	again := s.StartWork()
	s.Eventually("the lanes announce again", func() (bool, error) { return strings.Contains(again.Log(), "announced"), nil })
	again.Stop()
	if now := s.Command("store", "export"); now != kept {
		t.Fatalf("the store changed by being opened:\n%s\n%s", kept, now)
	}
}

// I26, I28, I29, FR-27: the service committed, nobody heard it, the controller
// was killed: what it retained is sent byte for byte after the restart, and
// nothing runs.
func TestRetainedOutcomeIsPublishedAfterRestart(t *testing.T) {
	s := kit.NewSite(t, controllertest.Options{Lossy: true})
	s.StartAPI()
	s.Proxy.Lose("/complete", 1<<30)
	lanes := s.StartWork()
	id := s.Submit("retained")
	s.Eventually("COMPLETE was sent", func() (bool, error) { return len(s.Proxy.Bodies("/complete")) > 1, nil })
	lanes.Kill()
	records := s.Records()
	if len(records) != 1 || records[0].State != "terminal_pending" {
		t.Fatalf("records %+v", records)
	}
	retained := protocol.DigestOf(records[0].Record.Outcome.Body)
	s.Proxy.Lose("/complete", 0)
	lanes = s.StartWork()
	finished(t, s, id, "retained")
	s.AwaitReleased()
	for i, body := range s.Proxy.Bodies("/complete") {
		if got := protocol.DigestOf(body); got != retained {
			t.Fatalf("COMPLETE %d has the digest %s, the record %s", i+1, got, retained)
		}
	}
	t.Logf("retained and sent %d times: %s", len(s.Proxy.Bodies("/complete")), retained)
	if n := s.Executions(); n != 1 {
		t.Fatalf("%d executions, want 1", n)
	}
	lanes.Stop()
	if r := s.Records(); len(r) != 1 || r[0].State != "terminal_confirmed" || protocol.DigestOf(r[0].Record.Outcome.Body) != retained {
		t.Fatalf("records %+v", r)
	}
}

// I30: a second controller with the same key and a store of its own is told so
// and takes nothing; one with the same store does not even start.
func TestTwoControllersWithOneKey(t *testing.T) {
	s := kit.NewSite(t, controllertest.Options{Lossy: true, Lanes: 2})
	s.StartAPI()
	owner := s.StartWork()
	var ids []string
	for i := range 2 {
		ids = append(ids, s.Submit(fmt.Sprint("hold owner ", i)))
	}
	s.AwaitExecutions(2)

	same := s.StartWork()
	same.AwaitExit()
	if !strings.Contains(same.Log(), "another process") {
		t.Errorf("a second controller on one store said:\n%s", same.Log())
	}
	key := filepath.Join(s.StateDir(), "provider.key")
	s.Flag("--provider-key-file", key)
	s.Flag("--state-dir", filepath.Join(filepath.Dir(s.StateDir()), "other"))
	other := s.StartWork()
	s.Eventually("the other controller is refused", func() (bool, error) {
		return strings.Contains(other.Log(), string(api.CodeIdentityInUse)), nil
	})
	host, err := s.Lab.Operator().Host(t.Context())
	if err != nil || host.Owner == nil {
		t.Fatalf("%+v, %v", host, err)
	}
	if !strings.Contains(other.Log(), "held by attempt store "+string(*host.Owner)) {
		t.Errorf("the refusal does not name the owner %s:\n%s", *host.Owner, other.Log())
	}
	third := s.Submit("for the owner")
	s.OpenGate()
	for i, id := range ids {
		finished(t, s, id, fmt.Sprint("hold owner ", i))
	}
	finished(t, s, third, "for the owner")
	if strings.Contains(other.Log(), "attempt begun") {
		t.Errorf("the other controller took a job:\n%s", other.Log())
	}
	if n := s.Executions(); n != 3 {
		t.Fatalf("%d executions, want 3", n)
	}
	other.Stop()
	owner.Stop()
}

// FR-26, I31: an outage longer than the observation gap stops the worker first,
// while nobody can be told; the attempt ends as interrupted once the service is
// back, and the lane goes on without a person.
func TestOutageBeyondTheGap(t *testing.T) {
	s := kit.NewSite(t, controllertest.Options{Lossy: true, Flags: []string{"--lanes-observation-gap", "6s", "--lanes-exchange", "3s"}})
	service := s.StartAPI()
	lanes := s.StartWork()
	id := s.Submit("hold gap")
	s.AwaitExecutions(1)
	service.Kill()
	s.Eventually("the worker is stopped", func() (bool, error) {
		return strings.Contains(lanes.Log(), "attempt stops") && strings.Contains(lanes.Log(), "allocation settled"), nil
	})
	s.AwaitActive(protocol.StateConsumed)
	s.RestartAPI()
	job := s.Await(id)
	if job.State != api.JobFailed || job.Failure.Code != api.FailInterrupted || !job.Failure.Entered || len(job.Attempts) != 1 {
		t.Fatalf("job is %s, failure %+v", job.State, job.Failure)
	}
	s.VerifyReceipts(id)
	finished(t, s, s.Submit("after the outage"), "after the outage")
	if n := s.Executions(); n != 2 {
		t.Fatalf("%d executions, want 2", n)
	}
	s.AwaitReleased()
	lanes.Stop()
}
