package checkup

import (
	"errors"
	"strings"
	"testing"

	"github.com/quittance/quittance/protocol"
)

func healthy() (protocol.Host, []protocol.ProfileInfo) {
	owner, heard := protocol.ID(strings.Repeat("a", 32)), protocol.Timestamp(1_796_000_100_000_000)
	return protocol.Host{
		Engine: protocol.Engine{Available: true, Version: "2.4.2"}, Owner: &owner, OwnerHeard: &heard, Time: heard + 3_000_000,
		Slots: protocol.Slots{Max: 4, Used: 3, MaxUnreleased: 10, Unreleased: 7},
	}, []protocol.ProfileInfo{{Name: "ocr", Available: true}}
}

func TestHealthy(t *testing.T) {
	for _, c := range Of(healthy()) {
		if c.State != protocol.CheckFine || c.Remedy != "" || c.Found == "" {
			t.Errorf("%+v", c)
		}
	}
}

// Each finding is one check that is not fine and has a remedy.
func TestFindings(t *testing.T) {
	for name, row := range map[string]struct {
		change func(*protocol.Host, *[]protocol.ProfileInfo)
		state  protocol.CheckState
	}{
		"agent's engine": {func(h *protocol.Host, _ *[]protocol.ProfileInfo) { h.Engine.Available = false }, protocol.CheckFailed},
		"drain":          {func(h *protocol.Host, _ *[]protocol.ProfileInfo) { h.Draining = true }, protocol.CheckWarning},
		"stuck":          {func(h *protocol.Host, _ *[]protocol.ProfileInfo) { h.Slots.Stuck = 1 }, protocol.CheckWarning},
		"slots":          {func(h *protocol.Host, _ *[]protocol.ProfileInfo) { h.Slots.Used = 4 }, protocol.CheckWarning},
		"history":        {func(h *protocol.Host, _ *[]protocol.ProfileInfo) { h.Slots.Unreleased = 8 }, protocol.CheckWarning},
		"controller":     {func(h *protocol.Host, _ *[]protocol.ProfileInfo) { h.Time += 301_000_000 }, protocol.CheckWarning},
		"profile langid": {func(_ *protocol.Host, p *[]protocol.ProfileInfo) {
			*p = append(*p, protocol.ProfileInfo{Name: "langid", Reason: "its image is not here"})
		}, protocol.CheckWarning},
		"agent's profiles": {func(_ *protocol.Host, p *[]protocol.ProfileInfo) { *p = nil }, protocol.CheckWarning},
	} {
		host, profiles := healthy()
		row.change(&host, &profiles)
		var bad []protocol.Check
		for _, c := range Of(host, profiles) {
			if c.State != protocol.CheckFine {
				bad = append(bad, c)
			}
		}
		if len(bad) != 1 || bad[0].Name != name || bad[0].State != row.state || bad[0].Remedy == "" {
			t.Errorf("%s: %+v", name, bad)
		}
	}
}

func TestControllerStates(t *testing.T) {
	for name, change := range map[string]func(*protocol.Host){
		"not heard since": func(h *protocol.Host) { h.OwnerHeard = nil },
		"witness":         func(h *protocol.Host) { h.WitnessRequired = true },
	} {
		host, _ := healthy()
		change(&host)
		if c := controller(host); c.State != protocol.CheckWarning || !strings.Contains(c.Found, name) {
			t.Errorf("%s: %+v", name, c)
		}
	}
	host, _ := healthy()
	host.Owner, host.OwnerHeard = nil, nil
	if c := controller(host); c.State != protocol.CheckFine {
		t.Errorf("a new generation: %+v", c)
	}
	for _, c := range []protocol.Check{Unreachable(errors.New("x")), Unexamined(errors.New("x"))} {
		if c.State == protocol.CheckFine || c.Remedy == "" || !strings.Contains(c.Found, "x") {
			t.Errorf("%+v", c)
		}
	}
}
