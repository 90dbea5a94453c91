package command

import (
	"context"
	"errors"
	"fmt"
	"mime"
	"net/http"
	"path/filepath"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/spf13/cobra"

	"github.com/quittance/quittance/cmd/agentctl/internal/exit"
	"github.com/quittance/quittance/cmd/agentctl/internal/jobclient"
	"github.com/quittance/quittance/cmd/agentctl/internal/table"
	"github.com/quittance/quittance/cmd/agentctl/internal/words"
	"github.com/quittance/quittance/cmd/internal/commandline"
	"github.com/quittance/quittance/controller/api"
	"github.com/quittance/quittance/protocol"
)

// watchWait is how long one request for a job's changes waits at the service.
const watchWait = 30 * time.Second

// submission is what "jobs submit" was asked for.
type submission struct {
	kind        string
	files       []string
	text        string
	contentType string
	labels      []string
	attempts    int
	cancelAfter time.Duration
	operation   string
	newIntent   bool
	wait        bool
}

func (a *app) submitCommand() *cobra.Command {
	var s submission
	cmd := &cobra.Command{
		Use:   "submit KIND [FILE ...]",
		Short: "Submit a job and print its id",
		Long: `Submits a job and prints only its id. Each FILE (- reads standard input) becomes
the job's input or an upload, as the offering of its kind wants it; --text gives a
short input in place. With --wait, shows progress on standard error until the job
ends and exits with its verdict.

The request is named by an operation id: repeated with the same --operation-id it
never makes a second job.`,
		Args: commandline.AtLeast(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			s.kind, s.files = args[0], args[1:]
			client, err := a.jobs()
			if err != nil {
				return err
			}
			return a.submit(cmd.Context(), client, s)
		},
	}
	flags := cmd.Flags()
	flags.StringVar(&s.text, "text", "", "the input itself, in place of FILE")
	flags.StringVar(&s.contentType, "content-type", "", "media type of input or uploads (default: the offering's, else by file name)")
	flags.StringArrayVar(&s.labels, "label", nil, "NAME=VALUE, to find the job again; may be repeated")
	flags.IntVar(&s.attempts, "attempts", 0, "how many attempts may be made (default: the service's, 1)")
	flags.DurationVar(&s.cancelAfter, "cancel-after", 0, "cancel the job when it has not ended by then")
	flags.StringVar(&s.operation, "operation-id", "", "names this request (default: a new one)")
	flags.BoolVar(&s.newIntent, "new-intent", false, "a deliberate twin of an equal job")
	flags.BoolVar(&s.wait, "wait", false, "show progress until the job ends")
	return cmd
}

func (a *app) submit(ctx context.Context, client *jobclient.Client, s submission) error {
	job, err := a.prepare(ctx, client, s)
	if err != nil {
		return err
	}
	key := or(s.operation, jobclient.NewOperation())
	answer, err := client.Create(ctx, key, job)
	if err != nil {
		return named(err, key)
	}
	switch {
	case a.json() && !s.wait:
		return a.printJSON(answer)
	case !a.json():
		if err := a.print(answer.Job.Job + "\n"); err != nil {
			return err
		}
	}
	if !s.wait {
		return nil
	}
	return a.follow(ctx, client, answer.Job.Job)
}

// prepare reads the files, uploads those that are uploads, and makes the
// request.
func (a *app) prepare(ctx context.Context, client *jobclient.Client, s submission) (api.CreateJob, error) {
	usage := func(format string, args ...any) (api.CreateJob, error) {
		return api.CreateJob{}, exit.With(exit.Usage, fmt.Errorf(format, args...))
	}
	job := api.CreateJob{Kind: s.kind, NewIntent: s.newIntent}
	if !api.ValidKind(s.kind) {
		return usage("KIND has a form that no kind has")
	}
	for _, text := range s.labels {
		name, value, ok := strings.Cut(text, "=")
		if !ok {
			return usage("--label must be NAME=VALUE")
		}
		job.Labels = append(job.Labels, api.Label{Name: name, Value: value})
	}
	if s.attempts != 0 {
		job.Limits = &api.JobLimits{Attempts: s.attempts}
	}
	if s.cancelAfter != 0 {
		ms := s.cancelAfter.Milliseconds()
		job.CancelAfterMs = &ms
	}
	if s.text != "" && len(s.files) > 0 {
		return usage("give FILE or --text, not both")
	}
	wanted, err := offeringInput(ctx, client, s.kind)
	if err != nil {
		return api.CreateJob{}, err
	}
	switch {
	case s.text != "":
		job.Input = &api.CreateData{Schema: or(s.contentType, wanted.ContentType), Text: &s.text}
	case wanted.From == api.InputFromUpload:
		if job.Uploads, err = a.upload(ctx, client, s, wanted); err != nil {
			return api.CreateJob{}, err
		}
	case len(s.files) == 1:
		if job.Input, err = a.readInput(s.files[0], or(s.contentType, wanted.ContentType)); err != nil {
			return api.CreateJob{}, err
		}
	case len(s.files) > 1:
		return usage("jobs of kind %s take one input, %d files were given", s.kind, len(s.files))
	}
	if err := job.Validate(); err != nil {
		return api.CreateJob{}, exit.With(exit.Usage, err)
	}
	return job, nil
}

// offeringInput reads how jobs of a kind take their input. An unknown kind is
// refused here, before anything is uploaded.
func offeringInput(ctx context.Context, client *jobclient.Client, kind string) (api.HelloInput, error) {
	offerings, err := client.Offerings(ctx)
	if err != nil {
		return api.HelloInput{}, exit.Reading(err)
	}
	var known []string
	for _, o := range offerings.Offerings {
		if o.Kind == kind {
			return o.Input, nil
		}
		known = append(known, o.Kind)
	}
	text := "no provider has announced any kind yet"
	if len(known) > 0 {
		text = "there are " + oneOf(known...)
	}
	return api.HelloInput{}, exit.With(exit.Refused, fmt.Errorf("kind %s is not offered; %s", kind, text))
}

func (a *app) readInput(file, contentType string) (*api.CreateData, error) {
	content, err := readBounded(file, api.MaxInputBytes, a.in)
	if err != nil {
		return nil, fmt.Errorf("input: %w", err)
	}
	data := &api.CreateData{Schema: or(contentType, mediaType(file, content))}
	switch {
	case strings.HasPrefix(data.Schema, "text/") && utf8.Valid(content):
		text := string(content)
		data.Text = &text
	default:
		encoded := api.Bytes(content)
		data.Base64 = &encoded
	}
	return data, nil
}

func (a *app) upload(ctx context.Context, client *jobclient.Client, s submission, wanted api.HelloInput) ([]string, error) {
	if len(s.files) == 0 {
		return nil, exit.With(exit.Usage, fmt.Errorf("jobs of kind %s take a file", s.kind))
	}
	limit := int64(api.MaxUploadBytes)
	if wanted.MaxBytes > 0 {
		limit = min(limit, wanted.MaxBytes)
	}
	var ids []string
	for _, file := range s.files {
		content, err := readBounded(file, limit, a.in)
		if err != nil {
			return nil, fmt.Errorf("upload: %w", err)
		}
		uploaded, err := client.Upload(ctx, or(s.contentType, or(wanted.ContentType, mediaType(file, content))), content)
		if err != nil {
			// A stray upload expires by itself: nothing that matters is unknown.
			return nil, exit.Reading(err)
		}
		ids = append(ids, uploaded.Upload)
	}
	return ids, nil
}

// mediaType guesses a file's media type by its name, else by its content,
// without parameters.
func mediaType(file string, content []byte) string {
	kind := mime.TypeByExtension(filepath.Ext(file))
	if kind == "" {
		kind = http.DetectContentType(content)
	}
	kind, _, _ = strings.Cut(kind, ";")
	return strings.TrimSpace(kind)
}

func (a *app) watchCommand() *cobra.Command {
	return a.onJob("watch", "Follow a job to its end and exit with its verdict", a.follow)
}

// follow shows a job's progress until it ends. Progress goes to standard
// error; the job itself, with -o json, to standard output.
func (a *app) follow(ctx context.Context, client *jobclient.Client, id string) error {
	shown := ""
	job, err := patiently(ctx, a, "job service", func() (api.Job, error) { return client.Job(ctx, id, 0, 0) })
	for {
		if err != nil {
			return exit.Reading(err)
		}
		if line := progress(job); line != shown {
			shown = line
			if _, err := fmt.Fprintf(a.err, "%s  %s\n", words.Time(job.ServiceTime), table.Clean(line)); err != nil {
				return err
			}
		}
		if over(job) {
			if a.json() {
				if err := a.printJSON(job); err != nil {
					return err
				}
			}
			return verdict(job)
		}
		after := job.Version
		job, err = patiently(ctx, a, "job service", func() (api.Job, error) { return client.Job(ctx, id, after, watchWait) })
	}
}

// over reports whether nothing more will happen to a job by itself.
func over(job api.Job) bool {
	if job.CancelPending {
		return false
	}
	return job.State.Terminal() || (job.State == api.JobClosed && job.RunningSince == nil)
}

// progress says in one line where a job stands.
func progress(job api.Job) string {
	text := string(job.State)
	if n := len(job.Attempts); n > 0 && !job.State.Terminal() {
		last := job.Attempts[n-1]
		text += fmt.Sprintf(", attempt %d %s", n, last.State)
		if last.Phase != nil {
			text += ", " + string(*last.Phase)
		}
		if last.Quiet {
			text += ", not heard of for a while"
		}
	}
	if job.Condition != nil && !job.State.Terminal() {
		text += ": " + job.Condition.Message
	}
	if job.State.Terminal() {
		if job.Failure != nil {
			text += ": " + string(job.Failure.Code) + ": " + job.Failure.Text
		}
		if peak := jobPeak(job); peak != "" {
			text += " (peak memory " + peak + ")"
		}
	}
	return text
}

// verdict is the error, and so the exit status, of a job that is over.
func verdict(job api.Job) error {
	code := exit.Failure
	switch job.State {
	case api.JobFinished:
		return nil
	case api.JobFailed:
		code = exit.JobFailed
		if job.Failure != nil && job.Failure.Code == api.FailWorkerOOM {
			code = exit.JobOOM
		}
	case api.JobCancelled:
		code = exit.JobCancelled
	case api.JobExpired:
		code = exit.JobExpired
	}
	why := string(job.State)
	if job.Failure != nil {
		why += " (" + string(job.Failure.Code) + ")"
	}
	return exit.With(code, errors.New("job "+job.Job+" is "+why))
}

// jobReceiptWords says what a receipt that came with a job records.
func jobReceiptWords(r api.JobReceipt) string {
	receipt, err := protocol.DecodeReceipt(r.Leaf)
	if err != nil {
		return "unreadable: " + err.Error()
	}
	return words.Receipt(receipt)
}
