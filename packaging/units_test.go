package packaging

import (
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// unexplained lists the settings of a unit's section [Service] that stand in no
// group, which is a run of lines without a blank one between, headed by a
// comment.
func unexplained(unit string) (settings int, wrong []string) {
	inside, reason, continued := false, false, false
	for line := range strings.Lines(unit) {
		line = strings.TrimSpace(line)
		switch {
		case strings.HasPrefix(line, "["):
			inside, reason = line == "[Service]", false
		case line == "":
			reason = false
		case strings.HasPrefix(line, "#"):
			reason = true
		case inside && !continued:
			settings++
			if !reason {
				wrong = append(wrong, line)
			}
		}
		continued = strings.HasSuffix(line, `\`)
	}
	return settings, wrong
}

// Every setting of the services has its reason beside it.
func TestServiceSettingsHaveReasons(t *testing.T) {
	units, err := filepath.Glob("systemd/*.service")
	if err != nil || len(units) != 3 {
		t.Fatal(units, err)
	}
	examples, err := filepath.Glob("metrics/*/*.service")
	if err != nil || len(examples) != 1 {
		t.Fatal(examples, err)
	}
	for _, unit := range append(units, examples...) {
		text, err := os.ReadFile(unit)
		if err != nil {
			t.Fatal(err)
		}
		settings, wrong := unexplained(string(text))
		if settings < 10 {
			t.Errorf("%s: only %d settings: this test reads it wrongly", unit, settings)
		}
		if len(wrong) > 0 {
			t.Errorf("%s: no reason is given for\n%s", unit, strings.Join(wrong, "\n"))
		}
	}
	const sample = "[Unit]\nA=1\n[Service]\nB=1\n\n# Why.\nC=1 \\\n  2\nD=1\n\nE=1\n[Install]\nF=1\n"
	if settings, wrong := unexplained(sample); settings != 4 || strings.Join(wrong, " ") != "B=1 E=1" {
		t.Errorf("%d settings, without reasons %v", settings, wrong)
	}
}

// The document names the figures that the virtual machine holds the units to.
func TestExposuresAreDocumented(t *testing.T) {
	read := func(name string) string {
		t.Helper()
		text, err := os.ReadFile(name)
		if err != nil {
			t.Fatal(err)
		}
		return string(text)
	}
	page, guest := read("systemd/README.md"), read("../integration/vm/guest/install.go")
	bounds := regexp.MustCompile(`var exposures = map\[string\]float64\{(.*)\}`).FindStringSubmatch(guest)
	rows := regexp.MustCompile("(?m)^\\| `([a-z.-]+)` \\| ([0-9.]+) \\|").FindAllStringSubmatch(page, -1)
	if bounds == nil || len(rows) != 3 {
		t.Fatalf("%v, %v", bounds, rows)
	}
	for _, row := range rows {
		name := map[string]string{
			"quittance-hostagent.service": "agentUnit", "quittance-workers.service": "workersUnitOf", "quittance-controller.service": "controllerUnit",
		}[row[1]]
		if !strings.Contains(bounds[1], name+": "+row[2]) {
			t.Errorf("the page says %s of %s, the virtual machine has %s", row[2], row[1], bounds[1])
		}
	}
}
