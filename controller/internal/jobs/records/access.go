package records

import (
	"context"
	"fmt"
	"time"

	"github.com/quittance/quittance/controller/api"
	"github.com/quittance/quittance/controller/internal/signing"
)

// Role is what a token may do in its workspace.
type Role string

// The roles; each may do what the one before may.
const (
	RoleReader    Role = "reader"    // read jobs, results, receipts
	RoleSubmitter Role = "submitter" // upload, create, cancel, close, retry
	RoleAdmin     Role = "admin"
)

// Allows reports whether the role may do what needs another.
func (r Role) Allows(needed Role) bool {
	rank := map[Role]int{RoleReader: 1, RoleSubmitter: 2, RoleAdmin: 3}
	return rank[r] >= rank[needed] && rank[needed] > 0
}

// Check refuses a principal that no token may have.
func (p Principal) Check() error {
	switch {
	case !api.ValidProvider(p.Workspace):
		return fmt.Errorf("records: workspace must be 1 to 63 characters of a-z 0-9 . -, starting with a letter or digit")
	case !api.ValidProvider(p.Name):
		return fmt.Errorf("records: principal must be 1 to 63 characters of a-z 0-9 . -, starting with a letter or digit")
	case !p.Role.Allows(RoleReader):
		return fmt.Errorf("records: role must be reader, submitter or admin")
	case p.RetryWindow < 0 || p.RetryWindow > 24*time.Hour:
		return fmt.Errorf("records: retry window must be from 0 to 24h")
	}
	return nil
}

// NewToken makes a bearer token: 256 random bits behind "qt_".
func NewToken() string { return randomSecret("qt_") }

// AnyToken reports whether any token was ever made.
func (s *Store) AnyToken(ctx context.Context) (bool, error) {
	var found bool
	err := s.read(ctx, func(t *transaction) (err error) {
		var one int64
		found, err = t.row([]any{&one}, `SELECT 1 FROM tokens LIMIT 1`)
		return err
	})
	return found, err
}

// AddToken registers a token for a principal; only its hash is stored. With
// onlyFirst it does so only where no token exists, and says whether it did.
func (s *Store) AddToken(ctx context.Context, token string, who Principal, onlyFirst bool) (added bool, err error) {
	if err := who.Check(); err != nil {
		return false, err
	}
	err = s.write(ctx, func(t *transaction) error {
		added = false
		if onlyFirst {
			var one int64
			if found, err := t.row([]any{&one}, `SELECT 1 FROM tokens LIMIT 1`); err != nil || found {
				return err
			}
		}
		added = true
		return t.exec(`INSERT INTO tokens (hash, workspace, principal, role, retry_window, created) VALUES (?, ?, ?, ?, ?, ?)`,
			hexSHA256([]byte(token)), who.Workspace, who.Name, who.Role, who.RetryWindow.Microseconds(), t.now)
	})
	return added, err
}

// RevokeTokens ends the tokens of a principal.
func (s *Store) RevokeTokens(ctx context.Context, workspace, principal string) (int, error) {
	var revoked int64
	err := s.write(ctx, func(t *transaction) (err error) {
		revoked, err = t.Exec(ctx, `UPDATE tokens SET revoked = ? WHERE workspace = ? AND principal = ? AND revoked IS NULL`,
			t.now, workspace, principal)
		return err
	})
	return int(revoked), err
}

// Authenticate finds who a bearer token speaks for.
func (s *Store) Authenticate(ctx context.Context, token string) (Principal, error) {
	var who Principal
	err := s.read(ctx, func(t *transaction) error {
		var window int64
		found, err := t.row([]any{&who.Workspace, &who.Name, &who.Role, &window},
			`SELECT workspace, principal, role, retry_window FROM tokens WHERE hash = ? AND revoked IS NULL`, hexSHA256([]byte(token)))
		if err != nil {
			return err
		}
		if !found {
			return api.NewProblem(api.CodeUnauthenticated, "The bearer token is not known.", "Use a token of this service, or have an administrator make one.")
		}
		who.RetryWindow = time.Duration(window) * time.Microsecond
		return nil
	})
	return who, err
}

// AddProviderKey registers a provider's key. A key belongs to one provider.
func (s *Store) AddProviderKey(ctx context.Context, key signing.AuthorizedKey) error {
	line, err := signing.AuthorizedLine(key.Provider, key.Public)
	if err != nil {
		return err
	}
	return s.write(ctx, func(t *transaction) error {
		var provider string
		found, err := t.row([]any{&provider}, `SELECT provider FROM provider_keys WHERE key_id = ?`, key.KeyID)
		switch {
		case err != nil:
			return err
		case found && provider != key.Provider:
			return fmt.Errorf("records: the key is registered for provider %s", provider)
		case found:
			return nil
		}
		return t.exec(`INSERT INTO provider_keys (key_id, provider, line, created) VALUES (?, ?, ?, ?)`, key.KeyID, key.Provider, line, t.now)
	})
}

// RemoveProviderKey ends a registered key.
func (s *Store) RemoveProviderKey(ctx context.Context, keyID string) error {
	return s.write(ctx, func(t *transaction) error {
		removed, err := t.Exec(ctx, `DELETE FROM provider_keys WHERE key_id = ?`, keyID)
		if err == nil && removed == 0 {
			return signing.ErrUnknownKey
		}
		return err
	})
}

// ProviderKey implements signing.KeySource for the keys of the database.
func (s *Store) ProviderKey(ctx context.Context, keyID string) (signing.AuthorizedKey, error) {
	var line string
	found := false
	err := s.read(ctx, func(t *transaction) (err error) {
		found, err = t.row([]any{&line}, `SELECT line FROM provider_keys WHERE key_id = ?`, keyID)
		return err
	})
	if err != nil {
		return signing.AuthorizedKey{}, err
	}
	if !found {
		return signing.AuthorizedKey{}, signing.ErrUnknownKey
	}
	return signing.ParseAuthorizedKey(line)
}
