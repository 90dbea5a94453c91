// Package crash holds the host agent's part of the crash lane: the agent is
// ended at every failpoint, started again, and audited.
package crash
