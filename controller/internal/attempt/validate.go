package attempt

import (
	"fmt"
	"regexp"
	"unicode/utf8"

	"github.com/quittance/quittance/protocol"
)

var (
	nameForm      = regexp.MustCompile(`^[A-Za-z0-9._:-]{1,128}$`)
	requestIDForm = regexp.MustCompile(`^[A-Za-z0-9._:/+=-]{0,128}$`)
	classForm     = regexp.MustCompile(`^[a-z0-9_]{1,64}$`)
)

// ValidName reports whether s may be a key, reference, job or kind.
func ValidName(s string) bool { return nameForm.MatchString(s) }

// ValidRequestID reports whether s may be kept as the request id of a
// [Reply]; a service's other ids are kept as "".
func ValidRequestID(s string) bool { return requestIDForm.MatchString(s) }

// checker collects the first fault of a record.
type checker struct{ err *protocol.DecodeError }

func (c *checker) fail(field, reason string) {
	if c.err == nil {
		c.err = &protocol.DecodeError{Field: field, Reason: reason}
	}
}

func (c *checker) that(ok bool, field, reason string) {
	if !ok {
		c.fail(field, reason)
	}
}

func (c *checker) name(s, field string) {
	c.that(ValidName(s), field, "must be 1 to 128 characters of A-Z a-z 0-9 . _ : -")
}

func (c *checker) text(s string, limit int, field string) {
	c.that(len(s) <= limit, field, fmt.Sprintf("is longer than %d bytes", limit))
	c.that(utf8.ValidString(s), field, "is not valid UTF-8")
}

func (c *checker) size(b []byte, least, most int, field string) {
	c.that(len(b) >= least, field, fmt.Sprintf("is shorter than %d bytes", least))
	c.that(len(b) <= most, field, fmt.Sprintf("is longer than %d bytes", most))
}

func (c *checker) digest(d protocol.Digest, field string) {
	c.that(d.Valid(), field, "must be sha256: and 64 lower-case hexadecimal digits")
}

// maxMicros is the end of the year 9999: later times have no RFC 3339 form.
const maxMicros = 253402300799999999

func (c *checker) time(t protocol.Timestamp, field string) {
	c.that(t >= 0 && t <= maxMicros, field, "must lie between the years 1970 and 9999")
}

// validate refuses a record that breaks a bound or an invariant of its state.
func validate(r Record) error {
	c := &checker{}
	p := r.parts()
	c.origin(p.origin)
	c.facts(p.facts)
	if p.admission != nil {
		c.admission(*p.admission)
	}
	c.executions(p.origin, p.executions)
	if p.answer != nil {
		c.reply(p.answer.Reply, "/record/answer/reply")
		c.that(HostSettled(r), "/record/answer", "stands beside an allocation that is not settled")
	}
	switch r := r.(type) {
	case StartPending:
		if r.LatestExpiry != nil {
			c.time(*r.LatestExpiry, "/record/latest_expiry")
		}
	case Acknowledged:
	case TerminalPending:
		c.outcome(r.Outcome, r.Executions)
		c.time(r.Chosen, "/record/chosen")
	case TerminalConfirmed:
		c.outcome(r.Outcome, r.Executions)
		c.reply(r.Receipt, "/record/receipt")
		c.time(r.Confirmed, "/record/confirmed")
	case TerminalHeld:
		c.outcome(r.Outcome, r.Executions)
		c.hold(r)
	case Suppressed:
		c.that(WasEntered(r), "/record/executions", "has no entered execution that a candidate could come from")
		c.candidate(r.Candidate, "/record/candidate")
		c.size(r.Evidence, 1, MaxEvidenceBytes, "/record/evidence")
		c.endReason(r.Why, "/record/why")
		c.reply(r.Reply, "/record/reply")
		c.time(r.At, "/record/at")
	case Ended:
		c.endReason(r.Reason, "/record/reason")
		c.that(r.Admission != nil || len(r.Executions) == 0, "/record/executions", "stand without an admission")
		c.reply(r.Reply, "/record/reply")
		c.time(r.At, "/record/at")
	}
	if c.err != nil {
		return c.err
	}
	return nil
}

func (c *checker) origin(o Origin) {
	c.scope(o.Scope)
	c.that(o.Lane >= 0 && o.Lane < MaxLanes, "/record/origin/lane", fmt.Sprintf("must be 0 to %d", MaxLanes-1))
	c.name(o.Key, "/record/origin/key")
	c.name(o.Job, "/record/origin/job")
	c.name(o.Kind, "/record/origin/kind")
	c.text(o.Input.Schema, MaxSchemaBytes, "/record/origin/input/schema")
	c.that(o.Input.Length >= 0 && o.Input.Length <= MaxInputBytes, "/record/origin/input/length", fmt.Sprintf("must be 0 to %d", MaxInputBytes))
	c.digest(o.Input.SHA256, "/record/origin/input/sha256")
	c.that(o.MaxExecutions == 1 || o.MaxExecutions == MaxExecutions, "/record/origin/max_executions", "must be 1 or 2")
	c.size(o.Start, 1, MaxStartBytes, "/record/origin/start")
	c.time(o.Created, "/record/origin/created")
}

func (c *checker) scope(s Scope) {
	c.that(s.APIOrigin != "", "/record/origin/scope/api_origin", "is empty")
	c.text(s.APIOrigin, MaxOriginBytes, "/record/origin/scope/api_origin")
	c.name(s.Provider, "/record/origin/scope/provider")
	c.name(s.Consumer, "/record/origin/scope/consumer")
	c.name(s.Generation, "/record/origin/scope/generation")
}

// Validate refuses a scope with an empty, overlong or malformed part.
func (s Scope) Validate() error {
	c := &checker{}
	c.scope(s)
	if c.err != nil {
		return c.err
	}
	return nil
}

func (c *checker) facts(f Facts) {
	c.that(len(f.Kept) <= MaxFacts, "/record/facts/kept", fmt.Sprintf("has more than %d items", MaxFacts))
	c.that(f.Dropped >= 0, "/record/facts/dropped", "is negative")
	for _, fact := range f.Kept {
		c.that(classForm.MatchString(fact.Name), "/record/facts/kept/name", "must be 1 to 64 characters of a-z 0-9 _")
		c.text(fact.Text, MaxFactBytes, "/record/facts/kept/text")
		c.time(fact.At, "/record/facts/kept/at")
	}
}

func (c *checker) reply(r Reply, field string) {
	c.that(r.Status == 0 || r.Status >= 100 && r.Status <= 999, field+"/status", "is not an HTTP status")
	c.that(ValidRequestID(r.RequestID), field+"/request_id", "must be at most 128 characters of A-Z a-z 0-9 . _ : / + = -")
	c.size(r.Body, 0, MaxReplyBytes, field+"/body")
}

func (c *checker) admission(a Admission) {
	c.name(a.Reference, "/record/admission/reference")
	c.reply(a.Reply, "/record/admission/reply")
}

func (c *checker) executions(o Origin, list []Execution) {
	const field = "/record/executions"
	c.that(len(list) <= o.MaxExecutions, field, "has more items than max_executions allows")
	for i, e := range list {
		c.that(e.Generation.Valid(), field+"/generation", "must be 32 lower-case hexadecimal digits")
		c.that(e.Number.Valid(), field+"/number", protocol.ErrNumber.Error())
		c.that(protocol.ValidProfileName(e.Profile), field+"/profile", "must be "+protocol.ProfileNamePattern)
		c.digest(e.ProfileDigest, field+"/profile_digest")
		c.settlement(e.Settlement, field+"/settlement")
		if p := e.Preparation; p != nil {
			c.digest(p.PreparedSHA256, field+"/preparation/prepared_sha256")
			c.digest(p.ImageDigest, field+"/preparation/image_digest")
			c.digest(p.SpecDigest, field+"/preparation/spec_digest")
		}
		if e.Entered != nil {
			c.that(e.Preparation != nil, field+"/entered", "stands without a preparation")
			c.time(*e.Entered, field+"/entered")
		}
		c.that(e.Failure == "" || classForm.MatchString(e.Failure), field+"/failure", "must be at most 64 characters of a-z 0-9 _")
		c.text(e.HostKey, MaxHostKeyBytes, field+"/host_key")
		c.that((e.HostKey == "") == (len(e.Receipts) == 0), field+"/host_key", "and receipts stand only together")
		c.receipts(e.Receipts, field+"/receipts")
		if i > 0 {
			first := list[0]
			c.that(first.Entered != nil && first.Failure != "" && first.Settlement == SettlementConsumed, field,
				"has a replacement although the first was not entered, failed and consumed")
			c.that(first.Generation != e.Generation || first.Number < e.Number, field+"/number", "is not above the first one's")
		}
	}
}

func (c *checker) settlement(s Settlement, field string) {
	switch s {
	case SettlementOpen, SettlementConsumed, SettlementStuck, SettlementGenerationGone:
	default:
		c.fail(field, "is not a settlement")
	}
}

func (c *checker) receipts(list []SavedReceipt, field string) {
	c.that(len(list) <= MaxSavedReceipts, field, fmt.Sprintf("has more than %d items", MaxSavedReceipts))
	total := 0
	for i, s := range list {
		c.that(s.Index >= 0 && s.Index <= protocol.Index(protocol.MaxNumber), field+"/index", "is not a receipt index")
		c.that(i == 0 || s.Index > list[i-1].Index, field+"/index", "is not ascending")
		c.size(s.Leaf, 1, protocol.MaxReceiptBytes, field+"/leaf")
		c.size(s.Proof, 1, MaxProofBytes, field+"/proof")
		total += len(s.Leaf) + len(s.Proof)
	}
	c.that(total <= MaxSavedBytes, field, fmt.Sprintf("together are longer than %d bytes", MaxSavedBytes))
}

func (c *checker) outcome(o Outcome, list []Execution) {
	const field = "/record/outcome"
	c.candidate(Candidate{o.Operation, o.Body}, field)
	c.size(o.Evidence, 1, MaxEvidenceBytes, field+"/evidence")
	if o.Operation == OperationComplete {
		c.that(o.Candidate == nil, field+"/candidate", "stands beside COMPLETE")
		last := len(list) - 1
		c.that(last >= 0 && list[last].Entered != nil && list[last].Failure == "", field+"/operation",
			"is complete although the last execution was not entered or failed")
	}
	if o.Candidate != nil {
		c.candidate(*o.Candidate, field+"/candidate")
	}
}

func (c *checker) candidate(o Candidate, field string) {
	switch o.Operation {
	case OperationComplete:
		c.size(o.Body, 1, MaxCompleteBytes, field+"/body")
	case OperationFail:
		c.size(o.Body, 1, MaxFailBytes, field+"/body")
	default:
		c.fail(field+"/operation", "must be complete or fail")
	}
}

func (c *checker) hold(r TerminalHeld) {
	switch r.Reason {
	case HoldExpired, HoldOppositeOutcome, HoldMismatch, HoldNotVisible:
	default:
		c.fail("/record/reason", "is not a hold reason")
	}
	c.reply(r.Evidence, "/record/evidence")
	c.time(r.HeldAt, "/record/held_at")
	if r.Resolution != nil {
		c.that(r.Reason.HoldsLane(), "/record/resolution", "stands beside a hold that needs none")
		c.that(r.Resolution.UID >= 0 && r.Resolution.UID <= 1<<32-1, "/record/resolution/uid", "is not a user id")
		c.text(r.Resolution.Note, MaxNoteBytes, "/record/resolution/note")
		c.time(r.Resolution.At, "/record/resolution/at")
	}
}

func (c *checker) endReason(r EndReason, field string) {
	switch r {
	case EndStartRefused, EndCompleted, EndFailed, EndExpired, EndCancelled, EndJobOver, EndNotVisible, EndOperator:
	default:
		c.fail(field, "is not an end reason")
	}
}
