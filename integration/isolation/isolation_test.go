//go:build e2e

package isolation_test

import (
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/quittance/quittance/controller/api"
	"github.com/quittance/quittance/integration/controllertest"
	"github.com/quittance/quittance/integration/isolation"
)

var kit *controllertest.Kit

func TestMain(m *testing.M) { os.Exit(controllertest.Main(m, "", &kit)) }

// name is unique on the machine: cgroups bear it.
func name(what string) string { return fmt.Sprintf("%s-%d", what, os.Getpid()) }

func finish(t *testing.T, s *controllertest.Site, id string) {
	t.Helper()
	if job := s.Await(id); job.State != api.JobFinished {
		t.Fatalf("job is %s, failure %+v", job.State, job.Failure)
	}
}

// A job goes through everything while the controller has nothing but its
// container: the agent knows it by its user. It lives on without the engine, and
// a stop lets what runs finish.
func TestControllerInContainer(t *testing.T) {
	s := kit.NewSite(t, controllertest.Options{})
	p := s.ServeContained(name("job"))
	finish(t, s, s.Submit("hello"))

	if err := s.Lab.Engine.Kill(); err != nil {
		t.Fatal(err)
	}
	pid := s.ContainerPID(name("job"))
	during := s.Submit("while the engine is down")
	if err := s.Lab.RestartEngine(); err != nil {
		t.Fatal(err)
	}
	finish(t, s, during)
	if !controllertest.Alive(pid) {
		t.Fatal("the controller did not outlive the engine")
	}

	running := s.Submit("hold")
	s.Eventually("the job runs", func() (bool, error) { return s.Executions() == 3, nil })
	p.Signal(syscall.SIGTERM)
	s.Eventually("the stop has arrived", func() (bool, error) { return strings.Contains(p.Log(), "stopping"), nil })
	s.OpenGate()
	p.AwaitExit()
	if p.Status() != 0 {
		t.Fatalf("status %d", p.Status())
	}
	if left := s.LeftOf(name("job")); len(left) > 0 {
		t.Errorf("left: %v", left)
	}
	// Whoever runs it without a container finds everything in its place.
	s.Serve()
	finish(t, s, running)
}

// A supervisor that is killed leaves a controller behind where no systemd ends
// it; the next one ends it first. A second one beside a living one is refused.
func TestSupervisorKilled(t *testing.T) {
	s := kit.NewSite(t, controllertest.Options{})
	first := s.ServeContained(name("killed"))
	orphan := s.ContainerPID(name("killed"))

	second := s.Contain(controllertest.Contained{Name: name("killed"), Args: []string{"version"}})
	second.AwaitExit()
	if second.Status() != 1 || !strings.Contains(second.Log(), "supervised by another process") {
		t.Fatalf("status %d: %s", second.Status(), second.Log())
	}
	if !controllertest.Alive(orphan) {
		t.Fatal("the refused start ended the controller")
	}

	first.Kill()
	s.ServeContained(name("killed"))
	if controllertest.Alive(orphan) {
		t.Fatal("the orphan lives beside the new controller")
	}
	finish(t, s, s.Submit("after the kill"))
}

// The exit status is the program's, the words are too, and a stop before the
// program has begun is not lost.
func TestStatusAndEarlyStop(t *testing.T) {
	s := kit.NewSite(t, controllertest.Options{})
	p := s.Contain(controllertest.Contained{Name: name("status"), Args: []string{"no-such-command"}})
	p.AwaitExit()
	if p.Status() != 2 || !strings.Contains(p.Log(), "no-such-command") {
		t.Errorf("status %d: %s", p.Status(), p.Log())
	}
	early := s.Contain(controllertest.Contained{Name: name("early"), Args: []string{"serve", "--config", "/dev/null", "--lanes-history", "4",
		"--state-dir", s.StateDir(), "--lanes-offerings-dir", s.Offerings(), "--service-listen", "127.0.0.1:0"}})
	s.Eventually("the supervisor has begun", func() (bool, error) { return strings.Contains(early.Log(), "container starts"), nil })
	early.Signal(syscall.SIGTERM)
	early.AwaitExit()
}

// What is mounted below a directory that the controller is given is as narrow as
// the directory.
func TestMountsBelowAreNarrowed(t *testing.T) {
	s := kit.NewSite(t, controllertest.Options{})
	want := map[string][]string{
		filepath.Join(s.Offerings(), "deep"): {"ro", "nosuid", "nodev", "noexec"},
		filepath.Join(s.UserDir(), "deep"):   {"rw", "nosuid", "nodev", "noexec"},
	}
	for dir := range want {
		if err := os.Mkdir(dir, 0o755); err != nil {
			t.Fatal(err)
		}
		if err := unix.Mount("tmpfs", dir, "tmpfs", 0, "mode=0755"); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() {
			if err := unix.Unmount(dir, 0); err != nil {
				t.Error(err)
			}
		})
	}
	p := s.ServeContained(name("deep"))
	table, err := os.ReadFile(fmt.Sprintf("/proc/%d/mountinfo", s.ContainerPID(name("deep"))))
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(string(table)) {
		fields := strings.Fields(line)
		for _, option := range want[fields[4]] {
			if !slices.Contains(strings.Split(fields[5], ","), option) {
				t.Errorf("%s lacks %s: %s", fields[4], option, fields[5])
			}
		}
		delete(want, fields[4])
	}
	if len(want) > 0 {
		t.Errorf("not mounted: %v in\n%s", want, table)
	}
	p.Signal(syscall.SIGTERM)
	p.AwaitExit()
}

// The network of a namespace, by its name.
func TestNetworkNamespace(t *testing.T) {
	s := kit.NewSite(t, controllertest.Options{})
	netns := name("qns")
	ip := func(args ...string) {
		t.Helper()
		if out, err := exec.CommandContext(t.Context(), "ip", args...).CombinedOutput(); err != nil {
			t.Fatalf("ip %v: %v\n%s", args, err, out)
		}
	}
	ip("netns", "add", netns)
	t.Cleanup(func() {
		if out, err := exec.Command("ip", "netns", "delete", netns).CombinedOutput(); err != nil {
			t.Errorf("%v: %s", err, out)
		}
	})
	ip("-n", netns, "link", "set", "lo", "up")
	p := s.Contain(controllertest.Contained{Name: name("net"), Network: netns, Args: []string{"api", "--config", "/dev/null",
		"--state-dir", s.StateDir(), "--service-listen", "127.0.0.1:8470"}})
	s.Eventually("the job service listens", func() (bool, error) {
		return strings.Contains(p.Log(), "job service listens"), nil
	})
	var inside, given syscall.Stat_t
	if err := syscall.Stat(fmt.Sprintf("/proc/%d/ns/net", s.ContainerPID(name("net"))), &inside); err != nil {
		t.Fatal(err)
	}
	if err := syscall.Stat("/run/netns/"+netns, &given); err != nil {
		t.Fatal(err)
	}
	if inside.Ino != given.Ino {
		t.Errorf("the controller is in network namespace %d, expected %d", inside.Ino, given.Ino)
	}
}

// I1: everything that a controller could try from inside is refused, and what it
// needs is not.
func TestEverythingIsRefused(t *testing.T) {
	s := kit.NewSite(t, controllertest.Options{})
	namespaces, err := isolation.HostNamespaces()
	if err != nil {
		t.Fatal(err)
	}
	targets, err := json.Marshal(isolation.Targets{
		EngineSocket: s.Lab.Engine.Address(), Ledger: s.Lab.StateDir(), AgentSocket: s.Lab.Socket(), AgentPID: s.Lab.PID(),
		State: s.UserDir(), Config: s.Offerings(), Namespaces: namespaces,
	})
	if err != nil {
		t.Fatal(err)
	}
	aims, results := filepath.Join(s.UserDir(), "targets.json"), filepath.Join(s.UserDir(), "results.json")
	if err := os.WriteFile(aims, targets, 0o644); err != nil {
		t.Fatal(err)
	}
	p := s.Contain(controllertest.Contained{
		Name: name("probe"), Archive: s.Archive("github.com/quittance/quittance/integration/isolation/probe"), Args: []string{aims, results},
	})
	p.AwaitExit()
	if p.Status() != 0 {
		t.Fatalf("status %d: %s", p.Status(), p.Log())
	}
	content, err := os.ReadFile(results)
	if err != nil {
		t.Fatal(err)
	}
	var answers []isolation.Result
	if err := json.Unmarshal(content, &answers); err != nil {
		t.Fatal(err)
	}
	table, err := isolation.Judge(answers)
	t.Logf("%d attempts must be refused:\n%s", isolation.Refused(), table)
	if err != nil {
		t.Error(err)
	}
	// Without a container most of it is allowed: the attempts can tell.
	if _, err := isolation.Judge(nil); err == nil {
		t.Error("nothing tried counts as everything refused")
	}
}
