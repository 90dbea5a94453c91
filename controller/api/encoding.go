package api

import (
	"encoding/base64"
	"errors"
	"fmt"
	"reflect"
	"strconv"
	"strings"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"

	"github.com/quittance/quittance/protocol"
)

// Bytes are written as canonical standard base64: padded, without line breaks,
// with zero trailing bits. Every other spelling of the same bytes is refused.
type Bytes []byte

// errBase64 is the only way in which Bytes fail to decode.
var errBase64 = errors.New("must be canonical standard base64")

// MarshalText writes the canonical form.
func (b Bytes) MarshalText() ([]byte, error) {
	return base64.StdEncoding.AppendEncode(nil, b), nil
}

// UnmarshalText accepts the canonical form only.
func (b *Bytes) UnmarshalText(text []byte) error {
	data := make([]byte, base64.StdEncoding.DecodedLen(len(text)))
	n, err := base64.StdEncoding.Strict().Decode(data, text)
	// The decoder skips line breaks even when strict.
	if err != nil || base64.StdEncoding.EncodedLen(n) != len(text) {
		return errBase64
	}
	*b = data[:n]
	return nil
}

// Encode writes a message in its canonical form.
func Encode(v any) []byte { return protocol.AppendCanonical(nil, v) }

// Decode reads one message strictly and validates it. It refuses what
// [protocol.DecodeStrict] refuses and, beyond that, a missing member that is not
// optional. Errors are *[protocol.DecodeError] and name the member, never its
// value (I34).
func Decode(data []byte, limit int64, v any) error {
	if int64(len(data)) <= limit {
		if err := checkPresence(data, reflect.TypeOf(v).Elem(), ""); err != nil {
			return err
		}
	}
	return protocol.DecodeStrict(data, int(limit), v)
}

var textUnmarshaler = reflect.TypeFor[interface{ UnmarshalText([]byte) error }]()

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
				return &protocol.DecodeError{Field: at + "/" + name, Reason: "is missing"}
			}
			if err := checkPresence(member, field.Type, at+"/"+name); err != nil {
				return err
			}
			if member.Kind() == 'n' && !nullable(field.Type) {
				return &protocol.DecodeError{Field: at + "/" + name, Reason: "must not be null"}
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
				return &protocol.DecodeError{Field: where, Reason: "must not be null"}
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

// fieldError is a refusal of one member.
func fieldError(field, format string, args ...any) error {
	return &protocol.DecodeError{Field: field, Reason: fmt.Sprintf(format, args...)}
}
