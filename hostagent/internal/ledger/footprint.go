package ledger

import (
	"cmp"
	"errors"
	"io/fs"
	"path/filepath"
	"slices"
)

// Footprint is the most that a ledger with these options takes on disk, in
// bytes, while kept bytes of records, as they lie on disk, have to be kept at
// once: the segment in use, the spares and the ballast, which Open prepares and
// which are all that kept = 0 stands for; whole segments for what is kept,
// however the groups fall; and the segment with the base before, which is there
// until the base that a release begins is durable. It holds for releases that
// keep nothing before their base, for bases that fit into a segment, and once
// files of an earlier, larger Options.Segment are gone. Names, and what the file
// system needs to find the blocks, are not counted.
func Footprint(o Options, kept int64) int64 {
	o.Segment = cmp.Or(o.Segment, DefaultSegment)
	segments := int64((&Ledger{o: o}).wanted()) + 1
	if kept > 0 {
		each := usable(o.Segment)
		segments += (kept+each-1)/each + 1
	}
	return segments*o.Segment + o.Ballast
}

// FullBelow is the number of free bytes below which a ledger that was content
// counts its disk as full and gives up the ballast, so that new work should be
// refused; 0 without a ballast, where only a write that fails tells. Free is
// meant as [FS] has it: what this process may use.
func (o Options) FullBelow() int64 { return o.Ballast / 2 }

// ContentFrom is the number of free bytes from which a ledger that had counted
// its disk as full takes it for usable again, where so many spare segments are
// missing, and the ballast unless it is there: two ballasts are still free once
// everything is made anew.
func (o Options) ContentFrom(missing int, ballast bool) int64 {
	bytes := 2*o.Ballast + int64(missing)*cmp.Or(o.Segment, DefaultSegment)
	if !ballast {
		bytes += o.Ballast
	}
	return bytes
}

// Shortage is what a ledger's directory lacks of what should be prepared in it.
type Shortage struct {
	// Spares is the number of spare segments that are missing, those that are
	// not whole included.
	Spares int
	// Ballast is true while the ballast is missing: the ledger has given it up,
	// for the disk is full, or has never been opened.
	Ballast bool
}

// FindShortage looks at the ledger in dir and changes nothing. It reads no
// record and takes no lock: an agent may be running, and what it is making at
// this moment counts as missing. ErrNotExist where there is no ledger.
func FindShortage(dir string, o Options) (Shortage, error) {
	o, err := o.withDefaults()
	if err != nil {
		return Shortage{}, err
	}
	s := &scanner{o.FS, dir}
	ordinals, err := s.list()
	if err != nil {
		return Shortage{}, err
	}
	missing := (&Ledger{o: o}).wanted()
	for _, ordinal := range slices.Backward(ordinals) {
		begun, err := s.begun(ordinal)
		if errors.Is(err, fs.ErrNotExist) || err == nil && begun {
			break // in use, or removed since by a release: no spare is below it
		}
		if err != nil {
			return Shortage{}, err
		}
		whole, err := hasSize(o.FS, s.path(ordinal), o.Segment)
		if err != nil {
			return Shortage{}, err
		}
		if whole {
			missing--
		}
	}
	out := Shortage{Spares: max(missing, 0)}
	if o.Ballast > 0 {
		whole, err := hasSize(o.FS, filepath.Join(dir, ballastName), o.Ballast)
		if err != nil {
			return Shortage{}, err
		}
		out.Ballast = !whole
	}
	return out, nil
}

// hasSize reports whether a file is there and at least that long.
func hasSize(f FS, name string, size int64) (bool, error) {
	file, err := f.OpenFile(name, false)
	if errors.Is(err, fs.ErrNotExist) {
		return false, nil
	}
	if err != nil {
		return false, err
	}
	got, err := file.Size()
	return got >= size, errors.Join(err, file.Close())
}
