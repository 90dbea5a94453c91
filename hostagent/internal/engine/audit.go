package engine

import (
	"context"
	"fmt"
	"path/filepath"
	"regexp"
	"strings"

	tasks "github.com/containerd/containerd/api/services/tasks/v1"
	"github.com/containerd/containerd/v2/core/snapshots"
	"github.com/quittance/quittance/hostagent/internal/cgroup"
	"github.com/quittance/quittance/protocol"
)

// Leftovers lists everything of ours on this machine: containers, tasks,
// container snapshots and leases of the namespace, shims of this engine, the
// processes of hooks, mounts, our log sinks and cgroups. What lives on purpose
// is in it too; the caller subtracts. groups may be nil.
func (e *Engine) Leftovers(ctx context.Context, groups *cgroup.Manager) ([]Leftover, error) {
	call, cancel := e.call(ctx, e.o.Deadlines.Read)
	defer cancel()
	var out []Leftover
	add := func(kind, name string) { out = append(out, leftover(kind, name, name)) }

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
	layers, err := e.snapshotRoot(call)
	if err != nil {
		return nil, err
	}
	processes, err := e.auditProcesses(daemonRoot(layers))
	if err != nil {
		return nil, err
	}
	out = append(out, processes...)
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

// nonceIn finds a nonce in the identifiers, paths and arguments that we make.
var nonceIn = regexp.MustCompile(`(?:^|[^0-9a-f])([0-9a-f]{32})(?:[^0-9a-f]|$)`)

// leftover is one whose nonce stands in text.
func leftover(kind, name, text string) Leftover {
	l := Leftover{Kind: kind, Name: name}
	if m := nonceIn.FindStringSubmatch(text); m != nil {
		l.Nonce = protocol.ID(m[1])
	}
	return l
}

// auditProcesses finds shims of our namespace and engine, what devices' hooks
// left, and our log sinks. A shim is of our engine by the address that it was
// given or, where ours is a proxy's, by the daemon's root directory.
func (e *Engine) auditProcesses(root string) ([]Leftover, error) {
	var out []Leftover
	err := eachCommand(func(pid string, args []string) error {
		if len(args) == 3 && args[0] == e.o.LogSink.Binary && args[1] == e.o.LogSink.Verb && e.o.LogSink.Owns(args[2]) {
			out = append(out, leftover("log-sink", "process "+pid, args[2]))
			return nil
		}
		shim, address, err := e.shimOf(pid, args)
		if err != nil {
			return err
		}
		if shim != "" {
			if address == e.o.Address || e.worksFor(root, pid, shim) {
				out = append(out, leftover("shim", shim, shim))
			}
			return nil
		}
		hook, address, err := hookOf(pid)
		if hook != "" && address == e.o.Address {
			out = append(out, leftover("hook", "process "+pid+" of "+hook, hook))
		}
		return err
	})
	return out, err
}

// daemonRoot is the daemon's root directory, above its snapshotter's where that
// lies at its usual place; "" elsewhere.
func daemonRoot(layers string) string {
	above, name := filepath.Split(strings.TrimSuffix(layers, "/"))
	if !strings.HasPrefix(name, "io.containerd.snapshotter.") {
		return ""
	}
	return filepath.Clean(above)
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
