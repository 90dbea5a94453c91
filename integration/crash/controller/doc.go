// Package controller kills the controller in every state of its records and
// between every two steps that leave a trace, its own or the host's, and the
// agent and the engine between the controller's; what died starts again, the job
// ends, and an audit follows: every job ended exactly once, no work ran twice,
// the host is clean, the store is whole.
package controller
