package profiles

import (
	"fmt"
	"math"
	"regexp"
	"slices"
	"strings"
	"time"

	"github.com/quittance/quittance/profiles/tomlfile"
	"github.com/quittance/quittance/protocol"
)

// Problem is one thing that is wrong with a profile.
type Problem struct {
	Key    string // where, as in "filesystem.mounts[0].source"; "" for the whole file
	Detail string // what is wrong and what to do; never a value from env
}

func (p Problem) String() string {
	if p.Key == "" {
		return p.Detail
	}
	return p.Key + ": " + p.Detail
}

// Error is everything that is wrong with a profile, in the order of the schema.
type Error struct{ Problems []Problem }

func (e *Error) Error() string {
	texts := make([]string, len(e.Problems))
	for i, p := range e.Problems {
		texts[i] = p.String()
	}
	return strings.Join(texts, "; ")
}

// report collects problems.
type report struct {
	problems []Problem
	asked    map[string]bool // every key that was looked for, without positions; nil: not wanted
}

func (r *report) add(key, format string, args ...any) {
	r.problems = append(r.problems, Problem{Key: key, Detail: fmt.Sprintf(format, args...)})
}

func (r *report) err() error {
	if len(r.problems) == 0 {
		return nil
	}
	return &Error{Problems: r.problems}
}

// table reads one TOML table key by key, and knows afterwards which keys nobody
// asked for. A value that is absent or wrong reads as its default, so that
// reading goes on and every problem is found at once.
type table struct {
	report *report
	path   string // with a trailing dot, or ""
	values map[string]any
	known  []string
}

func (t *table) key(name string) string { return t.path + name }

func (t *table) has(name string) bool {
	_, ok := t.values[name]
	return ok
}

// ask notes that name is a key here.
func (t *table) ask(name string) {
	t.known = append(t.known, name)
	if t.report.asked != nil {
		t.report.asked[position.ReplaceAllString(t.key(name), "")] = true
	}
}

var position = regexp.MustCompile(`\[[0-9]+\]`)

func (t *table) get(name string) (any, bool) {
	t.ask(name)
	v, ok := t.values[name]
	return v, ok
}

// read returns the value as T, or fallback.
func read[T any](t *table, name string, fallback T, form string) T {
	v, ok := t.get(name)
	if !ok {
		return fallback
	}
	typed, ok := v.(T)
	if !ok {
		t.report.add(t.key(name), "must be %s", form)
		return fallback
	}
	return typed
}

func (t *table) required(name, remedy string) {
	if !t.has(name) {
		t.report.add(t.key(name), "is missing: %s", remedy)
	}
}

func (t *table) str(name, fallback string) string {
	return read(t, name, fallback, "a string")
}

func (t *table) boolean(name string, fallback bool) bool {
	return read(t, name, fallback, "true or false")
}

func (t *table) integer(name string, fallback, low, high int64) int64 {
	n := read(t, name, fallback, "a whole number")
	if n < low || n > high {
		t.report.add(t.key(name), "must be from %d to %d", low, high)
		return fallback
	}
	return n
}

// strings reads an array of strings without NUL.
func (t *table) strings(name string) []string {
	items := read(t, name, []any(nil), "an array of strings")
	out := make([]string, 0, len(items))
	for i, item := range items {
		s, ok := item.(string)
		if !ok || strings.ContainsRune(s, 0) {
			t.report.add(fmt.Sprintf("%s[%d]", t.key(name), i), "must be a string without NUL")
			continue
		}
		out = append(out, s)
	}
	return out
}

// sub reads a table; an absent one reads as empty.
func (t *table) sub(name string) *table {
	return &table{report: t.report, path: t.key(name) + ".", values: read(t, name, map[string]any(nil), "a table")}
}

// subs reads an array of tables.
func (t *table) subs(name string) []*table {
	items := read(t, name, []any(nil), "an array of tables")
	out := make([]*table, 0, len(items))
	for i, item := range items {
		path := fmt.Sprintf("%s[%d]", t.key(name), i)
		values, ok := item.(map[string]any)
		if !ok {
			t.report.add(path, "must be a table")
			continue
		}
		out = append(out, &table{report: t.report, path: path + ".", values: values})
	}
	return out
}

const exactInteger = 1<<53 - 1 // every JSON reader represents it

// size reads a number of bytes between two bounds.
func (t *table) size(name string, fallback, low, high int64) int64 {
	if !t.has(name) {
		t.ask(name)
		return fallback
	}
	var size tomlfile.Size
	if err := size.UnmarshalText([]byte(read(t, name, "", "a string"))); err != nil {
		t.report.add(t.key(name), `must be a whole number with a unit (B, KiB, MiB, GiB, TiB) in quotes, as in "512MiB"`)
		return fallback
	}
	if size.Bytes < low || size.Bytes > high {
		t.report.add(t.key(name), "must be from %s to %s", tomlfile.Size{Bytes: low}, tomlfile.Size{Bytes: high})
		return fallback
	}
	return size.Bytes
}

// millis reads a duration in whole milliseconds.
func (t *table) millis(name string, fallback, low, high time.Duration) int64 {
	if !t.has(name) {
		t.ask(name)
		return fallback.Milliseconds()
	}
	d, err := time.ParseDuration(read(t, name, "", "a string"))
	switch {
	case err != nil || d%time.Millisecond != 0:
		t.report.add(t.key(name), `must be a duration of whole milliseconds in quotes, as in "500ms", "5s" or "4m"`)
	case d < low || d > high:
		t.report.add(t.key(name), "must be from %s to %s", low, high)
	default:
		return d.Milliseconds()
	}
	return fallback.Milliseconds()
}

// cpuMillis reads cores as thousandths; 0: no limit.
func (t *table) cpuMillis(name string) int64 {
	v, ok := t.get(name)
	if !ok {
		return 0
	}
	var cores float64
	switch n := v.(type) {
	case int64:
		cores = float64(n)
	case float64:
		cores = n
	default:
		t.report.add(t.key(name), "must be a number of cores, as in 1.5")
		return 0
	}
	millis := math.Round(cores * 1000)
	if !(millis >= 10 && millis <= 1024*1000) { // false for NaN too
		t.report.add(t.key(name), "must be from 0.01 to 1024 cores; leave it out for no limit")
		return 0
	}
	return int64(millis)
}

// unknown reports every key that was not read.
func (t *table) unknown() {
	var names []string
	for name := range t.values {
		if !slices.Contains(t.known, name) {
			names = append(names, name)
		}
	}
	slices.Sort(names)
	for _, name := range names {
		if meant := tomlfile.Nearest(name, t.known); meant != "" {
			t.report.add(t.key(name), "is not a key of a profile: did you mean %s?", t.key(meant))
			continue
		}
		slices.Sort(t.known)
		t.report.add(t.key(name), "is not a key of a profile: remove it (known here: %s)", strings.Join(slices.Compact(t.known), ", "))
	}
}

// imageDigest returns the digest of a pinned reference, or "".
func imageDigest(image string) protocol.Digest {
	at := strings.LastIndexByte(image, '@')
	if at < 1 {
		return ""
	}
	if d := protocol.Digest(image[at+1:]); d.Valid() {
		return d
	}
	return ""
}
