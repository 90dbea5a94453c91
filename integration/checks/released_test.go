package checks

import (
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// fixtureDirs hold what released versions wrote, a folder for each version.
var fixtureDirs = []string{"hostagent/testdata/released", "controller/internal/store/testdata/released", "controller/internal/jobs/testdata/released"}

// Every version that users may come from, by tag or by the changelog, has its
// fixtures of ledger, attempt store and job databases, as they were tagged. One
// more may be there: the next one's.
func TestEveryReleaseHasItsFixtures(t *testing.T) {
	released := map[string]bool{}
	for _, m := range regexp.MustCompile(`(?m)^## v?(\d+\.\d+\.\d+)\b`).FindAllSubmatch(read(t, "CHANGELOG.md"), -1) {
		released["v"+string(m[1])] = true
	}
	for tag := range strings.FieldsSeq(string(command(t, nil, "git", "tag", "--list", "v[0-9]*"))) {
		if !strings.Contains(tag, "-") { // a candidate
			released[tag] = true
		}
	}
	written := map[string]bool{}
	for _, dir := range fixtureDirs {
		found, err := filepath.Glob(filepath.Join(root(t), dir, "v*"))
		if err != nil {
			t.Fatal(err)
		}
		for _, version := range found {
			written[filepath.Base(version)] = true
		}
	}
	var next []string
	for version := range written {
		if !released[version] {
			next = append(next, version)
		}
	}
	if len(next) > 1 {
		t.Errorf("fixtures of %v, of which at most one can be the next version", next)
	}
	maps.Copy(written, released)
	if len(written) == 0 {
		t.Error("no fixtures at all")
	}
	for _, version := range slices.Sorted(maps.Keys(written)) {
		command(t, nil, filepath.Join(root(t), "packaging", "fixtures.sh"), "-check", version)
	}
	if steps := string(read(t, "packaging/RELEASING.md")); !strings.Contains(steps, "packaging/fixtures.sh vX.Y.Z") {
		t.Error("packaging/RELEASING.md does not say how fixtures are made")
	}
}

// Fixtures that are missing, or changed after their tag, are found.
func TestFixturesAreLookedAt(t *testing.T) {
	repository := t.TempDir()
	copied := filepath.Join(repository, "packaging", "fixtures.sh")
	if err := os.MkdirAll(filepath.Dir(copied), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(copied, read(t, "packaging/fixtures.sh"), 0o755); err != nil {
		t.Fatal(err)
	}
	git := func(args ...string) {
		t.Helper()
		command(t, nil, "git", append([]string{"-C", repository, "-c", "user.name=t", "-c", "user.email=t@localhost"}, args...)...)
	}
	refused := func(text string, args ...string) {
		t.Helper()
		if out, err := try(t, copied, args...); err == nil || !strings.Contains(out, text) {
			t.Errorf("fixtures.sh %v: %v, want a refusal with %q:\n%s", args, err, text, out)
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
	git("init", "-q")
	refused("name the version")
	refused("name the version", "-check", "1.2")
	refused("promises nothing", "v1.2.3-rc1")
	ledger := filepath.Join(fixtureDirs[0], "v1.2.3")
	for _, name := range []string{
		ledger + "/expect.txt", ledger + "/receipts.jsonl", ledger + "/state/host.key",
		fixtureDirs[1] + "/v1.2.3/store/scope", fixtureDirs[1] + "/v1.2.3/expect.txt",
		fixtureDirs[2] + "/v1.2.3/sqlite/answers.json",
	} {
		write(name, "as released\n")
	}
	refused("missing of v1.2.3: "+fixtureDirs[2]+"/v1.2.3/postgresql/dump.sql (see", "-check", "v1.2.3")
	write(fixtureDirs[2]+"/v1.2.3/postgresql/dump.sql", "as released\n")
	if out, err := try(t, copied, "-check", "v1.2.3"); err != nil {
		t.Errorf("%v\n%s", err, out)
	}
	git("add", ".")
	git("commit", "-q", "-m", "all")
	git("tag", "v1.2.3")
	if out, err := try(t, copied, "-check", "v1.2.3"); err != nil {
		t.Errorf("%v\n%s", err, out)
	}
	refused("its fixtures are frozen", "v1.2.3")
	write(ledger+"/expect.txt", "changed\n")
	refused("not those that were tagged", "-check", "v1.2.3")
}
