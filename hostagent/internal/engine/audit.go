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
	mounts, err := auditMounts(e.o.Namespace)
	if err != nil {
		return nil, err
	}
	out = append(out, mounts...)
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

// auditProcesses finds shims of our namespace and engine, and our log sinks, by
// their command lines.
func (e *Engine) auditProcesses() ([]Leftover, error) {
	entries, err := os.ReadDir("/proc")
	if err != nil {
		return nil, fmt.Errorf("engine: audit processes: %w", err)
	}
	var out []Leftover
	for _, entry := range entries {
		if _, err := strconv.Atoi(entry.Name()); err != nil {
			continue
		}
		line, err := os.ReadFile(filepath.Join("/proc", entry.Name(), "cmdline"))
		if errors.Is(err, fs.ErrNotExist) || errors.Is(err, unix.ESRCH) {
			continue
		}
		if err != nil {
			return nil, fmt.Errorf("engine: audit processes: %w", err)
		}
		args := strings.Split(string(bytes.TrimRight(line, "\x00")), "\x00")
		switch {
		case strings.HasPrefix(filepath.Base(args[0]), "containerd-shim") &&
			argument(args, "-namespace") == e.o.Namespace && argument(args, "-address") == e.o.Address:
			out = append(out, Leftover{Kind: "shim", Name: argument(args, "-id")})
		case len(args) == 3 && args[0] == e.o.LogSink.Binary && args[1] == e.o.LogSink.Verb:
			out = append(out, Leftover{Kind: "log-sink", Name: "process " + entry.Name()})
		}
	}
	return out, nil
}

func argument(args []string, name string) string {
	if i := slices.Index(args, name); i >= 0 && i+1 < len(args) {
		return args[i+1]
	}
	return ""
}

// auditMounts finds the root file systems that shims mounted for us.
func auditMounts(namespace string) ([]Leftover, error) {
	table, err := os.ReadFile("/proc/self/mountinfo")
	if err != nil {
		return nil, fmt.Errorf("engine: audit mounts: %w", err)
	}
	var out []Leftover
	for line := range strings.Lines(string(table)) {
		fields := strings.Fields(line)
		if len(fields) > 4 && strings.Contains(fields[4], "/"+namespace+"/q-") {
			out = append(out, Leftover{Kind: "mount", Name: fields[4]})
		}
	}
	return out, nil
}
