package agenttest

import (
	"fmt"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"
)

// Card gives the lab's host one made-up card, quittance.test/card=0, and returns
// what a profile's Tables say to lease it. Where every number needs the same
// card, a lease that is lost or kept too long fails the next number or the
// audit (I16).
func (l *Lab) Card() string {
	l.t.Helper()
	if err := os.Mkdir(l.CDIDir(), 0o755); err != nil {
		l.t.Fatal(err)
	}
	// The fuse driver's number: harmless, and no container has it by itself.
	node := filepath.Join(l.CDIDir(), "card0")
	if err := unix.Mknod(node, unix.S_IFCHR|0o600, int(unix.Mkdev(10, 229))); err != nil {
		l.t.Fatal(err)
	}
	spec := fmt.Sprintf("cdiVersion: 0.6.0\nkind: quittance.test/card\ndevices:\n- name: \"0\"\n  containerEdits:\n    deviceNodes: [{path: /dev/card0, hostPath: %s}]\n", node)
	if err := os.WriteFile(filepath.Join(l.CDIDir(), "card.yaml"), []byte(spec), 0o644); err != nil {
		l.t.Fatal(err)
	}
	return "[[resources.device]]\nkind = \"quittance.test/card\"\n"
}
