package api

import (
	"encoding/base64"
	"errors"
	"fmt"

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
		if err := protocol.CheckPresence(data, v); err != nil {
			return err
		}
	}
	return protocol.DecodeStrict(data, int(limit), v)
}

// fieldError is a refusal of one member.
func fieldError(field, format string, args ...any) error {
	return &protocol.DecodeError{Field: field, Reason: fmt.Sprintf(format, args...)}
}
