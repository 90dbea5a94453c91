//go:build crash

package controller

import (
	"path/filepath"
	"slices"
	"syscall"
	"testing"

	"github.com/quittance/quittance/integration/controllertest"
	"github.com/quittance/quittance/integration/crash/matrix"
)

// hostPoints are the agent's failpoints in the life of one job, and how the job
// may end when the controller is killed while the agent stands still there.
// Before the worker was asked to execute, the job is tried again; after it was,
// it is interrupted, unless an outcome had been chosen.
var hostPoints = []struct {
	names []string
	ends  []end
}{
	{[]string{
		"accepted", "cgroup-half-made", "cgroup-made", "before-create", "lease-made", "snapshot-made", "record-made", "after-create",
		"between-create-run", "after-run",
	}, []end{again}},
	{[]string{"started", "channel-dialled", "channel-handed-over"}, []end{again, interrupted}},
	{[]string{
		"retire-intended", "stop-signalled", "before-exited", "exited", "task-removed", "record-removed", "snapshot-removed",
		"container-removed", "sink-ended", "cgroup-half-removed", "removed", "retired", "consumed",
		"release-base-synced", "release-removed-one", "released", "capture-removed",
	}, []end{once}},
}

// The crash matrix's column of the controller: it is killed while the agent
// stands still between two of its steps, both go on, and the job ends once, with
// at most one execution, everything on the host removed, consumed and released
// (I15, I27, I28, I30 to I32).
func TestControllerKilledAtHostPoints(t *testing.T) {
	var all []string
	for _, group := range hostPoints {
		all = append(all, group.names...)
	}
	take := matrix.Part(t, all, parts)
	for _, group := range hostPoints {
		for _, name := range group.names {
			if !take(name) {
				continue
			}
			t.Run(name, func(t *testing.T) {
				mark := filepath.Join(t.TempDir(), "struck")
				s := kit.NewSite(t, controllertest.Options{Agent: []string{"QUITTANCE_FAILPOINT=" + name + ":stop", "QUITTANCE_FAILPOINT_MARK=" + mark}})
				controller := s.Serve()
				id := s.Submit("one job")
				pid := s.Lab.PID()
				s.Eventually("the agent stands still", func() (bool, error) { return stopped(mark, pid) })
				controller.Kill()
				if err := syscall.Kill(pid, syscall.SIGCONT); err != nil {
					t.Fatal(err)
				}
				next := s.Serve()
				end := endOf(s.Await(id))
				if !slices.Contains(group.ends, end) {
					t.Errorf("the job ended %s, want %v", end, group.ends)
				}
				audit(t, s, id, end)
				next.Stop()
				s.RestartAPI()
				compare(t, s, map[string]string{id: "one job"})
				if left := s.Lab.Leftovers(); len(left) != 0 {
					t.Errorf("left on the machine: %v", left)
				}
			})
		}
	}
}
