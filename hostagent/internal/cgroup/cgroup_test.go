package cgroup

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/quittance/quittance/protocol"
)

const nonce = protocol.ID("00112233445566778899aabbccddeeff")

// tree is a cgroup file system made of ordinary files: what the kernel would
// put into a new directory is put there by the manager's own seam.
type tree struct {
	t     *testing.T
	dir   string
	table string
	files map[string]map[string]string // by hierarchy: control files of a new directory
}

func (f *tree) mkdir(dir string) error {
	if err := os.Mkdir(dir, 0o755); err != nil {
		return err
	}
	f.fill(dir)
	return nil
}

func (f *tree) fill(dir string) {
	rel, err := filepath.Rel(f.dir, dir)
	if err != nil {
		f.t.Fatal(err)
	}
	hierarchy := strings.Split(rel, "/")[0]
	for name, content := range f.files[hierarchy] {
		f.write(filepath.Join(dir, name), content)
	}
}

func (f *tree) write(path, content string) {
	f.t.Helper()
	if err := os.WriteFile(path, []byte(content), 0o644); err != nil {
		f.t.Fatal(err)
	}
}

func (f *tree) read(path string) string {
	f.t.Helper()
	text, err := os.ReadFile(filepath.Join(f.dir, path))
	if err != nil {
		f.t.Fatal(err)
	}
	return string(text)
}

// empty removes the control files below the path, as they vanish with their
// directory in the kernel's file system.
func (f *tree) empty(path string) {
	f.t.Helper()
	err := filepath.WalkDir(filepath.Join(f.dir, path), func(name string, entry os.DirEntry, err error) error {
		if err == nil && entry.Type().IsRegular() {
			err = os.Remove(name)
		}
		return err
	})
	if err != nil {
		f.t.Fatal(err)
	}
}

func (f *tree) open() *Manager {
	f.t.Helper()
	m, err := open(Options{Root: "/unit/workers", MountInfo: f.table}, f.mkdir)
	if err != nil {
		f.t.Fatal(err)
	}
	return m
}

func newTree(t *testing.T, table string, files map[string]map[string]string) *tree {
	t.Helper()
	f := &tree{t: t, dir: t.TempDir(), files: files}
	f.table = filepath.Join(f.dir, "mountinfo")
	f.write(f.table, strings.ReplaceAll(table, "DIR", f.dir))
	for hierarchy := range files {
		dir := filepath.Join(f.dir, hierarchy)
		if err := os.MkdirAll(dir, 0o755); err != nil {
			t.Fatal(err)
		}
		f.fill(dir)
	}
	return f
}

func v2Tree(t *testing.T) *tree {
	return newTree(t, "30 1 0:27 / DIR/v2 rw,nosuid - cgroup2 cgroup2 rw,nsdelegate\n", map[string]map[string]string{"v2": {
		"cgroup.controllers": "cpuset cpu io memory hugetlb pids\n", "cgroup.subtree_control": "", "cgroup.procs": "",
		"cgroup.events": "populated 0\nfrozen 0\n", "memory.max": "max\n", "memory.swap.max": "max\n", "pids.max": "max\n",
		"cpu.max": "max 100000\n", "memory.oom.group": "0\n", "memory.peak": "4096\n", "pids.peak": "3\n",
		"memory.events": "low 0\nhigh 0\nmax 0\noom 0\noom_kill 0\noom_group_kill 0\n",
		"cpu.stat":      "usage_usec 1500\nuser_usec 1000\n", "cgroup.kill": "",
	}})
}

func v1Tree(t *testing.T) *tree {
	table := "31 1 0:28 / DIR rw - tmpfs tmpfs rw\n" +
		"32 31 0:29 / DIR/cpu rw - cgroup cgroup rw,cpu,cpuacct\n" +
		"33 31 0:30 / DIR/memory rw - cgroup cgroup rw,memory\n" +
		"34 31 0:31 / DIR/pids rw - cgroup cgroup rw,pids\n" +
		"35 31 0:32 / DIR/systemd rw - cgroup cgroup rw,name=systemd\n" +
		"36 31 0:33 / DIR/unified rw - cgroup2 cgroup2 rw\n"
	return newTree(t, table, map[string]map[string]string{
		"cpu": {"cgroup.procs": "", "cpu.cfs_period_us": "50000\n", "cpu.cfs_quota_us": "-1\n", "cpuacct.usage": "7500000\n"},
		"memory": {
			"cgroup.procs": "", "memory.limit_in_bytes": "9223372036854771712\n", "memory.memsw.limit_in_bytes": "9223372036854771712\n",
			"memory.failcnt": "0\n", "memory.memsw.failcnt": "0\n", "memory.max_usage_in_bytes": "8192\n", "memory.memsw.max_usage_in_bytes": "8192\n",
			"memory.oom_control": "oom_kill_disable 0\nunder_oom 0\noom_kill 0\n",
		},
		"pids": {"cgroup.procs": "", "pids.max": "max\n", "pids.peak": "5\n"}, "systemd": {"cgroup.procs": ""}, "unified": {},
	})
}

var limits = Limits{MemoryBytes: 64 << 20, SwapBytes: 1 << 20, CPUMillis: 1500, PIDs: 64, KillGroup: true}

// Both levels have the same limits and both kill as a group (FR-06): the kernel
// looks for that no higher than at the level whose limit was reached.
func TestCreateV2(t *testing.T) {
	f := v2Tree(t)
	m := f.open()
	g, err := m.Create(nonce, limits)
	if err != nil {
		t.Fatal(err)
	}
	if m.Mode() != protocol.CgroupV2 || !m.SwapAccounting() {
		t.Errorf("mode %s, swap %v", m.Mode(), m.SwapAccounting())
	}
	parent := "v2/unit/workers/" + string(nonce)
	for file, want := range map[string]string{
		"memory.max": "67108864", "memory.swap.max": "1048576", "pids.max": "64", "cpu.max": "150000 100000",
	} {
		for _, dir := range []string{parent, parent + "/c"} {
			if got := f.read(dir + "/" + file); got != want {
				t.Errorf("%s in %s: %q, want %q", file, dir, got, want)
			}
		}
	}
	for _, dir := range []string{parent, parent + "/c"} {
		if got := f.read(dir + "/memory.oom.group"); got != "1" {
			t.Errorf("memory.oom.group in %s: %q, want 1", dir, got)
		}
	}
	for _, dir := range []string{"v2", "v2/unit", "v2/unit/workers", parent} {
		if got := f.read(dir + "/cgroup.subtree_control"); got != "+memory +pids +cpu" {
			t.Errorf("controllers passed down in %s: %q", dir, got)
		}
	}
	if g.LeafPath() != "/unit/workers/"+string(nonce)+"/c" || g.Ref().Path != "/unit/workers/"+string(nonce) || g.Ref().Inode == 0 {
		t.Errorf("leaf %s, ref %+v", g.LeafPath(), g.Ref())
	}
}

// systemd removes empty cgroups when the unit's process ends, between any two
// steps of a creation: the group is made anew, and one that vanished after its
// creation is told from the one that the runtime would make at its place.
func TestCreateWhereEmptyGroupsVanish(t *testing.T) {
	f := v2Tree(t)
	m := f.open()
	parent := "v2/unit/workers/" + string(nonce)
	vanishing := 0
	m.mkdir = func(dir string) error {
		if err := f.mkdir(dir); err != nil || vanishing == 0 {
			return err
		}
		vanishing--
		f.empty("v2/unit/workers")
		return os.RemoveAll(filepath.Join(f.dir, "v2/unit/workers"))
	}
	for vanishing = range creations {
		g, err := m.Create(nonce, limits)
		if err != nil {
			t.Fatal(err)
		}
		if got := f.read(parent + "/memory.max"); got != "67108864" {
			t.Errorf("memory.max %q", got)
		}
		if vanished, err := g.Vanished(); err != nil || vanished {
			t.Errorf("made, and vanished %v, %v", vanished, err)
		}
		if err := os.Rename(filepath.Join(f.dir, parent), filepath.Join(f.dir, "kept")); err != nil { // its inode is not used again
			t.Fatal(err)
		}
		if vanished, err := g.Vanished(); err != nil || !vanished {
			t.Errorf("removed, and vanished %v, %v", vanished, err)
		}
		if err := m.mkdir(filepath.Join(f.dir, parent)); err != nil {
			t.Fatal(err)
		}
		if vanished, err := g.Vanished(); err != nil || !vanished {
			t.Errorf("made by somebody else, and vanished %v, %v", vanished, err)
		}
		for _, dir := range []string{"kept", parent} {
			f.empty(dir)
			if err := os.RemoveAll(filepath.Join(f.dir, dir)); err != nil {
				t.Fatal(err)
			}
		}
	}
	vanishing = 100
	if _, err := m.Create(nonce, limits); !gone(err) {
		t.Errorf("where nothing stays: %v", err)
	}
}

func TestReadV2(t *testing.T) {
	f := v2Tree(t)
	g, err := f.open().Create(nonce, limits)
	if err != nil {
		t.Fatal(err)
	}
	parent := filepath.Join(f.dir, "v2/unit/workers", string(nonce))
	f.write(parent+"/memory.events", "low 0\nhigh 0\nmax 12\noom 1\noom_kill 4\noom_group_kill 1\n")
	want := Reading{
		Source:   protocol.CountersFromV2,
		Counters: protocol.Counters{OOM: n(1), OOMKill: n(4), OOMGroupKill: n(1), Max: n(12)},
		Peaks:    protocol.Peaks{MemoryBytes: n(4096), PIDs: n(3), CPUMicros: n(1500)},
	}
	got, err := g.Read()
	if diff := cmp.Diff(want, got); diff != "" || err != nil {
		t.Errorf("reading (-want +got):\n%s%v", diff, err)
	}
	// An older kernel: no peaks, no group kills; the leaf removed with its container.
	for _, name := range []string{"memory.peak", "pids.peak"} {
		if err := os.Remove(filepath.Join(parent, name)); err != nil {
			t.Fatal(err)
		}
	}
	f.write(parent+"/memory.events", "low 0\nhigh 0\nmax 12\noom 1\noom_kill 4\n")
	f.empty("v2/unit/workers/" + string(nonce) + "/c")
	if err := os.Remove(parent + "/c"); err != nil {
		t.Fatal(err)
	}
	want = Reading{
		Source: protocol.CountersFromV2, LeafGone: true,
		Counters: protocol.Counters{OOM: n(1), OOMKill: n(4), Max: n(12)}, Peaks: protocol.Peaks{CPUMicros: n(1500)},
	}
	got, err = g.Read()
	if diff := cmp.Diff(want, got); diff != "" || err != nil {
		t.Errorf("reading without leaf (-want +got):\n%s%v", diff, err)
	}
}

func TestPopulatedAndKillV2(t *testing.T) {
	f := v2Tree(t)
	g, err := f.open().Create(nonce, limits)
	if err != nil {
		t.Fatal(err)
	}
	parent := filepath.Join(f.dir, "v2/unit/workers", string(nonce))
	for text, want := range map[string]bool{"populated 1\nfrozen 0\n": true, "populated 0\nfrozen 0\n": false} {
		f.write(parent+"/cgroup.events", text)
		if got, err := g.Populated(); got != want || err != nil {
			t.Errorf("%q: populated %v, %v", text, got, err)
		}
	}
	if err := g.Kill(); err != nil {
		t.Fatal(err)
	}
	if got := f.read("v2/unit/workers/" + string(nonce) + "/cgroup.kill"); got != "1" {
		t.Errorf("cgroup.kill %q, want 1", got)
	}
	f.empty("v2/unit/workers/" + string(nonce))
	removed, err := g.Remove(t.Context())
	if removed != protocol.RemovedByUs || err != nil {
		t.Errorf("remove: %q, %v", removed, err)
	}
	if populated, err := g.Populated(); populated || err != nil {
		t.Errorf("populated after removal: %v, %v", populated, err)
	}
	if removed, err := g.Remove(t.Context()); removed != protocol.RemovedAbsent || err != nil {
		t.Errorf("remove again: %q, %v, want absent", removed, err)
	}
}

// A change of memory.events is seen by inotify, not by the hour-long polling.
func TestWatchV2(t *testing.T) {
	f := v2Tree(t)
	g, err := f.open().Create(nonce, limits)
	if err != nil {
		t.Fatal(err)
	}
	w, err := g.Watch(time.Hour)
	if err != nil {
		t.Fatal(err)
	}
	f.write(filepath.Join(f.dir, "v2/unit/workers", string(nonce), "memory.events"), "max 3\noom 1\noom_kill 1\noom_group_kill 1\n")
	select {
	case r := <-w.Readings():
		if r.Counters.OOMKill == nil || *r.Counters.OOMKill != 1 {
			t.Errorf("reading %+v, want one kill", r.Counters)
		}
	case <-time.After(10 * time.Second):
		t.Error("no reading after the file changed")
	}
	if w.LimitEvents() != 0 {
		t.Errorf("limit events %d on v2, want 0", w.LimitEvents())
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
}

// The same without any notification: polling is the safety net.
func TestWatchPolls(t *testing.T) {
	f := v2Tree(t)
	g, err := f.open().Create(nonce, limits)
	if err != nil {
		t.Fatal(err)
	}
	w, err := g.Watch(time.Millisecond)
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := w.Close(); err != nil {
			t.Error(err)
		}
	}()
	// A rename gives the name another inode: inotify on the old one is silent.
	events := filepath.Join(f.dir, "v2/unit/workers", string(nonce), "memory.events")
	f.write(events+".new", "max 3\noom 1\noom_kill 2\n")
	if err := os.Rename(events+".new", events); err != nil {
		t.Fatal(err)
	}
	select {
	case r := <-w.Readings():
		if *r.Counters.OOMKill != 2 {
			t.Errorf("reading %+v, want two kills", r.Counters)
		}
	case <-time.After(10 * time.Second):
		t.Error("no reading from polling")
	}
}

// memsw is never below memory at any moment: lowered last, raised first.
func TestCreateV1(t *testing.T) {
	f := v1Tree(t)
	m := f.open()
	if m.Mode() != protocol.CgroupV1 {
		t.Fatalf("mode %s, want v1: the cgroup2 mount has no memory controller", m.Mode())
	}
	if _, err := m.Create(nonce, limits); err != nil {
		t.Fatal(err)
	}
	parent := "unit/workers/" + string(nonce)
	for file, want := range map[string]string{
		"memory/%s/memory.limit_in_bytes": "67108864", "memory/%s/memory.memsw.limit_in_bytes": "68157440",
		"pids/%s/pids.max": "64", "cpu/%s/cpu.cfs_period_us": "100000", "cpu/%s/cpu.cfs_quota_us": "150000",
	} {
		for _, dir := range []string{parent, parent + "/c"} {
			if got := f.read(fmt.Sprintf(file, dir)); got != want {
				t.Errorf("%s: %q, want %q", fmt.Sprintf(file, dir), got, want)
			}
		}
	}
	if _, err := os.Stat(filepath.Join(f.dir, "systemd", parent)); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("the named hierarchy got a directory of ours before the runtime made one: %v", err)
	}
}

func TestReadV1(t *testing.T) {
	f := v1Tree(t)
	m := f.open()
	g, err := m.Create(nonce, limits)
	if err != nil {
		t.Fatal(err)
	}
	parent := filepath.Join(f.dir, "memory/unit/workers", string(nonce))
	f.write(parent+"/c/memory.oom_control", "oom_kill_disable 0\nunder_oom 0\noom_kill 2\n")
	f.write(parent+"/c/memory.failcnt", "30\n")
	f.write(parent+"/c/memory.memsw.failcnt", "4\n")
	f.write(parent+"/memory.failcnt", "1\n")
	f.write(parent+"/memory.max_usage_in_bytes", "67108864\n")
	want := Reading{
		Source: protocol.CountersFromV1, Counters: protocol.Counters{OOMKill: n(2), FailCnt: n(35)}, LimitReached: true,
		Peaks: protocol.Peaks{MemoryBytes: n(67108864), PIDs: n(5), CPUMicros: n(7500)},
	}
	got, err := g.Read()
	if diff := cmp.Diff(want, got); diff != "" || err != nil {
		t.Errorf("reading (-want +got):\n%s%v", diff, err)
	}
	// The leaf goes with the task: its kills went with it, the peak stays.
	f.empty("memory/unit/workers/" + string(nonce) + "/c")
	if err := os.Remove(parent + "/c"); err != nil {
		t.Fatal(err)
	}
	want.Counters, want.LeafGone = protocol.Counters{}, true
	got, err = g.Read()
	if diff := cmp.Diff(want, got); diff != "" || err != nil {
		t.Errorf("reading without leaf (-want +got):\n%s%v", diff, err)
	}
	f.write(filepath.Join(f.dir, "cpu/unit/workers", string(nonce), "c/cgroup.procs"), "4242\n")
	if populated, err := g.Populated(); !populated || err != nil {
		t.Errorf("populated %v, %v: one hierarchy still holds a process", populated, err)
	}
}

// I22: a directory with another inode is not ours: no fact, no removal.
func TestOtherInode(t *testing.T) {
	f := v2Tree(t)
	m := f.open()
	g, err := m.Create(nonce, limits)
	if err != nil {
		t.Fatal(err)
	}
	ref := g.Ref()
	ref.Inode++
	other, err := m.Find(nonce, ref)
	if err != nil {
		t.Fatal(err)
	}
	if r, err := other.Read(); err != nil || r.Source != protocol.CountersFromNone {
		t.Errorf("read %+v, %v, want source none", r, err)
	}
	if _, err := other.Remove(t.Context()); !errors.Is(err, ErrNotOurs) {
		t.Errorf("remove: %v, want ErrNotOurs", err)
	}
	if err := other.Kill(); !errors.Is(err, ErrNotOurs) {
		t.Errorf("kill: %v, want ErrNotOurs", err)
	}
	if _, err := other.Populated(); !errors.Is(err, ErrNotOurs) {
		t.Errorf("populated: %v, want ErrNotOurs", err)
	}
	if got := f.read("v2/unit/workers/" + string(nonce) + "/cgroup.kill"); got != "" {
		t.Errorf("cgroup.kill %q was written", got)
	}
	if _, err := m.Find(nonce, protocol.CgroupRef{Mode: protocol.CgroupV1, Path: ref.Path}); err == nil {
		t.Error("a group of another mode was found")
	}
	if _, err := m.Find(nonce, protocol.CgroupRef{Mode: ref.Mode, Path: "/elsewhere"}); err == nil {
		t.Error("a group below another root was found")
	}
}

// The removal looks first, and what it did not make stops it.
func TestForeignNameStopsRemoval(t *testing.T) {
	for name, make := range map[string]func(dir string) error{
		"directory in parent": func(dir string) error { return os.Mkdir(dir+"/other", 0o755) },
		"directory in leaf":   func(dir string) error { return os.Mkdir(dir+"/c/other", 0o755) },
		"link in parent":      func(dir string) error { return os.Symlink("/", dir+"/other") },
	} {
		t.Run(name, func(t *testing.T) {
			f := v1Tree(t)
			g, err := f.open().Create(nonce, limits)
			if err != nil {
				t.Fatal(err)
			}
			for _, h := range []string{"cpu", "memory", "pids"} {
				f.empty(h + "/unit/workers/" + string(nonce))
			}
			if err := make(filepath.Join(f.dir, "pids/unit/workers", string(nonce))); err != nil {
				t.Fatal(err)
			}
			if _, err := g.Remove(t.Context()); !errors.Is(err, ErrForeign) {
				t.Errorf("remove: %v, want ErrForeign", err)
			}
			for _, h := range []string{"cpu", "memory", "pids"} {
				if _, err := os.Stat(filepath.Join(f.dir, h, "unit/workers", string(nonce), "c")); err != nil {
					t.Errorf("%s was removed before the look was over: %v", h, err)
				}
			}
		})
	}
}

// FR-18: a busy directory is tried again until the context ends.
func TestBusyRemovalIsRetried(t *testing.T) {
	f := v1Tree(t)
	g, err := f.open().Create(nonce, limits)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Millisecond)
	defer cancel()
	// The control files make every directory non-empty, which is what busy is here.
	if _, err := g.Remove(ctx); !errors.Is(err, ErrPopulated) || !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("remove: %v, want ErrPopulated at the deadline", err)
	}
	for _, h := range []string{"cpu", "memory", "pids"} {
		f.empty(h + "/unit/workers/" + string(nonce))
	}
	if removed, err := g.Remove(t.Context()); removed != protocol.RemovedByUs || err != nil {
		t.Errorf("remove: %q, %v", removed, err)
	}
}

func TestListAndRemoveRoot(t *testing.T) {
	f := v1Tree(t)
	m := f.open()
	if _, err := m.Create(nonce, limits); err != nil {
		t.Fatal(err)
	}
	// The sleeper's leaf belongs there and is not a stranger.
	for _, name := range []string{"stranger", "hold"} {
		if err := os.Mkdir(filepath.Join(f.dir, "systemd/unit/workers", name), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	groups, foreign, err := m.List()
	if err != nil || !cmp.Equal(groups, []protocol.ID{nonce}) || !cmp.Equal(foreign, []string{"stranger"}) {
		t.Errorf("list %v, %v, %v", groups, foreign, err)
	}
	if err := m.RemoveRoot(); !errors.Is(err, ErrPopulated) {
		t.Errorf("remove root: %v, want ErrPopulated", err)
	}
}

func TestOpenRefusals(t *testing.T) {
	f := v1Tree(t)
	for _, root := range []string{"relative", "/", "/a/../b", "/a/"} {
		if _, err := open(Options{Root: root, MountInfo: f.table}, f.mkdir); err == nil || !strings.Contains(err.Error(), "cgroup root") {
			t.Errorf("root %q: %v, want a refusal that names it", root, err)
		}
	}
	for name, table := range map[string]string{
		"nothing mounted":  "30 1 0:27 / /proc rw - proc proc rw\n",
		"v1 without pids":  "33 31 0:30 / " + f.dir + "/memory rw - cgroup cgroup rw,memory\n",
		"v2 without files": "30 1 0:27 / " + f.dir + "/absent rw - cgroup2 cgroup2 rw\n",
	} {
		f.write(f.table, table)
		if _, err := open(Options{MountInfo: f.table}, f.mkdir); err == nil {
			t.Errorf("%s: opened", name)
		}
	}
	if _, err := v2Tree(t).open().Create(nonce, Limits{MemoryBytes: 1}); err == nil {
		t.Error("a group without a pids limit was made")
	}
	if _, err := v2Tree(t).open().Create("../x", limits); err == nil {
		t.Error("a nonce that is a path was taken")
	}
}

func TestMembership(t *testing.T) {
	hybrid := "9:name=systemd:/\n8:pids:/p\n4:cpu,memory:/m/x:y\n0::/u\n"
	for mode, want := range map[protocol.CgroupMode]string{protocol.CgroupV1: "/m/x:y", protocol.CgroupV2: "/u"} {
		if got, ok := membership(hybrid, mode); !ok || got != want {
			t.Errorf("%s: %q, %v, want %q", mode, got, ok, want)
		}
	}
	if got, ok := membership("garbage\n", protocol.CgroupV2); ok {
		t.Errorf("found %q in garbage", got)
	}
}

func TestParseMark(t *testing.T) {
	for text, want := range map[string]int64{"3": 3, "12\n": 12, "\x05\x00\x00\x00\x00\x00\x00\x00": 5} {
		if got, err := parseMark([]byte(text)); got != want || err != nil {
			t.Errorf("%q: %d, %v, want %d", text, got, err, want)
		}
	}
	if _, err := parseMark([]byte("many")); err == nil {
		t.Error("a word was taken for a count")
	}
}

func TestUnescape(t *testing.T) {
	if got := unescape(`/sys/fs/c\040group\134x\9`); got != `/sys/fs/c group\x\9` {
		t.Errorf("unescaped %q", got)
	}
}
