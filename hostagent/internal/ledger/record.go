package ledger

import (
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"fmt"
	"hash/crc32"

	"github.com/quittance/quittance/protocol"
)

const (
	// recordHeader is the length of a record before its payload.
	recordHeader = 60
	// segmentHeader is where the first record of a segment begins: the header
	// has a sector of its own.
	segmentHeader = 512
	// headerBytes is the part of segmentHeader that is used.
	headerBytes = 8 + 4 + 4 + 16 + 8 + 8 + 8 + 8 + sha256.Size

	formatVersion = Format
	magic         = "QLEDGER1"

	flagMore byte   = 1 // record: more of the same group follow
	flagBase uint64 = 1 // header: the first record is a base

	// baseEnvelope precedes a base's payload on disk: the ordinal of the
	// lowest segment that must exist.
	baseEnvelope = 8
)

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

type digest = [sha256.Size]byte

// place is what a checksum in a segment covers besides the bytes: a copy of
// them anywhere else is not valid.
type place struct {
	generation [16]byte
	ordinal    uint64
}

func (p place) checksum(offset int64, parts ...[]byte) uint32 {
	var b [32]byte
	copy(b[:], p.generation[:])
	binary.LittleEndian.PutUint64(b[16:], p.ordinal)
	binary.LittleEndian.PutUint64(b[24:], uint64(offset))
	sum := crc32.Update(0, castagnoli, b[:])
	for _, part := range parts {
		sum = crc32.Update(sum, castagnoli, part)
	}
	return sum
}

// record is one record in its decoded form. payload of a base still has its
// envelope.
type record struct {
	sequence uint64
	durable  uint64 // highest sequence synced when it was written
	previous digest
	kind     Kind
	more     bool
	payload  []byte
}

// appendRecord encodes r for the given offset and returns it with its hash.
func appendRecord(dst []byte, p place, offset int64, r record) ([]byte, digest) {
	start := len(dst)
	dst = append(dst, make([]byte, recordHeader)...)
	dst = append(dst, r.payload...)
	b := dst[start:]
	binary.LittleEndian.PutUint32(b, uint32(len(r.payload)))
	binary.LittleEndian.PutUint64(b[8:], r.sequence)
	binary.LittleEndian.PutUint64(b[16:], r.durable)
	copy(b[24:], r.previous[:])
	b[56] = byte(r.kind)
	if r.more {
		b[57] = flagMore
	}
	binary.LittleEndian.PutUint32(b[4:], p.checksum(offset, b[:4], b[8:]))
	hash := sha256.Sum256(b)
	for len(dst)%8 != start%8 {
		dst = append(dst, 0)
	}
	return dst, hash
}

// payloadLimit bounds the payload of a kind as it lies on disk.
func payloadLimit(k Kind) int {
	switch k {
	case KindReceipt, KindIntent:
		return MaxPayload
	case KindBase:
		return baseEnvelope + MaxBase
	}
	return 0
}

// parseRecord reads the record at the start of b, which lies at offset in its
// segment. It returns false for anything that is not exactly a record written
// there. The payload aliases b.
func parseRecord(b []byte, p place, offset int64) (record, bool) {
	if len(b) < recordHeader {
		return record{}, false
	}
	r := record{
		sequence: binary.LittleEndian.Uint64(b[8:]),
		durable:  binary.LittleEndian.Uint64(b[16:]),
		previous: digest(b[24:56]),
		kind:     Kind(b[56]),
		more:     b[57] == flagMore,
	}
	length := int64(binary.LittleEndian.Uint32(b))
	if b[57]&^flagMore != 0 || b[58] != 0 || b[59] != 0 || r.kind < KindReceipt || r.kind > KindAttest ||
		r.sequence == 0 || r.durable >= r.sequence ||
		length > int64(payloadLimit(r.kind)) || length > int64(len(b)-recordHeader) {
		return record{}, false
	}
	whole := b[:recordHeader+length]
	if binary.LittleEndian.Uint32(b[4:]) != p.checksum(offset, whole[:4], whole[8:]) {
		return record{}, false
	}
	r.payload = whole[recordHeader:]
	return r, true
}

// header is a segment's header in its decoded form.
type header struct {
	place  place
	size   int64  // of the file, so that a cut file is recognised
	first  uint64 // sequence of its first record; everything lower was durable
	base   bool   // its first record is a base
	before digest // hash of the record before the first
}

func (h header) encode() []byte {
	b := make([]byte, segmentHeader)
	copy(b, magic)
	binary.LittleEndian.PutUint32(b[8:], formatVersion)
	copy(b[16:], h.place.generation[:])
	binary.LittleEndian.PutUint64(b[32:], h.place.ordinal)
	binary.LittleEndian.PutUint64(b[40:], uint64(h.size))
	binary.LittleEndian.PutUint64(b[48:], h.first)
	if h.base {
		binary.LittleEndian.PutUint64(b[56:], flagBase)
	}
	copy(b[64:], h.before[:])
	binary.LittleEndian.PutUint32(b[12:], h.place.checksum(0, b[:12], b[16:headerBytes]))
	return b
}

// parseHeader reads a segment's header. false: these bytes are no header of
// the segment with that ordinal.
func parseHeader(b []byte, ordinal uint64) (header, bool) {
	if len(b) < segmentHeader || string(b[:8]) != magic || binary.LittleEndian.Uint32(b[8:]) != formatVersion {
		return header{}, false
	}
	h := header{
		place:  place{generation: [16]byte(b[16:32]), ordinal: binary.LittleEndian.Uint64(b[32:])},
		size:   int64(binary.LittleEndian.Uint64(b[40:])),
		first:  binary.LittleEndian.Uint64(b[48:]),
		base:   binary.LittleEndian.Uint64(b[56:]) == flagBase,
		before: digest(b[64:headerBytes]),
	}
	if binary.LittleEndian.Uint32(b[12:]) != h.place.checksum(0, b[:12], b[16:headerBytes]) ||
		binary.LittleEndian.Uint64(b[56:])&^flagBase != 0 || h.place.ordinal != ordinal || h.first == 0 || h.size < segmentHeader || h.size > maxFile {
		return header{}, false
	}
	return h, true
}

// maxFile bounds a segment file: the largest base and what follows it.
const maxFile = MaxSegment + baseEnvelope + MaxBase + segmentHeader + MaxGroup

// newerFormat reports whether b is the header of a segment that a later
// program wrote in a format which this one does not read. The places of magic,
// version, checksum and generation, and what the checksum covers, are the same
// in every format: so a damaged version is damage and nothing else.
func newerFormat(b []byte, ordinal uint64) (version uint32, newer bool) {
	if len(b) < segmentHeader || string(b[:8]) != magic {
		return 0, false
	}
	version = binary.LittleEndian.Uint32(b[8:])
	p := place{generation: [16]byte(b[16:32]), ordinal: ordinal}
	return version, version > formatVersion && binary.LittleEndian.Uint32(b[12:]) == p.checksum(0, b[:12], b[16:headerBytes])
}

func generationBytes(id protocol.ID) ([16]byte, error) {
	var out [16]byte
	if !id.Valid() {
		return out, fmt.Errorf("generation must be 32 lower-case hexadecimal digits")
	}
	_, err := hex.Decode(out[:], []byte(id))
	return out, err
}

func generationID(b [16]byte) protocol.ID { return protocol.ID(hex.EncodeToString(b[:])) }

func positionOf(ordinal uint64, offset int64) Position { return Position(ordinal<<32 | uint64(offset)) }

func (p Position) split() (ordinal uint64, offset int64) {
	return uint64(p) >> 32, int64(uint32(p))
}

// declared is the length that the record at the start of b claims to have.
func declared(b []byte) int64 {
	if len(b) < recordHeader {
		return 0
	}
	return recordHeader + int64(binary.LittleEndian.Uint32(b))
}
