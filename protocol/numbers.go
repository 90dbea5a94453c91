package protocol

import (
	"errors"
	"strconv"
)

// MaxNumber is the highest allocation number, 2⁵³−1: every JSON reader
// represents it exactly. There is no reset and no wrap; at exhaustion the
// agent drains and refuses (I5).
const MaxNumber Number = 1<<53 - 1

// Number is an allocation's sequence number, 1 … [MaxNumber], counted within
// one generation. Zero means "none": as a frontier, nothing accepted yet.
type Number int64

// ErrNumber is returned by [ParseNumber] for anything that is not a plain
// decimal from 1 to [MaxNumber].
var ErrNumber = errors.New("number must be a plain decimal from 1 to 9007199254740991, without sign or leading zeros")

// ParseNumber reads a number as it stands in a path: plain decimal digits,
// without sign, leading zeros or spaces.
func ParseNumber(s string) (Number, error) {
	if len(s) == 0 || len(s) > 16 || s[0] == '0' {
		return 0, ErrNumber
	}
	for i := range len(s) {
		if s[i] < '0' || s[i] > '9' {
			return 0, ErrNumber
		}
	}
	n, err := strconv.ParseInt(s, 10, 64)
	if err != nil || Number(n) > MaxNumber {
		return 0, ErrNumber
	}
	return Number(n), nil
}

// String is the plain decimal form that [ParseNumber] reads.
func (n Number) String() string { return strconv.FormatInt(int64(n), 10) }

// Valid reports whether n lies in 1 … [MaxNumber].
func (n Number) Valid() bool { return n >= 1 && n <= MaxNumber }

// Index is the position of a receipt in its generation's receipt log,
// contiguous from 0, which is the genesis receipt (I8).
type Index int64
