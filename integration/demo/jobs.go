package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"strings"
	"time"

	"github.com/go-json-experiment/json"

	"github.com/quittance/quittance/cmd/agentctl/command"
	"github.com/quittance/quittance/controller/api"
	"github.com/quittance/quittance/integration/workers/page"
	"github.com/quittance/quittance/protocol"
)

// environment is what agentctl needs to know.
func (n *node) environment() []string {
	return []string{"QUITTANCE_SOCKET=" + n.socket(), "QUITTANCE_API=" + n.api, "QUITTANCE_TOKEN_FILE=" + n.tokenFile()}
}

// ask runs agentctl and returns what it wrote.
func (n *node) ask(ctx context.Context, stdin string, args ...string) (string, error) {
	return call(ctx, nil, stdin, n.environment(), n.program("agentctl"), args...)
}

// agentctl runs agentctl and shows the command and what it wrote.
func (n *node) agentctl(ctx context.Context, lines int, args ...string) error {
	n.show.command(append([]string{"agentctl"}, n.shortened(args)...)...)
	out, err := n.ask(ctx, "", args...)
	if out != "" {
		n.show.output(out, lines)
	}
	return err
}

// shortened leaves the demonstration's directory out of what is shown.
func (n *node) shortened(args []string) []string {
	short := make([]string, len(args))
	for i, arg := range args {
		short[i] = strings.TrimPrefix(arg, n.dir+"/")
	}
	return short
}

// submit submits a job, waits for its end, and returns it. wanted is the exit
// status that it must end with.
func (n *node) submit(ctx context.Context, wanted int, stdin string, args ...string) (api.Job, error) {
	args = append([]string{"jobs", "submit"}, args...)
	n.show.command(append([]string{"agentctl"}, n.shortened(append(args, "--wait"))...)...)
	began := time.Now()
	out, err := n.ask(ctx, stdin, append(args, "--wait", "-o", "json")...)
	status := 0
	if exit, ok := errors.AsType[*exec.ExitError](err); ok {
		status = exit.ExitCode()
	} else if err != nil {
		return api.Job{}, err
	}
	if status != wanted {
		return api.Job{}, fmt.Errorf("exit status %d, expected %d: %w", status, wanted, errors.Join(err, errors.New("see the log")))
	}
	var job api.Job
	if err := api.Decode([]byte(strings.TrimSpace(out)), 1<<20, &job); err != nil {
		return api.Job{}, fmt.Errorf("agentctl's answer: %w", err)
	}
	n.show.say("%s: %s after %s, exit status %d", job.Job, job.State, time.Since(began).Round(10*time.Millisecond), status)
	return job, nil
}

// result reads and decodes a job's result.
func (n *node) result(ctx context.Context, job api.Job, into any) error {
	n.show.command("agentctl", "jobs", "result", job.Job)
	out, err := n.ask(ctx, "", "jobs", "result", job.Job)
	if err != nil {
		return err
	}
	n.secretResult("of "+job.Kind, []byte(out))
	return json.Unmarshal([]byte(out), into)
}

// article is the first article of the Universal Declaration of Human Rights.
const article = "Todos los seres humanos nacen libres e iguales en dignidad y derechos y, dotados como están de razón y " +
	"conciencia, deben comportarse fraternalmente los unos con los otros.\n"

func (n *node) identifyLanguage(ctx context.Context) error {
	n.show.say("%s", strings.TrimSpace(article))
	n.secretInput("text", []byte(article))
	job, err := n.submit(ctx, 0, article, "langid.text.v1", "-")
	if err != nil {
		return err
	}
	var got struct {
		Language   string  `json:"language"`
		Name       string  `json:"name"`
		Script     string  `json:"script"`
		Confidence float64 `json:"confidence"`
		Reliable   bool    `json:"reliable"`
	}
	if err := n.result(ctx, job, &got); err != nil {
		return err
	}
	if got.Language != "spa" || got.Script != "Latin" {
		return fmt.Errorf("the model said %s in %s", got.Language, got.Script)
	}
	n.show.fact("%s (%s), %s script, confidence %.2f", got.Name, got.Language, got.Script, got.Confidence)
	return nil
}

// reading is the OCR worker's answer.
type reading struct {
	Text       string `json:"text"`
	Words      int    `json:"words"`
	Lines      int    `json:"lines"`
	Confidence int    `json:"confidence"`
	Width      int    `json:"width"`
	Height     int    `json:"height"`
}

func (n *node) readPage(ctx context.Context) error {
	file, words, err := n.render("page.png", page.Letter())
	if err != nil {
		return err
	}
	job, err := n.submit(ctx, 0, "", "ocr.page.v1", file)
	if err != nil {
		return err
	}
	var got reading
	if err := n.result(ctx, job, &got); err != nil {
		return err
	}
	n.show.output(got.Text, 4)
	correct := inOrder(strings.Fields(got.Text), page.Letter().Text)
	if correct*100 < words*95 {
		return fmt.Errorf("%d of %d words were read", correct, words)
	}
	if job.MemoryPeak == nil || job.MemoryLimit == nil || job.OOM == nil || job.OOM.Verdict != protocol.VerdictNotKilled {
		return fmt.Errorf("the job lacks its facts: peak %v, limit %v, OOM %v", job.MemoryPeak, job.MemoryLimit, job.OOM)
	}
	n.show.fact("%d of %d words right, confidence %d %%; peak memory %s of %s, kernel OOM: %s", correct, words,
		got.Confidence, mebibytes(*job.MemoryPeak), mebibytes(*job.MemoryLimit), job.OOM.Verdict)
	return nil
}

// inOrder counts the words that stand where the repeated text has them.
func inOrder(got []string, text string) int {
	words := strings.Fields(text)
	right := 0
	for i, word := range got {
		if word == words[i%len(words)] {
			right++
		}
	}
	return right
}

func mebibytes(n int64) string { return fmt.Sprintf("%.1f MiB", float64(n)/(1<<20)) }

// render writes a page into the demonstration's directory.
func (n *node) render(name string, p page.Page) (file string, words int, err error) {
	encoded, words, err := page.Render(p)
	if err != nil {
		return "", 0, err
	}
	file = n.path(name)
	if err := os.WriteFile(file, encoded, 0o644); err != nil {
		return "", 0, err
	}
	n.secretInput(name, encoded, name)
	n.show.say("rendered %s: %d by %d pixels, %d words, %s as PNG", name, p.Width, p.Height, words, mebibytes(int64(len(encoded))))
	return file, words, nil
}

// killPage shows the same worker with a page that does not fit its memory.
func (n *node) killPage(ctx context.Context) error {
	file, _, err := n.render("poster.png", page.Huge())
	if err != nil {
		return err
	}
	job, err := n.submit(ctx, 11, "", "ocr.page-small.v1", file) // 11: kernel OOM
	if err != nil {
		return err
	}
	n.killed = job.Job
	if err := checkKilled(job); err != nil {
		return err
	}
	n.show.fact("the job failed as %s: %s", job.Failure.Code, job.Failure.Text)
	n.show.fact("kernel OOM %s, scope %s, oom_kill %d, peak memory %s of %s", job.OOM.Verdict, *job.OOM.Scope,
		*job.OOM.Counters.OOMKill, mebibytes(*job.MemoryPeak), mebibytes(*job.MemoryLimit))
	n.poster = file
	return n.agentctl(ctx, 20, "jobs", "why", job.Job)
}

// checkKilled checks that a job failed for the kernel's kill and for nothing
// else, with the facts beside it.
func checkKilled(job api.Job) error {
	switch {
	case job.State != api.JobFailed || job.Failure == nil || job.Failure.Code != api.FailWorkerOOM:
		return fmt.Errorf("the job is %s, failure %+v", job.State, job.Failure)
	case job.OOM == nil || job.OOM.Verdict != protocol.VerdictKilled || job.OOM.Scope == nil || *job.OOM.Scope != protocol.ScopeContainer:
		return fmt.Errorf("the verdict is %+v", job.OOM)
	case job.OOM.Counters.OOMKill == nil || *job.OOM.Counters.OOMKill < 1:
		return errors.New("no counter shows the kill")
	case job.MemoryPeak == nil || job.MemoryLimit == nil || *job.MemoryLimit != 64<<20 || *job.MemoryPeak*10 < *job.MemoryLimit*9:
		return errors.New("the peak does not lie at the limit of 64 MiB")
	}
	return nil
}

// showReceipts waits until the history is released, then shows what the host
// signed and verifies it: the whole log as it was followed, and what travels
// with a job.
func (n *node) showReceipts(ctx context.Context) error {
	var head protocol.Index
	released := func() error {
		host, err := n.askHost(ctx)
		if err != nil {
			return err
		}
		if f := host.Frontiers; f.Accepted == 0 || f.Released != f.Accepted {
			return fmt.Errorf("accepted to %s, released to %s", f.Accepted, f.Released)
		}
		head = host.Index.Head
		return nil
	}
	if err := n.await(ctx, n.controller, "release of history", time.Minute, released); err != nil {
		return err
	}
	followed := func() error {
		raw, err := os.ReadFile(n.follower.out)
		if err != nil {
			return err
		}
		if got := protocol.Index(bytes.Count(raw, []byte("\n"))) - 1; got < head {
			return fmt.Errorf("%d of %d receipts", got+1, head+1)
		}
		return nil
	}
	if err := n.await(ctx, n.follower, "following the receipts", 30*time.Second, followed); err != nil {
		return err
	}
	n.show.say("All that the host signed, as agentctl receipts --follow --raw saved it, the released too:")
	if err := n.agentctl(ctx, 60, "receipts", n.follower.out); err != nil {
		return err
	}
	if err := n.checkFollowed(); err != nil {
		return err
	}
	if err := n.agentctl(ctx, 12, "verify", "--key", n.hostKey(), n.follower.out); err != nil {
		return err
	}
	n.show.say("The receipts of the killed job travel with it and verify without the agent:")
	receipts, err := n.ask(ctx, "", "jobs", "receipts", n.killed, "-o", "json")
	if err != nil {
		return err
	}
	if err := os.WriteFile(n.path("job-receipts.json"), []byte(receipts), 0o644); err != nil {
		return err
	}
	if err := n.agentctl(ctx, 12, "verify", "--key", n.hostKey(), n.path("job-receipts.json")); err != nil {
		return err
	}
	if err := n.checkTrust(receipts); err != nil {
		return err
	}
	if err := n.agentctl(ctx, 5, "release-status"); err != nil {
		return err
	}
	return n.agentctl(ctx, 15, "status")
}

func (n *node) askHost(ctx context.Context) (protocol.Host, error) {
	var host protocol.Host
	out, err := n.ask(ctx, "", "status", "-o", "json")
	if err != nil {
		return host, err
	}
	err = protocol.DecodeStrict([]byte(strings.TrimSpace(out)), protocol.MaxAnswerBytes, &host)
	return host, err
}

// checkFollowed checks that the followed receipts tell what happened.
func (n *node) checkFollowed() error {
	raw, err := os.ReadFile(n.follower.out)
	if err != nil {
		return err
	}
	kinds := map[protocol.Kind]int{}
	for line := range bytes.Lines(raw) {
		r, err := protocol.DecodeReceipt(bytes.TrimSuffix(line, []byte("\n")))
		if err != nil {
			return fmt.Errorf("a followed receipt: %w", err)
		}
		kinds[r.Kind]++
	}
	if kinds[protocol.KindAccepted] != 4 || kinds[protocol.KindRetired] != 4 || kinds[protocol.KindConsumed] != 4 ||
		kinds[protocol.KindOOMObserved] == 0 || kinds[protocol.KindReleased] == 0 {
		return fmt.Errorf("the receipts do not tell what happened: %v", kinds)
	}
	return nil
}

// checkTrust checks that the job service itself verified what it shows, and
// that an implementation that shares no code with ours agrees.
func (n *node) checkTrust(text string) error {
	var receipts api.JobReceipts
	if err := api.Decode([]byte(strings.TrimSpace(text)), api.RouteJobReceipts.MaxResponse, &receipts); err != nil {
		return err
	}
	key, err := os.ReadFile(n.hostKey())
	if err != nil {
		return err
	}
	for _, r := range receipts.Receipts {
		if r.Trust != api.TrustVerified {
			return fmt.Errorf("receipt %d is %s at the job service", r.Index, r.Trust)
		}
		if err := verifyIndependently(r, strings.TrimSpace(string(key))); err != nil {
			return fmt.Errorf("receipt %d, independently: %w", r.Index, err)
		}
	}
	n.show.fact("the job service shows all %d of them as verified", len(receipts.Receipts))
	n.show.fact("an independent implementation of RFC 6962 and C2SP verifies them too")
	return nil
}

// lookAround waits with the node running.
func (n *node) lookAround(ctx context.Context) {
	n.show.say("The node stays up until you press Ctrl-C. To look around:")
	for _, line := range n.environment() {
		n.show.say("  export %s", line)
	}
	n.show.say("  export PATH=%s:$PATH      # agentctl %s", n.path("bin"), command.Version)
	n.show.say("  curl --unix-socket $QUITTANCE_SOCKET http://agent/v1/host")
	<-ctx.Done()
}
