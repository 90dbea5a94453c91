package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/user"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"

	"github.com/quittance/quittance/integration/isolation"
	"github.com/quittance/quittance/integration/vm/refusals"
)

// contained is who tries in the controller's container.
const contained = "controller's container"

// The controller's own directories.
const (
	controllerState = "/var/lib/quittance-controller"
	containerDir    = "/run/quittance-container/controller"
)

// controllerContainer looks at the running unit: a supervisor of root's, and the
// controller below it as its own user in a cgroup of its own. Killed, nothing of
// it is left when the next one starts; stopped, nothing at all.
func controllerContainer(ctx context.Context, _ *task) (string, error) {
	if _, err := run(ctx, "systemctl", "start", controllerUnit); err != nil {
		return "", err
	}
	first, controller, err := containedProcess(ctx)
	if err != nil {
		return "", err
	}
	if err := syscall.Kill(first, syscall.SIGKILL); err != nil {
		return "", err
	}
	if err := restarted(ctx, controllerUnit, first); err != nil {
		return "", err
	}
	if _, err := os.Stat(fmt.Sprintf("/proc/%d", controller)); err == nil {
		return "", errors.New("the controller lives beside the one that was started after its supervisor was killed")
	}
	if err := awaitService(ctx); err != nil {
		return "", err
	}
	_, controller, err = containedProcess(ctx)
	if err != nil {
		return "", err
	}
	// The controller itself is killed: its status is the unit's, which comes back.
	supervisor, err := mainPID(ctx, controllerUnit)
	if err != nil {
		return "", err
	}
	if err := syscall.Kill(controller, syscall.SIGKILL); err != nil {
		return "", err
	}
	if err := restarted(ctx, controllerUnit, supervisor); err != nil {
		return "", err
	}
	if err := awaitService(ctx); err != nil {
		return "", err
	}
	// Without the engine it lives on, with the same process.
	if _, controller, err = containedProcess(ctx); err != nil {
		return "", err
	}
	if _, err := run(ctx, "systemctl", "restart", "containerd.service"); err != nil {
		return "", err
	}
	if _, same, err := containedProcess(ctx); err != nil || same != controller {
		return "", fmt.Errorf("containerd's restart: the controller is process %d, it was %d: %w", same, controller, err)
	}
	if _, err := run(ctx, "systemctl", "stop", controllerUnit); err != nil {
		return "", err
	}
	if err := properties(ctx, controllerUnit, "ActiveState=inactive", "Result=success"); err != nil {
		return "", err
	}
	return "killed twice, restarted, stopped", nothingOfContainer()
}

// containedProcess finds the supervisor and the controller.
func containedProcess(ctx context.Context) (supervisor, controller int, err error) {
	if supervisor, err = mainPID(ctx, controllerUnit); err != nil {
		return 0, 0, err
	}
	const group = "/sys/fs/cgroup/system.slice/" + controllerUnit
	text, err := os.ReadFile(group + "/container/cgroup.procs")
	if err != nil {
		return 0, 0, err
	}
	if controller, err = strconv.Atoi(strings.TrimSpace(string(text))); err != nil {
		return 0, 0, fmt.Errorf("processes of the container: %w", err)
	}
	leaf, err := os.ReadFile(group + "/supervisor/cgroup.procs")
	if err != nil {
		return 0, 0, err
	}
	if strings.TrimSpace(string(leaf)) != strconv.Itoa(supervisor) {
		return 0, 0, fmt.Errorf("processes beside the container: %q, expected %d", leaf, supervisor)
	}
	account, err := user.Lookup(controllerUser)
	if err != nil {
		return 0, 0, err
	}
	info, err := os.Stat(fmt.Sprintf("/proc/%d", controller))
	if err != nil {
		return 0, 0, err
	}
	if uid := info.Sys().(*syscall.Stat_t).Uid; strconv.Itoa(int(uid)) != account.Uid {
		return 0, 0, fmt.Errorf("the controller is user %d, expected %s", uid, account.Uid)
	}
	return supervisor, controller, nil
}

// nothingOfContainer looks for what a container leaves.
func nothingOfContainer() error {
	entries, err := os.ReadDir(containerDir)
	if err != nil {
		return err
	}
	for _, e := range entries {
		if e.Name() != "lock" {
			return fmt.Errorf("%s is left of the container", e.Name())
		}
	}
	mounts, err := os.ReadFile("/proc/self/mountinfo")
	if err == nil && strings.Contains(string(mounts), containerDir) {
		err = errors.New("a mount is left of the container")
	}
	return err
}

// controllerIsolation lets the probe of package isolation stand in the
// controller's place, in the packaged unit.
func controllerIsolation(ctx context.Context, t *task) (string, error) {
	agent, err := mainPID(ctx, agentUnit)
	if err != nil {
		return "", err
	}
	namespaces, err := isolation.HostNamespaces()
	if err != nil {
		return "", err
	}
	targets, err := json.Marshal(isolation.Targets{
		EngineSocket: "/run/containerd/containerd.sock", Ledger: "/var/lib/quittance", AgentSocket: socketPath, AgentPID: agent,
		State: controllerState, Config: "/etc/quittance", Namespaces: namespaces,
	})
	if err != nil {
		return "", err
	}
	aims, results := filepath.Join(controllerState, "targets.json"), filepath.Join(controllerState, "results.json")
	if err := writeFile(aims, string(targets)); err != nil {
		return "", err
	}
	const dropin = "/run/systemd/system/" + controllerUnit + ".d"
	if err := os.MkdirAll(dropin, 0o755); err != nil {
		return "", err
	}
	err = writeFile(dropin+"/isolation.conf", "[Service]\nType=exec\nRestart=no\nExecStart=\n"+
		"ExecStart=!/usr/sbin/hostagent controller-container --archive /payload/probe.oci.tar -- "+aims+" "+results+"\n")
	if err != nil {
		return "", err
	}
	if _, err := run(ctx, "systemctl", "daemon-reload"); err != nil {
		return "", err
	}
	answers, err := probe(ctx, results)
	for _, path := range []string{dropin, aims, results, filepath.Join(controllerState, "probe")} {
		err = errors.Join(err, os.RemoveAll(path))
	}
	if _, reload := run(ctx, "systemctl", "daemon-reload"); reload != nil {
		err = errors.Join(err, reload)
	}
	if err != nil {
		return "", err
	}
	table, err := isolation.Judge(answers)
	told := t.say("%s", table)
	for _, r := range isolation.Refusals(answers) {
		told = errors.Join(told, t.note("%s", refusals.Refusal{Who: contained, What: r.Name, Error: r.Answer}))
	}
	if told != nil {
		return "", told
	}
	return fmt.Sprintf("%d attempts refused", isolation.Refused()), errors.Join(err, nothingOfContainer())
}

// probe runs the unit once and reads what it found.
func probe(ctx context.Context, results string) ([]isolation.Result, error) {
	if _, err := run(ctx, "systemctl", "start", controllerUnit); err != nil {
		return nil, err
	}
	err := await(ctx, patience, "the probe has ended", func() error { return properties(ctx, controllerUnit, "ActiveState=inactive", "Result=success") })
	if err != nil {
		return nil, err
	}
	content, err := os.ReadFile(results)
	if err != nil {
		return nil, err
	}
	var answers []isolation.Result
	return answers, json.Unmarshal(content, &answers)
}
