// Package cgroup is an allocation's own two cgroups: they are made before the
// container, they bound it, they count what the kernel did to it, and they are
// removed after it.
//
//	<root>/<nonce>/     ours: limits and, on v2, every counter (hierarchical)
//	<root>/<nonce>/c    the container's, made by us with the same limits
//
// One code path serves cgroup v1 and v2; the mode is that of the memory
// controller. On v1 the names exist once in every hierarchy that is mounted,
// because the runtime joins them all. oom_kill is local to the leaf there and
// dies with it: read the leaf after the exit and before the task is deleted.
//
// The package owns these directories and the meaning of their counters
// ([Verdict]). It must not know the engine, receipts' order or allocations: a
// [protocol.ID] names a group and nothing else does. It never removes what it
// did not name, never deletes recursively, and signals only processes that it
// found inside the group and holds by a pidfd.
package cgroup

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"strings"
	"syscall"

	"github.com/quittance/quittance/hostagent/internal/failpoint"
	"github.com/quittance/quittance/profiles"
	"github.com/quittance/quittance/protocol"
	"golang.org/x/sys/unix"
)

// DefaultRoot is the directory below every hierarchy's mount where the agent
// keeps its groups, unless it is configured otherwise.
const DefaultRoot = "/quittance"

// leafName is the container's own cgroup below the allocation's.
const leafName = "c"

// Errors that callers tell apart.
var (
	// ErrNotOurs says that the directory at the group's path is another one
	// than the one that was made for it: nothing in it may be read as a fact
	// or touched.
	ErrNotOurs = errors.New("cgroup: another directory has taken the group's place")
	// ErrForeign says that something inside the group was not made by us; the
	// removal stopped before it removed anything.
	ErrForeign = errors.New("cgroup: holds a name that is not ours; remove it by hand after finding out who made it")
	// ErrPopulated says that processes are still inside.
	ErrPopulated = errors.New("cgroup: processes are still inside")
)

// Limits bound an allocation, on both levels alike.
type Limits struct {
	MemoryBytes int64 // required, above 0
	SwapBytes   int64 // beside the memory; 0: none
	CPUMillis   int64 // thousandths of a core; 0: no limit
	PIDs        int64 // required, above 0
	KillGroup   bool  // on v2 the kernel kills the whole group at an OOM; on v1 the agent does
}

// LimitsOf are the limits that a profile asks for.
func LimitsOf(p *profiles.Profile) Limits {
	return Limits{
		MemoryBytes: p.Resources.MemoryBytes,
		SwapBytes:   p.Resources.SwapBytes,
		CPUMillis:   p.Resources.CPUMillis,
		PIDs:        p.Resources.PIDs,
		KillGroup:   p.Lifecycle.OOM == profiles.OOMKillGroup,
	}
}

// Options say where the groups are.
type Options struct {
	// Root is an absolute path below the hierarchies' mounts; default
	// [DefaultRoot]. Under systemd it is the cgroup of the workers' unit.
	Root string
	// MountInfo is the mount table to read; default /proc/self/mountinfo.
	MountInfo string
}

// Manager makes and finds groups below one root. It holds no state beside the
// mount table and is safe for concurrent use.
type Manager struct {
	root        string
	mode        protocol.CgroupMode
	hierarchies []hierarchy
	memory      hierarchy // the one with the memory controller
	swap        bool
	mkdir       func(path string) error // a seam for tests on ordinary directories
}

// Open reads the mount table, finds which version holds the memory controller
// and makes the root in every hierarchy. On v2 it passes the controllers down
// to the root; where that is refused, the error names the file and the remedy.
func Open(o Options) (*Manager, error) { return open(o, mkdirAsIs) }

func open(o Options, mkdir func(string) error) (*Manager, error) {
	if o.Root == "" {
		o.Root = DefaultRoot
	}
	if o.MountInfo == "" {
		o.MountInfo = "/proc/self/mountinfo"
	}
	if !path.IsAbs(o.Root) || path.Clean(o.Root) != o.Root || o.Root == "/" {
		return nil, fmt.Errorf("cgroup root: %q must be a clean absolute path below the cgroup mounts and not / itself", o.Root)
	}
	table, err := os.ReadFile(o.MountInfo)
	if err != nil {
		return nil, fmt.Errorf("cgroup: mount table: %w", err)
	}
	mode, hierarchies, err := detect(string(table))
	if err != nil {
		return nil, err
	}
	m := &Manager{root: o.Root, mode: mode, hierarchies: hierarchies, mkdir: mkdir}
	for _, h := range hierarchies {
		if h.has("memory") || mode == protocol.CgroupV2 {
			m.memory = h
		}
	}
	for _, h := range m.hierarchies {
		if err := m.makeRoot(h); err != nil {
			return nil, err
		}
	}
	m.swap, err = m.countsSwap()
	if err != nil {
		return nil, err
	}
	return m, nil
}

// Mode is the version that holds the memory controller.
func (m *Manager) Mode() protocol.CgroupMode { return m.mode }

// Root is the root's path below the hierarchies' mounts.
func (m *Manager) Root() string { return m.root }

// SwapAccounting reports whether the kernel can bound swap per cgroup; where
// it cannot, no swap limit may be asked of the runtime either.
func (m *Manager) SwapAccounting() bool { return m.swap }

// makeRoot makes every component of the root in one hierarchy.
func (m *Manager) makeRoot(h hierarchy) error {
	dir := h.mount
	if m.mode == protocol.CgroupV2 {
		if err := passDown(dir); err != nil {
			return err
		}
	}
	for _, name := range strings.Split(strings.TrimPrefix(m.root, "/"), "/") {
		dir = filepath.Join(dir, name)
		if err := m.ensureDir(dir); err != nil {
			return err
		}
		if m.mode == protocol.CgroupV2 {
			if err := passDown(dir); err != nil {
				return err
			}
		}
	}
	return nil
}

// RemoveRoot removes the root where nothing is below it, for tests, demos and
// the removal of the package. A root that is in use is left and reported as
// [ErrPopulated]; one that is gone is fine.
func (m *Manager) RemoveRoot() error {
	var failed []error
	for _, h := range m.hierarchies {
		err := unix.Rmdir(filepath.Join(h.mount, m.root))
		if errors.Is(err, unix.EBUSY) || errors.Is(err, unix.ENOTEMPTY) {
			err = ErrPopulated
		}
		if err != nil && !errors.Is(err, unix.ENOENT) {
			failed = append(failed, fmt.Errorf("cgroup root in %s: %w", h.mount, err))
		}
	}
	return errors.Join(failed...)
}

// List names every group below the root in any hierarchy, for the sweep at
// start and for audits. A name that is not ours by form is returned too, in
// foreign.
func (m *Manager) List() (groups []protocol.ID, foreign []string, err error) {
	seen := map[string]bool{}
	for _, h := range m.hierarchies {
		names, err := subdirectories(filepath.Join(h.mount, m.root))
		if err != nil {
			return nil, nil, err
		}
		for _, name := range names {
			if seen[name] {
				continue
			}
			seen[name] = true
			if id := protocol.ID(name); id.Valid() {
				groups = append(groups, id)
			} else if name != sleeperLeaf {
				foreign = append(foreign, name)
			}
		}
	}
	return groups, foreign, nil
}

// sleeperLeaf is the leaf below the root in which quittance-workers.service
// keeps its only process; the unit's hold-workers makes it.
const sleeperLeaf = "hold"

// Group is one allocation's pair of cgroups.
type Group struct {
	m     *Manager
	nonce protocol.ID
	inode int64
}

// creations bounds how often Create begins anew when its directories vanish.
const creations = 5

// Create makes both levels with their limits and returns the group. Doing it
// again for the same nonce completes what an interrupted call left.
//
// As long as no process is inside, the directories may be taken away again: when
// the process of the unit that the root belongs to ends, systemd removes every
// empty cgroup below it, and the root if nothing is inside. Then they are made
// anew; see also [Group.Vanished].
func (m *Manager) Create(nonce protocol.ID, limits Limits) (*Group, error) {
	if !nonce.Valid() {
		return nil, errors.New("cgroup: nonce must be 32 lower-case hexadecimal digits")
	}
	if limits.MemoryBytes <= 0 || limits.PIDs <= 0 || limits.SwapBytes < 0 || limits.CPUMillis < 0 {
		return nil, errors.New("cgroup: memory and pids limits must be above 0, swap and cpu limits not below 0")
	}
	for n := 1; ; n++ {
		g, err := m.create(nonce, limits)
		if err == nil || n == creations || !gone(err) {
			return g, err
		}
		for _, h := range m.hierarchies { // the root may have been empty too
			if err := m.makeRoot(h); err != nil && !gone(err) {
				return nil, err
			}
		}
	}
}

func (m *Manager) create(nonce protocol.ID, limits Limits) (*Group, error) {
	g := &Group{m: m, nonce: nonce}
	for _, h := range m.hierarchies {
		if !h.limited(m.mode) {
			continue
		}
		parent, leaf := g.dir(h), filepath.Join(g.dir(h), leafName)
		if err := m.ensureDir(parent); err != nil {
			return nil, err
		}
		if m.mode == protocol.CgroupV2 {
			if err := passDown(parent); err != nil {
				return nil, err
			}
		}
		if err := m.setLimits(h, parent, limits, limits.KillGroup); err != nil {
			return nil, err
		}
		if err := m.ensureDir(leaf); err != nil {
			return nil, err
		}
		// The kernel kills as a group only up to the level whose limit was reached,
		// and that may be either.
		if err := m.setLimits(h, leaf, limits, limits.KillGroup); err != nil {
			return nil, err
		}
		failpoint.Hit(failpoint.CgroupHalfMade)
	}
	inode, err := inodeOf(g.dir(m.memory))
	if err != nil {
		return nil, fmt.Errorf("cgroup: %w", err)
	}
	g.inode = inode
	return g, nil
}

// Find is the group that ref names, whether or not it still exists: its methods
// check the inode, and [ErrNotOurs] or an absent source say what became of it.
// An inode of 0 is not checked: for groups of a creation that was interrupted
// before the inode was recorded, whose random name is the only witness.
func (m *Manager) Find(nonce protocol.ID, ref protocol.CgroupRef) (*Group, error) {
	if ref.Mode != m.mode {
		return nil, fmt.Errorf("cgroup: the group was made under cgroup %s and this machine now has %s", ref.Mode, m.mode)
	}
	if want := path.Join(m.root, string(nonce)); !nonce.Valid() || ref.Path != want {
		return nil, fmt.Errorf("cgroup: the group was made at %s and the configured root would have it at %s; set cgroup_root back", ref.Path, want)
	}
	return &Group{m: m, nonce: nonce, inode: ref.Inode}, nil
}

// Ref is what the started receipt records.
func (g *Group) Ref() protocol.CgroupRef {
	return protocol.CgroupRef{Mode: g.m.mode, Path: path.Join(g.m.root, string(g.nonce)), Inode: g.inode}
}

// LeafPath is the cgroupsPath of the container's OCI spec.
func (g *Group) LeafPath() string { return path.Join(g.m.root, string(g.nonce), leafName) }

// dir is the allocation's own directory in one hierarchy.
func (g *Group) dir(h hierarchy) string { return filepath.Join(h.mount, g.m.root, string(g.nonce)) }

// check tells our directory from another one at its place: fs.ErrNotExist
// where it is gone, [ErrNotOurs] where its inode differs.
func (g *Group) check() error {
	inode, err := inodeOf(g.dir(g.m.memory))
	if err != nil {
		return err
	}
	if g.inode != 0 && inode != g.inode {
		return ErrNotOurs
	}
	return nil
}

// Vanished reports whether the group is no longer what [Manager.Create] made:
// it was removed while it was empty, and somebody else may have made its
// directories anew, without limits.
func (g *Group) Vanished() (bool, error) {
	err := g.check()
	if gone(err) || errors.Is(err, ErrNotOurs) {
		return true, nil
	}
	return false, err
}

// Holds reports whether the process is inside this group by its own entry in
// /proc, the proof that a process number is this allocation's.
func (g *Group) Holds(pid int64) (bool, error) {
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/cgroup", pid))
	if errors.Is(err, fs.ErrNotExist) || errors.Is(err, unix.ESRCH) {
		return false, nil
	}
	if err != nil {
		return false, fmt.Errorf("cgroup of process %d: %w", pid, err)
	}
	at, ok := membership(string(text), g.m.mode)
	own := path.Join(g.m.root, string(g.nonce))
	return ok && (at == own || strings.HasPrefix(at, own+"/")), nil
}

func (m *Manager) ensureDir(dir string) error {
	err := m.mkdir(dir)
	if err == nil {
		return nil
	}
	if !errors.Is(err, fs.ErrExist) {
		return fmt.Errorf("cgroup: make %s: %w", dir, err)
	}
	info, err := os.Lstat(dir)
	if err != nil {
		return fmt.Errorf("cgroup: %w", err)
	}
	if !info.IsDir() {
		return fmt.Errorf("cgroup: %s exists and is no directory", dir)
	}
	return nil
}

func mkdirAsIs(dir string) error { return os.Mkdir(dir, 0o755) }

func inodeOf(dir string) (int64, error) {
	info, err := os.Lstat(dir)
	if err != nil {
		return 0, err
	}
	st, ok := info.Sys().(*syscall.Stat_t)
	if !ok || !info.IsDir() {
		return 0, fmt.Errorf("%s is no directory", dir)
	}
	return int64(st.Ino), nil
}

// subdirectories lists the directories in dir; control files are the kernel's
// and left out, anything else is an error. A dir that is gone holds none.
func subdirectories(dir string) ([]string, error) {
	entries, err := os.ReadDir(dir)
	if errors.Is(err, fs.ErrNotExist) || errors.Is(err, unix.ENODEV) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("cgroup: list: %w", err)
	}
	var names []string
	for _, entry := range entries {
		switch {
		case entry.IsDir():
			names = append(names, entry.Name())
		case !entry.Type().IsRegular():
			return nil, fmt.Errorf("%w: %s", ErrForeign, filepath.Join(dir, entry.Name()))
		}
	}
	return names, nil
}
