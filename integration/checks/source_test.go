package checks

import (
	"bytes"
	"go/build/constraint"
	"go/format"
	"go/parser"
	"go/token"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

func goFiles(t *testing.T) []string {
	t.Helper()
	return slices.DeleteFunc(files(t), func(f string) bool { return !strings.HasSuffix(f, ".go") })
}

// Every package has exactly one comment, and it says what the package is.
func TestOnePackageComment(t *testing.T) {
	type found struct{ comments, files []string }
	byDir := map[string]*found{}
	for _, f := range goFiles(t) {
		if under(filepath.Dir(f), "deps") || strings.Contains(f, "/testdata/") || strings.HasSuffix(f, "_test.go") {
			continue
		}
		parsed, err := parser.ParseFile(token.NewFileSet(), filepath.Join(root(t), f), nil, parser.PackageClauseOnly|parser.ParseComments)
		if err != nil {
			t.Fatal(err)
		}
		d := byDir[filepath.Dir(f)]
		if d == nil {
			d = &found{}
			byDir[filepath.Dir(f)] = d
		}
		d.files = append(d.files, f)
		if parsed.Doc == nil || isConstraint(parsed.Doc.Text()) {
			continue
		}
		d.comments = append(d.comments, f)
		want := "Package " + parsed.Name.Name + " "
		if parsed.Name.Name == "main" {
			want = "Command "
		}
		if text := parsed.Doc.Text(); !strings.HasPrefix(text, want) {
			t.Errorf("%s: the package comment must begin with %q", f, want)
		}
	}
	for dir, d := range byDir {
		if len(d.comments) != 1 {
			t.Errorf("%s has %d package comments, want 1: %v", dir, len(d.comments), d.comments)
		}
	}
}

func isConstraint(text string) bool { return constraint.IsGoBuild(strings.TrimSpace(text)) }

func TestFormatted(t *testing.T) {
	for _, f := range goFiles(t) {
		data := read(t, f)
		formatted, err := format.Source(data)
		if err != nil {
			t.Errorf("%s: %v", f, err)
			continue
		}
		if !bytes.Equal(data, formatted) {
			t.Errorf("%s is not formatted: gofmt -w %s", f, f)
		}
	}
}

// maxLines keeps files readable in one sitting.
const maxLines = 700

func TestFilesAreSmall(t *testing.T) {
	for _, f := range goFiles(t) {
		if n := bytes.Count(read(t, f), []byte("\n")); n > maxLines {
			t.Errorf("%s has %d lines, more than %d: split it by what it speaks of", f, n, maxLines)
		}
	}
}

// Nothing is left open in what is committed, and nothing names the machine that
// it was made on. The words are put together here so that this file passes.
func TestNoLeftovers(t *testing.T) {
	words := regexp.MustCompile(`\b(` + strings.Join([]string{"TO" + "DO", "FIX" + "ME", "XX" + "X"}, "|") + `)\b|/wo` + `rk/`)
	for _, f := range files(t) {
		if info, err := os.Lstat(filepath.Join(root(t), f)); err != nil || !info.Mode().IsRegular() || f == "LICENSE" || f == "go.sum" {
			continue
		}
		data := read(t, f)
		if bytes.IndexByte(data, 0) >= 0 {
			continue // not text
		}
		for n, line := range strings.Split(string(data), "\n") {
			if found := words.FindString(line); found != "" {
				t.Errorf("%s:%d: contains %q", f, n+1, found)
			}
		}
	}
}

// Every "make TARGET" that a document names exists.
func TestDocumentsNameRealTargets(t *testing.T) {
	targets := map[string]bool{}
	for _, m := range regexp.MustCompile(`(?m)^([a-z][a-z0-9-]*):`).FindAllStringSubmatch(string(read(t, "Makefile")), -1) {
		targets[m[1]] = true
	}
	if !targets["test"] {
		t.Fatal("the Makefile has no target test: this test reads it wrongly")
	}
	named := regexp.MustCompile("`make ([a-z][a-z0-9-]*)[ `]|(?m:^ *make ([a-z][a-z0-9-]*)\\b)")
	for _, f := range files(t) {
		if !strings.HasSuffix(f, ".md") {
			continue
		}
		for _, m := range named.FindAllStringSubmatch(string(read(t, f)), -1) {
			if target := m[1] + m[2]; !targets[target] {
				t.Errorf("%s names make %s, which is no target", f, target)
			}
		}
	}
}
