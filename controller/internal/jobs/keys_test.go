package jobs

import (
	"bytes"
	"crypto/ed25519"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/hashicorp/go-hclog"

	"github.com/quittance/quittance/controller/internal/signing"
)

// keyLine is a line of a key file and the id of its key.
func keyLine(t *testing.T, provider string) (line, id string) {
	t.Helper()
	public, _, err := ed25519.GenerateKey(nil)
	if err != nil {
		t.Fatal(err)
	}
	if line, err = signing.AuthorizedLine(provider, public); err != nil {
		t.Fatal(err)
	}
	key, err := signing.ParseAuthorizedKey(line)
	if err != nil {
		t.Fatal(err)
	}
	return line + "\n", key.KeyID
}

// A key that was replaced by another line of the same length within one tick of
// the file system's clock is no key any more.
func TestKeyFileEditedWithinOneTick(t *testing.T) {
	path := filepath.Join(t.TempDir(), "keys")
	first, firstID := keyLine(t, "node-1")
	second, secondID := keyLine(t, "node-2")
	tick := time.Now().Add(time.Hour) // the tick of every read of this test, however slow the machine
	write := func(text string) {
		t.Helper()
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		if err := os.Chtimes(path, tick, tick); err != nil {
			t.Fatal(err)
		}
	}
	write(first)
	k, err := newKeys(path, nil, hclog.NewNullLogger())
	if err != nil {
		t.Fatal(err)
	}
	if _, ok := k.inFile(firstID); !ok || len(first) != len(second) {
		t.Fatal("the first key is not there")
	}
	write(second)
	if _, ok := k.inFile(firstID); ok {
		t.Error("a revoked key is taken")
	}
	if _, ok := k.inFile(secondID); !ok {
		t.Error("the new key is not taken")
	}
}

// A file that cannot be read is reported once, not with every request, and again
// only after it could be.
func TestKeyFileProblemIsReportedOnce(t *testing.T) {
	path := filepath.Join(t.TempDir(), "keys")
	line, id := keyLine(t, "node-1")
	if err := os.WriteFile(path, []byte(line), 0o600); err != nil {
		t.Fatal(err)
	}
	var out bytes.Buffer
	k, err := newKeys(path, nil, hclog.New(&hclog.LoggerOptions{Output: &out}))
	if err != nil {
		t.Fatal(err)
	}
	away := path + ".away"
	for round := 1; round <= 2; round++ {
		if err := os.Rename(path, away); err != nil {
			t.Fatal(err)
		}
		for range 3 {
			if _, ok := k.inFile(id); !ok {
				t.Fatal("the last good content does not stand")
			}
		}
		if n := strings.Count(out.String(), "provider_keys_file"); n != round {
			t.Fatalf("reported %d times, want %d:\n%s", n, round, out.String())
		}
		if err := os.Rename(away, path); err != nil {
			t.Fatal(err)
		}
		if _, ok := k.inFile(id); !ok {
			t.Fatal("the key is gone")
		}
	}
}
