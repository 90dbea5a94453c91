//go:build e2e

package e2e

import (
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/quittance/quittance/controller/api"
	"github.com/quittance/quittance/integration/controllertest"
	"github.com/quittance/quittance/protocol"
)

// outage is how long the service stays away in each phase: as long as it takes
// to be noticed, or QUITTANCE_OUTAGE (for example 2m) in the long form.
func outage(t *testing.T) time.Duration {
	t.Helper()
	text := os.Getenv("QUITTANCE_OUTAGE")
	if text == "" {
		return time.Second
	}
	d, err := time.ParseDuration(text)
	if err != nil || d <= 0 {
		t.Fatalf("QUITTANCE_OUTAGE is %q, not a duration such as 2m", text)
	}
	return d
}

// backoffMax is that of the site's lanes.
const backoffMax = time.Second

// notices are the log lines of a kind, in order.
func notices(t *testing.T, log, kind string) (all []line) {
	t.Helper()
	for text := range strings.Lines(log) {
		if strings.Contains(text, kind) {
			all = append(all, logLines(t, text)...)
		}
	}
	return all
}

// complete wants a notice of an exchange with the service to name the operation
// and its disposition, in fields of their own and in the text, and whose it was.
func complete(t *testing.T, l line, job api.Job, operations []string) {
	t.Helper()
	operation, disposition := l.text("operation"), l.text("disposition")
	if !slices.Contains(operations, operation) {
		t.Errorf("operation %q, want one of %v: %v", operation, operations, l)
	}
	if disposition != string(protocol.Refused) && disposition != string(protocol.Unknown) {
		t.Errorf("disposition %q: %v", disposition, l)
	}
	cause := l.text("error") + l.text("reason")
	if want := fmt.Sprintf("%s: %s (%s)", operation, l.text("class"), disposition); !strings.Contains(cause, want) {
		t.Errorf("the cause %q does not say %q", cause, want)
	}
	if job.Job == "" {
		return // no attempt, no identities
	}
	if l.text("job") != job.Job || !strings.HasPrefix(l.text("attempt"), "att."+job.Job+".") {
		t.Errorf("job %q and attempt %q, want those of %s", l.text("job"), l.text("attempt"), job.Job)
	}
	// Before START is answered nobody knows the service's reference.
	if reference := l.text("reference"); reference != job.Attempts[0].Attempt && operation != api.RouteStart.Name {
		t.Errorf("reference %q, want %s", reference, job.Attempts[0].Attempt)
	}
}

// FR-26, FR-27, I27, I29: the job service is killed and stays away in one phase
// after the other; nobody restarts the lanes, and the job ends as it should,
// executed once. Each retry is one notice, which names operation, disposition and
// identities, and the backoff bounds them.
func TestServiceAwayInEachPhase(t *testing.T) {
	const many = 1 << 30
	for _, row := range []struct {
		name   string
		lost   string // replies to these are lost until the service is back
		upload bool
		text   string
		// reached tells that the phase was entered, notice what is said of the
		// outage in it, during what happens in it.
		reached func(s *controllertest.Site) bool
		notice  string
		of      []string // the operations that the notices may be of
		during  func(t *testing.T, s *controllertest.Site)
	}{
		{name: "idle", text: "idle", reached: func(*controllertest.Site) bool { return true }, notice: "nothing is admitted",
			of: []string{api.RouteFeed.Name, api.RouteInventory.Name, api.RouteHello.Name}},
		{name: "starting", lost: "/attempts", text: "starting", reached: sent("/attempts"), notice: "START not settled", of: []string{api.RouteStart.Name}},
		{name: "fetching", lost: "/grant", upload: true, text: "fetching", reached: sent("/grant"), notice: "input not fetched yet", of: []string{api.RouteUploads.Name, api.RouteGrant.Name}},
		{
			name: "preparing", text: "preparing", notice: "attempt not observed", of: []string{api.RouteAttempt.Name, api.RouteProgress.Name},
			reached: func(s *controllertest.Site) bool { return active(s, protocol.StateStarted) },
			// The worker becomes ready while nobody may be told: it is not asked.
			during: func(t *testing.T, s *controllertest.Site) {
				s.Loading(false)
				if n := s.Executions(); n != 0 {
					t.Errorf("%d executions were entered during the outage", n)
				}
			},
		},
		{
			name: "running", text: "hold away", reached: func(s *controllertest.Site) bool { return s.Executions() == 1 }, notice: "attempt not observed",
			of:     []string{api.RouteAttempt.Name, api.RouteProgress.Name},
			during: func(_ *testing.T, s *controllertest.Site) { s.OpenGate() },
		},
		{name: "publishing", lost: "/complete", text: "publishing", reached: sent("/complete"), notice: "outcome not confirmed", of: []string{api.RouteComplete.Name}},
		{name: "attaching", lost: "/receipts", text: "attaching", reached: sent("/receipts"), notice: "receipts not attached", of: []string{api.RouteReceipts.Name}},
	} {
		t.Run(row.name, func(t *testing.T) {
			s := kit.NewSite(t, controllertest.Options{Lossy: true})
			service := s.StartAPI()
			s.Loading(row.name == "preparing")
			lanes := s.StartWork()
			s.Eventually("the lanes announce", func() (bool, error) { return strings.Contains(lanes.Log(), "announced"), nil })
			if row.lost != "" {
				s.Proxy.Lose(row.lost, many)
			}
			submit := func() string {
				if !row.upload {
					return s.Submit(row.text)
				}
				return s.Create(api.CreateJob{Kind: "test-upload.v1", Uploads: []string{s.Upload("text/plain", []byte(row.text))}})
			}
			var id string
			if row.name != "idle" {
				id = submit()
			}
			s.Eventually("the phase is reached", func() (bool, error) { return row.reached(s), nil })
			// What is lost is noticed before the kill; what was said before it
			// elsewhere is not of this outage.
			before := 0
			if row.lost == "" {
				before = len(lanes.Log())
			}
			began := time.Now()
			service.Kill()
			s.Eventually("the outage is noticed", func() (bool, error) { return strings.Contains(lanes.Log()[before:], row.notice), nil })
			if row.during != nil {
				row.during(t, s)
			}
			<-time.After(time.Until(began.Add(outage(t)))) // how long it lasts is what the test is about
			away := time.Since(began)
			noticed := notices(t, lanes.Log()[before:], row.notice)
			if row.lost != "" {
				s.Proxy.Lose(row.lost, 0)
			}
			s.RestartAPI()
			if row.name == "idle" {
				id = submit()
			}
			finished(t, s, id, row.text)
			if n := s.Executions(); n != 1 {
				t.Fatalf("%d executions, want 1", n)
			}
			s.AwaitReleased()
			// Full jitter halves the pauses on average, and two of the attempt's
			// steps may observe four times a second here; more notices would not
			// be bounded.
			if most := 20 + int(10*away/backoffMax); len(noticed) > most {
				t.Errorf("%d notices in %s, at most %d are bounded by the backoff", len(noticed), away, most)
			}
			var job api.Job
			if row.name != "idle" {
				job = s.Job(id)
			}
			for i, n := range noticed {
				complete(t, n, job, row.of)
				if tries, counted := n["tries"]; counted != (row.name != "idle") || counted && tries != float64(i+1) {
					t.Fatalf("notice %d says try %v: not one notice for each retry: %v", i+1, tries, noticed)
				}
			}
			t.Logf("away for %s: %d notices %q", away.Round(time.Millisecond), len(noticed), row.notice)
			lanes.Stop()
		})
	}
}

func sent(suffix string) func(s *controllertest.Site) bool {
	return func(s *controllertest.Site) bool { return len(s.Proxy.Bodies(suffix)) > 0 }
}

func active(s *controllertest.Site, state protocol.State) bool {
	all, err := s.Generation().List(s.T.Context(), state)
	return err == nil && len(all) > 0
}
