package protocol

import (
	"encoding"
	"encoding/base64"
	"fmt"
	"reflect"
	"strconv"
	"strings"
	"sync"
	"unicode/utf8"

	"github.com/go-json-experiment/json/jsontext"
)

// AppendCanonical appends the canonical JSON of v: the fields of a struct in
// the order in which they are declared, no spaces, integers only, the shortest
// escapes, nothing escaped for HTML. A nil pointer is null; a nil slice is [];
// bytes are standard base64.
// A field tagged omitempty is left out when it is its type's zero value. Bytes
// of a [jsontext.Value] are copied as they are.
//
// It panics on what the formats do not have (floats, maps, invalid UTF-8 in
// strings that our own code made): such a value is a fault of the program and
// no input reaches it undecoded.
func AppendCanonical(dst []byte, v any) []byte {
	return appendValue(dst, reflect.ValueOf(v))
}

var (
	rawType  = reflect.TypeFor[jsontext.Value]()
	textType = reflect.TypeFor[encoding.TextMarshaler]()
)

func appendValue(dst []byte, v reflect.Value) []byte {
	if !v.IsValid() {
		return append(dst, "null"...)
	}
	t := v.Type()
	if t == rawType {
		if v.Len() == 0 {
			return append(dst, "null"...)
		}
		return append(dst, v.Bytes()...)
	}
	if t.Implements(textType) && t.Kind() != reflect.Pointer && t.Kind() != reflect.Interface {
		text, err := v.Interface().(encoding.TextMarshaler).MarshalText()
		if err != nil {
			panic(fmt.Sprintf("protocol: %s: %v", t, err))
		}
		return appendString(dst, string(text))
	}
	switch t.Kind() {
	case reflect.Pointer, reflect.Interface:
		if v.IsNil() {
			return append(dst, "null"...)
		}
		return appendValue(dst, v.Elem())
	case reflect.Bool:
		return strconv.AppendBool(dst, v.Bool())
	case reflect.Int, reflect.Int32, reflect.Int64:
		return strconv.AppendInt(dst, v.Int(), 10)
	case reflect.Uint32, reflect.Uint64:
		return strconv.AppendUint(dst, v.Uint(), 10)
	case reflect.String:
		return appendString(dst, v.String())
	case reflect.Slice:
		if t.Elem().Kind() == reflect.Uint8 {
			dst = append(dst, '"')
			dst = base64.StdEncoding.AppendEncode(dst, v.Bytes())
			return append(dst, '"')
		}
		dst = append(dst, '[')
		for i := range v.Len() {
			if i > 0 {
				dst = append(dst, ',')
			}
			dst = appendValue(dst, v.Index(i))
		}
		return append(dst, ']')
	case reflect.Struct:
		dst = append(dst, '{')
		first := true
		for _, f := range fieldsOf(t) {
			fv := v.Field(f.index)
			if f.omitEmpty && fv.IsZero() {
				continue
			}
			if !first {
				dst = append(dst, ',')
			}
			first = false
			dst = append(dst, f.key...)
			dst = appendValue(dst, fv)
		}
		return append(dst, '}')
	default:
		panic(fmt.Sprintf("protocol: no canonical form for %s", t))
	}
}

func appendString(dst []byte, s string) []byte {
	if !utf8.ValidString(s) {
		panic("protocol: string is not valid UTF-8")
	}
	dst, err := jsontext.AppendQuote(dst, s)
	if err != nil {
		panic(fmt.Sprintf("protocol: quote: %v", err))
	}
	return dst
}

// canonicalField is one member of an object: its quoted name with the colon.
type canonicalField struct {
	index     int
	key       string
	omitEmpty bool
}

// fieldCache maps a struct type to its []canonicalField.
var fieldCache sync.Map

func fieldsOf(t reflect.Type) []canonicalField {
	if cached, ok := fieldCache.Load(t); ok {
		return cached.([]canonicalField)
	}
	var fields []canonicalField
	for i := range t.NumField() {
		f := t.Field(i)
		name, options, _ := strings.Cut(f.Tag.Get("json"), ",")
		if !f.IsExported() || name == "" || name == "-" {
			panic(fmt.Sprintf("protocol: field %s.%s has no JSON name", t, f.Name))
		}
		fields = append(fields, canonicalField{
			index: i, key: strconv.Quote(name) + ":", omitEmpty: options == "omitempty" || options == "omitzero",
		})
	}
	fieldCache.Store(t, fields)
	return fields
}
