//go:build e2e

package packaging

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
)

// builtLater is a directory with the .rpm of a later version, made once for all
// tests: an .rpm, unlike a .deb, cannot be taken apart and put together again.
var builtLater = sync.OnceValues(func() (string, error) {
	dir, err := temporary()
	if err != nil {
		return "", err
	}
	return dir, buildInto(dir, "QUITTANCE_VERSION="+laterVersion, "QUITTANCE_PACKAGERS=rpm")
})

const laterVersion = "9.0.0"

// rpms are the .rpm of one package, on a machine of their own for it.
type rpms struct {
	*throwAway
	name         string
	first, later string // files
}

func (m *throwAway) rpms(name string) *rpms {
	m.t.Helper()
	later, err := builtLater()
	if err != nil {
		m.t.Fatal(err)
	}
	return &rpms{throwAway: m, name: name, first: m.found(m.pkgs, name, ".rpm"), later: m.found(later, name, ".rpm")}
}

// try runs this machine's rpm on the other. That what the packages need can be
// had is the administrator's distribution's to show.
func (m *rpms) try(args ...string) (string, error) {
	command := exec.CommandContext(m.t.Context(), "rpm", append([]string{"--root", m.root}, args...)...)
	out, err := command.CombinedOutput()
	return string(out), err
}

func (m *rpms) rpm(args ...string) string {
	m.t.Helper()
	out, err := m.try(args...)
	if err != nil {
		m.t.Fatalf("rpm %s: %v\n%s", strings.Join(args, " "), err, out)
	}
	return out
}

// refused runs rpm, which must fail with this text, change no package, and ask
// systemd for nothing.
func (m *rpms) refused(text string, args ...string) {
	m.t.Helper()
	before := m.installed()
	m.asked()
	if out, err := m.try(args...); err == nil || !strings.Contains(out, text) {
		m.t.Errorf("rpm %s: %v, want a refusal with %q:\n%s", strings.Join(args, " "), err, text, out)
	}
	if after := m.installed(); after != before {
		m.t.Errorf("a refusal put %q in place of %q", after, before)
	}
	if got := m.asked(); got != "" {
		m.t.Errorf("a refusal asks systemd: %s", got)
	}
	m.whole()
}

// installed is the version that rpm knows of, "" for none.
func (m *rpms) installed() string {
	out, err := m.try("-q", "--qf", "%{VERSION}", m.name)
	if err != nil {
		return ""
	}
	return out
}

// whole checks that every file is there as it was packed, with its mode and
// owner, but for what the administrator may change.
func (m *rpms) whole() {
	m.t.Helper()
	if out, err := m.try("-V", "--nodeps", "--noconfig", m.name); err != nil {
		m.t.Errorf("rpm -V %s: %v\n%s", m.name, err, out)
	}
}

// put installs a file with these options, checks what it asks systemd for, and
// that the version is the one of the file.
func (m *rpms) put(file, asks string, options ...string) {
	m.t.Helper()
	m.asked()
	m.rpm(append(append(options, "--nodeps"), file)...)
	if got := m.asked(); got != asks {
		m.t.Errorf("rpm %s %s asks systemd:\n%s\nwant\n%s", strings.Join(options, " "), filepath.Base(file), got, asks)
	}
	want := strings.TrimSpace(m.rpm("-qp", "--qf", "%{VERSION}", file))
	if got := m.installed(); got != want {
		m.t.Errorf("after rpm %s %s version %q is there", strings.Join(options, " "), filepath.Base(file), got)
	}
	m.whole()
}

// erase removes the package, checks what that asks systemd for, and that
// nothing of what was packed is left.
func (m *rpms) erase(asks string) {
	m.t.Helper()
	files := strings.Fields(m.rpm("-q", "-l", m.name))
	if len(files) < 10 {
		m.t.Fatalf("rpm lists %q", files)
	}
	m.asked()
	m.rpm("-e", "--nodeps", m.name)
	if got := m.asked(); got != asks {
		m.t.Errorf("rpm -e %s asks systemd:\n%s\nwant\n%s", m.name, got, asks)
	}
	if got := m.installed(); got != "" {
		m.t.Errorf("after rpm -e %s version %s is there", m.name, got)
	}
	for _, file := range files {
		if info, err := os.Lstat(m.path(file)); err == nil && !info.IsDir() {
			m.t.Errorf("rpm -e %s left %s", m.name, file)
		}
	}
}

// byHand is a line that an administrator adds to a configuration file.
const byHand = "\n# by hand\n"

func (m *rpms) edit(file string) {
	m.t.Helper()
	m.write(m.path(file), m.read(file)+byHand, 0o644)
}

// kept checks that the administrator's line is still in a file.
func (m *rpms) kept(file string) {
	m.t.Helper()
	if !m.there(file) || !strings.HasSuffix(m.read(file), byHand) {
		m.t.Errorf("what the administrator wrote is not in %s", file)
	}
}

// hostagentRPM: the same scripts, which rpm calls with its own words. A removal
// keeps ledger and key: rpm knows no purge.
func hostagentRPM(t *testing.T, m *throwAway) {
	const (
		ledger   = "/var/lib/quittance/ledger"
		settings = "/etc/quittance/hostagent.toml"
	)
	p := m.rpms("quittance-hostagent")
	m.withSystemd()
	p.put(p.first, agentRestarted, "-i")
	if !m.there(ledger) {
		t.Fatal("no ledger after the installation")
	}
	key := m.read("/var/lib/quittance/host.key.pub")
	p.edit(settings)
	p.put(p.later, agentRestarted, "-U")
	p.kept(settings)
	m.setFormat(2)
	p.refused("reads formats up to 1", "-U", "--nodeps", "--oldpackage", p.first)
	m.setFormat(1)
	p.refused("is already installed", "-U", "--nodeps", p.first) // rpm itself, unless it is told to
	p.put(p.first, agentRestarted, "-U", "--oldpackage")
	p.kept(settings)
	worker := m.path("/sys/fs/cgroup/memory/quittance/0123456789abcdef0123456789abcdef")
	if err := os.MkdirAll(worker, 0o755); err != nil {
		t.Fatal(err)
	}
	p.refused("still allocated", "-e", "--nodeps", p.name)
	if err := os.Remove(worker); err != nil {
		t.Fatal(err)
	}
	p.erase(agentRemoved)
	p.kept(settings + ".rpmsave")
	if m.read("/var/lib/quittance/host.key.pub") != key || !m.there(ledger) {
		t.Error("removal took the key or the ledger")
	}
	// It comes back over what it left.
	p.put(p.later, agentRestarted, "-i")
	if m.read("/var/lib/quittance/host.key.pub") != key {
		t.Error("the reinstallation made another key")
	}
	p.erase(agentRemoved)
}

// controllerRPM: user, upgrade, refused downgrade, and jobs that a removal keeps.
func controllerRPM(t *testing.T, m *throwAway) {
	const (
		restarted = "daemon-reload; try-restart quittance-controller.service"
		removed   = "disable --now quittance-controller.service; daemon-reload"
		state     = "/var/lib/quittance-controller"
		settings  = "/etc/quittance/controller.toml"
	)
	p := m.rpms("quittance-controller")
	m.withSystemd()
	p.put(p.first, restarted, "-i")
	if groups := strings.TrimSpace(m.run("id", "-Gn", "quittance-controller")); groups != "quittance-controller quittance" {
		t.Errorf("the user's groups are %s", groups)
	}
	m.run("install", "-d", "-o", "quittance-controller", "-g", "quittance-controller", "-m", "0700", state)
	m.run("runuser", "-u", "quittance-controller", "--", "controller", "token", "create", "--principal", "alice")
	const scope = `{"format":"quittance-store","v":1,"store":"00112233445566778899aabbccddeeff"}` + "\n"
	m.write(m.path(state+"/attempts/scope"), scope, 0o600)
	p.edit(settings)
	p.put(p.later, restarted, "-U")
	p.kept(settings)
	m.write(m.path(state+"/attempts/scope"), strings.Replace(scope, `"v":1`, `"v":2`, 1), 0o600)
	p.refused("reads formats up to 1", "-U", "--nodeps", "--oldpackage", p.first)
	m.write(m.path(state+"/attempts/scope"), scope, 0o600)
	p.put(p.first, restarted, "-U", "--oldpackage")
	p.kept(settings)
	p.erase(removed)
	p.kept(settings + ".rpmsave")
	if m.read(state+"/attempts/scope") != scope {
		t.Error("removal changed the attempt store")
	}
	m.run("id", "quittance-controller") // whose files are kept
	p.put(p.first, restarted, "-i")
	p.erase(removed)
}

// agentctlRPM: it has no state and no scripts, and goes either way.
func agentctlRPM(t *testing.T, m *throwAway) {
	p := m.rpms("quittance-agentctl")
	m.withSystemd()
	if scripts := p.rpm("-qp", "--scripts", p.first); scripts != "" {
		t.Errorf("it has scripts:\n%s", scripts)
	}
	p.put(p.first, "", "-i")
	if out := m.run("agentctl", "--version"); !strings.Contains(out, testVersion) {
		t.Errorf("agentctl --version says %s", out)
	}
	p.put(p.later, "", "-U")
	if out := m.run("agentctl", "--version"); !strings.Contains(out, laterVersion) {
		t.Errorf("agentctl --version says %s", out)
	}
	p.put(p.first, "", "-U", "--oldpackage")
	p.erase("")
}
