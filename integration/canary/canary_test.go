package canary

import (
	"crypto/ed25519"
	"encoding/base64"
	"encoding/hex"
	"encoding/pem"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"golang.org/x/crypto/ssh"
)

const secret = "a canary that\nmust \"not\" sing at all"

// A planted leak is found in every form in which it may show up, wherever it
// stands, and named without its value.
func TestFindsPlantedLeaks(t *testing.T) {
	var s Set
	s.Add("canary", []byte(secret))
	planted := map[string]string{
		"plain":          "before " + secret + " after",
		"in JSON":        fmt.Sprintf(`{"input":%q}`, secret),
		"in hexadecimal": "x=" + hex.EncodeToString([]byte(secret)),
	}
	for shift := range 4 {
		text := strings.Repeat("x", shift) + secret + "tail"
		planted[fmt.Sprintf("in base64, %d bytes in", shift)] = "b=" + base64.StdEncoding.EncodeToString([]byte(text))
		planted[fmt.Sprintf("in base64 of URLs, %d bytes in", shift)] = base64.RawURLEncoding.EncodeToString([]byte(text))
	}
	for name, text := range planted {
		if got := s.In("log", []byte(text)); !slices.Equal(got, []string{"canary in log"}) {
			t.Errorf("%s: %v", name, got)
		}
	}
	for _, clean := range []string{"", "a canary that sings", secret[:20], hex.EncodeToString([]byte(secret[1:]))[1:]} {
		if got := s.In("log", []byte(clean)); len(got) != 0 {
			t.Errorf("%q: found %v", clean, got)
		}
	}
}

// Files are searched, and their names; what may hold a secret may.
func TestUnder(t *testing.T) {
	root := t.TempDir()
	write := func(name, text string) {
		t.Helper()
		path := filepath.Join(root, name)
		if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	key := "0123456789abcdef0123456789abcdef" // an Ed25519 seed, too
	write("host.key", "PRIVATE+KEY+origin+0badcafe+"+base64.StdEncoding.EncodeToString([]byte("\x01"+key))+"\n")
	write("jobs/blobs/aa", secret)
	write("jobs2/aa", secret)
	write("deep/attempts.1/aa", secret)
	write("records/one", "it says "+key+" here")
	write("names/"+key+".tmp", "")
	write("clean", "nothing")
	write("sparse", strings.Repeat("\x00", 3*4096)+"between"+strings.Repeat("\x00", 4089)+hex.EncodeToString([]byte(key)))
	var s Set
	s.Add("input", []byte(secret), "jobs", "*/attempts*")
	if err := s.AddFile("key", root, "host.key"); err != nil {
		t.Fatal(err)
	}
	if s.Len() != 2 {
		t.Fatalf("%d secrets", s.Len())
	}
	got, err := s.Under(root)
	if err != nil {
		t.Fatal(err)
	}
	var want []string
	for _, w := range []string{"input in %s/jobs2/aa", "key in %s/names/" + key + ".tmp", "key in %s/records/one", "key in %s/sparse"} {
		want = append(want, fmt.Sprintf(w, root))
	}
	if slices.Sort(got); !slices.Equal(got, want) {
		t.Errorf("got %v\nwant %v", got, want)
	}
	if got, err := s.Under(root, "jobs2", "names", "records/one"); err != nil || !slices.Equal(slices.Sorted(slices.Values(got)), want[2:]) {
		t.Errorf("without two folders: %v, %v\nwant %v", got, err, want[2:])
	}
}

// The seed of an OpenSSH key is the secret, however it is written.
func TestOpenSSHKey(t *testing.T) {
	_, pair, err := ed25519.GenerateKey(nil)
	if err != nil {
		t.Fatal(err)
	}
	file, err := ssh.MarshalPrivateKey(pair, "comment")
	if err != nil {
		t.Fatal(err)
	}
	root := t.TempDir()
	if err := os.WriteFile(filepath.Join(root, "k"), pem.EncodeToMemory(file), 0o600); err != nil {
		t.Fatal(err)
	}
	var s Set
	if err := s.AddFile("key", root, "k"); err != nil {
		t.Fatal(err)
	}
	if got := s.In("log", []byte("it is "+hex.EncodeToString(pair.Seed()))); len(got) != 1 {
		t.Errorf("the seed was not found: %v", got)
	}
	if got := s.In("log", []byte("public "+base64.StdEncoding.EncodeToString(pair[32:]))); len(got) != 0 {
		t.Errorf("the public key is taken for the secret: %v", got)
	}
	if got, err := s.Under(root); err != nil || len(got) != 0 {
		t.Errorf("the key's own file: %v, %v", got, err)
	}
}

// A secret that chance would find is not searched.
func TestShortSecrets(t *testing.T) {
	var s Set
	s.Add("short", []byte("hello"))
	if s.Len() != 0 {
		t.Error("a short secret was taken")
	}
}
