package ledger

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"path/filepath"

	"github.com/hashicorp/go-hclog"

	"github.com/quittance/quittance/protocol"
)

const (
	markerSuffix = ".created"
	freshSuffix  = ".new"
	markerLength = 33 // a generation and a line feed
)

func (o Options) withDefaults() (Options, error) {
	if o.Segment == 0 {
		o.Segment = DefaultSegment
	}
	if o.Queue == 0 {
		o.Queue = DefaultQueue
	}
	if o.AttestAfter == 0 {
		o.AttestAfter = DefaultAttestAfter
	}
	if o.FS == nil {
		o.FS = osFS{}
	}
	if o.Logger == nil {
		o.Logger = hclog.NewNullLogger()
	}
	if o.Segment < MinSegment || o.Segment > MaxSegment || o.Segment%4096 != 0 {
		return o, fmt.Errorf("ledger segment size must be a multiple of 4096 from %d to %d bytes", MinSegment, MaxSegment)
	}
	if o.Reserve < 0 || o.Reserve > 1<<40 || o.Ballast < 0 || o.Ballast > 1<<40 || o.Queue < 0 || o.AttestAfter < 0 {
		return o, errors.New("ledger reserve, ballast, queue and attest time must not be negative, reserve and ballast at most 1 TiB")
	}
	return o, nil
}

// marker is the path of the marker that remembers the ledger in dir.
func (o Options) marker(dir string) string {
	if o.Marker != "" {
		return o.Marker
	}
	return dir + markerSuffix
}

// groupLimit bounds a group so that every spare has room for it.
func (o Options) groupLimit() int64 { return min(MaxGroup, o.Segment-segmentHeader) }

// Create makes a new ledger in dir, which must not exist, with first as its
// first group (the genesis receipt), and returns once everything is durable.
// It returns ErrExists where a ledger is or once was. The parent directory
// must exist. A crash leaves no ledger, or a whole one.
func Create(dir string, o Options, first []Record) error {
	o, err := o.withDefaults()
	if err != nil {
		return err
	}
	generation, err := generationBytes(o.Generation)
	if err != nil {
		return err
	}
	if len(first) == 0 {
		return errors.New("a ledger begins with at least one record")
	}
	if _, err := groupSize(first, o.groupLimit()); err != nil {
		return err
	}
	for _, name := range []string{dir, o.marker(dir)} {
		switch exists, err := exists(o.FS, name); {
		case err != nil:
			return err
		case exists:
			return fmt.Errorf("%s: %w", name, ErrExists)
		}
	}
	fresh := dir + freshSuffix
	if err := removeDir(o.FS, fresh); err != nil {
		return fmt.Errorf("remove what an earlier creation left: %w", err)
	}
	if err := o.FS.Mkdir(fresh); err != nil {
		return err
	}
	b := header{place: place{generation, 1}, size: o.Segment, first: 1}.encode()
	var chain digest
	for i, r := range first {
		rec := record{sequence: uint64(i + 1), previous: chain, kind: r.Kind, more: i+1 < len(first), payload: r.Payload}
		b, chain = appendRecord(b, place{generation, 1}, int64(len(b)), rec)
	}
	if err := writeSegment(o.FS, filepath.Join(fresh, segmentName(1)), b, o.Segment); err != nil {
		return err
	}
	if err := o.FS.SyncDir(fresh); err != nil {
		return err
	}
	if err := o.FS.Rename(fresh, dir); err != nil {
		return err
	}
	if err := o.FS.SyncDir(filepath.Dir(dir)); err != nil {
		return err
	}
	return mark(o, dir, o.Generation)
}

// exists reports whether a file or directory has that name. Nothing has one in
// a directory that is not there.
func exists(f FS, name string) (bool, error) {
	names, err := f.ReadDir(filepath.Dir(name))
	if errors.Is(err, fs.ErrNotExist) {
		return false, nil
	}
	if err != nil {
		return false, err
	}
	for _, n := range names {
		if n == filepath.Base(name) {
			return true, nil
		}
	}
	return false, nil
}

// removeDir removes a directory that holds nothing but segments. It never
// goes deeper, and stops before the first removal at any other name.
func removeDir(f FS, dir string) error {
	names, err := f.ReadDir(dir)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	for _, name := range names {
		if _, ok := parseSegmentName(name); !ok {
			return fmt.Errorf("%s holds %q, which is not of a ledger: look at it and remove the directory by hand", dir, name)
		}
	}
	for _, name := range names {
		if err := f.Remove(filepath.Join(dir, name)); err != nil {
			return err
		}
	}
	return f.Remove(dir)
}

// writeSegment creates a file with b at its front and zeros up to size, and
// syncs it; the directory is the caller's to sync.
func writeSegment(f FS, name string, b []byte, size int64) (err error) {
	file, err := f.OpenFile(name, true)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, file.Close()) }()
	if err := rewrite(file, b, 0, size); err != nil {
		return err
	}
	return file.Sync()
}

// rewrite writes b at offset and zeros from there to size.
func rewrite(file File, b []byte, offset, size int64) error {
	for len(b) > 0 {
		n := min(len(b), 1<<20)
		if _, err := file.WriteAt(b[:n], offset); err != nil {
			return err
		}
		b, offset = b[n:], offset+int64(n)
	}
	for offset < size {
		n := min(size-offset, int64(len(zeros)))
		if _, err := file.WriteAt(zeros[:n], offset); err != nil {
			return err
		}
		offset += n
	}
	return nil
}

// mark makes the marker beside the ledger durable, whatever was there of it.
func mark(o Options, dir string, generation protocol.ID) (err error) {
	name, f := o.marker(dir), o.FS
	file, err := f.OpenFile(name, false)
	if errors.Is(err, fs.ErrNotExist) {
		file, err = f.OpenFile(name, true)
	}
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, file.Close()) }()
	if _, err := file.WriteAt([]byte(string(generation)+"\n"), 0); err != nil {
		return err
	}
	if err := file.Sync(); err != nil {
		return err
	}
	return f.SyncDir(filepath.Dir(name))
}

// marked reads the marker: the generation that it remembers, "" if there is no
// marker. A torn marker comes from a creation that was cut short after the
// ledger was whole: it remembers no generation, but that there was a ledger.
func marked(o Options, dir string) (generation protocol.ID, there bool, err error) {
	b, err := o.FS.ReadFile(o.marker(dir), markerLength)
	if errors.Is(err, fs.ErrNotExist) {
		return "", false, nil
	}
	if err != nil {
		return "", false, err
	}
	if id := protocol.ID(bytes.TrimSuffix(b, []byte("\n"))); len(b) == markerLength && id.Valid() {
		return id, true, nil
	}
	return "", true, nil
}

// groupSize checks a group against its ceilings and gives its size on disk.
func groupSize(records []Record, limit int64) (int64, error) {
	var size int64
	for _, r := range records {
		if r.Kind != KindReceipt && r.Kind != KindIntent {
			return 0, fmt.Errorf("ledger: records of kind %s are not appended by callers", r.Kind)
		}
		if len(r.Payload) > MaxPayload {
			return 0, ErrTooLarge
		}
		size += Size(len(r.Payload))
	}
	if size > limit {
		return 0, ErrTooLarge
	}
	return size, nil
}
