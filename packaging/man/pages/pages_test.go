package pages

import (
	"maps"
	"os"
	"regexp"
	"slices"
	"testing"
)

// documented lists the keys that a page describes: the bold words that begin a
// definition.
func documented(t *testing.T, page string) []string {
	t.Helper()
	text, err := Read(page)
	if err != nil {
		t.Fatal(err)
	}
	keys := map[string]bool{}
	for _, line := range regexp.MustCompile(`(?m)^\*\*.*$`).FindAllString(string(text), -1) {
		if regexp.MustCompile(`^\*\*[^*]*\*\*\(\d\)|^\*\*/`).MatchString(line) {
			continue // a reference to another page, or a path
		}
		for _, m := range regexp.MustCompile(`\*\*\[*([a-z_.]+)\]*\*\*`).FindAllStringSubmatch(line, -1) {
			keys[m[1]] = true
		}
	}
	return slices.Sorted(maps.Keys(keys))
}

// read lists the keys that a source file reads, as pattern's first group.
func read(t *testing.T, file, pattern string) []string {
	t.Helper()
	source, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	keys := map[string]bool{}
	for _, m := range regexp.MustCompile(pattern).FindAllStringSubmatch(string(source), -1) {
		keys[m[1]] = true
	}
	if len(keys) < 10 {
		t.Fatalf("%s reads only %d keys: the pattern is out of date", file, len(keys))
	}
	return slices.Sorted(maps.Keys(keys))
}

// The page and the parser know the same keys. Members of inline tables are
// named in the text of their table's definition.
func TestProfilePage(t *testing.T) {
	parsed := read(t, "../../../profiles/parse.go", `\.(?:str|size|integer|boolean|millis|cpuMillis|sub|subs)\("([a-z_]+)"|limited\(\w+, "([a-z_]+)"`)
	text, err := Read("quittance-profile.5")
	if err != nil {
		t.Fatal(err)
	}
	for _, key := range parsed {
		if key != "" && !regexp.MustCompile(`\*\*`+key+`\*\*|\[`+key+`\]|resources\.`+key).Match(text) {
			t.Errorf("key %s is not in the page", key)
		}
	}
	source, err := os.ReadFile("../../../profiles/parse.go")
	if err != nil {
		t.Fatal(err)
	}
	for _, key := range documented(t, "quittance-profile.5") {
		if key == "resources.device" {
			key = "device"
		}
		if !regexp.MustCompile(`"` + key + `"`).Match(source) {
			t.Errorf("the page describes %s, which no profile has", key)
		}
	}
}

func TestOfferingPage(t *testing.T) {
	parsed := read(t, "../../../controller/internal/offering/offering.go", "toml:\"([a-z_]+)\"")
	text, err := Read("quittance-offering.5")
	if err != nil {
		t.Fatal(err)
	}
	for _, key := range parsed {
		if !regexp.MustCompile(`\*\*` + key + `\*\*|\[` + key + `\]`).Match(text) {
			t.Errorf("key %s is not in the page", key)
		}
	}
	for _, key := range documented(t, "quittance-offering.5") {
		if !slices.Contains(parsed, key) {
			t.Errorf("the page describes %s, which no offering has", key)
		}
	}
}

func TestNoSuchPage(t *testing.T) {
	if _, err := Read("nothing.1"); err == nil {
		t.Error("read")
	}
}
