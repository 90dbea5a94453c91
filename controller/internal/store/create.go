package store

import (
	"errors"
	"fmt"
	"io/fs"
	"path/filepath"
	"slices"

	"github.com/quittance/quittance/controller/internal/attempt"
	"github.com/quittance/quittance/protocol"
)

// Create makes an empty store with a new random id in cfg.Dir, which must not
// exist or be empty; its parent must exist. A store that is there already is
// [ErrExists]. The scope file comes last, so a creation that was cut short
// leaves no store and can be repeated.
func Create(cfg Config) error {
	return create(cfg, contents{id: protocol.NewID()}, false)
}

// create makes a store with the id, openings and witnesses of from. again says
// that witnesses of an earlier try without a scope file may be replaced.
func create(cfg Config, from contents, again bool) error {
	if err := cfg.Validate(); err != nil {
		return err
	}
	if cfg.FS == nil {
		cfg.FS = osFS{}
	}
	files, dir := cfg.FS, cfg.Dir
	if err := files.Mkdir(dir); err != nil && !errors.Is(err, fs.ErrExist) {
		return fmt.Errorf("create attempt store: %w", err)
	}
	names, err := files.List(dir)
	if err != nil {
		return fmt.Errorf("create attempt store: %w", err)
	}
	if slices.Contains(names, scopeFile) {
		return ErrExists
	}
	dirs := []string{activeDir, historyDir, hostsDir, reserveDir}
	for _, name := range names {
		if name != lockFile && name != scopeFile+tmpSuffix && (len(name) == 0 || !slices.Contains(dirs, name[:len(name)-1])) {
			return fmt.Errorf("create attempt store: %s holds %s, which does not belong to one: give an empty directory", dir, name)
		}
	}
	if err := fill(cfg, dirs, names, from, again); err != nil {
		return fmt.Errorf("create attempt store: %w", err)
	}
	return nil
}

// fill makes a new store's directories and files, the scope last.
func fill(cfg Config, dirs, present []string, from contents, again bool) (err error) {
	files, dir := cfg.FS, cfg.Dir
	lock, err := files.Lock(filepath.Join(dir, lockFile))
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, lock.Close()) }()
	for _, name := range dirs {
		path := filepath.Join(dir, name)
		if err := files.Mkdir(path); err != nil && !errors.Is(err, fs.ErrExist) {
			return err
		}
		inside, err := files.List(path)
		if err != nil {
			return err
		}
		if name == hostsDir && again {
			for _, old := range inside {
				if err := files.Remove(filepath.Join(path, old)); err != nil {
					return err
				}
			}
		} else if len(inside) > 0 {
			return fmt.Errorf("%s is not empty although there is no scope file: restore the scope file from a backup", name)
		}
	}
	if slices.Contains(present, scopeFile+tmpSuffix) {
		if err := files.Remove(filepath.Join(dir, scopeFile+tmpSuffix)); err != nil {
			return err
		}
	}
	s := &Store{cfg: cfg, fs: files, id: from.id, failed: make(chan struct{})}
	for g, w := range from.witnesses {
		if err := s.writeWitness(g, w); err != nil {
			return err
		}
	}
	for _, name := range dirs {
		if err := files.SyncDir(filepath.Join(dir, name)); err != nil {
			return err
		}
	}
	if err := s.writeScope(scopeContent{cfg.Scope, from.scope.Opens, true}); err != nil {
		return err
	}
	return files.SyncDir(filepath.Dir(dir))
}

// Rotate moves a stopped store to aside, which must not exist, and makes an
// empty one with cfg's scope, the same id, the same count of opens and the
// same host witnesses. old is the scope that the store was made with. It
// refuses while an attempt is active. The new store is made in cfg.Dir + ".new"
// first; a rotation that was cut short is finished by calling Rotate again.
func Rotate(cfg Config, old attempt.Scope, aside string) error {
	if cfg.FS == nil {
		cfg.FS = osFS{}
	}
	next := cfg
	next.Dir = cfg.Dir + ".new"
	report, err := Inspect(cfg.Dir, cfg.FS)
	if errors.Is(err, ErrNoStore) {
		made, newErr := Inspect(next.Dir, cfg.FS)
		if newErr != nil || made.Scope != cfg.Scope {
			return err
		}
		return install(cfg, next.Dir) // cut short between the two renames
	}
	if err != nil {
		return err
	}
	if len(report.Damage) > 0 {
		return report.Damage[0]
	}
	if report.Scope == cfg.Scope && old != cfg.Scope && len(report.Active)+len(report.History) == 0 {
		return cfg.FS.SyncDir(filepath.Dir(cfg.Dir)) // cut short after the second rename
	}
	if report.Scope != old {
		return ErrScope
	}
	if len(report.Active) > 0 {
		return fmt.Errorf("attempt store has %d records that are not archived (the first is %s): settle or resolve them first", len(report.Active), report.Active[0].Key)
	}
	from := contents{id: report.ID, scope: scopeContent{Opens: report.Opens}, witnesses: map[protocol.ID]witnessEntry{}}
	for g, w := range report.Witnesses {
		from.witnesses[g] = witnessEntry{w, 1}
	}
	err = create(next, from, true)
	if errors.Is(err, ErrExists) { // cut short before the first rename
		made, newErr := Inspect(next.Dir, cfg.FS)
		if newErr != nil || made.Scope != cfg.Scope || made.ID != report.ID || made.Opens != report.Opens {
			return fmt.Errorf("%s is left from another rotation: remove it and rotate again", next.Dir)
		}
		err = nil
	}
	if err != nil {
		return err
	}
	if err := cfg.FS.Rename(cfg.Dir, aside); err != nil {
		return fmt.Errorf("move attempt store aside: %w", err)
	}
	return install(cfg, next.Dir)
}

func install(cfg Config, made string) error {
	if err := cfg.FS.Rename(made, cfg.Dir); err != nil {
		return fmt.Errorf("install rotated attempt store: %w", err)
	}
	return cfg.FS.SyncDir(filepath.Dir(cfg.Dir))
}
