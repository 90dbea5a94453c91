package store

import (
	"bytes"
	"errors"
	"io"
	"io/fs"
	"maps"
	"math/rand/v2"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
)

// memFS is a file system in memory that keeps nothing through a crash that was
// not synced, directory entries included. A failed sync loses what it was to
// make durable although readers still see it, as page caches do.
type memFS struct {
	mu       sync.Mutex
	dirs     map[string]*memDir
	capacity int64 // bytes; 0: unlimited
	locks    map[string]bool

	// hook is called before each operation with its name and path, without
	// the lock; its error is the operation's.
	hook func(op, name string) error
	// Seeded defects.
	skipFileSync, skipDirSync bool
}

type memDir struct {
	now     map[string]*memInode
	durable map[string]*memInode
}

type memInode struct {
	now       []byte
	durable   []byte
	synced    bool // durable is what a crash leaves; else anything up to now
	lost      bool // a failed sync: later syncs of this content do nothing
	allocated int64
	moved     *memDir // where a rename to another directory put it, not yet synced there
}

var errIO = syscall.EIO

func newMemFS() *memFS {
	m := &memFS{dirs: map[string]*memDir{}, locks: map[string]bool{}}
	m.dirs["/"] = newMemDir()
	return m
}

func newMemDir() *memDir {
	return &memDir{now: map[string]*memInode{}, durable: map[string]*memInode{}}
}

// enter runs the hook and takes the lock.
func (m *memFS) enter(op, name string) error {
	if m.hook != nil {
		if err := m.hook(op, name); err != nil {
			return &fs.PathError{Op: op, Path: name, Err: err}
		}
	}
	m.mu.Lock()
	return nil
}

func (m *memFS) at(name string) (*memDir, string, error) {
	d, ok := m.dirs[filepath.Dir(name)]
	if !ok {
		return nil, "", fs.ErrNotExist
	}
	return d, filepath.Base(name), nil
}

func (m *memFS) used() int64 {
	var n int64
	for _, d := range m.dirs {
		for _, i := range d.now {
			n += max(int64(len(i.now)), i.allocated)
		}
	}
	return n
}

// Mkdir is durable at once: only creation makes directories, and it has its
// own test.
func (m *memFS) Mkdir(name string) error {
	if err := m.enter("mkdir", name); err != nil {
		return err
	}
	defer m.mu.Unlock()
	if _, ok := m.dirs[name]; ok {
		return fs.ErrExist
	}
	if _, ok := m.dirs[filepath.Dir(name)]; !ok {
		return fs.ErrNotExist
	}
	m.dirs[name] = newMemDir()
	return nil
}

func (m *memFS) List(dir string) ([]string, error) {
	if err := m.enter("list", dir); err != nil {
		return nil, err
	}
	defer m.mu.Unlock()
	d, ok := m.dirs[filepath.Clean(dir)]
	if !ok {
		return nil, fs.ErrNotExist
	}
	names := slices.Collect(maps.Keys(d.now))
	for sub := range m.dirs {
		if sub != "/" && filepath.Dir(sub) == filepath.Clean(dir) {
			names = append(names, filepath.Base(sub)+"/")
		}
	}
	return names, nil
}

func (m *memFS) Read(name string, limit int64) ([]byte, error) {
	if err := m.enter("read", name); err != nil {
		return nil, err
	}
	defer m.mu.Unlock()
	d, base, err := m.at(name)
	if err != nil {
		return nil, err
	}
	i, ok := d.now[base]
	if !ok {
		return nil, fs.ErrNotExist
	}
	if int64(len(i.now)) > limit {
		return nil, errTooLong
	}
	return bytes.Clone(i.now), nil
}

func (m *memFS) Create(name string) (File, error) {
	if err := m.enter("create", name); err != nil {
		return nil, err
	}
	defer m.mu.Unlock()
	d, base, err := m.at(name)
	if err != nil {
		return nil, err
	}
	if _, ok := d.now[base]; ok {
		return nil, fs.ErrExist
	}
	i := &memInode{}
	d.now[base] = i
	return &memFile{m, i, name}, nil
}

func (m *memFS) Rename(from, to string) error {
	if err := m.enter("rename", from); err != nil {
		return err
	}
	defer m.mu.Unlock()
	if d, ok := m.dirs[from]; ok { // a directory, for rotation
		for name := range maps.Clone(m.dirs) {
			if strings.HasPrefix(name, from+"/") {
				m.dirs[to+strings.TrimPrefix(name, from)] = m.dirs[name]
				delete(m.dirs, name)
			}
		}
		m.dirs[to] = d
		delete(m.dirs, from)
		return nil
	}
	d, base, err := m.at(from)
	if err != nil {
		return err
	}
	t, target, err := m.at(to)
	if err != nil {
		return err
	}
	i, ok := d.now[base]
	if !ok {
		return fs.ErrNotExist
	}
	delete(d.now, base)
	t.now[target] = i
	if t != d {
		i.moved = t
	}
	return nil
}

func (m *memFS) Remove(name string) error {
	if err := m.enter("remove", name); err != nil {
		return err
	}
	defer m.mu.Unlock()
	d, base, err := m.at(name)
	if err != nil {
		return err
	}
	if _, ok := d.now[base]; !ok {
		return fs.ErrNotExist
	}
	delete(d.now, base)
	return nil
}

func (m *memFS) SyncDir(dir string) error {
	if err := m.enter("syncdir", dir); err != nil {
		return err
	}
	defer m.mu.Unlock()
	d, ok := m.dirs[filepath.Clean(dir)]
	if !ok {
		return fs.ErrNotExist
	}
	if !m.skipDirSync {
		d.durable = maps.Clone(d.now)
	}
	return nil
}

func (m *memFS) Free(dir string) (int64, error) {
	if err := m.enter("free", dir); err != nil {
		return 0, err
	}
	defer m.mu.Unlock()
	if m.capacity == 0 {
		return 1 << 50, nil
	}
	return max(m.capacity-m.used(), 0), nil
}

func (m *memFS) Lock(name string) (io.Closer, error) {
	if err := m.enter("lock", name); err != nil {
		return nil, err
	}
	defer m.mu.Unlock()
	if m.locks[name] {
		return nil, ErrLocked
	}
	m.locks[name] = true
	return closer(func() error {
		m.mu.Lock()
		defer m.mu.Unlock()
		delete(m.locks, name)
		return nil
	}), nil
}

type closer func() error

func (c closer) Close() error { return c() }

type memFile struct {
	fs    *memFS
	inode *memInode
	name  string
}

func (f *memFile) Write(p []byte) (int, error) {
	if err := f.fs.enter("write", f.name); err != nil {
		return 0, err
	}
	defer f.fs.mu.Unlock()
	if f.fs.capacity > 0 && f.fs.used()+int64(len(p)) > f.fs.capacity {
		return 0, syscall.ENOSPC
	}
	f.inode.now = append(f.inode.now, p...)
	f.inode.synced, f.inode.lost = false, false
	return len(p), nil
}

func (f *memFile) Sync() error {
	if err := f.fs.enter("sync", f.name); err != nil {
		f.fs.mu.Lock()
		f.inode.lost = true
		f.fs.mu.Unlock()
		return err
	}
	defer f.fs.mu.Unlock()
	if !f.inode.lost && !f.fs.skipFileSync {
		f.inode.durable, f.inode.synced = bytes.Clone(f.inode.now), true
	}
	return nil
}

func (f *memFile) Allocate(size int64) error {
	if err := f.fs.enter("allocate", f.name); err != nil {
		return err
	}
	defer f.fs.mu.Unlock()
	if f.fs.capacity > 0 && f.fs.used()+size > f.fs.capacity {
		return syscall.ENOSPC
	}
	f.inode.allocated = size
	return nil
}

func (f *memFile) Close() error { return nil }

// crash is a power cut: of every entry and content that was not synced, each
// is kept, lost or, for content, torn, as random says. With a nil random
// everything unsynced is lost. A rename between directories never loses both
// names.
func (m *memFS) crash(random *rand.Rand) {
	m.mu.Lock()
	defer m.mu.Unlock()
	keep := func() bool { return random != nil && random.IntN(2) == 0 }
	for _, path := range slices.Sorted(maps.Keys(m.dirs)) {
		d := m.dirs[path]
		after := maps.Clone(d.durable)
		names := map[string]bool{}
		for name := range d.now {
			names[name] = true
		}
		for name := range d.durable {
			names[name] = true
		}
		for _, name := range slices.Sorted(maps.Keys(names)) {
			if d.now[name] == d.durable[name] || !keep() {
				continue
			}
			if i, ok := d.now[name]; ok {
				after[name] = i
				continue
			}
			if old := d.durable[name]; old.moved == nil || slices.Contains(slices.Collect(maps.Values(old.moved.durable)), old) {
				delete(after, name)
			}
		}
		d.now = after
	}
	for _, d := range m.dirs {
		for _, i := range d.now {
			if i.synced {
				continue
			}
			switch {
			case random == nil || i.lost || random.IntN(3) == 0:
				i.now = bytes.Clone(i.durable)
			case random.IntN(2) == 0 && len(i.now) > 0:
				i.now = i.now[:random.IntN(len(i.now))]
			}
			i.durable, i.synced = bytes.Clone(i.now), true
		}
		d.durable = maps.Clone(d.now)
	}
	m.locks = map[string]bool{}
	m.hook = nil
}

// kill is the death of the process alone: what was written stays readable.
func (m *memFS) kill() {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.locks = map[string]bool{}
	m.hook = nil
}

// failNth returns a hook that fails the nth matching operation, from 1.
func failNth(n int, err error, match func(op, name string) bool) func(op, name string) error {
	var mu sync.Mutex
	return func(op, name string) error {
		mu.Lock()
		defer mu.Unlock()
		if !match(op, name) {
			return nil
		}
		n--
		if n == 0 {
			return err
		}
		return nil
	}
}

var errCut = errors.New("power cut")

// cutAt returns a hook after whose nth operation nothing works any more.
func cutAt(n int) func(op, name string) error {
	var mu sync.Mutex
	return func(string, string) error {
		mu.Lock()
		defer mu.Unlock()
		n--
		if n < 0 {
			return errCut
		}
		return nil
	}
}
