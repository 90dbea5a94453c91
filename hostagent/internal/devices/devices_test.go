package devices

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	oci "github.com/opencontainers/runtime-spec/specs-go"

	"github.com/quittance/quittance/profiles"
	"github.com/quittance/quittance/protocol"
)

// host is one host's spec directories; devices of every machine serve as cards.
type host struct {
	t       *testing.T
	low     string
	high    string
	catalog *Catalog
}

func newHost(t *testing.T) *host {
	h := &host{t: t, low: t.TempDir(), high: t.TempDir()}
	for _, dir := range []string{h.low, h.high} {
		if err := os.Chmod(dir, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	h.catalog = New([]string{h.low, h.high})
	return h
}

func (h *host) file(path, text string, mode os.FileMode) string {
	h.t.Helper()
	if err := os.WriteFile(path, []byte(text), mode); err != nil {
		h.t.Fatal(err)
	}
	if err := os.Chmod(path, mode); err != nil {
		h.t.Fatal(err)
	}
	return path
}

func (h *host) spec(dir, name, body string) string {
	h.t.Helper()
	return h.file(filepath.Join(dir, name), "cdiVersion: 1.1.0\nkind: quittance.test/card\n"+body, 0o644)
}

// node is one device with device nodes.
func node(name string, paths ...string) string {
	text := "- name: \"" + name + "\"\n  containerEdits:\n    deviceNodes:\n"
	for _, p := range paths {
		text += "    - path: " + p + "\n"
	}
	return text
}

func names(f Found) []string {
	out := []string{}
	for _, d := range f.Devices {
		short := make([]string, len(d.Names))
		for i, n := range d.Names {
			short[i] = strings.TrimPrefix(n, "quittance.test/card=")
		}
		out = append(out, strings.Join(short, "+"))
	}
	return out
}

func (h *host) expect(want ...string) Found {
	h.t.Helper()
	f := h.catalog.Look()
	if got := names(f); !slices.Equal(got, want) {
		h.t.Errorf("found %q, want %q; problems %+v", got, want, f.Problems)
	}
	return f
}

// problem finds what is said of a subject.
func problem(t *testing.T, f Found, subject, detail string) Problem {
	t.Helper()
	for _, p := range f.Problems {
		if strings.HasSuffix(p.Subject, subject) && strings.Contains(p.Detail, detail) {
			if p.Remedy == "" {
				t.Errorf("%s: no remedy", subject)
			}
			return p
		}
	}
	t.Errorf("nothing says %q of %s: %+v", detail, subject, f.Problems)
	return Problem{}
}

// An index and a UUID of one card are one device; "all" is a bundle; what has
// no node cannot be exclusive.
func TestIdentityIsTheSetOfNodes(t *testing.T) {
	h := newHost(t)
	h.spec(h.low, "card.yaml", "devices:\n"+node("10", "/dev/full")+node("GPU-1", "/dev/null", "/dev/zero")+node("0", "/dev/zero", "/dev/null")+
		node("2", "/dev/random")+node("all", "/dev/null", "/dev/zero", "/dev/full", "/dev/random")+
		"- name: env\n  containerEdits:\n    env: [\"A=b\"]\n")
	f := h.expect("0+GPU-1", "2", "10")
	if got := f.Devices[0].Nodes; !slices.Equal(got, []string{"/dev/null", "/dev/zero"}) {
		t.Errorf("nodes %v", got)
	}
	for _, d := range f.Devices {
		if d.Fault != "" || d.Kind != "quittance.test/card" {
			t.Errorf("%+v", d)
		}
	}
	if !problem(t, f, "=all", "bundles").Harmless {
		t.Error("a bundle is no fault")
	}
	problem(t, f, "=env", "no device node")
}

// Slices of one card overlap without containing each other: both are devices,
// and exclusive on the nodes that they share.
func TestSlicesStayDevices(t *testing.T) {
	h := newHost(t)
	h.spec(h.low, "card.yaml", "devices:\n"+node("0:0", "/dev/null", "/dev/zero")+node("0:1", "/dev/null", "/dev/full"))
	f := h.expect("0:0", "0:1")
	if p := problem(t, f, "quittance.test/card", "2 devices of kind quittance.test/card share /dev/null"); !p.Harmless {
		t.Error("sharing is no fault")
	}
	two := &profiles.Profile{Resources: profiles.Resources{Devices: []profiles.DeviceRequest{{Kind: "quittance.test/card", Count: 2}}}}
	if lacks := f.Lacks(two); !strings.Contains(lacks, "2 wanted, 1 of 2") {
		t.Errorf("two of them: %q", lacks)
	}
	two.Resources.Devices[0].Count = 1
	if lacks := f.Lacks(two); lacks != "" {
		t.Errorf("one of them: %q", lacks)
	}
}

func TestOnlyAllIsNotLeased(t *testing.T) {
	h := newHost(t)
	h.spec(h.low, "card.yaml", "devices:\n"+node("all", "/dev/null"))
	problem(t, h.expect(), "=all", "cannot be told")
	h.spec(h.low, "card.yaml", "devices:\n"+node("all", "/dev/null")+node("GPU-1", "/dev/null"))
	h.expect("GPU-1+all")
}

// The later directory wins; within one directory nobody does.
func TestPriorityAndConflict(t *testing.T) {
	h := newHost(t)
	h.spec(h.low, "a.yaml", "devices:\n"+node("0", "/dev/null")+node("1", "/dev/zero"))
	h.spec(h.high, "a.yaml", "devices:\n"+node("0", "/dev/full"))
	f := h.expect("0", "1")
	if got := f.Devices[0].Nodes; !slices.Equal(got, []string{"/dev/full"}) {
		t.Errorf("nodes %v", got)
	}
	h.spec(h.high, "b.json", "devices:\n"+node("0", "/dev/null"))
	problem(t, h.expect("1"), "=0", "define it")
}

// A spec that cannot be used hides no other, and says why (I34).
func TestUnusableSpecs(t *testing.T) {
	h := newHost(t)
	h.spec(h.low, "good.yaml", "devices:\n"+node("0", "/dev/null"))
	h.spec(h.low, ".hidden.yaml", "nonsense")
	h.spec(h.low, "notes.txt", "nonsense")
	for name, c := range map[string]struct{ text, want string }{
		"syntax.yaml":  {"devices: [", "unmarshal"},
		"unknown.yaml": {"colour: red\ndevices:\n" + node("0", "/dev/null"), "colour"},
		"none.yaml":    {"devices: []\n", "no devices"},
		"twice.yaml":   {"devices:\n" + node("x", "/dev/null") + node("x", "/dev/zero"), "twice"},
		"name.yaml":    {"devices:\n" + node("x y", "/dev/null"), "invalid"},
		"empty.json":   {"", ""},
	} {
		h.spec(h.low, name, c.text)
		problem(t, h.expect("0"), name, c.want)
		if err := os.Remove(filepath.Join(h.low, name)); err != nil {
			t.Fatal(err)
		}
	}
	path := h.spec(h.low, "writable.yaml", "devices:\n"+node("1", "/dev/zero"))
	if err := os.Chmod(path, 0o666); err != nil {
		t.Fatal(err)
	}
	problem(t, h.expect("0"), "writable.yaml", "chmod go-w")
	if err := os.Chmod(path, 0o644); err != nil {
		t.Fatal(err)
	}
	h.file(filepath.Join(h.low, "long.yaml"), strings.Repeat("#", maxSpecBytes+1), 0o644)
	problem(t, h.expect("0", "1"), "long.yaml", "longer than")
	if err := os.Chmod(h.low, 0o777); err != nil {
		t.Fatal(err)
	}
	problem(t, h.expect(), h.low, "chmod go-w")
}

func TestNoDirectoriesNoDevices(t *testing.T) {
	f := New([]string{filepath.Join(t.TempDir(), "absent")}).Look()
	if len(f.Devices) != 0 || len(f.Problems) != 0 || f.Specs != 0 {
		t.Errorf("%+v", f)
	}
}

// Whatever the edits name must be there, and must be what the spec says.
func TestPreflight(t *testing.T) {
	dir := t.TempDir()
	if err := os.Chmod(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	hook := filepath.Join(dir, "hook")
	edits := func(own, shared string) string {
		return "devices:\n- name: \"0\"\n  containerEdits:\n    deviceNodes:\n    - {path: /dev/card, hostPath: /dev/null}\n" + own +
			"containerEdits:\n  env: [\"A=b\"]\n" + shared
	}
	h := newHost(t)
	h.file(hook, "#!/bin/true\n", 0o755)
	h.file(filepath.Join(dir, "text"), "no program", 0o644)
	h.file(filepath.Join(dir, "open"), "#!/bin/true\n", 0o777)
	for name, c := range map[string]struct{ own, shared, want string }{
		"fit":            {"", fmt.Sprintf("  mounts: [{hostPath: %s, containerPath: /usr/lib/x}, {hostPath: none, containerPath: /scratch, type: tmpfs}]\n  hooks: [{hookName: createContainer, path: %s}, {hookName: startContainer, path: /inside}]\n", dir, hook), ""},
		"same number":    {"    - {path: /dev/x, hostPath: /dev/zero, type: c, major: 1, minor: 5}\n", "", ""},
		"node gone":      {"    - {path: /dev/quittance-absent}\n", "", "device node /dev/quittance-absent: no such file or directory; the spec is stale"},
		"no node":        {"    - {path: /dev/x, hostPath: " + hook + "}\n", "", "is not a device node"},
		"other number":   {"    - {path: /dev/x, hostPath: /dev/zero, type: c, major: 1, minor: 9}\n", "", "is 1:5 and the spec says 1:9"},
		"other type":     {"    - {path: /dev/x, hostPath: /dev/zero, type: b}\n", "", "of another type"},
		"our init":       {"    - {path: /dev/init, hostPath: /dev/zero}\n", "", "not its to have"},
		"shared node":    {"", "  deviceNodes: [{path: /dev/quittance-absent}]\n", "no such file"},
		"mount gone":     {"", "  mounts: [{hostPath: " + dir + "/absent, containerPath: /x}]\n", "mount source " + dir + "/absent: no such file or directory; the spec is stale"},
		"covers /dev":    {"", "  mounts: [{hostPath: " + dir + ", containerPath: /dev/}]\n", "not its to cover"},
		"hook gone":      {"", "  hooks: [{hookName: createContainer, path: " + dir + "/absent}]\n", "hook " + dir + "/absent: no such file"},
		"hook no prog":   {"", "  hooks: [{hookName: createRuntime, path: " + dir + "/text}]\n", "is no program"},
		"hook writable":  {"", "  hooks: [{hookName: poststop, path: " + dir + "/open}]\n", "chmod go-w"},
		"hook relative":  {"", "  hooks: [{hookName: prestart, path: hook}]\n", "not an absolute path"},
		"network":        {"", "  netDevices: [{hostInterfaceName: eth0, name: eth0}]\n", "a worker has no network"},
		"cache":          {"", "  intelRdt: {closID: x}\n", "intelRdt"},
		"another's node": {"- name: \"1\"\n  containerEdits:\n    deviceNodes: [{path: /dev/full}]\n", "  deviceNodes: [{path: /dev/full}]\n", "which is the device quittance.test/card=1"},
	} {
		h.spec(h.low, "card.yaml", edits(c.own, c.shared))
		f := h.catalog.Look()
		if len(f.Devices) == 0 {
			t.Errorf("%s: not found: %+v", name, f.Problems)
			continue
		}
		if fault := f.Devices[0].Fault; c.want == "" && fault != "" || !strings.Contains(fault, c.want) {
			t.Errorf("%s: fault %q, want %q", name, fault, c.want)
		}
		if c.want != "" {
			problem(t, f, "=0", c.want)
			one := &profiles.Profile{Resources: profiles.Resources{Devices: []profiles.DeviceRequest{{Kind: "quittance.test/card", Count: 2}}}}
			if lacks := f.Lacks(one); !strings.Contains(lacks, c.want) {
				t.Errorf("%s: the profile lacks %q", name, lacks)
			}
		}
	}
}

// A hook and a directory of specs are as safe as the directories above them, by
// whatever link they are reached; a sticky one of root's is safe.
func TestWayIsOnlyRoots(t *testing.T) {
	top := t.TempDir()
	open := filepath.Join(top, "open")
	in := filepath.Join(open, "in")
	for _, dir := range []string{open, in} {
		if err := errors.Join(os.Mkdir(dir, 0o755), os.Chmod(dir, 0o755)); err != nil {
			t.Fatal(err)
		}
	}
	h := newHost(t)
	h.file(filepath.Join(in, "hook"), "#!/bin/true\n", 0o755)
	link := filepath.Join(h.high, "hook")
	if err := os.Symlink(filepath.Join(in, "hook"), link); err != nil {
		t.Fatal(err)
	}
	h.spec(in, "card.yaml", "devices:\n"+node("1", "/dev/zero"))
	h.catalog = New([]string{h.low, in})
	for mode, want := range map[os.FileMode]string{0o755: "", 0o777: "chmod go-w", 0o775: "chmod go-w"} {
		if err := errors.Join(os.Chmod(top, 0o755), os.Chmod(open, mode)); err != nil {
			t.Fatal(err)
		}
		for _, hook := range []string{filepath.Join(in, "hook"), link} {
			h.spec(h.low, "card.yaml", "devices:\n"+node("0", "/dev/null")+"containerEdits: {hooks: [{hookName: prestart, path: "+hook+"}]}\n")
			f := h.catalog.Look()
			if fault := f.Devices[0].Fault; (fault == "") != (want == "") || !strings.Contains(fault, want) {
				t.Errorf("mode %04o, %s: fault %q, want %q", mode, hook, fault, want)
			}
			if specs := len(names(f)); (specs == 2) != (want == "") {
				t.Errorf("mode %04o: %d devices are offered; %+v", mode, specs, f.Problems)
			}
		}
	}
	if os.Geteuid() != 0 {
		return // a sticky directory counts where it is root's
	}
	if err := os.Chmod(open, 0o777|os.ModeSticky); err != nil {
		t.Fatal(err)
	}
	if f := h.catalog.Look(); len(f.Devices) != 2 || f.Devices[0].Fault != "" {
		t.Errorf("sticky: %+v", f)
	}
}

func lease(f Found) ([]protocol.Device, protocol.Digest) {
	var leased []protocol.Device
	var digests []protocol.Digest
	for _, d := range f.Devices {
		digests = append(digests, d.Digest)
		for _, name := range d.Names {
			leased = append(leased, protocol.Device{Name: name, Nodes: d.Nodes})
		}
	}
	return leased, protocol.CDIDigest(digests)
}

// What is injected is what was leased: each card once, what its spec gives to
// all of them once, and the nodes alone allowed.
func TestInjection(t *testing.T) {
	h := newHost(t)
	path := h.spec(h.low, "card.yaml", "containerEdits:\n  env: [\"CARDS=some\"]\n  deviceNodes: [{path: /dev/control, hostPath: /dev/random}]\n"+
		"devices:\n"+node("0", "/dev/null")+node("UUID-0", "/dev/null")+node("1", "/dev/zero"))
	f := h.expect("0+UUID-0", "1")
	leased, digest := lease(f)
	data, err := os.ReadFile(path)
	if err != nil || digest != protocol.DigestOf(data) {
		t.Errorf("digest %s, %v: one spec's digest is its file's", digest, err)
	}
	in, err := h.catalog.Injection(leased, digest)
	if err != nil {
		t.Fatal(err)
	}
	s := &oci.Spec{
		Process: &oci.Process{User: oci.User{UID: 65534, GID: 65534}},
		Linux:   &oci.Linux{Resources: &oci.LinuxResources{Devices: []oci.LinuxDeviceCgroup{{Allow: false, Access: "rwm"}}}},
	}
	if err := in.Apply(s); err != nil {
		t.Fatal(err)
	}
	var paths []string
	for _, d := range s.Linux.Devices {
		paths = append(paths, d.Path)
		if d.UID == nil || *d.UID != 65534 || d.Major != 1 {
			t.Errorf("node %+v", d)
		}
	}
	if !slices.Equal(paths, []string{"/dev/control", "/dev/null", "/dev/zero"}) || !slices.Equal(s.Process.Env, []string{"CARDS=some"}) {
		t.Errorf("nodes %v, environment %v", paths, s.Process.Env)
	}
	rules := s.Linux.Resources.Devices
	if len(rules) != 4 || rules[0].Allow || !rules[1].Allow || *rules[1].Minor != 8 {
		t.Errorf("rules %+v", rules)
	}
}

// The specs changed after the lease: nothing is injected, never something else.
func TestInjectionRefusesWhatWasNotLeased(t *testing.T) {
	h := newHost(t)
	const shared = "containerEdits:\n  env: [\"CARDS=some\"]\n"
	h.spec(h.low, "card.yaml", shared+"devices:\n"+node("0", "/dev/null"))
	leased, digest := lease(h.expect("0"))
	for name, body := range map[string]string{
		"gone":         shared + "devices:\n" + node("1", "/dev/null"),
		"other nodes":  shared + "devices:\n" + node("0", "/dev/zero"),
		"other shared": "containerEdits:\n  env: [\"CARDS=all\"]\ndevices:\n" + node("0", "/dev/null"),
	} {
		h.spec(h.low, "card.yaml", body)
		if _, err := h.catalog.Injection(leased, digest); !errors.Is(err, ErrChanged) {
			t.Errorf("%s: %v", name, err)
		}
	}
	h.spec(h.low, "card.yaml", shared+"devices:\n"+node("0", "/dev/null"))
	if _, err := h.catalog.Injection(leased, digest); err != nil {
		t.Errorf("as before: %v", err)
	}
}

// Several specs have one digest, whatever their order.
func TestDigestOfSeveralSpecs(t *testing.T) {
	a, b := protocol.DigestOf([]byte("a")), protocol.DigestOf([]byte("b"))
	if protocol.CDIDigest([]protocol.Digest{a, b, a}) != protocol.CDIDigest([]protocol.Digest{b, a}) {
		t.Error("the order matters")
	}
	if got := protocol.CDIDigest([]protocol.Digest{a, a}); got != a {
		t.Errorf("one spec: %s", got)
	}
}

// FuzzSpec: no spec file, however malformed, ends the agent or becomes a device
// without a node (I33, I34).
func FuzzSpec(f *testing.F) {
	for _, seed := range []string{
		"devices:\n" + node("0", "/dev/null"), "devices: [{name: a, containerEdits: {deviceNodes: [null]}}]",
		"devices: [{name: a, containerEdits: {mounts: [null], hooks: [null]}}]", "containerEdits: {netDevices: [null]}\ndevices: [{name: a, containerEdits: {env: [A=b]}}]",
		"&a [*a, *a]", "{\"devices\":[{\"name\":\"x\"}]}",
	} {
		f.Add("cdiVersion: 1.1.0\nkind: quittance.test/card\n" + seed)
	}
	dir := f.TempDir()
	if err := os.Chmod(dir, 0o755); err != nil {
		f.Fatal(err)
	}
	catalog := New([]string{dir})
	f.Fuzz(func(t *testing.T, text string) {
		if err := os.WriteFile(filepath.Join(dir, "card.yaml"), []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
		found := catalog.Look()
		for _, d := range found.Devices {
			if len(d.Nodes) == 0 || len(d.Names) == 0 {
				t.Errorf("%+v", d)
			}
			if d.Fault != "" {
				continue
			}
			leased, digest := lease(Found{Devices: []Device{d}})
			in, err := catalog.Injection(leased, digest)
			if err != nil {
				t.Fatal(err)
			}
			if err := in.Apply(&oci.Spec{}); err != nil {
				t.Logf("refused by the library: %v", err)
			}
		}
	})
}
