// Package controller kills the controller in every state of its records and
// between every two steps that leave a trace, starts it again, lets the job
// end, and audits: every job ended exactly once, no work ran twice, the host is
// clean, the store is whole.
package controller
