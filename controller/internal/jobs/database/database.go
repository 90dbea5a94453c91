// Package database opens the job service's SQL database, SQLite or PostgreSQL,
// keeps its schema, and runs transactions that are serializable on both. It owns
// the dialects, the retry of transactions that a database refused for
// concurrency, and the clock that expiries use. It must not know what a job is.
//
// # Assumptions
//
// SQLite runs in WAL mode with synchronous=FULL: a commit that returned is on
// disk. Its writers take turns; several processes may share the file. Its clock
// is the machine's. PostgreSQL runs transactions at isolation SERIALIZABLE with
// its own synchronous_commit; its clock is the server's.
//
// # Schema
//
// The statements are in schema.go; their version is the row schema in meta.
// Identifiers are text, times are microseconds since the Unix epoch, truth is 0
// or 1, messages are the canonical JSON of package api. Opening creates what an
// empty database lacks and refuses a newer schema.
package database

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"hash/fnv"
	"math/rand/v2"
	"net/url"
	"strconv"
	"strings"
	"sync/atomic"
	"time"

	"github.com/jackc/pgx/v5/pgconn"
	_ "github.com/jackc/pgx/v5/stdlib" // registers the driver "pgx"
	"modernc.org/sqlite"
	sqlite3 "modernc.org/sqlite/lib"
)

// DB is an open database. It is safe for concurrent use.
type DB struct {
	postgres bool
	write    *sql.DB
	read     *sql.DB // SQLite: deferred transactions beside the one writer; PostgreSQL: the same pool
	// poison is the storage failure after which SQLite is not written any more,
	// set once by whoever met it.
	poison atomic.Pointer[error]
	failed chan struct{} // closed with it
	gated  bool          // PostgreSQL: writing transactions begin with a gate; set once its table stands
}

// ErrFull is wrapped by errors of a database whose disk is full; nothing of the
// transaction happened.
var ErrFull = errors.New("database: the disk is full")

// ErrPoisoned is wrapped by every write after a storage failure of SQLite. After
// a failed sync the page cache may claim what the disk does not have, so only a
// fresh process, which reads the truth again, may go on (I35).
var ErrPoisoned = errors.New("database: storage failed earlier; restart the service")

// busyTimeout is how long SQLite waits for another process's transaction.
const busyTimeout = 10 * time.Second

// maxAttempts bounds the repetition of one transaction.
const maxAttempts = 12

// aloneFrom is the repetition from which a transaction writes alone.
const aloneFrom = 2

// gate is the statement by which writing transactions on PostgreSQL begin. They
// pass it side by side; one that was refused again and again waits for those
// beside it and keeps others out, because of many that touch the same rows only
// one commits each time. It must be a LOCK, which takes no snapshot: what was
// waited for is seen. Whoever waits here holds nothing that another may want.
func gate(repetition int) string {
	if repetition < aloneFrom {
		return `LOCK TABLE meta IN ROW EXCLUSIVE MODE`
	}
	return `LOCK TABLE meta IN SHARE ROW EXCLUSIVE MODE`
}

// Open opens the database that url names: "sqlite:" and a file's path, or a
// PostgreSQL URL. It creates the schema where it is missing.
func Open(ctx context.Context, location string) (*DB, error) {
	var db *DB
	var err error
	switch {
	case strings.HasPrefix(location, "sqlite:"):
		db, err = openSQLite(strings.TrimPrefix(location, "sqlite:"))
	case strings.HasPrefix(location, "postgres://"), strings.HasPrefix(location, "postgresql://"):
		db, err = openPostgres(location)
	default:
		return nil, errors.New("database: the location must begin with postgres:// or be left out for SQLite")
	}
	if err != nil {
		return nil, err
	}
	if err := db.migrate(ctx); err != nil {
		return nil, errors.Join(err, db.Close())
	}
	db.gated = db.postgres
	return db, nil
}

func openSQLite(path string) (*DB, error) {
	dsn := func(lock string, extra ...string) string {
		query := url.Values{"_pragma": append([]string{
			"journal_mode(WAL)", "synchronous(FULL)", "foreign_keys(1)",
			fmt.Sprintf("busy_timeout(%d)", busyTimeout.Milliseconds()),
		}, extra...), "_txlock": {lock}}
		return "file:" + (&url.URL{Path: path}).EscapedPath() + "?" + query.Encode()
	}
	write, err := sql.Open("sqlite", dsn("immediate"))
	if err != nil {
		return nil, fmt.Errorf("database: %w", err)
	}
	// One connection: writers queue here, with their contexts, not in SQLite.
	write.SetMaxOpenConns(1)
	read, err := sql.Open("sqlite", dsn("deferred", "query_only(1)"))
	if err != nil {
		return nil, errors.Join(fmt.Errorf("database: %w", err), write.Close())
	}
	read.SetMaxOpenConns(8)
	return &DB{write: write, read: read, failed: make(chan struct{})}, nil
}

func openPostgres(location string) (*DB, error) {
	pool, err := sql.Open("pgx", location)
	if err != nil {
		// The driver's message may quote the URL and with it a password (I37).
		return nil, errors.New("database: the PostgreSQL URL cannot be read; its form is postgres://user:password@host:port/database")
	}
	pool.SetMaxOpenConns(16)
	pool.SetConnMaxIdleTime(5 * time.Minute)
	return &DB{postgres: true, write: pool, read: pool, failed: make(chan struct{})}, nil
}

// Close closes all connections.
func (db *DB) Close() error {
	if db.read == db.write {
		return db.write.Close()
	}
	return errors.Join(db.read.Close(), db.write.Close())
}

// Failed is closed once a storage failure ended all writing; see [ErrPoisoned].
func (db *DB) Failed() <-chan struct{} { return db.failed }

// Err is the storage failure that closed Failed, or nil.
func (db *DB) Err() error {
	if cause := db.poison.Load(); cause != nil {
		return *cause
	}
	return nil
}

// Tx is a transaction. Statements use ? for their parameters.
type Tx struct {
	tx       *sql.Tx
	postgres bool
	now      int64 // read once per transaction
}

// Write runs f in a serializable read-write transaction and commits it, durable,
// before it returns nil. f may run several times and must have no effect outside
// the transaction. An error of f rolls back and is returned as it is.
func (db *DB) Write(ctx context.Context, f func(*Tx) error) error {
	if cause := db.poison.Load(); cause != nil {
		return fmt.Errorf("%w: %w", ErrPoisoned, *cause)
	}
	err := db.run(ctx, db.write, &sql.TxOptions{Isolation: db.isolation()}, f)
	switch storageFailure(err) {
	case failureFull:
		return fmt.Errorf("%w: %w", ErrFull, err)
	case failureStorage:
		if db.poison.CompareAndSwap(nil, &err) {
			close(db.failed)
		}
	}
	return err
}

// failure classifies an error of the database by what may follow it.
type failure int

const (
	failureOther   failure = iota
	failureFull            // no space; a later transaction may succeed
	failureStorage         // SQLite could not read, write or sync its files
)

func storageFailure(err error) failure {
	var server *pgconn.PgError
	if errors.As(err, &server) && server.Code == "53100" {
		return failureFull
	}
	var file *sqlite.Error
	if errors.As(err, &file) {
		switch file.Code() & 0xff {
		case sqlite3.SQLITE_FULL:
			return failureFull
		case sqlite3.SQLITE_IOERR, sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB:
			return failureStorage
		}
	}
	return failureOther
}

// Read runs f in a read-only transaction that sees one state of the database.
func (db *DB) Read(ctx context.Context, f func(*Tx) error) error {
	return db.run(ctx, db.read, &sql.TxOptions{Isolation: db.isolation(), ReadOnly: db.postgres}, f)
}

func (db *DB) isolation() sql.IsolationLevel {
	if db.postgres {
		return sql.LevelSerializable
	}
	return sql.LevelDefault
}

func (db *DB) run(ctx context.Context, pool *sql.DB, options *sql.TxOptions, f func(*Tx) error) error {
	var err error
	for attempt := range maxAttempts {
		if attempt > 0 {
			// Full jitter: competitors that collided once should not meet again.
			limit := min(time.Duration(1)<<attempt, 128) * time.Millisecond
			timer := time.NewTimer(rand.N(limit))
			select {
			case <-ctx.Done():
				timer.Stop()
				return fmt.Errorf("database: %w", errors.Join(ctx.Err(), err))
			case <-timer.C:
			}
		}
		first := ""
		if db.gated && !options.ReadOnly {
			first = gate(attempt)
		}
		if err = db.once(ctx, pool, options, first, f); err == nil || !collided(err) {
			return err
		}
	}
	return fmt.Errorf("database: gave up after %d attempts: %w", maxAttempts, err)
}

// once runs f in one transaction, after the statement first, "" for none.
func (db *DB) once(ctx context.Context, pool *sql.DB, options *sql.TxOptions, first string, f func(*Tx) error) (err error) {
	tx, err := pool.BeginTx(ctx, options)
	if err != nil {
		return fmt.Errorf("database: begin: %w", err)
	}
	defer func() {
		if recovered := recover(); recovered != nil {
			_ = tx.Rollback() // the panic is what is reported
			panic(recovered)
		}
	}()
	t := &Tx{tx: tx, postgres: db.postgres}
	if first != "" {
		_, err = t.Exec(ctx, first)
	}
	if err == nil {
		err = f(t)
	}
	if err != nil {
		if rollback := tx.Rollback(); rollback != nil && !errors.Is(rollback, sql.ErrTxDone) && ctx.Err() == nil {
			return errors.Join(err, fmt.Errorf("database: roll back: %w", rollback))
		}
		return err
	}
	if err := tx.Commit(); err != nil {
		return fmt.Errorf("database: commit: %w", err)
	}
	return nil
}

// collided reports whether the database refused a transaction only because of
// others beside it, so that it had no effect and may run again.
func collided(err error) bool {
	var server *pgconn.PgError
	if errors.As(err, &server) {
		switch server.Code {
		case "40001", "40P01", // serialization failure, deadlock
			"23505": // a unique key that a concurrent transaction took first: run again and find it
			return true
		}
		return false
	}
	var file *sqlite.Error
	if errors.As(err, &file) {
		switch file.Code() & 0xff {
		case sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED:
			return true
		}
	}
	return false
}

// rebind numbers the parameters as PostgreSQL wants them. No statement of ours
// has a question mark in a literal.
func (tx *Tx) rebind(query string) string {
	if !tx.postgres {
		return query
	}
	var b strings.Builder
	number := 0
	for _, r := range query {
		if r == '?' {
			number++
			b.WriteString("$" + strconv.Itoa(number))
		} else {
			b.WriteRune(r)
		}
	}
	return b.String()
}

// Exec runs a statement and returns how many rows it changed.
func (tx *Tx) Exec(ctx context.Context, query string, args ...any) (int64, error) {
	result, err := tx.tx.ExecContext(ctx, tx.rebind(query), args...)
	if err != nil {
		return 0, fmt.Errorf("database: %w", err)
	}
	changed, err := result.RowsAffected()
	if err != nil {
		return 0, fmt.Errorf("database: %w", err)
	}
	return changed, nil
}

// Row reads one row into targets; found is false where there is none.
func (tx *Tx) Row(ctx context.Context, targets []any, query string, args ...any) (found bool, err error) {
	err = tx.tx.QueryRowContext(ctx, tx.rebind(query), args...).Scan(targets...)
	if errors.Is(err, sql.ErrNoRows) {
		return false, nil
	}
	if err != nil {
		return false, fmt.Errorf("database: %w", err)
	}
	return true, nil
}

// Rows calls each for every row, with a function that scans it. The statement's
// rows are closed before Rows returns.
func (tx *Tx) Rows(ctx context.Context, each func(scan func(targets ...any) error) error, query string, args ...any) (err error) {
	rows, err := tx.tx.QueryContext(ctx, tx.rebind(query), args...)
	if err != nil {
		return fmt.Errorf("database: %w", err)
	}
	defer func() {
		if closeErr := rows.Close(); err == nil && closeErr != nil {
			err = fmt.Errorf("database: %w", closeErr)
		}
	}()
	for rows.Next() {
		if err := each(rows.Scan); err != nil {
			return err
		}
	}
	if err := rows.Err(); err != nil {
		return fmt.Errorf("database: %w", err)
	}
	return nil
}

// turnClass is the class of the advisory locks of [Tx.Turn].
const turnClass = 71263542

// Turn makes numbers grow in the order of commits: on PostgreSQL it waits for the
// end of every transaction that drew a number under the same key, and draws the
// next one, above floor. The lock is kept until this transaction ends, and a
// sequence is not part of any snapshot, so what is drawn after the wait is above
// what was drawn before it. On SQLite, where one transaction writes at a time, it
// draws none and returns 0: whoever calls may count by himself.
func (tx *Tx) Turn(ctx context.Context, key string, floor int64) (int64, error) {
	if !tx.postgres {
		return 0, nil
	}
	hash := fnv.New32a()
	_, _ = hash.Write([]byte(key)) // never fails
	var drawn int64
	if _, err := tx.Row(ctx, []any{&drawn}, `WITH turn AS MATERIALIZED (SELECT pg_advisory_xact_lock(?, ?)) SELECT nextval('job_changes') FROM turn`,
		turnClass, int32(hash.Sum32())); err != nil || drawn > floor {
		return drawn, err
	}
	// An instance of an older version, beside this one, numbers by the clock.
	_, err := tx.Row(ctx, []any{&drawn}, `SELECT setval('job_changes', ?)`, floor+1)
	return drawn, err
}

// Now is the database's clock, in microseconds since the Unix epoch, the same
// throughout a transaction.
func (tx *Tx) Now(ctx context.Context) (int64, error) {
	if tx.now != 0 {
		return tx.now, nil
	}
	if !tx.postgres {
		tx.now = time.Now().UnixMicro()
		return tx.now, nil
	}
	_, err := tx.Row(ctx, []any{&tx.now}, `SELECT (extract(epoch FROM clock_timestamp()) * 1000000)::bigint`)
	return tx.now, err
}
