package attempt

import (
	"bytes"
	"fmt"

	"github.com/go-json-experiment/json/jsontext"

	"github.com/quittance/quittance/protocol"
)

// Version is the version of the encoding that [Encode] writes. Every earlier
// version stays readable.
const Version = 1

// envelope is the union on disk.
type envelope struct {
	V      int            `json:"v"`
	State  State          `json:"state"`
	Record jsontext.Value `json:"record"`
}

// Encode writes the record's canonical bytes, at most [MaxRecordBytes]. It
// refuses what Decode would refuse, with a [*protocol.DecodeError].
func Encode(r Record) ([]byte, error) {
	if err := validate(r); err != nil {
		return nil, err
	}
	data := protocol.AppendCanonical(nil, envelope{Version, r.State(), protocol.AppendCanonical(nil, r)})
	if len(data) > MaxRecordBytes {
		return nil, &protocol.DecodeError{Reason: fmt.Sprintf("record is longer than %d bytes", MaxRecordBytes)}
	}
	return data, nil
}

// Decode reads what [Encode] wrote, and nothing else. Errors are
// [*protocol.DecodeError], or [*VersionError] for a newer version.
func Decode(data []byte) (Record, error) {
	var e envelope
	if err := protocol.DecodeStrict(data, MaxRecordBytes, &e); err != nil {
		return nil, err
	}
	if e.V != Version {
		return nil, &VersionError{e.V}
	}
	r, err := decodeState(e)
	if err != nil {
		return nil, err
	}
	if err := validate(r); err != nil {
		return nil, err
	}
	if !bytes.Equal(protocol.AppendCanonical(nil, envelope{e.V, e.State, protocol.AppendCanonical(nil, r)}), data) {
		return nil, &protocol.DecodeError{Reason: "is not in canonical form"}
	}
	return r, nil
}

// VersionError is a record of a version that this program does not read.
type VersionError struct{ Version int }

func (e *VersionError) Error() string {
	return fmt.Sprintf("attempt record has version %d; this program reads version %d: use the program that wrote it", e.Version, Version)
}

func decodeState(e envelope) (Record, error) {
	switch e.State {
	case StateStartPending:
		return decodeAs[StartPending](e.Record)
	case StateAcknowledged:
		return decodeAs[Acknowledged](e.Record)
	case StateTerminalPending:
		return decodeAs[TerminalPending](e.Record)
	case StateTerminalConfirmed:
		return decodeAs[TerminalConfirmed](e.Record)
	case StateTerminalHeld:
		return decodeAs[TerminalHeld](e.Record)
	case StateSuppressed:
		return decodeAs[Suppressed](e.Record)
	case StateEnded:
		return decodeAs[Ended](e.Record)
	}
	return nil, &protocol.DecodeError{Field: "/state", Reason: "is not a state of an attempt record"}
}

func decodeAs[T Record](raw []byte) (Record, error) {
	var r T
	if err := protocol.DecodeStrict(raw, MaxRecordBytes, &r); err != nil {
		var d *protocol.DecodeError
		if e, ok := err.(*protocol.DecodeError); ok {
			d = &protocol.DecodeError{Field: "/record" + e.Field, Reason: e.Reason}
			return nil, d
		}
		return nil, err
	}
	return r, nil
}
