package main

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"
)

// stopAndAudit stops the two programs, looks at everything that containers
// leave behind, and only then takes the engine away.
func (n *node) stopAndAudit(ctx context.Context) error {
	if err := n.follower.stop(5 * time.Second); err != nil {
		return err
	}
	n.follower = nil
	if err := n.controller.stop(60 * time.Second); err != nil {
		return err
	}
	n.controller = nil
	if err := n.host.stop(30 * time.Second); err != nil {
		return err
	}
	n.host = nil
	n.show.fact("controller and host agent ended by themselves")
	out, err := call(ctx, nil, "", nil, n.program("hostagent"), "--config", n.path("hostagent.toml"), "leftovers")
	if err != nil {
		return err
	}
	if left := strings.TrimSpace(out); left != "" {
		return fmt.Errorf("hostagent leftovers lists: %s", left)
	}
	n.show.fact("hostagent leftovers lists nothing")
	if err := n.auditEngine(ctx); err != nil {
		return err
	}
	cgroups, err := cgroupsBelow(n.cgroupRoot())
	if err != nil {
		return err
	}
	if len(cgroups) > 0 {
		return fmt.Errorf("cgroups are left: %s", strings.Join(cgroups, " "))
	}
	n.show.fact("cgroups of workers in every hierarchy: none")
	if err := n.searchSecrets(); err != nil {
		return err
	}
	dir := n.dir
	if err := n.takeDown(); err != nil {
		return err
	}
	n.show.fact("the engine, its directory and everything else of this demonstration are removed")
	return n.auditMachine(dir)
}

// auditEngine asks the engine what it still has in the agent's namespace.
func (n *node) auditEngine(ctx context.Context) error {
	for _, what := range []struct {
		name string
		args []string
	}{
		{"containers", []string{"containers", "ls", "-q"}},
		{"tasks", []string{"tasks", "ls", "-q"}},
		{"leases", []string{"leases", "ls", "-q"}},
		{"snapshots in use", []string{"snapshots", "ls"}},
	} {
		out, err := call(ctx, nil, "", nil, "ctr", append([]string{"--address", n.engine.Address(), "--namespace", "quittance"}, what.args...)...)
		if err != nil {
			return err
		}
		if what.name == "snapshots in use" {
			out = activeSnapshots(out)
		}
		if left := strings.TrimSpace(out); left != "" {
			return fmt.Errorf("%s are left in the engine: %s", what.name, left)
		}
		n.show.fact("%s in the engine: none", what.name)
	}
	left, err := n.engine.Leftovers()
	if err != nil {
		return err
	}
	if len(left) > 0 {
		return fmt.Errorf("the engine has %s", strings.Join(left, ", "))
	}
	n.show.fact("shims and mounts of the engine: none")
	return nil
}

// activeSnapshots keeps the snapshots that are not just an image's layers.
func activeSnapshots(listing string) string {
	var active []string
	for line := range strings.Lines(listing) {
		fields := strings.Fields(line)
		if len(fields) > 0 && fields[0] != "KEY" && fields[len(fields)-1] != "Committed" {
			active = append(active, fields[0])
		}
	}
	return strings.Join(active, " ")
}

// cgroupMounts lists the root of every cgroup hierarchy.
func cgroupMounts() ([]string, error) {
	table, err := os.ReadFile("/proc/self/mountinfo")
	if err != nil {
		return nil, err
	}
	var mounts []string
	for line := range strings.Lines(string(table)) {
		before, after, _ := strings.Cut(line, " - ")
		fields := strings.Fields(before)
		if len(fields) > 4 && strings.HasPrefix(after, "cgroup") {
			mounts = append(mounts, fields[4])
		}
	}
	return mounts, nil
}

// cgroupsBelow lists the cgroups below root in every hierarchy.
func cgroupsBelow(root string) ([]string, error) {
	mounts, err := cgroupMounts()
	if err != nil {
		return nil, err
	}
	var found []string
	for _, mount := range mounts {
		entries, err := os.ReadDir(filepath.Join(mount, root))
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if err != nil {
			return nil, err
		}
		for _, entry := range entries {
			if entry.IsDir() {
				found = append(found, filepath.Join(mount, root, entry.Name()))
			}
		}
	}
	return found, nil
}

// removeCgroups removes the demonstration's root cgroup in every hierarchy. One
// that has processes cannot be removed and is an error.
func removeCgroups(root string) error {
	mounts, err := cgroupMounts()
	if err != nil {
		return err
	}
	var failed []error
	for _, mount := range mounts {
		failed = append(failed, removeCgroup(filepath.Join(mount, root)))
	}
	return errors.Join(failed...)
}

// removeCgroup removes a cgroup and those below it, by rmdir alone: after a
// failed run workers' cgroups are still there, empty once their shims are gone.
func removeCgroup(dir string) error {
	entries, err := os.ReadDir(dir)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	for _, entry := range entries {
		if entry.IsDir() {
			if err := removeCgroup(filepath.Join(dir, entry.Name())); err != nil {
				return err
			}
		}
	}
	return os.Remove(dir)
}

// auditMachine looks for anything on the machine that still names the
// demonstration's directory.
func (n *node) auditMachine(dir string) error {
	if _, err := os.Lstat(dir); !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("%s is still there: %w", dir, errors.Join(err, fs.ErrExist))
	}
	mounts, err := os.ReadFile("/proc/self/mountinfo")
	if err != nil {
		return err
	}
	if strings.Contains(string(mounts), dir) {
		return errors.New("a mount of the demonstration is left")
	}
	n.show.fact("directory and mounts: none")
	entries, err := os.ReadDir("/proc")
	if err != nil {
		return err
	}
	for _, entry := range entries {
		pid, err := strconv.Atoi(entry.Name())
		if err != nil || pid == os.Getpid() {
			continue
		}
		line, err := os.ReadFile(filepath.Join("/proc", entry.Name(), "cmdline"))
		if err != nil {
			continue // ended meanwhile
		}
		if strings.Contains(string(line), dir) {
			return fmt.Errorf("process %d of the demonstration is left: %s", pid, strings.ReplaceAll(string(line), "\x00", " "))
		}
	}
	n.show.fact("processes: none")
	return nil
}
