package store

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"path/filepath"
	"time"

	"github.com/quittance/quittance/controller/internal/attempt"
	"github.com/quittance/quittance/protocol"
)

// Subjects of changes that concern no single attempt; no key contains a slash.
const (
	subjectTrim    = "/trim"
	subjectWitness = "/witness/"
	subjectScope   = "/scope"
)

// Admit says whether a new attempt can be carried to its end: room for one
// more record, history within its window, and disk space for a full record
// beyond the reserve. It changes nothing. The errors are [ErrFull],
// [ErrHistory], [ErrNoSpace], and what the store failed of.
func (s *Store) Admit() error {
	s.mu.Lock()
	err := s.refusal()
	active, history := len(s.active), len(s.history)
	s.mu.Unlock()
	switch {
	case err != nil:
		return err
	case active >= s.cfg.MaxActive:
		return ErrFull
	case history > s.cfg.History:
		return ErrHistory
	}
	free, err := s.fs.Free(s.cfg.Dir)
	if err != nil {
		return fmt.Errorf("attempt store: %w", err)
	}
	if free < s.cfg.DiskReserve+MaxFileBytes+reserveBytes {
		return ErrNoSpace
	}
	return nil
}

// Create makes the first record of an attempt durable. The space to bring it to
// its end is reserved first.
func (s *Store) Create(ctx context.Context, r attempt.StartPending) (Entry, error) {
	key := r.Origin.Key
	if !attempt.ValidName(key) {
		return Entry{}, &protocol.DecodeError{Field: "/record/origin/key", Reason: "is not a usable attempt key"}
	}
	if r.Origin.Scope != s.cfg.Scope {
		return Entry{}, ErrScope
	}
	return s.do(ctx, key, func() (Entry, error) {
		s.mu.Lock()
		used, active := s.keys[key], len(s.active)
		s.mu.Unlock()
		switch {
		case used:
			return Entry{}, ErrKeyUsed
		case active >= s.cfg.MaxActive:
			return Entry{}, ErrFull
		}
		if _, err := attempt.Encode(r); err != nil {
			return Entry{}, err
		}
		if err := s.reserve(key); err != nil {
			return Entry{}, err
		}
		e, err := s.commit(Entry{key, 1, r})
		if errors.Is(err, ErrNoSpace) {
			err = errors.Join(err, s.unreserve(key))
		}
		return e, err
	})
}

// Apply moves the record from exactly the state that from shows by one event
// and returns the durable result. Another revision is a [*ConflictError] with
// the truth; a refusal of attempt.Step is returned as it is. An event that
// changes nothing writes nothing.
func (s *Store) Apply(ctx context.Context, from Entry, event attempt.Event) (Entry, error) {
	w, err := s.Begin(ctx, from, event)
	if err != nil {
		return Entry{}, err
	}
	return w.Wait(ctx)
}

// Begin is Apply without waiting for the disk: ctx bounds only the wait for an
// earlier write of the same record. Whoever depends on the result waits for
// the [Write].
func (s *Store) Begin(ctx context.Context, from Entry, event attempt.Event) (*Write, error) {
	return s.begin(ctx, from.Key, func() (Entry, error) {
		current, ok := s.Get(from.Key)
		switch {
		case !ok:
			return Entry{}, ErrNotFound
		case current.Revision != from.Revision:
			return Entry{}, &ConflictError{current}
		}
		return s.step(current, event)
	})
}

// Update applies an event to whatever state the record is in. It is for facts
// that hold in any state (Settled, ReceiptsSaved, ReceiptsAnswered, Noted);
// decisions use Apply.
func (s *Store) Update(ctx context.Context, key string, event attempt.Event) (Entry, error) {
	return s.do(ctx, key, func() (Entry, error) {
		current, ok := s.Get(key)
		if !ok {
			return Entry{}, ErrNotFound
		}
		return s.step(current, event)
	})
}

// step runs in the owner goroutine.
func (s *Store) step(current Entry, event attempt.Event) (Entry, error) {
	next, err := attempt.Step(current.Record, event)
	if err != nil {
		return Entry{}, err
	}
	before, err := attempt.Encode(current.Record)
	if err != nil {
		return Entry{}, err
	}
	after, err := attempt.Encode(next)
	if err != nil {
		return Entry{}, err
	}
	if bytes.Equal(before, after) {
		return current, nil
	}
	return s.commit(Entry{current.Key, current.Revision + 1, next})
}

// commit makes e the durable active record. It runs in the owner goroutine.
func (s *Store) commit(e Entry) (Entry, error) {
	file, began := s.path(activeDir, e.Key+recordSuffix), time.Now()
	write := func() error { return s.writeRecord(file, e) }
	err := write()
	if e.Revision > 1 {
		err = s.fromReserve(e.Key, err, write)
	}
	if err != nil {
		return Entry{}, err
	}
	s.mu.Lock()
	from := s.active[e.Key].Record
	s.active[e.Key] = e
	s.keys[e.Key] = true
	s.mu.Unlock()
	if s.cfg.Written != nil {
		s.cfg.Written(from, e.Record, time.Since(began))
	}
	// A reserve that was given up comes back as soon as there is space.
	if err := s.reserve(e.Key); err != nil && !errors.Is(err, ErrNoSpace) {
		return Entry{}, err
	}
	return e, nil
}

// Archive moves a record that holds nothing any more to history.
func (s *Store) Archive(ctx context.Context, key string) (HistoryEntry, error) {
	var made HistoryEntry
	_, err := s.do(ctx, key, func() (Entry, error) {
		s.mu.Lock()
		e, ok := s.active[key]
		size, next := len(s.history), int64(1)
		if size > 0 {
			next = s.history[size-1].Sequence + 1
		}
		s.mu.Unlock()
		switch {
		case !ok:
			return Entry{}, ErrNotFound
		case !attempt.Archivable(e.Record):
			return Entry{}, ErrHeld
		case size >= s.cfg.History+s.cfg.MaxActive:
			return Entry{}, ErrHistory
		}
		h := HistoryEntry{next, key}
		if err := s.fs.Rename(s.path(activeDir, key+recordSuffix), s.path(historyDir, historyName(h))); err != nil {
			return Entry{}, s.poison(err)
		}
		// The new name first: a crash between leaves two equal files, never none.
		for _, dir := range []string{historyDir, activeDir} {
			if err := s.fs.SyncDir(s.path(dir)); err != nil {
				return Entry{}, s.poison(err)
			}
		}
		s.mu.Lock()
		delete(s.active, key)
		s.history = append(s.history, h)
		s.mu.Unlock()
		made = h
		return e, s.unreserve(key)
	})
	if err != nil {
		return HistoryEntry{}, err
	}
	return made, nil
}

// Trim removes the oldest archived records until history is within its window
// and returns how many it removed. Every archived record is read and verified
// first; a damaged one removes nothing.
func (s *Store) Trim(ctx context.Context) (int, error) {
	removed := 0
	_, err := s.do(ctx, subjectTrim, func() (Entry, error) {
		list := s.History()
		excess := len(list) - s.cfg.History
		if excess <= 0 {
			return Entry{}, nil
		}
		for _, h := range list {
			if _, err := s.readArchived(h); err != nil {
				return Entry{}, err
			}
		}
		for _, h := range list[:excess] {
			if err := s.fs.Remove(s.path(historyDir, historyName(h))); err != nil {
				return Entry{}, s.poison(err)
			}
		}
		if err := s.fs.SyncDir(s.path(historyDir)); err != nil {
			return Entry{}, s.poison(err)
		}
		s.mu.Lock()
		defer s.mu.Unlock()
		for _, h := range list[:excess] {
			delete(s.keys, h.Key)
		}
		s.history = list[excess:]
		removed = excess
		return Entry{}, nil
	})
	if err != nil {
		return 0, err
	}
	return removed, nil
}

// SetWitness keeps the most that was seen of a host generation. A witness with
// a lower highest receipt than the one kept is [ErrWitness].
func (s *Store) SetWitness(ctx context.Context, generation protocol.ID, w Witness) error {
	if !generation.Valid() {
		return &protocol.DecodeError{Field: "/generation", Reason: "must be 32 lower-case hexadecimal digits"}
	}
	if err := w.validate(); err != nil {
		return fmt.Errorf("witness %w", err)
	}
	_, err := s.do(ctx, subjectWitness+string(generation), func() (Entry, error) {
		s.mu.Lock()
		old, known := s.witnesses[generation]
		count := len(s.witnesses)
		s.mu.Unlock()
		if !known && count >= MaxHostGenerations {
			return Entry{}, ErrHosts
		}
		if old.witness.Highest != nil && (w.Highest == nil || w.Highest.Index < old.witness.Highest.Index ||
			w.Highest.Index == old.witness.Highest.Index && w.Highest.LeafHash != old.witness.Highest.LeafHash) {
			return Entry{}, ErrWitness
		}
		next := witnessEntry{w, old.revision + 1}
		write := func() error { return s.writeWitness(generation, next) }
		if err := s.fromReserve("", write(), write); err != nil {
			return Entry{}, err
		}
		s.mu.Lock()
		defer s.mu.Unlock()
		s.witnesses[generation] = next
		return Entry{}, nil
	})
	return err
}

// RaiseSequence makes every later number of [Store.NextSequence] higher than
// seen, which the service has from this store's id: an older copy of the store
// was put back, which does not know how often the newer one was opened. What no
// number of openings explains is [ErrSequence], and changes nothing: an answer
// must not use up the numbers that the store has left.
func (s *Store) RaiseSequence(ctx context.Context, seen int64) error {
	opens := seen>>32 + 1
	if seen < 0 || opens >= maxOpens {
		return fmt.Errorf("%w: %d", ErrSequence, seen)
	}
	_, err := s.do(ctx, subjectScope, func() (Entry, error) {
		if opens <= s.opens.Load() {
			return Entry{}, nil
		}
		if opens > s.first+maxJump {
			return Entry{}, fmt.Errorf("%w: %d, and the store was opened %d times", ErrSequence, seen, s.first)
		}
		write := func() error { return s.writeScope(scopeContent{s.cfg.Scope, opens, false}) }
		if err := s.fromReserve("", write(), write); err != nil {
			return Entry{}, err
		}
		s.opens.Store(opens)
		s.sequence.Store(opens << 32)
		return Entry{}, nil
	})
	return err
}

// ForgetGeneration removes the witness of a host generation that is gone.
func (s *Store) ForgetGeneration(ctx context.Context, generation protocol.ID) error {
	_, err := s.do(ctx, subjectWitness+string(generation), func() (Entry, error) {
		s.mu.Lock()
		_, known := s.witnesses[generation]
		s.mu.Unlock()
		if !known {
			return Entry{}, ErrNotFound
		}
		if err := s.fs.Remove(s.path(hostsDir, string(generation)+witnessSuffix)); err != nil {
			return Entry{}, s.poison(err)
		}
		if err := s.fs.SyncDir(s.path(hostsDir)); err != nil {
			return Entry{}, s.poison(err)
		}
		s.mu.Lock()
		defer s.mu.Unlock()
		delete(s.witnesses, generation)
		return Entry{}, nil
	})
	return err
}

func (s *Store) writeRecord(file string, e Entry) error {
	content, err := attempt.Encode(e.Record)
	if err != nil {
		return err
	}
	return s.put(file, seal(s.id, kindAttempt, e.Key, e.Revision, content))
}

func (s *Store) writeWitness(generation protocol.ID, w witnessEntry) error {
	content := protocol.AppendCanonical(nil, w.witness)
	return s.put(s.path(hostsDir, string(generation)+witnessSuffix), seal(s.id, kindWitness, string(generation), max(w.revision, 1), content))
}

func (s *Store) writeScope(c scopeContent) error {
	s.scopeRevision++
	return s.put(s.path(scopeFile), seal(s.id, kindScope, "", s.scopeRevision, protocol.AppendCanonical(nil, c)))
}

// put replaces a file durably. [ErrNoSpace] changed nothing; every other
// failure poisons the store.
func (s *Store) put(file string, data []byte) error {
	tmp := file + tmpSuffix
	if err := writeFile(s.fs, tmp, data); err != nil {
		if removeErr := s.fs.Remove(tmp); removeErr != nil && !errors.Is(removeErr, fs.ErrNotExist) {
			return s.poison(errors.Join(err, removeErr))
		}
		if isFull(err) {
			return ErrNoSpace
		}
		return s.poison(err)
	}
	if err := s.fs.Rename(tmp, file); err != nil {
		return s.poison(err)
	}
	if err := s.fs.SyncDir(filepath.Dir(file)); err != nil {
		return s.poison(err)
	}
	return nil
}

// writeFile makes a new file with synced content.
func writeFile(files FS, name string, data []byte) error {
	f, err := files.Create(name)
	if err != nil {
		return err
	}
	_, err = f.Write(data)
	if err == nil {
		err = f.Sync()
	}
	return errors.Join(err, f.Close())
}

// reserve preallocates reserveBytes for the key.
func (s *Store) reserve(key string) error {
	if s.reserved[key] {
		return nil
	}
	name := s.path(reserveDir, key+reserveSuffix)
	f, err := s.fs.Create(name)
	if err == nil {
		err = errors.Join(f.Allocate(reserveBytes), f.Close())
	}
	if err == nil {
		s.reserved[key] = true
		return nil
	}
	if removeErr := s.fs.Remove(name); removeErr != nil && !errors.Is(removeErr, fs.ErrNotExist) {
		return s.poison(errors.Join(err, removeErr))
	}
	if isFull(err) {
		return ErrNoSpace
	}
	return s.poison(err)
}

// fromReserve repeats a write that failed with err for want of space as long as
// there are reserves to give up for it.
func (s *Store) fromReserve(key string, err error, write func() error) error {
	for errors.Is(err, ErrNoSpace) && len(s.reserved) > 0 {
		if err := s.giveUpReserve(key); err != nil {
			return err
		}
		err = write()
	}
	return err
}

// giveUpReserve frees the reserve of the key, or where it has none left, any
// other: all reserves together hold every active record at its full size and
// one temporary file.
func (s *Store) giveUpReserve(key string) error {
	if !s.reserved[key] {
		for key = range s.reserved {
			break
		}
	}
	return s.unreserve(key)
}

// unreserve gives the reserved space back.
func (s *Store) unreserve(key string) error {
	if !s.reserved[key] {
		return nil
	}
	if err := s.fs.Remove(s.path(reserveDir, key+reserveSuffix)); err != nil {
		return s.poison(err)
	}
	delete(s.reserved, key)
	return nil
}
