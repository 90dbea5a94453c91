package checks

import (
	"bytes"
	"encoding/json"
	"errors"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
)

// command runs a program in the repository's root and returns its output.
func command(t *testing.T, env []string, name string, args ...string) []byte {
	t.Helper()
	var stderr bytes.Buffer
	cmd := exec.CommandContext(t.Context(), name, args...)
	cmd.Dir = root(t)
	cmd.Env = append(os.Environ(), env...)
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("%s %s: %v\n%s", name, strings.Join(args, " "), err, stderr.Bytes())
	}
	return out
}

// try runs a program that may fail and returns all that it said.
func try(t *testing.T, name string, args ...string) (string, error) {
	t.Helper()
	out, err := exec.CommandContext(t.Context(), name, args...).CombinedOutput()
	return string(out), err
}

// root is the repository's root: the folder with go.mod above this one.
func root(t *testing.T) string {
	t.Helper()
	dir, err := filepath.Abs(filepath.Join("..", ".."))
	if err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(filepath.Join(dir, "go.mod")); err != nil {
		t.Fatal(err)
	}
	return dir
}

const module = "github.com/quittance/quittance"

// pkg is what go list says of a package of this module.
type pkg struct {
	ImportPath   string
	Dir          string
	Imports      []string
	TestImports  []string
	XTestImports []string
}

// short is the package's folder below the root.
func (p pkg) short() string {
	return strings.TrimPrefix(strings.TrimPrefix(p.ImportPath, module), "/")
}

var listOnce = sync.OnceValues(func() ([]byte, error) {
	// With every tag of our own, so that no file escapes.
	cmd := exec.Command("go", "list", "-e", "-tags", "engine,crash,e2e,vm,failpoints", "-json=ImportPath,Dir,Imports,TestImports,XTestImports", "./...")
	cmd.Dir = filepath.Join("..", "..")
	return cmd.Output()
})

func packages(t *testing.T) []pkg {
	t.Helper()
	out, err := listOnce()
	if err != nil {
		t.Fatal(err)
	}
	var list []pkg
	decoder := json.NewDecoder(bytes.NewReader(out))
	for {
		var p pkg
		if err := decoder.Decode(&p); errors.Is(err, io.EOF) {
			break
		} else if err != nil {
			t.Fatal(err)
		}
		list = append(list, p)
	}
	if len(list) < 10 {
		t.Fatalf("go list found only %d packages", len(list))
	}
	return list
}

// files are the tracked and the not yet tracked files, without ignored ones,
// relative to the root.
func files(t *testing.T) []string {
	t.Helper()
	out := command(t, nil, "git", "ls-files", "-z", "--cached", "--others", "--exclude-standard")
	var list []string
	for f := range strings.SplitSeq(strings.TrimSuffix(string(out), "\x00"), "\x00") {
		if _, err := os.Lstat(filepath.Join(root(t), f)); err == nil { // not one that was just removed
			list = append(list, f)
		}
	}
	if len(list) < 10 {
		t.Fatalf("git knows only %d files", len(list))
	}
	return list
}

func read(t *testing.T, file string) []byte {
	t.Helper()
	data, err := os.ReadFile(filepath.Join(root(t), file))
	if err != nil {
		t.Fatal(err)
	}
	return data
}
