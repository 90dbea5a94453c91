package config

import (
	"encoding"
	"errors"
	"fmt"
	"reflect"
	"strconv"
	"strings"
)

// Key is one leaf of the configuration.
type Key struct {
	// Path is the key as the file has it, parts joined by dots.
	Path string
	// Doc says what the key means, in one line.
	Doc   string
	index []int
}

// Env is the environment variable that overrides the file.
func (k Key) Env() string {
	return "QUITTANCE_" + strings.ToUpper(strings.ReplaceAll(k.Path, ".", "_"))
}

// Flag is the name of the flag that overrides both.
func (k Key) Flag() string { return strings.NewReplacer(".", "-", "_", "-").Replace(k.Path) }

// Keys lists every leaf in the order of the example file.
func Keys() []Key { return keysBelow(reflect.TypeFor[Config](), "", nil) }

func keysBelow(t reflect.Type, prefix string, index []int) []Key {
	var keys []Key
	for i := range t.NumField() {
		f := t.Field(i)
		path := prefix + f.Tag.Get("toml")
		at := append(append([]int(nil), index...), i)
		if _, text := reflect.New(f.Type).Interface().(encoding.TextUnmarshaler); !text && f.Type.Kind() == reflect.Struct {
			keys = append(keys, keysBelow(f.Type, path+".", at)...)
			continue
		}
		keys = append(keys, Key{Path: path, Doc: f.Tag.Get("doc"), index: at})
	}
	return keys
}

// Default is the value of an empty file, as the file would have it.
func (k Key) Default() string {
	c := Default()
	return k.text(&c)
}

// text is the key's value in TOML.
func (k Key) text(c *Config) string {
	switch v := reflect.ValueOf(c).Elem().FieldByIndex(k.index).Interface().(type) {
	case encoding.TextMarshaler:
		text, err := v.MarshalText()
		if err != nil {
			panic(fmt.Sprintf("config: default of %s: %v", k.Path, err))
		}
		return strconv.Quote(string(text))
	case string:
		return strconv.Quote(v)
	case int:
		return strconv.Itoa(v)
	case bool:
		return strconv.FormatBool(v)
	}
	panic(fmt.Sprintf("config: key %s has a type without a text form", k.Path))
}

// sections are what the example file says above each table.
var sections = map[string]string{
	"":         "The controller's configuration. Flags override environment variables, which\noverride this file: service.listen is also QUITTANCE_SERVICE_LISTEN and\n--service-listen. `controller config check` prints what is in force.",
	"log":      "The log, on standard error or in systemd's journal.",
	"metrics":  "Figures for Prometheus; see quittance-controller-metrics(7).",
	"service":  "The job service: serve and api.",
	"provider": "The lanes' identity at a job service: serve and work.",
	"host":     "The host agent of this node.",
	"lanes":    "Execution of attempts: serve and work.",
	"retry":    "Repetition of requests whose answer was lost.",
}

// exampleHistory is the example's value of the one key without a default.
const exampleHistory = 64

// Example is the documented example file: every key with its meaning and its
// default.
func Example() string {
	c := Default()
	c.Lanes.History = exampleHistory
	var b strings.Builder
	table := "none"
	for _, key := range Keys() {
		t, leaf, nested := strings.Cut(key.Path, ".")
		if !nested {
			t, leaf = "", key.Path
		}
		if t != table {
			if table != "none" {
				b.WriteString("\n")
			}
			for line := range strings.SplitSeq(sections[t], "\n") {
				b.WriteString("# " + line + "\n")
			}
			if t != "" {
				b.WriteString("[" + t + "]\n")
			}
			table = t
		}
		b.WriteString("\n# " + key.Doc + "\n" + leaf + " = " + key.text(&c) + "\n")
	}
	return b.String()
}

// set parses value as the key's type. The error never shows the value.
func (k Key) set(c *Config, value string) error {
	field := reflect.ValueOf(c).Elem().FieldByIndex(k.index)
	if text, ok := field.Addr().Interface().(encoding.TextUnmarshaler); ok {
		return text.UnmarshalText([]byte(value))
	}
	switch field.Kind() {
	case reflect.String:
		field.SetString(value)
	case reflect.Int:
		n, err := strconv.Atoi(value)
		if err != nil {
			return errors.New("must be a whole number")
		}
		field.SetInt(int64(n))
	case reflect.Bool:
		b, err := strconv.ParseBool(value)
		if err != nil {
			return errors.New("must be true or false")
		}
		field.SetBool(b)
	default:
		panic(fmt.Sprintf("config: key %s has a type that cannot be set from text", k.Path))
	}
	return nil
}
