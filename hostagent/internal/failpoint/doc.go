// Package failpoint lets a test strike the agent at a named place, so that
// every gap between two steps that leave a trace can be hit by a fault.
//
// It owns the names of the places and what can be done there, and nothing else:
// it knows neither what happens at a place nor how a test audits the outcome.
// Without the build tag failpoints [Hit] and the questions below are empty and
// cost nothing. With it the environment arms one place, in the form of package
// strike, with SIGKILL, SIGSTOP or one of these:
//
//	fail      the next write to the ledger fails before anything is written
//	failsync  the next write to the ledger is written and its sync fails
//	nospace   the next write to the ledger fails for want of disk space
//	drop      the next reply on the private socket is lost with its connection
package failpoint

// Point names a place between two steps that leave a trace.
type Point string

// The places of the agent, in the order in which one allocation passes them.
const (
	LedgerOpened Point = "ledger-opened" // the ledger is read, agent_started is not written
	SocketBound  Point = "socket-bound"  // the socket is there, nothing is served

	CommitWritten Point = "commit-written" // records are written and not synced
	CommitSynced  Point = "commit-synced"  // records are synced, nobody was told
	SpareMade     Point = "spare-made"     // a segment to come is durable, the ledger has not taken it

	Accepted         Point = "accepted"           // accepted is durable, nothing was asked of a worker
	CgroupHalfMade   Point = "cgroup-half-made"   // one hierarchy has its groups
	CgroupMade       Point = "cgroup-made"        // all have, the log sink's capture is not there
	BeforeCreate     Point = "before-create"      // cgroup and capture exist, the engine knows nothing
	LeaseMade        Point = "lease-made"         // the engine has the lease
	SnapshotMade     Point = "snapshot-made"      // and the snapshot
	RecordMade       Point = "record-made"        // and the container's record, no process
	AfterCreate      Point = "after-create"       // the engine has the process, the ledger only the acceptance
	BetweenCreateRun Point = "between-create-run" // the identity is durable, the process does not run
	AfterRun         Point = "after-run"          // the process runs, started is not written
	Started          Point = "started"            // started is durable

	ChannelDialled    Point = "channel-dialled"     // connected to the worker, not handed out
	ChannelHandedOver Point = "channel-handed-over" // handed out, our own descriptor is open

	RetireIntended    Point = "retire-intended"     // the reason is durable, no signal was sent
	StopSignalled     Point = "stop-signalled"      // the stop signal was sent
	BeforeExited      Point = "before-exited"       // the process is gone, exited is not written
	Exited            Point = "exited"              // exited is durable, nothing is removed
	TaskRemoved       Point = "task-removed"        // the task is deleted, the container record is there
	RecordRemoved     Point = "record-removed"      // the record is deleted, the snapshot is there
	SnapshotRemoved   Point = "snapshot-removed"    // the snapshot is deleted, the lease is there
	ContainerRemoved  Point = "container-removed"   // the engine has nothing, the cgroup is there
	SinkEnded         Point = "sink-ended"          // the log sink has ended
	CgroupHalfRemoved Point = "cgroup-half-removed" // one directory of the cgroups is gone
	Removed           Point = "removed"             // everything is gone, retired is not written
	Retired           Point = "retired"             // retired is durable, no reply was sent
	Consumed          Point = "consumed"            // consumed is durable, no reply was sent
	ReleaseBaseSynced Point = "release-base-synced" // a release's base is durable, older segments are there
	ReleaseRemovedOne Point = "release-removed-one" // one older segment is gone
	Released          Point = "released"            // the release is whole, no reply was sent
	CaptureRemoved    Point = "capture-removed"     // the released allocation's capture is gone
)

// Points lists every place, for the crash matrix.
func Points() []Point {
	return []Point{
		LedgerOpened, SocketBound, CommitWritten, CommitSynced, SpareMade,
		Accepted, CgroupHalfMade, CgroupMade, BeforeCreate, LeaseMade, SnapshotMade, RecordMade, AfterCreate,
		BetweenCreateRun, AfterRun, Started, ChannelDialled, ChannelHandedOver,
		RetireIntended, StopSignalled, BeforeExited, Exited, TaskRemoved, RecordRemoved, SnapshotRemoved, ContainerRemoved,
		SinkEnded, CgroupHalfRemoved, Removed, Retired, Consumed, ReleaseBaseSynced, ReleaseRemovedOne, Released, CaptureRemoved,
	}
}
