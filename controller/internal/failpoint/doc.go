// Package failpoint lets a test end the controller at a named point between
// two steps that leave a trace. It owns the names' meaning ("die here") and
// nothing else; it must not know what the points guard.
//
// A binary built with the tag failpoints dies at the point that the
// environment variable QUITTANCE_FAILPOINT names, in the form "name:kill", by
// SIGKILL to itself. Without the tag [Hit] is empty and costs nothing.
package failpoint
