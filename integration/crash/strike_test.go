//go:build crash

package crash_test

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/quittance/quittance/integration/agenttest"
	"github.com/quittance/quittance/integration/crash/matrix"
	"github.com/quittance/quittance/integration/engineproxy"
	"github.com/quittance/quittance/integration/privateengine"
	"github.com/quittance/quittance/protocol"
)

// TestMatrix strikes every failpoint with every fault that is possible there:
// a short scripted life (accept, start, channel, retire, consume, release), one
// strike, a restart where something died, the end, and the audit. Rows of one
// fault share an engine and a ledger, number after number, so that what one row
// leaves behind fails it or the next. I5, I6, I8, I10, I11, I15 to I18, I20, I21,
// I35, I36.
//
// QUITTANCE_ROUNDS strikes every row that often.
func TestMatrix(t *testing.T) {
	rows := matrixRows()
	take := matrix.Part(t, names(rows), parts)
	rounds := 1
	if text := os.Getenv("QUITTANCE_ROUNDS"); text != "" {
		var err error
		if rounds, err = strconv.Atoi(text); err != nil || rounds < 1 {
			t.Fatalf("QUITTANCE_ROUNDS must be a number from 1")
		}
	}
	table := &tally{rows: rows, rounds: rounds, struck: map[string]int{}, failed: map[string]int{}}
	for _, fault := range faults {
		var column []point
		for _, r := range rows {
			if r.fault == fault && take(r.String()) {
				column = append(column, r.point)
			}
		}
		if len(column) == 0 {
			continue
		}
		t.Run(fault, func(t *testing.T) {
			var site *site
			for i, p := range column {
				if site == nil {
					site = newSite(t, fault)
				}
				if !t.Run(p.name, func(t *testing.T) {
					for round := range rounds {
						table.add(fault)
						site.row(t, p)
						if i == len(column)-1 && round == rounds-1 {
							site.noGoroutineLeak(t)
						} else {
							site.lab.Stop()
						}
					}
				}) {
					table.fail(fault)
					site = nil // the next row is not to suffer from this one
				}
			}
		})
	}
	table.write(t)
}

// site is what the rows of one fault share.
type site struct {
	t         *testing.T // of the fault
	fault     string
	lab       *agenttest.Lab
	proxy     *engineproxy.Proxy // of the faults between agent and engine
	filler    string             // of fullDisk
	mark      string
	bystander *bystander
	client    *client
	files     int // descriptors of an agent that serves and has done nothing
}

func newSite(t *testing.T, fault string) *site {
	t.Helper()
	s := &site{t: t, fault: fault}
	// Longer than a create takes on a machine that is busy with other tests, and
	// no longer than the longest deadline, which an unknown creation waits for.
	flags := []string{"--engine-create-timeout", "10s", "--engine-start-timeout", "10s"}
	if fault == timeOut {
		flags = nil // it waits for them
	}
	if fault == fullDisk {
		disk := tmpfs(t, "96m")
		s.filler = filepath.Join(disk, "filler")
		flags = append(flags, "--state-dir", filepath.Join(disk, "state"), "--max-slots", "2")
	}
	s.lab = kit.NewLab(t, flags...)
	s.lab.Profile("echo", agenttest.Profile{Args: []string{"serve"}, Grace: "1s", Tables: s.lab.Card()})
	s.mark = filepath.Join(s.lab.Engine.Dir(), "struck")
	s.bystander = newBystander(t, s.lab)
	if fault == loseAnswer || fault == timeOut {
		var err error
		if s.proxy, err = engineproxy.Start(filepath.Join(s.lab.Engine.Dir(), "proxy.sock"), s.lab.Engine.Address()); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() {
			if err := s.proxy.Close(); err != nil {
				t.Error(err)
			}
		})
		s.lab.EngineAddress = s.proxy.Address()
	}
	s.client = newClient(t, s.lab)
	s.client.others = s.bystander.name
	return s
}

// action is the failpoint's part in a fault.
func action(fault string) string {
	switch fault {
	case killAgent:
		return "kill"
	case loseReply:
		return "drop"
	case failWrite:
		return "fail"
	case failSync:
		return "failsync"
	case noSpace:
		return "nospace"
	}
	return "stop" // and the test strikes somebody else meanwhile
}

// row is one strike at one point.
func (s *site) row(t *testing.T, p point) {
	s.lab.Use(t)
	c := s.client
	c.t = t
	defer func() {
		c.t = s.t
		if t.Failed() {
			s.lab.Stop()
			t.Logf("agent's log:\n%s", s.lab.Log())
		}
	}()
	if err := os.Remove(s.mark); err != nil && !errors.Is(err, fs.ErrNotExist) {
		t.Fatal(err)
	}
	// It does not have to come up: some points lie before that.
	s.lab.Launch("QUITTANCE_FAILPOINT="+p.name+":"+action(s.fault), "QUITTANCE_FAILPOINT_MARK="+s.mark)
	switch action(s.fault) {
	case "kill", "fail", "failsync", "nospace":
		s.untilEnd(t, c)
	case "drop":
		s.untilStruck(t, c)
	default:
		s.strikeAnother(t, c, p)
	}
	if s.filler != "" {
		if err := os.Remove(s.filler); err != nil {
			t.Fatal(err)
		}
	}
	c.audit(endings(s.fault, p)...)
	s.bystander.check(t)
	if s.fault != killAgent || p.when != atStart {
		s.noLeak(t)
	}
	c.number++
}

// untilEnd drives numbers until the agent has ended by the strike, and with the
// next agent to the end.
func (s *site) untilEnd(t *testing.T, c *client) {
	t.Helper()
	for range 3 {
		// A point may lie behind the last reply; what is due then strikes at the
		// next commit, which only a next number brings.
		if !c.drive() || s.struck() {
			break
		}
		if action(s.fault) == "kill" {
			break // on its way: the next lines wait for it
		}
		c.number++
	}
	s.lab.AwaitExit()
	if !s.struck() {
		t.Fatal("the agent ended, and not by the strike")
	}
	s.lab.Start()
	if !c.drive() {
		t.Fatal("the agent ended again")
	}
}

// untilStruck drives the number to its end over a lost reply.
func (s *site) untilStruck(t *testing.T, c *client) {
	t.Helper()
	if !c.drive() {
		t.Fatal("the agent ended")
	}
	// Asked once more, where the strike lay behind the last reply.
	if err := poll(t.Context(), func() (bool, error) { c.whole(); return s.struck(), nil }); err != nil {
		t.Fatalf("no reply was lost: %v", err)
	}
}

// strikeAnother strikes while the agent stands still at its point, lets it go
// on, and drives the number to its end.
func (s *site) strikeAnother(t *testing.T, c *client, p point) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	done := make(chan error, 1)
	go func() { done <- s.strike(ctx, p) }()
	driven := c.drive()
	if !driven {
		t.Fatal("the agent ended")
	}
	select {
	case err := <-done:
		if err != nil {
			t.Fatal(err)
		}
	case <-time.After(patience):
		t.Fatal("the point was not reached")
	}
}

// patience bounds waits for what has been decided already.
const patience = time.Minute

// strike waits until the agent stands still and does what the fault says.
func (s *site) strike(ctx context.Context, p point) (err error) {
	pid := s.lab.PID()
	if err := poll(ctx, func() (bool, error) { return s.struck() && stopped(pid), nil }); err != nil {
		return fmt.Errorf("the agent did not stop at its point: %w", err)
	}
	goOn := func() error { return syscall.Kill(pid, syscall.SIGCONT) }
	switch s.fault {
	case killContainerd:
		if err := s.lab.Engine.Kill(); err != nil {
			return errors.Join(err, goOn())
		}
		// It meets an engine that is away, and then one that is back.
		if err := goOn(); err != nil {
			return err
		}
		return s.lab.RestartEngine()
	case killShim:
		return errors.Join(s.killShim(), goOn())
	case fullDisk:
		return errors.Join(fill(s.filler), goOn())
	}
	way := engineproxy.Lose
	if s.fault == timeOut {
		way = engineproxy.Withhold
	}
	hit := s.proxy.Arm(engineproxy.Fault{Method: p.call, Way: way})
	if err := goOn(); err != nil {
		return err
	}
	select {
	case <-hit:
		return nil
	case <-ctx.Done():
		return fmt.Errorf("%s was not called", p.call)
	}
}

// killShim ends the only shim that is not the bystander's.
func (s *site) killShim() error {
	shims, err := s.lab.Engine.Shims()
	if err != nil {
		return err
	}
	shims = slices.DeleteFunc(shims, func(shim privateengine.Shim) bool { return shim.ContainerID == s.bystander.name })
	if len(shims) != 1 {
		return fmt.Errorf("%d shims are there, want one", len(shims))
	}
	return syscall.Kill(shims[0].PID, syscall.SIGKILL)
}

func (s *site) struck() bool {
	_, err := os.Stat(s.mark)
	return err == nil
}

// endings are what the retirement may say after a strike.
func endings(fault string, p point) []ending {
	adopted := ending{protocol.ReasonRequested, true}
	recovered := ending{protocol.ReasonAgentRecovery, false}
	notMade := ending{protocol.ReasonSetupFailed, false}
	perhapsRan := ending{protocol.ReasonSetupFailed, true}
	ended := ending{protocol.ReasonExited, true}
	switch fault {
	case killAgent:
		switch p.when {
		case making:
			return []ending{recovered}
		case running, gone:
			return []ending{adopted}
		}
		return []ending{recovered, adopted} // whichever commit it is
	case failWrite, failSync, noSpace:
		// The step after the point went on until its commit failed.
		if p.when == making {
			return []ending{recovered, adopted}
		}
		return []ending{adopted, recovered} // of the number after it, where the strike lay behind its end
	case killShim:
		if p.when == making {
			return []ending{notMade, perhapsRan}
		}
		return []ending{adopted, ended}
	case killContainerd, loseAnswer, timeOut:
		if p.when == making {
			return []ending{notMade, perhapsRan, adopted}
		}
		return []ending{adopted, perhapsRan}
	case fullDisk:
		if p.when == making {
			return []ending{notMade, adopted}
		}
	}
	return []ending{adopted}
}

// noGoroutineLeak compares the agent that went through the last row with a fresh
// one; both end by it.
func (s *site) noGoroutineLeak(t *testing.T) {
	t.Helper()
	worked := s.lab.Goroutines()
	s.lab.Start()
	if fresh := s.lab.Goroutines(); worked > fresh+spareGoroutines {
		t.Errorf("%d goroutines after the row, %d after a start", worked, fresh)
	}
}

// spareGoroutines are those of clients' connections that have not been closed
// yet: two each.
const spareGoroutines = 8

// spareFiles is how many descriptors more than at its start an idle agent may
// hold: connections of clients that have not been closed yet.
const spareFiles = 4

// noLeak compares the descriptors of an agent that has finished with those of
// the leanest that was seen. Memory says nothing over one life: the engine lane
// follows it over thousands.
func (s *site) noLeak(t *testing.T) {
	t.Helper()
	if s.files == 0 {
		s.files = s.lab.OpenFiles()
		return
	}
	last := 0
	err := poll(t.Context(), func() (bool, error) {
		last = s.lab.OpenFiles()
		return last <= s.files+spareFiles, nil
	})
	if err != nil {
		t.Errorf("%d descriptors are open, %d after the first row: %v", last, s.files, err)
	}
	s.files = min(s.files, last)
}

// poll waits for a real condition.
func poll(ctx context.Context, condition func() (bool, error)) error {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	tick := time.NewTicker(2 * time.Millisecond)
	defer tick.Stop()
	for {
		if ok, err := condition(); ok || err != nil {
			return err
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-tick.C:
		}
	}
}

// stopped tells whether SIGSTOP has reached a process.
func stopped(pid int) bool {
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return false
	}
	_, rest, _ := strings.Cut(string(text), ") ")
	return strings.HasPrefix(rest, "T")
}

// tmpfs mounts a small file system.
func tmpfs(t *testing.T, size string) string {
	t.Helper()
	disk := t.TempDir()
	if err := syscall.Mount("tmpfs", disk, "tmpfs", 0, "size="+size+",mode=0700"); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := syscall.Unmount(disk, 0); err != nil {
			t.Error(err)
		}
	})
	return disk
}

// fill writes until nothing more fits.
func fill(filler string) error {
	file, err := os.OpenFile(filler, os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o600)
	if err != nil {
		return err
	}
	for size := 1 << 20; size >= 4096; size /= 2 {
		for err = nil; err == nil; {
			_, err = file.Write(make([]byte, size))
		}
		if !errors.Is(err, syscall.ENOSPC) {
			return errors.Join(err, file.Close())
		}
	}
	return file.Close()
}

// bystander is a container in the agent's own engine and namespace that is not
// the agent's: nothing of it may ever be touched.
type bystander struct {
	lab  *agenttest.Lab
	name string // unlike any other's: the runtime knows no engines
	pid  string
}

func newBystander(t *testing.T, lab *agenttest.Lab) *bystander {
	t.Helper()
	group := lab.Cgroup() + "-bystander"
	b := &bystander{lab: lab, name: strings.TrimPrefix(group, "/")}
	b.ctr(t, "run", "--detach", "--null-io", "--cgroup", group, lab.Image(), b.name, "/worker", "stubborn")
	t.Cleanup(func() {
		b.ctr(t, "task", "delete", "--force", b.name)
		b.ctr(t, "container", "delete", b.name)
		groups, err := filepath.Glob("/sys/fs/cgroup/*" + group)
		if err != nil {
			t.Error(err)
		}
		for _, g := range append(groups, "/sys/fs/cgroup"+group) {
			if err := os.Remove(g); err != nil && !errors.Is(err, fs.ErrNotExist) {
				t.Error(err)
			}
		}
	})
	b.pid = b.find(t)
	return b
}

func (b *bystander) ctr(t *testing.T, args ...string) string {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), patience) // for the cleanup too
	defer cancel()
	out, err := exec.CommandContext(ctx, "ctr", append([]string{"--address", b.lab.Engine.Address(), "--namespace", "quittance"}, args...)...).CombinedOutput()
	if err != nil {
		t.Fatalf("ctr %s: %v\n%s", strings.Join(args, " "), err, out)
	}
	return string(out)
}

// find is the bystander's process as the engine knows it, "" where it does not run.
func (b *bystander) find(t *testing.T) string {
	t.Helper()
	for line := range strings.Lines(b.ctr(t, "task", "list")) {
		if fields := strings.Fields(line); len(fields) == 3 && fields[0] == b.name && fields[2] == "RUNNING" {
			return fields[1]
		}
	}
	t.Error("the bystander does not run")
	return ""
}

func (b *bystander) check(t *testing.T) {
	t.Helper()
	if pid := b.find(t); pid != b.pid {
		t.Errorf("the bystander is process %q, was %q", pid, b.pid)
	}
}

// tally counts strikes and violations.
type tally struct {
	rows   []strikeRow
	rounds int
	struck map[string]int
	failed map[string]int
}

func (y *tally) add(fault string)  { y.struck[fault]++ }
func (y *tally) fail(fault string) { y.failed[fault]++ }

// write leaves the table where the targets of the Makefile show it.
func (y *tally) write(t *testing.T) {
	t.Helper()
	var b strings.Builder
	struck, failed := 0, 0
	fmt.Fprintf(&b, "%-16s %6s %7s %10s\n", "fault", "points", "strikes", "violations")
	for _, fault := range faults {
		n := 0
		for _, r := range y.rows {
			if r.fault == fault {
				n++
			}
		}
		fmt.Fprintf(&b, "%-16s %6d %7d %10d\n", fault, n, y.struck[fault], y.failed[fault])
		struck, failed = struck+y.struck[fault], failed+y.failed[fault]
	}
	fmt.Fprintf(&b, "crash matrix of the host: %d rows (%d points x %d faults, the impossible left out), %d rounds: %d strikes, %d violations\n",
		len(y.rows), len(points), len(faults), y.rounds, struck, failed)
	t.Log("\n" + b.String())
	dir := filepath.Join("..", "..", "build", "crash")
	if err := os.MkdirAll(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dir, "matrix.txt"), []byte(b.String()), 0o644); err != nil {
		t.Fatal(err)
	}
}
