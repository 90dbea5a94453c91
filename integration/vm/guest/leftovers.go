package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
)

// namespaceOfEngine is the agent's namespace in containerd.
const namespaceOfEngine = "quittance"

// nothingLeft checks that nothing of any allocation is left on the machine.
func nothingLeft(ctx context.Context, _ *task) (string, error) {
	if err := leftovers(ctx); err != nil {
		return "", err
	}
	images, err := snapshots(ctx, "Committed")
	return fmt.Sprintf("%d snapshots, all of images", len(images)), err
}

// leftovers asks the agent, and then everybody whom the agent had make something:
// its own answer is what is being tested.
func leftovers(ctx context.Context) error {
	out, err := run(ctx, "/usr/sbin/hostagent", "leftovers")
	if err != nil {
		return err
	}
	var problems []error
	if out != "" {
		problems = append(problems, fmt.Errorf("hostagent leftovers lists: %s", out))
	}
	return errors.Join(append(problems, leftInEngine(ctx), leftOfShims(ctx), leftInKernel())...)
}

// leftInEngine looks into containerd: an image's snapshots are committed, a
// container's is active.
func leftInEngine(ctx context.Context) error {
	var problems []error
	for _, what := range [][]string{{"containers", "ls", "-q"}, {"tasks", "ls", "-q"}, {"leases", "ls", "-q"}} {
		out, err := run(ctx, "ctr", append([]string{"--namespace", namespaceOfEngine}, what...)...)
		if err != nil {
			return err
		}
		if out != "" {
			problems = append(problems, fmt.Errorf("%s are left in the engine: %s", what[0], out))
		}
	}
	for _, kind := range []string{"Active", "View"} {
		left, err := snapshots(ctx, kind)
		if err != nil {
			return err
		}
		if len(left) > 0 {
			problems = append(problems, fmt.Errorf("snapshots of kind %s are left in the engine: %s", kind, strings.Join(left, ", ")))
		}
	}
	return errors.Join(problems...)
}

// snapshots are the keys of the agent's snapshots of a kind.
func snapshots(ctx context.Context, kind string) (keys []string, err error) {
	out, err := run(ctx, "ctr", "--namespace", namespaceOfEngine, "snapshots", "ls")
	if err != nil {
		return nil, err
	}
	lines := strings.Split(out, "\n")
	if fields := strings.Fields(lines[0]); len(fields) != 3 || fields[2] != "KIND" {
		return nil, fmt.Errorf("ctr snapshots ls begins with %q", lines[0])
	}
	for _, line := range lines[1:] {
		// The parent, in the middle, may be none.
		if fields := strings.Fields(line); len(fields) >= 2 && fields[len(fields)-1] == kind {
			keys = append(keys, fields[0])
		}
	}
	return keys, nil
}

// leftOfShims looks for processes and bundles. A shim ends by itself, a moment
// after the engine's answer.
func leftOfShims(ctx context.Context) error {
	err := await(ctx, patience, "no shim is left", func() error {
		all, err := filepath.Glob("/proc/[0-9]*/comm")
		if err != nil {
			return err
		}
		var left []string
		for _, name := range all {
			comm, err := os.ReadFile(name)
			if err != nil {
				continue // the process has ended
			}
			if strings.HasPrefix(string(comm), "containerd-shim") {
				left = append(left, filepath.Base(filepath.Dir(name)))
			}
		}
		if len(left) > 0 {
			return fmt.Errorf("shims are left: processes %s", strings.Join(left, ", "))
		}
		return nil
	})
	// Their state. What containerd keeps beside it, in /var/lib, an empty directory
	// for each, outlives a power cut: containerd removes it when it starts for the
	// second time after that.
	left, globErr := filepath.Glob("/run/containerd/io.containerd.runtime.v2.task/" + namespaceOfEngine + "/*")
	if len(left) > 0 {
		globErr = fmt.Errorf("bundles are left: %s", strings.Join(left, ", "))
	}
	return errors.Join(err, globErr)
}

// leftInKernel looks for mounts and cgroups.
func leftInKernel() error {
	var problems []error
	mounts, err := os.ReadFile("/proc/self/mountinfo")
	if err != nil {
		return err
	}
	for line := range strings.Lines(string(mounts)) {
		if strings.Contains(line, "/quittance/q-") {
			problems = append(problems, fmt.Errorf("a mount is left: %s", strings.TrimSpace(line)))
		}
	}
	groups, err := os.ReadDir("/sys/fs/cgroup/system.slice/" + workersUnitOf)
	if err != nil {
		return err
	}
	for _, entry := range groups {
		if entry.IsDir() && entry.Name() != "hold" {
			problems = append(problems, fmt.Errorf("a cgroup is left: %s", entry.Name()))
		}
	}
	return errors.Join(problems...)
}
