package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/quittance/quittance/protocol"
	"github.com/quittance/quittance/protocol/hostclient"
)

// A made-up card: another node of a device that every kernel has, that is
// harmless to open, and that no container may open by itself.
const (
	cardModel = "/dev/cpu_dma_latency"
	cardNode  = "/srv/card0"
	cardSpec  = "/etc/cdi/card.yaml"
	cardText  = `cdiVersion: 0.6.0
kind: quittance.test/card
containerEdits:
  mounts: [{hostPath: /srv, containerPath: /nodes, options: [ro, bind]}]
devices:
- name: "0"
  containerEdits:
    deviceNodes: [{path: /dev/card0, hostPath: /srv/card0}]
`
	// strangeNode is one that nobody was given: runc's defaults leave it out.
	strangeNode = "/srv/strange"
)

// devices: a worker's leased card stays open-able over everything that makes
// systemd write its cgroups' rules anew, what it was not given stays closed, and
// nobody else gets the card meanwhile (FR-35).
func devices(ctx context.Context, _ *task) (_ string, err error) {
	if err := makeCard(); err != nil {
		return "", err
	}
	defer func() { err = errors.Join(err, removeCard(ctx)) }()
	if _, err := run(ctx, "systemctl", "reload", agentUnit); err != nil {
		return "", err
	}
	if err := awaitProfiles(ctx, "card"); err != nil {
		return "", err
	}
	w, err := allocate(ctx, "card")
	if err != nil {
		return "", err
	}
	c, err := w.open(ctx)
	if err != nil {
		return "", err
	}
	if err := c.card(); err != nil {
		return "", err
	}
	for _, what := range []string{"daemon-reload", "daemon-reexec", "agent-restart"} {
		if _, err := disturb(ctx, what); err != nil {
			return "", fmt.Errorf("%s: %w", what, err)
		}
		if err := errors.Join(w.alive(), c.card()); err != nil {
			return "", fmt.Errorf("after %s: %w", what, err)
		}
		if _, err := accept(ctx, "card"); !hostclient.IsCode(err, protocol.CodeDeviceUnavailable) {
			return "", fmt.Errorf("after %s somebody else asks for the card: %v", what, err)
		}
	}
	if err := c.conn.Close(); err != nil {
		return "", err
	}
	retired, err := w.end(ctx)
	if err != nil {
		return "", err
	}
	if retired.Removal.Devices != protocol.RemovedByUs {
		return "", fmt.Errorf("removal %+v", retired.Removal)
	}
	return "opened anew after daemon-reload, daemon-reexec and a restart of the agent", leftovers(ctx)
}

// card lets the worker open its card and the node beside it.
func (c *channel) card() error {
	var problems []error
	for node, want := range map[string]string{"/dev/card0": "opened", "/nodes/card0": "opened", "/nodes/strange": "operation not permitted"} {
		got, err := c.post("/open", node)
		if err == nil && !strings.Contains(got, want) {
			err = fmt.Errorf("opening %s anew: %s, expected %s", node, got, want)
		}
		problems = append(problems, err)
	}
	return errors.Join(problems...)
}

func makeCard() error {
	var st unix.Stat_t
	if err := unix.Stat(cardModel, &st); err != nil {
		return fmt.Errorf("%s: %w", cardModel, err)
	}
	// loop-control: the cgroup's refusal comes before the driver is looked for.
	strange := unix.Mkdev(10, 237)
	for path, number := range map[string]uint64{cardNode: st.Rdev, strangeNode: strange} {
		if err := unix.Mknod(path, unix.S_IFCHR|0o666, int(number)); err != nil {
			return fmt.Errorf("%s: %w", path, err)
		}
		if err := os.Chmod(path, 0o666); err != nil {
			return err
		}
	}
	if err := os.MkdirAll(filepath.Dir(cardSpec), 0o755); err != nil {
		return err
	}
	if err := writeFile(cardSpec, cardText); err != nil {
		return err
	}
	steady, err := os.ReadFile(filepath.Join(profileDir, "steady.toml"))
	if err != nil {
		return err
	}
	return writeFile(filepath.Join(profileDir, "card.toml"), strings.Replace(string(steady), `"steady"`, `"card"`, 1)+
		"[[resources.device]]\nkind = \"quittance.test/card\"\n")
}

// removeCard leaves the machine as the other commands expect it.
func removeCard(ctx context.Context) error {
	var problems []error
	for _, path := range []string{cardNode, strangeNode, cardSpec, filepath.Join(profileDir, "card.toml")} {
		if err := os.Remove(path); err != nil && !errors.Is(err, os.ErrNotExist) {
			problems = append(problems, err)
		}
	}
	_, err := run(ctx, "systemctl", "reload", agentUnit)
	return errors.Join(append(problems, err)...)
}
