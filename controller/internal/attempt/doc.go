// Package attempt is the durable record of one attempt at a job and the pure
// function that moves it from state to state.
//
// It owns the record types, their bounds, their encoding and [Step]. It knows
// no files, clocks, sockets or retry policy: time and every outside fact come
// in with the event, and what is done about a new state is decided elsewhere.
//
// # States
//
//	StartPending ──Admitted──► Acknowledged ──Entered──► Acknowledged ──OutcomeChosen──► TerminalPending ──Confirmed──► TerminalConfirmed
//	     │                       │      │                                                      │
//	     │                       │      └──CandidateSuppressed──► Suppressed                   └──Held──► TerminalHeld ──Resolved──► TerminalHeld
//	     └─────────Over──────────┴──► Ended
//
// A state's type carries only that state's data. The first bytes chosen for
// START and for the outcome stay as they are for ever (I26, I28). Nothing leads
// from Suppressed or Ended to a terminal request, and nothing leads from
// TerminalPending to Ended: once a terminal request may have been sent, only
// its receipt or a refusal for good ends the matter (I29).
//
// # Transitions
//
// The state after each event; a dash is a refusal (a [*TransitionError]) that
// changes nothing. A test runs [Step] against this table.
//
//	event               | StartPending | Acknowledged    | TerminalPending   | TerminalConfirmed | TerminalHeld | Suppressed | Ended
//	StartSending        | StartPending | -               | -                 | -                 | -            | -          | -
//	Admitted            | Acknowledged | -               | -                 | -                 | -            | -          | -
//	Over                | Ended        | Ended           | -                 | -                 | -            | -          | -
//	Allocated           | -            | Acknowledged    | -                 | -                 | -            | -          | -
//	Unallocated         | -            | Acknowledged    | -                 | -                 | -            | -          | -
//	Prepared            | -            | Acknowledged    | -                 | -                 | -            | -          | -
//	Entered             | -            | Acknowledged    | -                 | -                 | -            | -          | -
//	ExecutionFailed     | -            | Acknowledged    | -                 | -                 | -            | -          | -
//	OutcomeChosen       | -            | TerminalPending | -                 | -                 | -            | -          | -
//	CandidateSuppressed | -            | Suppressed      | -                 | -                 | -            | -          | -
//	Confirmed           | -            | -               | TerminalConfirmed | -                 | -            | -          | -
//	Held                | -            | -               | TerminalHeld      | -                 | -            | -          | -
//	Resolved            | -            | -               | -                 | -                 | TerminalHeld | -          | -
//	Settled             | -            | Acknowledged    | TerminalPending   | TerminalConfirmed | TerminalHeld | Suppressed | Ended
//	ReceiptsSaved       | -            | Acknowledged    | TerminalPending   | TerminalConfirmed | TerminalHeld | Suppressed | Ended
//	ReceiptsAnswered    | -            | -               | -                 | TerminalConfirmed | TerminalHeld | Suppressed | Ended
//	Noted               | StartPending | Acknowledged    | TerminalPending   | TerminalConfirmed | TerminalHeld | Suppressed | Ended
//
// # Guards
//
// Beyond the table:
//
//   - Allocated adds the first execution, or, where Origin.MaxExecutions is 2,
//     one more once the first was entered, failed and its allocation consumed
//     (I27).
//   - Unallocated takes back the last execution, which must be unprepared: its
//     number was refused, so nothing happened under it (I7).
//   - Prepared, Entered and ExecutionFailed speak of the last execution, in
//     that order, each once.
//   - OutcomeChosen with COMPLETE needs an entered execution that did not fail
//     and takes no candidate.
//   - CandidateSuppressed needs an entered execution.
//   - Resolved needs a hold that holds the lane, and comes once.
//   - Settled, ReceiptsSaved and ReceiptsAnswered may repeat themselves
//     exactly; a settlement goes from open to any other, from stuck to consumed
//     or generation_gone, and no further.
//
// # Encoding
//
// [Encode] writes canonical JSON {"v":1,"state":…,"record":…}; exact bytes are
// base64 members. [Decode] is strict and refuses what Encode would not have
// written. [MaxRecordBytes] bounds both and is what the store reserves.
package attempt
