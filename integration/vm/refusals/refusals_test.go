package refusals

import (
	"slices"
	"strings"
	"testing"
)

var some = []Refusal{
	{"nobody", "read the ledger", "permission denied"},
	{"controller", "see another process", "none"},
}

func TestListIsSortedAndReadAgain(t *testing.T) {
	text := Format(some)
	got, err := ParseList(text)
	if err != nil {
		t.Fatal(err)
	}
	if !slices.Equal(got, []Refusal{some[1], some[0]}) {
		t.Errorf("read %v of\n%s", got, text)
	}
	if err := Same(got, some); err != nil {
		t.Error(err)
	}
	for _, line := range []string{"", "nobody  read", "nobody  read  denied  more"} {
		if _, err := Parse(line); err == nil {
			t.Errorf("%q was read", line)
		}
	}
	if got := Of(some, "nobody"); !slices.Equal(got, some[:1]) {
		t.Errorf("of nobody: %v", got)
	}
}

// An attempt that is dropped, added, answered otherwise or doubled is not the
// same list.
func TestChangesAreSeen(t *testing.T) {
	changed := some[0]
	changed.Error = "allowed"
	for name, c := range map[string]struct {
		got  []Refusal
		says string
	}{
		"dropped":            {some[:1], "missing: controller"},
		"added":              {append(slices.Clone(some), Refusal{"nobody", "more", "denied"}), "new: nobody"},
		"answered otherwise": {[]Refusal{changed, some[1]}, "allowed"},
		"doubled":            {append(slices.Clone(some), some[0]), "twice"},
	} {
		if err := Same(c.got, some); err == nil || !strings.Contains(err.Error(), c.says) {
			t.Errorf("%s: %v", name, err)
		}
	}
}
