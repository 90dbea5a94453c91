package failpoint

import (
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// Every place is named once, listed once, and passed somewhere in the agent: a
// row of the crash matrix that can never strike would wait for nothing.
func TestEveryPointIsPassed(t *testing.T) {
	file, err := parser.ParseFile(token.NewFileSet(), "doc.go", nil, 0)
	if err != nil {
		t.Fatal(err)
	}
	named := map[string]bool{} // by constant
	for _, d := range file.Decls {
		g, ok := d.(*ast.GenDecl)
		if !ok || g.Tok != token.CONST {
			continue
		}
		for _, spec := range g.Specs {
			for _, name := range spec.(*ast.ValueSpec).Names {
				named[name.Name] = false
			}
		}
	}
	listed := Points()
	if len(listed) != len(named) || len(slices.Compact(slices.Sorted(slices.Values(listed)))) != len(named) {
		t.Errorf("%d constants, %d points listed", len(named), len(listed))
	}
	err = filepath.WalkDir("../..", func(path string, entry fs.DirEntry, err error) error {
		if err != nil || entry.IsDir() || !strings.HasSuffix(path, ".go") || strings.HasSuffix(path, "_test.go") {
			return err
		}
		source, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		for name := range named {
			if strings.Contains(string(source), "failpoint.Hit(failpoint."+name+")") {
				named[name] = true
			}
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	for name, passed := range named {
		if !passed {
			t.Errorf("nothing passes %s", name)
		}
	}
}
