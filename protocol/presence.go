package protocol

import (
	"encoding"
	"reflect"
	"strconv"
	"strings"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"
)

// CheckPresence refuses a document that lacks a member of the message that v
// points to, those with omitempty excepted, at any depth: what a sender left out
// by mistake is not read as zero or null. Whatever else is wrong with the
// document is left to [DecodeStrict]. The error is a *[DecodeError].
func CheckPresence(data []byte, v any) error {
	return checkPresence(data, reflect.TypeOf(v).Elem(), "")
}

var textUnmarshaler = reflect.TypeFor[encoding.TextUnmarshaler]()

// checkPresence walks raw beside its type. Whatever else is wrong with the
// input is left to the strict decoder.
func checkPresence(raw jsontext.Value, t reflect.Type, at string) error {
	if t.Kind() == reflect.Pointer {
		t = t.Elem()
	}
	if t == reflect.TypeFor[jsontext.Value]() || reflect.PointerTo(t).Implements(textUnmarshaler) {
		return nil
	}
	switch t.Kind() {
	case reflect.Struct:
		if raw.Kind() != '{' {
			return nil
		}
		var members map[string]jsontext.Value
		if json.Unmarshal(raw, &members) != nil {
			return nil
		}
		for i := range t.NumField() {
			field := t.Field(i)
			name, options, _ := strings.Cut(field.Tag.Get("json"), ",")
			member, present := members[name]
			if !present {
				if options == "omitempty" {
					continue
				}
				return &DecodeError{Field: at + "/" + name, Reason: "is missing"}
			}
			if err := checkPresence(member, field.Type, at+"/"+name); err != nil {
				return err
			}
			if member.Kind() == 'n' && !nullable(field.Type) {
				return &DecodeError{Field: at + "/" + name, Reason: "must not be null"}
			}
		}
	case reflect.Slice:
		if raw.Kind() != '[' {
			return nil
		}
		var items []jsontext.Value
		if json.Unmarshal(raw, &items) != nil {
			return nil
		}
		for i, item := range items {
			where := at + "/" + strconv.Itoa(i)
			if item.Kind() == 'n' && !nullable(t.Elem()) {
				return &DecodeError{Field: where, Reason: "must not be null"}
			}
			if err := checkPresence(item, t.Elem(), where); err != nil {
				return err
			}
		}
	}
	return nil
}

func nullable(t reflect.Type) bool {
	return t.Kind() == reflect.Pointer || t == reflect.TypeFor[jsontext.Value]()
}
