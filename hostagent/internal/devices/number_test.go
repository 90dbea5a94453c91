//go:build engine

package devices

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

// Two paths to one device are one device, whatever spec or kind names them: its
// nodes list both paths, so that a lease under either name holds it. Needs root,
// which makes device nodes.
func TestOneDeviceByTwoPaths(t *testing.T) {
	h := newHost(t)
	dir := t.TempDir()
	at := func(name string) string { return filepath.Join(dir, name) }
	for name, minor := range map[string]uint32{"null": 3, "nil": 3, "zero": 5} {
		if err := unix.Mknod(at(name), unix.S_IFCHR|0o600, int(unix.Mkdev(1, minor))); err != nil {
			t.Fatal(err)
		}
	}
	h.spec(h.low, "card.yaml", "devices:\n"+node("0", at("null"))+node("GPU-0", at("nil"))+node("1", at("zero"))+node("all", at("zero"), at("nil")))
	other := "cdiVersion: 1.1.0\nkind: quittance.test/other\ndevices:\n" + node("x", at("nil"))
	if err := os.WriteFile(filepath.Join(h.low, "other.yaml"), []byte(other), 0o644); err != nil {
		t.Fatal(err)
	}
	f := h.expect("0+GPU-0", "1", "quittance.test/other=x")
	both := []string{at("nil"), at("null")}
	if !slices.Equal(f.Devices[0].Nodes, both) || !slices.Equal(f.Devices[0].Nodes, f.Devices[2].Nodes) {
		t.Errorf("nodes %v and %v, want %v", f.Devices[0].Nodes, f.Devices[2].Nodes, both)
	}
	problem(t, f, "=all", "bundles")
	// A spec that is written anew with other paths and names: what is held shows.
	h.spec(h.low, "card.yaml", "devices:\n"+node("new", at("nil"))+node("1", at("zero")))
	for _, d := range h.catalog.Look(at("null"), at("gone")).Devices {
		if held := slices.Contains(d.Nodes, at("null")); held == strings.HasSuffix(d.Names[0], "=1") || slices.Contains(d.Nodes, at("gone")) {
			t.Errorf("%v has the nodes %v", d.Names, d.Nodes)
		}
	}
	h.spec(h.low, "card.yaml", "devices:\n"+node("0", at("null"))+node("GPU-0", at("nil"))+node("1", at("zero"))+node("all", at("zero"), at("nil")))
	leased, digest := lease(Found{Devices: f.Devices[:1]})
	if _, err := h.catalog.Injection(leased, digest); err != nil {
		t.Error(err)
	}
}
