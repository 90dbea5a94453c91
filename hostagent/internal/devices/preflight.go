package devices

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"slices"

	"golang.org/x/sys/unix"
	specs "tags.cncf.io/container-device-interface/specs-go"
)

// hostPath is where a node is on this host.
func hostPath(n *specs.DeviceNode) string {
	if n.HostPath != "" {
		return filepath.Clean(n.HostPath)
	}
	return filepath.Clean(n.Path)
}

// number identifies a device to the kernel, whatever path leads to it.
type number struct {
	kind uint32 // S_IFCHR or S_IFBLK
	rdev uint64
}

// numberOf reads the device number of a node; ok is false for what is absent or
// has none.
func numberOf(path string) (number, bool) {
	var st unix.Stat_t
	if err := unix.Lstat(path, &st); err != nil {
		return number{}, false
	}
	kind := st.Mode & unix.S_IFMT
	return number{kind, st.Rdev}, kind == unix.S_IFCHR || kind == unix.S_IFBLK
}

// stale is the remedy of everything that a spec names and the host lacks.
const stale = "the spec is stale: generate it anew, or mend the driver"

// preflight says why edits would fail now, "" if they would not. The runtime
// itself notices a missing node only, and a missing mount or hook not before
// the container is made.
func preflight(edits ...*specs.ContainerEdits) string {
	for _, e := range edits {
		if fault := preflightOne(e); fault != "" {
			return fault
		}
	}
	return ""
}

func preflightOne(e *specs.ContainerEdits) string {
	if len(e.NetDevices) > 0 {
		return "asks for a network device, and a worker has no network"
	}
	if e.IntelRdt != nil {
		return "asks for a cache allocation (intelRdt), which the agent does not give"
	}
	for _, n := range e.DeviceNodes {
		if fault := checkNode(n); fault != "" {
			return fault
		}
	}
	for _, m := range e.Mounts {
		if fault := checkMount(m); fault != "" {
			return fault
		}
	}
	for _, h := range e.Hooks {
		if fault := checkHook(h); fault != "" {
			return fault
		}
	}
	return ""
}

// kinds are the node types that a container may get, with the kernel's word.
var kinds = map[string]uint32{"c": unix.S_IFCHR, "u": unix.S_IFCHR, "b": unix.S_IFBLK}

func checkNode(n *specs.DeviceNode) string {
	if !path.IsAbs(n.Path) || path.Clean(n.Path) == initTarget || slices.Contains(ours, path.Clean(n.Path)) {
		return fmt.Sprintf("injects a device node at %s, which is not its to have", n.Path)
	}
	at := hostPath(n)
	var st unix.Stat_t
	if err := unix.Lstat(at, &st); err != nil {
		return fmt.Sprintf("device node %s: %v; %s", at, err, stale)
	}
	kind := st.Mode & unix.S_IFMT
	if kind != unix.S_IFCHR && kind != unix.S_IFBLK {
		return fmt.Sprintf("%s is not a device node; %s", at, stale)
	}
	if wanted, given := kinds[n.Type]; given && wanted != kind || n.Type == "p" {
		return fmt.Sprintf("device node %s is of another type than %q; %s", at, n.Type, stale)
	}
	major, minor := int64(unix.Major(st.Rdev)), int64(unix.Minor(st.Rdev))
	if n.Major != 0 && (n.Major != major || n.Minor != minor) {
		return fmt.Sprintf("device node %s is %d:%d and the spec says %d:%d; %s", at, major, minor, n.Major, n.Minor, stale)
	}
	return ""
}

// ours are the places in a container that make it a worker; nothing may cover
// them.
var ours = []string{"/", "/dev", "/dev/pts", "/dev/shm", "/dev/mqueue", "/proc", "/sys"}

// initTarget is where the agent mounts the init.
const initTarget = "/dev/init"

func checkMount(m *specs.Mount) string {
	if target := path.Clean(m.ContainerPath); !path.IsAbs(target) || target == initTarget || slices.Contains(ours, target) {
		return fmt.Sprintf("mounts over %s, which is not its to cover", m.ContainerPath)
	}
	if m.Type != "" && m.Type != "bind" && !bindOption(m.Options) {
		return "" // has no source on the host
	}
	if _, err := os.Stat(m.HostPath); err != nil {
		return fmt.Sprintf("mount source %s: %v; %s", m.HostPath, bare(err), stale)
	}
	return ""
}

func bindOption(options []string) bool {
	return slices.Contains(options, "bind") || slices.Contains(options, "rbind")
}

func checkHook(h *specs.Hook) string {
	if h.HookName == "startContainer" {
		return "" // its program is looked up inside the container
	}
	if !path.IsAbs(h.Path) {
		return fmt.Sprintf("hook %s is not an absolute path", h.Path)
	}
	info, err := os.Stat(h.Path)
	if err != nil {
		return fmt.Sprintf("hook %s: %v; %s", h.Path, bare(err), stale)
	}
	if !info.Mode().IsRegular() || info.Mode()&0o111 == 0 {
		return fmt.Sprintf("hook %s is no program; %s", h.Path, stale)
	}
	if err := checkAuthor(info); err != nil {
		return fmt.Sprintf("hook %s %v", h.Path, err)
	}
	if err := checkWay(h.Path); err != nil {
		return fmt.Sprintf("hook %s %v", h.Path, bare(err))
	}
	return ""
}

// bare leaves the path out, which is named already.
func bare(err error) error {
	if e, ok := errors.AsType[*fs.PathError](err); ok {
		return e.Err
	}
	return err
}
