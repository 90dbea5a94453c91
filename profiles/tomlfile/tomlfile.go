// Package tomlfile reads the TOML files of both daemons strictly. It owns the
// rules that every one of them shares: a bound on the file's size, no unknown
// key, sizes and durations with their units, which key was probably meant, and
// messages that name the key and the remedy. It must not know what any key
// means.
package tomlfile

import (
	"bytes"
	"encoding"
	"errors"
	"fmt"
	"io"
	"os"
	"reflect"
	"strconv"
	"strings"
	"time"

	"github.com/pelletier/go-toml/v2"
)

// MaxBytes bounds one file (I33).
const MaxBytes = 256 << 10

// Size is a number of bytes, written with its unit: "768KiB", "32MiB", "0B". It
// is a struct so that a bare number, whose unit would be a guess, is refused.
type Size struct{ Bytes int64 }

// units, longest suffix first so that "MiB" is not read as "B".
var units = []struct {
	suffix string
	factor int64
}{{"KiB", 1 << 10}, {"MiB", 1 << 20}, {"GiB", 1 << 30}, {"TiB", 1 << 40}, {"B", 1}}

// UnmarshalText reads a whole number with one of the units B, KiB, MiB, GiB,
// TiB and nothing else.
func (s *Size) UnmarshalText(text []byte) error {
	for _, u := range units {
		digits, ok := strings.CutSuffix(string(text), u.suffix)
		if !ok {
			continue
		}
		n, err := strconv.ParseUint(digits, 10, 63)
		if err != nil || int64(n) > (1<<62)/u.factor {
			break
		}
		s.Bytes = int64(n) * u.factor
		return nil
	}
	return errors.New(`must be a whole number with its unit, such as "768KiB" (B, KiB, MiB, GiB, TiB)`)
}

// MarshalText writes [Size.String].
func (s Size) MarshalText() ([]byte, error) { return []byte(s.String()), nil }

// Duration is a span of time in Go's notation: "500ms", "10m", "24h"; a bare
// number is refused.
type Duration struct{ time.Duration }

// UnmarshalText reads a duration that is not negative.
func (d *Duration) UnmarshalText(text []byte) error {
	v, err := time.ParseDuration(string(text))
	if err != nil || v < 0 {
		return errors.New(`must be a duration with its unit, such as "500ms", "10m" or "24h"`)
	}
	d.Duration = v
	return nil
}

// String writes Go's notation without units that are zero: "10m", not "10m0s".
func (d Duration) String() string {
	text := d.Duration.String()
	for _, zero := range []struct{ unit, rest string }{{"m", "0s"}, {"h", "0m"}} {
		if whole, ok := strings.CutSuffix(text, zero.unit+zero.rest); ok {
			text = whole + zero.unit
		}
	}
	return text
}

// MarshalText writes [Duration.String].
func (d Duration) MarshalText() ([]byte, error) { return []byte(d.String()), nil }

// String writes the largest unit that divides the size.
func (s Size) String() string {
	best := units[len(units)-1]
	for _, u := range units {
		if s.Bytes != 0 && s.Bytes%u.factor == 0 && u.factor > best.factor {
			best = u
		}
	}
	return strconv.FormatInt(s.Bytes/best.factor, 10) + best.suffix
}

// Read decodes the file at path into v and refuses keys that v does not have.
// The error holds every problem that decoding found, each with its key.
func Read(path string, v any) error {
	f, err := os.Open(path)
	if err != nil {
		return err
	}
	data, err := io.ReadAll(io.LimitReader(f, MaxBytes+1))
	if err = errors.Join(err, f.Close()); err != nil {
		return fmt.Errorf("%s: %w", path, err)
	}
	if len(data) > MaxBytes {
		return fmt.Errorf("%s: is longer than %d bytes", path, MaxBytes)
	}
	if err := Decode(data, v); err != nil {
		return fmt.Errorf("%s: %w", path, err)
	}
	return nil
}

// maxProblems bounds what is told of one file.
const maxProblems = 20

// Decode is [Read] for bytes already in memory.
func Decode(data []byte, v any) error {
	// What is no TOML at all is told first, and alone.
	if err := toml.Unmarshal(data, new(map[string]any)); err != nil {
		return refused(err, nil)
	}
	var problems []error
	target := reflect.ValueOf(v).Elem()
	before := reflect.New(target.Type()).Elem()
	before.Set(target)
	for len(problems) < maxProblems {
		target.Set(before)
		err := toml.NewDecoder(bytes.NewReader(data)).DisallowUnknownFields().Decode(v)
		if strict, ok := errors.AsType[*toml.StrictMissingError](err); ok {
			for _, e := range strict.Errors {
				problems = append(problems, unknownKey(&e, target.Type()))
			}
			break
		}
		wrong, ok := errors.AsType[*toml.DecodeError](err)
		if ok && (len(wrong.Key()) > 0 || len(problems) == 0) {
			problems = append(problems, refused(err, target.Type()))
		} else if err != nil && len(problems) == 0 {
			problems = append(problems, refused(err, nil))
		}
		if !ok || len(wrong.Key()) == 0 {
			break
		}
		// The decoder stops at the first value that does not fit: look further
		// without its line.
		row, _ := wrong.Position()
		rest, found := withoutLine(data, row)
		if !found {
			break // or a table's head, whose keys would be told as another table's
		}
		data = rest
	}
	return errors.Join(problems...)
}

// withoutLine empties a line, counted from 1, unless it is empty or the head of a
// table.
func withoutLine(data []byte, row int) ([]byte, bool) {
	lines := bytes.Split(data, []byte("\n"))
	if row < 1 || row > len(lines) || len(lines[row-1]) == 0 || bytes.HasPrefix(bytes.TrimSpace(lines[row-1]), []byte("[")) {
		return nil, false
	}
	lines[row-1] = nil
	return bytes.Join(lines, []byte("\n")), true
}

// refused names line, key and remedy. The library quotes neither key nor value in
// what is kept of its messages, so they are safe for a log (I37).
func refused(err error, t reflect.Type) error {
	text := strings.TrimPrefix(err.Error(), "toml: ")
	decode, ok := errors.AsType[*toml.DecodeError](err)
	if !ok {
		return errors.New("is not TOML of this form: " + text)
	}
	row, _ := decode.Position()
	key := decode.Key()
	if len(key) == 0 {
		return fmt.Errorf("line %d: %s", row, text)
	}
	if form := wanted(t, key); form != "" && strings.HasPrefix(text, "cannot ") {
		text = "must be " + form
	}
	return fmt.Errorf("line %d: %s: %s", row, strings.Join(key, "."), text)
}

// wanted is the form of a key's value, for people; "" where that is not known.
func wanted(t reflect.Type, key []string) string {
	for _, part := range key {
		if t == nil {
			return ""
		}
		t = fieldType(t, part)
	}
	if t == nil {
		return ""
	}
	return form(t)
}

var textUnmarshaler = reflect.TypeFor[encoding.TextUnmarshaler]()

func form(t reflect.Type) string {
	if t.Kind() == reflect.Pointer {
		t = t.Elem()
	}
	if reflect.PointerTo(t).Implements(textUnmarshaler) {
		return "a text in quotes"
	}
	switch t.Kind() {
	case reflect.String:
		return "a text in quotes"
	case reflect.Bool:
		return "true or false"
	case reflect.Int, reflect.Int64:
		return "a whole number"
	case reflect.Struct, reflect.Map:
		return "a table"
	case reflect.Slice:
		// The value may be no list, or one of a list not what it must be.
		if each := form(t.Elem()); each != "" {
			return "a list in brackets, each " + each
		}
		return "a list in brackets"
	}
	return ""
}

func unknownKey(e *toml.DecodeError, t reflect.Type) error {
	key := e.Key()
	row, _ := e.Position()
	message := fmt.Sprintf("line %d: unknown key %q", row, strings.Join(key, "."))
	if near := meant(key, t); near != "" {
		message += fmt.Sprintf("; %q was probably meant", near)
	}
	return errors.New(message)
}

// meant is the known key of the same table that key's last part most likely
// stands for, or "".
func meant(key []string, t reflect.Type) string {
	for _, part := range key[:len(key)-1] {
		if t = fieldType(t, part); t == nil {
			return ""
		}
	}
	return Nearest(key[len(key)-1], keysOf(t))
}

// Nearest is the known name that a misspelt one most likely stands for: it
// differs by at most two edits, and by less than half of it. "" where there is
// none.
func Nearest(name string, known []string) string {
	best, distance := "", 3
	for _, k := range known {
		if d := edits(strings.ToLower(name), k); d < distance && 2*d < len(k) {
			best, distance = k, d
		}
	}
	return best
}

// Problems takes an error of [Read] or [Decode] apart into what is wrong, each
// by itself.
func Problems(err error) []error {
	if several, ok := err.(interface{ Unwrap() []error }); ok {
		return several.Unwrap()
	}
	if inner := errors.Unwrap(err); inner != nil {
		if _, ok := inner.(interface{ Unwrap() []error }); ok {
			return Problems(inner)
		}
	}
	return []error{err}
}

func structOf(t reflect.Type) reflect.Type {
	for t.Kind() == reflect.Pointer || t.Kind() == reflect.Slice {
		t = t.Elem()
	}
	if t.Kind() != reflect.Struct {
		return nil
	}
	return t
}

func keysOf(t reflect.Type) []string {
	var keys []string
	if t = structOf(t); t == nil {
		return nil
	}
	for f := range t.Fields() {
		if name, _, _ := strings.Cut(f.Tag.Get("toml"), ","); name != "" && name != "-" {
			keys = append(keys, name)
		}
	}
	return keys
}

func fieldType(t reflect.Type, key string) reflect.Type {
	if t = structOf(t); t == nil {
		return nil
	}
	for f := range t.Fields() {
		if name, _, _ := strings.Cut(f.Tag.Get("toml"), ","); name == key {
			return f.Type
		}
	}
	return nil
}

// edits is the Levenshtein distance of two short strings.
func edits(a, b string) int {
	row := make([]int, len(b)+1)
	for j := range row {
		row[j] = j
	}
	for i := range len(a) {
		diagonal := row[0]
		row[0] = i + 1
		for j := range len(b) {
			cost := 1
			if a[i] == b[j] {
				cost = 0
			}
			diagonal, row[j+1] = row[j+1], min(diagonal+cost, row[j]+1, row[j+1]+1)
		}
	}
	return row[len(b)]
}
