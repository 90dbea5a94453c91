package ledger

import (
	"errors"
	"io"
	"io/fs"
	"maps"
	"math/rand/v2"
	"path"
	"slices"
	"strings"
	"sync"
	"testing"

	"golang.org/x/sys/unix"
)

// forgetFS is a file system in memory that keeps, over a power cut, only what
// was synced: contents and directory entries alike. What was not synced is
// lost, or kept in part, by sectors and by entries, as the test asks.
//
// Like Linux, a failed Sync marks the written pages clean: they stay readable
// until the power goes, and a later Sync of the same file does not write them.
type forgetFS struct {
	mu        sync.Mutex
	root      *node
	life      int   // handles and locks of an earlier life are dead
	capacity  int64 // bytes that may still be allocated; −1: any
	countdown int   // mutations until the power goes; −1: it stays
	dead      bool
	fail      func(op, name string) error // may fail a call before its effect
	mutations int
	readOnly  bool
}

const sectorSize = 512

var (
	errPower = errors.New("forgetfs: the power is gone")
	errIO    = &fs.PathError{Op: "fdatasync", Path: "forgetfs", Err: unix.EIO}
)

// node is a file or a directory, each as it is seen and as it is on the disk.
type node struct {
	dir     bool
	data    []byte
	disk    []byte
	pending []write
	names   map[string]*node
	onDisk  map[string]*node
	locked  bool
}

type write struct {
	offset int64
	data   []byte
}

func newDir() *node {
	return &node{dir: true, names: map[string]*node{}, onDisk: map[string]*node{}}
}

func newForgetFS() *forgetFS { return &forgetFS{root: newDir(), capacity: -1, countdown: -1} }

// step is called before every call that may change something.
func (f *forgetFS) step(op, name string) error {
	if f.dead {
		return errPower
	}
	if f.readOnly {
		return &fs.PathError{Op: op, Path: name, Err: unix.EROFS}
	}
	if f.fail != nil {
		if err := f.fail(op, path.Base(name)); err != nil {
			return err
		}
	}
	f.mutations++
	if f.countdown == 0 {
		f.dead = true
		return errPower
	}
	if f.countdown > 0 {
		f.countdown--
	}
	return nil
}

func (f *forgetFS) find(name string) (*node, error) {
	n := f.root
	for part := range strings.SplitSeq(strings.Trim(name, "/"), "/") {
		if part == "" || part == "." {
			continue
		}
		if n = n.names[part]; n == nil {
			return nil, &fs.PathError{Op: "open", Path: name, Err: fs.ErrNotExist}
		}
	}
	return n, nil
}

func (f *forgetFS) OpenFile(name string, create bool) (File, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if create {
		if err := f.step("create", name); err != nil {
			return nil, err
		}
		parent, err := f.find(path.Dir(name))
		if err != nil {
			return nil, err
		}
		if parent.names[path.Base(name)] != nil {
			return nil, &fs.PathError{Op: "create", Path: name, Err: fs.ErrExist}
		}
		parent.names[path.Base(name)] = &node{}
	}
	n, err := f.find(name)
	if err != nil {
		return nil, err
	}
	return &handle{f, n, name, f.life}, nil
}

func (f *forgetFS) ReadFile(name string, limit int) ([]byte, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	n, err := f.find(name)
	if err != nil {
		return nil, err
	}
	if len(n.data) > limit {
		return nil, errors.New("too long")
	}
	return slices.Clone(n.data), nil
}

func (f *forgetFS) ReadDir(name string) ([]string, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	n, err := f.find(name)
	if err != nil {
		return nil, err
	}
	return slices.Sorted(maps.Keys(n.names)), nil
}

func (f *forgetFS) Mkdir(name string) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	if err := f.step("mkdir", name); err != nil {
		return err
	}
	parent, err := f.find(path.Dir(name))
	if err != nil {
		return err
	}
	if parent.names[path.Base(name)] != nil {
		return &fs.PathError{Op: "mkdir", Path: name, Err: fs.ErrExist}
	}
	parent.names[path.Base(name)] = newDir()
	return nil
}

func (f *forgetFS) Rename(oldname, newname string) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	if err := f.step("rename", newname); err != nil {
		return err
	}
	parent, err := f.find(path.Dir(oldname))
	if err != nil {
		return err
	}
	parent.names[path.Base(newname)] = parent.names[path.Base(oldname)]
	delete(parent.names, path.Base(oldname))
	return nil
}

func (f *forgetFS) Remove(name string) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	if err := f.step("remove", name); err != nil {
		return err
	}
	n, err := f.find(name)
	if err != nil {
		return err
	}
	if len(n.names) > 0 {
		return &fs.PathError{Op: "remove", Path: name, Err: unix.ENOTEMPTY}
	}
	parent, err := f.find(path.Dir(name))
	if err != nil {
		return err
	}
	delete(parent.names, path.Base(name))
	if f.capacity >= 0 {
		f.capacity += int64(len(n.data))
	}
	return nil
}

func (f *forgetFS) SyncDir(name string) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	if err := f.step("syncdir", name); err != nil {
		return err
	}
	n, err := f.find(name)
	if err != nil {
		return err
	}
	n.onDisk = maps.Clone(n.names)
	return nil
}

func (f *forgetFS) Free(string) (int64, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.capacity < 0 {
		return 1 << 40, nil
	}
	return f.capacity, nil
}

func (f *forgetFS) Lock(name string) (io.Closer, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	n, err := f.find(name)
	if err != nil {
		return nil, err
	}
	if n.locked {
		return nil, ErrLocked
	}
	n.locked = true
	return &heldLock{f, n, f.life}, nil
}

type heldLock struct {
	fs   *forgetFS
	n    *node
	life int
}

func (l *heldLock) Close() error {
	l.fs.mu.Lock()
	defer l.fs.mu.Unlock()
	if l.life == l.fs.life {
		l.n.locked = false
	}
	return nil
}

type handle struct {
	fs   *forgetFS
	n    *node
	name string
	life int
}

func (h *handle) ReadAt(b []byte, offset int64) (int, error) {
	h.fs.mu.Lock()
	defer h.fs.mu.Unlock()
	if h.life != h.fs.life {
		return 0, fs.ErrClosed
	}
	if offset >= int64(len(h.n.data)) {
		return 0, io.EOF
	}
	n := copy(b, h.n.data[offset:])
	if n < len(b) {
		return n, io.EOF
	}
	return n, nil
}

func (h *handle) WriteAt(b []byte, offset int64) (int, error) {
	h.fs.mu.Lock()
	defer h.fs.mu.Unlock()
	if h.life != h.fs.life {
		return 0, fs.ErrClosed
	}
	if err := h.fs.step("write", h.name); err != nil {
		return 0, err
	}
	if grow := offset + int64(len(b)) - int64(len(h.n.data)); grow > 0 && h.fs.capacity >= 0 {
		if grow > h.fs.capacity {
			return 0, &fs.PathError{Op: "write", Path: h.name, Err: unix.ENOSPC}
		}
		h.fs.capacity -= grow
	}
	h.n.data = put(h.n.data, b, offset)
	h.n.pending = append(h.n.pending, write{offset, slices.Clone(b)})
	return len(b), nil
}

func put(dst, b []byte, offset int64) []byte {
	if end := offset + int64(len(b)); end > int64(len(dst)) {
		dst = append(dst, make([]byte, end-int64(len(dst)))...)
	}
	copy(dst[offset:], b)
	return dst
}

func (h *handle) Size() (int64, error) {
	h.fs.mu.Lock()
	defer h.fs.mu.Unlock()
	return int64(len(h.n.data)), nil
}

func (h *handle) Sync() error {
	h.fs.mu.Lock()
	defer h.fs.mu.Unlock()
	if h.life != h.fs.life {
		return fs.ErrClosed
	}
	if err := h.fs.step("sync", h.name); err != nil {
		if !errors.Is(err, errPower) {
			h.n.pending = nil // clean in the cache, absent from the disk
		}
		return err
	}
	for _, w := range h.n.pending {
		h.n.disk = put(h.n.disk, w.data, w.offset)
	}
	h.n.pending = nil
	return nil
}

func (h *handle) Close() error { return nil }

// powerCut gives the file system as it comes back. chance is the probability
// that an unsynced sector or directory entry is there all the same.
func (f *forgetFS) powerCut(r *rand.Rand, chance float64) {
	f.mu.Lock()
	defer f.mu.Unlock()
	seen := map[*node]*node{}
	f.root = survive(f.root, r, chance, seen)
	f.live()
}

// restart is the end of the process: the page cache stays.
func (f *forgetFS) restart() {
	f.mu.Lock()
	defer f.mu.Unlock()
	var free func(*node)
	free = func(n *node) {
		n.locked = false
		for _, child := range n.names {
			free(child)
		}
	}
	free(f.root)
	f.live()
}

func (f *forgetFS) live() {
	f.life++
	f.dead, f.countdown, f.fail, f.readOnly = false, -1, nil, false
}

func survive(n *node, r *rand.Rand, chance float64, seen map[*node]*node) *node {
	if s := seen[n]; s != nil {
		return s
	}
	if !n.dir {
		disk := slices.Clone(n.disk)
		for _, w := range n.pending {
			for at := int64(0); at < int64(len(w.data)); {
				next := min((w.offset+at)/sectorSize*sectorSize+sectorSize-w.offset, int64(len(w.data)))
				if r.Float64() < chance {
					disk = put(disk, w.data[at:next], w.offset+at)
				}
				at = next
			}
		}
		s := &node{data: slices.Clone(disk), disk: disk}
		seen[n] = s
		return s
	}
	s := newDir()
	seen[n] = s
	all := maps.Clone(n.onDisk)
	maps.Copy(all, n.names)
	for name := range all {
		was, is := n.onDisk[name], n.names[name]
		if was != is && r.Float64() < chance {
			was = is
		}
		if was != nil {
			s.names[name] = survive(was, r, chance, seen)
		}
	}
	s.onDisk = maps.Clone(s.names)
	return s
}

// content copies a directory's files, for comparison and for damage.
func (f *forgetFS) content(dir string) map[string][]byte {
	f.mu.Lock()
	defer f.mu.Unlock()
	out := map[string][]byte{}
	if n, err := f.find(dir); err == nil {
		for name, child := range n.names {
			out[name] = slices.Clone(child.data)
		}
	}
	return out
}

// load makes a durable directory with these files.
func (f *forgetFS) load(dir string, files map[string][]byte) {
	f.mu.Lock()
	defer f.mu.Unlock()
	d := newDir()
	for name, data := range files {
		d.names[name] = &node{data: slices.Clone(data), disk: slices.Clone(data)}
	}
	d.onDisk = maps.Clone(d.names)
	f.root.names[dir], f.root.onDisk[dir] = d, d
}

// The model itself: unsynced bytes and names go with the power, and a failed
// sync makes a later one lie.
func TestForgetFSForgets(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 1))
	f := newForgetFS()
	file, err := f.OpenFile("a", true)
	if err != nil {
		t.Fatal(err)
	}
	write := func(s string, at int64) {
		t.Helper()
		if _, err := file.WriteAt([]byte(s), at); err != nil {
			t.Fatal(err)
		}
	}
	write("one", 0)
	if err := errors.Join(file.Sync(), f.SyncDir("/")); err != nil {
		t.Fatal(err)
	}
	write("two", 0)
	f.fail = func(op, _ string) error {
		if op == "sync" {
			return errIO
		}
		return nil
	}
	if err := file.Sync(); !errors.Is(err, unix.EIO) {
		t.Fatalf("sync: %v", err)
	}
	f.fail = nil
	if err := file.Sync(); err != nil {
		t.Fatal(err)
	}
	if got := string(f.content("/")["a"]); got != "two" {
		t.Fatalf("cache holds %q", got)
	}
	if _, err := f.OpenFile("b", true); err != nil {
		t.Fatal(err)
	}
	f.powerCut(r, 0)
	if got := f.content("/"); len(got) != 1 || string(got["a"]) != "one" {
		t.Fatalf("after the power cut: %q", got)
	}
}
