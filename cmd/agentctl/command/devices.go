package command

import (
	"context"
	"fmt"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/quittance/quittance/cmd/agentctl/internal/exit"
	"github.com/quittance/quittance/cmd/agentctl/internal/table"
	"github.com/quittance/quittance/cmd/internal/commandline"
	"github.com/quittance/quittance/protocol"
)

// deviceState says whether a device can be granted.
type deviceState string

const (
	deviceFree        deviceState = "free"
	deviceHeld        deviceState = "held"
	deviceQuarantined deviceState = "quarantined" // held by an allocation that is stuck
)

// device is one device of the host: one set of nodes under all its names.
type device struct {
	Names   []string         `json:"names"`
	Nodes   []string         `json:"nodes"`
	State   deviceState      `json:"state"`
	Number  *protocol.Number `json:"number"` // that holds it, or one that shares a node with it
	Profile string           `json:"profile"`
	// Offered is false for a held device that the CDI specs do not offer any
	// more, or that would not pass its preflight now.
	Offered bool `json:"offered"`
}

// deviceList is what `agentctl devices -o json` prints.
type deviceList struct {
	Devices []device `json:"devices"`
}

// devicesOf puts together what the host offers and what allocations hold. A
// lease lasts from accepted to retired.
func devicesOf(host protocol.Host, allocations []protocol.Allocation) []device {
	all := []device{}
	add := func(d protocol.Device, offered bool) {
		i := slices.IndexFunc(all, func(o device) bool { return slices.Equal(o.Nodes, d.Nodes) })
		if i < 0 {
			all = append(all, device{Nodes: d.Nodes, State: deviceFree, Offered: offered})
			i = len(all) - 1
		}
		if !slices.Contains(all[i].Names, d.Name) {
			all[i].Names = append(all[i].Names, d.Name)
		}
	}
	for _, d := range host.Devices {
		add(d, true)
	}
	live := slices.DeleteFunc(slices.Clone(allocations), func(x protocol.Allocation) bool {
		return x.State == protocol.StateRetired || x.State == protocol.StateConsumed || x.State == protocol.StateReleased
	})
	for _, x := range live {
		for _, d := range x.Devices {
			add(d, false)
		}
	}
	for i := range all {
		for _, x := range live {
			if !slices.ContainsFunc(x.Devices, func(d protocol.Device) bool { return share(d.Nodes, all[i].Nodes) }) {
				continue
			}
			all[i].State, all[i].Number = deviceHeld, &x.Number
			if x.Stuck != nil {
				all[i].State = deviceQuarantined
			}
			if x.Profile != nil {
				all[i].Profile = *x.Profile
			}
		}
	}
	return all
}

func share(a, b []string) bool {
	return slices.ContainsFunc(a, func(node string) bool { return slices.Contains(b, node) })
}

func (a *app) devicesCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "devices",
		Short: "List the host's devices and who holds them",
		Long: `devices lists the devices that the host's CDI specs offer, and those that
allocations hold. A device with several names is listed once. It is held from
the accepted to the retired receipt of an allocation; one that is stuck keeps its
devices in quarantine. What the specs define and the host lacks is not listed:
hostagent doctor says what is wrong with it.`,
		Args: commandline.Exactly(0),
		RunE: func(cmd *cobra.Command, _ []string) error { return a.showDevices(cmd.Context()) },
	}
}

func (a *app) showDevices(ctx context.Context) error {
	host, generation, err := a.host(ctx)
	if err != nil {
		return err
	}
	allocations, err := generation.List(ctx, "")
	if err != nil {
		return exit.Reading(err)
	}
	list := devicesOf(host, allocations)
	if a.json() {
		return a.printJSON(deviceList{list})
	}
	t := table.New("DEVICE", "STATE", "NUMBER", "PROFILE", "ALIASES", "NODES")
	for _, d := range list {
		state, number := string(d.State), ""
		if d.Number != nil {
			number = d.Number.String()
		}
		if !d.Offered {
			state += ", not offered any more"
		}
		t.Row(d.Names[0], state, number, d.Profile, strings.Join(d.Names[1:], " "), strings.Join(d.Nodes, " "))
	}
	return t.Write(a.out)
}

// devicesSummary counts them on one line; "" where the host has none.
func devicesSummary(list []device) string {
	if len(list) == 0 {
		return ""
	}
	held, quarantined := 0, 0
	for _, d := range list {
		switch d.State {
		case deviceHeld:
			held++
		case deviceQuarantined:
			quarantined++
		}
	}
	text := fmt.Sprintf("%d of %d held", held, len(list))
	if quarantined > 0 {
		text += fmt.Sprintf(", %d quarantined", quarantined)
	}
	return text
}
