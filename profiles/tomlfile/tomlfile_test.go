package tomlfile

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"
)

type sample struct {
	Name  string   `toml:"name"`
	Bytes Size     `toml:"bytes"`
	Wait  Duration `toml:"wait"`
	Inner struct {
		Count int `toml:"count"`
	} `toml:"inner"`
	Words []string `toml:"words"`
}

func TestDecode(t *testing.T) {
	var s sample
	if err := Decode([]byte("name='a'\nbytes='768KiB'\nwait='250ms'\n[inner]\ncount=3\n"), &s); err != nil {
		t.Fatal(err)
	}
	if s.Name != "a" || s.Bytes.Bytes != 786432 || s.Wait.Duration != 250*time.Millisecond || s.Inner.Count != 3 {
		t.Fatalf("%+v", s)
	}
}

// I34: a refusal names the key and not the value.
func TestDecodeRefusals(t *testing.T) {
	for in, want := range map[string]string{
		"nam = 'secret'":                     `line 1: unknown key "nam"; "name" was probably meant`,
		"[inner]\ncont = 1":                  `line 2: unknown key "inner.cont"; "count" was probably meant`,
		"zebra = 1":                          `line 1: unknown key "zebra"`,
		"name = 'a'\nname = 'b'":             "name",
		"bytes = '12 secret'":                "must be a whole number with its unit",
		"bytes = '-1B'":                      "must be a whole number with its unit",
		"bytes = '+1B'":                      "must be a whole number with its unit",
		"bytes = '99999999999TiB'":           "must be a whole number with its unit",
		"bytes = 12":                         "must be a whole number with its unit",
		"wait = '-1s'":                       "must be a duration with its unit",
		"wait = 'soon secret'":               "must be a duration with its unit",
		"name = 7":                           "line 1: name: must be a text in quotes",
		"inner.count = 'secret'":             "line 1: inner.count: must be a whole number",
		"inner.count = 99999999999999999999": "line 1",
		"inner = 'secret'":                   "line 1: inner",
		"name = ":                            "line 1: ",
		"name = [\n'secret'":                 "line 2: array",
	} {
		var s sample
		err := Decode([]byte(in), &s)
		if err == nil {
			t.Errorf("%q was accepted", in)
			continue
		}
		message := err.Error()
		if !strings.Contains(message, want) {
			t.Errorf("%q: got %q, want %q in it", in, message, want)
		}
		if strings.Contains(message, "secret") {
			t.Errorf("%q: the message shows the value: %q", in, message)
		}
	}
}

// Every value that does not fit is told at once, beside keys that are not known;
// and each by itself.
func TestEveryProblemAtOnce(t *testing.T) {
	s := sample{Name: "before"}
	err := Decode([]byte("name = 7\nbytes = 'much'\nzebra = 1\nwait = '1s'\n[inner]\ncount = 'x'\n"), &s)
	var got []string
	for _, p := range Problems(err) {
		got = append(got, p.Error())
	}
	want := []string{
		"line 1: name: must be a text in quotes",
		`line 2: bytes: must be a whole number with its unit, such as "768KiB" (B, KiB, MiB, GiB, TiB)`,
		"line 6: inner.count: must be a whole number",
		`line 3: unknown key "zebra"`,
	}
	if !slices.Equal(got, want) {
		t.Errorf("got\n%s\nwant\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"))
	}
	if s.Name != "before" || s.Wait.Duration != time.Second {
		t.Errorf("decoded %+v", s)
	}
	// Of a table that may not be there its keys are no problems, and a list says
	// what each of it must be.
	for text, want := range map[string]string{
		"[name]\na = 1\nb = 2\n": "line 1: name: must be a text in quotes",
		"inner = 3\n":            "line 1: inner: must be a table",
		"words = [1]\n":          "line 1: words: must be a list in brackets, each a text in quotes",
	} {
		if err := Decode([]byte(text), new(sample)); err == nil || err.Error() != want {
			t.Errorf("%q: %v, want %s", text, err, want)
		}
	}
	// A value over several lines leaves no second problem behind.
	for _, text := range []string{"name = [\n1,\n2\n]\n", "name = 1 # [\n", "name = { a = [\n1 ] }\n"} {
		if err := Decode([]byte(text), new(sample)); len(Problems(err)) != 1 || !strings.Contains(err.Error(), "must be a text in quotes") {
			t.Errorf("%q: %v", text, err)
		}
	}
}

func TestReadBound(t *testing.T) {
	path := filepath.Join(t.TempDir(), "big.toml")
	if err := os.WriteFile(path, []byte(strings.Repeat("#", MaxBytes+1)), 0o600); err != nil {
		t.Fatal(err)
	}
	var s sample
	if err := Read(path, &s); err == nil || !strings.Contains(err.Error(), "longer than") {
		t.Fatalf("a file over the bound: %v", err)
	}
}

func TestSizeText(t *testing.T) {
	for n, want := range map[int64]string{0: "0B", 1: "1B", 1024: "1KiB", 786432: "768KiB", 32 << 20: "32MiB", 3 << 40: "3TiB"} {
		size := Size{n}
		text, err := size.MarshalText()
		if err != nil || string(text) != want {
			t.Errorf("%d: %s, %v; want %s", n, text, err, want)
		}
		var back Size
		if err := back.UnmarshalText(text); err != nil || back != size {
			t.Errorf("%s read back as %d, %v", text, back, err)
		}
	}
}
