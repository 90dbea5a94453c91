package checks

import (
	"debug/buildinfo"
	"debug/elf"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// under reports whether a folder is one of, or lies below one of, dirs.
func under(short string, dirs ...string) bool {
	return slices.ContainsFunc(dirs, func(d string) bool { return short == d || strings.HasPrefix(short, d+"/") })
}

// arrow says what the packages of a folder may import of this module, beside
// their own folder. The first arrow that fits a package counts.
type arrow struct {
	from string
	to   []string
	why  string
}

var arrows = []arrow{
	{"protocol", nil, "both sides of the socket import it; it imports neither"},
	{"profiles", []string{"protocol"}, "a profile's meaning depends on nothing that uses it"},
	{"hostagent", []string{"protocol", "profiles"}, "the privileged part knows nothing of controllers"},
	{"controller/api", []string{"protocol"}, "the public contract is importable by anyone"},
	{"controller", []string{"protocol", "profiles"}, "the controller sees the host only through the socket (I1)"},
	{"cmd/internal", []string{"protocol"}, "what mains share knows no daemon"},
	{"cmd/hostagent", []string{"hostagent", "protocol", "profiles", "cmd/internal"}, "mains are thin"},
	{"cmd/controller", []string{"controller", "protocol", "profiles", "cmd/internal"}, "mains are thin"},
	{"cmd/agentctl", []string{"cmd/internal/commandline", "controller/api", "protocol", "profiles"}, "agentctl is a client of both sockets, not a part of either"},
	{"packaging", []string{"cmd", "protocol", "profiles", "integration/ociarchive"},
		"man pages are made from the commands, and the controller's archive as the workers' are"},
	{"integration", []string{"protocol", "profiles", "hostagent", "controller", "cmd", "packaging"}, "whole systems are tested from outside"},
	{"deps", nil, "it only pins modules"},
}

func arrowOf(short string) (arrow, bool) {
	i := slices.IndexFunc(arrows, func(a arrow) bool { return under(short, a.from) })
	if i < 0 {
		return arrow{}, false
	}
	return arrows[i], true
}

func TestImportArrows(t *testing.T) {
	for _, p := range packages(t) {
		a, ok := arrowOf(p.short())
		if !ok {
			t.Errorf("%s lies in no folder of the design: the top-level folders are fixed", p.short())
			continue
		}
		check := func(imports, allowed []string, in string) {
			for _, i := range imports {
				to, ours := strings.CutPrefix(i, module+"/")
				if ours && !under(to, append(allowed, a.from)...) {
					t.Errorf("%s%s imports %s: %s", p.short(), in, to, a.why)
				}
			}
		}
		check(p.Imports, a.to, "")
		// Tests may use the tools of integration, and nothing else beyond.
		withTools := append(slices.Clone(a.to), "integration")
		check(p.TestImports, withTools, "'s test")
		check(p.XTestImports, withTools, "'s test")
	}
}

// engineModules are clients of container engines, as module or import paths.
var engineModules = []string{
	"github.com/containerd/", "github.com/docker/docker", "github.com/docker/go-sdk", "github.com/moby/moby",
	"github.com/containers/", "github.com/fsouza/go-dockerclient", "k8s.io/cri-api", "k8s.io/cri-client", "github.com/cri-o/",
	"github.com/opencontainers/runc",
}

func isEngine(path string) bool {
	return slices.ContainsFunc(engineModules, func(m string) bool {
		return strings.HasPrefix(path, m) || path == strings.TrimSuffix(m, "/")
	})
}

// I1: only one package imports an engine's client. Tests of whole systems may
// look at the engine from outside.
func TestOnlyEngineImportsTheContainerdClient(t *testing.T) {
	const only = "hostagent/internal/engine"
	found := false
	for _, p := range packages(t) {
		if under(p.short(), "integration", "deps") {
			continue
		}
		for _, i := range slices.Concat(p.Imports, p.TestImports, p.XTestImports) {
			if !isEngine(i) {
				continue
			}
			if p.short() != only {
				t.Errorf("%s imports %s: only %s may", p.short(), i, only)
			}
			found = found || i == "github.com/containerd/containerd/v2/client"
		}
	}
	if !found {
		t.Errorf("%s does not import the containerd client: this test looks for the wrong name", only)
	}
}

// I1: proved on the dependencies and on the binaries as they are built.
func TestUnprivilegedBinariesHaveNoEngineClient(t *testing.T) {
	env := []string{"CGO_ENABLED=0"}
	dir := t.TempDir()
	command(t, env, "go", "build", "-trimpath", "-o", dir+"/", "./cmd/hostagent", "./cmd/controller", "./cmd/agentctl")
	for name, mayHave := range map[string]bool{"hostagent": true, "controller": false, "agentctl": false} {
		t.Run(name, func(t *testing.T) {
			var engines []string
			for dep := range strings.FieldsSeq(string(command(t, env, "go", "list", "-deps", "./cmd/"+name))) {
				if isEngine(dep) {
					engines = append(engines, dep)
				}
			}
			info, err := buildinfo.ReadFile(filepath.Join(dir, name))
			if err != nil {
				t.Fatal(err)
			}
			if len(info.Deps) == 0 {
				t.Fatal("the binary lists no modules")
			}
			for _, m := range info.Deps {
				if isEngine(m.Path) {
					engines = append(engines, "module "+m.Path)
				}
			}
			if mayHave {
				// The same look at the binary that must have one shows that it sees.
				if !slices.Contains(engines, "module github.com/containerd/containerd/v2") {
					t.Error("hostagent has no containerd client: this test sees nothing")
				}
				return
			}
			if len(engines) > 0 {
				t.Errorf("contains engine clients: %v", engines)
			}
		})
	}
	for _, name := range []string{"hostagent", "controller", "agentctl"} {
		f, err := elf.Open(filepath.Join(dir, name))
		if err != nil {
			t.Fatal(err)
		}
		defer f.Close()
		if slices.ContainsFunc(f.Progs, func(p *elf.Prog) bool { return p.Type == elf.PT_INTERP }) {
			t.Errorf("%s is not a static binary", name)
		}
	}
}
