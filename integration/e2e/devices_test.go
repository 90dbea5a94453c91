//go:build e2e

package e2e

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/quittance/quittance/controller/api"
	"github.com/quittance/quittance/integration/controllertest"
	"github.com/quittance/quittance/protocol"
)

// Two jobs and one card: the second job's lane waits for the device and says so,
// no attempt fails for it, and the card goes from hand to hand by receipts.
func TestJobsShareOneCard(t *testing.T) {
	s := kit.NewSite(t, controllertest.Options{Lanes: 2})
	node := filepath.Join(t.TempDir(), "card0")
	// The fuse driver's number: harmless, and no container has it by itself.
	if err := unix.Mknod(node, unix.S_IFCHR|0o600, int(unix.Mkdev(10, 229))); err != nil {
		t.Fatal(err)
	}
	if err := os.Mkdir(s.Lab.CDIDir(), 0o755); err != nil {
		t.Fatal(err)
	}
	spec := fmt.Sprintf("cdiVersion: 0.6.0\nkind: quittance.test/card\ndevices:\n- name: \"0\"\n  containerEdits:\n    deviceNodes: [{path: /dev/card0, hostPath: %s}]\n", node)
	if err := os.WriteFile(filepath.Join(s.Lab.CDIDir(), "card.yaml"), []byte(spec), 0o644); err != nil {
		t.Fatal(err)
	}
	profile := filepath.Join(filepath.Dir(s.Lab.StateDir()), "profiles", "test.toml")
	text, err := os.ReadFile(profile)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(profile, append(text, "[[resources.device]]\nkind = \"quittance.test/card\"\n"...), 0o644); err != nil {
		t.Fatal(err)
	}
	s.Lab.Reload()
	s.Eventually("the profile asks for a card", func() (bool, error) {
		host, err := s.Lab.Operator().Host(t.Context())
		if err != nil {
			return false, err
		}
		list, err := s.Lab.Operator().In(host.Generation).Profiles(t.Context())
		return slices.ContainsFunc(list, func(p protocol.ProfileInfo) bool { return p.Available && len(p.Devices) == 1 }), err
	})
	lanes := s.Serve()
	first := s.Submit("hold first")
	s.AwaitExecutions(1)
	second := s.Submit("second")
	s.Eventually("the second job waits for a device", func() (bool, error) {
		c := s.Job(second).Condition
		return c != nil && c.Code == api.ConditionWaitingForDevice, nil
	})
	if n := s.Executions(); n != 1 {
		t.Errorf("%d executions while the card is held", n)
	}
	s.OpenGate()
	for id, text := range map[string]string{first: "hold first", second: "second"} {
		finished(t, s, id, text)
		if job := s.Job(id); len(job.Attempts) != 1 {
			t.Errorf("%d attempts", len(job.Attempts))
		}
		s.VerifyReceipts(id)
		granted := 0
		for _, r := range s.Receipts(id) {
			if strings.Contains(string(r.Leaf), `"devices":[{"name":"quittance.test/card=0","nodes":["`+node+`"]}],"cdi_digest":"sha256:`) {
				granted++
			}
		}
		if granted != 1 {
			t.Errorf("%d of the job's receipts grant the card, want 1", granted)
		}
	}
	s.AwaitReleased()
	lanes.Stop()
}
