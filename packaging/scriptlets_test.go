package packaging

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// scriptlet runs a maintainer script with some of this machine's paths replaced
// and with programs that stand in for others, and returns what it printed.
func scriptlet(t *testing.T, name string, paths, programs map[string]string) (printed string, err error) {
	t.Helper()
	text, err := os.ReadFile(filepath.Join("scripts", name))
	if err != nil {
		t.Fatal(err)
	}
	script, bin := string(text), t.TempDir()
	for path, to := range paths {
		if !strings.Contains(script, path) {
			t.Fatalf("%s does not look at %s", name, path)
		}
		script = strings.ReplaceAll(script, path, to)
	}
	for program, body := range programs {
		if err := os.WriteFile(filepath.Join(bin, program), []byte("#!/bin/sh\n"+body+"\n"), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	cmd := exec.CommandContext(t.Context(), "sh", "-s", "configure")
	cmd.Stdin, cmd.Env = strings.NewReader(script), append(os.Environ(), "PATH="+bin+":"+os.Getenv("PATH"))
	out, err := cmd.CombinedOutput()
	return string(out), err
}

// A later format is found wherever the configuration puts the state, in every
// spelling that TOML has for it.
func TestPreinstallFindsTheState(t *testing.T) {
	state := t.TempDir()
	for path, text := range map[string]string{
		"attempts/scope":            `{"format":"quittance-store","v":99,"x":1}` + "\n",
		"ledger/0000000001.segment": "QLEDGER1\x63\x00\x00\x00",
	} {
		path = filepath.Join(state, path)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	for _, program := range []string{"controller", "hostagent"} {
		for _, line := range []string{`state_dir = "DIR"`, `state_dir="DIR" # here`, `state_dir = 'DIR'`, "\tstate_dir\t=  'DIR'"} {
			etc := t.TempDir()
			text := "# state_dir = \"/nowhere\"\n" + strings.ReplaceAll(line, "DIR", state) + "\n"
			if err := os.WriteFile(filepath.Join(etc, program+".toml"), []byte(text), 0o644); err != nil {
				t.Fatal(err)
			}
			printed, err := scriptlet(t, program+"-preinstall.sh", map[string]string{"/etc/quittance": etc}, nil)
			if err == nil || !strings.Contains(printed, "has format 99") {
				t.Errorf("%s, %q: %v: %s", program, line, err, printed)
			}
		}
	}
}

// A controller that does not start leaves no half-configured package: that is
// said, and the script succeeds.
func TestPostinstallOutlivesAFailedStart(t *testing.T) {
	printed, err := scriptlet(t, "controller-postinstall.sh", map[string]string{"/run/systemd/system": t.TempDir()}, map[string]string{
		"systemd-sysusers": "exit 0", "systemd-tmpfiles": "exit 0", "systemctl": `[ "$1" != try-restart ]`,
	})
	if err != nil || !strings.Contains(printed, "journalctl -u quittance-controller") {
		t.Errorf("%v: %s", err, printed)
	}
}
