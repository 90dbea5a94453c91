package executor

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hashicorp/go-hclog"

	"github.com/quittance/quittance/controller/api"
	"github.com/quittance/quittance/controller/internal/attempt"
	"github.com/quittance/quittance/controller/internal/observer"
	"github.com/quittance/quittance/controller/internal/offering"
	"github.com/quittance/quittance/controller/internal/outcome"
	"github.com/quittance/quittance/controller/internal/provider"
	"github.com/quittance/quittance/controller/internal/retry"
	"github.com/quittance/quittance/protocol"
)

const job = "job-00000000000000000000000000000001"

// source is a job service as the input step sees it.
type source struct {
	uploads []api.Uploads // one per reading; the last one stays
	grants  int
	grant   error
	fetches int
	fetch   error
	input   error
	inputs  int
}

func (s *source) Input(context.Context, string, api.Identity) (api.Input, error) {
	s.inputs++
	return api.Input{Schema: "text/plain", Data: []byte("x")}, s.input
}

func (s *source) Uploads(context.Context, string) (api.Uploads, error) {
	all := s.uploads[0]
	if len(s.uploads) > 1 {
		s.uploads = s.uploads[1:]
	}
	return all, nil
}

func (s *source) Grant(context.Context, string, api.UploadMember, string) (api.Grant, error) {
	s.grants++
	return api.Grant{}, s.grant
}

func (s *source) Fetch(context.Context, api.Grant, string, *provider.Budget) (*provider.PrivateFile, error) {
	s.fetches++
	return nil, s.fetch
}

// steady is an observer that allows everything.
type steady struct{ ctx context.Context }

func (o steady) Context() context.Context                                         { return o.ctx }
func (o steady) Stopped() *observer.Stop                                          { return nil }
func (o steady) Fresh() error                                                     { return nil }
func (o steady) Enter(api.Phase) error                                            { return nil }
func (o steady) Report(api.Condition) error                                       { return nil }
func (o steady) Do(ctx context.Context, effect func(context.Context) error) error { return effect(ctx) }

// still is a record that nothing moves.
type still struct{}

func (still) Key() string { return "att.x" }

func (still) Record() attempt.Record {
	return attempt.Acknowledged{Origin: attempt.Origin{Job: job, Input: attempt.Input{Schema: "text/plain", Length: 1, SHA256: protocol.DigestOf([]byte("x"))}}}
}

func (still) Apply(context.Context, attempt.Event) error { return errors.New("not in these tests") }

func newInput(t *testing.T, s *source, from offering.Source) *run {
	t.Helper()
	return &run{
		Config: Config{API: s, Log: hclog.NewNullLogger(), InputsDir: t.TempDir(), Reads: retry.Policy{Window: time.Hour, Initial: time.Second, Max: time.Minute}},
		Job: Job{Journal: still{}, Observer: steady{t.Context()}, Offering: &offering.Offering{
			Input: offering.Input{ContentType: "text/plain", From: from, MaxBytes: 10},
		}},
	}
}

func member(n int, length int64) api.Uploads {
	var all api.Uploads
	for range n {
		all.Uploads = append(all.Uploads, api.UploadMember{Upload: "up-1", ContentType: "text/plain", Length: length})
	}
	return all
}

// code is what the submitter would be told of an error of the input step.
func code(r *run, ctx context.Context, err error) api.FailureCode {
	var f *outcome.Failure
	_, f, err = r.failed(ctx, err)
	if err != nil {
		return api.FailureCode("fatal: " + err.Error())
	}
	return f.Code
}

var (
	lost      = &provider.Failure{Operation: api.RouteInput.Name, Class: provider.ClassLost, Repeat: true}
	malformed = &provider.Failure{Operation: api.RouteInput.Name, Class: provider.ClassMalformed}
	noGrant   = &provider.Failure{Operation: api.RouteGrant.Name, Class: provider.ClassLost, Disposition: protocol.Unknown}
	cut       = &provider.Failure{Operation: api.RouteStore.Name, Class: provider.ClassMismatch}
)

// Limits end the job with their own code; operational failures never become the
// job's fault; a grant or transfer that failed starts the selection over.
func TestInputFailures(t *testing.T) {
	for name, row := range map[string]struct {
		from   offering.Source
		source source
		limits offering.Limits
		want   api.FailureCode
	}{
		"no upload":                     {offering.FromUpload, source{uploads: []api.Uploads{member(0, 0)}}, offering.Limits{}, api.FailInvalidInput},
		"two uploads":                   {offering.FromUpload, source{uploads: []api.Uploads{member(2, 1)}}, offering.Limits{}, api.FailInvalidInput},
		"an upload that is too large":   {offering.FromUpload, source{uploads: []api.Uploads{member(1, 11)}}, offering.Limits{}, api.FailInvalidInput},
		"the limit on calls":            {offering.FromJob, source{input: lost}, offering.Limits{InputCalls: 3}, api.FailInputCalls},
		"the limit on calls, uploads":   {offering.FromUpload, source{uploads: []api.Uploads{member(1, 1)}, grant: noGrant}, offering.Limits{InputCalls: 5}, api.FailInputCalls},
		"the limit on selection":        {offering.FromUpload, source{uploads: []api.Uploads{member(1, 1)}, fetch: cut}, offering.Limits{SelectionTime: time.Minute}, api.FailSelectionTime},
		"the limit on bytes":            {offering.FromUpload, source{uploads: []api.Uploads{member(1, 1)}, fetch: provider.ErrUploadBytes}, offering.Limits{}, api.FailUploadBytes},
		"the limit on fetches":          {offering.FromUpload, source{uploads: []api.Uploads{member(1, 1)}, fetch: provider.ErrUploadRequests}, offering.Limits{}, api.FailUploadRequests},
		"a malformed answer":            {offering.FromJob, source{input: malformed}, offering.Limits{}, api.FailInterrupted},
		"the window of the reads":       {offering.FromJob, source{input: lost}, offering.Limits{}, api.FailInterrupted},
		"a grant that cannot be issued": {offering.FromUpload, source{uploads: []api.Uploads{member(1, 1)}, grant: noGrant}, offering.Limits{}, api.FailInterrupted},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s := row.source
				r := newInput(t, &s, row.from)
				r.Offering.Limits = row.limits
				err := r.fetchInput(t.Context())
				if err == nil {
					t.Fatal("the input was accepted")
				}
				if got := code(r, t.Context(), err); got != row.want {
					t.Fatalf("%s, want %s: %v", got, row.want, err)
				}
				if err := r.discardAll(); err != nil {
					t.Fatal(err)
				}
				left, err := os.ReadDir(r.InputsDir)
				if err != nil || len(left) != 0 {
					t.Fatalf("%v is left, %v", left, err)
				}
			})
		})
	}
}

func TestInputOfTheJob(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := source{}
		r := newInput(t, &s, offering.FromJob)
		if err := r.fetchInput(t.Context()); err != nil || r.input.Length != 1 || r.input.SHA256 != protocol.DigestOf([]byte("x")) || s.inputs != 1 {
			t.Fatalf("%v, %+v", err, r.input)
		}
	})
}

// What an earlier process left is removed by name; anything else is named and
// left alone, and so is what an allocation may still use.
func TestSweep(t *testing.T) {
	dir := t.TempDir()
	upload := "up-" + strings.Repeat("0", 32)
	for path, text := range map[string]string{"att.a/" + upload: "x", "att.c/" + upload: "x", "att.b/" + upload: "x", "att.b/other": "x", "stray": "x"} {
		path = filepath.Join(dir, path)
		if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.Symlink("/etc", filepath.Join(dir, "att.b", "up-"+strings.Repeat("1", 32))); err != nil {
		t.Fatal(err)
	}
	err := Sweep(dir, func(key string) bool { return key == "att.c" })
	for _, name := range []string{"stray", "att.b/other", "att.b/up-1111"} {
		if err == nil || !strings.Contains(err.Error(), name) {
			t.Errorf("%s is not named: %v", name, err)
		}
	}
	for path, want := range map[string]bool{"att.a": false, "att.c/" + upload: true, "att.b/" + upload: false, "att.b/other": true, "stray": true} {
		if _, err := os.Lstat(filepath.Join(dir, path)); (err == nil) != want {
			t.Errorf("%s: exists %v, want %v", path, err == nil, want)
		}
	}
	clean := t.TempDir()
	if err := Sweep(clean, nil); err != nil {
		t.Fatal(err)
	}
	for range 2 { // the second time nothing is left
		if err := Discard(dir, "att.c"); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := os.Lstat(filepath.Join(dir, "att.c")); err == nil {
		t.Error("att.c is left")
	}
}
