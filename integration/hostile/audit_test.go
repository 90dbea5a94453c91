//go:build engine

package hostile

import (
	"slices"
	"strings"
	"testing"

	"github.com/quittance/quittance/integration/agenttest"
	"github.com/quittance/quittance/protocol"
)

// Two agents of one program run on one machine, one of them behind a proxy of
// its engine: the look at leftovers finds everything of the own one, shims and
// log sinks too, and nothing of the other (I16, FR-33).
func TestLeftoversAreOwn(t *testing.T) {
	plain := kit.NewLab(t)
	behind, _ := proxied(t)
	labs := map[string]*agenttest.Lab{"plain": plain, "behind a proxy": behind}
	controllers, nonces := map[string]*controller{}, map[string]string{}
	numbers := map[string]protocol.Number{}
	for name, lab := range labs {
		lab.Profile("echo", agenttest.Profile{Args: []string{"serve"}})
		lab.Start()
		c := newController(t, lab)
		controllers[name], numbers[name] = c, c.start("echo")
		nonces[name] = string(c.await(numbers[name], protocol.StateStarted).Container.Nonce)
	}
	for name, lab := range labs {
		var kinds []string
		for _, line := range lab.Leftovers() {
			kind, rest, _ := strings.Cut(line, " ")
			kinds = append(kinds, kind)
			if kind != "log-sink" && !strings.Contains(rest, nonces[name]) {
				t.Errorf("%s: not its own: %s", name, line)
			}
		}
		slices.Sort(kinds)
		if got := strings.Join(kinds, " "); got != "cgroup container lease log-sink mount shim snapshot task" {
			t.Errorf("%s: found %s", name, got)
		}
	}
	for name, c := range controllers {
		c.retire(numbers[name])
		c.settled()
	}
}
