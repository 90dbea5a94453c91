package checks

import (
	"go/ast"
	"go/parser"
	"go/token"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"

	"github.com/quittance/quittance/profiles"
	"github.com/quittance/quittance/protocol"
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

// quoted finds the first "…" after a text in a file.
func quoted(t *testing.T, file, after string) string {
	t.Helper()
	_, rest, ok := strings.Cut(string(read(t, file)), after)
	if ok {
		if parts := strings.SplitN(rest, `"`, 3); len(parts) == 3 {
			return parts[1]
		}
	}
	t.Fatalf("%s has no value after %q: this test reads it wrongly", file, after)
	return ""
}

// Programs find each other by their defaults.
func TestDefaultAddressesAgree(t *testing.T) {
	const socket = "/run/quittance/agent.sock"
	for where, got := range map[string]string{
		"agentctl":        quoted(t, "cmd/agentctl/command/app.go", "DefaultSocket = "),
		"hostagent.toml":  quoted(t, "packaging/etc/hostagent.toml", "\n#socket = "),
		"controller.toml": quoted(t, "packaging/etc/controller.toml", "\nsocket = "),
	} {
		if got != socket {
			t.Errorf("%s: the socket is %s by default, elsewhere %s", where, got, socket)
		}
	}
	if unit := string(read(t, "packaging/systemd/quittance-hostagent.socket")); !strings.Contains(unit, "\nListenStream="+socket+"\n") {
		t.Errorf("the socket unit does not listen on %s", socket)
	}
	listen := quoted(t, "packaging/etc/controller.toml", "\nlisten = ")
	if api := quoted(t, "cmd/agentctl/command/jobs.go", "DefaultAPI "); api != "http://"+listen {
		t.Errorf("agentctl looks for the job service at %s, the controller listens on %s", api, listen)
	}
}

// Every example offering names an example profile, and every example profile
// becomes one by pinning its image.
func TestExamplesBelongTogether(t *testing.T) {
	known := map[string]bool{}
	examples := 0
	for _, f := range files(t) {
		if !strings.HasPrefix(f, "packaging/etc/profiles/") || !strings.HasSuffix(f, ".toml") {
			continue
		}
		image := quoted(t, f, "\nimage = ")
		pinned := strings.Replace(string(read(t, f)), `"`+image+`"`, `"`+image+"@"+string(protocol.DigestOf(nil))+`"`, 1)
		p, err := profiles.Parse([]byte(pinned))
		if err != nil {
			t.Errorf("%s: %v", f, err)
			continue
		}
		known[p.Name] = true
	}
	for _, f := range files(t) {
		if strings.HasPrefix(f, "packaging/etc/offerings/") && strings.HasSuffix(f, ".toml") {
			examples++
			if p := quoted(t, f, "\nprofile = "); !known[p] {
				t.Errorf("%s names the profile %s, of which there is no example", f, p)
			}
		}
	}
	if examples == 0 || len(known) == 0 {
		t.Error("there are no examples: this test looks in the wrong place")
	}
}

// Every manual page that a shipped file refers to exists.
func TestManualPagesExist(t *testing.T) {
	programs := map[string]bool{"hostagent": true, "controller": true, "agentctl": true} // made from the commands
	pages := map[string]bool{}
	for _, f := range files(t) {
		if page, ok := strings.CutPrefix(f, "packaging/man/pages/"); ok {
			pages[strings.TrimSuffix(page, ".md")] = true
		}
	}
	named := regexp.MustCompile(`\b(quittance-[a-z]+|hostagent|controller|agentctl)\**\(([1-8])\)`)
	for _, f := range files(t) {
		if !strings.HasPrefix(f, "packaging/") && !strings.HasSuffix(f, ".md") {
			continue
		}
		for _, m := range named.FindAllStringSubmatch(string(read(t, f)), -1) {
			if !programs[m[1]] && !pages[m[1]+"."+m[2]] {
				t.Errorf("%s refers to %s(%s), which is no page", f, m[1], m[2])
			}
		}
	}
}
