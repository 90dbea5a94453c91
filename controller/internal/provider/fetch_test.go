package provider

import (
	"bytes"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/quittance/quittance/controller/api"
	"github.com/quittance/quittance/protocol"
)

var payload = bytes.Repeat([]byte("0123456789abcdef"), 8<<10) // 128 KiB

func payloadGrant(p *peer) api.Grant {
	return api.Grant{Upload: testUpload, URL: "http://" + p.listener.Addr().String() + "/store/v1/uploads/" + testUpload,
		Bearer: "bearer-s3cret", Length: int64(len(payload)), SHA256: protocol.DigestOf(payload)}
}

func storeHead(extra ...string) string {
	return "HTTP/1.1 200 OK\r\n" + strings.Join(append([]string{
		"Content-Type: application/octet-stream", "Cache-Control: no-store",
		"Content-Length: " + itoa(len(payload)), "Content-Digest: " + digestField(protocol.DigestOf(payload)),
	}, extra...), "\r\n") + "\r\n\r\n"
}

func privateDir(t *testing.T) string {
	t.Helper()
	dir := filepath.Join(t.TempDir(), "uploads")
	if err := os.Mkdir(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	return dir
}

// A whole transfer: a private file at its start, verified, and only the bearer
// sent.
func TestFetch(t *testing.T) {
	for _, secure := range []bool{false, true} {
		p := newPeer(t, secure, says(storeHead()+string(payload)))
		dir := privateDir(t)
		grant := payloadGrant(p)
		if secure {
			grant.URL = "https" + strings.TrimPrefix(grant.URL, "http")
		}
		budget := NewBudget(int64(len(payload)), 1)
		file, err := p.client().Fetch(background(), grant, dir, budget)
		if err != nil {
			t.Fatal(err)
		}
		got, err := io.ReadAll(file.File)
		if err != nil || !bytes.Equal(got, payload) || file.Length != int64(len(payload)) || file.SHA256 != protocol.DigestOf(payload) {
			t.Errorf("read %d bytes, %v", len(got), err)
		}
		info, err := os.Stat(file.Path)
		if err != nil || info.Mode().Perm() != 0o600 || filepath.Dir(file.Path) != dir {
			t.Errorf("%v, %v", info, err)
		}
		if bytesLeft, requests := budget.Left(); bytesLeft != 0 || requests != 0 {
			t.Errorf("left %d bytes, %d requests", bytesLeft, requests)
		}
		request := p.allClosed(1)[0].requests[0]
		if request.Header.Get("Authorization") != "Bearer bearer-s3cret" {
			t.Error("no bearer was sent")
		}
		for _, name := range []string{"Signature", "Signature-Input", api.HeaderVersion, "Cookie"} {
			if request.Header.Get(name) != "" {
				t.Errorf("the store got %s", name)
			}
		}
		if err := file.Discard(); err != nil {
			t.Error(err)
		}
		if names, err := os.ReadDir(dir); err != nil || len(names) != 0 {
			t.Errorf("left %v, %v", names, err)
		}
		if err := file.Discard(); err != nil {
			t.Errorf("a second discard: %v", err)
		}
	}
}

// Anything but the exact answer is refused, nothing is left on disk, and what
// was received is charged.
func TestFetchRefusals(t *testing.T) {
	wrong := bytes.Clone(payload)
	wrong[len(wrong)-1] ^= 1
	length := "Content-Length: " + itoa(len(payload))
	replace := func(old, new string) string { return strings.Replace(storeHead(), old, new, 1) + string(payload) }
	for name, row := range map[string]struct {
		script  func(*peerConn)
		class   Class
		repeat  bool
		charged bool // bytes of the body
	}{
		"404":                {says("HTTP/1.1 404 X\r\nContent-Length: 0\r\n\r\n"), ClassMalformed, false, false},
		"503":                {says("HTTP/1.1 503 X\r\nContent-Length: 0\r\n\r\n"), ClassUnavailable, true, false},
		"206":                {says(replace("200 OK", "206 Partial")), ClassMalformed, false, false},
		"redirect":           {says("HTTP/1.1 302 X\r\nLocation: http://127.0.0.1:1/\r\nContent-Length: 0\r\n\r\n"), ClassMalformed, false, false},
		"chunked":            {says(replace(length, "Transfer-Encoding: chunked")), ClassMalformed, false, false},
		"no length":          {says(replace(length+"\r\n", "")), ClassMalformed, false, false},
		"two lengths":        {says(replace(length, length+"\r\nContent-Length: 1")), ClassMalformed, false, false},
		"shorter":            {says(replace(length, "Content-Length: 10")), ClassMalformed, false, false},
		"longer":             {says(replace(length, "Content-Length: 99999999")), ClassMalformed, false, false},
		"no digest":          {says(replace("Content-Digest", "X-Digest")), ClassMalformed, false, false},
		"other digest":       {says(replace(digestField(protocol.DigestOf(payload)), digestField(protocol.DigestOf(wrong)))), ClassMalformed, false, false},
		"other type":         {says(replace("application/octet-stream", "image/png")), ClassMalformed, false, false},
		"cacheable":          {says(replace("no-store", "public")), ClassMalformed, false, false},
		"encoded":            {says(storeHead("Content-Encoding: gzip") + string(payload)), ClassMalformed, false, false},
		"other bytes":        {says(storeHead() + string(wrong)), ClassMismatch, false, true},
		"cut":                {ends(storeHead() + string(payload[:len(payload)/2])), ClassLost, true, true},
		"stalls in the body": {says(storeHead() + string(payload[:len(payload)-1])), ClassTimeout, true, true},
		"no answer":          {ends(""), ClassLost, true, false},
	} {
		t.Run(name, func(t *testing.T) {
			dir := privateDir(t)
			const room = 1 << 20
			var (
				p      *peer
				budget *Budget
				file   *PrivateFile
				err    error
			)
			try := func(timeout time.Duration) {
				p, budget = newPeer(t, false, row.script), NewBudget(room, 5)
				c := p.client(func(cfg *Config) { cfg.FetchTimeout = timeout })
				file, err = c.Fetch(background(), payloadGrant(p), dir, budget)
			}
			if row.class != ClassTimeout {
				try(20 * time.Second)
			} else {
				for timeout, left := 300*time.Millisecond, int64(room); left == room && timeout < 30*time.Second; timeout *= 4 {
					try(timeout) // again where the machine stood still before the body came
					left, _ = budget.Left()
				}
			}
			f := failure(t, err)
			if file != nil || f.Class != row.class || f.Repeat != row.repeat || f.Disposition != protocol.Refused {
				t.Errorf("got %v, repeat %v", f, f.Repeat)
			}
			if names, err := os.ReadDir(dir); err != nil || len(names) != 0 {
				t.Errorf("left %v, %v", names, err)
			}
			left, requests := budget.Left()
			if requests != 4 || (left < room) != row.charged {
				t.Errorf("left %d bytes, %d requests", left, requests)
			}
			if strings.Contains(fmt.Sprintf("%v %+v", f, f), "s3cret") {
				t.Error("the bearer shows (I37)")
			}
			p.allClosed(1)
		})
	}
}

// The job's own limits keep their identity.
func TestFetchBudget(t *testing.T) {
	p := newPeer(t, false, ends(storeHead()+string(payload[:len(payload)/2])))
	dir, c := privateDir(t), p.client()
	if _, err := c.Fetch(background(), payloadGrant(p), dir, NewBudget(int64(len(payload))-1, 1)); !errors.Is(err, ErrUploadBytes) {
		t.Errorf("too many bytes: %v", err)
	}
	if _, err := c.Fetch(background(), payloadGrant(p), dir, NewBudget(1<<20, 0)); !errors.Is(err, ErrUploadRequests) {
		t.Errorf("too many requests: %v", err)
	}
	p.allClosed(0) // neither was sent
	// Partial bytes count: the third half no longer fits.
	budget := NewBudget(int64(len(payload))*3/2, 9)
	for range 2 {
		if _, err := c.Fetch(background(), payloadGrant(p), dir, budget); errors.Is(err, ErrUploadBytes) || err == nil {
			if left, _ := budget.Left(); left >= int64(len(payload)) {
				t.Fatal(err)
			}
		}
	}
	if _, err := c.Fetch(background(), payloadGrant(p), dir, budget); !errors.Is(err, ErrUploadBytes) {
		t.Errorf("after two halves: %v", err)
	}
}

// A transfer that the job's limit ends, here because others of the job spend the
// budget meanwhile, is no success to whoever counts exchanges.
func TestLimitDuringATransferIsObserved(t *testing.T) {
	budget := NewBudget(int64(len(payload)), 2)
	p := newPeer(t, false, func(c *peerConn) {
		c.read()
		if err := budget.charge(1); err != nil {
			t.Error(err)
		}
		c.say(storeHead() + string(payload))
	})
	var seen []*Failure
	c := p.client(func(cfg *Config) {
		cfg.Observe = func(_ string, f *Failure, _ time.Duration) { seen = append(seen, f) }
	})
	if _, err := c.Fetch(background(), payloadGrant(p), privateDir(t), budget); !errors.Is(err, ErrUploadBytes) {
		t.Errorf("got %v", err)
	}
	if len(seen) != 1 || seen[0] == nil || seen[0].Class != ClassStopped || !errors.Is(seen[0], ErrUploadBytes) {
		t.Errorf("observed %v", seen)
	}
	p.allClosed(1)
}

// The file is made by us in a directory that is only ours, and removed only
// while its name stands for it.
func TestPrivateFiles(t *testing.T) {
	p := newPeer(t, false, says(storeHead()+string(payload)))
	c := p.client()
	open := filepath.Join(t.TempDir(), "open")
	if err := os.Mkdir(open, 0o755); err != nil {
		t.Fatal(err)
	}
	dir := privateDir(t)
	link := filepath.Join(t.TempDir(), "link")
	if err := os.Symlink(dir, link); err != nil {
		t.Fatal(err)
	}
	for _, bad := range []string{open, link, filepath.Join(dir, "missing")} {
		if _, err := c.Fetch(background(), payloadGrant(p), bad, NewBudget(1<<20, 1)); failure(t, err).Class != ClassNotSent {
			t.Errorf("%s: %v", bad, err)
		}
	}
	if err := os.WriteFile(filepath.Join(dir, testUpload), []byte("old"), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := c.Fetch(background(), payloadGrant(p), dir, NewBudget(1<<20, 1)); !errors.Is(err, os.ErrExist) {
		t.Errorf("over an existing file: %v", err)
	}
	p.allClosed(0)
	if err := os.Remove(filepath.Join(dir, testUpload)); err != nil {
		t.Fatal(err)
	}
	file, err := c.Fetch(background(), payloadGrant(p), dir, NewBudget(1<<20, 1))
	if err != nil {
		t.Fatal(err)
	}
	if err := os.Rename(file.Path, file.Path+".moved"); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(file.Path, []byte("stranger"), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := file.Discard(); err == nil {
		t.Error("a stranger's file was not reported")
	}
	if data, err := os.ReadFile(file.Path); err != nil || string(data) != "stranger" {
		t.Errorf("a stranger's file was touched: %q, %v", data, err)
	}
}

// The sum in a digest field is the digest's.
func TestDigestField(t *testing.T) {
	if got, want := digestField(protocol.DigestOf(nil)), "sha-256=:47DEQpj8HBSa+/TImW+5JCeuQeRkm5NMpJWZG3hSuFU=:"; got != want {
		t.Errorf("got %s, want %s (%s)", got, want, hex.EncodeToString([]byte(want)))
	}
}
