package command

import (
	"fmt"
	"testing"

	"github.com/quittance/quittance/protocol"
)

// One line for each set of nodes, whatever its names; held from accepted to
// retired; quarantined while stuck; a sibling on the same node is not free
// (I19).
func TestDevicesOf(t *testing.T) {
	profile := "llm"
	device := func(name string, nodes ...string) protocol.Device { return protocol.Device{Name: name, Nodes: nodes} }
	host := protocol.Host{Devices: []protocol.Device{
		device("0", "/dev/0"), device("GPU-0", "/dev/0"), device("1", "/dev/1"), device("2:0", "/dev/2", "/dev/cap0"), device("2:1", "/dev/2", "/dev/cap1"), device("3", "/dev/3"),
	}}
	list := devicesOf(host, []protocol.Allocation{
		{Number: 4, State: protocol.StateConsumed, Profile: &profile, Devices: []protocol.Device{device("3", "/dev/3")}},
		{Number: 5, State: protocol.StateStarted, Profile: &profile, Devices: []protocol.Device{device("0", "/dev/0"), device("GPU-0", "/dev/0")}},
		{Number: 6, State: protocol.StateRetiring, Stuck: &protocol.StuckBody{}, Profile: &profile, Devices: []protocol.Device{device("2:0", "/dev/2", "/dev/cap0")}},
		{Number: 7, State: protocol.StateAccepted, Profile: &profile, Devices: []protocol.Device{device("gone", "/dev/gone")}},
	})
	got := ""
	for _, d := range list {
		number := protocol.Number(0)
		if d.Number != nil {
			number = *d.Number
		}
		got += fmt.Sprintf("%v %s %d %s %v\n", d.Names, d.State, number, d.Profile, d.Offered)
	}
	const want = "[0 GPU-0] held 5 llm true\n[1] free 0  true\n[2:0] quarantined 6 llm true\n[2:1] quarantined 6 llm true\n[3] free 0  true\n[gone] held 7 llm false\n"
	if got != want {
		t.Errorf("got\n%swant\n%s", got, want)
	}
	if got := devicesSummary(list); got != "2 of 6 held, 2 quarantined" {
		t.Errorf("summary %q", got)
	}
}
