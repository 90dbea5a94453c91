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
