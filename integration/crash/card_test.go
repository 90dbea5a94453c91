//go:build crash

package crash_test

import (
	"fmt"
	"os"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/quittance/quittance/integration/agenttest"
)

// oneCard gives the host of a lab one made-up card and returns what a profile
// says to lease it. Where every number needs the same card, a lease that is lost
// or kept too long fails the next number or the audit (I16).
func oneCard(t *testing.T, lab *agenttest.Lab) string {
	t.Helper()
	if err := os.Mkdir(lab.CDIDir(), 0o755); err != nil {
		t.Fatal(err)
	}
	// The fuse driver's number: harmless, and no container has it by itself.
	node := filepath.Join(lab.CDIDir(), "card0")
	if err := unix.Mknod(node, unix.S_IFCHR|0o600, int(unix.Mkdev(10, 229))); err != nil {
		t.Fatal(err)
	}
	spec := fmt.Sprintf("cdiVersion: 0.6.0\nkind: quittance.test/card\ndevices:\n- name: \"0\"\n  containerEdits:\n    deviceNodes: [{path: /dev/card0, hostPath: %s}]\n", node)
	if err := os.WriteFile(filepath.Join(lab.CDIDir(), "card.yaml"), []byte(spec), 0o644); err != nil {
		t.Fatal(err)
	}
	return "[[resources.device]]\nkind = \"quittance.test/card\"\n"
}
