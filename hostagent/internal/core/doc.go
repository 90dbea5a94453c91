// Package core decides everything that happens to allocations. It owns their
// numbering, states, reasons and bounds, and it is the only writer of the
// ledger. It must not know the engine, cgroups, sockets or files: what it
// decides is carried out elsewhere and comes back as an event.
//
// # Shape
//
//	requests (serve) ──┐                              ┌─► replies, once durable
//	worker results ────┼─► Step(state, session, event) ├─► entries ─► journal
//	engine, profiles ──┤      one goroutine, no I/O   └─► effects, once durable ─► workers
//	timers ────────────┘
//
// [State] is the fold of the ledger: [Apply] is its only mutation, in steady
// state and at start-up alike (I15). [Session] is what only this life of the
// agent knows: clocks, the engine's health, the profiles, who waits. A restart
// loses the session and nothing else. [Step] reads no clock and does no I/O.
// [Core] is the goroutine that feeds Step and keeps two promises: no effect is
// begun before the entries that intend it are durable (I6, I10), and no reply,
// a read's included, leaves before everything that it shows is durable.
//
// # Allocation states
//
//	            accepted ──► creating ──► started ──► exited ──► retired ──► consumed ──► released
//	               │             │           │           ▲          ▲
//	               │ burn        └ retiring ─┴───────────┘          │
//	               └────────────────────────────────────────────────┘
//	stuck is a mark on retiring and exited; time never turns it into retired (I19)
//
// What the worker of an allocation does (its phase, which a restart forgets)
// and what each result makes of it:
//
//	phase        event            entries                         next phase   effect
//	–            allocate         intent profile, accepted        creating     create
//	–            restart          –                               inspecting   inspect (remove, once exited)
//	creating     WorkCreated      intent created                  starting     start
//	creating     WorkCreated, retirement asked: intent created    removing     remove
//	creating     WorkCreateFailed intent retire (setup_failed)    removing     remove
//	starting     WorkStarted      started                         running      watch (stop, if asked meanwhile)
//	starting     WorkStartFailed  intent retire (setup_failed)    stopping     stop
//	running      WorkOOM          oom_observed, bounded           running      – (v1 with kill-group: stop)
//	running      retire, timers   intent retire                   stopping     stop
//	running, stopping, inspecting
//	             WorkExited       [intent retire,] exited         removing     remove
//	stopping, inspecting
//	             WorkNeverRan     [intent retire]                 removing     remove
//	inspecting   WorkRunning      [started]                       running      watch (stop, if asked before)
//	removing     WorkRemoved      retired                         –            forget
//	any          WorkProgress     stuck once stuck_after passed   the same     –
//
// An event that its phase does not have comes from a fault of this program
// and panics; everything that comes from outside is refused by a problem.
//
// # Devices
//
// A device is leased by the accepted receipt that lists its nodes and free with
// the retired one; nothing else is remembered, so a restart, a reboot and a
// release that carries a stuck allocation all keep the lease. No two unretired
// allocations hold one node: [Step] grants none that is held and the fold
// refuses a ledger that says otherwise. What the host has is looked at outside
// and comes with the request.
//
// # Numbering
//
//	frontier + 1, engine not yet compared         503 engine_unavailable, burns too (I9)
//	frontier + 1, acceptable                      201 accepted
//	frontier + 1, not acceptable now              refused, not consumed (I7)
//	known, same owner, purpose and profile        200, the same receipt (I12)
//	known, anything else                          409 number_conflict
//	released and not carried                      410 released
//	above frontier + 1                            409 sequence_gap
package core
