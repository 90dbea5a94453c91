//go:build crash

package controller

import (
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/quittance/quittance/controller/api"
	"github.com/quittance/quittance/integration/controllertest"
)

// The disk is full before the file of an upload is made: the attempt fails as
// the node's own trouble, recorded and published from the reserve, and never as
// the job's fault; the job is tried again once there is space (I36).
func TestDiskFullUnderUpload(t *testing.T) {
	s := kit.NewSite(t, controllertest.Options{})
	s.StartAPI()
	disk := s.SmallDisk("32m", false)
	mark := filepath.Join(s.UserDir(), "struck")
	work := s.StartWork("QUITTANCE_FAILPOINT=record.acknowledged:stop", "QUITTANCE_FAILPOINT_MARK="+mark)
	const text = "an upload of more than a few bytes"
	upload := s.Upload("text/plain", []byte(text))
	id := s.Create(api.CreateJob{Kind: "test-upload.v1", Uploads: []string{upload}})
	awaitStopped(s, mark)
	if err := disk.Fill(); err != nil {
		t.Fatal(err)
	}
	work.Signal(syscall.SIGCONT)
	s.Eventually("the first attempt has failed, and the job is open again", func() (bool, error) {
		job := s.Job(id)
		return len(job.Attempts) == 1 && job.Attempts[0].State == api.AttemptFailed && job.State == api.JobOpen, nil
	})
	if failure := s.Job(id).Attempts[0].Failure; failure == nil || failure.Code != api.FailInterrupted || failure.Entered {
		t.Errorf("the attempt failed with %+v", failure)
	}
	s.Eventually("the lanes say that they admit nothing, and why", func() (bool, error) { return refused(work), nil })
	if job := s.Job(id); len(job.Attempts) != 1 {
		t.Errorf("on a full disk the job has %d attempts", len(job.Attempts))
	}
	disk.Empty()
	audit(t, s, id, again)
	work.Stop()
	compare(t, s, map[string]string{id: text})
}

// Service and lanes have one disk, and it is full while a worker runs: what
// neither can write down waits and is not lost, and nothing runs twice (I27,
// I36, FR-22).
func TestDiskFullUnderServiceAndLanes(t *testing.T) {
	s := kit.NewSite(t, controllertest.Options{})
	disk := s.SmallDisk("64m", true)
	mark := filepath.Join(s.UserDir(), "struck")
	controller := s.Serve("QUITTANCE_FAILPOINT=executor.entered:stop", "QUITTANCE_FAILPOINT_MARK="+mark)
	id, next := s.Submit("one job"), s.Submit("the next job")
	awaitStopped(s, mark)
	if err := disk.Fill(); err != nil {
		t.Fatal(err)
	}
	controller.Signal(syscall.SIGCONT)
	s.Eventually("the work is done and cannot be handed over", func() (bool, error) {
		return s.Executions() == 1 && strings.Contains(controller.Log(), "attempt not observed"), nil
	})
	disk.Empty()
	for _, id := range []string{id, next} {
		if end := endOf(s.Await(id)); end != once {
			t.Errorf("job %s ended %s", id, end)
		}
		s.VerifyReceipts(id)
	}
	s.AwaitReleased()
	controller.Stop()
	s.RestartAPI()
	compare(t, s, map[string]string{id: "one job", next: "the next job"})
}

// refused tells whether the lanes said that the full disk keeps them from
// admitting anything.
func refused(lanes *controllertest.Process) bool {
	for line := range strings.Lines(lanes.Log()) {
		if strings.Contains(line, "nothing is admitted") && strings.Contains(line, "the attempt store's disk is full") {
			return true
		}
	}
	return false
}
