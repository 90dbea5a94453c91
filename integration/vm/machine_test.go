//go:build vm

package vm

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/quittance/quittance/controller/api"
	"github.com/quittance/quittance/integration/ociarchive"
	"github.com/quittance/quittance/integration/vm/disk"
	"github.com/quittance/quittance/integration/vm/machine"
	"github.com/quittance/quittance/integration/vm/refusals"
	"github.com/quittance/quittance/integration/vm/witness"
	"github.com/quittance/quittance/integration/workers/images"
)

var (
	cuts  = flag.Int("cuts", 5, "power cuts")
	kills = flag.Int("kills", 40, "kills by the kernel under late readers")
	mixed = flag.Bool("mixed", false, "also every order of two different acts on two units, each looked at by itself")
	only  = flag.String("only", "", "checks and rows to run beside the needed ones, separated by commas, to try them; power-cuts and reboot too")
	reuse = flag.Bool("reuse", false, "use the packages of the last run, to try a test quickly")
	accel = flag.String("accel", "tcg", "QEMU's accelerators, the first that works: tcg, kvm:tcg")
)

// Bounds under software emulation on a shared machine.
const (
	bootLimit = 30 * time.Minute
	rowLimit  = 90 * time.Minute // longer than the guest's own
)

// row is one check: what the guest is asked.
type row struct {
	name      string
	command   string
	arguments []string
	needed    bool // nothing after it makes sense without it
}

// ask is a row whose command has its name.
func ask(name string, arguments ...string) row {
	return row{name: name, command: name, arguments: arguments}
}

func needed(r row) row {
	r.needed = true
	return r
}

// checks share the first boot, in this order.
var checks = []row{
	needed(ask("install")), ask("files"), ask("units"), ask("unit-files"), ask("security"), needed(ask("configure")),
	ask("socket-activation"), ask("reload"), needed(ask("controller-job")), ask("journal-job"),
	ask("controller-container"), ask("controller-isolation"), needed(ask("take-owner")),
	ask("life"), ask("devices"), ask("journal"), ask("metrics"), ask("oom-group"), ask("oom-observe"),
	disturbed("daemon-reload"), disturbed("daemon-reexec"), disturbed("agent-restart"), disturbed("agent-killed"),
	disturbed("containerd-restart"), disturbed("containerd-killed"), disturbed("everything-killed"),
	ask("watchdog"), ask("shim-killed"), ask("workers-unit"), ask("users"), ask("upgrade"), ask("removal-refused"),
	ask("oom-host"), ask("oom-daemon"), ask("oom-mark"), ask("nothing-left"), ask("secrets"),
}

// acts on a unit. Every order of two units with one act is a row; with -mixed
// every order of two acts too.
var acts = []string{"stop", "restart", "kill"}

// pairsAtOnce is how many ordered pairs of units are acted on between two looks
// at the machine, without -mixed.
const pairsAtOnce = 4

// disturbed is something done to the machine under a live worker with an open
// channel.
func disturbed(what string) row {
	return row{name: "under-worker-" + what, command: "under-worker", arguments: []string{what}}
}

func TestMachine(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Fatal("the vm lane needs root: it makes disks from packages")
	}
	l := newLab(t)
	l.boot(t)
	for _, r := range checks {
		l.row(t, r)
	}
	l.row(t, row{name: "oom-late-readers", command: "kills", arguments: []string{fmt.Sprint(*kills), l.witness.Last()}})
	if wanted("reboot") {
		l.reboot(t)
	}
	l.row(t, needed(row{name: "release", command: "give-owner", arguments: []string{l.witness.Last()}}))
	l.clockSteps(t)
	for _, act := range acts {
		l.orders(t, act, act)
	}
	for n := range *cuts {
		t.Run(fmt.Sprintf("power-cut-%d", n+1), func(t *testing.T) { l.powerCut(t, n+1) })
	}
	for _, first := range acts {
		for _, second := range acts {
			if first != second {
				l.orders(t, first, second)
			}
		}
	}
	l.row(t, ask("purge-and-reinstall"))
	l.powerOff(t)
}

// wanted reports whether something that is not needed is to run.
func wanted(name string) bool {
	return *only == "" || slices.Contains(strings.Split(*only, ","), name)
}

// lab is the machine and what is known of it.
type lab struct {
	dir     string // of everything that is kept
	config  machine.Config
	machine *machine.Machine
	witness *witness.Witness
	broken  string // the needed row that failed
	// stoodStill tells that the machine stood still and its power was cut.
	stoodStill atomic.Bool
	table      []string
	refused    []refusals.Refusal
	began      time.Time
}

// newLab builds everything that the machine is given.
func newLab(t *testing.T) *lab {
	root, err := filepath.Abs("../..")
	if err != nil {
		t.Fatal(err)
	}
	l := &lab{dir: filepath.Join(root, "build", "vm"), witness: witness.New(), began: time.Now()}
	base, err := disk.System(t.Context(), l.dir, time.Now())
	if err != nil {
		t.Fatal(err)
	}
	payload, err := disk.Payload(t.Context(), l.dir, l.payload(t, root))
	if err != nil {
		t.Fatal(err)
	}
	overlay := filepath.Join(l.dir, "machine.qcow2")
	if err := errors.Join(os.RemoveAll(overlay), disk.Overlay(t.Context(), base.Image, "raw", overlay)); err != nil {
		t.Fatal(err)
	}
	old, err := filepath.Glob(filepath.Join(l.dir, "*.log"))
	if err != nil {
		t.Fatal(err)
	}
	for _, o := range append(old, filepath.Join(l.dir, "refused.txt")) {
		if err := os.RemoveAll(o); err != nil {
			t.Fatal(err)
		}
	}
	short, err := os.MkdirTemp("", "qvm")
	if err != nil {
		t.Fatal(err)
	}
	l.config = machine.Config{
		Base: base, Overlay: overlay, Payload: payload, Dir: short, Console: filepath.Join(l.dir, "console.log"), Accel: *accel,
		StoodStill: func() {
			l.stoodStill.Store(true)
			if t.Failed() {
				return // a second run must not hide what this one found
			}
			// For run.sh, which then runs all of it once more.
			if err := os.WriteFile(filepath.Join(l.dir, "stood-still"), nil, 0o644); err != nil {
				t.Error(err)
			}
		},
	}
	t.Cleanup(func() { l.close(t, payload) })
	return l
}

// payload builds the packages, a newer version of them, the guest program and
// the images.
func (l *lab) payload(t *testing.T, root string) map[string]string {
	files := map[string]string{}
	for dir, version := range map[string]string{"packages": "", "upgrade": "9.0.0~vm"} {
		out := filepath.Join(l.dir, dir)
		if !*reuse {
			if err := os.RemoveAll(out); err != nil {
				t.Fatal(err)
			}
			environment := []string{"QUITTANCE_PACKAGERS=deb"}
			if version != "" {
				environment = append(environment, "QUITTANCE_VERSION="+version)
			}
			build(t, root, environment, filepath.Join(root, "packaging", "build.sh"), out)
		}
		found, err := filepath.Glob(filepath.Join(out, "*.deb"))
		if err != nil || len(found) != 3 {
			t.Fatalf("%d packages in %s: %v", len(found), out, err)
		}
		for _, f := range found {
			files[dir+"/"+filepath.Base(f)] = f
		}
	}
	files["guest"] = filepath.Join(l.dir, "guest")
	build(t, root, []string{"CGO_ENABLED=0"}, "go", "build", "-trimpath", "-o", files["guest"], "./integration/vm/guest")
	langid, err := images.Build(t.Context(), filepath.Join(l.dir, "images"), "langid")
	if err != nil {
		t.Fatal(err)
	}
	files["langid.tar"] = langid.File
	files["agent-test.tar"] = l.testWorker(t, root)
	probe := filepath.Join(l.dir, "images", "probe")
	build(t, root, []string{"CGO_ENABLED=0"}, "go", "build", "-trimpath", "-o", probe, "./integration/isolation/probe")
	files["probe.oci.tar"] = probe + ".oci.tar"
	build(t, root, nil, "go", "run", "./packaging/archive", "-program", probe, "-out", files["probe.oci.tar"])
	return files
}

// testWorker builds the image of the engine lane's worker.
func (l *lab) testWorker(t *testing.T, root string) (archive string) {
	program := filepath.Join(l.dir, "images", "worker")
	build(t, root, []string{"CGO_ENABLED=0"}, "go", "build", "-trimpath", "-o", program, "./integration/agenttest/worker")
	binary, err := ociarchive.Binary(program, "/worker")
	if err != nil {
		t.Fatal(err)
	}
	layer, err := ociarchive.Files([]ociarchive.File{binary}, "/tmp", "/proc", "/sys", "/dev")
	if err != nil {
		t.Fatal(err)
	}
	archive = filepath.Join(l.dir, "images", "agent-test.tar")
	if _, err := ociarchive.Write(archive, ociarchive.Image{Name: "agent-test", Layers: []ociarchive.Layer{layer}}); err != nil {
		t.Fatal(err)
	}
	return archive
}

func build(t *testing.T, root string, environment []string, name string, args ...string) {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), name, args...)
	cmd.Dir, cmd.Env = root, append(os.Environ(), environment...)
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("%s: %v\n%s", name, err, out)
	}
}

// close ends the machine; after a success its disk is of no use any more.
func (l *lab) close(t *testing.T, payload string) {
	if l.machine != nil {
		if err := l.machine.Cut(); err != nil {
			t.Error(err)
		}
	}
	remove := []string{l.config.Dir}
	if !t.Failed() {
		remove = append(remove, l.config.Overlay, payload)
	}
	for _, path := range remove {
		if err := os.RemoveAll(path); err != nil {
			t.Error(err)
		}
	}
	l.tell(t, "everything", verdict(t), l.began, "")
	t.Logf("\n%s", strings.Join(l.table, "\n"))
}

func verdict(t *testing.T) string {
	if t.Failed() {
		return "FAIL"
	}
	return "ok"
}

// tell adds a line to the table and writes it: a run that is interrupted has
// one too.
func (l *lab) tell(t *testing.T, name, verdict string, began time.Time, text string) {
	line := fmt.Sprintf("%-4s  %-32s %6.1f s  %s", verdict, name, time.Since(began).Seconds(), text)
	l.table = append(l.table, line)
	if err := os.WriteFile(filepath.Join(l.dir, "table.txt"), []byte(strings.Join(l.table, "\n")+"\n"), 0o644); err != nil {
		t.Error(err)
	}
}

func (l *lab) boot(t *testing.T) {
	t.Helper()
	ctx, cancel := context.WithTimeoutCause(t.Context(), bootLimit, fmt.Errorf("not within %s", bootLimit))
	defer cancel()
	began := time.Now()
	m, _, err := machine.Boot(ctx, l.config)
	if err != nil {
		t.Fatal(err)
	}
	l.machine = m
	l.tell(t, "boot", "ok", began, "")
}

// row runs one check as a subtest.
func (l *lab) row(t *testing.T, r row) {
	if !r.needed && !wanted(r.name) {
		return
	}
	t.Run(r.name, func(t *testing.T) { l.do(t, r) })
}

func (l *lab) do(t *testing.T, r row) (text string, notes []string) {
	t.Helper()
	if l.broken != "" {
		t.Fatalf("%s failed before it", l.broken)
	}
	if l.stoodStill.Load() {
		t.Fatal("the machine stood still before it")
	}
	ctx, cancel := context.WithTimeoutCause(t.Context(), rowLimit, fmt.Errorf("not within %s", rowLimit))
	defer cancel()
	began := time.Now()
	text, notes, err := l.machine.Do(ctx, func(said string) { t.Log(said) }, r.command, r.arguments...)
	err = errors.Join(err, l.keep(r.command, notes))
	if err != nil && l.stoodStill.Load() {
		l.tell(t, r.name, "FAIL", began, "the machine stood still")
		t.Fatal("the machine stood still: its kernel answered nothing any more, and its power was cut")
	}
	if err != nil {
		l.tell(t, r.name, "FAIL", began, strings.SplitN(err.Error(), "\n", 2)[0])
		if r.needed {
			l.broken = r.name
		}
		l.diagnose(t, r.name)
		t.Fatal(err)
	}
	l.tell(t, r.name, "ok", began, text)
	return text, notes
}

// keep gives the witness what a command noted.
func (l *lab) keep(command string, notes []string) error {
	switch command {
	case "configure":
		for _, note := range notes {
			if err := l.witness.SetKey(note); err != nil {
				return err
			}
		}
	case "controller-isolation":
		return l.keepRefusals(notes, "controller's container")
	case "users":
		return l.keepRefusals(notes, "quittance-controller", "nobody")
	case "controller-job", "kills", "give-owner", "clock-steps", "orders", "settle":
		for _, note := range notes {
			if err := l.witness.Take(note); err != nil {
				return err
			}
		}
	}
	return nil
}

// keepRefusals writes what was refused, and compares it with what is listed of
// those who tried beside the units.
func (l *lab) keepRefusals(notes []string, who ...string) error {
	var got []refusals.Refusal
	for _, note := range notes {
		r, err := refusals.Parse(note)
		if err != nil {
			return err
		}
		got = append(got, r)
	}
	l.refused = append(l.refused, got...)
	if err := os.WriteFile(filepath.Join(l.dir, "refused.txt"), []byte(refusals.Format(l.refused)), 0o644); err != nil {
		return err
	}
	text, err := os.ReadFile("../../packaging/systemd/refused.txt")
	if err != nil {
		return err
	}
	known, err := refusals.ParseList(string(text))
	if err != nil {
		return err
	}
	return refusals.Same(got, refusals.Of(known, who...))
}

// diagnose keeps what explains a failure, which it makes one: a machine that
// stands still from here on is no excuse for what was found.
func (l *lab) diagnose(t *testing.T, name string) {
	t.Helper()
	t.Fail()
	ctx, cancel := context.WithTimeout(context.WithoutCancel(t.Context()), 20*time.Minute)
	defer cancel()
	var text strings.Builder
	_, _, err := l.machine.Do(ctx, func(said string) { text.WriteString(said) }, "diagnose")
	if err != nil {
		fmt.Fprintf(&text, "\ndiagnose: %v\nconsole:\n%s\n", err, l.machine.Console(50))
	}
	// The next check shall find the machine as it should be.
	if _, _, err := l.machine.Do(ctx, func(string) {}, "tidy"); err != nil {
		fmt.Fprintf(&text, "\ntidy: %v\n", err)
	}
	file := filepath.Join(l.dir, "failure-"+name+".log")
	if err := os.WriteFile(file, []byte(text.String()), 0o644); err != nil {
		t.Error(err)
	}
	t.Logf("failed units, journal, mounts and processes are in build/vm/%s, the console in build/vm/console.log", filepath.Base(file))
}

// reboot boots the machine anew, in order, with live workers.
func (l *lab) reboot(t *testing.T) {
	var left []string
	t.Run("reboot", func(t *testing.T) {
		_, left = l.do(t, ask("reboot-leave"))
		began := time.Now()
		l.do(t, row{name: "reboot-asked", command: "reboot", needed: true})
		ctx, cancel := context.WithTimeoutCause(t.Context(), bootLimit, fmt.Errorf("not within %s", bootLimit))
		defer cancel()
		if _, err := l.machine.AwaitHello(ctx); err != nil {
			l.broken = "reboot"
			t.Fatal(err)
		}
		l.tell(t, "reboot", "ok", began, "")
	})
	l.row(t, ask("boot-order"))
	l.row(t, row{name: "reboot-units", command: "units"})
	l.row(t, row{name: "reboot-allocations", command: "reboot-audit", arguments: left})
}

// clockSteps steps the machine's clock. It comes after everything that reads the
// journal, whose entries have the times of the steps. A failure may leave the
// generation with another owner than what comes next needs.
func (l *lab) clockSteps(t *testing.T) {
	const name = "clock-steps"
	if !wanted(name) {
		return
	}
	passed := t.Run(name, func(t *testing.T) {
		l.do(t, ask(name, l.witness.Last()))
		l.audit(t, name)
	})
	if !passed && l.broken == "" {
		l.broken = name
	}
}

// orders acts on every ordered pair of units under load. Between different acts
// that is many, so those are for -mixed.
func (l *lab) orders(t *testing.T, first, second string) {
	every := pairsAtOnce
	name := "orders-" + first
	switch {
	case first != second && !*mixed:
		return
	case first != second:
		name += "-" + second
		every = 1
	case *mixed:
		every = 1
	}
	if !wanted(name) {
		return
	}
	t.Run(name, func(t *testing.T) {
		l.do(t, row{name: name, command: "orders", arguments: []string{l.witness.Last(), name, first, second, fmt.Sprint(every)}})
		l.audit(t, name)
	})
}

// audit checks what was noted once nothing is under way: one history without a
// loss, no job lost or run twice, no number lost or used twice (I5 I8 I10 I27).
func (l *lab) audit(t *testing.T, name string) {
	t.Helper()
	problems := []error{l.witness.Whole(), l.witness.Story(true)}
	ends := l.witness.Ends()
	for _, job := range l.witness.Jobs() {
		if ends[job] == "" {
			problems = append(problems, fmt.Errorf("job %s was acknowledged and never ended", job))
		}
	}
	if err := errors.Join(problems...); err != nil {
		l.tell(t, name+"-audit", "FAIL", time.Now(), strings.SplitN(err.Error(), "\n", 2)[0])
		l.diagnose(t, name)
		t.Fatal(err)
	}
}

// powerOff ends the machine in order.
func (l *lab) powerOff(t *testing.T) {
	t.Run("power-off", func(t *testing.T) {
		l.do(t, ask("power-off"))
		ctx, cancel := context.WithTimeoutCause(t.Context(), bootLimit, fmt.Errorf("not within %s", bootLimit))
		defer cancel()
		if err := l.machine.AwaitOff(ctx); err != nil {
			t.Fatal(err)
		}
		l.machine = nil
	})
}

// powerCut runs jobs, cuts the power at a random moment, boots and audits.
func (l *lab) powerCut(t *testing.T, n int) {
	if l.broken != "" {
		t.Fatalf("%s failed before it", l.broken)
	}
	began := time.Now()
	l.broken = t.Name() // until it passed
	held := l.witness.Receipts()
	after := l.runLoad(t, n)
	sent := l.witness.Receipts() - held
	acknowledged, ended := len(l.witness.Jobs()), len(l.witness.Ends())
	if err := disk.Check(t.Context(), l.config.Overlay); err != nil {
		t.Fatal(err)
	}
	l.boot(t)
	l.broken = ""
	ends := l.witness.Ends()
	l.do(t, row{name: fmt.Sprintf("cut-%d-settle", n), command: "settle", arguments: l.jobsToSettle(), needed: true})
	l.do(t, row{name: fmt.Sprintf("cut-%d-ledger", n), command: "ledger"})
	l.do(t, row{name: fmt.Sprintf("cut-%d-nothing-left", n), command: "nothing-left"})
	l.audit(t, fmt.Sprintf("power-cut-%d", n))
	lost := 0
	for job, end := range l.witness.Ends() {
		if _, before := ends[job]; !before && !strings.HasPrefix(end, string(api.JobFinished)+" ") {
			lost++
		}
	}
	l.tell(t, fmt.Sprintf("power-cut-%d", n), "ok", began, fmt.Sprintf(
		"after %.1f s; %d receipts sent out, %d of %d jobs had ended; afterwards %d receipts (%d unread), %d executions lost to the cut",
		after.Seconds(), sent, ended, acknowledged, l.witness.Receipts(), l.witness.Unread(), lost))
}

// jobsToSettle are the arguments of the guest's settle.
func (l *lab) jobsToSettle() []string {
	arguments := []string{l.witness.Last()}
	for _, job := range l.witness.Jobs() {
		if !l.witness.HasReceipts(job) {
			job += "+"
		}
		arguments = append(arguments, job)
	}
	return arguments
}

// runLoad runs the load and cuts the power at a random moment after the first
// job was acknowledged.
func (l *lab) runLoad(t *testing.T, n int) time.Duration {
	replies, err := l.machine.Ask("load", l.witness.Last(), fmt.Sprintf("cut-%d", n))
	if err != nil {
		t.Fatal(err)
	}
	known := len(l.witness.Jobs())
	patience := time.NewTimer(rowLimit)
	defer patience.Stop()
	var cut <-chan time.Time
	after := time.Duration(rand.Int64N(int64(45 * time.Second)))
	for {
		select {
		case message, open := <-replies:
			if !open {
				t.Fatal("the guest was gone before the power was cut")
			}
			if message.Kind.Final() {
				l.diagnose(t, fmt.Sprintf("load-%d", n))
				t.Fatalf("the load ended: %s", message.Text)
			}
			if err := l.witness.Take(message.Text); err != nil {
				t.Fatal(err)
			}
			if cut == nil && len(l.witness.Jobs()) > known {
				cut = time.After(after)
			}
		case <-cut:
			if err := l.machine.Cut(); err != nil {
				t.Fatal(err)
			}
			l.machine = nil
			for message := range replies { // what had left the machine
				if message.Kind.Final() {
					continue
				}
				if err := l.witness.Take(message.Text); err != nil {
					t.Fatal(err)
				}
			}
			return after
		case <-patience.C:
			l.diagnose(t, fmt.Sprintf("load-%d", n))
			t.Fatalf("no job was acknowledged within %s", rowLimit)
		}
	}
}
