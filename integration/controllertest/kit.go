// Package controllertest runs the whole controller binary as an unprivileged
// user beside a whole hostagent and a private containerd, for the e2e and crash
// lanes.
//
// It owns the controller's processes and directories, a user's view of the job
// service, and the audit at the end of a run. The agent's side is package
// agenttest's. It must not know what a test wants to show.
package controllertest

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"github.com/quittance/quittance/integration/agenttest"
	"github.com/quittance/quittance/integration/ociarchive"
	"github.com/quittance/quittance/integration/workers/images"
)

// UID and GID are the controller's: nobody's, who owns nothing and may open
// nothing of the engine's.
const (
	UID = 65534
	GID = 65534
)

// Kit is what is built once for all tests of a package.
type Kit struct {
	Agent  *agenttest.Kit
	dir    string
	binary string // controller
	image  string // archive of the worker
}

// NewKit builds agent, controller and worker with the build tags given.
func NewKit(tags string) (k *Kit, err error) {
	agent, err := agenttest.NewKit(tags)
	if err != nil {
		return nil, err
	}
	k = &Kit{Agent: agent}
	made := k // a failed return names none
	defer func() {
		if err != nil {
			err = errors.Join(err, made.Close())
		}
	}()
	if k.dir, err = os.MkdirTemp("", "qk"); err != nil {
		return nil, err
	}
	if err := os.Chmod(k.dir, 0o755); err != nil { // the controller's user runs from here
		return nil, err
	}
	k.binary, k.image = filepath.Join(k.dir, "controller"), filepath.Join(k.dir, "worker.tar")
	if err := build(k.binary, "github.com/quittance/quittance/cmd/controller", tags); err != nil {
		return nil, err
	}
	worker := filepath.Join(k.dir, "worker")
	if err := build(worker, "github.com/quittance/quittance/integration/controllertest/worker", ""); err != nil {
		return nil, err
	}
	program, err := ociarchive.Binary(worker, "/worker")
	if err != nil {
		return nil, err
	}
	layer, err := ociarchive.Files([]ociarchive.File{program}, "/gate", "/tmp", "/proc", "/sys", "/dev")
	if err != nil {
		return nil, err
	}
	_, err = ociarchive.Write(k.image, ociarchive.Image{Name: "controller-test", Layers: []ociarchive.Layer{layer}})
	return k, err
}

func build(out, pkg, tags string) error {
	cmd := exec.Command("go", "build", "-tags", tags, "-o", out, pkg)
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0")
	if text, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("build %s: %w\n%s", pkg, err, text)
	}
	return nil
}

// Controller is the controller's binary.
func (k *Kit) Controller() string { return k.binary }

// Close removes what was built.
func (k *Kit) Close() error {
	var gone error
	if k.dir != "" {
		gone = os.RemoveAll(k.dir)
	}
	return errors.Join(gone, k.Agent.Close())
}

// Main is a lane package's TestMain: it builds a kit, runs the tests and
// returns the exit code.
func Main(m *testing.M, tags string, use **Kit) (code int) {
	kit, err := NewKit(tags)
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	*use = kit
	defer func() {
		if err := kit.Close(); err != nil {
			fmt.Fprintln(os.Stderr, err)
			code = 1
		}
	}()
	return m.Run()
}

// pin puts an image that was imported into a profile.
func pin(profile, ref string) (string, error) {
	text, err := images.Pin([]byte(profile), ref)
	return string(text), err
}
