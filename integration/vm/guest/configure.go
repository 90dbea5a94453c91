package main

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"time"

	"github.com/quittance/quittance/protocol"
)

// Where the administrator's files are.
const (
	agentConfig      = "/etc/quittance/hostagent.toml"
	controllerConfig = "/etc/quittance/controller.toml"
	profileDir       = "/etc/quittance/profiles"
	examples         = "/usr/share/doc/quittance-hostagent/examples/profiles/"
	offeringExamples = "/usr/share/doc/quittance-controller/examples/offerings/"
)

var imageLine = regexp.MustCompile(`(?m)^image *=.*$`)

// configure does what an administrator does after the installation: images,
// profiles, offerings, who may act, and the host's key for the job service.
func configure(ctx context.Context, t *task) (string, error) {
	langid, err := importImage(ctx, "langid")
	if err != nil {
		return "", err
	}
	tester, err := importImage(ctx, "agent-test")
	if err != nil {
		return "", err
	}
	example, err := os.ReadFile(examples + "langid.toml")
	if err != nil {
		return "", err
	}
	if err := hole(thrashFile, thrashSize); err != nil {
		return "", err
	}
	profiles := map[string]string{
		"langid":   patient(imageLine.ReplaceAllLiteralString(string(example), "image = "+quote(langid))),
		"steady":   testProfile("steady", tester, "kill-group", "64MiB", "serve"),
		"stubborn": testProfile("stubborn", tester, "observe", "64MiB", "stubborn"),
		// The child eats more than the limit; its parent goes on if it may.
		"group":   testProfile("group", tester, "kill-group", "64MiB", "parent", "256"),
		"observe": testProfile("observe", tester, "observe", "64MiB", "parent", "256"),
		"hold":    testProfile("hold", tester, "kill-group", "64MiB", "serve"),
		"chatty":  testProfile("chatty", tester, "kill-group", "64MiB", "serve") + "[logs]\njournal = true\n",
		"thrash": testProfile("thrash", tester, "kill-group", "64MiB", "thrash", thrashFile) +
			fmt.Sprintf("[filesystem]\nmounts = [{ source = %q, target = %q }]\n", thrashFile, thrashFile),
		// It is over its limit as soon as it runs.
		"killed": testProfile("killed", tester, "kill-group", "32MiB", "eat", "96"),
		// The machine's greatest, far below its own limit.
		"greedy": testProfile("greedy", tester, "observe", "8GiB", "parent", "256"),
	}
	for name, text := range profiles {
		if err := writeFile(filepath.Join(profileDir, name+".toml"), text); err != nil {
			return "", err
		}
	}
	// Root acts as a controller here too, beside the real one; the budget lets one
	// profile have more than the machine has.
	if err := appendTo(agentConfig, "\ncontroller_uids = [0, \"quittance-controller\"]\nmax_slots = 8\nmemory_budget = \"16GiB\"\n"); err != nil {
		return "", err
	}
	for _, name := range []string{"langid.toml", "langid-result.schema.json"} {
		text, err := os.ReadFile(offeringExamples + name)
		if err != nil {
			return "", err
		}
		if err := writeFile("/etc/quittance/offerings/"+name, patient(string(text))); err != nil {
			return "", err
		}
	}
	if err := writeFile("/etc/quittance/offerings/hold.toml", holdOffering); err != nil {
		return "", err
	}
	config, err := os.ReadFile(controllerConfig)
	if err != nil {
		return "", err
	}
	if err := writeFile(controllerConfig, strings.Replace(string(config), "\ncount = 1\n", "\ncount = 3\n", 1)); err != nil {
		return "", err
	}
	if out, err := run(ctx, "/usr/sbin/hostagent", "config", "check"); err != nil {
		return out, err
	}
	if _, err := run(ctx, "systemctl", "restart", agentUnit); err != nil {
		return "", err
	}
	if err := awaitProfiles(ctx, slices.Collect(maps.Keys(profiles))...); err != nil {
		return "", err
	}
	// The machine's key, for the test: it knows it from here and not from the
	// agent's answers after a power cut.
	key, err := os.ReadFile("/var/lib/quittance/host.key.pub")
	if err != nil {
		return "", err
	}
	return fmt.Sprintf("%d profiles available", len(profiles)), t.note("%s", strings.TrimSpace(string(key)))
}

// patient gives an example's worker more time to be ready and to answer: an
// emulated machine on a busy host is many times slower than any that the example
// is for.
func patient(example string) string {
	return strings.NewReplacer(`timeout = "30s"`, `timeout = "5m"`, `max_lifetime = "10m"`, `max_lifetime = "1h"`).Replace(example)
}

// holdOffering is of jobs that last until their worker is told to finish.
const holdOffering = `kind = "hold.text.v1"
profile = "hold"
adapter = "http"
[input]
content_type = "text/plain"
from = "job"
max = "64KiB"
[request]
method = "POST"
path = "/hold"
timeout = "1h"
[response]
content_type = "text/plain"
max = "64KiB"
`

// importImage loads an archive of the payload and returns what pins it.
func importImage(ctx context.Context, name string) (string, error) {
	return run(ctx, "/usr/sbin/hostagent", "--log-level", "warn", "image", "import", "/payload/"+name+".tar")
}

func quote(s string) string { return fmt.Sprintf("%q", s) }

// testProfile is a profile of the test worker.
func testProfile(name, image, oom, memory string, args ...string) string {
	grace := "60s" // until what a worker does when it is asked is taken for done
	if args[0] == "stubborn" {
		grace = "5s"
	}
	quoted := []string{quote("/worker")}
	for _, a := range args {
		quoted = append(quoted, quote(a))
	}
	return fmt.Sprintf(`name = %q
image = %q
args = [%s]
[resources]
memory = %q
[channel]
address = "tcp://127.0.0.1:8080"
ready = { connect = true }
max_channels = 64
[lifecycle]
stop_grace = %q
oom = %q
[process]
init = true
`, name, image, strings.Join(quoted, ", "), memory, grace, oom)
}

// hole makes a file of a size without anything in it.
func hole(path string, size int64) error {
	if err := os.WriteFile(path, nil, 0o644); err != nil {
		return err
	}
	return os.Truncate(path, size)
}

func appendTo(path, text string) error {
	before, err := os.ReadFile(path)
	if err != nil {
		return err
	}
	return writeFile(path, string(before)+text)
}

// awaitProfiles waits until profiles are listed as available.
func awaitProfiles(ctx context.Context, names ...string) error {
	return await(ctx, patience, "profiles are available", func() error {
		_, generation, err := operator(ctx)
		if err != nil {
			return err
		}
		infos, err := generation.Profiles(ctx)
		if err != nil {
			return err
		}
		listed := map[string]protocol.ProfileInfo{}
		for _, p := range infos {
			listed[p.Name] = p
		}
		var problems []error
		for _, name := range names {
			if p := listed[name]; !p.Available {
				problems = append(problems, fmt.Errorf("%s: %q", name, p.Reason))
			}
		}
		return errors.Join(problems...)
	})
}

// reloadProfiles adds a profile and reloads the unit: the agent stays the same
// process and offers it.
func reloadProfiles(ctx context.Context, _ *task) (string, error) {
	before, err := mainPID(ctx, agentUnit)
	if err != nil {
		return "", err
	}
	text, err := os.ReadFile(filepath.Join(profileDir, "steady.toml"))
	if err != nil {
		return "", err
	}
	if err := writeFile(filepath.Join(profileDir, "added.toml"), strings.Replace(string(text), `"steady"`, `"added"`, 1)); err != nil {
		return "", err
	}
	if _, err := run(ctx, "systemctl", "reload", agentUnit); err != nil {
		return "", err
	}
	if err := awaitProfiles(ctx, "added"); err != nil {
		return "", err
	}
	if after, err := mainPID(ctx, agentUnit); err != nil || after != before {
		return "", fmt.Errorf("the agent is process %d, it was %d: %v", after, before, err)
	}
	return "", nil
}

// socketActivation stops the agent and connects: the request is what starts it.
func socketActivation(ctx context.Context, _ *task) (string, error) {
	if _, err := run(ctx, "systemctl", "stop", agentUnit); err != nil {
		return "", err
	}
	if err := properties(ctx, agentUnit, "ActiveState=inactive"); err != nil {
		return "", err
	}
	if err := properties(ctx, socketUnit, "ActiveState=active"); err != nil {
		return "", err
	}
	began := time.Now()
	// One request, sent while nobody serves: it waits in the socket's backlog.
	if _, err := newClient(nil).Host(ctx); err != nil {
		return "", err
	}
	took := time.Since(began)
	if err := properties(ctx, agentUnit, "ActiveState=active"); err != nil {
		return "", err
	}
	return fmt.Sprintf("first answer %d ms after the connect", took.Milliseconds()), nil
}
