// Package failpoint lets a test strike the controller, or somebody else while it
// stands still, at a named place between two steps that leave a trace.
//
// It owns the names of the places and what can be done there, and nothing else:
// it knows neither what happens at a place nor how a test audits the outcome.
// Without the build tag failpoints [Hit] and the questions below are empty and
// cost nothing. With it the environment arms one place, in the form of package
// strike, with SIGKILL, SIGSTOP or one of these:
//
//	fail      the next write of a file of the attempt store fails before anything is written
//	failsync  the next file of the attempt store is written and its sync fails
//	failname  the next file of the attempt store is in its place and the sync of its directory fails
//
// A full disk is no action: a test fills a real one.
package failpoint

// Point names a place between two steps that leave a trace.
type Point string

// The places of the controller, in the order in which one attempt passes them.
// One that is named after a record's state is passed whenever such a record has
// become durable.
const (
	StartPending      Point = "record.start_pending"      // nothing was sent
	StarterSending    Point = "starter.sending"           // the send's expiry is durable, START is not sent
	StarterSent       Point = "starter.sent"              // START is answered, the answer is not durable
	Acknowledged      Point = "record.acknowledged"       // the admission is durable; with each fact that is added, again
	ExecutorProposed  Point = "executor.proposed"         // the number is durable, the agent was not asked
	ExecutorAllocated Point = "executor.allocated"        // the agent has accepted the number
	ExecutorEntered   Point = "executor.entered"          // entry is durable, the worker was not asked
	ExecutorAnswered  Point = "executor.answered"         // the worker has answered
	ExecutorOutcome   Point = "executor.outcome"          // the outcome is in memory
	LaneReplacement   Point = "lane.replacement"          // the first of two executions is consumed
	TerminalPending   Point = "record.terminal_pending"   // the outcome is durable
	RetirementAsked   Point = "retirement.asked"          // the agent was asked to retire
	Retired           Point = "retirement.retired"        // and has
	Consumed          Point = "retirement.consumed"       // the retirement is consumed, nothing of it is durable here
	Saved             Point = "retirement.saved"          // the receipts are durable
	PublisherSent     Point = "publisher.sent"            // COMPLETE or FAIL is answered, the answer is not durable
	TerminalConfirmed Point = "record.terminal_confirmed" // the confirmation is durable
	TerminalHeld      Point = "record.terminal_held"      // a refusal for good is
	Suppressed        Point = "record.suppressed"         // an outcome that is never published is
	Ended             Point = "record.ended"              // an end without any outcome is
	Archived          Point = "maintenance.archived"      // the record is in history
	Released          Point = "maintenance.released"      // the host's history is released
)

// Points lists every place, for the crash matrix.
func Points() []Point {
	return []Point{
		StartPending, StarterSending, StarterSent, Acknowledged, ExecutorProposed, ExecutorAllocated, ExecutorEntered, ExecutorAnswered,
		ExecutorOutcome, LaneReplacement, TerminalPending, RetirementAsked, Retired, Consumed, Saved, PublisherSent, TerminalConfirmed,
		TerminalHeld, Suppressed, Ended, Archived, Released,
	}
}

// Record is the place at which a record in a state has become durable.
func Record(state string) Point { return Point("record." + state) }
