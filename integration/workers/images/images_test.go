package images

import (
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/quittance/quittance/protocol"
)

const digest = "sha256:0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef"

func TestPin(t *testing.T) {
	const ref = "quittance.local/ocr@" + digest
	for name, c := range map[string]struct{ in, want string }{
		"unpinned":      {"name = \"ocr\"\nimage = \"quittance.local/ocr\"  # x\n", "name = \"ocr\"\nimage = \"" + ref + "\"  # x\n"},
		"aligned":       {"image   = \"quittance.local/ocr\"\n", "image   = \"" + ref + "\"\n"},
		"pinned before": {"image = \"quittance.local/ocr@sha256:" + strings.Repeat("f", 64) + "\"\n", "image = \"" + ref + "\"\n"},
	} {
		if got, err := Pin([]byte(c.in), ref); err != nil || string(got) != c.want {
			t.Errorf("%s: %q, %v", name, got, err)
		}
	}
	for name, in := range map[string]string{
		"other image": "image = \"quittance.local/langid\"\n",
		"comment":     "# image = \"quittance.local/ocr\"\n",
		"none":        "name = \"ocr\"\n",
	} {
		if _, err := Pin([]byte(in), ref); !errors.Is(err, ErrNoImage) {
			t.Errorf("%s: %v", name, err)
		}
	}
	if _, err := Pin([]byte("image = \"quittance.local/ocr\"\n"), "quittance.local/ocr"); err == nil {
		t.Error("a reference without digest was accepted")
	}
}

// Every shipped profile is pinned by exactly one of the workers' images.
func TestPinShippedProfiles(t *testing.T) {
	files, err := filepath.Glob("../../../packaging/etc/profiles/*.toml")
	if err != nil || len(files) < 3 {
		t.Fatalf("%d profiles, error %v", len(files), err)
	}
	for _, file := range files {
		content, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		pinned := 0
		for _, name := range Names() {
			if _, err := Pin(content, "quittance.local/"+name+"@"+digest); err == nil {
				pinned++
			}
		}
		if pinned != 1 {
			t.Errorf("%s: pinned by %d images", file, pinned)
		}
	}
}

func TestReadRelease(t *testing.T) {
	write := func(content string) string {
		path := filepath.Join(t.TempDir(), "os-release")
		if err := os.WriteFile(path, []byte(content), 0o644); err != nil {
			t.Fatal(err)
		}
		return path
	}
	got, err := readRelease(write("ID=debian\nVERSION_CODENAME=bookworm\n"))
	if err != nil || got != (release{"bookworm", "Debian"}) {
		t.Errorf("%+v, %v", got, err)
	}
	got, err = readRelease(write("VERSION_CODENAME=\"noble\"\nID='ubuntu'\n"))
	if err != nil || got != (release{"noble", "Ubuntu"}) {
		t.Errorf("%+v, %v", got, err)
	}
	if _, err := readRelease(write("ID=other\nVERSION_CODENAME=x\n")); err == nil {
		t.Error("another distribution was accepted")
	}
}

// The static worker's image is the same bytes whenever it is built.
func TestBuildLangidTwice(t *testing.T) {
	first, err := Build(t.Context(), t.TempDir(), "langid")
	if err != nil {
		t.Fatal(err)
	}
	second, err := Build(t.Context(), t.TempDir(), "langid")
	if err != nil {
		t.Fatal(err)
	}
	if first.Written != second.Written || first.Ref != "quittance.local/langid@"+string(first.Digest) {
		t.Errorf("%+v, %+v", first, second)
	}
	content := func(file string) protocol.Digest {
		data, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		return protocol.DigestOf(data)
	}
	if content(first.File) != content(second.File) {
		t.Error("the archives differ")
	}
}

func TestBuildUnknown(t *testing.T) {
	if _, err := Build(t.Context(), t.TempDir(), "nothing"); err == nil || !strings.Contains(err.Error(), "langid, misbehave, ocr") {
		t.Errorf("%v", err)
	}
	if !slices.IsSorted(Names()) {
		t.Errorf("%v", Names())
	}
}
