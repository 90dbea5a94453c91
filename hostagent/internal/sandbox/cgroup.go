package sandbox

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// cgroupMount is where every distribution mounts the hierarchies.
const cgroupMount = "/sys/fs/cgroup"

// groupPrefix keeps other programs' cgroups apart: what is found in the
// container's own is killed.
const groupPrefix = "quittance-container-"

// The leaves of a delegated unit.
const (
	supervisorLeaf = "supervisor"
	containerLeaf  = "container"
)

// delegatedMarks are the extended attributes with which systemd says that a
// cgroup is left to the service.
var delegatedMarks = []string{"trusted.delegate", "user.delegate"}

// placement is the container's cgroup. In a delegated unit it moves this process
// out of the way first: the kernel has no processes beside child cgroups.
func placement(name string) (string, error) {
	text, err := os.ReadFile("/proc/self/cgroup")
	if err != nil {
		return "", err
	}
	unit, hierarchy := unitOf(string(text), unified())
	if unit == "" || !delegated(filepath.Join(hierarchy, unit)) {
		return "/" + groupPrefix + name, nil
	}
	leaf := filepath.Join(hierarchy, unit, supervisorLeaf)
	if err := os.Mkdir(leaf, 0o755); err != nil && !errors.Is(err, fs.ErrExist) {
		return "", fmt.Errorf("cgroup: %w", err)
	}
	if err := os.WriteFile(filepath.Join(leaf, "cgroup.procs"), []byte("0"), 0); err != nil {
		return "", fmt.Errorf("cgroup: %w", err)
	}
	return filepath.Join(unit, containerLeaf), nil
}

func unified() bool {
	_, err := os.Stat(filepath.Join(cgroupMount, "cgroup.controllers"))
	return err == nil
}

// unitOf reads /proc/PID/cgroup: the cgroup that systemd made for the process,
// and the mount of the hierarchy that systemd lives in. The leaf that an earlier
// call moved the process into is left out.
func unitOf(text string, unified bool) (unit, hierarchy string) {
	prefix, hierarchy := "name=systemd:", filepath.Join(cgroupMount, "systemd")
	if unified {
		prefix, hierarchy = ":", cgroupMount
	}
	for line := range strings.Lines(text) {
		_, rest, _ := strings.Cut(strings.TrimSpace(line), ":")
		if path, ok := strings.CutPrefix(rest, prefix); ok && path != "/" {
			return strings.TrimSuffix(path, "/"+supervisorLeaf), hierarchy
		}
	}
	return "", hierarchy
}

func delegated(dir string) bool {
	for _, mark := range delegatedMarks {
		value := make([]byte, 8)
		if n, err := unix.Getxattr(dir, mark, value); err == nil && string(value[:n]) == "1" {
			return true
		}
	}
	return false
}

// emptyGroup kills whatever is left in the container's cgroup, in every
// hierarchy, and removes it. Nothing but the container's processes is ever put
// there, by anybody.
func emptyGroup(group string, patience time.Duration) error {
	deadline := time.Now().Add(patience)
	for {
		left, err := members(group)
		if err != nil {
			return err
		}
		if len(left) == 0 {
			return removeGroup(group)
		}
		for _, pid := range left {
			if err := unix.Kill(pid, unix.SIGKILL); err != nil && !errors.Is(err, unix.ESRCH) {
				return fmt.Errorf("process %d in cgroup %s: %w", pid, group, err)
			}
		}
		if time.Now().After(deadline) {
			return fmt.Errorf("cgroup %s still holds the processes %v: no second program is started beside them", group, left)
		}
		time.Sleep(10 * time.Millisecond)
	}
}

// groupDirs are the group's directories: one below a unified hierarchy, on
// version 1 one in each.
func groupDirs(group string) ([]string, error) {
	if unified() {
		return existing(filepath.Join(cgroupMount, group))
	}
	mounts, err := os.ReadDir(cgroupMount)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	var all []string
	for _, m := range mounts {
		found, err := existing(filepath.Join(cgroupMount, m.Name(), group))
		if err != nil {
			return nil, err
		}
		all = append(all, found...)
	}
	return all, nil
}

func existing(dir string) ([]string, error) {
	_, err := os.Stat(filepath.Join(dir, "cgroup.procs"))
	if errors.Is(err, fs.ErrNotExist) || errors.Is(err, unix.ENOTDIR) {
		return nil, nil
	}
	return []string{dir}, err
}

// members are the processes in the group.
func members(group string) ([]int, error) {
	dirs, err := groupDirs(group)
	if err != nil {
		return nil, err
	}
	var all []int
	for _, dir := range dirs {
		text, err := os.ReadFile(filepath.Join(dir, "cgroup.procs"))
		if errors.Is(err, fs.ErrNotExist) || errors.Is(err, unix.ENODEV) {
			continue // removed meanwhile
		}
		if err != nil {
			return nil, err
		}
		for field := range strings.FieldsSeq(string(text)) {
			pid, err := strconv.Atoi(field)
			if err != nil {
				return nil, err
			}
			if pid > 0 { // 0: a process of another PID namespace
				all = append(all, pid)
			}
		}
	}
	return all, nil
}

func removeGroup(group string) error {
	dirs, err := groupDirs(group)
	if err != nil {
		return err
	}
	var problems []error
	for _, dir := range dirs {
		if err := os.Remove(dir); err != nil && !errors.Is(err, fs.ErrNotExist) {
			problems = append(problems, fmt.Errorf("cgroup: %w", err))
		}
	}
	return errors.Join(problems...)
}
