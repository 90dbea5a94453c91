// Package failpoint lets a test strike the controller, or somebody else while it
// stands still, at a named point between two steps that leave a trace. It owns
// the names' meaning and nothing else; it must not know what the points guard.
//
// A binary built with the tag failpoints obeys the environment; without the tag
// [Hit] is empty and costs nothing:
//
//	QUITTANCE_FAILPOINT=NAME:kill      at the first arrival the process ends with SIGKILL
//	QUITTANCE_FAILPOINT=NAME:stop      it stops with SIGSTOP; SIGCONT lets it go on
//	QUITTANCE_FAILPOINT_MARK=FILE      is made when that takes place
package failpoint
