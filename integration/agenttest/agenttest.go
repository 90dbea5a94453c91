// Package agenttest runs the whole hostagent binary over its socket with a
// private containerd, for the engine and crash lanes.
//
// It owns the processes and directories of such a run and its audit: nothing
// of the agent's may be left on the machine at the end. It must not know what
// a test wants to show.
package agenttest

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/quittance/quittance/integration/canary"
	"github.com/quittance/quittance/integration/ociarchive"
	"github.com/quittance/quittance/integration/privateengine"
	"github.com/quittance/quittance/protocol"
	"github.com/quittance/quittance/protocol/hostclient"
)

// Kit is what is built once for all tests of a package.
type Kit struct {
	dir    string
	binary string // hostagent
	worker string // the program inside the image, also a client for other users
	image  string // archive
}

// NewKit builds the agent with the build tags given, the worker and its image.
// The image also gets further programs, given as import paths; each lies at
// the root by its own name. The caller calls Close.
func NewKit(tags string, programs ...string) (k *Kit, err error) {
	if os.Geteuid() != 0 {
		return nil, errors.New("this lane needs root: it starts containers")
	}
	dir, err := os.MkdirTemp("", "qt")
	if err != nil {
		return nil, err
	}
	k = &Kit{dir: dir, binary: filepath.Join(dir, "hostagent"), worker: filepath.Join(dir, "worker"), image: filepath.Join(dir, "image.tar")}
	made := k // a failed return names none
	defer func() {
		if err != nil {
			err = errors.Join(err, made.Close())
		}
	}()
	if err := os.Chmod(dir, 0o755); err != nil { // another user runs the worker as a client
		return nil, err
	}
	if err := build(k.binary, "github.com/quittance/quittance/cmd/hostagent", tags); err != nil {
		return nil, err
	}
	if err := build(k.worker, "github.com/quittance/quittance/integration/agenttest/worker", ""); err != nil {
		return nil, err
	}
	program, err := ociarchive.Binary(k.worker, "/worker")
	if err != nil {
		return nil, err
	}
	files := []ociarchive.File{program}
	for _, pkg := range programs {
		name := path.Base(pkg)
		if err := build(filepath.Join(dir, name), pkg, ""); err != nil {
			return nil, err
		}
		if program, err = ociarchive.Binary(filepath.Join(dir, name), "/"+name); err != nil {
			return nil, err
		}
		files = append(files, program)
	}
	layer, err := ociarchive.Files(files, "/tmp", "/proc", "/sys", "/dev")
	if err != nil {
		return nil, err
	}
	if _, err := ociarchive.Write(k.image, ociarchive.Image{Name: "agent-test", Layers: []ociarchive.Layer{layer}}); err != nil {
		return nil, err
	}
	return k, nil
}

func build(out, pkg, tags string) error {
	cmd := exec.Command("go", "build", "-tags", tags, "-o", out, pkg)
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0")
	if text, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("build %s: %w\n%s", pkg, err, text)
	}
	return nil
}

// Close removes what was built.
func (k *Kit) Close() error { return os.RemoveAll(k.dir) }

// Lab is one test's engine and agent.
type Lab struct {
	t      testing.TB
	kit    *Kit
	dir    string
	cgroup string // of the agent, below every hierarchy
	pinned string
	flags  []string

	// EngineAddress, where it is not empty, goes before the engine's own socket
	// in every command that follows: a proxy's, for example.
	EngineAddress string

	// BootID, where it is not empty, is what agents started from now on read as
	// the identity of the machine's boot: as if it had been booted anew.
	BootID string

	Engine     *privateengine.Engine
	Generation protocol.ID
	HostKey    string

	agent  *exec.Cmd
	exited chan struct{} // closed once agent was reaped
	log    *bytes.Buffer
	stderr *os.File // of agents started from now on; nil: log

	// Secrets must not be found in the agent's log and files at the end (I37).
	// The lab adds the host key; a path is relative to the state directory.
	Secrets canary.Set
}

// patience bounds every wait for a real condition, on a machine with much else
// to do.
const patience = 2 * time.Minute

// Reached tells whether an allocation is in a state, or past it.
func Reached(now, until protocol.State) bool {
	order := []protocol.State{
		protocol.StateAccepted, protocol.StateCreating, protocol.StateStarted, protocol.StateRetiring,
		protocol.StateExited, protocol.StateRetired, protocol.StateConsumed, protocol.StateReleased,
	}
	return slices.Index(order, now) >= slices.Index(order, until)
}

// Alive tells whether a process lives. One that ended and was not reaped yet does
// not.
func Alive(pid int) bool {
	stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	_, state, _ := strings.Cut(string(stat), ") ")
	return err == nil && !strings.HasPrefix(state, "Z") && !strings.HasPrefix(state, "X")
}

// NewLab starts a private engine, imports the image and makes a generation.
// The agent is not started yet. At the end of the test everything is stopped,
// and what is left of it fails the test. flags are added to every command.
func (k *Kit) NewLab(t testing.TB, flags ...string) *Lab {
	t.Helper()
	dir, err := os.MkdirTemp("", "ql")
	if err != nil {
		t.Fatal(err)
	}
	l := &Lab{t: t, kit: k, dir: dir, cgroup: "/quittance-test-" + filepath.Base(dir), flags: flags, log: new(bytes.Buffer)}
	t.Cleanup(l.clean)
	if err := os.Chmod(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.Mkdir(l.path("profiles"), 0o755); err != nil {
		t.Fatal(err)
	}
	if l.Engine, err = privateengine.Start(t.Context(), privateengine.Config{Dir: l.path("engine")}); err != nil {
		t.Fatal(err)
	}
	l.pinned = strings.TrimSpace(l.Command("image", "import", k.image))
	for _, line := range strings.Split(strings.TrimSpace(l.Command("init")), "\n") {
		fields := strings.Fields(line)
		switch value := fields[len(fields)-1]; fields[0] {
		case "generation":
			l.Generation = protocol.ID(value)
		case "host":
			l.HostKey = value
		}
	}
	return l
}

func (l *Lab) path(name string) string { return filepath.Join(l.dir, name) }

// Socket is the agent's private socket.
func (l *Lab) Socket() string { return l.path("run/agent.sock") }

// Worker is the program inside the image, which is a client too.
func (l *Lab) Worker() string { return l.kit.worker }

// Binary is the hostagent program.
func (l *Lab) Binary() string { return l.kit.binary }

// Cgroup is the agent's cgroup below every hierarchy's mount.
func (l *Lab) Cgroup() string { return l.cgroup }

// StateDir is the agent's state directory.
func (l *Lab) StateDir() string { return l.path("state") }

// CDIDir is the agent's only directory of CDI specs. It exists once a test has
// made it.
func (l *Lab) CDIDir() string { return l.path("cdi") }

func (l *Lab) arguments(verb ...string) []string {
	return append(append(verb, "--config", "/dev/null",
		"--state-dir", l.StateDir(), "--socket", l.Socket(), "--profile-dir", l.path("profiles"), "--cdi-dirs", l.CDIDir(), "--engine-address", orElse(l.EngineAddress, l.Engine.Address()),
		"--cgroup-root", l.cgroup, "--controller-uids", "0", "--operator-uids", "0", "--log-level", "debug",
		// An unknown creation is looked for again after the longest of these.
		"--engine-create-timeout", "10s", "--engine-start-timeout", "10s", "--engine-delete-timeout", "10s", "--engine-read-timeout", "3s",
		"--exit-grace", "2s"), l.flags...)
}

// Command runs one command of hostagent to its end and returns its output.
func (l *Lab) Command(verb ...string) string {
	l.t.Helper()
	out, err := l.TryCommand(verb...)
	if err != nil {
		l.t.Fatalf("hostagent %s: %v", strings.Join(verb, " "), err)
	}
	return out
}

// TryCommand is [Lab.Command] for commands that may fail.
func (l *Lab) TryCommand(verb ...string) (string, error) {
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	return l.CommandUntil(ctx, verb...)
}

// CommandUntil is [Lab.TryCommand] for a command that is killed, as the kernel
// would, when ctx ends.
func (l *Lab) CommandUntil(ctx context.Context, verb ...string) (string, error) {
	var stdout, stderr bytes.Buffer
	cmd := exec.CommandContext(ctx, l.kit.binary, l.arguments(verb...)...)
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	if err := cmd.Run(); err != nil {
		return stdout.String(), fmt.Errorf("%w: %s", err, stderr.String())
	}
	return stdout.String(), nil
}

// Profile writes a profile of the test image.
func (l *Lab) Profile(name string, p Profile) {
	l.t.Helper()
	if p.Memory == "" {
		p.Memory = "64MiB"
	}
	if p.Channels == 0 {
		p.Channels = 4
	}
	text := fmt.Sprintf("name = %q\nimage = %q\nargs = [%s]\n[resources]\nmemory = %q\n%s\n[channel]\naddress = %q\n"+
		"ready = { connect = true }\nmax_channels = %d\n[lifecycle]\nstop_grace = %q\n%s\n[process]\ninit = %v\n%s\n",
		name, l.pinned, quoted(append([]string{orElse(p.Program, "/worker")}, p.Args...)), p.Memory, p.Resources,
		orElse(p.Address, "tcp://127.0.0.1:8080"), p.Channels, orElse(p.Grace, "20s"), p.Lifecycle, !p.NoInit, p.Tables)
	if err := os.WriteFile(l.path("profiles/"+name+".toml"), []byte(text), 0o644); err != nil {
		l.t.Fatal(err)
	}
}

// Profile is what tests vary.
type Profile struct {
	Program   string   // default /worker
	Args      []string // of the program
	Memory    string   // default 64MiB
	Resources string   // further lines of [resources]
	Address   string   // of the channel; default tcp://127.0.0.1:8080
	Channels  int      // max_channels; default 4
	Grace     string   // default 20s, which no worker needs that ends at SIGTERM
	Lifecycle string   // further lines of [lifecycle]
	NoInit    bool
	Tables    string // further tables, after all others
}

func quoted(args []string) string {
	out := make([]string, len(args))
	for i, a := range args {
		out[i] = fmt.Sprintf("%q", a)
	}
	return strings.Join(out, ", ")
}

func orElse(text, otherwise string) string {
	if text == "" {
		return otherwise
	}
	return text
}

// Start starts the agent and waits until it serves. environment is added, for
// example a failpoint.
func (l *Lab) Start(environment ...string) {
	l.t.Helper()
	l.Launch(environment...)
	client := l.Operator()
	l.Eventually("the agent serves", func() (bool, error) {
		select {
		case <-l.exited:
			return false, fmt.Errorf("the agent ended:\n%s", l.log)
		default:
		}
		host, err := client.Host(l.t.Context())
		return err == nil && host.Engine.Available, nil
	})
}

// Launch starts the agent and does not wait.
func (l *Lab) Launch(environment ...string) {
	l.t.Helper()
	command := append([]string{l.kit.binary}, l.arguments("run")...)
	if l.BootID != "" {
		file := l.path("boot_id")
		if err := os.WriteFile(file, []byte(l.BootID+"\n"), 0o444); err != nil {
			l.t.Fatal(err)
		}
		// In a mount namespace of its own; each program becomes the next one, so
		// the process is the agent's.
		command = append([]string{"unshare", "--mount", "--propagation", "slave", "sh", "-c",
			`mount --bind "$0" /proc/sys/kernel/random/boot_id && exec "$@"`, file}, command...)
	}
	l.agent = exec.Command(command[0], command[1:]...)
	l.agent.Env = append(os.Environ(), environment...)
	l.agent.Stderr = l.log
	if l.stderr != nil {
		l.agent.Stderr = l.stderr
	}
	if err := l.agent.Start(); err != nil {
		l.t.Fatal(err)
	}
	exited := make(chan struct{})
	l.exited = exited
	go func(cmd *exec.Cmd) {
		// How it ended is what the test did to it; see Exited and Kill.
		_ = cmd.Wait()
		close(exited)
	}(l.agent)
}

// Use makes a subtest the one whose failures the lab reports from now on; the
// lab's own test again at its end. A lab that several subtests share needs it.
func (l *Lab) Use(t testing.TB) {
	owner := l.t
	l.t = t
	t.Cleanup(func() { l.t = owner })
}

// PID is the running agent's process.
func (l *Lab) PID() int { return l.agent.Process.Pid }

// Image is the reference of the test image in the engine.
func (l *Lab) Image() string { return l.pinned }

// Exited is closed when the agent's process is gone.
func (l *Lab) Exited() <-chan struct{} { return l.exited }

// Reload tells the agent to read the profiles again, as systemd would.
func (l *Lab) Reload() {
	l.t.Helper()
	if err := l.agent.Process.Signal(syscall.SIGHUP); err != nil {
		l.t.Fatal(err)
	}
}

// AwaitExit waits for the agent to end by itself, for example at a failpoint.
func (l *Lab) AwaitExit() {
	l.t.Helper()
	select {
	case <-l.exited:
	case <-time.After(patience):
		l.t.Fatalf("the agent did not end:\n%s", l.log)
	}
}

// Kill ends the agent as the kernel would, without warning.
func (l *Lab) Kill() { l.signal(syscall.SIGKILL) }

// Strike is [Lab.Kill] without waiting, for another goroutine than the test's.
func (l *Lab) Strike() error {
	if err := l.agent.Process.Kill(); err != nil && !errors.Is(err, os.ErrProcessDone) {
		return err
	}
	return nil
}

// Stall stops the agent's process for a time, as an overloaded machine does.
func (l *Lab) Stall(d time.Duration) {
	l.t.Helper()
	if err := l.agent.Process.Signal(syscall.SIGSTOP); err != nil {
		l.t.Fatal(err)
	}
	<-time.After(d) // how long is what is tested; nothing is waited for
	if err := l.agent.Process.Signal(syscall.SIGCONT); err != nil {
		l.t.Fatal(err)
	}
}

// Stop ends the agent as systemd would.
func (l *Lab) Stop() { l.signal(syscall.SIGTERM) }

func (l *Lab) signal(sig syscall.Signal) {
	l.t.Helper()
	if err := l.agent.Process.Signal(sig); err != nil && !errors.Is(err, os.ErrProcessDone) {
		l.t.Fatal(err)
	}
	l.AwaitExit()
}

// Log is what the agents of this lab wrote so far. It may be read only while
// none runs.
func (l *Lab) Log() string { return l.log.String() }

// LogTo gives later agents a standard error of the test's own; Log has nothing
// of theirs.
func (l *Lab) LogTo(stderr *os.File) { l.stderr = stderr }

// Operator is a client without an owner.
func (l *Lab) Operator() *hostclient.Client { return hostclient.New(l.Socket(), hostclient.Options{}) }

// Controller is a client of an attempt store.
func (l *Lab) Controller(owner protocol.ID) *hostclient.Generation {
	return hostclient.New(l.Socket(), hostclient.Options{Owner: func() protocol.ID { return owner }}).In(l.Generation)
}

// ResidentBytes is the running agent's memory.
func (l *Lab) ResidentBytes() int64 {
	l.t.Helper()
	return ResidentBytes(l.t, l.agent.Process.Pid)
}

// ResidentBytes is the memory of a running process.
func ResidentBytes(t testing.TB, pid int) int64 {
	t.Helper()
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/statm", pid))
	if err != nil {
		t.Fatal(err)
	}
	var total, resident int64
	if _, err := fmt.Sscan(string(text), &total, &resident); err != nil {
		t.Fatal(err)
	}
	return resident * int64(os.Getpagesize())
}

// OpenFiles counts the running agent's descriptors.
func (l *Lab) OpenFiles() int {
	l.t.Helper()
	entries, err := os.ReadDir(fmt.Sprintf("/proc/%d/fd", l.agent.Process.Pid))
	if err != nil {
		l.t.Fatal(err)
	}
	return len(entries)
}

// Goroutines ends the running agent with SIGQUIT, on which Go's runtime writes
// every goroutine's stack, and counts them.
func (l *Lab) Goroutines() int {
	l.t.Helper()
	l.signal(syscall.SIGQUIT)
	_, dump, found := strings.Cut(l.log.String()[max(0, strings.LastIndex(l.log.String(), "SIGQUIT: quit")):], "SIGQUIT: quit")
	if !found {
		l.t.Fatalf("the agent wrote no stacks:\n%s", l.log)
	}
	return strings.Count(dump, "\ngoroutine ")
}

// RestartEngine starts the private engine again after its Stop or Kill.
func (l *Lab) RestartEngine() error {
	e, err := privateengine.Start(l.t.Context(), privateengine.Config{Dir: l.path("engine")})
	if err == nil {
		l.Engine = e
	}
	return err
}

// Eventually polls a real condition; an error ends the wait at once.
func (l *Lab) Eventually(what string, condition func() (bool, error)) {
	l.t.Helper()
	deadline := time.Now().Add(patience)
	tick := time.NewTicker(10 * time.Millisecond)
	defer tick.Stop()
	for {
		ok, err := condition()
		if err != nil {
			l.t.Fatalf("%s: %v", what, err)
		}
		if ok {
			return
		}
		if time.Now().After(deadline) {
			l.t.Fatalf("%s: not within %s", what, patience)
		}
		<-tick.C
	}
}

// Leftovers lists what the agent has on the machine now.
func (l *Lab) Leftovers() []string {
	l.t.Helper()
	var out []string
	for line := range strings.Lines(l.Command("leftovers")) {
		out = append(out, strings.TrimSpace(line))
	}
	return out
}

// searchSecrets fails the test for every secret where it does not belong. No
// agent runs any more. Where a test has taken the state directory away or put
// another key in its place, what is there counts.
func (l *Lab) searchSecrets() {
	if err := l.Secrets.AddFile("host key", l.StateDir(), "host.key"); err != nil && !errors.Is(err, fs.ErrNotExist) {
		l.t.Error(err)
	}
	found := l.Secrets.In("the agent's log", l.log.Bytes())
	inFiles, err := l.Secrets.Under(l.StateDir())
	if err != nil {
		l.t.Error(err)
	}
	for _, f := range append(found, inFiles...) {
		l.t.Errorf("secret found: %s", f)
	}
}

// clean stops everything and fails the test for what is left of it.
func (l *Lab) clean() {
	if l.agent != nil {
		select {
		case <-l.exited:
		default:
			l.Stop()
		}
	}
	l.searchSecrets()
	if l.t.Failed() {
		l.t.Logf("agent's log:\n%s", l.log)
	}
	if l.Engine != nil {
		if err := l.Engine.Destroy(); err != nil {
			l.t.Errorf("private engine: %v", err)
		}
	}
	groups, err := filepath.Glob("/sys/fs/cgroup/*" + l.cgroup)
	if err != nil {
		l.t.Error(err)
	}
	if _, err := os.Stat("/sys/fs/cgroup" + l.cgroup); err == nil {
		groups = append(groups, "/sys/fs/cgroup"+l.cgroup)
	}
	for _, group := range groups {
		// Whatever is inside is a finding; it goes all the same, so that one
		// failed test does not disturb the next.
		inside, err := filepath.Glob(group + "/*/")
		if err != nil || len(inside) > 0 {
			l.t.Errorf("cgroups left behind: %v %v", inside, err)
		}
		for _, one := range inside {
			// What the agent makes is two levels deep; a level that is not
			// there is no failure.
			_ = os.Remove(filepath.Join(one, "c"))
			_ = os.Remove(one)
		}
		if err := os.Remove(group); err != nil {
			l.t.Errorf("cgroup left behind: %v", err)
		}
	}
	if err := os.RemoveAll(l.dir); err != nil {
		l.t.Error(err)
	}
}
