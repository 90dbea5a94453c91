package attempt

import (
	"bytes"
	"fmt"
	"reflect"
	"slices"

	"github.com/quittance/quittance/protocol"
)

// TransitionError is an event that the record does not allow. Nothing changed.
// From outside (an operator, the service) it is an answer; where our own code
// causes one, it is a fault of the program.
type TransitionError struct {
	State  State
	Event  string
	Reason string
}

func (e *TransitionError) Error() string {
	return fmt.Sprintf("attempt in state %s does not take %s: %s", e.State, e.Event, e.Reason)
}

// New makes the record that must be durable before the first START is sent.
func New(o Origin) (StartPending, error) {
	r := StartPending{Origin: o}
	if err := validate(r); err != nil {
		return StartPending{}, err
	}
	return r, nil
}

// Step returns the record after the event. A refusal is a *[TransitionError]
// where the state or a guard forbids it, or a *[protocol.DecodeError] that
// names the part that breaks a bound; the record is unchanged then.
func Step(r Record, e Event) (Record, error) {
	next, why := step(r, e)
	if why != "" {
		return r, &TransitionError{r.State(), e.event(), why}
	}
	if err := validate(next); err != nil {
		return r, err
	}
	return next, nil
}

const notInState = "the state does not allow it"

// step returns the next record, or why there is none.
func step(r Record, e Event) (Record, string) {
	switch e := e.(type) {
	case Settled:
		return changeExecution(r, e.Generation, e.Number, func(x *Execution) string { return settle(x, e.Settlement) })
	case ReceiptsSaved:
		return changeExecution(r, e.Generation, e.Number, func(x *Execution) string { return saveReceipts(x, e.HostKey, e.Receipts) })
	case ReceiptsAnswered:
		return answer(r, e.Answer)
	case Noted:
		return withFacts(r, note(FactsOf(r), e.Fact)), ""
	}
	switch r := r.(type) {
	case StartPending:
		return r.step(e)
	case Acknowledged:
		return r.step(e)
	case TerminalPending:
		return r.step(e)
	case TerminalHeld:
		if e, ok := e.(Resolved); ok {
			return r.resolve(e.Resolution)
		}
	}
	return nil, notInState
}

func (r StartPending) step(e Event) (Record, string) {
	switch e := e.(type) {
	case StartSending:
		if r.LatestExpiry == nil || *r.LatestExpiry < e.Expires {
			r.LatestExpiry = &e.Expires
		}
		return r, ""
	case Admitted:
		return Acknowledged{Origin: r.Origin, Admission: e.Admission, Facts: r.Facts}, ""
	case Over:
		return Ended{Origin: r.Origin, Admission: e.Admission, Reason: e.Reason, Reply: e.Reply, At: e.At, Facts: r.Facts}, ""
	}
	return nil, notInState
}

func (r Acknowledged) step(e Event) (Record, string) {
	switch e := e.(type) {
	case Over:
		if e.Admission != nil {
			return nil, "the attempt has its admission already"
		}
		return Ended{Origin: r.Origin, Admission: &r.Admission, Executions: r.Executions,
			Reason: e.Reason, Reply: e.Reply, At: e.At, Facts: r.Facts}, ""
	case Allocated:
		return r.allocate(e)
	case Unallocated, Prepared, Entered, ExecutionFailed:
		return r.advance(e)
	case OutcomeChosen:
		return TerminalPending{Origin: r.Origin, Admission: r.Admission, Executions: r.Executions,
			Outcome: e.Outcome, Chosen: e.At, Facts: r.Facts}, ""
	case CandidateSuppressed:
		return Suppressed{Origin: r.Origin, Admission: r.Admission, Executions: r.Executions, Candidate: e.Candidate,
			Evidence: e.Evidence, Why: e.Why, Reply: e.Reply, At: e.At, Facts: r.Facts}, ""
	}
	return nil, notInState
}

// allocate adds an execution; validate holds the rule for the second (I27).
func (r Acknowledged) allocate(e Allocated) (Record, string) {
	if len(r.Executions) == r.Origin.MaxExecutions {
		return nil, "the attempt has no execution left"
	}
	r.Executions = append(slices.Clip(r.Executions), Execution{
		Generation: e.Generation, Number: e.Number, Profile: e.Profile, ProfileDigest: e.ProfileDigest,
		Settlement: SettlementOpen,
	})
	return r, ""
}

// advance moves the last execution on.
func (r Acknowledged) advance(e Event) (Record, string) {
	if len(r.Executions) == 0 {
		return nil, "the attempt has no execution"
	}
	r.Executions = slices.Clone(r.Executions)
	last := &r.Executions[len(r.Executions)-1]
	if last.Failure != "" {
		return nil, "its last execution has failed"
	}
	switch e := e.(type) {
	case Unallocated:
		if last.Generation != e.Generation || last.Number != e.Number {
			return nil, "its last execution has another number"
		}
		if last.Preparation != nil || last.Settlement != SettlementOpen || len(last.Receipts) > 0 {
			return nil, "its last execution has begun"
		}
		r.Executions = r.Executions[:len(r.Executions)-1]
		return r, ""
	case ExecutionFailed:
		if e.Class == "" {
			return nil, "a failure needs its class"
		}
		last.Failure = e.Class
		return r, ""
	}
	if last.Settlement != SettlementOpen {
		return nil, "the allocation of its last execution is settled"
	}
	switch e := e.(type) {
	case Prepared:
		if last.Preparation != nil {
			return nil, "its last execution is prepared already"
		}
		last.Preparation = &e.Preparation
	case Entered:
		if last.Preparation == nil {
			return nil, "its last execution is not prepared"
		}
		if last.Entered != nil {
			return nil, "its last execution was entered already"
		}
		last.Entered = &e.At
	}
	return r, ""
}

func (r TerminalPending) step(e Event) (Record, string) {
	switch e := e.(type) {
	case Confirmed:
		return TerminalConfirmed{Origin: r.Origin, Admission: r.Admission, Executions: r.Executions, Outcome: r.Outcome,
			Receipt: e.Receipt, Confirmed: e.At, Facts: r.Facts}, ""
	case Held:
		return TerminalHeld{Origin: r.Origin, Admission: r.Admission, Executions: r.Executions, Outcome: r.Outcome,
			Reason: e.Reason, Evidence: e.Evidence, HeldAt: e.At, Facts: r.Facts}, ""
	}
	return nil, notInState
}

func (r TerminalHeld) resolve(by Resolution) (Record, string) {
	if !r.Reason.HoldsLane() {
		return nil, "this hold needs no decision"
	}
	if r.Resolution != nil {
		return nil, "it was resolved already"
	}
	r.Resolution = &by
	return r, ""
}

// changeExecution applies change to a copy of the execution with the number.
func changeExecution(r Record, generation protocol.ID, number protocol.Number, change func(*Execution) string) (Record, string) {
	if r.State() == StateStartPending {
		return nil, notInState
	}
	list := slices.Clone(ExecutionsOf(r))
	at := slices.IndexFunc(list, func(x Execution) bool { return x.Generation == generation && x.Number == number })
	if at < 0 {
		return nil, "it has no execution with that generation and number"
	}
	if why := change(&list[at]); why != "" {
		return nil, why
	}
	return withExecutions(r, list), ""
}

func settle(x *Execution, to Settlement) string {
	from := x.Settlement
	switch {
	case from == to:
	case from == SettlementOpen:
	case from == SettlementStuck && (to == SettlementConsumed || to == SettlementGenerationGone):
	default:
		return fmt.Sprintf("a settlement does not go from %s to %s", from, to)
	}
	x.Settlement = to
	return ""
}

func saveReceipts(x *Execution, key string, list []SavedReceipt) string {
	for _, old := range x.Receipts {
		at := slices.IndexFunc(list, func(s SavedReceipt) bool { return s.Index == old.Index })
		if at < 0 || !bytes.Equal(list[at].Leaf, old.Leaf) {
			return "a receipt saved before is missing or different"
		}
	}
	if x.HostKey != "" && x.HostKey != key {
		return "the receipts saved before have another host key"
	}
	x.HostKey, x.Receipts = key, list
	return ""
}

func answer(r Record, a ReceiptsAnswer) (Record, string) {
	if old := AnswerOf(r); old != nil {
		if reflect.DeepEqual(*old, a) {
			return r, ""
		}
		return nil, "the receipts were answered already"
	}
	if HoldsLane(r) && r.State() != StateTerminalHeld {
		return nil, notInState
	}
	if len(ExecutionsOf(r)) == 0 {
		return nil, "it has no allocation and so no receipts"
	}
	if !HostSettled(r) {
		return nil, "an allocation is not settled"
	}
	switch r := r.(type) {
	case TerminalConfirmed:
		r.Answer = &a
		return r, ""
	case TerminalHeld:
		r.Answer = &a
		return r, ""
	case Suppressed:
		r.Answer = &a
		return r, ""
	case Ended:
		r.Answer = &a
		return r, ""
	}
	return nil, notInState
}

func note(f Facts, fact Fact) Facts {
	if len(f.Kept) == MaxFacts {
		return Facts{f.Kept, f.Dropped + 1}
	}
	return Facts{append(slices.Clip(f.Kept), fact), f.Dropped}
}

func withFacts(r Record, f Facts) Record {
	switch r := r.(type) {
	case StartPending:
		r.Facts = f
		return r
	case Acknowledged:
		r.Facts = f
		return r
	case TerminalPending:
		r.Facts = f
		return r
	case TerminalConfirmed:
		r.Facts = f
		return r
	case TerminalHeld:
		r.Facts = f
		return r
	case Suppressed:
		r.Facts = f
		return r
	case Ended:
		r.Facts = f
		return r
	}
	return r
}

func withExecutions(r Record, list []Execution) Record {
	switch r := r.(type) {
	case Acknowledged:
		r.Executions = list
		return r
	case TerminalPending:
		r.Executions = list
		return r
	case TerminalConfirmed:
		r.Executions = list
		return r
	case TerminalHeld:
		r.Executions = list
		return r
	case Suppressed:
		r.Executions = list
		return r
	case Ended:
		r.Executions = list
		return r
	}
	return r
}
