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
	Path  string
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
		keys = append(keys, Key{Path: path, index: at})
	}
	return keys
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
