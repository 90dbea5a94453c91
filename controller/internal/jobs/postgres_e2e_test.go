//go:build e2e

package jobs

import (
	"context"
	"database/sql"
	"fmt"
	"os"
	"os/exec"
	"os/user"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/quittance/quittance/controller/api"
)

// postgres is a private PostgreSQL server on a Unix socket.
type postgres struct {
	socket string // directory
	count  atomic.Int64
}

// startPostgres runs Debian's PostgreSQL as an unprivileged user. It never skips:
// a machine without it fails with the command that installs it.
func startPostgres(t *testing.T) *postgres {
	t.Helper()
	found, err := filepath.Glob("/usr/lib/postgresql/*/bin")
	if err != nil || len(found) == 0 {
		t.Fatal("PostgreSQL is not installed; run: apt-get install -y --no-install-recommends postgresql")
	}
	bin := found[len(found)-1]
	// Not t.TempDir: its parents belong to root alone.
	directory, err := os.MkdirTemp("", "quittance-postgres-")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := os.RemoveAll(directory); err != nil {
			t.Error(err)
		}
	})
	attributes := new(syscall.SysProcAttr)
	if os.Getuid() == 0 {
		account, err := user.Lookup("postgres")
		if err != nil {
			t.Fatal(err)
		}
		uid, err := strconv.Atoi(account.Uid)
		if err != nil {
			t.Fatal(err)
		}
		gid, err := strconv.Atoi(account.Gid)
		if err != nil {
			t.Fatal(err)
		}
		if err := os.Chown(directory, uid, gid); err != nil {
			t.Fatal(err)
		}
		attributes.Credential = &syscall.Credential{Uid: uint32(uid), Gid: uint32(gid)}
	}
	data := filepath.Join(directory, "data")
	initialise := exec.CommandContext(t.Context(), filepath.Join(bin, "initdb"), "-D", data, "-A", "trust", "-U", "quittance", "-E", "UTF8", "--locale=C")
	initialise.SysProcAttr, initialise.Dir = attributes, directory
	if output, err := initialise.CombinedOutput(); err != nil {
		t.Fatalf("initdb: %v\n%s", err, output)
	}
	log, err := os.Create(filepath.Join(directory, "log"))
	if err != nil {
		t.Fatal(err)
	}
	server := exec.Command(filepath.Join(bin, "postgres"), "-D", data, "-k", directory, "-c", "listen_addresses=", "-c", "max_connections=200")
	server.SysProcAttr, server.Dir, server.Stdout, server.Stderr = attributes, directory, log, log
	if err := server.Start(); err != nil {
		t.Fatal(err)
	}
	p := &postgres{socket: directory}
	t.Cleanup(func() {
		if err := server.Process.Signal(syscall.SIGINT); err != nil { // a fast shutdown
			t.Error(err)
		}
		if err := server.Wait(); err != nil {
			t.Error(err)
		}
		if err := log.Close(); err != nil {
			t.Error(err)
		}
	})
	p.await(t, log.Name())
	return p
}

func (p *postgres) url(name string) string {
	return "postgres://quittance@/" + name + "?host=" + p.socket
}

func (p *postgres) await(t *testing.T, log string) {
	t.Helper()
	db, err := sql.Open("pgx", p.url("postgres"))
	if err != nil {
		t.Fatal(err)
	}
	defer db.Close()
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	defer cancel()
	tick := time.NewTicker(50 * time.Millisecond)
	defer tick.Stop()
	for db.PingContext(ctx) != nil {
		select {
		case <-ctx.Done():
			text, err := os.ReadFile(log)
			t.Fatalf("PostgreSQL did not start: %s %v", text, err)
		case <-tick.C:
		}
	}
}

// database makes a fresh database and returns its URL.
func (p *postgres) database(t *testing.T) string {
	t.Helper()
	db, err := sql.Open("pgx", p.url("postgres"))
	if err != nil {
		t.Fatal(err)
	}
	defer db.Close()
	name := fmt.Sprint("jobs", p.count.Add(1))
	if _, err := db.ExecContext(t.Context(), "CREATE DATABASE "+name); err != nil {
		t.Fatal(err)
	}
	return p.url(name)
}

func TestOnPostgreSQL(t *testing.T) {
	conformance(t, startPostgres(t).database)
}

// Nothing lives in one instance's memory: two instances share one database and
// one blob directory, and what one commits the other serves and wakes up for.
func TestTwoInstancesOnOnePostgreSQL(t *testing.T) {
	location := startPostgres(t).database(t)
	blobs := filepath.Join(t.TempDir(), "shared")
	share := func(c *Config) { c.BlobDirectory = blobs }
	first := open(t, location, share)
	second := openAs(t, location, "node-2", share)
	equal(t, "topology", second.s.Topology(), first.s.Topology())
	if _, _, made := second.s.FirstToken(); made {
		t.Fatal("two first tokens")
	}
	job := first.create("op", "x")
	other := second.node
	waited := make(chan reply)
	go func() {
		waited <- first.user(first.token, "GET", fmt.Sprintf("/v1/jobs/%s?wait=20s&after=%d", job.Job, job.Version), nil)
	}()
	a := other.start(&job, "key").Attempt
	if seen := must[api.Job](t, 200, <-waited); seen.RunningSince == nil {
		t.Fatalf("woke up without the attempt: %+v", seen)
	}
	must[api.CompleteReceipt](t, 200, other.complete(a, "over there"))
	equal(t, "result", string(first.user(first.token, "GET", "/v1/jobs/"+job.Job+"/result", nil).body), "over there")
	again := must[api.CreateJobAnswer](t, 200, second.user(first.token, "POST", "/v1/jobs",
		&api.CreateJob{Kind: "echo", Input: &api.CreateData{Text: textOf("x")}}, api.HeaderIdempotencyKey, "op"))
	equal(t, "one operation on both", again.Job.Job, job.Job)
}

func textOf(s string) *string { return &s }

// I25: a change that commits after one with a later beginning is seen by who
// waits for the workspace, on another instance too. The first transaction is
// held in the middle of its write by a row lock of the test's own, while a second
// one of the same workspace runs on the other instance.
func TestWaitSeesCommitsInTheirOrder(t *testing.T) {
	location := startPostgres(t).database(t)
	blobs := filepath.Join(t.TempDir(), "shared")
	share := func(c *Config) { c.BlobDirectory = blobs }
	first := open(t, location, share)
	second := openAs(t, location, "node-2", share)
	slow, quick := first.create("op", "x"), first.create("op-2", "x")
	db, err := sql.Open("pgx", location)
	if err != nil {
		t.Fatal(err)
	}
	defer db.Close()
	// In small tables everything lies on one page, and PostgreSQL refuses the first
	// transaction for what it might have read; in large ones it does not.
	for _, statement := range []string{
		`INSERT INTO jobs SELECT 'job-' || md5(i::text), 'other', 'echo', 'cancelled', 1, i, i, 'x', NULL, 'text/plain', 0, 'x', 1, 0, 0, 0, i, NULL, NULL FROM generate_series(1, 20000) i`,
		`INSERT INTO times SELECT 'job-' || md5(i::text), 0, 'cancelled', i FROM generate_series(1, 20000) i`,
		`INSERT INTO events SELECT 'job-' || md5(i::text), 1, i, 'state', 'cancelled', NULL, NULL, NULL, NULL, NULL FROM generate_series(1, 20000) i`,
		`ANALYZE`,
	} {
		if _, err := db.ExecContext(t.Context(), statement); err != nil {
			t.Fatal(err)
		}
	}
	holding, err := db.BeginTx(t.Context(), nil)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := holding.ExecContext(t.Context(), `SELECT 1 FROM jobs WHERE job = $1 FOR UPDATE`, slow.Job); err != nil {
		t.Fatal(err)
	}
	// waiting is how many backends wait for a lock.
	waiting := func() (n int) {
		if err := db.QueryRowContext(t.Context(), `SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock'`).Scan(&n); err != nil {
			t.Fatal(err)
		}
		return n
	}
	cancel := func(f *fixture, job string) <-chan reply {
		done := make(chan reply, 1)
		go func() { done <- f.user(first.token, "POST", "/v1/jobs/"+job+"/cancel", nil) }()
		return done
	}
	one := cancel(first, slow.Job)
	until(t, "the first transaction is held", func() bool { return waiting() == 1 })
	two := cancel(second, quick.Job)
	until(t, "the second one has ended or waits for the first", func() bool { return len(two) == 1 || waiting() == 2 })
	before := must[api.JobList](t, 200, second.user(first.token, "GET", "/v1/jobs", nil))
	if err := holding.Rollback(); err != nil {
		t.Fatal(err)
	}
	equal(t, "the first", (<-one).status, 200)
	// The first change alone, or both, came after what was listed.
	after := must[api.JobList](t, 200, second.user(first.token, "GET", fmt.Sprintf("/v1/jobs?wait=20s&after=%d", before.Version), nil))
	if after.Version <= before.Version {
		t.Fatalf("version %d after %d: a change was missed", after.Version, before.Version)
	}
	equal(t, "the second", (<-two).status, 200)
	for _, job := range must[api.JobList](t, 200, second.user(first.token, "GET", fmt.Sprintf("/v1/jobs?wait=20s&after=%d", before.Version), nil)).Jobs {
		equal(t, "state of "+job.Job, job.State, api.JobCancelled)
	}
}

// Whoever writes beside many others is not refused for that: of transactions that
// touch the same rows at once PostgreSQL lets one commit, and the others get their
// turn.
func TestManyWritersOnPostgreSQL(t *testing.T) {
	f := open(t, startPostgres(t).database(t), nil)
	const writers, each = 16, 4
	var all sync.WaitGroup
	for w := range writers {
		all.Go(func() {
			for i := range each {
				text := fmt.Sprintf("%d of %d", i, w)
				got := f.user(f.token, "POST", "/v1/jobs", &api.CreateJob{Kind: "echo", Input: &api.CreateData{Text: &text}}, api.HeaderIdempotencyKey, text)
				if got.status != 201 {
					t.Errorf("%s: %d %s", text, got.status, got.body)
				}
			}
		})
	}
	all.Wait()
	list := must[api.JobList](t, 200, f.user(f.token, "GET", "/v1/jobs?limit=100", nil))
	equal(t, "jobs", len(list.Jobs), writers*each)
}

// until polls a real condition.
func until(t *testing.T, what string, condition func() bool) {
	t.Helper()
	deadline := time.Now().Add(time.Minute)
	tick := time.NewTicker(10 * time.Millisecond)
	defer tick.Stop()
	for !condition() {
		if time.Now().After(deadline) {
			t.Fatal("not within a minute: " + what)
		}
		<-tick.C
	}
}

// The commands of the runbook job-database for PostgreSQL: what was there at the
// dump is there again, what came after it is gone, and versions go on growing,
// above those that were given out since.
func TestBackupOnPostgreSQL(t *testing.T) {
	page, err := os.ReadFile("../../../packaging/runbooks/job-database.md")
	if err != nil {
		t.Fatal(err)
	}
	location := startPostgres(t).database(t)
	backup, directory := t.TempDir(), t.TempDir()
	keep := func(c *Config) { c.Directory = directory }
	run := func(command string) {
		t.Helper()
		if !strings.Contains(string(page), "`"+command+"`") {
			t.Fatalf("the runbook has no command %s", command)
		}
		line := strings.NewReplacer("/var/backups/quittance/jobs", backup, "DATABASE", "'"+location+"'").Replace(command)
		if out, err := exec.CommandContext(t.Context(), "/bin/sh", "-c", line).CombinedOutput(); err != nil {
			t.Fatalf("%s: %v\n%s", line, err, out)
		}
	}
	var kept, lost api.Job
	var given int64 // the last version before the loss
	t.Run("before", func(t *testing.T) {
		f := open(t, location, keep)
		kept = f.create("op", "x")
		run("pg_dump --format=custom --file=/var/backups/quittance/jobs/jobs.dump --dbname=DATABASE")
		equal(t, "cancel", f.user(f.token, "POST", "/v1/jobs/"+kept.Job+"/cancel", nil).status, 200)
		lost = f.create("op-2", "x")
		given = must[api.JobList](t, 200, f.user(f.token, "GET", "/v1/jobs", nil)).Version
	})
	run("pg_restore --clean --if-exists --no-owner --dbname=DATABASE /var/backups/quittance/jobs/jobs.dump")
	f := openAs(t, location, "node-2", keep)
	token, err := os.ReadFile(filepath.Join(directory, firstTokenFile))
	if err != nil {
		t.Fatal(err)
	}
	list := must[api.JobList](t, 200, f.user(strings.TrimSpace(string(token)), "GET", "/v1/jobs", nil))
	if len(list.Jobs) != 1 || list.Jobs[0].Job != kept.Job || list.Jobs[0].State != api.JobOpen {
		t.Fatalf("%+v; %s must be open and %s gone", list.Jobs, kept.Job, lost.Job)
	}
	equal(t, "cancel", f.user(strings.TrimSpace(string(token)), "POST", "/v1/jobs/"+kept.Job+"/cancel", nil).status, 200)
	if after := must[api.JobList](t, 200, f.user(strings.TrimSpace(string(token)), "GET", "/v1/jobs", nil)); after.Version <= max(list.Version, given) {
		t.Fatalf("version %d after %d, and %d before the loss", after.Version, list.Version, given)
	}
}
