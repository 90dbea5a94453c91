package database

import (
	"context"
	"fmt"
	"strconv"
	"strings"
)

// schemaVersion is the newest schema that this program knows.
const schemaVersion = 1

// schema is written once for both databases: BYTES stands for BLOB or BYTEA.
// BIGINT holds times in microseconds, lengths, counts and truth.
var schema = []string{
	`CREATE TABLE tokens (
		hash TEXT PRIMARY KEY, workspace TEXT NOT NULL, principal TEXT NOT NULL, role TEXT NOT NULL,
		retry_window BIGINT NOT NULL, created BIGINT NOT NULL, revoked BIGINT)`,
	`CREATE TABLE provider_keys (
		key_id TEXT PRIMARY KEY, provider TEXT NOT NULL, line TEXT NOT NULL, created BIGINT NOT NULL)`,
	`CREATE TABLE host_keys (
		key_text TEXT PRIMARY KEY, generation TEXT NOT NULL, created BIGINT NOT NULL)`,

	`CREATE TABLE providers (
		provider TEXT PRIMARY KEY, store TEXT NOT NULL, seq BIGINT NOT NULL, observed BIGINT NOT NULL, heard BIGINT NOT NULL,
		lanes BIGINT NOT NULL, hello BYTES NOT NULL)`,
	`CREATE TABLE offerings (
		provider TEXT NOT NULL, kind TEXT NOT NULL, available BIGINT NOT NULL, body BYTES NOT NULL,
		PRIMARY KEY (provider, kind))`,
	`CREATE INDEX offerings_kind ON offerings (kind)`,

	`CREATE TABLE blobs (sha256 TEXT PRIMARY KEY, length BIGINT NOT NULL, touched BIGINT NOT NULL)`,

	`CREATE TABLE uploads (
		upload TEXT PRIMARY KEY, workspace TEXT NOT NULL, content_type TEXT NOT NULL, length BIGINT NOT NULL,
		sha256 TEXT NOT NULL, created BIGINT NOT NULL, expires BIGINT, job TEXT, position BIGINT)`,
	`CREATE INDEX uploads_job ON uploads (job, position)`,
	`CREATE INDEX uploads_expires ON uploads (expires)`,
	`CREATE INDEX uploads_sha256 ON uploads (sha256)`,

	`CREATE TABLE jobs (
		job TEXT PRIMARY KEY, workspace TEXT NOT NULL, kind TEXT NOT NULL, state TEXT NOT NULL,
		version BIGINT NOT NULL, changed BIGINT NOT NULL, created BIGINT NOT NULL, created_by TEXT NOT NULL,
		cancel_at BIGINT, input_schema TEXT NOT NULL, input_length BIGINT NOT NULL, input_sha256 TEXT NOT NULL,
		attempt_limit BIGINT NOT NULL, attempts_used BIGINT NOT NULL, reopens BIGINT NOT NULL,
		admitted BIGINT NOT NULL, opened BIGINT NOT NULL, live TEXT, result TEXT)`,
	`CREATE INDEX jobs_feed ON jobs (kind, state, created, job)`,
	`CREATE INDEX jobs_workspace ON jobs (workspace, created, job)`,
	`CREATE INDEX jobs_changed ON jobs (workspace, changed)`,
	`CREATE INDEX jobs_cancel_at ON jobs (cancel_at)`,
	`CREATE INDEX jobs_input ON jobs (input_sha256)`,
	`CREATE TABLE labels (job TEXT NOT NULL, position BIGINT NOT NULL, name TEXT NOT NULL, value TEXT NOT NULL,
		PRIMARY KEY (job, position))`,
	`CREATE INDEX labels_name ON labels (name, value, job)`,
	`CREATE TABLE times (job TEXT NOT NULL, position BIGINT NOT NULL, state TEXT NOT NULL, at BIGINT NOT NULL,
		PRIMARY KEY (job, position))`,
	`CREATE TABLE operations (
		workspace TEXT NOT NULL, operation TEXT NOT NULL, job TEXT NOT NULL, payload TEXT NOT NULL,
		principal TEXT NOT NULL, created BIGINT NOT NULL, intent TEXT NOT NULL, alias BIGINT NOT NULL,
		PRIMARY KEY (workspace, operation))`,
	`CREATE INDEX operations_intent ON operations (workspace, principal, intent)`,

	`CREATE TABLE attempts (
		attempt TEXT PRIMARY KEY, provider TEXT NOT NULL, attempt_key TEXT NOT NULL, job TEXT NOT NULL,
		position BIGINT NOT NULL, state TEXT NOT NULL, counted BIGINT NOT NULL, store TEXT NOT NULL,
		lane BIGINT NOT NULL, start_sha256 TEXT NOT NULL, admitted BIGINT NOT NULL, lease_expires BIGINT NOT NULL,
		quiet BIGINT NOT NULL, ended BIGINT,
		seq BIGINT NOT NULL, phase TEXT NOT NULL, condition_code TEXT NOT NULL, observed BIGINT NOT NULL,
		condition_at BIGINT NOT NULL,
		outcome_sha256 TEXT NOT NULL, result_schema TEXT NOT NULL, result_length BIGINT NOT NULL,
		result_sha256 TEXT NOT NULL, fail_code TEXT NOT NULL, fail_message TEXT NOT NULL, fail_next TEXT NOT NULL,
		entered BIGINT NOT NULL, reopened BIGINT NOT NULL, provenance BYTES,
		UNIQUE (provider, attempt_key))`,
	`CREATE INDEX attempts_job ON attempts (job, position)`,
	`CREATE INDEX attempts_provider ON attempts (provider, state, admitted, attempt)`,
	`CREATE INDEX attempts_lease ON attempts (state, quiet, lease_expires)`,
	`CREATE INDEX attempts_result ON attempts (result_sha256)`,

	`CREATE TABLE host_receipts (
		attempt TEXT NOT NULL, generation TEXT NOT NULL, idx BIGINT NOT NULL, kind TEXT NOT NULL,
		number BIGINT NOT NULL, key_text TEXT NOT NULL, trust TEXT NOT NULL, leaf BYTES NOT NULL, proof TEXT NOT NULL,
		PRIMARY KEY (attempt, generation, idx))`,

	`CREATE TABLE grants (hash TEXT PRIMARY KEY, upload TEXT NOT NULL, attempt TEXT NOT NULL, expires BIGINT NOT NULL)`,
	`CREATE INDEX grants_expires ON grants (expires)`,

	`CREATE TABLE events (
		job TEXT NOT NULL, idx BIGINT NOT NULL, at BIGINT NOT NULL, type TEXT NOT NULL, state TEXT NOT NULL,
		attempt TEXT, phase TEXT, condition_code TEXT, failure TEXT, principal TEXT,
		PRIMARY KEY (job, idx))`,
}

// numbering makes the sequence of [Tx.Turn] on PostgreSQL, above every number
// that stands, and above the clock: where the database was restored from a backup,
// no number that was given out since means something else. It belongs to no
// version of the schema: older programs pass it by.
func (tx *Tx) numbering(ctx context.Context) error {
	if !tx.postgres {
		return nil
	}
	if _, err := tx.Exec(ctx, `CREATE SEQUENCE IF NOT EXISTS job_changes`); err != nil {
		return err
	}
	var set int64
	_, err := tx.Row(ctx, []any{&set}, `SELECT setval('job_changes', highest) FROM
		(SELECT GREATEST(COALESCE(MAX(changed), 1), (extract(epoch FROM clock_timestamp()) * 1000000)::bigint) AS highest FROM jobs) stands, job_changes
		WHERE last_value < highest`)
	return err
}

func (db *DB) migrate(ctx context.Context) error {
	return db.Write(ctx, func(tx *Tx) error {
		if db.postgres {
			// Several instances may start at once on an empty database.
			if _, err := tx.Exec(ctx, `SELECT pg_advisory_xact_lock(7126354218)`); err != nil {
				return err
			}
		}
		if _, err := tx.Exec(ctx, `CREATE TABLE IF NOT EXISTS meta (name TEXT PRIMARY KEY, value TEXT NOT NULL)`); err != nil {
			return err
		}
		var value string
		found, err := tx.Row(ctx, []any{&value}, `SELECT value FROM meta WHERE name = 'schema'`)
		if err != nil {
			return err
		}
		if found {
			version, err := strconv.Atoi(value)
			if err != nil || version > schemaVersion {
				return fmt.Errorf("database: its schema is version %q and this program knows up to %d: run the newer program, or restore a backup made before it", value, schemaVersion)
			}
			return tx.numbering(ctx)
		}
		bytes := "BLOB"
		if db.postgres {
			bytes = "BYTEA"
		}
		for _, statement := range schema {
			if _, err := tx.Exec(ctx, strings.ReplaceAll(statement, " BYTES", " "+bytes)); err != nil {
				return err
			}
		}
		if _, err = tx.Exec(ctx, `INSERT INTO meta (name, value) VALUES ('schema', ?)`, strconv.Itoa(schemaVersion)); err != nil {
			return err
		}
		return tx.numbering(ctx)
	})
}

// Meta returns the value that stands under name, after putting value there if
// nothing did.
func (db *DB) Meta(ctx context.Context, name, value string) (string, error) {
	var stands string
	err := db.Write(ctx, func(tx *Tx) error {
		found, err := tx.Row(ctx, []any{&stands}, `SELECT value FROM meta WHERE name = ?`, name)
		if err != nil || found {
			return err
		}
		stands = value
		_, err = tx.Exec(ctx, `INSERT INTO meta (name, value) VALUES (?, ?)`, name, value)
		return err
	})
	return stands, err
}
