package crash_test

import (
	"testing"

	"github.com/quittance/quittance/integration/crash/matrix"
)

// point is one failpoint of the agent, or one of its arrivals.
type point struct {
	name string
	when when
	// call is the next call to the engine that has an effect, "" where none
	// follows in this allocation's life.
	call string
	// shim tells that the allocation has one at this point.
	shim bool
}

// when is the part of a life in which a point lies.
type when int

const (
	atStart when = iota // of the agent, before it serves
	commits             // of the ledger, whatever they are for
	making              // until the ledger knows the container
	running             // from there to the end
	gone                // nothing of it is held by the engine any more
)

// points is the matrix's one axis: every name of package failpoint.
var points = []point{
	{name: "ledger-opened", when: atStart},
	{name: "socket-bound", when: atStart},
	{name: "commit-written#1", when: commits}, {name: "commit-written#2", when: commits}, {name: "commit-written#3", when: commits},
	{name: "commit-written#4", when: commits}, {name: "commit-written#5", when: commits}, {name: "commit-written#6", when: commits},
	{name: "commit-written#8", when: commits}, {name: "commit-written#10", when: commits},
	{name: "commit-synced#1", when: commits}, {name: "commit-synced#2", when: commits}, {name: "commit-synced#3", when: commits},
	{name: "commit-synced#4", when: commits}, {name: "commit-synced#5", when: commits}, {name: "commit-synced#6", when: commits},
	{name: "commit-synced#8", when: commits}, {name: "commit-synced#10", when: commits},
	{name: "spare-made", when: commits},
	{name: "accepted", when: making, call: "Leases/Create"},
	{name: "cgroup-half-made", when: making, call: "Leases/Create"},
	{name: "cgroup-made", when: making, call: "Leases/Create"},
	{name: "before-create", when: making, call: "Leases/Create"},
	{name: "lease-made", when: making, call: "Snapshots/Prepare"},
	{name: "snapshot-made", when: making, call: "Containers/Create"},
	{name: "record-made", when: making, call: "Tasks/Create"},
	{name: "after-create", when: making, call: "Tasks/Start", shim: true},
	{name: "between-create-run", when: making, call: "Tasks/Start", shim: true}, // FR-16
	{name: "after-run", when: running, call: "Tasks/Delete", shim: true},        // FR-15: adopted
	{name: "started", when: running, call: "Tasks/Delete", shim: true},
	{name: "channel-dialled", when: running, call: "Tasks/Delete", shim: true},
	{name: "channel-handed-over", when: running, call: "Tasks/Delete", shim: true},
	{name: "retire-intended", when: running, call: "Tasks/Delete", shim: true},
	{name: "stop-signalled", when: running, call: "Tasks/Delete", shim: true},
	{name: "before-exited", when: running, call: "Tasks/Delete", shim: true},
	{name: "exited", when: running, call: "Tasks/Delete", shim: true}, // FR-12
	{name: "task-removed", when: running, call: "Containers/Delete"},
	{name: "record-removed", when: running, call: "Snapshots/Remove"},
	{name: "snapshot-removed", when: running, call: "Leases/Delete"},
	{name: "container-removed", when: gone},
	{name: "sink-ended", when: gone},
	{name: "cgroup-half-removed", when: gone},
	{name: "removed", when: gone},
	{name: "retired", when: gone},
	{name: "consumed", when: gone},
	{name: "release-base-synced", when: gone},
	{name: "release-removed-one", when: gone},
	{name: "released", when: gone},
	{name: "capture-removed", when: gone},
}

// The matrix's other axis. Each strikes once, at its point.
const (
	killAgent      = "kill"           // SIGKILL of the agent
	killContainerd = "containerd"     // SIGKILL of the engine's daemon, which starts again
	killShim       = "shim"           // SIGKILL of the container's shim
	loseReply      = "reply-lost"     // the next reply on the private socket
	loseAnswer     = "answer-lost"    // the engine's answer to its next effect
	timeOut        = "engine-timeout" // the engine's next effect happens and is never answered
	failWrite      = "write-fails"    // of the next commit
	failSync       = "sync-fails"     // of the next commit, which is written
	noSpace        = "write-no-space" // the next commit
	fullDisk       = "disk-full"      // the state directory's, to the last block, until the number is released
)

var faults = []string{killAgent, killContainerd, killShim, loseReply, loseAnswer, timeOut, failWrite, failSync, noSpace, fullDisk}

// possible tells whether a fault can strike at a point.
func possible(fault string, p point) bool {
	switch fault {
	case killAgent:
		return true
	case killShim:
		return p.shim
	case loseAnswer, timeOut:
		return p.call != ""
	}
	return p.when >= making
}

// strikeRow is one row of the matrix.
type strikeRow struct {
	fault string
	point point
}

func (r strikeRow) String() string { return r.fault + "/" + r.point.name }

// matrixRows is every row, by fault and then in the order of a life.
func matrixRows() []strikeRow {
	var rows []strikeRow
	for _, fault := range faults {
		for _, p := range points {
			if possible(fault, p) {
				rows = append(rows, strikeRow{fault, p})
			}
		}
	}
	return rows
}

// parts is into how many parts the matrix is cut for the runs that take only one
// of them.
const parts = 12

func names(rows []strikeRow) []string {
	var all []string
	for _, r := range rows {
		all = append(all, r.String())
	}
	return all
}

// The matrix has every failpoint, and strikes each by more than a kill where
// more is possible.
func TestMatrixHasEveryFailpoint(t *testing.T) {
	var struck []string
	for _, p := range points {
		struck = append(struck, p.name)
	}
	matrix.CheckFailpoints(t, "../../hostagent/internal/failpoint/doc.go", struck)
}

// The checked-in list names exactly the matrix's rows, each as one that a
// sampled run may leave out.
func TestMatrixIsListed(t *testing.T) {
	matrix.CheckListed(t, "../lanes/crash.txt", "integration/crash TestMatrix", names(matrixRows()))
}

// Every sample is a part of the matrix of the same size, and together they are
// all of it.
func TestSamplesCoverTheMatrix(t *testing.T) {
	matrix.CheckParts(t, names(matrixRows()), parts)
}
