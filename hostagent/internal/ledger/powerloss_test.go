//go:build crash

package ledger

import (
	"errors"
	"fmt"
	"io/fs"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/quittance/quittance/integration/powerloss"
)

// defectiveFS is the operating system's file system with a seeded defect.
type defectiveFS struct {
	osFS
	sync func(*defectiveFile) error // in place of Sync
}

func (f *defectiveFS) OpenFile(name string, create bool) (File, error) {
	file, err := f.osFS.OpenFile(name, create)
	if err != nil {
		return nil, err
	}
	return &defectiveFile{File: file, fs: f}, nil
}

type defectiveFile struct {
	File
	fs   *defectiveFS
	late sync.WaitGroup // syncs that nobody waited for
	mu   sync.Mutex
	err  error // theirs
}

func (f *defectiveFile) Sync() error { return f.fs.sync(f) }

func (f *defectiveFile) Close() error {
	f.late.Wait()
	return errors.Join(f.err, f.File.Close())
}

// ledgerLoad appends, rolls over segments and releases, one promise per group.
// Its payloads are numbered, so that a check knows what must be there.
type ledgerLoad struct {
	fs func() FS
}

func (w ledgerLoad) options() Options {
	o := Options{Generation: testGeneration, Segment: MinSegment, AttestAfter: 3 * time.Millisecond, FS: osFS{}}
	if w.fs != nil {
		o.FS = w.fs()
	}
	return o
}

const loadGroups = 90

// loadPayload is group n's payload: whatever its size, it says which it is.
func loadPayload(n int) []byte {
	return fmt.Appendf(nil, "group %d %s", n, strings.Repeat("·", n*37%1200))
}

func (w ledgerLoad) Run(base string, ack func(string)) error {
	dir, o := filepath.Join(base, "ledger"), w.options()
	if err := Create(dir, o, []Record{{KindReceipt, loadPayload(1)}}); err != nil {
		return err
	}
	ack("group 1")
	l, err := Open(dir, o)
	if err != nil {
		return err
	}
	var mu sync.Mutex
	var failed error
	var wg sync.WaitGroup
	answer := func(n int, promise string) func([]Entry, error) {
		wg.Add(1)
		return func(_ []Entry, err error) {
			defer wg.Done()
			if err == nil {
				if promise != "" {
					ack(promise)
				}
				ack(fmt.Sprintf("group %d", n))
				return
			}
			mu.Lock()
			defer mu.Unlock()
			failed = errors.Join(failed, err)
		}
	}
	for n := 2; n <= loadGroups; n++ {
		if n%30 == 0 {
			err = l.Release(Release{Base: fmt.Appendf(nil, "base %d", n-1), Records: []Record{{KindReceipt, loadPayload(n)}}},
				answer(n, fmt.Sprintf("base %d", n-1)))
		} else {
			err = l.Append([]Record{{KindReceipt, loadPayload(n)}}, answer(n, ""))
		}
		if err != nil {
			return errors.Join(err, l.Close())
		}
		if n%4 == 0 {
			wg.Wait() // else groups share a batch
		}
		if n%25 == 0 {
			wg.Wait()
			time.Sleep(2 * o.AttestAfter) // an idle moment, in which the last record is attested
		}
	}
	wg.Wait()
	return errors.Join(failed, l.Close())
}

func (w ledgerLoad) Check(base string, promises []string) (err error) {
	last, folded := powerloss.Number(promises, "group"), powerloss.Number(promises, "base")
	dir := filepath.Join(base, "ledger")
	o := Options{Generation: testGeneration, Segment: MinSegment, AttestAfter: time.Hour}
	l, err := Open(dir, o)
	if last == 0 && (errors.Is(err, ErrNotExist) || errors.Is(err, fs.ErrNotExist)) {
		return nil
	}
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, l.Close()) }()
	next := 1
	if base := l.Recovered().Base; base != nil {
		if _, err := fmt.Sscanf(string(base), "base %d", &next); err != nil {
			return fmt.Errorf("base %q: %w", base, err)
		}
		next++
	}
	if next <= folded {
		return fmt.Errorf("the base folds %d groups, one of %d was promised", next-1, folded)
	}
	for e, err := range l.Recovered().Records {
		if err != nil {
			return err
		}
		if string(e.Payload) != string(loadPayload(next)) {
			return fmt.Errorf("where group %d belongs is %.30q", next, e.Payload)
		}
		next++
	}
	if next <= last {
		return fmt.Errorf("groups up to %d were promised, %d are there", last, next-1)
	}
	return nil
}

// TestPowerLoss cuts the power under the ledger on a real ext4 (I5, I35), and
// shows for seeded defects that it would be seen.
func TestPowerLoss(t *testing.T) {
	if !powerloss.Isolate(t) {
		return
	}
	t.Run("sound", func(t *testing.T) { powerloss.Holds(t, ledgerLoad{}, 80, 1) })
	for name, seed := range map[string]func() FS{
		"no fdatasync": func() FS {
			return &defectiveFS{sync: func(*defectiveFile) error { return nil }}
		},
		"sync every fourth": func() FS {
			var n atomic.Int64
			return &defectiveFS{sync: func(f *defectiveFile) error {
				if n.Add(1)%4 != 0 {
					return nil
				}
				return f.File.Sync()
			}}
		},
		"acknowledgement before sync": func() FS {
			return &defectiveFS{sync: func(f *defectiveFile) error {
				f.late.Go(func() {
					err := f.File.Sync()
					f.mu.Lock()
					defer f.mu.Unlock()
					f.err = errors.Join(f.err, err)
				})
				return nil
			}}
		},
	} {
		t.Run(name, func(t *testing.T) { powerloss.Catches(t, ledgerLoad{seed}, 1000, 1) })
	}
}
