package main

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"

	"github.com/quittance/quittance/integration/workers/images"
)

// needs maps the programs that the demonstration uses to the packages that
// have them.
var needs = []struct{ program, pkg string }{
	{"containerd", "containerd"},
	{"ctr", "containerd"},
	{"runc", "runc"},
	{"catatonit", "catatonit"},
	{"mmdebstrap", "mmdebstrap"},
}

// install installs what is missing and says so.
func (n *node) install(ctx context.Context) error {
	var missing []string
	for _, need := range needs {
		_, err := exec.LookPath(need.program)
		if err != nil && (len(missing) == 0 || missing[len(missing)-1] != need.pkg) {
			missing = append(missing, need.pkg)
		}
	}
	if len(missing) == 0 {
		n.show.fact("containerd, runc, catatonit and mmdebstrap are there; nothing is installed")
		return nil
	}
	n.show.say("installing packages, which stay installed: %s", strings.Join(missing, " "))
	if _, err := exec.LookPath("apt-get"); err != nil {
		return errors.New("this is neither Debian nor Ubuntu; install them yourself and run again")
	}
	for _, args := range [][]string{
		{"update", "-q"},
		append([]string{"install", "-y", "-q", "--no-install-recommends"}, missing...),
	} {
		command := exec.CommandContext(ctx, "apt-get", args...)
		command.Env = append(os.Environ(), "DEBIAN_FRONTEND=noninteractive")
		if out, err := command.CombinedOutput(); err != nil {
			return fmt.Errorf("apt-get %s: %w: %s", args[0], err, lastLines(string(out), 5))
		}
	}
	n.show.fact("installed")
	return nil
}

// build makes the demonstration's directory, the programs and the images. The
// directory lies outside the repository because the controller's user must be
// able to enter it, and is removed at the end.
func (n *node) build(ctx context.Context) error {
	dir, err := os.MkdirTemp("", "quittance-demo-")
	if err != nil {
		return err
	}
	n.dir = dir
	if err := os.Chmod(dir, 0o711); err != nil {
		return err
	}
	if err := os.Mkdir(n.path("bin"), 0o755); err != nil {
		return err
	}
	for _, program := range []string{"hostagent", "controller", "agentctl"} {
		command := exec.CommandContext(ctx, "go", "build", "-trimpath", "-o", n.program(program), "./cmd/"+program)
		command.Env = append(os.Environ(), "CGO_ENABLED=0")
		if out, err := command.CombinedOutput(); err != nil {
			return fmt.Errorf("go build ./cmd/%s: %w: %s", program, err, lastLines(string(out), 10))
		}
	}
	n.show.fact("built hostagent, controller and agentctl, static")
	if err := checkNoEngineClient(ctx, n.program("controller"), n.program("agentctl")); err != nil {
		return err
	}
	n.show.fact("the controller and agentctl contain no engine client (go version -m)")
	for _, name := range []string{"langid", "ocr"} {
		built, err := images.Build(ctx, n.cache, name)
		if err != nil {
			return err
		}
		n.images = append(n.images, built)
		n.show.fact("image %s", built.Ref)
	}
	return nil
}

// checkNoEngineClient looks for the engine's client in the module lists that
// are part of the programs themselves.
func checkNoEngineClient(ctx context.Context, programs ...string) error {
	for _, program := range programs {
		out, err := exec.CommandContext(ctx, "go", "version", "-m", program).Output()
		if err != nil {
			return fmt.Errorf("go version -m %s: %w", filepath.Base(program), err)
		}
		if !strings.Contains(string(out), "quittance") {
			return fmt.Errorf("%s has no module list", filepath.Base(program))
		}
		for _, engine := range []string{"containerd/containerd", "moby/moby", "docker/docker", "cri-api"} {
			if strings.Contains(string(out), engine) {
				return fmt.Errorf("%s contains %s", filepath.Base(program), engine)
			}
		}
	}
	return nil
}

// writeProfiles pins the example profiles to the images that were built.
func (n *node) writeProfiles() error {
	examples, err := filepath.Glob("packaging/etc/profiles/*.toml")
	if err != nil || len(examples) == 0 {
		return fmt.Errorf("no example profiles: %w", errors.Join(err, fs.ErrNotExist))
	}
	if err := os.Mkdir(n.path("profiles"), 0o755); err != nil {
		return err
	}
	for _, example := range examples {
		profile, err := os.ReadFile(example)
		if err != nil {
			return err
		}
		pinned, err := n.pin(profile)
		if err != nil {
			return fmt.Errorf("%s: %w", example, err)
		}
		if err := os.WriteFile(n.path("profiles", filepath.Base(example)), pinned, 0o644); err != nil {
			return err
		}
	}
	return nil
}

func (n *node) pin(profile []byte) ([]byte, error) {
	for _, image := range n.images {
		pinned, err := images.Pin(profile, image.Ref)
		if err == nil {
			return pinned, nil
		}
		if !errors.Is(err, images.ErrNoImage) {
			return nil, err
		}
	}
	return nil, images.ErrNoImage
}

// writeOfferings copies the example offerings with their schemas.
func (n *node) writeOfferings() error {
	return os.CopyFS(n.path("offerings"), os.DirFS("packaging/etc/offerings"))
}

// lastLines is the end of a program's output.
func lastLines(text string, count int) string {
	lines := strings.Split(strings.TrimSpace(text), "\n")
	return strings.Join(lines[max(0, len(lines)-count):], "\n")
}
