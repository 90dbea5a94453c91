// Package provider makes signed, bounded exchanges with the job service and
// says what each failure means.
//
// It owns one exchange from connect to close, the classification of its end,
// and the comparison of a receipt with the request that it answers (I29). It
// has no retry loop: whether a repeat is permitted is [Failure.Repeat], and
// saying so sends nothing. It does not know attempts' states or when an
// operation is due.
//
// # An exchange
//
// One new connection, one deadline over connect, TLS, headers and body. No
// redirect is followed, no proxy variable read, no connection used twice. The
// socket is closed before the result is classified, so nothing of the exchange
// is still under way when a caller decides what to do next.
//
// # Classes
//
//	class        what happened                                   disposition  repeat permitted
//	not_sent     refused by us before a byte was sent            refused      no
//	unreachable  no connection: refused, no route, DNS failure   refused      yes, except a name that does not exist
//	tls          the peer did not prove who it is                refused      no
//	timeout      the exchange's own deadline                     unknown*     yes
//	lost         the connection broke                            unknown*     yes
//	stopped      the caller's context or the job's limit ended   unknown*     no
//	unavailable  502, 503 or 504, whatever the body              unknown      yes
//	server       500                                             unknown      START, COMPLETE, FAIL and receipts
//	clock_skew   401 clock_skew; the offset has been applied     refused      yes
//	busy         408, 429 or 507 of the service, without effect  refused      yes
//	refused      any other problem without effect                refused      no
//	topology     another environment answered                    unknown      no
//	malformed    an answer that breaks the contract, or no HTTP  unknown      no
//	mismatch     a well-formed answer to some other request      unknown      no
//
// An asterisk: refused where no byte of the request was written. A grant is
// never repeated as such: a new one goes through the normal path.
package provider
