package config

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

func none(string) (string, bool) { return "", false }

const examplePath = "../../../packaging/etc/controller.toml"

// The example file, the keys' documentation and the defaults are one thing.
// QUITTANCE_WRITE_EXAMPLE=1 rewrites the file.
func TestExampleFileIsTheDefaults(t *testing.T) {
	if os.Getenv("QUITTANCE_WRITE_EXAMPLE") == "1" {
		if err := os.WriteFile(examplePath, []byte(Example()), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	text, err := os.ReadFile(examplePath)
	if err != nil {
		t.Fatal(err)
	}
	if string(text) != Example() {
		t.Fatal("packaging/etc/controller.toml differs from the keys; run this test with QUITTANCE_WRITE_EXAMPLE=1")
	}
	c, err := Load(examplePath, false, none, nil)
	if err != nil {
		t.Fatal(err)
	}
	want := Default()
	want.Lanes.History = exampleHistory
	if c != want {
		t.Fatalf("the example is not the defaults:\n%+v\n%+v", c, want)
	}
	for _, mode := range []Mode{Serve, API} {
		if err := c.Check(mode); err != nil {
			t.Errorf("the example does not pass its own checks for %s: %v", mode, err)
		}
	}
	for _, key := range Keys() {
		if key.Doc == "" {
			t.Errorf("%s has no documentation", key.Path)
		}
	}
}

func TestFlagsOverEnvironmentOverFile(t *testing.T) {
	path := filepath.Join(t.TempDir(), "c.toml")
	if err := os.WriteFile(path, []byte("[lanes]\ncount = 2\npoll = \"2s\"\nhistory = 3\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	env := func(name string) (string, bool) {
		v, ok := map[string]string{"QUITTANCE_LANES_COUNT": "4", "QUITTANCE_LANES_POLL": "4s"}[name]
		return v, ok
	}
	c, err := Load(path, false, env, map[string]string{"lanes-count": "5"})
	if err != nil {
		t.Fatal(err)
	}
	if c.Lanes.Count != 5 || c.Lanes.Poll.Duration != 4*time.Second || c.Lanes.History != 3 {
		t.Fatalf("%+v", c.Lanes)
	}
}

func TestLoadNamesTheSourceAndNotTheValue(t *testing.T) {
	env := func(name string) (string, bool) { return "secret", name == "QUITTANCE_LANES_COUNT" }
	_, err := Load(filepath.Join(t.TempDir(), "absent.toml"), true, env, map[string]string{"lanes-poll": "secret"})
	if err == nil || !strings.Contains(err.Error(), "QUITTANCE_LANES_COUNT:") || !strings.Contains(err.Error(), "--lanes-poll:") {
		t.Fatalf("%v", err)
	}
	if strings.Contains(err.Error(), "secret") {
		t.Fatalf("the message shows a value: %v", err)
	}
	if _, err := Load(filepath.Join(t.TempDir(), "absent.toml"), false, none, nil); err == nil {
		t.Fatal("a named file that is not there was accepted")
	}
}

// Every problem at once, each with its key.
func TestCheckReportsEveryProblem(t *testing.T) {
	c := Default()
	c.StateDir = "relative"
	c.Log.Level = "loud"
	c.Service.Listen = "0.0.0.0:80"
	c.Service.PublicOrigin = "https://x/y"
	c.Service.Database = "mysql://x"
	c.Service.TLSKey = ""
	c.Service.Topology = "no spaces please"
	c.Service.Lease.Duration = time.Second
	c.Provider.ID = ""
	c.Host.Socket = "agent.sock"
	c.Lanes.Count = 0
	c.Lanes.MaxActive = -1
	c.Lanes.ObservationGap.Duration = 0
	c.Lanes.Heartbeat.Duration = time.Hour
	c.Lanes.Poll.Duration = 0
	c.Retry.BackoffMin.Duration = time.Hour
	c.Retry.StartWindow.Duration = 0
	c.Retry.TerminalWindow.Duration = 0
	err := c.Check(Serve)
	if err == nil {
		t.Fatal("accepted")
	}
	for _, key := range []string{
		"state_dir:", "log.level:", "service.listen:", "service.public_origin:", "service.database:", "service.topology:",
		"service.attempt_lease:", "provider.id:", "host.socket:", "lanes.count:", "lanes.history:", "lanes.max_active:",
		"lanes.observation_gap:", "lanes.heartbeat:", "lanes.poll:", "retry.backoff_min:", "retry.start_window:", "retry.terminal_window:",
	} {
		if !strings.Contains(err.Error(), key) {
			t.Errorf("no problem names %s\n%v", key, err)
		}
	}
	c = Default()
	c.Lanes.History = 64
	if err := c.Check(Work); err == nil || !strings.Contains(err.Error(), "provider.api:") {
		t.Errorf("work without an origin: %v", err)
	}
}

// I37: the password of a database address is not printed.
func TestStringRedactsPassword(t *testing.T) {
	c := Default()
	c.Service.Database = "postgres://user:hunter2@db/jobs"
	if text := c.String(); strings.Contains(text, "hunter2") || !strings.Contains(text, "user:xxxxx@db") {
		t.Fatal(text)
	}
}
