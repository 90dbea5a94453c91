package packaging

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// Packages are built by the release of Go that go.mod names, without what the
// environment asks for, or not at all.
func TestToolchainIsPinned(t *testing.T) {
	tree, programs := t.TempDir(), t.TempDir()
	script, err := os.ReadFile("toolchain.sh")
	if err != nil {
		t.Fatal(err)
	}
	for file, text := range map[string]string{
		filepath.Join(tree, "toolchain.sh"): string(script),
		filepath.Join(tree, "go.mod"):       "module m\n\ngo 1.99.3\n",
		// Stands in for a Go that fetches what it is told to, or is too old for it.
		filepath.Join(programs, "go"): "#!/bin/sh\necho \"${STAND_IN:-$GOTOOLCHAIN}\"\necho \"${EXPERIMENT:-$GOEXPERIMENT}\"\n",
	} {
		if err := os.WriteFile(file, []byte(text), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	run := func(environment ...string) (string, error) {
		command := exec.CommandContext(t.Context(), "sh", "-euc", `. ./toolchain.sh; echo "with $GOTOOLCHAIN $GOAMD64 $GOFLAGS"`)
		command.Dir = tree
		command.Env = append(append(os.Environ(), "PATH="+programs+":"+os.Getenv("PATH")), environment...)
		out, err := command.CombinedOutput()
		return string(out), err
	}
	const pinned = "with go1.99.3 v1 -trimpath -buildvcs=false\n"
	if out, err := run("GOTOOLCHAIN=local", "GOFLAGS=-race", "GOAMD64=v3", "GOEXPERIMENT=x"); err != nil || out != pinned {
		t.Errorf("%v, %q, want %q", err, out, pinned)
	}
	for environment, want := range map[string]string{
		"STAND_IN=go1.99.4": "built with go1.99.3",
		"STAND_IN=go1.19":   "let it fetch it",
		"EXPERIMENT=x":      "go env -u GOEXPERIMENT",
	} {
		if out, err := run(environment); err == nil || !strings.Contains(out, want) {
			t.Errorf("%s: %v, want a refusal with %q:\n%s", environment, err, want, out)
		}
	}
}

// Both scripts that make packages pin it before anything is built.
func TestScriptsPinTheToolchain(t *testing.T) {
	for _, name := range []string{"build.sh", "release.sh"} {
		script, err := os.ReadFile(name)
		if err != nil {
			t.Fatal(err)
		}
		before, _, found := strings.Cut(string(script), "\n. packaging/toolchain.sh\n")
		if !found || strings.Contains(before, "\ngo ") || strings.Contains(before, "\n\tgo ") {
			t.Errorf("%s does not begin with packaging/toolchain.sh", name)
		}
	}
}
