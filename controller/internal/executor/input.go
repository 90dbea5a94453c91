package executor

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"math"
	"os"
	"path/filepath"
	"reflect"
	"strconv"

	"github.com/quittance/quittance/controller/api"
	"github.com/quittance/quittance/controller/internal/attempt"
	"github.com/quittance/quittance/controller/internal/offering"
	"github.com/quittance/quittance/controller/internal/provider"
	"github.com/quittance/quittance/controller/internal/retry"
	"github.com/quittance/quittance/controller/internal/worker"
	"github.com/quittance/quittance/protocol"
)

var (
	errSelectionTime = errors.New("the job's limit on selection is reached")
	errInputCalls    = errors.New("the job's limit on input calls is reached")
	// errMembership drops a selection; it is made again from the start.
	errMembership = errors.New("the job's uploads changed while one was fetched")
)

// fetchInput makes the exact input ready: bytes bound to their identity before
// anyone interprets them.
func (r *run) fetchInput(ctx context.Context) error {
	if limit := r.Offering.Limits.SelectionTime; limit > 0 {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeoutCause(ctx, limit, errSelectionTime)
		defer cancel()
	}
	if err := r.Observer.Report(api.ConditionFetchingInput); err != nil {
		return err
	}
	calls := &callCount{limit: r.Offering.Limits.InputCalls}
	step := r.jobInput
	if r.Offering.Input.From == offering.FromUpload {
		step = r.uploadInput
	}
	budget := newBudget(r.Offering.Limits)
	origin := attempt.OriginOf(r.Journal.Record())
	admission, _ := attempt.AdmissionOf(r.Journal.Record())
	err := r.Reads.Do(ctx, func(ctx context.Context) error { return step(ctx, calls, budget) }, repeatable, func(n retry.Notice) {
		r.Log.Warn("input not fetched yet", append(provider.Fields(n.Err), "attempt", r.Journal.Key(), "job", origin.Job, "reference", admission.Reference, "tries", n.Tries, "wait", n.Wait, "error", n.Err)...)
	})
	if cause := context.Cause(ctx); err != nil && errors.Is(cause, errSelectionTime) {
		return errSelectionTime
	}
	return err
}

// repeatable: reads, and a selection made anew. A grant that may have been
// issued is never asked for again as such; the selection starts over.
func repeatable(err error) bool {
	if errors.Is(err, errMembership) || provider.Repeatable(err) {
		return true
	}
	f, ok := errors.AsType[*provider.Failure](err)
	return ok && (f.Operation == api.RouteGrant.Name || f.Operation == api.RouteStore.Name) &&
		f.Class != provider.ClassStopped && f.Class != provider.ClassNotSent
}

func newBudget(l offering.Limits) *provider.Budget {
	bytes, requests := int64(math.MaxInt64), int64(math.MaxInt64)
	if l.UploadBytes > 0 {
		bytes = l.UploadBytes
	}
	if l.UploadRequests > 0 {
		requests = int64(l.UploadRequests)
	}
	return provider.NewBudget(bytes, requests)
}

// callCount bounds the calls that read the job's input.
type callCount struct{ made, limit int }

func (c *callCount) next() error {
	if c.limit > 0 && c.made >= c.limit {
		return errInputCalls
	}
	c.made++
	return nil
}

func (r *run) identity() (job string, want api.Identity) {
	o := attempt.OriginOf(r.Journal.Record())
	return o.Job, api.Identity{Schema: o.Input.Schema, Length: o.Input.Length, SHA256: o.Input.SHA256}
}

func (r *run) jobInput(ctx context.Context, calls *callCount, _ *provider.Budget) error {
	job, want := r.identity()
	if err := calls.next(); err != nil {
		return err
	}
	in, err := r.API.Input(ctx, job, want)
	if err != nil {
		return err
	}
	r.input = worker.MemoryInput(in.Schema, in.Data)
	return nil
}

func (r *run) uploadInput(ctx context.Context, calls *callCount, budget *provider.Budget) error {
	job, _ := r.identity()
	member, before, err := r.member(ctx, calls, job)
	if err != nil {
		return err
	}
	if member.Length > r.Offering.Input.MaxBytes {
		return &worker.Failure{Class: worker.InvalidInput, Detail: fmt.Sprintf("the upload has %d bytes; this offering takes at most %d", member.Length, r.Offering.Input.MaxBytes)}
	}
	if err := calls.next(); err != nil {
		return err
	}
	var grant api.Grant
	admission, _ := attempt.AdmissionOf(r.Journal.Record())
	err = r.Observer.Do(ctx, func(ctx context.Context) (err error) {
		grant, err = r.API.Grant(ctx, job, member, admission.Reference)
		return err
	})
	if err != nil {
		return err
	}
	dir, err := r.privateDir()
	if err != nil {
		return err
	}
	file, err := r.API.Fetch(ctx, grant, dir, budget)
	if err != nil {
		return err
	}
	// Only whether the membership is still the same is asked here: what a changed
	// one means is for the next selection to say, from the start.
	if after, err := r.membership(ctx, calls, job); err != nil || !reflect.DeepEqual(before, after) {
		if err == nil {
			err = errMembership
		}
		return errors.Join(err, file.Discard())
	}
	r.discard = append([]func() error{file.Discard}, r.discard...)
	r.input = worker.Input{ContentType: member.ContentType, Length: file.Length, SHA256: file.SHA256, Bytes: file.File}
	return nil
}

// membership reads the job's uploads, whole.
func (r *run) membership(ctx context.Context, calls *callCount, job string) (api.Uploads, error) {
	if err := calls.next(); err != nil {
		return api.Uploads{}, err
	}
	return r.API.Uploads(ctx, job)
}

// member reads the membership and returns the one upload that the offering
// takes.
func (r *run) member(ctx context.Context, calls *callCount, job string) (api.UploadMember, api.Uploads, error) {
	all, err := r.membership(ctx, calls, job)
	if err != nil {
		return api.UploadMember{}, all, err
	}
	if len(all.Uploads) != 1 {
		return api.UploadMember{}, all, &worker.Failure{
			Class: worker.InvalidInput, Detail: fmt.Sprintf("the job has %d uploads; this kind takes exactly one", len(all.Uploads)),
		}
	}
	return all.Uploads[0], all, nil
}

// privateDir is the attempt's own directory below InputsDir. It is removed,
// once it is empty, with the attempt's files.
func (r *run) privateDir() (string, error) {
	dir := filepath.Join(r.InputsDir, r.Journal.Key())
	err := os.Mkdir(dir, 0o700)
	if errors.Is(err, fs.ErrExist) {
		return dir, nil
	}
	if err == nil {
		r.discard = append(r.discard, func() error { return os.Remove(dir) })
	}
	return dir, err
}

// Sweep removes what attempts of an earlier process left in InputsDir: the
// directories of attempts with the files of uploads in them, except of those
// attempts that keep names, whose allocations may still run. Anything else is
// left alone and named in the error.
func Sweep(dir string, keep func(key string) bool) error {
	entries, err := os.ReadDir(dir)
	if err != nil {
		return err
	}
	var problems []error
	for _, e := range entries {
		path := filepath.Join(dir, e.Name())
		switch {
		case !e.IsDir() || protocol.CheckPurpose(e.Name()) != nil:
			problems = append(problems, fmt.Errorf("%s: is not a directory of an attempt; remove it by hand", path))
		case !keep(e.Name()):
			problems = append(problems, removeFiles(path))
		}
	}
	return errors.Join(problems...)
}

// Discard removes what an earlier process left in dir of one attempt: call it
// once the attempt's allocations are settled. Nothing left is no error.
func Discard(dir, key string) error {
	err := removeFiles(filepath.Join(dir, key))
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	return err
}

// removeFiles removes an attempt's directory with the files of uploads in it.
func removeFiles(path string) error {
	files, err := os.ReadDir(path)
	if err != nil {
		return err
	}
	var problems []error
	for _, f := range files {
		if !f.Type().IsRegular() || !api.ValidUploadID(f.Name()) {
			problems = append(problems, fmt.Errorf("%s: is not the file of an upload; remove it by hand", filepath.Join(path, f.Name())))
			continue
		}
		problems = append(problems, os.Remove(filepath.Join(path, f.Name())))
	}
	return errors.Join(append(problems, os.Remove(path))...)
}

func mebibytes(n int64) string { return strconv.FormatFloat(float64(n)/(1<<20), 'f', 1, 64) + " MiB" }
