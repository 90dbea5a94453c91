package config

import (
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"

	"github.com/pelletier/go-toml/v2"
)

func write(t *testing.T, text string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "hostagent.toml")
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

// The keys, the struct and the example file agree; the man page is made from
// the flags, whose help is the keys' text.
func TestExampleStructAndKeysAgree(t *testing.T) {
	var fields []string
	for f := range reflect.TypeFor[Config]().Fields() {
		fields = append(fields, f.Tag.Get("toml"))
	}
	var keys []string
	for _, k := range Keys() {
		keys = append(keys, k.Name)
		if !strings.HasSuffix(k.Doc, ".") {
			t.Errorf("%s: the text is not a sentence", k.Name)
		}
	}
	if !reflect.DeepEqual(fields, keys) {
		t.Errorf("fields %v\n  keys %v", fields, keys)
	}
	example, err := os.ReadFile("../../../packaging/etc/hostagent.toml")
	if err != nil {
		t.Fatal(err)
	}
	if string(example) != Example() {
		t.Error("packaging/etc/hostagent.toml differs from the keys: write `hostagent config example` to it")
	}
	// Uncommented, the example is a valid file that means the defaults.
	var lines []string
	for line := range strings.Lines(Example()) {
		if strings.HasPrefix(line, "#") && !strings.HasPrefix(line, "# ") {
			lines = append(lines, line[1:])
		}
	}
	got, err := Load(Sources{File: write(t, strings.Join(lines, "")), Required: true})
	if err != nil {
		t.Fatal(err)
	}
	if got.String() != Default().String() {
		t.Errorf("got\n%swant\n%s", got, Default())
	}
	if len(lines) != len(keys) {
		t.Errorf("%d keys in the example, want %d", len(lines), len(keys))
	}
}

func TestFlagsOverrideEnvironmentOverridesFile(t *testing.T) {
	file := write(t, "max_slots = 1\nmax_unreleased = 2\nstuck_after = \"3s\"\ncontroller_uids = [5, \"root\"]\n")
	c, err := Load(Sources{
		File: file, Required: true,
		Environ: []string{"QUITTANCE_MAX_UNRELEASED=20", "QUITTANCE_STUCK_AFTER=30s", "QUITTANCE_FAILPOINT=x", "max_slots=9", "QUITTANCE_max_slots=9"},
		Flags:   map[string]string{"stuck_after": "5m"},
	})
	if err != nil {
		t.Fatal(err)
	}
	if c.MaxSlots != 1 || c.MaxUnreleased != 20 || c.StuckAfter.String() != "5m" {
		t.Errorf("got %d, %d, %s", c.MaxSlots, c.MaxUnreleased, c.StuckAfter)
	}
	uids, err := c.ControllerUIDs.Resolve()
	if err != nil || !reflect.DeepEqual(uids, []int{5, 0}) {
		t.Errorf("controller_uids: %v, %v", uids, err)
	}
}

// I34: every problem at once, each with its key and what to do.
func TestEveryProblemAtOnce(t *testing.T) {
	_, err := Load(Sources{
		File:     write(t, "state_dir = \"relative\"\nmax_slots = 0\nmemory_budget = \"5\"\n"),
		Required: true, Environ: []string{"QUITTANCE_MAX_UNRELEASED=many"}, Flags: map[string]string{"log_level": "loud", "exit_grace": "1"},
	})
	if err == nil {
		t.Fatal("accepted")
	}
	for _, want := range []string{
		"memory_budget", "QUITTANCE_MAX_UNRELEASED must be a whole number", "--exit-grace must be a duration",
		"log_level must be trace",
	} {
		if !strings.Contains(err.Error(), want) {
			t.Errorf("%q is missing in: %v", want, err)
		}
	}
}

func TestUnknownKeyNamesTheOneMeant(t *testing.T) {
	_, err := Load(Sources{File: write(t, "max-slots = 3\nnonsense = 1\n"), Required: true})
	if err == nil || !strings.Contains(err.Error(), `line 1: unknown key "max-slots"; "max_slots" was probably meant`) ||
		!strings.Contains(err.Error(), `line 2: unknown key "nonsense"`) {
		t.Errorf("got %v", err)
	}
}

func TestFileThatIsAbsent(t *testing.T) {
	absent := filepath.Join(t.TempDir(), "absent.toml")
	if _, err := Load(Sources{File: absent}); err != nil {
		t.Errorf("the default file may be absent: %v", err)
	}
	if _, err := Load(Sources{File: absent, Required: true}); err == nil {
		t.Error("a file that was named must exist")
	}
}

func TestPrintedConfigurationReadsBack(t *testing.T) {
	c := Default()
	c.MemoryBudget, c.ControllerUIDs = Size{Bytes: 3 << 20}, Users{int64(7), "root"}
	var back Config
	if err := toml.NewDecoder(strings.NewReader(c.String())).DisallowUnknownFields().Decode(&back); err != nil {
		t.Fatal(err)
	}
	if back.String() != c.String() || !strings.Contains(c.String(), "memory_budget = \"3MiB\"\n") ||
		!strings.Contains(c.String(), "controller_uids = [7, \"root\"]\n") {
		t.Errorf("got\n%s", back)
	}
}

// An operator's command means the same cgroup as the unit, by default.
func TestWorkersCgroup(t *testing.T) {
	c := Default()
	want := "/quittance"
	if _, err := os.Stat("/run/systemd/system"); err == nil {
		want = "/system.slice/quittance-workers.service"
	}
	if got := c.WorkersCgroup(); got != want {
		t.Errorf("auto means %s here, expected %s", got, want)
	}
	c.CgroupRoot = "/mine"
	if got := c.WorkersCgroup(); got != "/mine" {
		t.Errorf("/mine means %s", got)
	}
}
