// Package operator is what a running controller tells its operators about
// attempts, and what it takes from them, over a Unix socket of its own
// (admin.sock): messages and a client. Root and the controller's own user may
// ask. It owns the contract and must not know how attempts are driven.
//
//	GET  /v1/attempts               [List], of attempts that are not archived
//	GET  /v1/attempts/{key}         [Attempt]
//	GET  /v1/attempts/{key}/record  the whole record: job input and result in it
//	POST /v1/attempts/{key}/resume  {} → [Decided]
//	POST /v1/attempts/{key}/resolve [Resolve] → [Decided]
//	POST /v1/drain                  {} → [Drained]
//
// Refusals are [protocol.Problem].
package operator

import (
	"fmt"
	"strings"

	"github.com/quittance/quittance/protocol"
)

// DefaultSocket is where the packaged controller listens.
const DefaultSocket = "/run/quittance-controller/admin.sock"

// Codes of refusals beside the private protocol's.
const (
	CodeNotWaiting     protocol.Code = "not_waiting"     // the attempt goes on by itself
	CodeNotOffered     protocol.Code = "not_offered"     // it waits for another decision
	CodeOtherReference protocol.Code = "other_reference" // the reference is not this attempt's
)

// MaxNoteBytes bounds a note.
const MaxNoteBytes = 512

// MaxRecordBytes bounds a whole record as it is exported.
const MaxRecordBytes = 8 << 20

// List is every attempt that is not archived, the oldest first, and why no lane
// may take a job now: Blocked is "" while a free one may.
type List struct {
	Attempts []Attempt `json:"attempts"`
	Blocked  string    `json:"blocked"`
}

// Attempt is one attempt without its bytes.
type Attempt struct {
	Key        string             `json:"key"`
	Reference  string             `json:"reference"` // the service's identity, "" before admission
	Lane       int                `json:"lane"`
	State      string             `json:"state"`
	Job        string             `json:"job"`
	Kind       string             `json:"kind"`
	Created    protocol.Timestamp `json:"created"`
	HoldsLane  bool               `json:"holds_lane"`
	Archived   bool               `json:"archived"`
	Executions []Execution        `json:"executions"`
	Waiting    *Waiting           `json:"waiting"` // null while it goes on
}

// Execution is one allocation of an attempt.
type Execution struct {
	Generation protocol.ID         `json:"generation"`
	Number     protocol.Number     `json:"number"`
	Settlement string              `json:"settlement"`
	Entered    *protocol.Timestamp `json:"entered"`
	Failure    string              `json:"failure"`
}

// Waiting says why an attempt does not go on, and what may be decided.
type Waiting struct {
	Step   string             `json:"step"`
	Reason string             `json:"reason"`
	Since  protocol.Timestamp `json:"since"`
	Until  protocol.Timestamp `json:"until"` // when it tries again by itself; 0 for never
	Offers []Offer            `json:"offers"`
}

// Offer is a possible decision with what is lost by it.
type Offer struct {
	Action string `json:"action"` // resume or resolve
	Lost   string `json:"lost"`
}

// Resolve says that a person looked at an attempt. Reference is typed by that
// person, so that nobody decides about another attempt than they mean.
type Resolve struct {
	Reference string `json:"reference"`
	Note      string `json:"note"` // why, 1 to [MaxNoteBytes] bytes
}

// Validate implements [protocol.Validator].
func (r Resolve) Validate() error {
	if r.Reference == "" {
		return &protocol.DecodeError{Field: "/reference", Reason: "must be the service's identity of the attempt"}
	}
	if strings.TrimSpace(r.Note) == "" || len(r.Note) > MaxNoteBytes {
		return &protocol.DecodeError{Field: "/note", Reason: fmt.Sprintf("must say why, in 1 to %d bytes", MaxNoteBytes)}
	}
	return nil
}

// Nothing is the body of requests that say nothing more.
type Nothing struct{}

// Decided is a decision that was taken.
type Decided struct {
	Key    string `json:"key"`
	Action string `json:"action"`
}

// Drained says that nothing new is taken; Running attempts may still go on.
type Drained struct {
	Running int `json:"running"`
}
