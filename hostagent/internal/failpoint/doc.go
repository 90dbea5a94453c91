// Package failpoint lets a test end the agent at a named place, so that every
// gap between two steps that leave a trace can be struck by a crash.
//
// It owns the names of the places and nothing else: it knows neither what
// happens there nor how a test audits the outcome. Without the build tag
// failpoints [Hit] is empty and costs nothing. With it the environment variable
// QUITTANCE_FAILPOINT=name:kill makes the first arrival at that name end the
// process with SIGKILL, exactly as the kernel would.
package failpoint

// Point names a place between two steps that leave a trace.
type Point string

// The places of the agent, in the order in which one allocation passes them.
const (
	Accepted          Point = "accepted"            // accepted is durable, nothing was asked of a worker
	BeforeCreate      Point = "before-create"       // the cgroup exists, the engine knows nothing
	AfterCreate       Point = "after-create"        // the engine has the container, the ledger only the acceptance
	BetweenCreateRun  Point = "between-create-run"  // the identity is durable, the process does not run
	AfterRun          Point = "after-run"           // the process runs, started is not written
	Started           Point = "started"             // started is durable
	RetireIntended    Point = "retire-intended"     // the reason is durable, no signal was sent
	BeforeExited      Point = "before-exited"       // the process is gone, exited is not written
	Exited            Point = "exited"              // exited is durable, nothing is removed
	TaskRemoved       Point = "task-removed"        // the task is deleted, the container record is there
	ContainerRemoved  Point = "container-removed"   // the engine has nothing, the cgroup is there
	Removed           Point = "removed"             // everything is gone, retired is not written
	Retired           Point = "retired"             // retired is durable, no reply was sent
	Consumed          Point = "consumed"            // consumed is durable, no reply was sent
	ReleaseBaseSynced Point = "release-base-synced" // a release's base is durable, older segments are there
	ReleaseRemovedOne Point = "release-removed-one" // one older segment is gone
	Released          Point = "released"            // the release is whole, no reply was sent
)

// Points lists every place, for the crash matrix.
func Points() []Point {
	return []Point{
		Accepted, BeforeCreate, AfterCreate, BetweenCreateRun, AfterRun, Started,
		RetireIntended, BeforeExited, Exited, TaskRemoved, ContainerRemoved, Removed,
		Retired, Consumed, ReleaseBaseSynced, ReleaseRemovedOne, Released,
	}
}
