//go:build e2e

package packaging

import (
	"bytes"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"testing"

	cdx "github.com/CycloneDX/cyclonedx-go"
)

// releaseOf asks release.sh for the smallest whole of a release.
func releaseOf(t *testing.T, key, dir string) {
	t.Helper()
	command := exec.CommandContext(t.Context(), "./release.sh", dir)
	command.Env = append(os.Environ(), "VERSION=1.2.3-rc1", "RELEASE_KEY="+key, "SOURCE_DATE_EPOCH="+testEpoch,
		"QUITTANCE_PROGRAMS=agentctl", "QUITTANCE_ARCHS="+runtime.GOARCH)
	if out, err := command.CombinedOutput(); err != nil {
		t.Fatalf("release.sh: %v\n%s", err, out)
	}
}

func makeKey(t *testing.T, kind string) string {
	t.Helper()
	key := filepath.Join(t.TempDir(), "key")
	if out, err := exec.CommandContext(t.Context(), "ssh-keygen", "-q", "-t", kind, "-N", "", "-C", "", "-f", key).CombinedOutput(); err != nil {
		t.Fatalf("ssh-keygen: %v\n%s", err, out)
	}
	return key
}

// A release is complete, verifies as README.md says, and is the same bytes when
// it is made again; a changed file or another key does not verify.
func TestRelease(t *testing.T) {
	key := makeKey(t, "ed25519")
	first, second := t.TempDir(), t.TempDir()
	releaseOf(t, key, first)
	releaseOf(t, key, second)
	entries, err := os.ReadDir(first)
	if err != nil {
		t.Fatal(err)
	}
	var names []string
	for _, entry := range entries {
		names = append(names, entry.Name())
		one, err := os.ReadFile(filepath.Join(first, entry.Name()))
		if err != nil {
			t.Fatal(err)
		}
		two, err := os.ReadFile(filepath.Join(second, entry.Name()))
		if err != nil || !bytes.Equal(one, two) {
			t.Errorf("%s: two releases differ (%v)", entry.Name(), err)
		}
	}
	rpmArch := map[string]string{"amd64": "x86_64", "arm64": "aarch64"}[runtime.GOARCH]
	want := []string{
		"SHA256SUMS", "SHA256SUMS.sig", "quittance-1.2.3~rc1.tar.gz",
		"quittance-agentctl-1.2.3~rc1-1." + rpmArch + ".rpm",
		"quittance-agentctl_1.2.3~rc1_" + runtime.GOARCH + ".cdx.json",
		"quittance-agentctl_1.2.3~rc1_" + runtime.GOARCH + ".deb",
	}
	slices.Sort(want)
	slices.Sort(names)
	if !slices.Equal(names, want) {
		t.Errorf("holds\n%s\nwant\n%s", strings.Join(names, "\n"), strings.Join(want, "\n"))
	}
	text, err := os.ReadFile(filepath.Join(first, want[4]))
	if err != nil {
		t.Fatal(err)
	}
	var bill cdx.BOM
	if err := cdx.NewBOMDecoder(bytes.NewReader(text), cdx.BOMFileFormatJSON).Decode(&bill); err != nil || len(*bill.Components) < 5 {
		t.Errorf("bill of materials: %v\n%s", err, text)
	}

	public, err := os.ReadFile(key + ".pub")
	if err != nil {
		t.Fatal(err)
	}
	verify := func(public []byte) error {
		signers := filepath.Join(t.TempDir(), "allowed_signers")
		if err := os.WriteFile(signers, append([]byte("quittance "), public...), 0o644); err != nil {
			t.Fatal(err)
		}
		// As README.md has it.
		command := exec.CommandContext(t.Context(), "sh", "-ec",
			`ssh-keygen -Y verify -f "$0" -I quittance -n quittance-release -s SHA256SUMS.sig <SHA256SUMS && sha256sum -c --quiet SHA256SUMS`, signers)
		command.Dir = first
		return command.Run()
	}
	if err := verify(public); err != nil {
		t.Errorf("the release does not verify: %v", err)
	}
	other, err := os.ReadFile(makeKey(t, "ed25519") + ".pub")
	if err != nil {
		t.Fatal(err)
	}
	if verify(other) == nil {
		t.Error("another key verifies the release")
	}
	if err := os.WriteFile(filepath.Join(first, want[4]), append(text, ' '), 0o644); err != nil {
		t.Fatal(err)
	}
	if verify(public) == nil {
		t.Error("a changed file verifies")
	}
}

// Nothing is built from a tree that is not what its version says, nor without a
// key to sign with, nor where later versions could not be held to what this one
// and those before it wrote.
func TestReleaseRefuses(t *testing.T) {
	repository := t.TempDir()
	if err := os.Mkdir(filepath.Join(repository, "packaging"), 0o755); err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"release.sh", "fixtures.sh", "toolchain.sh", "../go.mod"} {
		script, err := os.ReadFile(name)
		if err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(repository, "packaging", name), script, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	write := func(name, text string) {
		t.Helper()
		file := filepath.Join(repository, name)
		if err := os.MkdirAll(filepath.Dir(file), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(file, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	git := func(args ...string) {
		t.Helper()
		command := exec.CommandContext(t.Context(), "git", append([]string{"-C", repository, "-c", "user.name=t", "-c", "user.email=t@localhost"}, args...)...)
		if out, err := command.CombinedOutput(); err != nil {
			t.Fatalf("git %v: %v\n%s", args, err, out)
		}
	}
	refused := func(text string, environment ...string) {
		t.Helper()
		command := exec.CommandContext(t.Context(), filepath.Join(repository, "packaging/release.sh"))
		command.Env = append(os.Environ(), environment...)
		if out, err := command.CombinedOutput(); err == nil || !strings.Contains(string(out), text) {
			t.Errorf("%v: %v, want a refusal with %q:\n%s", environment, err, text, out)
		}
	}
	key := "RELEASE_KEY=" + makeKey(t, "ed25519")
	git("init", "-q")
	refused("not committed", key)
	git("add", ".")
	git("commit", "-q", "-m", "all")
	refused("no tag", key)
	git("tag", "v0.9.0")
	refused("missing of v0.9.0", key)
	for _, version := range []string{"v0.9.0", "v1.0.0"} {
		for _, name := range []string{
			"hostagent/testdata/released/VERSION/expect.txt", "hostagent/testdata/released/VERSION/receipts.jsonl",
			"hostagent/testdata/released/VERSION/state/host.key",
			"controller/internal/store/testdata/released/VERSION/expect.txt", "controller/internal/store/testdata/released/VERSION/store/scope",
			"controller/internal/jobs/testdata/released/VERSION/sqlite/answers.json",
			"controller/internal/jobs/testdata/released/VERSION/postgresql/dump.sql",
		} {
			write(strings.Replace(name, "VERSION", version, 1), "as released\n")
		}
		write("CHANGELOG.md", "## Unreleased\n\n## 1.0.0-almost\n")
		git("add", ".")
		git("commit", "-q", "-m", "fixtures")
		git("tag", "-f", version)
	}
	refused("no heading \"## 1.0.0\"", key)
	write("CHANGELOG.md", "## Unreleased\n\n## 1.0.0 (2026-11-30)\n")
	git("add", ".")
	git("commit", "-q", "-m", "changelog")
	git("tag", "-f", "v1.0.0")
	refused("RELEASE_KEY must name")
	refused("cannot be read", "RELEASE_KEY=/nowhere")
	refused("not an Ed25519 key", "RELEASE_KEY="+makeKey(t, "ecdsa"))
	refused("must begin with a digit", key, "VERSION=../x")
	// The version that is built is the tag's, a candidate's sorted before its
	// release. The script that stands in for the build ends there.
	write("packaging/build.sh", "#!/bin/sh\necho \"asked for $QUITTANCE_VERSION of $QUITTANCE_ARCHS\"\nexit 1\n")
	if err := os.Chmod(filepath.Join(repository, "packaging/build.sh"), 0o755); err != nil {
		t.Fatal(err)
	}
	git("add", ".")
	git("commit", "-q", "-m", "build")
	refused("no tag", key)
	git("tag", "v1.1.0-rc1")
	refused("asked for 1.1.0~rc1 of amd64 arm64", key)
	git("tag", "-d", "v1.1.0-rc1")
	git("tag", "-f", "v1.0.0")
	refused("asked for 1.0.0 of amd64 arm64", key)
	write("new", "")
	refused("not committed", key)
}
