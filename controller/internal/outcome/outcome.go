// Package outcome builds the one outcome of an attempt: the exact COMPLETE or
// FAIL body, with provenance from the host's facts, and the protected evidence
// beside it. It owns what the submitter is told and what is kept of the
// worker's own words. It must not know when an outcome is chosen or sent.
package outcome

import (
	"errors"
	"fmt"
	"strings"
	"unicode/utf8"

	"github.com/quittance/quittance/controller/api"
	"github.com/quittance/quittance/controller/internal/attempt"
	"github.com/quittance/quittance/protocol"
)

// Origin is what an outcome says of where it comes from.
type Origin struct {
	Reference  string
	Controller string // version
	Agent      string // version
	Adapter    string
	Executions []attempt.Execution
	// Facts are the host's views of the executions' allocations, by number; one
	// that is missing is told without facts.
	Facts map[protocol.Number]protocol.Allocation
	Input *protocol.Digest // of the bytes given to the adapter
}

// Result is a worker's whole answer that may be published.
type Result struct {
	Schema  string
	Data    []byte
	Request protocol.Digest // of the bytes sent
	Claimed []api.Claim
}

// Failure is why an attempt has no result.
type Failure struct {
	Code    api.FailureCode
	Detail  string // our own words, added to the code's text; may be ""
	Entered bool
	Cause   error  // for the evidence
	Worker  []byte // the worker's own words, for the evidence only (I37)
}

// Complete is COMPLETE with the exact body.
func Complete(o Origin, r Result) (attempt.Outcome, error) {
	request, response := r.Request, protocol.DigestOf(r.Data)
	p := provenance(o)
	p.RequestSHA256, p.ResponseSHA256, p.Claimed = &request, &response, r.Claimed
	// The last execution gave the whole answer, and its counters were read after
	// that: they are the facts of the work, although its end comes later.
	unseenEnds(p.Executions[:max(0, len(p.Executions)-1)])
	m := api.Complete{Attempt: o.Reference, Schema: r.Schema, Length: int64(len(r.Data)), SHA256: response, Data: r.Data, Provenance: p}
	if err := m.Validate(); err != nil {
		return attempt.Outcome{}, fmt.Errorf("outcome: complete: %w", err)
	}
	out := attempt.Outcome{Operation: attempt.OperationComplete, Body: api.Encode(m), Evidence: evidence(o, nil)}
	if len(out.Body) > attempt.MaxCompleteBytes {
		return attempt.Outcome{}, errors.New("outcome: the COMPLETE body is longer than a record may keep")
	}
	return out, nil
}

// Fail is FAIL with the exact body. candidate, which may be nil, is a result
// that may not be published any more.
func Fail(o Origin, f Failure, candidate *attempt.Candidate) (attempt.Outcome, error) {
	text, known := f.Code.Text()
	if !known {
		return attempt.Outcome{}, fmt.Errorf("outcome: %q is no failure code", f.Code)
	}
	message := text.Message
	if f.Detail != "" {
		message += " (" + f.Detail + ")"
	}
	p := provenance(o)
	unseenEnds(p.Executions)
	m := api.Fail{Attempt: o.Reference, Code: f.Code, Message: cut(message), Next: text.Next, Entered: f.Entered, Provenance: &p}
	if err := m.Validate(); err != nil {
		return attempt.Outcome{}, fmt.Errorf("outcome: fail: %w", err)
	}
	out := attempt.Outcome{Operation: attempt.OperationFail, Body: api.Encode(m), Evidence: evidence(o, &f), Candidate: candidate}
	if len(out.Body) > attempt.MaxFailBytes {
		return attempt.Outcome{}, errors.New("outcome: the FAIL body is longer than a record may keep")
	}
	return out, nil
}

// Evidence is the protected evidence alone, for an outcome that is suppressed.
func Evidence(o Origin, f *Failure) []byte { return evidence(o, f) }

// cut shortens our own message, never the worker's, to what a message may have.
func cut(s string) string {
	if !utf8.ValidString(s) {
		s = strings.ToValidUTF8(s, "�")
	}
	if utf8.RuneCountInString(s) <= api.MaxMessageScalars {
		return s
	}
	runes := []rune(s)
	return string(runes[:api.MaxMessageScalars-1]) + "…"
}

func provenance(o Origin) api.Provenance {
	p := api.Provenance{
		Controller: o.Controller, Agent: o.Agent, Adapter: o.Adapter, InputSHA256: o.Input,
		Executions: []api.Execution{}, Claimed: []api.Claim{},
	}
	for _, e := range o.Executions {
		p.Executions = append(p.Executions, execution(e, o.Facts))
	}
	return p
}

func execution(e attempt.Execution, facts map[protocol.Number]protocol.Allocation) api.Execution {
	out := api.Execution{
		Generation: e.Generation, Number: e.Number, Profile: e.Profile, ProfileDigest: e.ProfileDigest,
		Entered: e.Entered != nil,
	}
	a, ok := facts[e.Number]
	if !ok {
		return out
	}
	out.Limits, out.Exit, out.OOM, out.Peaks = a.Limits, a.Exit, a.OOM, a.Peaks
	if a.Container != nil {
		out.ImageDigest, out.SpecDigest = &a.Container.ImageDigest, &a.Container.SpecDigest
	}
	return out
}

// unseenEnds tells of executions whose end nobody saw (stuck, or their
// generation is gone) that what was read while they lived says nothing of what
// happened until then (I22).
func unseenEnds(all []api.Execution) {
	for i, e := range all {
		if e.Exit == nil && e.OOM != nil && e.OOM.Verdict == protocol.VerdictNotKilled {
			oom := *e.OOM
			oom.Verdict = protocol.VerdictUnknown
			all[i].OOM = &oom
		}
	}
}

// document is the form of the protected evidence.
type document struct {
	Class       api.FailureCode       `json:"class"` // "" beside a result
	Detail      string                `json:"detail"`
	Cause       string                `json:"cause"`
	Worker      []byte                `json:"worker"`
	Allocations []protocol.Allocation `json:"allocations"`
}

// maxCause bounds the text of a cause chain in the evidence.
const maxCause = 8 << 10

func evidence(o Origin, f *Failure) []byte {
	d := document{}
	if f != nil {
		d.Class, d.Detail, d.Worker = f.Code, strings.ToValidUTF8(f.Detail, "�"), f.Worker
		if f.Cause != nil {
			cause := f.Cause.Error()
			d.Cause = strings.ToValidUTF8(cause[:min(len(cause), maxCause)], "�")
		}
	}
	for _, e := range o.Executions {
		if a, ok := o.Facts[e.Number]; ok {
			a.Receipts = nil // they are saved beside, whole
			d.Allocations = append(d.Allocations, a)
		}
	}
	return protocol.AppendCanonical(nil, d)
}

// Killed reports whether the host's facts say that the kernel killed for
// memory (I22).
func Killed(a protocol.Allocation) bool {
	return a.OOM != nil && a.OOM.Verdict == protocol.VerdictKilled
}
