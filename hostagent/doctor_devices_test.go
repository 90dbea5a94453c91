package hostagent

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/quittance/quittance/protocol"
)

const askingProfile = `name = "llm"
image = "quittance.local/llm@sha256:e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855"
args = ["/llm"]
[resources]
memory = "64MiB"
[[resources.device]]
kind = "quittance.test/card"
count = 1
[channel]
address = "tcp://127.0.0.1:8080"
ready = { connect = true }
`

// Each thing that can be wrong with the specs is a finding with its remedy;
// nothing is where no profile asks and no spec is.
func TestDoctorOfDevices(t *testing.T) {
	dir := t.TempDir()
	cdi, profileDir := filepath.Join(dir, "cdi"), filepath.Join(dir, "profiles")
	if err := os.Mkdir(profileDir, 0o755); err != nil {
		t.Fatal(err)
	}
	write := func(path, text string) {
		t.Helper()
		if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	expect := func(name string, state protocol.CheckState, found, remedy string) {
		t.Helper()
		d := &doctor{cfg: Config{ProfileDir: profileDir, CDIDirs: []string{cdi}}}
		d.devices()
		for _, c := range d.checks {
			if c.Name == name && c.State == state && strings.Contains(c.Found, found) && strings.Contains(c.Remedy, remedy) && (c.Remedy == "") == (c.State == protocol.CheckFine) {
				return
			}
		}
		t.Errorf("no check %s %s %q %q among %+v", name, state, found, remedy, d.checks)
	}
	spec := func(name, text string) {
		write(filepath.Join(cdi, name), "cdiVersion: 1.1.0\nkind: quittance.test/card\n"+text)
	}
	const card = "devices: [{name: \"0\", containerEdits: {deviceNodes: [{path: /dev/null}]}}]\n"
	expect("devices", protocol.CheckFine, "no profile asks", "")
	write(filepath.Join(profileDir, "llm.toml"), askingProfile)
	expect("devices", protocol.CheckFailed, "no directory of CDI specs", "nvidia-ctk cdi generate")
	if err := os.Mkdir(cdi, 0o755); err != nil {
		t.Fatal(err)
	}
	expect("devices", protocol.CheckFailed, "no CDI spec in "+cdi, "nvidia-ctk cdi generate")
	spec("card.yaml", card)
	expect("devices", protocol.CheckFine, "1 device in 1 specs", "")
	spec("card.yaml", "devices: [{name: \"0\", containerEdits: {deviceNodes: [{path: /dev/null}]}}, {name: all, containerEdits: {deviceNodes: [{path: /dev/null}, {path: /dev/zero}]}}]\n")
	expect("devices", protocol.CheckFine, "1 device in 1 specs; `agentctl devices` says who holds them; quittance.test/card=all bundles quittance.test/card=0", "")
	spec("card.yaml", card)
	spec("twin.yaml", card)
	expect("device quittance.test/card=0", protocol.CheckFailed, "define it", "remove one")
	expect("devices of profile llm", protocol.CheckFailed, "1 wanted, 0 of 0", "generate")
	spec("twin.yaml", "nonsense")
	expect("device "+filepath.Join(cdi, "twin.yaml"), protocol.CheckFailed, "", "mend it")
	if err := os.Remove(filepath.Join(cdi, "twin.yaml")); err != nil {
		t.Fatal(err)
	}
	spec("card.yaml", "devices: [{name: \"0\", containerEdits: {deviceNodes: [{path: /dev/quittance-absent}]}}]\n")
	expect("device quittance.test/card=0", protocol.CheckFailed, "device node /dev/quittance-absent: no such file", "generate the spec anew")
	expect("devices of profile llm", protocol.CheckFailed, "/dev/quittance-absent", "")
	if err := os.Remove(filepath.Join(profileDir, "llm.toml")); err != nil {
		t.Fatal(err)
	}
	expect("device quittance.test/card=0", protocol.CheckWarning, "no such file", "generate the spec anew")
}
