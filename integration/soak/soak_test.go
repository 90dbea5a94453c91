//go:build e2e

package soak

import (
	"flag"
	"fmt"
	"math/rand/v2"
	"os"
	"testing"
	"time"

	"github.com/quittance/quittance/controller/api"
	"github.com/quittance/quittance/integration/controllertest"
)

var (
	jobs  = flag.Int("jobs", 40, "jobs to run")
	seed  = flag.Uint64("seed", 7, "of the faults, the victims and the pauses")
	share = flag.Float64("share", 0.15, "of the exchanges that a fault befalls")
)

var kit *controllertest.Kit

func TestMain(m *testing.M) { os.Exit(controllertest.Main(m, "", &kit)) }

// work is one job: its input, and what its worker makes of it undisturbed.
type work struct {
	kind, text string
	upload     bool
	fails      bool
}

func draw(random *rand.Rand, i int) work {
	switch n := random.IntN(20); {
	case n < 2:
		return work{kind: controllertest.OfferingKind, text: fmt.Sprintf("refuse now %d", i), fails: true}
	case n < 4:
		return work{kind: controllertest.OfferingKind, text: fmt.Sprintf("exit 3 %d", i), fails: true}
	case n < 7:
		return work{kind: "test-pure.v1", text: fmt.Sprintf("exitonce 3 %d", i)}
	case n < 9:
		return work{kind: "test-upload.v1", text: fmt.Sprintf("upload %d", i), upload: true}
	default:
		return work{kind: controllertest.OfferingKind, text: fmt.Sprintf("pause %d %d", random.IntN(600), i)}
	}
}

// storm is one run.
type storm struct {
	*controllertest.Site
	random  *rand.Rand
	service *controllertest.Process
	lanes   *controllertest.Process
	strikes [3]int // by victim: lanes, agent, job service
}

// strike kills one process as the kernel would and starts it again.
func (s *storm) strike() {
	victim := [...]int{0, 0, 0, 1, 1, 2}[s.random.IntN(6)]
	s.strikes[victim]++
	switch victim {
	case 0:
		s.lanes.Kill()
		s.lanes = s.StartWork()
	case 1:
		s.Lab.Kill()
		s.Lab.Start()
	case 2:
		s.service.Kill()
		s.service = s.RestartAPI()
	}
}

// untilFurther waits for the moment of the next strike: some seconds, and until
// some more jobs have ended, so that a slow machine is not struck more often for
// each of its jobs than a fast one. Where none ends it goes on after a minute.
func (s *storm) untilFurther() {
	pause := time.NewTimer(2*time.Second + time.Duration(s.random.Int64N(int64(4*time.Second))))
	defer pause.Stop()
	more := s.ended() + 2 + s.random.IntN(4)
	limit := time.After(time.Minute)
	over := false
	tick := time.NewTicker(200 * time.Millisecond)
	defer tick.Stop()
	for {
		select {
		case <-pause.C:
			over = true
		case <-limit:
			return
		case <-tick.C:
		}
		if !s.Open() || over && s.ended() >= more {
			return
		}
	}
}

// ended counts the jobs that have.
func (s *storm) ended() int {
	n := 0
	for _, job := range s.Jobs() {
		if job.State.Terminal() {
			n++
		}
	}
	return n
}

// I11, I12, I15, I26–I32, FR-15, FR-26, FR-27, FR-30: whatever is lost, repeated
// or killed, every job ends exactly once and both sides say the same of it.
func TestJobsThroughStorms(t *testing.T) {
	w := controllertest.NewWeather(*seed, *share)
	private := controllertest.NewWeather(*seed+1, *share/2)
	s := &storm{
		Site: kit.NewSite(t, controllertest.Options{Lossy: true, Lanes: 4, Flags: []string{
			"--lanes-history", fmt.Sprint(20 * *jobs), "--lanes-max-active", "64", "--log-level", "info",
		}}),
		random: rand.New(rand.NewPCG(*seed, 2)),
	}
	s.Proxy.Weather(w)
	s.NewRelay(private)
	s.service, s.lanes = s.StartAPI(), s.StartWork()

	texts := map[string]string{}
	undisturbed := 0 // jobs that end well unless something strikes them
	for i := range *jobs {
		j := draw(s.random, i)
		order := api.CreateJob{Kind: j.kind, Input: &api.CreateData{Text: &j.text}}
		if j.upload {
			order = api.CreateJob{Kind: j.kind, Uploads: []string{s.Upload("text/plain", []byte(j.text))}}
		}
		texts[s.Create(order)] = j.text
		if !j.fails {
			undisturbed++
		}
	}
	began := time.Now()
	for s.Open() {
		s.untilFurther()
		if s.Open() {
			s.strike()
		}
		if limit := 2*time.Minute + time.Duration(*jobs)*20*time.Second; time.Since(began) > limit {
			t.Fatalf("jobs are still open after %s", limit)
		}
	}
	w.Calm()
	private.Calm()
	host := s.AwaitReleased()
	s.lanes.Stop()
	found := s.Audit(texts)
	t.Logf("%s", found)
	t.Logf("seed %d, %s: lanes killed %d times, agent %d, job service %d", *seed, time.Since(began).Round(time.Second), s.strikes[0], s.strikes[1], s.strikes[2])
	t.Logf("to the job service: %s", w)
	t.Logf("to the agent: %s", private)
	if n := int(host.Frontiers.Accepted); n < found.Numbers {
		t.Errorf("attempts have %d allocations, the host accepted %d numbers", found.Numbers, n)
	}
	if found.MostExecutions > 2 || found.Ran > found.Executions {
		t.Errorf("%d executions of one attempt; %d ran, %d were entered", found.MostExecutions, found.Ran, found.Executions)
	}
	// Kills end jobs as interrupted, which is right; a run in which most ended
	// so has shown nothing.
	if found.Finished < undisturbed/2 {
		t.Errorf("%d of %d jobs that work ended well", found.Finished, undisturbed)
	}
	if *jobs >= 40 {
		for f := controllertest.FaultDropRequest; f <= controllertest.FaultReset; f++ {
			if w.Count(f) == 0 || private.Count(f) == 0 {
				t.Errorf("no exchange met the fault %q on one of the sides", f)
			}
		}
	}
}
