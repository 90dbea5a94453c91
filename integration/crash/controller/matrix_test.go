package controller

import (
	"slices"
	"testing"

	"github.com/quittance/quittance/integration/crash/matrix"
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

// matrixRows is every row, by fault and then in the order of a life.
func matrixRows() []row {
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

// parts is into how many parts rows are cut for the runs that take only one.
const parts = 16

func names(rows []row) []string {
	var all []string
	for _, r := range rows {
		all = append(all, r.String())
	}
	return all
}

// The matrix, or a story, has every failpoint.
func TestMatrixHasEveryFailpoint(t *testing.T) {
	struck := slices.Clone(stories)
	for _, p := range points {
		struck = append(struck, p.name)
	}
	matrix.CheckFailpoints(t, "../../../controller/internal/failpoint/doc.go", struck)
}

// The checked-in list names exactly the matrix's rows, each as one that a
// sampled run may leave out.
func TestMatrixIsListed(t *testing.T) {
	matrix.CheckListed(t, "../../lanes/crash.txt", "integration/crash/controller TestMatrix", names(matrixRows()))
}

// Every sample is a part of the matrix of the same size, and together they are
// all of it.
func TestSamplesCoverTheMatrix(t *testing.T) {
	matrix.CheckParts(t, names(matrixRows()), parts)
}
