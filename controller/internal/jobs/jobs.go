// Package jobs is the job service: one HTTP service with a face for providers
// (signed requests) and one for users (bearer tokens). It owns its
// configuration, its background sweep, the two faces with their ceilings and
// checks, and who may call what. What an operation does is package records, what
// may follow what package lifecycle; the messages are package api. It must not
// know lanes, workers or hosts: controllers reach it over the same signed
// contract in every mode.
//
// A request passes, in this order: route, version, content headers against the
// route's ceiling, caller, body (bounded, with a deadline), strict decoding, and
// only then an operation. Nothing before the operation writes (I33, I34).
package jobs

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"time"

	"github.com/hashicorp/go-hclog"

	"github.com/quittance/quittance/controller/api"
	"github.com/quittance/quittance/controller/internal/jobs/blobs"
	"github.com/quittance/quittance/controller/internal/jobs/database"
	"github.com/quittance/quittance/controller/internal/jobs/records"
	"github.com/quittance/quittance/controller/internal/signing"
	"github.com/quittance/quittance/protocol"
)

// Config configures a service. The zero value of a time or bound stands for its
// default.
type Config struct {
	// Directory holds SQLite's database, the blobs and the first token; made
	// with mode 0700 where it is missing.
	Directory string
	// Database is a PostgreSQL URL, or "" for SQLite in Directory.
	Database string
	// BlobDirectory is shared by all instances on one database; "" is
	// Directory/blobs.
	BlobDirectory string
	// PublicOrigin is the scheme and authority that clients use and providers
	// sign, as in https://jobs.example.org.
	PublicOrigin string
	// Topology names this environment to providers; "" is the database's own
	// random name.
	Topology string
	// ProviderKeysFile is an authorized_keys-style file, read again when it
	// changes; "" for keys of the database alone.
	ProviderKeysFile string

	AttemptLease  time.Duration // 10m
	HelloTTL      time.Duration // 2m
	GrantTTL      time.Duration // 5m
	UploadTTL     time.Duration // 24h
	SweepInterval time.Duration // 5s
	ReadTimeout   time.Duration // 30s for the whole body of a message
	UploadTimeout time.Duration // 10m for a whole upload
	MaxReopens    int           // 5
	MaxOpenJobs   int           // 10,000 per workspace
	MaxIdleBytes  int64         // 4 GiB per workspace, in uploads that no job uses
	MaxWaiters    int           // 1,000 long polls and event streams at once
	MaxEvents     int           // 1,000 kept per job

	Logger hclog.Logger
	// Observe, where it is set, is told of every answered request: code is "" for
	// a success, operation "" where no route was reached.
	Observe func(operation string, code api.Code, took time.Duration)
}

var topologyForm = regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9._-]{0,63}$`)

func (c *Config) complete() error {
	if c.Directory == "" {
		return errors.New("jobs: directory is required")
	}
	if c.Topology != "" && !topologyForm.MatchString(c.Topology) {
		return errors.New("jobs: topology must be 1 to 64 characters of A-Z a-z 0-9 . _ -")
	}
	if c.Database == "" {
		c.Database = "sqlite:" + filepath.Join(c.Directory, "jobs.db")
	}
	if c.BlobDirectory == "" {
		c.BlobDirectory = filepath.Join(c.Directory, "blobs")
	}
	for _, value := range []struct {
		name     string
		field    *time.Duration
		standard time.Duration
	}{
		{"attempt lease", &c.AttemptLease, 10 * time.Minute}, {"hello ttl", &c.HelloTTL, 2 * time.Minute},
		{"grant ttl", &c.GrantTTL, 5 * time.Minute}, {"upload ttl", &c.UploadTTL, 24 * time.Hour},
		{"sweep interval", &c.SweepInterval, 5 * time.Second}, {"read timeout", &c.ReadTimeout, 30 * time.Second},
		{"upload timeout", &c.UploadTimeout, 10 * time.Minute},
	} {
		if *value.field == 0 {
			*value.field = value.standard
		}
		if *value.field < time.Millisecond {
			return fmt.Errorf("jobs: %s must be at least a millisecond", value.name)
		}
	}
	if c.MaxIdleBytes == 0 {
		c.MaxIdleBytes = 4 << 30
	}
	for _, bound := range []struct {
		name     string
		field    *int
		standard int
	}{
		{"max reopens", &c.MaxReopens, 5}, {"max open jobs", &c.MaxOpenJobs, 10_000},
		{"max waiters", &c.MaxWaiters, 1000}, {"max events", &c.MaxEvents, 1000},
	} {
		if *bound.field == 0 {
			*bound.field = bound.standard
		}
		if *bound.field < 0 || c.MaxIdleBytes < 0 {
			return fmt.Errorf("jobs: %s and max idle bytes must not be negative", bound.name)
		}
	}
	if c.Logger == nil {
		c.Logger = hclog.NewNullLogger()
	}
	return nil
}

// Service is an open job service.
type Service struct {
	config   Config
	db       *database.DB
	store    *records.Store
	verifier *signing.Verifier
	handler  http.Handler
	topology string
	log      hclog.Logger

	firstToken string // "" unless this opening made it

	// waiters holds a place per long poll and event stream.
	waiters chan struct{}

	closing context.Context // done once Close was called: waits and streams end
	cancel  context.CancelFunc
	owned   sync.WaitGroup // the sweep
}

// Open opens the service's storage, makes what an empty one lacks, the first
// token included, and starts the sweep.
func Open(ctx context.Context, config Config) (*Service, error) {
	if err := config.complete(); err != nil {
		return nil, err
	}
	if err := os.MkdirAll(config.Directory, 0o700); err != nil {
		return nil, fmt.Errorf("jobs: %w", err)
	}
	files, err := blobs.Open(config.BlobDirectory)
	if err != nil {
		return nil, err
	}
	db, err := database.Open(ctx, config.Database)
	if err != nil {
		return nil, err
	}
	s := &Service{config: config, db: db, log: config.Logger, waiters: make(chan struct{}, config.MaxWaiters)}
	s.store = records.New(db, files, records.Policy{
		AttemptLease: config.AttemptLease, HelloTTL: config.HelloTTL, GrantTTL: config.GrantTTL, UploadTTL: config.UploadTTL,
		MaxReopens: config.MaxReopens, MaxOpenJobs: config.MaxOpenJobs, MaxIdleBytes: config.MaxIdleBytes, MaxEvents: config.MaxEvents,
	})
	if err := s.prepare(ctx); err != nil {
		return nil, errors.Join(err, db.Close())
	}
	s.closing, s.cancel = context.WithCancel(context.WithoutCancel(ctx))
	s.owned.Go(s.sweep)
	return s, nil
}

func (s *Service) prepare(ctx context.Context) error {
	keys, err := newKeys(s.config.ProviderKeysFile, s.store, s.log)
	if err != nil {
		return err
	}
	if s.verifier, err = signing.NewVerifier(keys, s.config.PublicOrigin, time.Now); err != nil {
		return err
	}
	s.topology = s.config.Topology
	if s.topology == "" {
		if s.topology, err = s.db.Meta(ctx, "topology", string(protocol.NewID())); err != nil {
			return err
		}
	}
	s.handler = s.routes()
	return s.makeFirstToken(ctx)
}

// Handler serves both faces.
func (s *Service) Handler() http.Handler { return s.handler }

// Topology is the name of this environment that providers check.
func (s *Service) Topology() string { return s.topology }

// Close ends waits, streams and the sweep, waits for the sweep, and closes the
// database. Stop the HTTP server first.
func (s *Service) Close() error {
	s.cancel()
	s.owned.Wait()
	return s.db.Close()
}

// Failed is closed once the storage failed in a way after which nothing may be
// acknowledged any more: the process should end, non-zero, so that a fresh one
// reads what is there (I35).
func (s *Service) Failed() <-chan struct{} { return s.db.Failed() }

// Err is the failure that closed Failed, or nil.
func (s *Service) Err() error { return s.db.Err() }

// OpenJobs counts the open jobs of every kind that a provider announced.
func (s *Service) OpenJobs(ctx context.Context) (map[string]int64, error) {
	return s.store.OpenJobs(ctx)
}

// Interrupt ends long polls and event streams, so that an HTTP server can shut
// down without waiting for them; everything else goes on until [Service.Close].
func (s *Service) Interrupt() { s.cancel() }

// sweep is the goroutine that does what only time causes. Close waits for it.
func (s *Service) sweep() {
	ticker := time.NewTicker(s.config.SweepInterval)
	defer ticker.Stop()
	for {
		select {
		case <-s.closing.Done():
			return
		case <-ticker.C:
		}
		ctx, cancel := context.WithTimeout(s.closing, time.Minute)
		swept, err := s.store.Sweep(ctx)
		cancel()
		switch {
		case s.closing.Err() != nil:
			return
		case err != nil:
			s.log.Error("sweep_failed", "error", err)
		case swept != records.Swept{}:
			s.log.Info("swept", "quiet", swept.Quiet, "deadlines", swept.Deadlines, "uploads", swept.Uploads, "grants", swept.Grants, "blobs", swept.Blobs)
		}
	}
}

// firstTokenFile holds the token that the first start makes, for agentctl on the
// same machine.
const firstTokenFile = "first-token"

// makeFirstToken makes an administrator's token where the database has none. The
// file is durable before the token is valid, so a crash never leaves a token that
// nobody knows.
func (s *Service) makeFirstToken(ctx context.Context) error {
	token := records.NewToken()
	path := filepath.Join(s.config.Directory, firstTokenFile)
	temporary := path + ".new"
	admin := records.Principal{Workspace: "default", Name: "first", Role: records.RoleAdmin}
	made, err := s.store.AnyToken(ctx)
	if err != nil || made {
		return err
	}
	if err := writeSecret(temporary, token); err != nil {
		return fmt.Errorf("jobs: first token: %w", err)
	}
	if err := os.Rename(temporary, path); err != nil {
		return fmt.Errorf("jobs: first token: %w", err)
	}
	if err := syncDirectory(s.config.Directory); err != nil {
		return fmt.Errorf("jobs: first token: %w", err)
	}
	added, err := s.store.AddToken(ctx, token, admin, true)
	if err != nil {
		return err
	}
	if added {
		s.firstToken = token
		return nil
	}
	// Another instance on the same database was first; ours was never valid.
	if err := os.Remove(path); err != nil {
		return fmt.Errorf("jobs: first token: %w", err)
	}
	return nil
}

func writeSecret(path, secret string) (err error) {
	file, err := os.OpenFile(path, os.O_WRONLY|os.O_CREATE|os.O_TRUNC, 0o600)
	if err != nil {
		return err
	}
	_, err = file.WriteString(secret + "\n")
	return errors.Join(err, file.Chmod(0o600), file.Sync(), file.Close())
}

func syncDirectory(path string) error {
	directory, err := os.Open(path)
	if err != nil {
		return err
	}
	return errors.Join(directory.Sync(), directory.Close())
}

// FirstToken is the token that this opening made, for printing once, and the file
// that holds it; made is false where there was a token before.
func (s *Service) FirstToken() (token, path string, made bool) {
	return s.firstToken, filepath.Join(s.config.Directory, firstTokenFile), s.firstToken != ""
}

// TokenSpec says whom a new token speaks for.
type TokenSpec struct {
	Workspace   string
	Principal   string
	Role        string        // reader, submitter or admin
	RetryWindow time.Duration // 0: off
}

// CreateToken makes a bearer token. It is returned once and stored as a hash.
func (s *Service) CreateToken(ctx context.Context, spec TokenSpec) (string, error) {
	token := records.NewToken()
	_, err := s.store.AddToken(ctx, token, records.Principal{
		Workspace: spec.Workspace, Name: spec.Principal, Role: records.Role(spec.Role), RetryWindow: spec.RetryWindow,
	}, false)
	if err != nil {
		return "", err
	}
	return token, nil
}

// RevokeTokens ends every token of a principal in a workspace and returns how
// many that were.
func (s *Service) RevokeTokens(ctx context.Context, workspace, principal string) (int, error) {
	return s.store.RevokeTokens(ctx, workspace, principal)
}

// RemoveProviderKey ends a key that [Service.AddProviderKey] registered; keyID is
// its SHA-256 fingerprint. Keys of the operator's file end there.
func (s *Service) RemoveProviderKey(ctx context.Context, keyID string) error {
	return s.store.RemoveProviderKey(ctx, keyID)
}

// AddProviderKey registers a provider's public key: a line of ssh-ed25519, the
// key, and the provider's name.
func (s *Service) AddProviderKey(ctx context.Context, line string) error {
	key, err := signing.ParseAuthorizedKey(strings.TrimSpace(line))
	if err != nil {
		return fmt.Errorf("jobs: provider key: %w", err)
	}
	return s.store.AddProviderKey(ctx, key)
}

// AddHostKey registers a host's verifier key, brought from the host by the
// operator's own way; it returns how many receipts became verified by it.
func (s *Service) AddHostKey(ctx context.Context, text string) (int, error) {
	return s.store.AddHostKey(ctx, strings.TrimSpace(text))
}

// HandOver gives a provider identity to another attempt store and fails what the
// old one had in progress. It returns how many attempts that were.
func (s *Service) HandOver(ctx context.Context, provider string, store protocol.ID) (int, error) {
	if !store.Valid() {
		return 0, errors.New("jobs: store must be 32 lower-case hexadecimal digits")
	}
	return s.store.HandOver(ctx, provider, store)
}
