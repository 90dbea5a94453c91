package store

import (
	"bytes"
	"errors"
	"fmt"
	"strconv"
	"strings"

	"github.com/go-json-experiment/json"

	"github.com/quittance/quittance/controller/internal/attempt"
	"github.com/quittance/quittance/protocol"
)

// Format is the version of the files that this program writes, and the newest
// that it reads.
const Format = 1

const (
	formatName    = "quittance-store"
	formatVersion = Format

	maxHeaderBytes  = 1024
	maxWitnessBytes = 16 << 10

	// MaxFileBytes bounds a record's file: its header line and the record.
	MaxFileBytes = maxHeaderBytes + attempt.MaxRecordBytes + 1
	// reserveBytes are reserved for each active record before its START: a full
	// record, and the temporary file that replaces it.
	reserveBytes = 2 * MaxFileBytes

	recordSuffix  = ".attempt"
	witnessSuffix = ".witness"
	reserveSuffix = ".reserve"
	tmpSuffix     = ".tmp"

	scopeFile    = "scope"
	lockFile     = "lock"
	activeDir    = "active"
	historyDir   = "history"
	hostsDir     = "hosts"
	reserveDir   = "reserve"
	sequenceForm = "%016d-"
	maxSequence  = 9_999_999_999_999_999
)

// fileKind says what a file holds.
type fileKind string

const (
	kindScope   fileKind = "scope"
	kindAttempt fileKind = "attempt"
	kindWitness fileKind = "witness"
)

// header is the first line of every file. SHA256 is over this line with SHA256
// empty, a line feed, and the content.
type header struct {
	Format   string          `json:"format"`
	V        int             `json:"v"`
	Store    protocol.ID     `json:"store"`
	Kind     fileKind        `json:"kind"`
	Name     string          `json:"name"` // attempt key, host generation, or "" for the scope
	Revision Revision        `json:"revision"`
	Length   int64           `json:"length"` // of the content, bytes
	SHA256   protocol.Digest `json:"sha256"`
}

func (h header) sum(content []byte) protocol.Digest {
	h.SHA256 = ""
	return protocol.DigestOf(append(append(protocol.AppendCanonical(nil, h), '\n'), content...))
}

// seal is a whole file.
func seal(store protocol.ID, kind fileKind, name string, revision Revision, content []byte) []byte {
	h := header{Format: formatName, V: formatVersion, Store: store, Kind: kind, Name: name, Revision: revision, Length: int64(len(content))}
	h.SHA256 = h.sum(content)
	file := append(protocol.AppendCanonical(nil, h), '\n')
	return append(append(file, content...), '\n')
}

// unseal takes a file apart and refuses one that seal did not write.
func unseal(file []byte) (header, []byte, error) {
	line, rest, found := bytes.Cut(file, []byte{'\n'})
	if !found {
		return header{}, nil, errors.New("is cut short or not a file of an attempt store")
	}
	// A newer format may have other members: its name and version come first.
	var first struct {
		Format string `json:"format"`
		V      int    `json:"v"`
	}
	if err := json.Unmarshal(line, &first); err == nil && first.Format == formatName && first.V > formatVersion {
		return header{}, nil, &newerError{first.V}
	}
	var h header
	if err := protocol.DecodeStrict(line, maxHeaderBytes, &h); err != nil {
		return header{}, nil, fmt.Errorf("has a malformed first line: %w", err)
	}
	if h.Format != formatName || h.V != formatVersion {
		return header{}, nil, errors.New("is not a file of an attempt store")
	}
	if int64(len(rest)) != h.Length+1 || rest[len(rest)-1] != '\n' {
		return header{}, nil, errors.New("is cut short or has bytes after its end")
	}
	content := rest[:h.Length]
	if h.sum(content) != h.SHA256 || !bytes.Equal(protocol.AppendCanonical(nil, h), line) {
		return header{}, nil, errors.New("does not match its checksum")
	}
	if !h.Store.Valid() || h.Revision < 1 {
		return header{}, nil, errors.New("has a store id or revision out of form")
	}
	return h, content, nil
}

// newerError is a file of a later format than this program reads.
type newerError struct{ version int }

func (e *newerError) Error() string {
	return fmt.Sprintf("has format version %d and this program reads version %d", e.version, formatVersion)
}

// isNewer reports whether a file was written by a newer program.
func isNewer(err error) bool {
	if _, ok := errors.AsType[*newerError](err); ok {
		return true
	}
	version, ok := errors.AsType[*attempt.VersionError](err)
	return ok && version.Version > attempt.Version
}

// remedyOf is what to do about a file that cannot be read for err, usually
// remedy.
func remedyOf(err error, remedy string) string {
	if isNewer(err) {
		return remedyNewer
	}
	return remedy
}

// scopeContent is the content of the scope file.
type scopeContent struct {
	Scope attempt.Scope `json:"scope"`
	Opens int64         `json:"opens"`
	Clean bool          `json:"clean"` // the last close synced everything, and nothing was written since
}

// historyName is the file name of an archived record.
func historyName(e HistoryEntry) string {
	return fmt.Sprintf(sequenceForm, e.Sequence) + e.Key + recordSuffix
}

// parseHistoryName reads what historyName wrote.
func parseHistoryName(name string) (HistoryEntry, bool) {
	stem, ok := strings.CutSuffix(name, recordSuffix)
	if !ok || len(stem) < 18 || stem[16] != '-' {
		return HistoryEntry{}, false
	}
	seq, err := strconv.ParseInt(stem[:16], 10, 64)
	e := HistoryEntry{seq, stem[17:]}
	return e, err == nil && seq >= 1 && attempt.ValidName(e.Key) && historyName(e) == name
}
