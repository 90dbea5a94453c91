package protocol

import (
	"errors"
	"fmt"
	"reflect"
	"strings"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"
)

// DecodeError is a refusal of malformed input. It names the member and what is
// wrong with it, and never its value (I34, I37).
type DecodeError struct {
	// Field is the member's JSON pointer, "" for the whole document.
	Field string
	// Reason says what is wrong, for people.
	Reason string
}

func (e *DecodeError) Error() string {
	if e.Field == "" {
		return e.Reason
	}
	return e.Field + ": " + e.Reason
}

// Validator is implemented by messages that have rules beyond their types.
// Validate returns a *[DecodeError].
type Validator interface{ Validate() error }

// DecodeStrict decodes exactly one JSON value into v and refuses duplicate and
// unknown members, differently-cased names, trailing bytes, wrong types, invalid
// UTF-8, and input longer than limit bytes (I33, I34). null is accepted only for
// a pointer, an interface and a [jsontext.Value], and never for the whole
// document. Where v is a [Validator] it is validated too. Every error is a
// *[DecodeError].
func DecodeStrict(data []byte, limit int, v any) error {
	if len(data) > limit {
		return &DecodeError{Reason: fmt.Sprintf("is longer than %d bytes", limit)}
	}
	if len(data) == 0 {
		return &DecodeError{Reason: "is empty; a JSON object is required"}
	}
	if err := json.Unmarshal(data, v, strictOptions); err != nil {
		return decodeError(err)
	}
	if validator, ok := v.(Validator); ok {
		return validator.Validate()
	}
	return nil
}

// strictOptions are how everything in this package is decoded.
var strictOptions = json.JoinOptions(
	json.RejectUnknownMembers(true),
	json.MatchCaseInsensitiveNames(false),
	json.WithUnmarshalers(json.UnmarshalFromFunc(refuseNull)),
)

var (
	unmarshalerFromType = reflect.TypeFor[json.UnmarshalerFrom]()
	unmarshalerType     = reflect.TypeFor[json.Unmarshaler]()
)

// refuseNull is called before every value. By itself the library reads null as
// the zero value of any type.
func refuseNull(dec *jsontext.Decoder, v any) error {
	if dec.PeekKind() != 'n' {
		return errors.ErrUnsupported // go on as usual
	}
	t := reflect.TypeOf(v)
	nullable := t.Implements(unmarshalerFromType) || t.Implements(unmarshalerType)
	switch t = t.Elem(); t.Kind() {
	case reflect.Pointer, reflect.Interface:
		nullable = true
	}
	if nullable && dec.StackDepth() > 0 || t == rawType {
		return errors.ErrUnsupported
	}
	return &nullError{string(dec.StackPointer())}
}

// nullError is null where there is no null.
type nullError struct{ field string }

func (e *nullError) Error() string { return "null" }

func decodeError(err error) *DecodeError {
	var null *nullError
	if errors.As(err, &null) {
		return &DecodeError{null.field, "has the wrong type or form: null given"}
	}
	var own *DecodeError
	if errors.As(err, &own) {
		return own
	}
	var semantic *json.SemanticError
	if errors.As(err, &semantic) {
		field := string(semantic.JSONPointer)
		switch {
		case errors.Is(err, json.ErrUnknownName):
			return &DecodeError{field, "is not a member of this object in this version"}
		case semantic.JSONKind != 0 && semantic.GoType != nil:
			return &DecodeError{field, "has the wrong type or form: " + kindName(semantic.JSONKind) + " given"}
		}
		return &DecodeError{field, "has the wrong type or form"}
	}
	var syntactic *jsontext.SyntacticError
	if errors.As(err, &syntactic) {
		field := string(syntactic.JSONPointer)
		switch {
		case errors.Is(err, jsontext.ErrDuplicateName):
			return &DecodeError{field, "occurs twice"}
		case strings.Contains(err.Error(), "after top-level value"):
			return &DecodeError{"", "has bytes after its end"}
		case strings.Contains(err.Error(), "UTF-8"):
			return &DecodeError{field, "is not valid UTF-8"}
		}
		return &DecodeError{field, fmt.Sprintf("is not JSON (at byte %d)", syntactic.ByteOffset)}
	}
	return &DecodeError{"", "is not a whole JSON value"}
}

func kindName(k jsontext.Kind) string {
	switch k {
	case 'n':
		return "null"
	case 'f', 't':
		return "a boolean"
	case '"':
		return "a string"
	case '0':
		return "a number"
	case '{':
		return "an object"
	case '[':
		return "an array"
	}
	return "another kind"
}
