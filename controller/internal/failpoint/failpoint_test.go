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

	"github.com/quittance/quittance/controller/internal/attempt"
)

// Every place is named once, listed once, and passed somewhere in the
// controller: a row of the crash matrix that can never strike would wait for
// nothing.
func TestEveryPointIsPassed(t *testing.T) {
	file, err := parser.ParseFile(token.NewFileSet(), "doc.go", nil, 0)
	if err != nil {
		t.Fatal(err)
	}
	passed := map[string]bool{} // by constant
	states := map[Point]bool{}
	for _, s := range []attempt.State{
		attempt.StateStartPending, attempt.StateAcknowledged, attempt.StateTerminalPending, attempt.StateTerminalConfirmed,
		attempt.StateTerminalHeld, attempt.StateSuppressed, attempt.StateEnded,
	} {
		states[Record(string(s))] = true
	}
	for _, d := range file.Decls {
		g, ok := d.(*ast.GenDecl)
		if !ok || g.Tok != token.CONST {
			continue
		}
		for _, spec := range g.Specs {
			v := spec.(*ast.ValueSpec)
			// The journal passes those of the states.
			name := Point(strings.Trim(v.Values[0].(*ast.BasicLit).Value, `"`))
			passed[v.Names[0].Name] = states[name]
			delete(states, name)
		}
	}
	for name := range states {
		t.Errorf("%s has no constant", name)
	}
	listed := Points()
	if len(listed) != len(passed) || len(slices.Compact(slices.Sorted(slices.Values(listed)))) != len(passed) {
		t.Errorf("%d constants, %d points listed", len(passed), len(listed))
	}
	journal := false
	err = filepath.WalkDir("../..", func(path string, entry fs.DirEntry, err error) error {
		if err != nil || entry.IsDir() || !strings.HasSuffix(path, ".go") || strings.HasSuffix(path, "_test.go") {
			return err
		}
		source, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		for name := range passed {
			if strings.Contains(string(source), "failpoint.Hit(failpoint."+name+")") {
				passed[name] = true
			}
		}
		journal = journal || strings.Contains(string(source), "failpoint.Hit(failpoint.Record(string(entry.Record.State())))")
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	if !journal {
		t.Error("no place is passed when a record has become durable")
	}
	for name, ok := range passed {
		if !ok {
			t.Errorf("nothing passes %s", name)
		}
	}
}
