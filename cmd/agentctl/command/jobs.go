package command

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"github.com/spf13/cobra"

	"github.com/quittance/quittance/cmd/agentctl/internal/exit"
	"github.com/quittance/quittance/cmd/agentctl/internal/jobclient"
	"github.com/quittance/quittance/cmd/agentctl/internal/table"
	"github.com/quittance/quittance/cmd/agentctl/internal/words"
	"github.com/quittance/quittance/cmd/internal/commandline"
	"github.com/quittance/quittance/controller/api"
)

// Where the job service is, and its first token, unless told otherwise.
const (
	DefaultAPI       = "http://127.0.0.1:8470"
	DefaultTokenFile = "/var/lib/quittance-controller/jobs/first-token"
)

func (a *app) jobsCommand() *cobra.Command {
	jobs := &cobra.Command{
		Use:   "jobs",
		Short: "Submit jobs and follow them",
		Long: `Submits jobs to the job service and follows them. The service's URL comes from
--api or QUITTANCE_API, the token from the file that --token-file or
QUITTANCE_TOKEN_FILE names; a token is never given on the command line.`,
	}
	flags := jobs.PersistentFlags()
	flags.StringVar(&a.api, "api", or(a.env("QUITTANCE_API"), DefaultAPI), "the job service's URL (QUITTANCE_API)")
	flags.StringVar(&a.tokenFile, "token-file", or(a.env("QUITTANCE_TOKEN_FILE"), DefaultTokenFile), "file with the token (QUITTANCE_TOKEN_FILE)")
	jobs.AddCommand(a.submitCommand(), a.listCommand(), a.getCommand(), a.watchCommand(), a.resultCommand(),
		a.jobReceiptsCommand(), a.whyCommand(), a.cancelCommand(), a.retryCommand())
	return jobs
}

// jobs opens a client of the job service.
func (a *app) jobs() (*jobclient.Client, error) {
	token, err := readBounded(a.tokenFile, 4096, nil)
	if err != nil {
		return nil, fmt.Errorf("token: %w; --token-file or QUITTANCE_TOKEN_FILE names its file", err)
	}
	return jobclient.New(a.api, strings.TrimSpace(string(token)))
}

// jobID checks a job's identifier before anything is sent.
func jobID(text string) (string, error) {
	if !api.ValidJobID(text) {
		return "", exit.With(exit.Usage, errors.New("a job's id is job- and 32 hexadecimal digits"))
	}
	return text, nil
}

// onJob is a command on one job.
func (a *app) onJob(use, short string, do func(ctx context.Context, client *jobclient.Client, job string) error) *cobra.Command {
	return &cobra.Command{
		Use: use + " JOB", Short: short, Args: commandline.Exactly(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			job, err := jobID(args[0])
			if err != nil {
				return err
			}
			client, err := a.jobs()
			if err != nil {
				return err
			}
			return do(cmd.Context(), client, job)
		},
	}
}

func (a *app) listCommand() *cobra.Command {
	var filter jobclient.Filter
	var state string
	var limit int
	cmd := &cobra.Command{
		Use: "list", Short: "List jobs, newest first", Args: commandline.Exactly(0),
		RunE: func(cmd *cobra.Command, _ []string) error {
			filter.State = api.JobState(state)
			if limit < 1 {
				return exit.With(exit.Usage, errors.New("--limit must be at least 1"))
			}
			client, err := a.jobs()
			if err != nil {
				return err
			}
			list, err := listJobs(cmd.Context(), client, filter, limit)
			if err != nil {
				return exit.Reading(err)
			}
			if a.json() {
				return a.printJSON(list)
			}
			t := table.New("JOB", "KIND", "STATE", "CAUSE", "CREATED", "PEAK MEMORY", "CONDITION")
			for _, job := range list.Jobs {
				t.Row(job.Job, job.Kind, job.State, cause(job), words.Ago(job.Created, job.ServiceTime), jobPeak(job), condition(job))
			}
			return t.Write(a.out)
		},
	}
	flags := cmd.Flags()
	flags.StringVar(&state, "state", "", "only this state: "+oneOf("open", "closed", "finished", "failed", "cancelled", "expired"))
	flags.StringVar(&filter.Kind, "kind", "", "only this kind")
	flags.StringVar(&filter.Label, "label", "", "only with this label, NAME=VALUE")
	flags.IntVar(&limit, "limit", api.DefaultPageItems, "at most so many")
	return cmd
}

// listJobs reads pages until limit jobs are there. The answer's cursor goes on
// after them.
func listJobs(ctx context.Context, client *jobclient.Client, filter jobclient.Filter, limit int) (api.JobList, error) {
	list := api.JobList{Jobs: []api.Job{}}
	cursor := ""
	for {
		page, err := client.List(ctx, filter, min(limit-len(list.Jobs), api.MaxPageItems), cursor)
		if err != nil {
			return api.JobList{}, err
		}
		list.Jobs = append(list.Jobs, page.Jobs...)
		list.NextCursor, list.Version = page.NextCursor, page.Version
		if page.NextCursor == nil || len(list.Jobs) >= limit {
			return list, nil
		}
		cursor = *page.NextCursor
	}
}

// cause is why a job ended as it did, in a word or two.
func cause(job api.Job) string {
	switch {
	case job.State == api.JobFailed && job.Failure != nil && job.Failure.Code == api.FailWorkerOOM:
		return "kernel OOM"
	case job.Failure != nil:
		return string(job.Failure.Code)
	}
	return ""
}

func jobPeak(job api.Job) string {
	if job.MemoryPeak == nil {
		return ""
	}
	text := words.Bytes(*job.MemoryPeak)
	if job.MemoryLimit != nil {
		text += " of " + words.Bytes(*job.MemoryLimit)
	}
	return text
}

func condition(job api.Job) string {
	if job.Condition == nil {
		return ""
	}
	return string(job.Condition.Code)
}

func (a *app) getCommand() *cobra.Command {
	return a.onJob("get", "Show one job", func(ctx context.Context, client *jobclient.Client, id string) error {
		job, err := client.Job(ctx, id, 0, 0)
		if err != nil {
			return exit.Reading(err)
		}
		return a.showJob(job)
	})
}

func (a *app) showJob(job api.Job) error {
	if a.json() {
		return a.printJSON(job)
	}
	if err := jobFacts(job).Write(a.out); err != nil {
		return err
	}
	if len(job.Attempts) == 0 {
		return nil
	}
	if err := a.print("\n"); err != nil {
		return err
	}
	t := table.New("ATTEMPT", "PROVIDER", "STATE", "PHASE", "ADMITTED", "ALLOCATIONS", "RECEIPTS", "FAILURE")
	for _, at := range job.Attempts {
		state := string(at.State)
		if at.Quiet {
			state += " (quiet)"
		}
		phase := ""
		if at.Phase != nil {
			phase = string(*at.Phase)
		}
		failure := ""
		if at.Failure != nil {
			failure = string(at.Failure.Code)
		}
		numbers := make([]string, len(at.Executions))
		for i, e := range at.Executions {
			numbers[i] = e.Number.String()
		}
		t.Row(at.Attempt, at.Provider, state, phase, words.Time(at.Admitted), strings.Join(numbers, " "),
			fmt.Sprintf("%d, %d verified", at.Receipts.Total, at.Receipts.Verified), failure)
	}
	return t.Write(a.out)
}

func jobFacts(job api.Job) *table.Facts {
	var f table.Facts
	f.Add("job", job.Job)
	f.Add("kind", job.Kind)
	state := string(job.State)
	if job.CancelPending {
		state += " (its attempt has not ended yet)"
	}
	f.Add("state", state)
	f.Add("created", words.Time(job.Created)+" by "+job.CreatedBy)
	for _, at := range job.Times {
		if at.State != api.JobOpen {
			f.Add(string(at.State), words.Time(at.At))
		}
	}
	labels := make([]string, len(job.Labels))
	for i, label := range job.Labels {
		labels[i] = label.Name + "=" + label.Value
	}
	f.Add("labels", strings.Join(labels, " "))
	f.Add("input", fmt.Sprintf("%s, %s", job.Input.Schema, words.Bytes(job.Input.Length)))
	for _, upload := range job.Uploads {
		f.Add("upload", fmt.Sprintf("%s, %s", upload.ContentType, words.Bytes(upload.Length)))
	}
	f.Add("attempts", fmt.Sprintf("%d of %d used", job.AttemptsUsed, job.AttemptLimit))
	if c := job.Condition; c != nil {
		f.Add("condition", c.Message+" "+c.Next)
	}
	if r := job.Result; r != nil {
		f.Add("result", fmt.Sprintf("%s, %s, %s", r.Schema, words.Bytes(r.Length), r.SHA256))
	}
	if x := job.Failure; x != nil {
		f.Add("failure", fmt.Sprintf("%s: %s", x.Code, x.Text))
		f.Add("message", x.Message)
		f.Add("next", x.Next)
	}
	if job.OOM != nil {
		f.Add("kernel OOM", words.OOM(*job.OOM))
	}
	f.Add("peak memory", jobPeak(job))
	return &f
}

func (a *app) resultCommand() *cobra.Command {
	var out string
	cmd := a.onJob("result", "Write a job's result, byte for byte", func(ctx context.Context, client *jobclient.Client, id string) error {
		result, err := client.Result(ctx, id)
		if err != nil {
			return exit.Reading(err)
		}
		switch {
		case out != "":
			return writeWhole(out, result.Bytes)
		case a.terminal:
			return a.print(strings.TrimSuffix(table.CleanLines(string(result.Bytes)), "\n") + "\n")
		}
		_, err = a.out.Write(result.Bytes)
		return err
	})
	cmd.Flags().StringVar(&out, "out", "", "write it to this file")
	return cmd
}

// writeWhole writes a file that appears only whole.
func writeWhole(path string, content []byte) error {
	f, err := os.CreateTemp(filepath.Dir(path), ".agentctl-*")
	if err != nil {
		return err
	}
	_, err = f.Write(content)
	err = errors.Join(err, f.Close())
	if err == nil {
		err = os.Rename(f.Name(), path)
	}
	if err != nil {
		return errors.Join(err, os.Remove(f.Name()))
	}
	return nil
}

func (a *app) jobReceiptsCommand() *cobra.Command {
	return a.onJob("receipts", "List the signed host receipts of a job", func(ctx context.Context, client *jobclient.Client, id string) error {
		receipts, err := client.Receipts(ctx, id)
		if err != nil {
			return exit.Reading(err)
		}
		if a.json() {
			return a.printJSON(receipts)
		}
		t := table.New("INDEX", "NUMBER", "KIND", "TRUST", "WHAT")
		for _, r := range receipts.Receipts {
			t.Row(r.Index, r.Number, r.Kind, r.Trust, jobReceiptWords(r))
		}
		return t.Write(a.out)
	})
}

func (a *app) whyCommand() *cobra.Command {
	return a.onJob("why", "Say what happened to a job, with the evidence", func(ctx context.Context, client *jobclient.Client, id string) error {
		why, err := client.Why(ctx, id)
		if err != nil {
			return exit.Reading(err)
		}
		if a.json() {
			return a.printJSON(why)
		}
		text := table.CleanLines(why.Text) + "\n"
		for _, line := range why.Evidence {
			text += "  - " + table.Clean(line) + "\n"
		}
		return a.print(text)
	})
}

func (a *app) cancelCommand() *cobra.Command {
	return a.onJob("cancel", "Ask that a job stop; again is no error", func(ctx context.Context, client *jobclient.Client, id string) error {
		job, err := client.Cancel(ctx, id)
		if err != nil {
			return err
		}
		return a.showEffect(job)
	})
}

func (a *app) retryCommand() *cobra.Command {
	var operation string
	cmd := a.onJob("retry", "Ask for one more attempt at a failed or quiet job", func(ctx context.Context, client *jobclient.Client, id string) error {
		key := or(operation, jobclient.NewOperation())
		job, err := client.Retry(ctx, key, id)
		if err != nil {
			return named(err, key)
		}
		return a.showEffect(job)
	})
	cmd.Flags().StringVar(&operation, "operation-id", "", "names this request, so that repeating it changes nothing (default: a new one)")
	return cmd
}

// named adds the operation id to an error whose effect is unknown: with it the
// person can repeat exactly this request.
func named(err error, operation string) error {
	if exit.Of(err) != exit.Unknown {
		return err
	}
	return fmt.Errorf("%w\nrepeat exactly this with --operation-id %s", err, operation)
}

func (a *app) showEffect(job api.Job) error {
	if a.json() {
		return a.printJSON(job)
	}
	text := string(job.State)
	if job.CancelPending {
		text += ", its attempt is being stopped"
	}
	return a.print(job.Job + "  " + text + "\n")
}
