package profiles

import (
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/pelletier/go-toml/v2"
)

// The reference and the code agree: it parses as it is; with its defaults
// uncommented it means the same; with its examples uncommented it is still a
// profile; and it has every key that the reader knows.
func TestExampleAgreesWithTheReader(t *testing.T) {
	plain, err := Parse([]byte(Example))
	if err != nil {
		t.Fatal(err)
	}
	defaults := regexp.MustCompile(`(?m)^#([a-z_]+ = )`).ReplaceAllString(Example, "$1")
	if defaults == Example {
		t.Fatal("the example shows no default")
	}
	same, err := Parse([]byte(defaults))
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(plain, same); diff != "" {
		t.Errorf("a default that the example shows is not the default:\n%s", diff)
	}

	// The alternative to another line cannot stand beside it.
	full := strings.Replace(defaults, "#e.g. ready = { connect = true }\n", "", 1)
	full = strings.ReplaceAll(full, "#e.g. ", "")
	// A table begun for an example ends the one before; devices go last.
	device := "[[resources.device]]\nkind = \"nvidia.com/gpu\"\ncount = 1\n"
	if !strings.Contains(full, device) {
		t.Fatal("the example shows no device")
	}
	p, err := Parse([]byte(full))
	if err != nil {
		t.Fatal(err)
	}
	if len(p.Env) == 0 || len(p.Resources.Devices) == 0 || len(p.Filesystem.Tmpfs) == 0 || len(p.Filesystem.Mounts) == 0 || p.Resources.CPUMillis == 0 {
		t.Errorf("an example was not read: %+v", p)
	}

	var values map[string]any
	if err := toml.Unmarshal([]byte(full), &values); err != nil {
		t.Fatal(err)
	}
	shown := keys("", values)
	r := &report{asked: map[string]bool{}}
	readProfile(&table{report: r, values: values})
	for known := range r.asked {
		if known == "channel.ready.connect" { // shown as the alternative
			continue
		}
		if !slices.Contains(shown, known) {
			t.Errorf("%s is a key and the example does not show it", known)
		}
	}
	if len(r.asked) < 40 {
		t.Errorf("only %d keys were asked for", len(r.asked))
	}
	manualAgrees(t, r.asked)
}

// manualAgrees checks that the manual page describes exactly the keys.
func manualAgrees(t *testing.T, asked map[string]bool) {
	page, err := os.ReadFile("../packaging/man/pages/quittance-profile.5.md")
	if err != nil {
		t.Fatal(err)
	}
	named := map[string]bool{}
	for known := range asked {
		named[known[strings.LastIndexByte(known, '.')+1:]] = true
		if last := known[strings.LastIndexByte(known, '.')+1:]; !strings.Contains(string(page), "**"+last+"**") && !strings.Contains(string(page), "["+known+"]") {
			t.Errorf("quittance-profile(5) does not describe %s", known)
		}
	}
	for _, m := range regexp.MustCompile(`(?m)^\*\*([a-z_]+)\*\*(?: \(required\))?$`).FindAllStringSubmatch(string(page), -1) {
		if !named[m[1]] {
			t.Errorf("quittance-profile(5) describes %s, which is not a key", m[1])
		}
	}
}

// keys lists every key of a document by its path, without positions.
func keys(prefix string, v any) []string {
	var out []string
	switch v := v.(type) {
	case map[string]any:
		for k, inner := range v {
			path := prefix + k
			out = append(out, path)
			if path != "env" { // its members are names, not keys
				out = append(out, keys(path+".", inner)...)
			}
		}
	case []any:
		for _, inner := range v {
			out = append(out, keys(prefix, inner)...)
		}
	}
	return out
}
