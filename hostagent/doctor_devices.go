package hostagent

import (
	"fmt"
	"os"
	"strings"

	"github.com/quittance/quittance/profiles"
	"github.com/quittance/quittance/protocol"
)

// devices looks at the CDI specs as a request for a device would. What is wrong
// with them is a failure where a profile asks for devices, and a warning where
// none does.
func (d *doctor) devices() {
	const name = "devices"
	asking, err := askingProfiles(d.cfg.ProfileDir)
	if err != nil {
		d.add(name, protocol.CheckWarning, "once the check of the profiles is fine, look again", "cannot be told: %v", err)
		return
	}
	found := newDeviceTable(d.cfg).look()
	state := protocol.CheckWarning
	if len(asking) > 0 {
		state = protocol.CheckFailed
	}
	sound, notes := true, ""
	add := func(subject, remedy, detail string) {
		sound = false
		d.add(subject, state, remedy, "%s", detail)
	}
	for _, p := range found.Problems {
		switch {
		case !p.Harmless:
			add("device "+p.Subject, p.Remedy, p.Detail)
		case len(notes) < maxNotes:
			notes += "; " + p.Detail
		}
	}
	dirs := strings.Join(d.cfg.CDIDirs, " and ")
	if len(asking) > 0 && found.Specs == 0 && sound {
		detail := "no CDI spec in " + dirs
		if !anyExists(d.cfg.CDIDirs) {
			detail = "no directory of CDI specs: neither of " + dirs + " exists"
		}
		add(name, "let the devices' vendor tool write a spec; for NVIDIA `nvidia-ctk cdi generate --output=/etc/cdi/nvidia.yaml`", detail)
		return
	}
	for _, p := range asking {
		if lacks := found.Lacks(&p); lacks != "" {
			add("devices of profile "+p.Name, "mend the devices that are named, generate the spec anew, or let the profile ask for fewer", lacks)
		}
	}
	switch {
	case !sound:
	case len(asking) == 0 && found.Specs == 0:
		d.fine(name, "no profile asks for any")
	default:
		d.fine(name, "%s in %d specs; `agentctl devices` says who holds them%s", counted(len(found.Devices), "device"), found.Specs, notes)
	}
}

// maxNotes bounds what is told of specs that are sound.
const maxNotes = 256

// askingProfiles are the valid profiles that ask for devices.
func askingProfiles(dir string) ([]profiles.Profile, error) {
	loaded, err := profiles.Load(dir)
	var asking []profiles.Profile
	for _, l := range loaded {
		if l.Err == nil && len(l.Profile.Resources.Devices) > 0 {
			asking = append(asking, l.Profile)
		}
	}
	return asking, err
}

func anyExists(dirs []string) bool {
	for _, dir := range dirs {
		if _, err := os.Stat(dir); err == nil {
			return true
		}
	}
	return false
}

func counted(n int, what string) string {
	if n == 1 {
		return "1 " + what
	}
	return fmt.Sprintf("%d %ss", n, what)
}
