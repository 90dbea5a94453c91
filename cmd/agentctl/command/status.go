package command

import (
	"context"
	"fmt"
	"strings"

	"github.com/spf13/cobra"

	"github.com/quittance/quittance/cmd/agentctl/internal/exit"
	"github.com/quittance/quittance/cmd/agentctl/internal/table"
	"github.com/quittance/quittance/cmd/agentctl/internal/words"
	"github.com/quittance/quittance/cmd/internal/commandline"
	"github.com/quittance/quittance/protocol"
)

func (a *app) statusCommand() *cobra.Command {
	var again bool
	cmd := &cobra.Command{
		Use:   "status",
		Short: "Show the host agent on one screen",
		Args:  commandline.Exactly(0),
		RunE: func(cmd *cobra.Command, _ []string) error {
			return a.watch(cmd.Context(), again, a.showStatus)
		},
	}
	cmd.Flags().BoolVar(&again, "watch", false, "show it anew every two seconds")
	return cmd
}

func (a *app) showStatus(ctx context.Context) error {
	host, generation, err := a.host(ctx)
	if err != nil {
		return err
	}
	if a.json() {
		return a.printJSON(host)
	}
	profiles, err := generation.Profiles(ctx)
	if err != nil {
		return exit.Reading(err)
	}
	allocations, err := generation.List(ctx, "")
	if err != nil {
		return exit.Reading(err)
	}
	return a.statusFacts(host, profiles, devicesOf(host, allocations)).Write(a.out)
}

func (a *app) statusFacts(host protocol.Host, profiles []protocol.ProfileInfo, devices []device) *table.Facts {
	var f table.Facts
	f.Add("agent", host.Versions.Agent)
	f.Add("generation", host.Generation)
	f.Add("engine", engineWords(host.Engine))
	f.Add("cgroups", host.CgroupMode)
	f.Add("numbers", fmt.Sprintf("accepted to %s, released to %s", host.Frontiers.Accepted, host.Frontiers.Released))
	f.Add("receipts", fmt.Sprintf("%d to %d", host.Index.First, host.Index.Head))
	f.Add("slots", fmt.Sprintf("%d of %d used, %d stuck", host.Slots.Used, host.Slots.Max, host.Slots.Stuck))
	f.Add("history", fmt.Sprintf("%d of %d consumed and unreleased", host.Slots.Unreleased, host.Slots.MaxUnreleased))
	f.Add("profiles", profilesWords(profiles))
	f.Add("devices", devicesSummary(devices))
	f.Add("controller", controllerWords(host))
	if host.Draining {
		f.Add("draining", "yes: new allocations are refused")
	}
	return &f
}

func engineWords(e protocol.Engine) string {
	if e.Available {
		return "containerd " + e.Version
	}
	return strings.TrimSuffix("unavailable: "+e.Detail, ": ")
}

func profilesWords(profiles []protocol.ProfileInfo) string {
	available, spares := 0, 0
	for _, p := range profiles {
		if p.Available {
			available++
			spares += p.Spares
		}
	}
	text := fmt.Sprintf("%d of %d available", available, len(profiles))
	if spares > 0 {
		text += fmt.Sprintf(", %d spares wanted", spares)
	}
	return text
}

func devicesWords(devices []protocol.Device) string {
	names := make([]string, len(devices))
	for i, d := range devices {
		names[i] = d.Name
	}
	return strings.Join(names, " ")
}

func controllerWords(host protocol.Host) string {
	if host.Owner == nil {
		return "none has taken this generation yet"
	}
	text := "owner " + string(*host.Owner)
	switch {
	case host.OwnerHeard == nil:
		text += ", not heard since the agent started"
	default:
		text += ", heard " + words.Ago(*host.OwnerHeard, host.Time)
	}
	if host.WitnessRequired {
		text += ", has not presented its witness since"
	}
	return text
}

func (a *app) profilesCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "profiles",
		Short: "List the profiles, and why one is unavailable",
		Args:  commandline.Exactly(0),
		RunE: func(cmd *cobra.Command, _ []string) error {
			_, generation, err := a.host(cmd.Context())
			if err != nil {
				return err
			}
			profiles, err := generation.Profiles(cmd.Context())
			if err != nil {
				return exit.Reading(err)
			}
			if a.json() {
				return a.printJSON(protocol.ProfileList{Profiles: profiles})
			}
			t := table.New("NAME", "AVAILABLE", "MEMORY", "CPUS", "PROCESSES", "DEVICES", "DIGEST", "REASON")
			for _, p := range profiles {
				t.Row(p.Name, yesNo(p.Available), words.Bytes(p.Limits.MemoryBytes), cpus(p.Limits.CPUMillis),
					p.Limits.PIDs, strings.Join(p.Devices, " "), shortDigest(p.Digest), p.Reason)
			}
			return t.Write(a.out)
		},
	}
}

func yesNo(yes bool) string {
	if yes {
		return "yes"
	}
	return "no"
}

func cpus(millis int64) string {
	if millis == 0 {
		return "any"
	}
	return words.CPUs(millis)
}

// shortDigest is enough of a digest to compare by eye.
func shortDigest(d protocol.Digest) string {
	hex := d.Hex()
	return hex[:min(12, len(hex))]
}
