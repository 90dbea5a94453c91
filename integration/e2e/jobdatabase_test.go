//go:build e2e

package e2e

import (
	"bytes"
	"encoding/base64"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/quittance/quittance/controller/api"
	"github.com/quittance/quittance/integration/controllertest"
)

// runbook plays a page's commands on a site: each must be on the page, word for
// word, and runs as it stands there, with the site's places for the packaged
// ones.
type runbook struct {
	t        *testing.T
	page     string
	agentctl string
	env      []string
	places   *strings.Replacer
}

func openRunbook(t *testing.T, s *controllertest.Site, name, backup string) *runbook {
	t.Helper()
	page, err := os.ReadFile(filepath.Join("../../packaging/runbooks", name))
	if err != nil {
		t.Fatal(err)
	}
	b := &runbook{t: t, page: string(page), agentctl: filepath.Join(t.TempDir(), "agentctl")}
	if out, err := exec.Command("go", "build", "-o", b.agentctl, "github.com/quittance/quittance/cmd/agentctl").CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	b.env = []string{
		"PATH=" + os.Getenv("PATH"), "QUITTANCE_ADMIN_SOCKET=" + filepath.Join(s.StateDir(), "admin.sock"), "QUITTANCE_API=" + s.API(),
		"QUITTANCE_TOKEN_FILE=" + filepath.Join(s.StateDir(), "jobs/first-token"),
	}
	b.places = strings.NewReplacer("/var/lib/quittance-controller", s.StateDir(), "/var/backups/quittance", backup,
		"quittance-controller:quittance-controller", fmt.Sprintf("%d:%d", controllertest.UID, controllertest.GID))
	return b
}

// try runs a command of the page; words of the page in capitals are filled in, as
// JOB, the job's id, ….
func (b *runbook) try(command string, fill ...string) (string, error) {
	b.t.Helper()
	if !strings.Contains(b.page, "`"+command+"`") {
		b.t.Fatalf("the runbook has no command %s", command)
	}
	line := strings.NewReplacer(fill...).Replace(b.places.Replace(command))
	cmd := exec.Command("/bin/sh", "-c", line)
	if rest, ours := strings.CutPrefix(line, "agentctl "); ours {
		cmd = exec.Command(b.agentctl, strings.Fields(rest)...)
	}
	cmd.Env = b.env
	var stdout, stderr bytes.Buffer
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	if err := cmd.Run(); err != nil {
		return stdout.String(), fmt.Errorf("%s: %w\n%s", line, err, stderr.String())
	}
	return stdout.String(), nil
}

func (b *runbook) run(command string, fill ...string) string {
	b.t.Helper()
	out, err := b.try(command, fill...)
	if err != nil {
		b.t.Fatal(err)
	}
	return out
}

// I26, I27, I32: the runbook of the job database, played through with its very
// commands. A backup is made while a job runs, jobs go on, the database is lost
// while an outcome is on its way, and the backup is put back. Nothing runs twice
// by itself; what the service lost is named; each decision works.
func TestJobDatabaseRestored(t *testing.T) {
	s := kit.NewSite(t, controllertest.Options{Lossy: true, Flags: []string{"--lanes-history", "64", "--lanes-stop-timeout", "1s"}})
	backup := t.TempDir()
	b := openRunbook(t, s, "job-database.md", backup)
	service := s.StartAPI()
	lanes := s.StartWork()

	before := s.Submit("before")
	finished(t, s, before, "before")
	running := s.Submit("hold running")
	s.AwaitExecutions(2)
	waiting, again := s.Submit("waiting"), s.Submit("again")

	b.run("mkdir -p /var/backups/quittance/jobs/blobs")
	b.run("cp -a /var/lib/quittance-controller/jobs/blobs/. /var/backups/quittance/jobs/blobs")
	b.run(`sqlite3 /var/lib/quittance-controller/jobs/jobs.db "VACUUM INTO '/var/backups/quittance/jobs/jobs.db'"`)
	b.run("cp -a /var/lib/quittance-controller/jobs/blobs/. /var/backups/quittance/jobs/blobs")
	b.run("cp -a /var/lib/quittance-controller/jobs/first-token /var/backups/quittance/jobs")

	s.OpenGate()
	finished(t, s, running, "hold running")
	finished(t, s, waiting, "waiting")
	finished(t, s, again, "again")
	created := s.Submit("created since")
	finished(t, s, created, "created since")
	s.Proxy.Lose("/complete", 1<<30)
	s.Submit("undelivered")

	// The database is lost while nobody knows whether it took the last outcome.
	s.Eventually("the outcome is on its way", func() (bool, error) { return strings.Contains(lanes.Log(), "outcome not confirmed"), nil })
	service.Kill()
	lanes.Stop() // systemctl stop quittance-controller.service
	b.run("mv /var/lib/quittance-controller/jobs /var/lib/quittance-controller/jobs.damaged")
	b.run("cp -a /var/backups/quittance/jobs /var/lib/quittance-controller/jobs")
	b.run("chown -R quittance-controller:quittance-controller /var/lib/quittance-controller/jobs")
	s.Proxy.Lose("/complete", 0)
	s.RestartAPI() // systemctl start quittance-controller.service
	lanes = s.StartWork()

	s.Eventually("the outcome that nobody takes has ended by itself", func() (bool, error) {
		return strings.Contains(lanes.Log(), "outcome refused for good") && strings.Contains(lanes.Log(), "not_visible"), nil
	})
	// told waits until the operator sees why no job is taken.
	told := func(words string) string {
		t.Helper()
		var list string
		s.Eventually("the operator is told: "+words, func() (bool, error) {
			var err error
			list, err = b.try("agentctl attempts list")
			return err == nil && strings.Contains(list, "no job is taken") && strings.Contains(list, words), nil
		})
		if strings.Contains(list, "terminal_held") {
			t.Errorf("what ended by itself is still listed:\n%s", list)
		}
		return list
	}
	// The one that ran at the backup ends as it had, by the bytes that were kept.
	finished(t, s, running, "hold running")
	s.VerifyReceipts(running)
	reference := s.Job(running).Attempts[0].Attempt
	var sent [][]byte
	for _, e := range s.Proxy.Exchanges() {
		if strings.HasSuffix(e.Path, reference+"/complete") {
			sent = append(sent, e.Body)
		}
	}
	sameBytes(t, sent, 2) // to the service that is gone, and to the restored one
	// Those that were open are not taken, a new one is.
	finished(t, s, s.Submit("after"), "after")
	if list := told("has a confirmed result"); !strings.Contains(list, waiting) && !strings.Contains(list, again) {
		t.Errorf("the operator sees:\n%s", list)
	}
	finished(t, s, before, "before")
	keys := map[string]string{}
	for _, job := range []string{waiting, again} {
		log := lanes.Log()
		at := strings.Index(log, "att."+job+".")
		if at < 0 || !strings.Contains(log, "the service lost an attempt at it") {
			t.Fatalf("the log does not tell of job %s", job)
		}
		keys[job] = strings.FieldsFunc(log[at:], func(r rune) bool { return strings.ContainsRune("\" \n", r) })[0]
		if j := s.Job(job); j.State != api.JobOpen || len(j.Attempts) != 0 {
			t.Errorf("job %s is %s, %+v", job, j.State, j.Attempts)
		}
	}

	// What the store holds of an end, and what ends the job.
	record := b.run("agentctl attempts export KEY", "KEY", keys[waiting])
	if !exported(t, record, answerTo("waiting")) {
		t.Errorf("the export of %s does not hold its result", keys[waiting])
	}
	b.run("agentctl jobs cancel JOB", "JOB", waiting)
	if j := s.Job(waiting); j.State != api.JobCancelled || j.Result != nil {
		t.Errorf("job %s is %s", waiting, j.State)
	}
	if !strings.Contains(b.run("agentctl jobs list"), again) {
		t.Error("the list of jobs has not the one that is left")
	}
	for digest, n := range s.Trace() {
		if n != 1 {
			t.Errorf("%d executions of %s", n, digest)
		}
	}
	for command, verb := range map[string][]string{
		"runuser -u quittance-controller -- controller token create --principal WHO": {"token", "create", "--principal", "somebody"},
		"runuser -u quittance-controller -- controller hostkey add KEY":              {"hostkey", "add", s.Lab.HostKey},
	} {
		if !strings.Contains(b.page, "`"+command+"`") {
			t.Errorf("the runbook has no command %s", command)
		}
		s.Command(verb...)
	}

	// The operator decides that what is left may run again.
	lanes.Stop()
	if !strings.Contains(b.page, "controller store rotate --aside /var/lib/quittance-controller/attempts.old`") {
		t.Error("the runbook has no rotation")
	}
	s.Flag("--provider-generation", "2")
	s.Command("store", "rotate", "--mode", "work", "--provider-api", s.Origin(), "--aside", filepath.Join(s.StateDir(), "attempts.old"))
	lanes = s.StartWork()
	finished(t, s, again, "again")
	if n := s.Executions(); n != 8 {
		t.Errorf("%d executions, want 8: the one of each of seven jobs, and one decided by a person", n)
	}
	s.AwaitReleased()
	lanes.Stop()
	if report := s.Command("store", "check"); strings.Contains(report, "active ") {
		t.Errorf("something is left:\n%s", report)
	}
}

// exported reports whether a record holds the result, in the exact body of its
// COMPLETE.
func exported(t *testing.T, record, result string) bool {
	t.Helper()
	for word := range strings.FieldsFuncSeq(record, func(r rune) bool { return r == '"' }) {
		if body, err := base64.StdEncoding.DecodeString(word); err == nil && bytes.Contains(body, []byte(base64.StdEncoding.EncodeToString([]byte(result)))) {
			return true
		}
	}
	return false
}
