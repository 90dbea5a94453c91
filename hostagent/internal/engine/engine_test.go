//go:build engine

package engine

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/hashicorp/go-hclog"
	"github.com/quittance/quittance/hostagent/internal/cgroup"
	"github.com/quittance/quittance/hostagent/internal/channel"
	"github.com/quittance/quittance/hostagent/internal/logsink"
	"github.com/quittance/quittance/hostagent/internal/process"
	"github.com/quittance/quittance/integration/ociarchive"
	"github.com/quittance/quittance/integration/privateengine"
	"github.com/quittance/quittance/profiles"
	"github.com/quittance/quittance/protocol"
)

// world is one private containerd with the worker's image in it, shared by all
// tests of the package: each uses its own containers and leaves none.
type world struct {
	private *privateengine.Engine
	engine  *Engine
	groups  *cgroup.Manager
	image   string
	logs    string
}

var shared world

func TestMain(m *testing.M) {
	if len(os.Args) == 3 && os.Args[1] == "log-sink" { // started by the shim
		os.Exit(logsink.Main(os.Args[2]))
	}
	code, err := runTests(m)
	if err != nil {
		fmt.Fprintln(os.Stderr, "engine tests:", err)
		code = 1
	}
	os.Exit(code)
}

func runTests(m *testing.M) (code int, err error) {
	dir, err := os.MkdirTemp("", "qe")
	if err != nil {
		return 1, err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(dir)) }()
	ctx, cancel := context.WithTimeout(context.Background(), 2*time.Minute) // for the preparations
	defer cancel()
	shared.logs = filepath.Join(dir, "logs")
	if err := os.Mkdir(shared.logs, 0o700); err != nil {
		return 1, err
	}
	if shared.groups, err = cgroup.Open(cgroup.Options{Root: fmt.Sprintf("/quittance-test-%d", os.Getpid())}); err != nil {
		return 1, err
	}
	defer func() { err = errors.Join(err, shared.groups.RemoveRoot()) }()
	if shared.private, err = privateengine.Start(ctx, privateengine.Config{Dir: filepath.Join(dir, "e")}); err != nil {
		return 1, err
	}
	defer func() { err = errors.Join(err, shared.private.Destroy()) }()
	self, err := os.Executable()
	if err != nil {
		return 1, err
	}
	shared.engine, err = Open(ctx, Options{
		Address: shared.private.Address(), InitPath: "/usr/bin/catatonit",
		LogSink:        LogSinkCommand{Binary: self, Verb: "log-sink"},
		HealthInterval: 100 * time.Millisecond, Logger: hclog.New(&hclog.LoggerOptions{Level: hclog.Warn}),
	})
	if err != nil {
		return 1, err
	}
	defer func() { err = errors.Join(err, shared.engine.Close()) }()
	archive, err := workerArchive(dir)
	if err != nil {
		return 1, err
	}
	imported, err := shared.engine.ImportImage(ctx, archive)
	if err != nil {
		return 1, err
	}
	shared.image = imported[0].Pinned
	code = m.Run()
	audit, stop := context.WithTimeout(context.Background(), time.Minute)
	defer stop()
	left, err := shared.engine.Leftovers(audit, shared.groups)
	if err != nil {
		return 1, err
	}
	if len(left) > 0 {
		return 1, fmt.Errorf("left behind: %v", left)
	}
	return code, nil
}

func workerArchive(dir string) (string, error) {
	binary := filepath.Join(dir, "worker")
	build := exec.Command("go", "build", "-o", binary, "./testdata/worker")
	build.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := build.CombinedOutput(); err != nil {
		return "", fmt.Errorf("build worker: %w\n%s", err, out)
	}
	file, err := ociarchive.Binary(binary, "/worker")
	if err != nil {
		return "", err
	}
	layer, err := ociarchive.Files([]ociarchive.File{file}, "/tmp", "/proc", "/sys", "/dev")
	if err != nil {
		return "", err
	}
	archive := filepath.Join(dir, "worker.tar")
	_, err = ociarchive.Write(archive, ociarchive.Image{Name: "engine-test", Layers: []ociarchive.Layer{layer}})
	return archive, err
}

// life is one container from its cgroup to its removal, driven step by step
// the way the agent's worker does.
type life struct {
	t        *testing.T
	nonce    protocol.ID
	group    *cgroup.Group
	baseline cgroup.Reading
	watch    *cgroup.Watch
	created  Created
	proc     *process.Handle
	task     *channel.Task
	retired  bool
}

func profileOf(args ...string) *profiles.Profile {
	return &profiles.Profile{
		Name: "engine-test", Image: shared.image, Args: append([]string{"/worker"}, args...), UID: 65532, GID: 65532,
		Resources:  profiles.Resources{MemoryBytes: 64 << 20, PIDs: 512, CPUMillis: 2000},
		Filesystem: profiles.Filesystem{Tmpfs: []profiles.Tmpfs{{Path: "/tmp", SizeBytes: 1 << 20}}},
		Channel:    profiles.Channel{Network: "tcp", Address: "127.0.0.1:8080"},
		Lifecycle:  profiles.Lifecycle{StopSignal: "SIGTERM", OOM: profiles.OOMKillGroup},
		Logs:       profiles.Logs{CaptureBytes: 4096}, Init: true,
	}
}

// create makes the container up to its created task.
func create(t *testing.T, p *profiles.Profile) *life {
	t.Helper()
	l := &life{t: t, nonce: protocol.NewID()}
	t.Cleanup(l.cleanup)
	var err error
	l.group, err = shared.groups.Create(l.nonce, cgroup.LimitsOf(p))
	must(t, err)
	l.baseline, err = l.group.Read()
	must(t, err)
	sink := logsink.Config{Dir: shared.logs, Nonce: l.nonce, CaptureBytes: p.Logs.CaptureBytes}
	must(t, logsink.Prepare(sink))
	image, err := shared.engine.ResolveImage(t.Context(), p.Image)
	must(t, err)
	l.created, err = shared.engine.Create(t.Context(), CreateRequest{
		Nonce: l.nonce, Generation: testGeneration, Number: 7, Profile: p, Image: image,
		CgroupPath: l.group.LeafPath(), SwapAccounting: shared.groups.SwapAccounting(), LogArgument: sink.Argument(),
	})
	must(t, err)
	l.proc, err = process.Open(process.Identity{PID: l.created.PID, StartTicks: l.created.StartTicks})
	must(t, err)
	l.task, err = channel.Open(l.proc)
	must(t, err)
	l.watch, err = l.group.Watch(time.Second)
	must(t, err)
	return l
}

func start(t *testing.T, p *profiles.Profile) *life {
	t.Helper()
	l := create(t, p)
	must(t, shared.engine.Start(t.Context(), l.created.Identity))
	return l
}

// testGeneration is the generation of every container of these tests.
const testGeneration = protocol.ID("0123456789abcdef0123456789abcdef")

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func bounded(t *testing.T, d time.Duration) context.Context {
	ctx, cancel := context.WithTimeout(t.Context(), d)
	t.Cleanup(cancel)
	return ctx
}

// awaitExit waits for the pidfd and then for the engine's own word.
func (l *life) awaitExit() Exit {
	l.t.Helper()
	must(l.t, l.proc.Wait(bounded(l.t, 30*time.Second)))
	exit, err := shared.engine.Wait(bounded(l.t, time.Minute), l.created.Identity)
	must(l.t, err)
	return exit
}

// verdict reads the counters as they must be read: before the task is deleted.
func (l *life) verdict() protocol.OOM {
	l.t.Helper()
	final, err := l.group.Read()
	must(l.t, err)
	return cgroup.Verdict(l.baseline.Counters, final, cgroup.Evidence{LimitEvents: l.watch.LimitEvents()})
}

// retire removes everything and checks that each part was there.
func (l *life) retire() Removal {
	l.t.Helper()
	ctx := bounded(l.t, 30*time.Second)
	if removed, err := shared.engine.DeleteTask(ctx, l.created.Identity); err != nil || removed != protocol.RemovedByUs {
		l.t.Fatalf("task: %q, %v", removed, err)
	}
	removal, err := shared.engine.DeleteContainer(ctx, l.created.Identity)
	must(l.t, err)
	if removal.Container != protocol.RemovedByUs || removal.Snapshot != protocol.RemovedByUs {
		l.t.Errorf("removal %+v, want both removed", removal)
	}
	if removed, err := l.group.Remove(ctx); err != nil || removed != protocol.RemovedByUs {
		l.t.Fatalf("cgroup: %q, %v", removed, err)
	}
	status, err := logsink.AwaitEnd(ctx, shared.logs, l.nonce)
	must(l.t, err)
	if status != logsink.StatusFinished {
		l.t.Errorf("log sink %s, want finished", status)
	}
	l.retired = true
	l.noneLeft()
	return removal
}

func (l *life) noneLeft() {
	l.t.Helper()
	left, err := shared.engine.Leftovers(l.t.Context(), shared.groups)
	must(l.t, err)
	for _, leftover := range left {
		if strings.Contains(leftover.Name, string(l.nonce)) {
			l.t.Errorf("left behind: %s", leftover)
		}
	}
	if _, err := os.Lstat(filepath.Join(runcRoot, Namespace, ContainerID(l.nonce))); !errors.Is(err, os.ErrNotExist) {
		l.t.Errorf("left behind: the runtime's state: %v", err)
	}
	if _, err := os.Lstat(shared.engine.shimSocket(shared.engine.o.Address, ContainerID(l.nonce))); !errors.Is(err, os.ErrNotExist) {
		l.t.Errorf("left behind: the shim's socket: %v", err)
	}
}

// cleanup brings a test that failed half-way back to nothing.
func (l *life) cleanup() {
	ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
	defer cancel()
	var failed []error
	if l.watch != nil {
		failed = append(failed, l.watch.Close())
	}
	if l.task != nil {
		failed = append(failed, l.task.Close())
	}
	if l.group != nil && !l.retired {
		failed = append(failed, l.group.Kill())
		if l.created.ID != "" {
			_, err := shared.engine.Wait(ctx, l.created.Identity)
			if err != nil && !errors.Is(err, ErrNoTask) && !errors.Is(err, ErrNotFound) {
				failed = append(failed, err)
			}
			_, err = shared.engine.DeleteTask(ctx, l.created.Identity)
			failed = append(failed, err)
			_, err = shared.engine.DeleteContainer(ctx, l.created.Identity)
			failed = append(failed, err)
		}
		_, err := l.group.Remove(ctx)
		failed = append(failed, err)
	}
	if l.proc != nil {
		failed = append(failed, l.proc.Close())
	}
	if err := errors.Join(failed...); err != nil {
		l.t.Errorf("cleanup: %v", err)
	}
}

// dial connects as soon as the worker listens.
func (l *life) dial(network, address string) io.ReadWriteCloser {
	l.t.Helper()
	ctx := bounded(l.t, time.Minute)
	for {
		socket, err := l.task.Dial(ctx, network, address)
		if err == nil {
			l.t.Cleanup(func() { _ = socket.Close() })
			return socket
		}
		if !errors.Is(err, channel.ErrNotConnectable) || ctx.Err() != nil {
			l.t.Fatalf("dial: %v; log: %s", err, l.log())
		}
		<-time.After(5 * time.Millisecond)
	}
}

func (l *life) log() string {
	log, err := logsink.Read(shared.logs, l.nonce, 7)
	if err != nil {
		return err.Error()
	}
	return string(log.Head) + string(log.Tail)
}

// awaitLog polls the capture until it holds the text.
func (l *life) awaitLog(text string) {
	l.t.Helper()
	ctx := bounded(l.t, time.Minute)
	for !strings.Contains(l.log(), text) {
		select {
		case <-ctx.Done():
			l.t.Fatalf("log never held %q: %.500s", text, l.log())
		case <-time.After(5 * time.Millisecond):
		}
	}
}
