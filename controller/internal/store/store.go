package store

import (
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"

	"github.com/quittance/quittance/protocol"
)

// Store is an open attempt store. Its methods may be called from any
// goroutine.
type Store struct {
	cfg      Config
	fs       FS
	id       protocol.ID
	first    int64 // opens of this process; what it missed is counted from there
	opens    atomic.Int64
	sequence atomic.Int64 // last sequence number given out by NextSequence
	lock     io.Closer

	queue   chan *change  // to the owner goroutine; never blocks, see begin
	stopped chan struct{} // closed when the owner goroutine has ended
	failed  chan struct{} // closed when the store is poisoned

	mu        sync.Mutex
	closing   bool                         // guarded by mu
	failure   error                        // guarded by mu; set once, before failed is closed
	pending   map[string]*pending          // guarded by mu; by what is being changed
	active    map[string]Entry             // guarded by mu; written by the owner goroutine only
	keys      map[string]bool              // guarded by mu; active and archived
	history   []HistoryEntry               // guarded by mu; ascending, written by the owner only
	witnesses map[protocol.ID]witnessEntry // guarded by mu; written by the owner only

	reserved      map[string]bool // owned by the owner goroutine
	scopeRevision Revision        // owned by the owner goroutine
	leftovers     []string        // set before Open returns
}

// pending is an accepted change that has not settled.
type pending struct {
	write     *Write
	abandoned bool // guarded by Store.mu; its waiter gave up
}

// change is one job of the owner goroutine.
type change struct {
	subject string
	run     func() (Entry, error)
	write   *Write
}

// Validate refuses a configuration with a missing or extreme bound.
func (c Config) Validate() error {
	switch {
	case c.Dir == "":
		return errors.New("store: dir is required")
	case c.MaxActive < 1 || c.MaxActive > MaxMaxActive:
		return fmt.Errorf("store: max_active must be 1 to %d", MaxMaxActive)
	case c.History < 1 || c.History > MaxHistory:
		return fmt.Errorf("store: history must be 1 to %d", MaxHistory)
	case c.DiskReserve < 0:
		return errors.New("store: disk_reserve must not be negative")
	}
	return c.Scope.Validate()
}

// Open opens the store in cfg.Dir; it never makes one. It reads every file
// before it changes any: a damaged, foreign or newer file is a [*DamageError],
// another scope [ErrScope]. Unless the last close was clean, everything is
// written again and synced before Open returns (I35).
func Open(cfg Config) (_ *Store, err error) {
	if err := cfg.Validate(); err != nil {
		return nil, err
	}
	if cfg.FS == nil {
		cfg.FS = osFS{}
	}
	l := &loader{fs: cfg.FS, dir: cfg.Dir}
	if _, err := l.scope(); err != nil {
		return nil, err
	}
	lock, err := cfg.FS.Lock(filepath.Join(cfg.Dir, lockFile))
	if err != nil {
		return nil, err
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, lock.Close())
		}
	}()
	c, err := l.scope() // again, now that nobody else can change it
	if err != nil {
		return nil, err
	}
	if c.scope.Scope != cfg.Scope {
		return nil, ErrScope
	}
	if err := l.all(c); err != nil {
		return nil, err
	}
	if len(c.active) > cfg.MaxActive {
		return nil, fmt.Errorf("attempt store has %d active records and max_active is %d: raise max_active", len(c.active), cfg.MaxActive)
	}
	if len(c.history) > cfg.History+cfg.MaxActive {
		return nil, fmt.Errorf("attempt store has %d archived records, more than history and max_active together: raise history", len(c.history))
	}
	if c.scope.Opens >= maxOpens {
		return nil, fmt.Errorf("attempt store was opened %d times, after which its sequence numbers end: rotate it", c.scope.Opens)
	}
	s := newStore(cfg, c, lock)
	if err := s.recover(c); err != nil {
		return nil, fmt.Errorf("recover attempt store: %w", err)
	}
	go s.own()
	return s, nil
}

// maxOpens keeps sequence numbers within 2⁵³−1.
const maxOpens = 1<<21 - 2

// maxJump bounds how many openings one process believes that it missed.
const maxJump = 1 << 16

func newStore(cfg Config, c *contents, lock io.Closer) *Store {
	s := &Store{
		cfg: cfg, fs: cfg.FS, id: c.id, lock: lock,
		// One change per subject is pending at once, so this never fills.
		queue:   make(chan *change, cfg.MaxActive+MaxHostGenerations+8),
		stopped: make(chan struct{}), failed: make(chan struct{}),
		pending: map[string]*pending{}, active: c.active, keys: map[string]bool{}, history: c.history,
		witnesses: c.witnesses, reserved: map[string]bool{}, scopeRevision: c.revision,
		leftovers: c.leftovers,
	}
	for key := range c.active {
		s.keys[key] = true
	}
	for _, name := range c.reserves {
		s.reserved[strings.TrimSuffix(name, reserveSuffix)] = true
	}
	for _, e := range c.history {
		s.keys[e.Key] = true
	}
	s.first = c.scope.Opens + 1
	s.opens.Store(s.first)
	s.sequence.Store(s.opens.Load() << 32)
	return s
}

// recover makes what was read provably durable and finishes what a crash left.
func (s *Store) recover(c *contents) error {
	rewrite := !c.scope.Clean
	if slices.Contains(c.leftovers, scopeFile+tmpSuffix) {
		if err := s.fs.Remove(s.path(scopeFile + tmpSuffix)); err != nil {
			return err
		}
	}
	if err := s.recoverWrite("", func() error { return s.writeScope(scopeContent{s.cfg.Scope, s.opens.Load(), false}) }); err != nil {
		return err
	}
	for _, name := range c.leftovers {
		if name == scopeFile+tmpSuffix {
			continue
		}
		if err := s.fs.Remove(s.path(name)); err != nil {
			return err
		}
	}
	if rewrite {
		if err := s.rewrite(c); err != nil {
			return err
		}
	}
	for _, key := range c.twice { // after the archived copy is durable
		if err := s.fs.Remove(s.path(activeDir, key+recordSuffix)); err != nil {
			return err
		}
	}
	for _, dir := range []string{activeDir, historyDir, hostsDir, reserveDir, ""} {
		if err := s.fs.SyncDir(s.path(dir)); err != nil {
			return err
		}
	}
	return s.recoverReserves()
}

// recoverWrite is a write that on a full disk takes its space from the
// reserves: a store with active records opens on a full disk (I36).
func (s *Store) recoverWrite(key string, write func() error) error {
	return s.fromReserve(key, write(), write)
}

// rewrite writes every file again: a failed sync of an earlier process may
// have left pages that look clean and are not on disk.
func (s *Store) rewrite(c *contents) error {
	for _, key := range slices.Sorted(maps.Keys(c.active)) {
		file, e := s.path(activeDir, key+recordSuffix), c.active[key]
		if err := s.recoverWrite(key, func() error { return s.writeRecord(file, e) }); err != nil {
			return err
		}
	}
	for _, h := range c.history {
		file, e := s.path(historyDir, historyName(h)), c.records[h.Key]
		if err := s.recoverWrite("", func() error { return s.writeRecord(file, e) }); err != nil {
			return err
		}
	}
	for _, g := range slices.Sorted(maps.Keys(c.witnesses)) {
		if err := s.recoverWrite("", func() error { return s.writeWitness(g, c.witnesses[g]) }); err != nil {
			return err
		}
	}
	return nil
}

// recoverReserves reserves for every active record as far as there is space,
// and frees the reserves of records that are gone.
func (s *Store) recoverReserves() error {
	for _, key := range slices.Sorted(maps.Keys(s.reserved)) {
		if _, ok := s.active[key]; ok {
			continue
		}
		if err := s.unreserve(key); err != nil {
			return err
		}
	}
	for _, key := range slices.Sorted(maps.Keys(s.active)) {
		if err := s.reserve(key); err != nil && !errors.Is(err, ErrNoSpace) {
			return err
		}
	}
	return nil
}

func (s *Store) path(parts ...string) string {
	return filepath.Join(append([]string{s.cfg.Dir}, parts...)...)
}

// own runs the changes in their order until the queue is closed.
func (s *Store) own() {
	defer close(s.stopped)
	for c := range s.queue {
		entry, err := Entry{}, s.Err()
		if err == nil {
			entry, err = c.run()
		}
		s.mu.Lock()
		delete(s.pending, c.subject)
		s.mu.Unlock()
		c.write.entry, c.write.err = entry, err
		close(c.write.done)
	}
}

// begin hands a change to the owner goroutine. While another change of the
// same subject is on its way it waits for it, or, where that one's waiter gave
// up, refuses with [ErrNotSettled].
func (s *Store) begin(ctx context.Context, subject string, run func() (Entry, error)) (*Write, error) {
	for {
		s.mu.Lock()
		if err := s.refusal(); err != nil {
			s.mu.Unlock()
			return nil, err
		}
		p := s.pending[subject]
		if p == nil {
			p = &pending{write: &Write{done: make(chan struct{})}}
			p.write.giveUp = func() {
				s.mu.Lock()
				defer s.mu.Unlock()
				p.abandoned = true
			}
			s.pending[subject] = p
			s.queue <- &change{subject, run, p.write}
			s.mu.Unlock()
			return p.write, nil
		}
		abandoned := p.abandoned
		s.mu.Unlock()
		if abandoned {
			return nil, ErrNotSettled
		}
		select {
		case <-p.write.done:
		case <-ctx.Done():
			return nil, fmt.Errorf("attempt store: nothing was changed: %w", context.Cause(ctx))
		}
	}
}

// refusal says why no change is accepted; the caller holds mu.
func (s *Store) refusal() error {
	if s.failure != nil {
		return s.failure
	}
	if s.closing {
		return ErrClosed
	}
	return nil
}

// do begins a change and waits for it.
func (s *Store) do(ctx context.Context, subject string, run func() (Entry, error)) (Entry, error) {
	w, err := s.begin(ctx, subject, run)
	if err != nil {
		return Entry{}, err
	}
	return w.Wait(ctx)
}

// poison ends all writing; the first failure stays (I14, I35).
func (s *Store) poison(cause error) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.failure == nil {
		s.failure = &FailedError{cause}
		close(s.failed)
	}
	return s.failure
}

// Failed is closed when a storage failure has poisoned the store.
func (s *Store) Failed() <-chan struct{} { return s.failed }

// Err is the failure that poisoned the store, a [*FailedError], or nil.
func (s *Store) Err() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.failure
}

// Close refuses further changes, waits for those accepted, marks the store
// clean where nothing failed, and unlocks it. It returns the failure that
// poisoned the store, if any. A second Close returns [ErrClosed].
func (s *Store) Close() error {
	s.mu.Lock()
	if s.closing {
		s.mu.Unlock()
		return ErrClosed
	}
	s.closing = true
	close(s.queue)
	s.mu.Unlock()
	<-s.stopped
	err := s.Err()
	if err == nil {
		err = s.writeScope(scopeContent{s.cfg.Scope, s.opens.Load(), true})
	}
	if errors.Is(err, ErrNoSpace) {
		err = nil // the next open writes everything again, as after a crash
	}
	return errors.Join(err, s.lock.Close())
}

// ID is the store's random identity: the owner id at the host and store in
// hello.
func (s *Store) ID() protocol.ID { return s.id }

// Opens counts how often the store was opened, this time included.
func (s *Store) Opens() int64 { return s.opens.Load() }

// NextSequence is the next number for hello and heartbeat: higher than every
// number that this store gave out in this or an earlier process. It panics
// after 2³² numbers of one process.
func (s *Store) NextSequence() int64 {
	n := s.sequence.Add(1)
	if n&(1<<32-1) == 0 {
		panic("store: 2³² sequence numbers were used in one process")
	}
	return n
}

// Leftovers names the temporary files of unacknowledged writes that Open
// removed, relative to the directory.
func (s *Store) Leftovers() []string { return slices.Clone(s.leftovers) }

// Get returns the durable active record with the key.
func (s *Store) Get(key string) (Entry, bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	e, ok := s.active[key]
	return e, ok
}

// Active returns all durable active records, by key.
func (s *Store) Active() []Entry {
	s.mu.Lock()
	defer s.mu.Unlock()
	list := make([]Entry, 0, len(s.active))
	for _, key := range slices.Sorted(maps.Keys(s.active)) {
		list = append(list, s.active[key])
	}
	return list
}

// Knows reports whether the key is that of an active or archived record.
func (s *Store) Knows(key string) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.keys[key]
}

// History names the archived records, oldest first.
func (s *Store) History() []HistoryEntry {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Clone(s.history)
}

// Archived reads one archived record. A record that was trimmed meanwhile is
// [ErrNotFound].
func (s *Store) Archived(h HistoryEntry) (Entry, error) {
	if !slices.Contains(s.History(), h) {
		return Entry{}, ErrNotFound
	}
	return s.readArchived(h)
}

func (s *Store) readArchived(h HistoryEntry) (Entry, error) {
	file := filepath.Join(historyDir, historyName(h))
	raw, err := s.fs.Read(s.path(file), MaxFileBytes)
	if err != nil && !errors.Is(err, errTooLong) {
		return Entry{}, fmt.Errorf("read attempt store %s: %w", file, err)
	}
	var e Entry
	if err == nil {
		e, err = decodeRecord(raw, s.id, s.cfg.Scope, h.Key)
	}
	if err != nil {
		return Entry{}, &DamageError{file, err.Error(), remedyBackup}
	}
	return e, nil
}

// Witness is the most that was seen of a host generation.
func (s *Store) Witness(generation protocol.ID) (Witness, bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	w, ok := s.witnesses[generation]
	return w.witness, ok
}

// Generations lists the host generations of which a witness is kept, sorted.
func (s *Store) Generations() []protocol.ID {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Sorted(maps.Keys(s.witnesses))
}
