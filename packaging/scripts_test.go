//go:build e2e

package packaging

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/quittance/quittance/integration/workers/images"
)

// stubLog is where the stand-in for systemctl writes its arguments, inside the
// machine. Whether the real one obeys is the vm lane's to show.
const stubLog = "/systemctl.log"

// throwAway is a small Debian in a directory, on which packages are installed.
type throwAway struct {
	t    *testing.T
	root string
	pkgs string
}

// newThrowAway makes one without systemd. Its dpkg takes our packages' needs
// for given: that they can be had is the vm lane's to show.
func newThrowAway(t *testing.T) *throwAway {
	t.Helper()
	pkgs, err := built()
	if err != nil {
		t.Fatal(err)
	}
	codename, sources, err := images.Sources(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	m := &throwAway{t: t, root: filepath.Join(dir, "root"), pkgs: pkgs}
	list := filepath.Join(dir, "sources.list")
	m.write(list, sources, 0o644)
	out, err := exec.CommandContext(t.Context(), "mmdebstrap", "--mode=root", "--variant=essential", "--include=passwd",
		"--skip=output/dev,output/mknod", codename, m.root, list).CombinedOutput()
	if err != nil {
		t.Fatalf("mmdebstrap: %v\n%s", err, out)
	}
	return m
}

func (m *throwAway) write(path, text string, mode fs.FileMode) {
	m.t.Helper()
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		m.t.Fatal(err)
	}
	if err := os.WriteFile(path, []byte(text), mode); err != nil {
		m.t.Fatal(err)
	}
}

// path is where a file of the machine lies on this one.
func (m *throwAway) path(name string) string { return filepath.Join(m.root, name) }

func (m *throwAway) there(name string) bool {
	m.t.Helper()
	_, err := os.Lstat(m.path(name))
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		m.t.Fatal(err)
	}
	return err == nil
}

func (m *throwAway) read(name string) string {
	m.t.Helper()
	text, err := os.ReadFile(m.path(name))
	if err != nil {
		m.t.Fatal(err)
	}
	return string(text)
}

// withSystemd lets the machine look as if systemd ran on it, and notes what is
// asked of it.
func (m *throwAway) withSystemd() {
	if err := os.MkdirAll(m.path("/run/systemd/system"), 0o755); err != nil {
		m.t.Fatal(err)
	}
	m.write(m.path("/proc/sys/kernel/random/boot_id"), "00112233-4455-6677-8899-aabbccddeeff\n", 0o444)
	m.write(m.path("/usr/bin/systemctl"), "#!/bin/sh\necho \"$*\" >>"+stubLog+"\n", 0o755)
	m.write(m.path("/usr/bin/systemd-tmpfiles"), "#!/bin/sh\n", 0o755)
	m.asked()
}

// withoutSystemd is the machine as an image is that is being built.
func (m *throwAway) withoutSystemd() {
	m.t.Helper()
	if err := os.RemoveAll(m.path("/run/systemd")); err != nil {
		m.t.Fatal(err)
	}
}

// asked is what systemctl was asked since the last call.
func (m *throwAway) asked() string {
	m.t.Helper()
	text, err := os.ReadFile(m.path(stubLog))
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		m.t.Fatal(err)
	}
	m.write(m.path(stubLog), "", 0o644)
	return strings.TrimSuffix(strings.ReplaceAll(string(text), "\n", "; "), "; ")
}

// try runs a command inside the machine.
func (m *throwAway) try(args ...string) (string, error) {
	command := exec.CommandContext(m.t.Context(), "chroot", append([]string{m.root, "env", "DEBIAN_FRONTEND=noninteractive"}, args...)...)
	out, err := command.CombinedOutput()
	return string(out), err
}

func (m *throwAway) run(args ...string) string {
	m.t.Helper()
	out, err := m.try(args...)
	if err != nil {
		m.t.Fatalf("%s: %v\n%s", strings.Join(args, " "), err, out)
	}
	return out
}

// refused runs a command that must fail with this text.
func (m *throwAway) refused(text string, args ...string) {
	m.t.Helper()
	if out, err := m.try(args...); err == nil || !strings.Contains(out, text) {
		m.t.Fatalf("%s: %v, want a refusal with %q:\n%s", strings.Join(args, " "), err, text, out)
	}
}

// deb puts the package into the machine and gives its path there. A version
// other than the built one is made by exchanging the version in the package, and
// where a format is given, the one that its script knows.
func (m *throwAway) deb(name, version, format string) string {
	m.t.Helper()
	unpacked := filepath.Join(m.t.TempDir(), name)
	m.here("dpkg-deb", "-R", m.found(m.pkgs, name, ".deb"), unpacked)
	if version != "" {
		m.replace(filepath.Join(unpacked, "DEBIAN/control"), `(?m)^Version: .*$`, "Version: "+version)
	}
	if format != "" {
		m.replace(filepath.Join(unpacked, "DEBIAN/preinst"), `(?m)^FORMAT=.*$`, "FORMAT="+format)
	}
	target := fmt.Sprintf("/%s-%s.deb", name, orBuilt(version))
	m.here("dpkg-deb", "-b", "-Znone", unpacked, m.path(target))
	return target
}

func orBuilt(version string) string {
	if version == "" {
		return testVersion
	}
	return version
}

// found is the package of this name and kind in a directory.
func (m *throwAway) found(dir, name, ending string) string {
	m.t.Helper()
	found, err := filepath.Glob(filepath.Join(dir, name+"*"+ending))
	if err != nil || len(found) != 1 {
		m.t.Fatalf("%s%s: %v, %v", name, ending, found, err)
	}
	return found[0]
}

// here runs a command on this machine.
func (m *throwAway) here(name string, args ...string) string {
	m.t.Helper()
	out, err := exec.CommandContext(m.t.Context(), name, args...).CombinedOutput()
	if err != nil {
		m.t.Fatalf("%s %s: %v\n%s", name, strings.Join(args, " "), err, out)
	}
	return string(out)
}

func (m *throwAway) replace(file, pattern, with string) {
	m.t.Helper()
	text, err := os.ReadFile(file)
	if err != nil {
		m.t.Fatal(err)
	}
	changed := regexp.MustCompile(pattern).ReplaceAllString(string(text), with)
	if changed == string(text) {
		m.t.Fatalf("%s has no %s", file, pattern)
	}
	info, err := os.Stat(file)
	if err != nil {
		m.t.Fatal(err)
	}
	m.write(file, changed, info.Mode().Perm())
}

func (m *throwAway) version(name string) string {
	m.t.Helper()
	return m.run("dpkg-query", "-W", "-f", "${db:Status-Status} ${Version}", name)
}

// install gives dpkg a package. What it depends on is taken for given.
func install(path string) []string { return []string{"dpkg", "--force-depends", "-i", path} }

// setFormat writes the format into every begun segment of the ledger, as a later
// agent would.
func (m *throwAway) setFormat(format byte) {
	m.t.Helper()
	segments, err := filepath.Glob(m.path("/var/lib/quittance/ledger/*.segment"))
	if err != nil {
		m.t.Fatal(err)
	}
	begun := 0
	for _, segment := range segments {
		content, err := os.ReadFile(segment)
		if err != nil {
			m.t.Fatal(err)
		}
		if !strings.HasPrefix(string(content), "QLEDGER1") {
			continue
		}
		begun++
		content[8] = format
		m.write(segment, string(content), 0o600)
	}
	if begun == 0 {
		m.t.Fatal("the ledger has no segment that is begun")
	}
}

// The packages are installed, upgraded, refused, removed and purged as they say,
// on a Debian of their own: each .deb and, after it, each .rpm.
func TestScripts(t *testing.T) {
	m := newThrowAway(t)
	for _, part := range []struct {
		name string
		play func(*testing.T, *throwAway)
	}{
		{"hostagent", hostagentDeb}, {"hostagent-rpm", hostagentRPM},
		{"controller", controllerDeb}, {"controller-rpm", controllerRPM},
		{"agentctl", agentctlDeb}, {"agentctl-rpm", agentctlRPM},
	} {
		t.Run(part.name, func(t *testing.T) {
			whole := m.t
			defer func() { m.t = whole }()
			m.t = t
			part.play(t, m)
		})
	}
}

// What the agent's packages ask systemd for.
const (
	agentStarted = "daemon-reload; enable quittance-hostagent.socket quittance-hostagent.service quittance-workers.service; " +
		"start quittance-workers.service quittance-hostagent.socket"
	agentRestarted = agentStarted + "; restart quittance-hostagent.service"
	agentRemoved   = "disable --now quittance-hostagent.service quittance-hostagent.socket; disable quittance-workers.service; " +
		"kill quittance-workers.service; daemon-reload"
)

// hostagentDeb: first installation, upgrade, refused downgrade (I9), refused
// removal while workers live, removal, purge.
func hostagentDeb(t *testing.T, m *throwAway) {
	const (
		name     = "quittance-hostagent"
		ledger   = "/var/lib/quittance/ledger"
		marker   = "/var/lib/quittance.created"
		program  = "/usr/sbin/hostagent"
		settings = "/etc/quittance/hostagent.toml"
	)
	first, later := m.deb(name, "", ""), m.deb(name, laterVersion, "2")

	// An image that is built gets no key and no ledger.
	m.withoutSystemd()
	if out := m.run(install(first)...); !strings.Contains(out, "run hostagent init once on the machine itself") {
		t.Errorf("without systemd: %s", out)
	}
	if m.there(ledger) || m.there(marker) {
		t.Error("an image got a ledger")
	}
	if info, err := os.Stat(m.path("/var/lib/quittance")); err != nil || info.Mode().Perm() != 0o700 {
		t.Errorf("state directory: %v, %v", info, err)
	}
	m.run("getent", "group", "quittance")

	// A running machine gets them at the first installation, once.
	m.withSystemd()
	m.run(install(first)...)
	if got := m.asked(); got != agentRestarted {
		t.Errorf("first installation asks systemd:\n%s\nwant\n%s", got, agentRestarted)
	}
	if !m.there(ledger) || !m.there(marker) {
		t.Fatal("no ledger after the installation")
	}
	key := m.read("/var/lib/quittance/host.key.pub")

	// An upgrade keeps the ledger, the key and what the administrator wrote.
	m.write(m.path(settings), m.read(settings)+"\n# by hand\n", 0o644)
	m.run(install(later)...)
	if got := m.asked(); got != agentRestarted {
		t.Errorf("upgrade asks systemd: %s", got)
	}
	if m.read("/var/lib/quittance/host.key.pub") != key || !strings.Contains(m.read(settings), "# by hand") {
		t.Error("the upgrade exchanged the key or the configuration")
	}

	// Downgrades: over a ledger that the older agent reads, and over a newer one.
	m.run(install(first)...)
	m.run(install(later)...)
	m.setFormat(2)
	m.asked()
	m.refused("reads formats up to 1", install(first)...)
	if got := m.version(name); got != "installed "+laterVersion {
		t.Errorf("after the refusal: %s", got)
	}
	if got := m.asked(); got != "" {
		t.Errorf("a refused downgrade asks systemd: %s", got)
	}
	m.write(m.path("/elsewhere/ledger/0000000001.segment"), "QLEDGER1\x02\x00\x00\x00", 0o600)
	m.setFormat(1)
	m.replace(m.path(settings), `$`, "\nstate_dir = \"/elsewhere\"\n")
	m.refused("ledger in /elsewhere has format 2", install(first)...)
	m.replace(m.path(settings), `(?m)^state_dir = .*$`, "")
	m.run(install(first)...)
	m.asked()

	// Removal waits for the workers, on both cgroup versions.
	for _, workers := range []string{"/sys/fs/cgroup/system.slice/quittance-workers.service", "/sys/fs/cgroup/memory/quittance"} {
		worker := m.path(workers + "/0123456789abcdef0123456789abcdef")
		if err := os.MkdirAll(worker, 0o755); err != nil {
			t.Fatal(err)
		}
		m.refused("containers are still allocated", "dpkg", "-r", name)
		if got := m.version(name); got != "installed "+testVersion || !m.there(program) {
			t.Errorf("after the refusal: %s", got)
		}
		if got := m.asked(); got != agentRestarted {
			t.Errorf("a refused removal asks systemd: %s", got)
		}
		if err := os.Remove(worker); err != nil {
			t.Fatal(err)
		}
	}
	m.run("dpkg", "-r", name)
	if got := m.asked(); got != agentRemoved {
		t.Errorf("removal asks systemd: %s", got)
	}
	if m.there(program) || !m.there(settings) || !m.there(ledger) {
		t.Error("removal left the program, or took configuration or ledger")
	}

	// Purge forgets everything but that there was a ledger, unless it is told to.
	if out := m.run("dpkg", "-P", name); !strings.Contains(out, "kept "+marker) {
		t.Errorf("purge: %s", out)
	}
	if m.there("/var/lib/quittance") || !m.there(marker) || m.there(settings) {
		t.Error("purge left state or configuration, or forgot the ledger")
	}
	m.asked()
	if out := m.run(install(first)...); !strings.Contains(out, "this machine had a ledger, which is gone") || m.there(ledger) {
		t.Errorf("installed after a purge: %s", out)
	}
	if got := m.asked(); got != agentStarted {
		t.Errorf("installed after a purge, it asks systemd: %s", got)
	}
	m.run("env", "QUITTANCE_FORGET=yes", "dpkg", "-P", name)
	if m.there(marker) {
		t.Error("told to forget, purge kept the marker")
	}
}

// controllerDeb: the user, no start by itself, commands as that user only, a
// refused downgrade, and users' property kept by purge.
func controllerDeb(t *testing.T, m *throwAway) {
	const (
		name  = "quittance-controller"
		state = "/var/lib/quittance-controller"
	)
	m.withSystemd()
	file := m.deb(name, "", "")
	m.run(install(file)...)
	if got := m.asked(); got != "daemon-reload; try-restart quittance-controller.service" {
		t.Errorf("installation asks systemd: %s", got)
	}
	if groups := strings.Fields(m.run("id", "-Gn", "quittance-controller")); strings.Join(groups, " ") != "quittance-controller quittance" {
		t.Errorf("the user's groups are %v", groups)
	}
	// A file of root's would be closed to the unit: only its user makes any.
	m.run("install", "-d", "-o", name, "-g", name, "-m", "0700", state)
	create := []string{"controller", "token", "create", "--principal", "alice"}
	asUser := []string{"runuser", "-u", name, "--"}
	m.refused(strings.Join(asUser, " "), create...)
	m.run(append(asUser, create...)...)
	if others := m.run("find", state, "!", "-user", name); others != "" {
		t.Errorf("not the controller's user's: %s", others)
	}
	scope := m.path(state + "/attempts/scope")
	m.write(scope, `{"format":"quittance-store","v":2,"store":"00112233445566778899aabbccddeeff"}`+"\n", 0o600)
	m.asked()
	m.refused("reads formats up to 1", install(file)...)
	if got := m.asked() + m.version(name); got != "installed "+testVersion {
		t.Errorf("after the refusal: %s", got)
	}
	m.write(scope, `{"format":"quittance-store","v":1,"store":"00112233445566778899aabbccddeeff"}`+"\n", 0o600)
	m.run(install(file)...)
	m.asked()
	m.run("dpkg", "-r", name)
	if got := m.asked(); got != "disable --now quittance-controller.service; daemon-reload" {
		t.Errorf("removal asks systemd: %s", got)
	}
	if out := m.run("dpkg", "-P", name); !strings.Contains(out, "kept "+state) || !m.there(state) {
		t.Errorf("purge: %s", out)
	}
	m.run(install(file)...)
	m.run("env", "QUITTANCE_FORGET=yes", "dpkg", "-P", name)
	if m.there(state) {
		t.Error("told to forget, purge kept jobs and attempts")
	}
}

// agentctlDeb: it has no state and no scripts, goes either way, and leaves
// nothing.
func agentctlDeb(t *testing.T, m *throwAway) {
	const name = "quittance-agentctl"
	m.withSystemd()
	first, later := m.deb(name, "", ""), m.deb(name, laterVersion, "")
	for _, file := range []string{first, later, first} {
		m.run("dpkg", "-i", file)
		m.run("dpkg", "--verify", name)
	}
	if got := m.version(name); got != "installed "+testVersion {
		t.Errorf("after the downgrade: %s", got)
	}
	files := strings.Fields(m.run("dpkg", "-L", name))
	m.run("dpkg", "-P", name)
	for _, file := range files {
		if info, err := os.Lstat(m.path(file)); err == nil && !info.IsDir() {
			t.Errorf("purge left %s", file)
		}
	}
	if got := m.asked(); got != "" {
		t.Errorf("it asks systemd: %s", got)
	}
}
