// Package controller kills the controller in every state of its records and
// between every two steps that leave a trace, its own or the host's, and the
// agent, the engine and the job service between the controller's; what died
// starts again, the job ends, and an audit follows: every job ended exactly once,
// no work ran twice, service and store have the same attempts and the same
// terminal bytes, the host is clean, the store is whole.
package controller
