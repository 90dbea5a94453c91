package table

import (
	"strings"
	"testing"
)

func TestTable(t *testing.T) {
	table := New("NAME", "STATE", "WHAT")
	table.Row("a", "started", "")
	table.Row("größer", 12, "x y")
	table.Row("short")
	var b strings.Builder
	if err := table.Write(&b); err != nil {
		t.Fatal(err)
	}
	want := "" +
		"NAME    STATE    WHAT\n" +
		"a       started\n" +
		"größer  12       x y\n" +
		"short\n"
	if b.String() != want {
		t.Errorf("got\n%s", b.String())
	}
}

func TestFacts(t *testing.T) {
	var f Facts
	f.Add("state", "started")
	f.Add("nothing", "")
	f.Add("peak memory", "3 MiB")
	var b strings.Builder
	if err := f.Write(&b); err != nil {
		t.Fatal(err)
	}
	if b.String() != "state        started\npeak memory  3 MiB\n" {
		t.Errorf("got\n%s", b.String())
	}
}

// Text from elsewhere cannot move the cursor, forge a line or break the
// encoding (I4).
func TestClean(t *testing.T) {
	for in, want := range map[string]string{
		"plain, ümlaut, 日本":   "plain, ümlaut, 日本",
		"\x1b[2Jgone":         `\x1b[2Jgone`,
		"a\nOK\r\tb":          `a\nOK\r\tb`,
		"\xff\xfe":            `\xff\xfe`,
		"right\u202eleft":     `right\u202eleft`,
		"back\bspace\x7f\x00": `back\bspace\x7f\x00`,
		"\u0085next \u2028":   `\u0085next \u2028`,
	} {
		if got := Clean(in); got != want {
			t.Errorf("%q: %q, want %q", in, got, want)
		}
	}
	if got := CleanLines("a\n\tb\x1bc\r\n"); got != "a\n\tb\\x1bc\\r\n" {
		t.Errorf("%q", got)
	}
	table := New("A", "B")
	table.Row("x\ny", "\x1b[31m")
	var b strings.Builder
	if err := table.Write(&b); err != nil || strings.Count(b.String(), "\n") != 2 || strings.Contains(b.String(), "\x1b") {
		t.Errorf("%q, %v", b.String(), err)
	}
}
