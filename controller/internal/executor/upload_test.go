package executor

import (
	"bytes"
	"context"
	"crypto/ed25519"
	"encoding/base64"
	"encoding/hex"
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/quittance/quittance/controller/api"
	"github.com/quittance/quittance/controller/internal/offering"
	"github.com/quittance/quittance/controller/internal/provider"
	"github.com/quittance/quittance/controller/internal/retry"
	"github.com/quittance/quittance/controller/internal/signing"
	"github.com/quittance/quittance/controller/internal/worker"
	"github.com/quittance/quittance/protocol"
)

// store is a real store of uploads behind the real client, with memberships
// and bytes that change under the reader.
type store struct {
	source
	*httptest.Server
	client *provider.Client
	bytes  map[string][]byte   // by upload: what it really holds
	sends  map[string][][]byte // by upload: what is sent instead, the first times
}

func newStore(t *testing.T) *store {
	t.Helper()
	s := &store{bytes: map[string][]byte{}, sends: map[string][][]byte{}}
	s.Server = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		id := filepath.Base(r.URL.Path)
		data := s.bytes[id]
		digest, err := hex.DecodeString(protocol.DigestOf(data).Hex())
		if err != nil {
			t.Error(err)
		}
		w.Header().Set("Content-Type", api.ContentBytes)
		w.Header().Set("Cache-Control", "no-store")
		w.Header().Set(api.HeaderContentDigest, "sha-256=:"+base64.StdEncoding.EncodeToString(digest)+":")
		if instead := s.sends[id]; len(instead) > 0 {
			data, s.sends[id] = instead[0], instead[1:]
		}
		if _, err := w.Write(data); err != nil {
			t.Error(err)
		}
	}))
	t.Cleanup(s.Close)
	_, key, err := ed25519.GenerateKey(nil)
	if err != nil {
		t.Fatal(err)
	}
	signer, err := signing.NewSigner(key, time.Now)
	if err != nil {
		t.Fatal(err)
	}
	s.client, err = provider.New(provider.Config{
		Origin: s.URL, Topology: "test", Signer: signer, UserAgent: "test", Timeout: 50 * time.Second, FetchTimeout: 50 * time.Second,
	})
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// holds puts an upload into the store and returns its membership.
func (s *store) holds(digit string, data []byte) api.UploadMember {
	m := api.UploadMember{Upload: "up-" + strings.Repeat(digit, 32), ContentType: "text/plain", Length: int64(len(data)), SHA256: protocol.DigestOf(data)}
	s.bytes[m.Upload] = data
	return m
}

func (s *store) Grant(_ context.Context, _ string, m api.UploadMember, _ string) (api.Grant, error) {
	s.grants++
	return api.Grant{Upload: m.Upload, URL: s.URL + "/store/" + m.Upload, Bearer: "bearer-0123456789abcdef", Length: m.Length, SHA256: m.SHA256}, nil
}

func (s *store) Fetch(ctx context.Context, g api.Grant, dir string, budget *provider.Budget) (*provider.PrivateFile, error) {
	s.fetches++
	return s.client.Fetch(ctx, g, dir, budget)
}

func members(all ...api.UploadMember) api.Uploads { return api.Uploads{Uploads: all} }

// A changed membership and a corrupted transfer drop the selection, which is
// made again from the start with a new grant; the limits of the job count all
// of it. See TestUploadsAreNotFrozen for what a selection does not see.
func TestUploadSelection(t *testing.T) {
	first, second := []byte("first"), []byte("other")
	for name, row := range map[string]struct {
		prepare func(s *store)
		limits  offering.Limits
		want    []byte // nil: refused
		code    api.FailureCode
		fetches int
	}{
		"steady": {func(s *store) { s.uploads = []api.Uploads{members(s.holds("1", first))} }, offering.Limits{}, first, "", 1},
		"one more appears and goes": {func(s *store) {
			one := s.holds("1", first)
			s.uploads = []api.Uploads{members(one), members(one, s.holds("2", second)), members(one)}
		}, offering.Limits{}, first, "", 2},
		"one more appears and stays": {func(s *store) {
			one := s.holds("1", first)
			s.uploads = []api.Uploads{members(one), members(one, s.holds("2", second))}
		}, offering.Limits{}, nil, api.FailInvalidInput, 1},
		"it goes and comes back": {func(s *store) {
			one := s.holds("1", first)
			s.uploads = []api.Uploads{members(one), members(), members(one)}
		}, offering.Limits{}, first, "", 2},
		"it never rests": {func(s *store) {
			one, other := s.holds("1", first), s.holds("2", second)
			for range 10 {
				s.uploads = append(s.uploads, members(one), members(one, other))
			}
		}, offering.Limits{InputCalls: 9}, nil, api.FailInputCalls, 3},
		"another takes its place": {func(s *store) {
			s.uploads = []api.Uploads{members(s.holds("1", first)), members(s.holds("2", second))}
		}, offering.Limits{}, second, "", 2},
		"other bytes under its name": {func(s *store) {
			one := s.holds("1", first)
			s.bytes[one.Upload] = second // of the same length
			s.uploads = []api.Uploads{members(one), members(s.holds("1", second))}
		}, offering.Limits{}, second, "", 2},
		"corrupted once": {func(s *store) {
			one := s.holds("1", first)
			s.sends[one.Upload] = [][]byte{[]byte("fIrst")}
			s.uploads = []api.Uploads{members(one)}
		}, offering.Limits{}, first, "", 2},
		"corrupted always, requests": {func(s *store) {
			one := s.holds("1", first)
			s.sends[one.Upload] = [][]byte{[]byte("fIrst"), []byte("fIrst"), []byte("fIrst")}
			s.uploads = []api.Uploads{members(one)}
		}, offering.Limits{UploadRequests: 2}, nil, api.FailUploadRequests, 3},
		"corrupted always, bytes": {func(s *store) {
			one := s.holds("1", first)
			s.sends[one.Upload] = [][]byte{[]byte("fIrst"), []byte("fIrst"), []byte("fIrst")}
			s.uploads = []api.Uploads{members(one)}
		}, offering.Limits{UploadBytes: 12}, nil, api.FailUploadBytes, 3},
	} {
		t.Run(name, func(t *testing.T) {
			s := newStore(t)
			row.prepare(s)
			r := newInput(t, &s.source, offering.FromUpload)
			r.API, r.Reads = s, retry.Policy{Window: 10 * time.Second, Initial: time.Millisecond, Max: time.Millisecond}
			r.Offering.Limits = row.limits
			err := r.fetchInput(t.Context())
			if row.want == nil {
				if err == nil || code(r, t.Context(), err) != row.code {
					t.Fatalf("%v, want %s", err, row.code)
				}
			} else if err != nil {
				t.Fatal(err)
			} else if got, err := io.ReadAll(io.NewSectionReader(r.input.Bytes, 0, r.input.Length)); err != nil || !bytes.Equal(got, row.want) || r.input.SHA256 != protocol.DigestOf(row.want) {
				t.Fatalf("%q, %v", got, err)
			}
			if s.fetches != row.fetches || s.grants != row.fetches {
				t.Errorf("%d transfers and %d grants, want %d of each", s.fetches, s.grants, row.fetches)
			}
			if err := r.discardAll(); err != nil {
				t.Fatal(err)
			}
			if left, err := os.ReadDir(r.InputsDir); err != nil || len(left) != 0 {
				t.Fatalf("%v is left, %v", left, err)
			}
		})
	}
}

// liveJob is a job whose uploads change while one of them is fetched.
type liveJob struct {
	*store
	now     []api.UploadMember // the uploads that the job has
	looks   int
	during  func(j *liveJob) // in the middle of a transfer
	arrived func(j *liveJob) // after the last look
}

func (j *liveJob) Uploads(context.Context, string) (api.Uploads, error) {
	j.looks++
	all := members(slices.Clone(j.now)...)
	if j.looks == 2 && j.arrived != nil {
		j.arrived(j)
	}
	return all, nil
}

func (j *liveJob) Fetch(ctx context.Context, g api.Grant, dir string, budget *provider.Budget) (*provider.PrivateFile, error) {
	if j.during != nil {
		j.during(j)
	}
	return j.store.Fetch(ctx, g, dir, budget)
}

// The stated limit: there is no atomic freeze of uploads. A job's uploads are
// looked at before the grant and after the transfer, and nothing holds them
// still between or afterwards. What is added between and is still there is seen:
// the selection is dropped, the bytes that were fetched go to nobody, and the next
// selection, from the start, finds too many. What
// is added between and has gone again, or is added after the last look, is not
// seen: the worker gets the upload that was there at both looks, whole and
// verified, and never the other's bytes or a mixture.
func TestUploadsAreNotFrozen(t *testing.T) {
	first, second := []byte("first"), []byte("other")
	add := func(j *liveJob) { j.now = append(j.now, j.holds("2", second)) }
	for name, row := range map[string]struct {
		during, arrived func(j *liveJob)
		seen            bool
	}{
		"added between the looks":        {during: add, seen: true},
		"added between them and gone":    {during: func(j *liveJob) { add(j); j.now = j.now[:1] }},
		"replaced between them and back": {during: func(j *liveJob) { one := j.now[0]; j.now = nil; add(j); j.now = []api.UploadMember{one} }},
		"added after the last look":      {arrived: add},
		"replaced after the last look":   {arrived: func(j *liveJob) { j.now = nil; add(j) }},
		"removed after the last look":    {arrived: func(j *liveJob) { j.now = nil }},
	} {
		t.Run(name, func(t *testing.T) {
			j := &liveJob{store: newStore(t), during: row.during, arrived: row.arrived}
			j.now = []api.UploadMember{j.holds("1", first)}
			r := newInput(t, &j.source, offering.FromUpload)
			r.API, r.Reads = j, retry.Policy{Window: 10 * time.Second, Initial: time.Millisecond, Max: time.Millisecond}
			err := r.fetchInput(t.Context())
			if row.seen {
				failure, ok := errors.AsType[*worker.Failure](err)
				if !ok || failure.Class != worker.InvalidInput || failure.Detail != "the job has 2 uploads; this kind takes exactly one" || r.input.Bytes != nil {
					t.Fatalf("%v, the worker would get %+v", err, r.input)
				}
			} else if err != nil {
				t.Fatal(err)
			} else if got, err := io.ReadAll(io.NewSectionReader(r.input.Bytes, 0, r.input.Length)); err != nil || !bytes.Equal(got, first) || r.input.SHA256 != protocol.DigestOf(first) {
				t.Fatalf("%q, %v", got, err)
			}
			looks := 2
			if row.seen {
				looks = 3 // the next selection's first
			}
			if j.looks != looks || j.grants != 1 || j.fetches != 1 {
				t.Errorf("%d looks, %d grants and %d transfers, want %d, 1 and 1", j.looks, j.grants, j.fetches, looks)
			}
			if err := r.discardAll(); err != nil {
				t.Fatal(err)
			}
			if left, err := os.ReadDir(r.InputsDir); err != nil || len(left) != 0 {
				t.Fatalf("%v is left, %v", left, err)
			}
		})
	}
}

// I4: whoever puts another file or a link where the verified upload lies changes
// nothing of what the worker gets, and what they put there is left alone and
// named.
func TestUploadIsReadThroughWhatWasVerified(t *testing.T) {
	s := newStore(t)
	s.uploads = []api.Uploads{members(s.holds("1", []byte("first")))}
	r := newInput(t, &s.source, offering.FromUpload)
	r.API = s
	if err := r.fetchInput(t.Context()); err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(r.InputsDir, "att.x", "up-"+strings.Repeat("1", 32))
	stranger := filepath.Join(t.TempDir(), "stranger")
	if err := os.WriteFile(stranger, []byte("other"), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Remove(path); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink(stranger, path); err != nil {
		t.Fatal(err)
	}
	got, err := io.ReadAll(io.NewSectionReader(r.input.Bytes, 0, r.input.Length))
	if err != nil || string(got) != "first" {
		t.Fatalf("%q, %v", got, err)
	}
	if err := r.discardAll(); err == nil || !strings.Contains(err.Error(), path) {
		t.Errorf("the link was not named: %v", err)
	}
	if data, err := os.ReadFile(path); err != nil || string(data) != "other" {
		t.Errorf("the link was touched: %q, %v", data, err)
	}
}

// A link where the attempt's own directory should be is not followed.
func TestUploadDirectoryIsNoLink(t *testing.T) {
	s := newStore(t)
	s.uploads = []api.Uploads{members(s.holds("1", []byte("first")))}
	r := newInput(t, &s.source, offering.FromUpload)
	r.API, r.Reads = s, retry.Policy{Window: time.Minute, Initial: time.Millisecond, Max: time.Millisecond}
	elsewhere := t.TempDir()
	if err := os.Symlink(elsewhere, filepath.Join(r.InputsDir, "att.x")); err != nil {
		t.Fatal(err)
	}
	err := r.fetchInput(t.Context())
	if err == nil || code(r, t.Context(), err) != api.FailInterrupted {
		t.Fatalf("%v", err)
	}
	if left, err := os.ReadDir(elsewhere); err != nil || len(left) != 0 {
		t.Fatalf("%v was written, %v", left, err)
	}
}
