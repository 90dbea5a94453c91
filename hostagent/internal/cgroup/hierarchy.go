package cgroup

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"github.com/quittance/quittance/protocol"
)

// hierarchy is one mounted cgroup tree: on v2 the only one, on v1 one per
// controller or group of controllers.
type hierarchy struct {
	mount       string
	controllers []string // v1 only: as in the mount's options, "name=systemd" included
}

func (h hierarchy) has(controller string) bool { return slices.Contains(h.controllers, controller) }

// limited reports whether limits or counters of ours live in this hierarchy.
// The other v1 hierarchies get our names from the runtime, which joins them
// all, and lose them at the removal.
func (h hierarchy) limited(mode protocol.CgroupMode) bool {
	return mode == protocol.CgroupV2 || h.has("memory") || h.has("pids") || h.has("cpu") || h.has("cpuacct")
}

// detect reads a mount table in the form of /proc/PID/mountinfo. On hybrid
// machines (a cgroup2 mount without the memory controller beside v1 mounts)
// the answer is v1, and the cgroup2 mount is one more hierarchy without limits
// of ours: the runtime joins that too.
func detect(table string) (protocol.CgroupMode, []hierarchy, error) {
	var v1 []hierarchy
	var v2 *hierarchy
	for line := range strings.Lines(table) {
		left, right, ok := strings.Cut(strings.TrimSuffix(line, "\n"), " - ")
		fields, super := strings.Fields(left), strings.Fields(right)
		if !ok || len(fields) < 6 || len(super) < 3 {
			continue
		}
		mount := unescape(fields[4])
		switch super[0] {
		case "cgroup":
			h := hierarchy{mount: mount}
			for _, option := range strings.Split(super[2], ",") {
				if option != "rw" && option != "ro" {
					h.controllers = append(h.controllers, option)
				}
			}
			if !slices.ContainsFunc(v1, func(o hierarchy) bool { return slices.Equal(o.controllers, h.controllers) }) {
				v1 = append(v1, h)
			}
		case "cgroup2":
			if v2 == nil {
				v2 = &hierarchy{mount: mount}
			}
		}
	}
	if slices.ContainsFunc(v1, func(h hierarchy) bool { return h.has("memory") }) {
		for _, needed := range []string{"pids", "cpu"} {
			if !slices.ContainsFunc(v1, func(h hierarchy) bool { return h.has(needed) }) {
				return "", nil, fmt.Errorf("cgroup: the memory controller is on cgroup v1 but no v1 hierarchy with %s is mounted; mount it, or boot with systemd.unified_cgroup_hierarchy=1", needed)
			}
		}
		if v2 != nil {
			v1 = append(v1, *v2)
		}
		return protocol.CgroupV1, v1, nil
	}
	if v2 == nil {
		return "", nil, errors.New("cgroup: neither a v1 memory controller nor a cgroup2 mount was found; mount one below /sys/fs/cgroup")
	}
	text, err := os.ReadFile(filepath.Join(v2.mount, "cgroup.controllers"))
	if err != nil {
		return "", nil, fmt.Errorf("cgroup: %w", err)
	}
	for _, needed := range v2Controllers {
		if !slices.Contains(strings.Fields(string(text)), needed) {
			return "", nil, fmt.Errorf("cgroup: %s does not offer the %s controller; enable it in the kernel command line", v2.mount, needed)
		}
	}
	return protocol.CgroupV2, []hierarchy{*v2}, nil
}

// v2Controllers are passed down to every level of ours.
var v2Controllers = []string{"memory", "pids", "cpu"}

// passDown makes the controllers usable in the children of a v2 directory.
func passDown(dir string) error {
	file := filepath.Join(dir, "cgroup.subtree_control")
	text, err := os.ReadFile(file)
	if err != nil {
		return fmt.Errorf("cgroup: %w", err)
	}
	var missing []string
	for _, c := range v2Controllers {
		if !slices.Contains(strings.Fields(string(text)), c) {
			missing = append(missing, "+"+c)
		}
	}
	if len(missing) == 0 {
		return nil
	}
	if err := writeControl(file, strings.Join(missing, " ")); err != nil {
		return fmt.Errorf("%w; give the agent a delegated cgroup without processes of its own (Delegate=yes, its process in a leaf)", err)
	}
	return nil
}

// unescape undoes the octal escapes of a mount table.
func unescape(s string) string {
	var b strings.Builder
	for i := 0; i < len(s); i++ {
		if s[i] == '\\' && i+3 < len(s) {
			if v, err := strconv.ParseUint(s[i+1:i+4], 8, 8); err == nil {
				b.WriteByte(byte(v))
				i += 3
				continue
			}
		}
		b.WriteByte(s[i])
	}
	return b.String()
}

// membership finds a process's path in the memory controller's hierarchy from
// the text of /proc/PID/cgroup. Hybrid machines list both versions.
func membership(text string, mode protocol.CgroupMode) (string, bool) {
	for line := range strings.Lines(text) {
		parts := strings.SplitN(strings.TrimSuffix(line, "\n"), ":", 3)
		if len(parts) != 3 {
			continue
		}
		switch {
		case mode == protocol.CgroupV2 && parts[0] == "0" && parts[1] == "":
			return parts[2], true
		case mode == protocol.CgroupV1 && slices.Contains(strings.Split(parts[1], ","), "memory"):
			return parts[2], true
		}
	}
	return "", false
}

// writeControl writes one control file, which must exist.
func writeControl(file, value string) error {
	f, err := os.OpenFile(file, os.O_WRONLY|os.O_TRUNC, 0)
	if err != nil {
		return fmt.Errorf("cgroup: %w", err)
	}
	_, err = f.WriteString(value)
	if err = errors.Join(err, f.Close()); err != nil {
		return fmt.Errorf("cgroup: write %q: %w", value, err)
	}
	return nil
}
