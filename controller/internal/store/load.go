package store

import (
	"bytes"
	"cmp"
	"errors"
	"fmt"
	"io/fs"
	"path/filepath"
	"slices"
	"strings"

	"github.com/quittance/quittance/controller/internal/attempt"
	"github.com/quittance/quittance/protocol"
)

// contents is a store as it was read, before anything is changed.
type contents struct {
	id        protocol.ID
	scope     scopeContent
	revision  Revision // of the scope file
	active    map[string]Entry
	history   []HistoryEntry   // ascending
	records   map[string]Entry // archived, by key
	witnesses map[protocol.ID]witnessEntry
	leftovers []string // temporary files, relative
	twice     []string // keys in active and history with equal files
	reserves  []string // names in reserve/
}

type witnessEntry struct {
	witness  Witness
	revision Revision
}

// loader reads a store's directory. Damage is returned, or, where collect is
// set, collected.
type loader struct {
	fs      FS
	dir     string
	collect bool
	damage  []*DamageError
}

const (
	remedyBackup = "stop, keep a copy of the directory, and restore this file from a backup, or move it out of the store and settle its attempt by hand"
	remedyMove   = "move it out of the store's directory"
	remedyNewer  = "run the newer program that wrote it"
)

// bad records damage and reports whether to go on.
func (l *loader) bad(file, reason, remedy string) error {
	d := &DamageError{file, reason, remedy}
	if !l.collect {
		return d
	}
	l.damage = append(l.damage, d)
	return nil
}

// scope reads the scope file.
func (l *loader) scope() (*contents, error) {
	raw, err := l.fs.Read(filepath.Join(l.dir, scopeFile), maxHeaderBytes+16<<10)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, ErrNoStore
	}
	if err != nil {
		return nil, fmt.Errorf("read attempt store %s: %w", scopeFile, err)
	}
	h, body, err := unseal(raw)
	if err == nil && h.Kind != kindScope {
		err = errors.New("is not the scope of a store")
	}
	c := &contents{active: map[string]Entry{}, records: map[string]Entry{}, witnesses: map[protocol.ID]witnessEntry{}}
	if err == nil {
		err = protocol.DecodeStrict(body, 16<<10, &c.scope)
	}
	if err == nil && (c.scope.Opens < 0 || c.scope.Scope.Validate() != nil) {
		err = errors.New("has contents out of form")
	}
	if err != nil {
		return nil, &DamageError{scopeFile, err.Error(), remedyOf(err, "restore it from a backup: it holds the store's id and how often it was opened")}
	}
	c.id, c.revision = h.Store, h.Revision
	return c, nil
}

// all reads every other file.
func (l *loader) all(c *contents) error {
	for _, read := range []func(*contents) error{l.top, l.active, l.history, l.hosts, l.reserve} {
		if err := read(c); err != nil {
			return err
		}
	}
	return l.references(c)
}

// names lists dir; temporary files are set aside.
func (l *loader) names(c *contents, dir string) ([]string, error) {
	names, err := l.fs.List(filepath.Join(l.dir, dir))
	if err != nil {
		return nil, fmt.Errorf("list attempt store %s: %w", cmp.Or(dir, "directory"), err)
	}
	var kept []string
	for _, name := range names {
		if strings.HasSuffix(name, tmpSuffix) {
			c.leftovers = append(c.leftovers, filepath.Join(dir, name))
			continue
		}
		kept = append(kept, name)
	}
	slices.Sort(kept)
	return kept, nil
}

func (l *loader) top(c *contents) error {
	names, err := l.names(c, "")
	if err != nil {
		return err
	}
	expected := []string{scopeFile, lockFile, activeDir + "/", historyDir + "/", hostsDir + "/", reserveDir + "/"}
	for _, name := range names {
		if !slices.Contains(expected, name) {
			if err := l.bad(name, "does not belong to an attempt store", remedyMove); err != nil {
				return err
			}
		}
	}
	return nil
}

func (l *loader) active(c *contents) error {
	names, err := l.names(c, activeDir)
	if err != nil {
		return err
	}
	for _, name := range names {
		file := filepath.Join(activeDir, name)
		key, ok := strings.CutSuffix(name, recordSuffix)
		if !ok || !attempt.ValidName(key) {
			if err := l.bad(file, "does not belong to an attempt store", remedyMove); err != nil {
				return err
			}
			continue
		}
		entry, _, err := l.record(c, file, key)
		if err != nil {
			return err
		}
		if entry.Record != nil {
			c.active[key] = entry
		}
	}
	return nil
}

func (l *loader) history(c *contents) error {
	names, err := l.names(c, historyDir)
	if err != nil {
		return err
	}
	for _, name := range names {
		file := filepath.Join(historyDir, name)
		e, ok := parseHistoryName(name)
		if !ok {
			if err := l.bad(file, "does not belong to an attempt store", remedyMove); err != nil {
				return err
			}
			continue
		}
		if err := l.historical(c, file, e); err != nil {
			return err
		}
	}
	slices.SortFunc(c.history, func(a, b HistoryEntry) int { return cmp.Compare(a.Sequence, b.Sequence) })
	for i := 1; i < len(c.history); i++ {
		if c.history[i].Sequence == c.history[i-1].Sequence {
			if err := l.bad(filepath.Join(historyDir, historyName(c.history[i])), "has the archive sequence of another record", remedyBackup); err != nil {
				return err
			}
		}
	}
	return nil
}

// historical reads one archived record and compares it with an active one of
// the same key.
func (l *loader) historical(c *contents, file string, e HistoryEntry) error {
	entry, raw, err := l.record(c, file, e.Key)
	if err != nil || entry.Record == nil {
		return err
	}
	if _, ok := c.records[e.Key]; ok {
		return l.bad(file, "has the attempt key of another archived record", remedyBackup)
	}
	if !attempt.Archivable(entry.Record) {
		return l.bad(file, "is archived although it is unresolved", remedyBackup)
	}
	if _, ok := c.active[e.Key]; ok {
		other, err := l.fs.Read(filepath.Join(l.dir, activeDir, e.Key+recordSuffix), MaxFileBytes)
		if err != nil {
			return err
		}
		if !bytes.Equal(raw, other) {
			return l.bad(file, "differs from the active record with the same key", remedyBackup)
		}
		c.twice = append(c.twice, e.Key)
		delete(c.active, e.Key)
	}
	c.records[e.Key] = entry
	c.history = append(c.history, e)
	return nil
}

// record reads one record file; a damaged one, when collecting, has a nil
// Record.
func (l *loader) record(c *contents, file, key string) (Entry, []byte, error) {
	raw, err := l.fs.Read(filepath.Join(l.dir, file), MaxFileBytes)
	if err != nil && !errors.Is(err, errTooLong) {
		return Entry{}, nil, fmt.Errorf("read attempt store %s: %w", file, err)
	}
	entry := Entry{}
	if err == nil {
		entry, err = decodeRecord(raw, c.id, c.scope.Scope, key)
	}
	if err != nil {
		return Entry{}, nil, l.bad(file, err.Error(), remedyOf(err, remedyBackup))
	}
	return entry, raw, nil
}

// decodeRecord takes a record file apart and checks whose it is.
func decodeRecord(raw []byte, id protocol.ID, scope attempt.Scope, key string) (Entry, error) {
	h, content, err := unseal(raw)
	if err != nil {
		return Entry{}, err
	}
	if h.Kind != kindAttempt || h.Name != key {
		return Entry{}, errors.New("does not belong under this name")
	}
	if h.Store != id {
		return Entry{}, errors.New("belongs to another attempt store")
	}
	r, err := attempt.Decode(content)
	if err != nil {
		return Entry{}, fmt.Errorf("holds a record that cannot be read: %w", err)
	}
	origin := attempt.OriginOf(r)
	if origin.Key != key || origin.Scope != scope {
		return Entry{}, errors.New("holds a record of another key or scope")
	}
	return Entry{key, h.Revision, r}, nil
}

func (l *loader) hosts(c *contents) error {
	names, err := l.names(c, hostsDir)
	if err != nil {
		return err
	}
	for _, name := range names {
		file := filepath.Join(hostsDir, name)
		stem, ok := strings.CutSuffix(name, witnessSuffix)
		generation := protocol.ID(stem)
		if !ok || !generation.Valid() {
			if err := l.bad(file, "does not belong to an attempt store", remedyMove); err != nil {
				return err
			}
			continue
		}
		raw, err := l.fs.Read(filepath.Join(l.dir, file), maxHeaderBytes+maxWitnessBytes)
		if err != nil && !errors.Is(err, errTooLong) {
			return fmt.Errorf("read attempt store %s: %w", file, err)
		}
		w, err := decodeWitness(raw, err, c.id, generation)
		if err != nil {
			if err := l.bad(file, err.Error(), remedyOf(err, "restore it from a backup: without it a rolled-back host goes unnoticed")); err != nil {
				return err
			}
			continue
		}
		c.witnesses[generation] = w
	}
	return nil
}

func decodeWitness(raw []byte, err error, id, generation protocol.ID) (witnessEntry, error) {
	if err != nil {
		return witnessEntry{}, err
	}
	h, content, err := unseal(raw)
	if err != nil {
		return witnessEntry{}, err
	}
	if h.Kind != kindWitness || h.Name != string(generation) || h.Store != id {
		return witnessEntry{}, errors.New("does not belong under this name or to this store")
	}
	w := witnessEntry{revision: h.Revision}
	if err := protocol.DecodeStrict(content, maxWitnessBytes, &w.witness); err != nil {
		return witnessEntry{}, err
	}
	return w, w.witness.validate()
}

// validate refuses a witness that could not be read back.
func (w Witness) validate() error {
	if len(w.Checkpoint) > maxWitnessBytes/2 {
		return fmt.Errorf("holds a checkpoint longer than %d bytes", maxWitnessBytes/2)
	}
	if w.Highest != nil && (w.Highest.Index < 0 || !w.Highest.LeafHash.Valid()) {
		return errors.New("holds a highest receipt out of form")
	}
	return nil
}

func (l *loader) reserve(c *contents) error {
	names, err := l.names(c, reserveDir)
	if err != nil {
		return err
	}
	for _, name := range names {
		key, ok := strings.CutSuffix(name, reserveSuffix)
		if !ok || !attempt.ValidName(key) {
			if err := l.bad(filepath.Join(reserveDir, name), "does not belong to an attempt store", remedyMove); err != nil {
				return err
			}
			continue
		}
		c.reserves = append(c.reserves, name)
	}
	return nil
}

// references refuses two records of one attempt (I30).
func (l *loader) references(c *contents) error {
	owner := map[string]string{}
	for _, set := range []map[string]Entry{c.active, c.records} {
		for key, e := range set {
			a, ok := attempt.AdmissionOf(e.Record)
			if !ok {
				continue
			}
			if other, ok := owner[a.Reference]; ok && other != key {
				file := filepath.Join(activeDir, max(key, other)+recordSuffix)
				if err := l.bad(file, "has the attempt reference of another record", remedyBackup); err != nil {
					return err
				}
			}
			owner[a.Reference] = key
		}
	}
	return nil
}

// Report is what Inspect found.
type Report struct {
	ID         protocol.ID
	Scope      attempt.Scope
	Opens      int64
	Clean      bool
	Active     []Entry // by key
	History    []HistoryEntry
	Records    map[string]Entry // archived, by key
	Witnesses  map[protocol.ID]Witness
	Unfinished []string       // temporary files of writes that were never acknowledged
	Damage     []*DamageError // none: the store opens
}

// Inspect reads a stopped store whole and changes nothing. It fails where the
// scope cannot be read or another process has the store open; other damage is
// in the report.
func Inspect(dir string, files FS) (report *Report, err error) {
	if files == nil {
		files = osFS{}
	}
	l := &loader{fs: files, dir: dir, collect: true}
	c, err := l.scope()
	if err != nil {
		return nil, err
	}
	lock, err := files.Lock(filepath.Join(dir, lockFile))
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, lock.Close()) }()
	if err := l.all(c); err != nil {
		return nil, err
	}
	report = &Report{ID: c.id, Scope: c.scope.Scope, Opens: c.scope.Opens, Clean: c.scope.Clean,
		History: c.history, Records: c.records, Witnesses: map[protocol.ID]Witness{}, Unfinished: c.leftovers, Damage: l.damage}
	for _, e := range c.active {
		report.Active = append(report.Active, e)
	}
	slices.SortFunc(report.Active, func(a, b Entry) int { return cmp.Compare(a.Key, b.Key) })
	for g, w := range c.witnesses {
		report.Witnesses[g] = w.witness
	}
	return report, nil
}
