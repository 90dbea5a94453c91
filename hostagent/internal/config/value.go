package config

import (
	"errors"
	"fmt"
	"os/user"
	"reflect"
	"slices"
	"strconv"
	"strings"

	"github.com/quittance/quittance/profiles/tomlfile"
)

// Size is a number of bytes with its unit, as in "512MiB".
type Size = tomlfile.Size

// Duration is a span of time with its unit, as in "2m" or "500ms".
type Duration = tomlfile.Duration

// Paths are directories; on a command line they are separated by commas.
type Paths []string

// Users are users by number (int64) or by name (string), as TOML gives them.
type Users []any

// texts gives each user as text; another type is an error.
func (u Users) texts() ([]string, error) {
	out := make([]string, len(u))
	for i, v := range u {
		switch v := v.(type) {
		case string:
			out[i] = v
		case int64:
			out[i] = strconv.FormatInt(v, 10)
		default:
			return nil, errors.New("must be an array of user numbers and names")
		}
	}
	return out, nil
}

// Resolve looks the names up. A name that does not exist is an error.
func (u Users) Resolve() ([]int, error) {
	uids := []int{}
	texts, err := u.texts()
	if err != nil {
		return nil, err
	}
	for _, text := range texts {
		uid, err := resolve(text, "user", func(name string) (string, error) {
			found, err := user.Lookup(name)
			if err != nil {
				return "", err
			}
			return found.Uid, nil
		})
		if err != nil {
			return nil, err
		}
		if !slices.Contains(uids, uid) {
			uids = append(uids, uid)
		}
	}
	return uids, nil
}

// GroupID is the socket group's number, nil for none.
func (c *Config) GroupID() (*int, error) { return groupID(c.SocketGroup) }

// MetricsGroupID is the number of the group that may read the figures, nil for
// none.
func (c *Config) MetricsGroupID() (*int, error) { return groupID(c.MetricsGroup) }

func groupID(group string) (*int, error) {
	if group == "" {
		return nil, nil
	}
	gid, err := resolve(group, "group", func(name string) (string, error) {
		found, err := user.LookupGroup(name)
		if err != nil {
			return "", err
		}
		return found.Gid, nil
	})
	if err != nil {
		return nil, err
	}
	return &gid, nil
}

func resolve(text, what string, look func(string) (string, error)) (int, error) {
	if n, err := strconv.ParseUint(text, 10, 31); err == nil {
		return int(n), nil
	}
	if text == "" || strings.ContainsAny(text, " ,") {
		return 0, fmt.Errorf("has an entry that is neither a number nor a name")
	}
	id, err := look(text)
	if err != nil {
		return 0, fmt.Errorf("names the %s %q, which does not exist: create it or correct the name", what, text)
	}
	return strconv.Atoi(id)
}

// field finds the field of a key.
func (c *Config) field(key string) reflect.Value {
	v := reflect.ValueOf(c).Elem()
	for i := range v.NumField() {
		if v.Type().Field(i).Tag.Get("toml") == key {
			return v.Field(i)
		}
	}
	panic("config: no field for key " + key)
}

// set reads a key's value from the environment or a flag: lists are separated
// by commas, everything else is as in the file without quotes.
func (c *Config) set(key, text string) error {
	switch f := c.field(key).Addr().Interface().(type) {
	case *string:
		*f = text
	case *int64:
		n, err := strconv.ParseInt(text, 10, 64)
		if err != nil {
			return errors.New("must be a whole number")
		}
		*f = n
	case *Users:
		*f = Users{}
		for entry := range strings.SplitSeq(text, ",") {
			if text != "" {
				*f = append(*f, entry)
			}
		}
	case *Paths:
		*f = Paths{}
		if text != "" {
			*f = strings.Split(text, ",")
		}
	case *Size:
		return f.UnmarshalText([]byte(text))
	case *Duration:
		return f.UnmarshalText([]byte(text))
	default:
		panic("config: no way to set key " + key)
	}
	return nil
}

// literal is a key's value as the file writes it.
func (c *Config) literal(key string) string {
	switch v := c.field(key).Interface().(type) {
	case string:
		return strconv.Quote(v)
	case int64:
		return strconv.FormatInt(v, 10)
	case Users:
		items, err := v.texts()
		if err != nil {
			return "[]" // reported by check
		}
		for i, u := range items {
			if _, err := strconv.ParseUint(u, 10, 31); err != nil {
				items[i] = strconv.Quote(u)
			}
		}
		return "[" + strings.Join(items, ", ") + "]"
	case Paths:
		items := make([]string, len(v))
		for i, path := range v {
			items[i] = strconv.Quote(path)
		}
		return "[" + strings.Join(items, ", ") + "]"
	case interface{ MarshalText() ([]byte, error) }:
		text, err := v.MarshalText()
		if err != nil {
			panic("config: " + err.Error())
		}
		return strconv.Quote(string(text))
	}
	panic("config: no literal for key " + key)
}

// Value is a key's value as a flag writes it.
func (c *Config) Value(key string) string {
	if u, ok := c.field(key).Interface().(Users); ok {
		texts, err := u.texts()
		if err != nil {
			return ""
		}
		return strings.Join(texts, ",")
	}
	if p, ok := c.field(key).Interface().(Paths); ok {
		return strings.Join(p, ",")
	}
	text := c.literal(key)
	if unquoted, err := strconv.Unquote(text); err == nil {
		return unquoted
	}
	return text
}

// String is the whole configuration as a file that can be read again.
func (c Config) String() string {
	var b strings.Builder
	for _, k := range Keys() {
		fmt.Fprintf(&b, "%s = %s\n", k.Name, c.literal(k.Name))
	}
	return b.String()
}

// exampleWidth is where the example's comments are wrapped.
const exampleWidth = 88

// Example is the documented example file: every key with its default, ready to
// be uncommented.
func Example() string {
	c := Default()
	var b strings.Builder
	b.WriteString("# Configuration of the Quittance host agent. Every key is shown with its default.\n" +
		"# Flags override QUITTANCE_... environment variables, which override this file.\n" +
		"# `hostagent config check` shows the effective configuration and every problem.\n")
	for _, k := range Keys() {
		b.WriteString("\n")
		line := "#"
		for _, word := range strings.Fields(k.Doc) {
			if len(line)+1+len(word) > exampleWidth {
				b.WriteString(line + "\n")
				line = "#"
			}
			line += " " + word
		}
		fmt.Fprintf(&b, "%s\n#%s = %s\n", line, k.Name, c.literal(k.Name))
	}
	return b.String()
}
