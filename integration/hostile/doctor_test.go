//go:build engine

package hostile

import (
	"bytes"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/quittance/quittance/integration/agenttest"
	"github.com/quittance/quittance/protocol"
)

// doctor runs agentctl doctor, which runs hostagent doctor, as an operator does.
type doctor struct {
	t       *testing.T
	lab     *agenttest.Lab
	program string // agentctl
	config  string // the lab's configuration as a file
}

// agentctl builds the operator's program.
func agentctl(t *testing.T) string {
	t.Helper()
	program := filepath.Join(t.TempDir(), "agentctl")
	if out, err := exec.Command("go", "build", "-o", program, "github.com/quittance/quittance/cmd/agentctl").CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	return program
}

func newDoctor(t *testing.T, lab *agenttest.Lab) *doctor {
	t.Helper()
	d := &doctor{t: t, lab: lab, program: agentctl(t), config: filepath.Join(t.TempDir(), "hostagent.toml")}
	// What config check prints is a configuration file.
	if err := os.WriteFile(d.config, []byte(lab.Command("config", "check")), 0o600); err != nil {
		t.Fatal(err)
	}
	return d
}

// examine returns the checks by name and whether one failed.
func (d *doctor) examine() (map[string]protocol.Check, bool) {
	d.t.Helper()
	var out, complaint bytes.Buffer
	cmd := exec.CommandContext(d.t.Context(), d.program, "doctor", "-o", "json", "--socket", d.lab.Socket(), "--hostagent", d.lab.Binary(), "--config", d.config)
	cmd.Stdout, cmd.Stderr = &out, &complaint
	err := cmd.Run()
	failed := false
	if exit, ok := errors.AsType[*exec.ExitError](err); ok && exit.ExitCode() == 1 {
		failed = true
	} else if err != nil {
		d.t.Fatalf("doctor: %v: %s", err, complaint.String())
	}
	var c protocol.Checkup
	if err := protocol.DecodeStrict(bytes.TrimSpace(out.Bytes()), 1<<20, &c); err != nil {
		d.t.Fatalf("%v: %s", err, out.String())
	}
	checks := map[string]protocol.Check{}
	for _, check := range c.Checks {
		checks[check.Name] = check
		if (check.State == protocol.CheckFine) != (check.Remedy == "") {
			d.t.Errorf("a finding without a remedy, or a remedy without one: %+v", check)
		}
		if check.State == protocol.CheckWarning && strings.Contains(check.Remedy, "faster disk") {
			check.State = protocol.CheckFine // true, and of the machine that tests
			checks[check.Name] = check
		}
	}
	return checks, failed
}

// The doctor finds what is wrong with a node, and nothing where all is well.
// Its look at leftovers is the one that every test's end uses.
func TestDoctor(t *testing.T) {
	lab := kit.NewLab(t)
	lab.Profile("echo", agenttest.Profile{Args: []string{"serve"}})
	lab.Start()
	c := newController(t, lab)
	n := c.start("echo")
	d := newDoctor(t, lab)
	want := func(checks map[string]protocol.Check, name string, state protocol.CheckState, found string) {
		t.Helper()
		if got := checks[name]; got.State != state || !strings.Contains(got.Found, found) {
			t.Errorf("%s: %+v, want %s with %q", name, got, state, found)
		}
	}

	checks, failed := d.examine()
	for _, name := range []string{"agent's engine", "stuck", "controller", "state directory", "ledger", "init", "cgroups", "engine", "agent"} {
		want(checks, name, protocol.CheckFine, "")
	}
	want(checks, "users", protocol.CheckWarning, "root is a controller")
	want(checks, "leftovers", protocol.CheckFine, "belong to allocations")
	if failed {
		t.Errorf("a check failed on a node that works: %+v", checks)
	}

	// Something that no allocation accounts for.
	orphan := string(protocol.NewID())
	groups, err := filepath.Glob("/sys/fs/cgroup/memory/quittance-test-ql*")
	if err != nil {
		t.Fatal(err)
	}
	made := ""
	for _, group := range groups {
		if strings.HasSuffix(group, filepath.Base(filepath.Dir(lab.StateDir()))) {
			made = filepath.Join(group, orphan)
		}
	}
	if made == "" {
		made = filepath.Join("/sys/fs/cgroup/quittance-test-"+filepath.Base(filepath.Dir(lab.StateDir())), orphan)
	}
	if err := os.Mkdir(made, 0o755); err != nil {
		t.Fatal(err)
	}
	checks, failed = d.examine()
	want(checks, "leftovers", protocol.CheckFailed, "1 things that belong to no allocation: cgroup "+orphan)
	if !failed {
		t.Error("no failure for a leftover")
	}
	if err := os.Remove(made); err != nil {
		t.Fatal(err)
	}

	// The agent is away; then so is the engine.
	lab.Stop()
	checks, failed = d.examine()
	want(checks, "agent's socket", protocol.CheckFailed, "")
	want(checks, "agent", protocol.CheckFailed, "does not answer")
	want(checks, "leftovers", protocol.CheckWarning, "container q-")
	want(checks, "ledger", protocol.CheckFine, "verified")
	if !failed {
		t.Error("no failure without an agent")
	}
	if err := lab.Engine.Stop(); err != nil {
		t.Fatal(err)
	}
	checks, _ = d.examine()
	want(checks, "engine", protocol.CheckFailed, "")
	want(checks, "leftovers", protocol.CheckWarning, "cannot be looked for")
	if err := lab.RestartEngine(); err != nil {
		t.Fatal(err)
	}
	if err := os.Chmod(lab.Engine.Address(), 0o666); err != nil {
		t.Fatal(err)
	}
	if err := os.Chmod(lab.StateDir(), 0o755); err != nil {
		t.Fatal(err)
	}
	checks, _ = d.examine()
	want(checks, "engine", protocol.CheckFailed, "every user can use containerd's socket")
	want(checks, "state directory", protocol.CheckFailed, "0700")
	if err := os.Chmod(lab.StateDir(), 0o700); err != nil {
		t.Fatal(err)
	}
	// A configuration that is refused is the one finding about the machine.
	refused := filepath.Join(t.TempDir(), "refused.toml")
	if err := os.WriteFile(refused, []byte("max_slots = 0\nnonsense = 1\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	usual := d.config
	d.config = refused
	checks, _ = d.examine()
	want(checks, "configuration", protocol.CheckFailed, "nonsense")
	d.config = usual

	lab.Start()
	if _, err := c.gen.Witness(t.Context(), protocol.WitnessRequest{}); err != nil {
		t.Fatal(err)
	}
	c.retire(n)
	checks, _ = d.examine()
	want(checks, "leftovers", protocol.CheckFine, "none; 0 things")
	c.settled()
}
