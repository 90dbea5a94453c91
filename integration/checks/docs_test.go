package checks

import (
	"go/ast"
	"go/parser"
	"go/token"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
)

// constants reads the string constants of one named type from a file.
func constants(t *testing.T, file, typeName string) map[string]string {
	t.Helper()
	parsed, err := parser.ParseFile(token.NewFileSet(), filepath.Join(root(t), file), nil, 0)
	if err != nil {
		t.Fatal(err)
	}
	out := map[string]string{}
	ast.Inspect(parsed, func(n ast.Node) bool {
		spec, ok := n.(*ast.ValueSpec)
		if !ok || len(spec.Names) != 1 || len(spec.Values) != 1 {
			return true
		}
		if id, ok := spec.Type.(*ast.Ident); !ok || id.Name != typeName {
			return true
		}
		if lit, ok := spec.Values[0].(*ast.BasicLit); ok {
			value, err := strconv.Unquote(lit.Value)
			if err != nil {
				t.Fatal(err)
			}
			out[spec.Names[0].Name] = value
		}
		return true
	})
	if len(out) == 0 {
		t.Fatalf("%s has no constants of type %s: this test reads it wrongly", file, typeName)
	}
	return out
}

// Codes and kinds are names that programs compare: one meaning, one name, one
// form.
func TestProblemCodesAndKindsAreUnique(t *testing.T) {
	for file, typeName := range map[string]string{"protocol/problem.go": "Code", "protocol/receipt.go": "Kind"} {
		seen := map[string]string{}
		for name, value := range constants(t, file, typeName) {
			if other, ok := seen[value]; ok {
				t.Errorf("%s: %s and %s are both %q", file, name, other, value)
			}
			seen[value] = name
			if value != strings.ToLower(value) || strings.ContainsAny(value, " -") {
				t.Errorf("%s: %s is %q, want lower case with underscores", file, name, value)
			}
		}
	}
}
