package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"

	"github.com/quittance/quittance/controller/api"
	"github.com/quittance/quittance/integration/privateengine"
	"github.com/quittance/quittance/protocol/hostclient"
)

// freeAddress finds a loopback address that nobody listens on now.
func freeAddress() (string, error) {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return "", err
	}
	return listener.Addr().String(), listener.Close()
}

// startHost starts the engine and the agent and loads the images.
func (n *node) startHost(ctx context.Context) error {
	engine, err := privateengine.Start(ctx, privateengine.Config{Dir: n.path("engine")})
	if err != nil {
		return err
	}
	n.engine = engine
	n.show.fact("containerd runs with its root, state and socket in one directory")
	if err := n.writeProfiles(); err != nil {
		return err
	}
	catatonit, err := exec.LookPath("catatonit")
	if err != nil {
		return err
	}
	if err := os.Mkdir(n.path("run"), 0o755); err != nil {
		return err
	}
	config := fmt.Sprintf(`state_dir = %q
socket = %q
socket_group = "%d"
controller_uids = [%d]
profile_dir = %q
engine_address = %q
init_path = %q
cgroup_root = %q
`, n.path("host"), n.socket(), controllerUID, controllerUID, n.path("profiles"), engine.Address(), catatonit, n.cgroupRoot())
	if err := os.WriteFile(n.path("hostagent.toml"), []byte(config), 0o644); err != nil {
		return err
	}
	file := []string{"--config", n.path("hostagent.toml")}
	if _, err := call(ctx, nil, "", nil, n.program("hostagent"), append(file, "init")...); err != nil {
		return err
	}
	n.show.fact("hostagent init made a generation, its ledger and the host's key")
	for _, image := range n.images {
		archive, err := filepath.Abs(image.File)
		if err != nil {
			return err
		}
		out, err := call(ctx, nil, "", nil, n.program("hostagent"), append(file, "image", "import", archive)...)
		if err != nil {
			return err
		}
		if !strings.Contains(out, string(image.Digest)) {
			return fmt.Errorf("image import printed another digest than %s: %s", image.Digest, out)
		}
	}
	n.show.fact("hostagent image import loaded both images; the profiles pin their digests")
	if n.host, err = n.start("hostagent", nil, append(file, "run")...); err != nil {
		return err
	}
	client := hostclient.New(n.socket(), hostclient.Options{})
	err = n.await(ctx, n.host, "host agent", 30*time.Second, func() error {
		host, err := client.Host(ctx)
		if err == nil && !host.Engine.Available {
			err = errors.New("the engine is not available: " + host.Engine.Detail)
		}
		return err
	})
	if err != nil {
		return err
	}
	// Somebody reads every receipt as it is written: the controller releases
	// history soon, and then the agent prunes it.
	if n.follower, err = n.startAs("receipts", "agentctl", nil, n.environment(), "receipts", "--follow", "--raw"); err != nil {
		return err
	}
	return n.agentctl(ctx, 12, "profiles")
}

// startController starts the controller as its own user and proves that this
// user cannot use the engine.
func (n *node) startController(ctx context.Context) error {
	_, err := call(ctx, n.controllerUser(), "", nil, "ctr", "--address", n.engine.Address(), "--connect-timeout", "2s", "version")
	if err == nil || !strings.Contains(err.Error(), "permission denied") {
		return fmt.Errorf("the controller's user was not kept from the engine's socket: %w", errors.Join(err, errors.New("expected permission denied")))
	}
	n.show.fact("user %d is kept from the engine's socket: permission denied", controllerUID)
	if err := n.writeOfferings(); err != nil {
		return err
	}
	if err := os.Mkdir(n.path("controller"), 0o700); err != nil {
		return err
	}
	if err := os.Chown(n.path("controller"), controllerUID, controllerUID); err != nil {
		return err
	}
	address, err := freeAddress()
	if err != nil {
		return err
	}
	config := fmt.Sprintf(`state_dir = %q

[service]
listen = %q

[provider]
id = "demo-node"

[host]
socket = %q

[lanes]
offerings_dir = %q
history = 8
`, n.path("controller"), address, n.socket(), n.path("offerings"))
	if err := os.WriteFile(n.path("controller.toml"), []byte(config), 0o644); err != nil {
		return err
	}
	n.api = "http://" + address
	if n.controller, err = n.start("controller", n.controllerUser(), "--config", n.path("controller.toml"), "serve"); err != nil {
		return err
	}
	if err := n.await(ctx, n.controller, "job service", 60*time.Second, func() error { return n.offered(ctx) }); err != nil {
		return err
	}
	n.show.fact("the controller runs as user %d and offers its kinds of jobs", controllerUID)
	return n.registerHostKey(ctx)
}

// registerHostKey does what an operator does once per node: tell the job
// service the host's key, known by another way than the provider's word.
func (n *node) registerHostKey(ctx context.Context) error {
	key, err := os.ReadFile(n.hostKey())
	if err != nil {
		return err
	}
	_, err = call(ctx, n.controllerUser(), "", nil, n.program("controller"),
		"--config", n.path("controller.toml"), "hostkey", "add", strings.TrimSpace(string(key)))
	if err != nil {
		return err
	}
	n.show.fact("the host's key is registered, so receipts count as verified")
	return nil
}

func (n *node) tokenFile() string { return n.path("controller", "jobs", "first-token") }

// offered reports whether every example kind can be submitted.
func (n *node) offered(ctx context.Context) error {
	token, err := os.ReadFile(n.tokenFile())
	if err != nil {
		return err
	}
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, n.api+api.RouteListOfferings.Path, nil)
	if err != nil {
		return err
	}
	request.Header.Set("Authorization", "Bearer "+strings.TrimSpace(string(token)))
	response, err := http.DefaultClient.Do(request)
	if err != nil {
		return err
	}
	body, err := io.ReadAll(io.LimitReader(response.Body, 1<<20))
	if err := errors.Join(err, response.Body.Close()); err != nil {
		return err
	}
	if response.StatusCode != http.StatusOK {
		return fmt.Errorf("offerings: status %d", response.StatusCode)
	}
	var offerings api.Offerings
	if err := api.Decode(body, 1<<20, &offerings); err != nil {
		return err
	}
	available := 0
	for _, o := range offerings.Offerings {
		if !o.Available {
			return fmt.Errorf("kind %s is not available: %s", o.Kind, o.Reason)
		}
		available++
	}
	if available < 3 {
		return fmt.Errorf("%d kinds are offered yet", available)
	}
	return nil
}
