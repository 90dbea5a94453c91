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

	mu       sync.Mutex // guards what follows
	modified time.Time
	size     int64
	byID     map[string]signing.AuthorizedKey
}

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
	if k.byID != nil && info.ModTime().Equal(k.modified) && info.Size() == k.size {
		return nil
	}
	// Noted before reading: a file that is wrong is reported once per change.
	k.modified, k.size = info.ModTime(), info.Size()
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

// ProviderKey implements signing.KeySource.
func (k *keys) ProviderKey(ctx context.Context, keyID string) (signing.AuthorizedKey, error) {
	if key, ok := k.inFile(keyID); ok {
		return key, nil
	}
	key, err := k.fallback.ProviderKey(ctx, keyID)
	if err != nil && !errors.Is(err, signing.ErrUnknownKey) {
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
	if err := k.reload(); err != nil {
		k.log.Error("provider_keys_file", "error", err)
	}
	key, ok := k.byID[keyID]
	return key, ok
}
