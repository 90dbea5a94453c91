// Package checkup is what agentctl doctor makes of the agent's own answers:
// what an operator should look at, each with its remedy.
//
// It owns the judgement, as pure functions of typed answers. It must not ask,
// print, or look at the machine: that is hostagent's part of the checkup.
package checkup

import (
	"fmt"
	"time"

	"github.com/quittance/quittance/cmd/agentctl/internal/words"
	"github.com/quittance/quittance/protocol"
)

// silence is how long an owner may be unheard before it is worth a look.
const silence = 5 * time.Minute

// Unreachable is the check of an agent that did not answer.
func Unreachable(err error) protocol.Check {
	return protocol.Check{Name: "agent's socket", State: protocol.CheckFailed, Found: err.Error(),
		Remedy: "start the agent, as a user of the socket's group: `systemctl status quittance-hostagent`"}
}

// Unexamined is the check of a machine that could not be looked at.
func Unexamined(err error) protocol.Check {
	return protocol.Check{Name: "machine", State: protocol.CheckWarning, Found: "`hostagent doctor` did not run: " + err.Error(),
		Remedy: "run this as root on the node, or name the program with --hostagent"}
}

// Of judges the agent's answers.
func Of(host protocol.Host, profiles []protocol.ProfileInfo) []protocol.Check {
	var checks []protocol.Check
	add := func(name string, bad protocol.CheckState, remedy, found string) {
		if bad == protocol.CheckFine {
			remedy = ""
		}
		checks = append(checks, protocol.Check{Name: name, State: bad, Found: found, Remedy: remedy})
	}
	worse := func(bad bool, state protocol.CheckState) protocol.CheckState {
		if bad {
			return state
		}
		return protocol.CheckFine
	}
	engine := "containerd " + host.Engine.Version + " answers the agent"
	if !host.Engine.Available {
		engine = "unavailable to the agent: " + host.Engine.Detail
	}
	add("agent's engine", worse(!host.Engine.Available, protocol.CheckFailed), "look at `systemctl status containerd`; the agent goes on by itself", engine)
	add("drain", worse(host.Draining, protocol.CheckWarning), "`agentctl undrain` once the maintenance is over",
		map[bool]string{true: "new allocations are refused", false: "none"}[host.Draining])
	add("stuck", worse(host.Slots.Stuck > 0, protocol.CheckWarning), "`agentctl allocations --stuck`, then `agentctl inspect NUMBER` says what holds it",
		fmt.Sprintf("%d allocations", host.Slots.Stuck))
	add("slots", worse(host.Slots.Used >= host.Slots.Max, protocol.CheckWarning), "wait for allocations to be consumed, or raise max_slots",
		fmt.Sprintf("%d of %d used", host.Slots.Used, host.Slots.Max))
	full := host.Slots.Unreleased*5 >= host.Slots.MaxUnreleased*4
	add("history", worse(full, protocol.CheckWarning), "`agentctl release-status` says what blocks the release; at the bound new work is refused",
		fmt.Sprintf("%d of %d consumed and unreleased", host.Slots.Unreleased, host.Slots.MaxUnreleased))
	checks = append(checks, controller(host))
	available := 0
	for _, p := range profiles {
		if p.Available {
			available++
			continue
		}
		add("profile "+p.Name, protocol.CheckWarning, "do as it says, then `systemctl reload quittance-hostagent`", p.Reason)
	}
	add("agent's profiles", worse(available == 0, protocol.CheckWarning), "make a profile available: without one there is no work",
		fmt.Sprintf("%d of %d available", available, len(profiles)))
	return checks
}

// controller judges what is known of the owner.
func controller(host protocol.Host) protocol.Check {
	c := protocol.Check{Name: "controller", State: protocol.CheckFine}
	const remedy = "look at the controller: `systemctl status quittance-controller`"
	switch {
	case host.Owner == nil:
		c.Found = "none has taken this generation yet"
	case host.OwnerHeard == nil:
		c.State, c.Found, c.Remedy = protocol.CheckWarning, "not heard since the agent started", remedy
	case host.Time.Time().Sub(host.OwnerHeard.Time()) > silence:
		c.State, c.Found, c.Remedy = protocol.CheckWarning, "last heard "+words.Ago(*host.OwnerHeard, host.Time), remedy
	case host.WitnessRequired:
		c.State, c.Found, c.Remedy = protocol.CheckWarning, "has not presented its witness since the agent started: its new work is refused", remedy
	default:
		c.Found = "heard " + words.Ago(*host.OwnerHeard, host.Time)
	}
	return c
}
