package core

import (
	"fmt"

	"github.com/go-json-experiment/json/jsontext"

	"github.com/quittance/quittance/profiles"
	"github.com/quittance/quittance/protocol"
)

// Entry is one record of the ledger: a receipt, whose payload is the leaf that
// is published, or an intent, which is never shown.
type Entry struct {
	Receipt bool
	Payload []byte
}

// MaxIntentBytes bounds an intent's payload; the largest holds a profile.
const MaxIntentBytes = 128 << 10

// intentVersion is the version of the intents' form on disk.
const intentVersion = 1

// intentKind names what an intent announces.
type intentKind string

const (
	intentProfile intentKind = "profile" // the profile that the next acceptance is for
	intentCreated intentKind = "created" // the container made, before its process is started
	intentRetire  intentKind = "retire"  // why an allocation is retired, before any signal
	intentExited  intentKind = "exited"  // when the exit was seen, on the boot-time clock
	// intentChannels counts the channels handed out, in steps; see channelsBody.
	intentChannels intentKind = "channels"
)

// intent is the stored form of what receipts do not carry.
type intent struct {
	V      int             `json:"v"`
	Intent intentKind      `json:"intent"`
	Number protocol.Number `json:"number"`
	Boot   BootTime        `json:"boot"`
	Body   jsontext.Value  `json:"body"`
}

// BootTime is a reading of the boot-time clock; readings of different boots
// cannot be compared (I25).
type BootTime struct {
	BootID protocol.ID `json:"boot_id"`
	Millis int64       `json:"ms"` // since the machine booted, suspended time included
}

// since is the time from t to now in milliseconds, or what has passed of the
// present boot where t is of an earlier one.
func (t BootTime) since(now BootTime) int64 {
	if t.BootID != now.BootID {
		return now.Millis
	}
	return max(0, now.Millis-t.Millis)
}

// profileBody carries the canonical bytes that an allocation is accepted with,
// so that a restart obeys the same profile whatever the file says by then.
type profileBody struct {
	Profile []byte `json:"profile"`
}

// CreatedBody identifies the container that was made and holds its counters'
// baseline. It is durable before the process is started: from then on a
// process may have run.
type CreatedBody struct {
	Container    protocol.Container `json:"container"`
	PID          int64              `json:"pid"`
	StartTicks   int64              `json:"start_ticks"`
	BootID       protocol.ID        `json:"boot_id"`
	Cgroup       protocol.CgroupRef `json:"cgroup"`
	Baseline     protocol.Counters  `json:"baseline"`
	CreateMillis int64              `json:"create_ms"`
}

// RetireBody says why an allocation is retired. The first one stands.
type RetireBody struct {
	Reason      protocol.Reason `json:"reason"`
	RequestedBy *string         `json:"requested_by"`
	Note        string          `json:"note"`
	Error       string          `json:"error"`
}

// exitedBody has no members: the intent's boot time is what it records.
type exitedBody struct{}

// channelsBody bounds from above how many channels were handed out over every
// life of the agent. It is durable before the channel that reaches it leaves,
// so a restart never counts too few. It moves one by one at first and by a
// quarter from exactChannels on: a few dozen records reach every max_channels.
type channelsBody struct {
	Reserved int64 `json:"reserved"`
}

const exactChannels = 16

// reserveChannels is the mark that covers the n-th channel.
func reserveChannels(n, most int64) int64 {
	if n < exactChannels {
		return n
	}
	return min(n+n/4, max(n, most))
}

func encodeIntent(kind intentKind, n protocol.Number, at BootTime, body any) Entry {
	return Entry{Payload: protocol.AppendCanonical(nil, intent{
		V: intentVersion, Intent: kind, Number: n, Boot: at, Body: protocol.AppendCanonical(nil, body),
	})}
}

// decodeIntent reads an intent and its body. The body is one of the pointer
// types of this file.
func decodeIntent(payload []byte) (intent, any, error) {
	var in intent
	if err := protocol.DecodeStrict(payload, MaxIntentBytes, &in); err != nil {
		return intent{}, nil, fmt.Errorf("intent: %w", err)
	}
	if in.V != intentVersion {
		return intent{}, nil, fmt.Errorf("intent: is of version %d; this program reads version %d: use the program that wrote it or a later one", in.V, intentVersion)
	}
	var body any
	switch in.Intent {
	case intentProfile:
		body = new(profileBody)
	case intentCreated:
		body = new(CreatedBody)
	case intentRetire:
		body = new(RetireBody)
	case intentExited:
		body = new(exitedBody)
	case intentChannels:
		body = new(channelsBody)
	default:
		return intent{}, nil, fmt.Errorf("intent: is of a kind that this program does not know: use the program that wrote it or a later one")
	}
	if err := protocol.DecodeStrict(in.Body, MaxIntentBytes, body); err != nil {
		return intent{}, nil, fmt.Errorf("intent %s: %w", in.Intent, err)
	}
	return in, body, nil
}

// decodeProfile reads a profile's canonical bytes.
func decodeProfile(canonical []byte) (*profiles.Profile, error) {
	var p profiles.Profile
	if err := protocol.DecodeStrict(canonical, MaxIntentBytes, &p); err != nil {
		return nil, fmt.Errorf("profile: %w", err)
	}
	return &p, nil
}
