package ledger

import (
	"errors"
	"fmt"
	"io/fs"
	"path/filepath"
	"time"

	"github.com/quittance/quittance/protocol"
)

// Report is what Check found.
type Report struct {
	Generation protocol.ID
	Segments   int    // files that hold records
	Spares     int    // empty files ahead
	First      uint64 // lowest sequence that is there
	Base       uint64 // sequence of the newest base, 0 if none
	Last       uint64
	Attested   uint64 // every record up to it is proved to have been durable
	Receipts   uint64 // receipts after the base
	TailBytes  int64  // length of a bad, unattested tail that Open would cut
}

// Reading while an agent writes may see a later record before an earlier one,
// or a segment that a release has just removed; reading again settles it.
const (
	liveTries = 8
	livePause = 25 * time.Millisecond
)

// settled scans a ledger that another process may be writing.
func settled(o Options, dir string) (*scan, error) {
	is, err := exists(o.FS, dir)
	if err != nil {
		return nil, err
	}
	if !is {
		_, there, err := marked(o, dir)
		if err == nil && there {
			err = ErrLost
		} else if err == nil {
			err = ErrNotExist
		}
		return nil, fmt.Errorf("%s: %w", dir, err)
	}
	for try := 1; ; try++ {
		found, err := (&scanner{o.FS, dir}).run()
		_, damaged := errors.AsType[*DamageError](err)
		if err == nil || try == liveTries || !damaged && !errors.Is(err, fs.ErrNotExist) {
			return found, err
		}
		lock, lockErr := o.FS.Lock(dir)
		if lockErr == nil {
			// Nobody writes: what was read is the truth, unless a writer went
			// away meanwhile, so once more under the lock.
			found, err := (&scanner{o.FS, dir}).run()
			return found, errors.Join(err, lock.Close())
		}
		if !errors.Is(lockErr, ErrLocked) {
			return nil, errors.Join(err, lockErr)
		}
		time.Sleep(livePause)
	}
}

// Check verifies the ledger in dir and changes nothing; the agent may be
// running. Errors: *DamageError, *FormatError, ErrNotExist,
// ErrLost, *GenerationError.
func Check(dir string, o Options) (Report, error) {
	o, err := o.withDefaults()
	if err != nil {
		return Report{}, err
	}
	found, err := settled(o, dir)
	if err != nil {
		return Report{}, err
	}
	return found.report(o)
}

func (s *scan) report(o Options) (Report, error) {
	r := Report{
		Generation: generationID(s.generation), Segments: len(s.used), Spares: len(s.spares),
		First: s.used[0].first, Base: s.baseSeq, Last: s.last, Attested: s.attested,
		Receipts: s.receipts, TailBytes: s.tail,
	}
	remembered, _, err := marked(o, s.dir)
	if err != nil {
		return r, err
	}
	for _, want := range []protocol.ID{o.Generation, remembered} {
		if want != "" && want != r.Generation {
			return r, &GenerationError{Want: want, Got: r.Generation}
		}
	}
	return r, nil
}

// Backup copies the valid part of the ledger in dir into the directory dst,
// which must not exist, and returns once the copy is durable. The agent may be
// running. A ledger restored from it is behind whatever came later: the
// controller's witness shows that (I9).
func Backup(dir, dst string, o Options) (Report, error) {
	o, err := o.withDefaults()
	if err != nil {
		return Report{}, err
	}
	if is, err := exists(o.FS, dst); err != nil || is {
		return Report{}, errors.Join(err, fmt.Errorf("back up to %s: %w", dst, fs.ErrExist))
	}
	fresh := dst + freshSuffix
	for try := 1; ; try++ {
		found, err := settled(o, dir)
		if err != nil {
			return Report{}, err
		}
		report, err := found.report(o)
		if err != nil {
			return Report{}, err
		}
		if err := removeDir(o.FS, fresh); err != nil {
			return Report{}, fmt.Errorf("remove what an earlier backup left: %w", err)
		}
		err = found.copyTo(o.FS, fresh)
		if err == nil {
			err = errors.Join(o.FS.Rename(fresh, dst), o.FS.SyncDir(filepath.Dir(dst)))
			return report, err
		}
		if !errors.Is(err, fs.ErrNotExist) || try == liveTries {
			return Report{}, err
		}
		// A release removed a segment before it was copied.
	}
}

// Export gives every record that the ledger's segments hold to yield, in order,
// bases and attests excepted, and changes nothing; the agent may be running.
// The ledger is verified first, and nothing is given of a damaged one. An error
// of yield ends it.
func Export(dir string, o Options, yield func(Entry) error) (Report, error) {
	o, err := o.withDefaults()
	if err != nil {
		return Report{}, err
	}
	found, err := settled(o, dir)
	if err != nil {
		return Report{}, err
	}
	report, err := found.report(o)
	if err != nil {
		return Report{}, err
	}
	l := &Ledger{dir: dir, o: o, generation: found.generation}
	for _, u := range found.used {
		l.each(u, func(e Entry, readErr error) bool {
			if err = readErr; err == nil && e.Kind != KindBase && e.Kind != KindAttest {
				err = yield(e)
			}
			return err == nil
		})
		if errors.Is(err, fs.ErrNotExist) {
			return report, fmt.Errorf("%w: a release removed the segment while it was exported: export again", err)
		}
		if err != nil {
			return report, err
		}
	}
	return report, nil
}

// copyTo copies what was verified, up to its end and no further.
func (s *scan) copyTo(f FS, dst string) error {
	if err := f.Mkdir(dst); err != nil {
		return err
	}
	from := &scanner{f, s.dir}
	for _, u := range s.used {
		b, err := from.read(u.ordinal, u.end)
		if err != nil {
			return err
		}
		if err := writeSegment(f, filepath.Join(dst, segmentName(u.ordinal)), b, u.size); err != nil {
			return err
		}
	}
	copied, err := (&scanner{f, dst}).run()
	if err != nil {
		return fmt.Errorf("verify the copy: %w", err)
	}
	if copied.last != s.last || copied.lastHash != s.lastHash {
		return errors.New("the copy does not end where the ledger did")
	}
	return f.SyncDir(dst)
}
