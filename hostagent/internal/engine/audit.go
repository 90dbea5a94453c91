package engine

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	tasks "github.com/containerd/containerd/api/services/tasks/v1"
	"github.com/containerd/containerd/v2/core/snapshots"
	"github.com/quittance/quittance/hostagent/internal/cgroup"
	"golang.org/x/sys/unix"
)

// Leftovers lists everything of ours on this machine: containers, tasks,
// container snapshots and leases of the namespace, shims of this engine,
// mounts, log sinks of our binary and cgroups. What lives on purpose is in it
// too; the caller subtracts. groups may be nil.
func (e *Engine) Leftovers(ctx context.Context, groups *cgroup.Manager) ([]Leftover, error) {
	call, cancel := e.call(ctx, e.o.Deadlines.Read)
	defer cancel()
	var out []Leftover
	add := func(kind, name string) { out = append(out, Leftover{Kind: kind, Name: name}) }

	records, err := e.client.ContainerService().List(call)
	if err != nil {
		return nil, fmt.Errorf("engine: audit containers: %w", native(err))
	}
	for _, record := range records {
		add("container", record.ID)
	}
	running, err := e.client.TaskService().List(call, &tasks.ListTasksRequest{})
	if err != nil {
		return nil, fmt.Errorf("engine: audit tasks: %w", native(err))
	}
	for _, task := range running.GetTasks() {
		add("task", task.GetID())
	}
	err = e.client.SnapshotService(e.o.Snapshotter).Walk(call, func(_ context.Context, info snapshots.Info) error {
		if info.Kind != snapshots.KindCommitted { // committed ones are the images' layers
			add("snapshot", info.Name)
		}
		return nil
	})
	if err != nil {
		return nil, fmt.Errorf("engine: audit snapshots: %w", native(err))
	}
	held, err := e.client.LeasesService().List(call)
	if err != nil {
		return nil, fmt.Errorf("engine: audit leases: %w", native(err))
	}
	for _, lease := range held {
		if lease.Labels[labelNonce] != "" { // others are of image operations, with an expiry
			add("lease", lease.ID)
		}
	}
	processes, err := e.auditProcesses()
	if err != nil {
		return nil, err
	}
	out = append(out, processes...)
	layers, err := e.snapshotRoot(call)
	if err != nil {
		return nil, err
	}
	mounts, err := readMounts("/" + e.o.Namespace + "/q-")
	if err != nil {
		return nil, err
	}
	for _, m := range mounts {
		if strings.Contains(m.options, layers) { // of this engine, not of another one on the machine
			add("mount", m.point)
		}
	}
	if groups != nil {
		own, foreign, err := groups.List()
		if err != nil {
			return nil, err
		}
		for _, nonce := range own {
			add("cgroup", string(nonce))
		}
		for _, name := range foreign {
			add("cgroup", name)
		}
	}
	return out, nil
}

// auditProcesses finds shims of our namespace and engine, and our log sinks.
func (e *Engine) auditProcesses() ([]Leftover, error) {
	var out []Leftover
	err := eachCommand(func(pid string, args []string) {
		if id, ok := e.shimOf(args); ok {
			out = append(out, Leftover{Kind: "shim", Name: id})
		}
		if len(args) == 3 && args[0] == e.o.LogSink.Binary && args[1] == e.o.LogSink.Verb {
			out = append(out, Leftover{Kind: "log-sink", Name: "process " + pid})
		}
	})
	return out, err
}

// hasShim reports whether a shim of the container runs.
func (e *Engine) hasShim(id string) (bool, error) {
	found := false
	err := eachCommand(func(_ string, args []string) {
		if of, ok := e.shimOf(args); ok && of == id {
			found = true
		}
	})
	return found, err
}

// shimOf reads the container's identifier from the command line of a shim of
// ours.
func (e *Engine) shimOf(args []string) (id string, ok bool) {
	ok = strings.HasPrefix(filepath.Base(args[0]), "containerd-shim") &&
		argument(args, "-namespace") == e.o.Namespace && argument(args, "-address") == e.o.Address
	return argument(args, "-id"), ok
}

// eachCommand calls f with the number and the command line of every process.
func eachCommand(f func(pid string, args []string)) error {
	entries, err := os.ReadDir("/proc")
	if err != nil {
		return fmt.Errorf("engine: processes: %w", err)
	}
	for _, entry := range entries {
		if _, err := strconv.Atoi(entry.Name()); err != nil {
			continue
		}
		line, err := os.ReadFile(filepath.Join("/proc", entry.Name(), "cmdline"))
		if errors.Is(err, fs.ErrNotExist) || errors.Is(err, unix.ESRCH) {
			continue
		}
		if err != nil {
			return fmt.Errorf("engine: processes: %w", err)
		}
		f(entry.Name(), strings.Split(string(bytes.TrimRight(line, "\x00")), "\x00"))
	}
	return nil
}

func argument(args []string, name string) string {
	if i := slices.Index(args, name); i >= 0 && i+1 < len(args) {
		return args[i+1]
	}
	return ""
}

// snapshotRoot is the directory of our snapshotter's layers, by which mounts of
// this engine are known; "" where the snapshotter does not tell.
func (e *Engine) snapshotRoot(ctx context.Context) (string, error) {
	answer, err := e.client.IntrospectionService().Plugins(ctx, "id=="+e.o.Snapshotter)
	if err != nil {
		return "", fmt.Errorf("engine: audit snapshotter: %w", native(err))
	}
	for _, plugin := range answer.GetPlugins() {
		if root := plugin.GetExports()["root"]; root != "" {
			return root + "/", nil
		}
	}
	return "", nil
}

// mountEntry is one line of the mount table.
type mountEntry struct {
	point   string
	options string // of the file system: the layers of an overlay
}

// readMounts returns the mounts whose mount point has the part in its path.
func readMounts(part string) ([]mountEntry, error) {
	table, err := os.ReadFile("/proc/self/mountinfo")
	if err != nil {
		return nil, fmt.Errorf("engine: mounts: %w", err)
	}
	var out []mountEntry
	for line := range strings.Lines(string(table)) {
		left, right, _ := strings.Cut(line, " - ")
		fields, super := strings.Fields(left), strings.Fields(right)
		if len(fields) > 4 && len(super) > 2 && strings.Contains(fields[4], part) {
			out = append(out, mountEntry{point: fields[4], options: super[2]})
		}
	}
	return out, nil
}

// rootMounts finds where shims mounted the root file system of the container.
// Its identifier is random, so no other engine has it.
func rootMounts(namespace, id string) ([]string, error) {
	entries, err := readMounts("/" + namespace + "/" + id + "/")
	if err != nil {
		return nil, err
	}
	var out []string
	for _, m := range entries {
		out = append(out, m.point)
	}
	return out, nil
}
