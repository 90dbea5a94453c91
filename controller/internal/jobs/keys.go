package jobs

import (
	"context"
	"errors"
	"fmt"
	"os"
	"sync"
	"time"

	"github.com/hashicorp/go-hclog"

	"github.com/quittance/quittance/controller/internal/signing"
)

// keys finds provider keys in the operator's file, then in the database.
type keys struct {
	path     string
	fallback signing.KeySource
	log      hclog.Logger

	mu       sync.Mutex  // guards what follows
	file     os.FileInfo // as it was read last
	readAt   time.Time
	byID     map[string]signing.AuthorizedKey
	reported string // the problem that was logged last, "" once there is none
}

// settles is how long after an edit the file's times may still be those of a
// later one: coarser than the clock tick of any file system that holds a key
// file.
const settles = 2 * time.Second

// newKeys reads the file; one that is wrong stops the start. Later changes that
// are wrong are reported and the last good content stands.
func newKeys(path string, fallback signing.KeySource, log hclog.Logger) (*keys, error) {
	k := &keys{path: path, fallback: fallback, log: log}
	if path == "" {
		return k, nil
	}
	return k, k.reload()
}

func (k *keys) reload() error {
	info, err := os.Stat(k.path)
	if err != nil {
		return fmt.Errorf("jobs: provider keys: %w", err)
	}
	if k.unchanged(info) {
		return nil
	}
	k.file, k.readAt = info, time.Now()
	if info.Mode().Perm()&0o022 != 0 {
		return fmt.Errorf("jobs: provider keys: %s can be written by others; run chmod go-w on it", k.path)
	}
	data, err := os.ReadFile(k.path)
	if err != nil {
		return fmt.Errorf("jobs: provider keys: %w", err)
	}
	list, err := signing.ParseAuthorizedKeys(data)
	if err != nil {
		return err
	}
	k.byID = make(map[string]signing.AuthorizedKey, len(list))
	for _, key := range list {
		k.byID[key.KeyID] = key
	}
	return nil
}

// unchanged reports whether what was read last is certainly what the file holds.
func (k *keys) unchanged(info os.FileInfo) bool {
	return k.byID != nil && k.reported == "" && os.SameFile(info, k.file) && info.Size() == k.file.Size() && info.ModTime().Equal(k.file.ModTime()) &&
		k.readAt.Sub(info.ModTime()) > settles
}

// report logs a problem with the file once, until it is another one or over.
func (k *keys) report(err error) {
	text := ""
	if err != nil {
		text = err.Error()
	}
	if text != "" && text != k.reported {
		k.log.Error("provider_keys_file", "error", err)
	}
	k.reported = text
}

// ProviderKey implements signing.KeySource.
func (k *keys) ProviderKey(ctx context.Context, keyID string) (signing.AuthorizedKey, error) {
	if key, ok := k.inFile(keyID); ok {
		return key, nil
	}
	key, err := k.fallback.ProviderKey(ctx, keyID)
	if err != nil && !errors.Is(err, signing.ErrUnknownKey) && ctx.Err() == nil {
		k.log.Error("provider_keys_unreadable", "error", err)
	}
	return key, err
}

func (k *keys) inFile(keyID string) (signing.AuthorizedKey, bool) {
	if k.path == "" {
		return signing.AuthorizedKey{}, false
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	k.report(k.reload())
	key, ok := k.byID[keyID]
	return key, ok
}
