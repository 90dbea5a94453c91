package provider

import (
	"context"
	"crypto/sha256"
	"encoding/base64"
	"encoding/hex"
	"errors"
	"fmt"
	"hash"
	"io"
	"io/fs"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/quittance/quittance/controller/api"
	"github.com/quittance/quittance/protocol"
)

// Errors of a transfer's budget; the job's own limits, not the service's
// failures.
var (
	ErrUploadBytes    = errors.New("the job's limit on bytes fetched is reached")
	ErrUploadRequests = errors.New("the job's limit on fetches is reached")
)

// Budget counts what a job's transfers cost, failed and partial ones included.
// It may be used from any goroutine.
type Budget struct {
	mu       sync.Mutex
	bytes    int64 // left; guarded by mu
	requests int64 // left; guarded by mu
}

// NewBudget is a budget of bytes and requests.
func NewBudget(bytes, requests int64) *Budget { return &Budget{bytes: bytes, requests: requests} }

// Left is what remains.
func (b *Budget) Left() (bytes, requests int64) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.bytes, b.requests
}

func (b *Budget) request() error {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.requests <= 0 {
		return ErrUploadRequests
	}
	b.requests--
	return nil
}

func (b *Budget) fits(n int64) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	return n <= b.bytes
}

func (b *Budget) charge(n int64) error {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.bytes -= n
	if b.bytes < 0 {
		b.bytes = 0
		return ErrUploadBytes
	}
	return nil
}

var bearerPattern = regexp.MustCompile(`^[A-Za-z0-9._~+/=-]{1,512}$`)

func bearerForm(s string) bool { return bearerPattern.MatchString(s) }

// storeURL parses a grant's URL and refuses one that is not on an allowed
// origin.
func (c *Client) storeURL(s string) (*url.URL, error) {
	u, err := url.Parse(s)
	if err != nil || u.Host == "" || u.User != nil || u.Fragment != "" || u.Opaque != "" {
		return nil, errors.New("the grant's url is out of form")
	}
	if !c.stores[(&url.URL{Scheme: u.Scheme, Host: u.Host}).String()] {
		return nil, errors.New("the grant's url is not on an allowed store origin")
	}
	return u, nil
}

// PrivateFile is a verified upload in a file that only this process can open.
// Whoever needs its bytes reads File, and never opens Path again.
type PrivateFile struct {
	File   *os.File // at offset 0, read and write
	Path   string
	Length int64
	SHA256 protocol.Digest

	device, inode uint64
}

// Fetch transfers the upload of a grant into a new file named after the upload
// in dir, a directory of this user with mode 0700, verifying length and digest
// while it streams. Nothing but the bearer is sent to the store. Every request
// and every byte received is charged to the budget. On any failure the file is
// removed and nothing is handed over.
func (c *Client) Fetch(parent context.Context, grant api.Grant, dir string, budget *Budget) (*PrivateFile, error) {
	target, err := c.storeURL(grant.URL)
	if err == nil && (!api.ValidUploadID(grant.Upload) || !bearerForm(grant.Bearer)) {
		err = errors.New("the grant is out of form")
	}
	if err == nil && (grant.Length < 0 || grant.Length > api.MaxUploadBytes || !grant.SHA256.Valid()) {
		err = errors.New("the grant's length or sha256 is out of bounds")
	}
	if err == nil {
		err = checkPrivate(dir)
	}
	if err != nil {
		return nil, refuse(api.RouteStore, err)
	}
	if !budget.fits(grant.Length) {
		return nil, ErrUploadBytes
	}
	if err := budget.request(); err != nil {
		return nil, err
	}
	file, err := createPrivate(filepath.Join(dir, grant.Upload))
	if err != nil {
		return nil, refuse(api.RouteStore, err)
	}
	began := time.Now()
	err = c.transfer(parent, target, grant, file, budget)
	failure, ok := errors.AsType[*Failure](err)
	if err != nil && !ok { // the job's own limit ended it
		failure = &Failure{Operation: api.RouteStore.Name, Class: ClassStopped, Disposition: protocol.Refused, Cause: err}
	}
	c.observe(api.RouteStore, failure, began)
	if err != nil {
		return nil, errors.Join(err, file.Discard())
	}
	if _, err := file.File.Seek(0, io.SeekStart); err != nil {
		return nil, errors.Join(refuse(api.RouteStore, err), file.Discard())
	}
	return file, nil
}

// transfer makes the exchange with the store and fills the file.
func (c *Client) transfer(parent context.Context, target *url.URL, grant api.Grant, file *PrivateFile, budget *Budget) error {
	ctx, cancel := context.WithTimeout(parent, c.cfg.FetchTimeout)
	defer cancel()
	f := &Failure{Operation: api.RouteStore.Name}
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, target.String(), nil)
	if err != nil {
		return refuse(api.RouteStore, err)
	}
	request.Header.Set("Authorization", "Bearer "+grant.Bearer)
	request.Header.Set("Accept", api.ContentBytes)
	request.Header.Set("User-Agent", c.cfg.UserAgent)
	var got received
	response, closeAll, err := c.open(ctx, request, &got)
	if err != nil {
		return f.transport(parent, ctx, got, err)
	}
	f.take(got)
	if err := checkStoreHead(response, grant); err != nil {
		closeAll(false)
		f.Class, f.Disposition, f.Cause = ClassMalformed, protocol.Refused, err
		if got.status >= 502 && got.status <= 504 {
			f.Class, f.Repeat = ClassUnavailable, true
		}
		return f
	}
	sink := &hashing{file: file.File, sum: sha256.New(), budget: budget}
	n, err := io.Copy(sink, io.LimitReader(response.Body, grant.Length+1))
	got.ended = got.wire.ended.Load()
	closeAll(err == nil)
	switch {
	case sink.err != nil:
		if errors.Is(sink.err, ErrUploadBytes) {
			return sink.err
		}
		return refuse(api.RouteStore, sink.err)
	case err != nil:
		return f.transport(parent, ctx, got, err)
	case parent.Err() != nil || ctx.Err() != nil: // no late hand-over
		return f.transport(parent, ctx, got, context.Cause(ctx))
	case n != grant.Length || protocol.Digest("sha256:"+hex.EncodeToString(sink.sum.Sum(nil))) != grant.SHA256:
		f.Class, f.Disposition, f.Cause = ClassMismatch, protocol.Refused, errors.New("the bytes are not those that the grant describes")
		return f
	}
	file.Length, file.SHA256 = n, grant.SHA256
	return nil
}

// transport fills in a failure without a whole answer. A read has no effect, so
// its disposition is always refused.
func (f *Failure) transport(parent, bounded context.Context, got received, err error) *Failure {
	f.Class, _, f.Repeat = classifyTransport(parent, bounded, got, err)
	f.Disposition, f.Cause = protocol.Refused, transportError{err, got.ended}
	return f
}

// checkStoreHead refuses an answer before a byte of it counts.
func checkStoreHead(r *http.Response, grant api.Grant) error {
	h := r.Header
	switch {
	case r.StatusCode != http.StatusOK:
		return errors.New("the store did not answer 200")
	case len(r.TransferEncoding) != 0 || len(h.Values("Content-Encoding")) != 0:
		return errors.New("the store's answer is encoded")
	case len(h.Values("Content-Length")) != 1 || h.Get("Content-Length") != strconv.FormatInt(grant.Length, 10):
		return errors.New("the store's Content-Length is not the grant's length")
	case len(h.Values(api.HeaderContentDigest)) != 1 || h.Get(api.HeaderContentDigest) != digestField(grant.SHA256):
		return errors.New("the store's Content-Digest is not the grant's")
	case len(h.Values("Content-Type")) != 1 || h.Get("Content-Type") != api.ContentBytes:
		return errors.New("the store's Content-Type is not " + api.ContentBytes)
	case len(h.Values("Cache-Control")) != 1 || h.Get("Cache-Control") != "no-store":
		return errors.New("the store's Cache-Control is not no-store")
	}
	return nil
}

// digestField is the Content-Digest field of a digest.
func digestField(d protocol.Digest) string {
	sum, err := hex.DecodeString(d.Hex())
	if err != nil {
		return ""
	}
	return "sha-256=:" + base64.StdEncoding.EncodeToString(sum) + ":"
}

// hashing writes to a file, hashes and charges.
type hashing struct {
	file   *os.File
	sum    hash.Hash
	budget *Budget
	err    error // of our own side
}

// Write implements [io.Writer].
func (s *hashing) Write(p []byte) (int, error) {
	if s.err = s.budget.charge(int64(len(p))); s.err != nil {
		return 0, s.err
	}
	s.sum.Write(p)
	n, err := s.file.Write(p)
	s.err = err
	return n, err
}

// checkPrivate refuses a directory that others could reach into.
func checkPrivate(dir string) error {
	info, err := os.Lstat(dir)
	if err != nil {
		return err
	}
	owner, ok := info.Sys().(*syscall.Stat_t)
	if !info.IsDir() || info.Mode().Perm() != 0o700 || !ok || int(owner.Uid) != os.Geteuid() {
		return fmt.Errorf("%s must be a directory of this user with mode 0700", dir)
	}
	return nil
}

// createPrivate makes a new file and remembers which one it is.
func createPrivate(path string) (*PrivateFile, error) {
	file, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE|os.O_EXCL|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0o600)
	if err != nil {
		return nil, err
	}
	var st unix.Stat_t
	if err := unix.Fstat(int(file.Fd()), &st); err != nil {
		return nil, errors.Join(err, file.Close(), os.Remove(path))
	}
	return &PrivateFile{File: file, Path: path, device: st.Dev, inode: st.Ino}, nil
}

// Discard closes the file and removes its name, but only while the name still
// stands for this file. A name that is gone is no error.
func (p *PrivateFile) Discard() error {
	err := p.File.Close()
	if errors.Is(err, os.ErrClosed) {
		err = nil
	}
	var st unix.Stat_t
	statErr := unix.Lstat(p.Path, &st)
	switch {
	case errors.Is(statErr, fs.ErrNotExist):
		return err
	case statErr != nil:
		return errors.Join(err, statErr)
	case st.Dev != p.device || st.Ino != p.inode:
		return errors.Join(err, fmt.Errorf("%s is another file now and was left alone", p.Path))
	}
	return errors.Join(err, os.Remove(p.Path))
}
