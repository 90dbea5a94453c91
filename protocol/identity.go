package protocol

import (
	"crypto/rand"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"regexp"
	"strings"
	"time"
)

// ID is a 128-bit random identity in its only written form, 32 lower-case
// hexadecimal digits. Generations, owners (the random id of a controller's
// attempt store), container nonces and boot identities are IDs.
type ID string

var idForm = regexp.MustCompile(`^[0-9a-f]{32}$`)

// NewID makes a random identity from the system's secure source.
func NewID() ID {
	var b [16]byte
	rand.Read(b[:])
	return ID(hex.EncodeToString(b[:]))
}

// Valid reports whether the identity has its written form.
func (id ID) Valid() bool { return idForm.MatchString(string(id)) }

// ErrPurpose says what a purpose may contain.
var ErrPurpose = errors.New("purpose must be 1 to 128 characters of A-Z a-z 0-9 . _ : -")

var purposeForm = regexp.MustCompile(`^[A-Za-z0-9._:-]{1,128}$`)

// CheckPurpose returns [ErrPurpose] unless s is a usable attempt key.
func CheckPurpose(s string) error {
	if !purposeForm.MatchString(s) {
		return ErrPurpose
	}
	return nil
}

// ProfileNamePattern is the form of a profile's name, for messages.
const ProfileNamePattern = "[a-z0-9-], 1 to 40 characters"

var profileNameForm = regexp.MustCompile(`^[a-z0-9-]{1,40}$`)

// ValidProfileName reports whether s has the form [ProfileNamePattern].
func ValidProfileName(s string) bool { return profileNameForm.MatchString(s) }

// Digest is a SHA-256 in the form "sha256:" followed by 64 lower-case
// hexadecimal digits, as OCI writes it.
type Digest string

var digestForm = regexp.MustCompile(`^sha256:[0-9a-f]{64}$`)

// DigestOf is the SHA-256 of data.
func DigestOf(data []byte) Digest {
	sum := sha256.Sum256(data)
	return Digest("sha256:" + hex.EncodeToString(sum[:]))
}

// Valid reports whether the digest has its written form.
func (d Digest) Valid() bool { return digestForm.MatchString(string(d)) }

// Hex is the digest's 64 digits without the algorithm.
func (d Digest) Hex() string { return strings.TrimPrefix(string(d), "sha256:") }

// Timestamp is a wall-clock time in whole microseconds since the Unix epoch.
// It is for people: order comes from indices and numbers (I25).
type Timestamp int64

// timestampLayout always shows six fractional digits and Z.
const timestampLayout = "2006-01-02T15:04:05.000000Z"

// TimestampOf cuts t to microseconds.
func TimestampOf(t time.Time) Timestamp { return Timestamp(t.UnixMicro()) }

// Time is the same instant in UTC.
func (t Timestamp) Time() time.Time { return time.UnixMicro(int64(t)).UTC() }

// String is RFC 3339 in UTC with exactly six fractional digits.
func (t Timestamp) String() string { return t.Time().Format(timestampLayout) }

// MarshalText writes the form of [Timestamp.String].
func (t Timestamp) MarshalText() ([]byte, error) { return []byte(t.String()), nil }

// UnmarshalText accepts exactly the form that MarshalText writes.
func (t *Timestamp) UnmarshalText(b []byte) error {
	v, err := time.Parse(timestampLayout, string(b))
	if err != nil || len(b) != len(timestampLayout) {
		return fmt.Errorf("time must have the form %s", timestampLayout)
	}
	*t = TimestampOf(v)
	return nil
}
