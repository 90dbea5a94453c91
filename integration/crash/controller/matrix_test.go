package controller

import (
	"cmp"
	"fmt"
	"hash/fnv"
	"os"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
)

// end is how a job may have ended.
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

// point is one failpoint of the controller, or one of its arrivals.
type point struct {
	name string
	end  end // after a kill there
	ran  int // executions that begin before it
	// reply is the end of the path of the next request to the service that the
	// job cannot do without, or of the job after it.
	reply string
	// call is the next call to the engine that has an effect, "" where none
	// follows in this job's life, or where it may be under way already.
	call string
	// shim tells that the job's worker has one at this point.
	shim bool
	// failing tells that the point is passed only by a job whose first execution
	// fails.
	failing bool
}

// points is the matrix's one axis: every failpoint of the controller that a job
// passes in its life.
var points = []point{
	{name: "record.start_pending", end: again, reply: "/attempts", call: "Tasks/Create"},
	{name: "starter.sending", end: again, reply: "/attempts", call: "Tasks/Create"},
	{name: "starter.sent", end: again, reply: "/progress", call: "Tasks/Create"},
	{name: "record.acknowledged", end: again, reply: "/progress", call: "Tasks/Create"},
	{name: "executor.proposed", end: again, reply: "/progress", call: "Tasks/Create"},
	{name: "executor.allocated", end: again, reply: "/progress", shim: true},
	{name: "record.acknowledged#3", end: again, reply: "/progress", call: "Tasks/Delete", shim: true}, // prepared; entry comes next
	{name: "executor.entered", end: interrupted, reply: "/complete", call: "Tasks/Delete", shim: true},
	{name: "executor.answered", end: interrupted, ran: 1, reply: "/complete", call: "Tasks/Delete", shim: true},
	{name: "executor.outcome", end: interrupted, ran: 1, reply: "/complete", call: "Tasks/Delete", shim: true},
	{name: "lane.replacement", end: interrupted, ran: 1, reply: "/progress", call: "Tasks/Create", failing: true},
	{name: "record.terminal_pending", end: once, ran: 1, reply: "/complete", call: "Tasks/Delete", shim: true},
	{name: "retirement.asked", end: once, ran: 1, reply: "/complete"},
	{name: "retirement.retired", end: once, ran: 1, reply: "/complete"},
	{name: "retirement.consumed", end: once, ran: 1, reply: "/complete"},
	{name: "retirement.saved", end: once, ran: 1, reply: "/complete"},
	{name: "publisher.sent", end: once, ran: 1, reply: "/receipts"},
	{name: "record.terminal_confirmed", end: once, ran: 1, reply: "/receipts"},
	{name: "maintenance.archived", end: once, ran: 1, reply: "/attempts"},
	{name: "maintenance.released", end: once, ran: 1, reply: "/attempts"},
}

// stories are the points that need one of their own to be passed; a kill there
// is their strike.
var stories = []string{"record.ended", "record.suppressed", "record.terminal_held"}

// The matrix's other axis. Each strikes once, at its point.
const (
	killAgent      = "agent"              // SIGKILL of the agent, which starts again
	killContainerd = "containerd"         // of the engine's daemon, likewise
	killService    = "service"            // of the job service, likewise
	killShim       = "shim"               // of the worker's shim
	loseService    = "service-reply-lost" // the service's reply to the point's next request
	loseAgent      = "agent-reply-lost"   // the agent's reply to the next request with an effect
	timeOut        = "engine-timeout"     // the engine's next effect happens and is never answered
	failWrite      = "write-fails"        // of the attempt store's next file
	failSync       = "sync-fails"         // likewise, once it is written
	failName       = "name-sync-fails"    // of the directory, once that file is in its place
	fullDisk       = "disk-full"          // the lanes', to the last block, until the job has ended
)

var faults = []string{killAgent, killContainerd, killService, killShim, loseService, loseAgent, timeOut, failWrite, failSync, failName, fullDisk}

// possible tells whether a fault can strike at a point.
func possible(fault string, p point) bool {
	switch fault {
	case killShim:
		return p.shim
	case timeOut:
		return p.call != ""
	}
	return true
}

// row is one row of the matrix.
type row struct {
	fault string
	point point
}

func (r row) String() string { return r.fault + "/" + r.point.name }

// matrix is every row, by fault and then in the order of a life.
func matrix() []row {
	var rows []row
	for _, fault := range faults {
		for _, p := range points {
			if possible(fault, p) {
				rows = append(rows, row{fault, p})
			}
		}
	}
	return rows
}

// parts is into how many parts rows are cut for the runs that take only one; see
// the lane's runner.
const parts = 16

// sampled tells whether this run takes a row of all those named.
func sampled(t *testing.T, name string, all []string) bool {
	t.Helper()
	text := os.Getenv("QUITTANCE_SAMPLE")
	if text == "" {
		return true
	}
	number, err := strconv.ParseUint(text, 10, 64)
	if err != nil {
		t.Fatalf("QUITTANCE_SAMPLE must be a number: %v", err)
	}
	hash := func(s string) uint64 {
		h := fnv.New64a()
		if _, err := h.Write([]byte(s)); err != nil {
			t.Fatal(err)
		}
		return h.Sum64()
	}
	all = slices.SortedFunc(slices.Values(all), func(a, b string) int { return cmp.Compare(hash(a), hash(b)) })
	return slices.Index(all, name)%parts == int(number%parts)
}

func names(rows []row) []string {
	var all []string
	for _, r := range rows {
		all = append(all, r.String())
	}
	return all
}

// The matrix, or a story, has every failpoint.
func TestMatrixHasEveryFailpoint(t *testing.T) {
	source, err := os.ReadFile("../../../controller/internal/failpoint/doc.go")
	if err != nil {
		t.Fatal(err)
	}
	struck := map[string]bool{}
	for _, p := range points {
		name, _, _ := strings.Cut(p.name, "#")
		struck[name] = true
	}
	for _, name := range stories {
		struck[name] = true
	}
	named := regexp.MustCompile(`Point += "([a-z._]+)"`).FindAllStringSubmatch(string(source), -1)
	if len(named) < 20 {
		t.Fatalf("%d failpoints were found", len(named))
	}
	for _, n := range named {
		if !struck[n[1]] {
			t.Errorf("failpoint %s has no row in the matrix", n[1])
		}
		delete(struck, n[1])
	}
	for name := range struck {
		t.Errorf("the matrix strikes %s, which is no failpoint", name)
	}
}

// The checked-in list names exactly the matrix's rows, each as one that a
// sampled run may leave out.
func TestMatrixIsListed(t *testing.T) {
	list, err := os.ReadFile("../../lanes/crash.txt")
	if err != nil {
		t.Fatal(err)
	}
	const prefix = "sampled integration/crash/controller TestMatrix/"
	want := map[string]bool{}
	for _, r := range matrix() {
		want[prefix+r.String()] = true
	}
	for line := range strings.Lines(string(list)) {
		line = strings.TrimSuffix(line, "\n")
		if !strings.HasPrefix(line, prefix) || strings.Count(line, "/") != 4 {
			continue // a fault by itself
		}
		if !want[line] {
			t.Errorf("integration/lanes/crash.txt has no such row: %s", line)
		}
		delete(want, line)
	}
	for line := range want {
		t.Errorf("integration/lanes/crash.txt lacks: %s", line)
	}
}

// Every sample is a part of the matrix of the same size, and together they are
// all of it.
func TestSamplesCoverTheMatrix(t *testing.T) {
	all := names(matrix())
	taken := 0
	for sample := range parts {
		t.Setenv("QUITTANCE_SAMPLE", fmt.Sprint(sample+7*parts))
		size := 0
		for _, name := range all {
			if sampled(t, name, all) {
				size++
			}
		}
		if size < len(all)/parts || size > len(all)/parts+1 {
			t.Errorf("sample %d has %d rows of %d", sample, size, len(all))
		}
		taken += size
	}
	if taken != len(all) {
		t.Errorf("%d rows were taken over all samples, of %d", taken, len(all))
	}
}
