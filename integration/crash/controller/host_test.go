//go:build crash

package controller

import (
	"cmp"
	"errors"
	"fmt"
	"hash/fnv"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"github.com/quittance/quittance/controller/api"
	"github.com/quittance/quittance/integration/controllertest"
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

// parts is into how many parts rows are cut for the runs that take only one; see
// the lane's runner.
const parts = 12

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

// stopped tells whether a process has made its mark and SIGSTOP has reached it.
func stopped(mark string, pid int) (bool, error) {
	if _, err := os.Stat(mark); err != nil {
		return false, nil
	}
	stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	_, state, _ := strings.Cut(string(stat), ") ")
	return strings.HasPrefix(state, "T"), err
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
	for _, group := range hostPoints {
		for _, name := range group.names {
			if !sampled(t, name, all) {
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

// endOf is which of the three ends a job came to.
func endOf(job api.Job) end {
	switch {
	case job.State != api.JobFinished:
		return interrupted
	case len(job.Attempts) > 1:
		return again
	}
	return once
}

// others are struck while the controller stands still at one of its points.
var others = []struct {
	name   string
	strike func(s *controllertest.Site, service *controllertest.Process) error
}{
	{"agent", func(s *controllertest.Site, _ *controllertest.Process) error {
		s.Lab.Kill()
		s.Lab.Start()
		return nil
	}},
	{"containerd", func(s *controllertest.Site, _ *controllertest.Process) error {
		return errors.Join(s.Lab.Engine.Kill(), s.Lab.RestartEngine())
	}},
	{"service", func(s *controllertest.Site, service *controllertest.Process) error {
		service.Kill()
		s.RestartAPI()
		return nil
	}},
}

// The agent, the engine's daemon and the job service are killed and come back
// while the controller stands still between two of its steps: the job ends once,
// with one execution, and the same bytes on both sides (I15, I26, I27, I31).
func TestOthersKilledAtControllerPoints(t *testing.T) {
	var all []string
	for _, other := range others {
		for _, p := range points {
			all = append(all, other.name+"/"+p.name)
		}
	}
	for _, other := range others {
		t.Run(other.name, func(t *testing.T) {
			for _, p := range points {
				if !sampled(t, other.name+"/"+p.name, all) {
					continue
				}
				t.Run(p.name, func(t *testing.T) {
					s := kit.NewSite(t, controllertest.Options{})
					service := s.StartAPI()
					mark := filepath.Join(filepath.Dir(s.StateDir()), "struck") // the controller's user writes it
					work := s.StartWork("QUITTANCE_FAILPOINT="+p.name+":stop", "QUITTANCE_FAILPOINT_MARK="+mark)
					id := s.Submit("one job")
					s.Eventually("the lanes stand still", func() (bool, error) {
						text, err := os.ReadFile(mark)
						if err != nil || len(text) == 0 {
							return false, nil
						}
						pid, err := strconv.Atoi(string(text))
						if err != nil {
							return false, err
						}
						return stopped(mark, pid)
					})
					if err := other.strike(s, service); err != nil {
						t.Fatal(err)
					}
					work.Signal(syscall.SIGCONT)
					end := endOf(s.Await(id))
					// Once the worker was reached, nobody's end but its own matters:
					// the channel is the controller's.
					if end != once && (end != again || p.end != again) {
						t.Errorf("the job ended %s", end)
					}
					audit(t, s, id, end)
					work.Stop()
					compare(t, s, map[string]string{id: "one job"})
					if left := s.Lab.Leftovers(); len(left) != 0 {
						t.Errorf("left on the machine: %v", left)
					}
				})
			}
		})
	}
}
