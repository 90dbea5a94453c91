package lane

import (
	"testing"

	"github.com/quittance/quittance/controller/internal/attempt"
	"github.com/quittance/quittance/protocol"
)

// FR-30, I27: after a kill for memory the one replacement runs on the larger
// profile that the offering names, with the same input; the first kill stays
// in the record.
func TestReplacementOnLargerProfile(t *testing.T) {
	in(t, func(t *testing.T, w *world) {
		w.killed, w.killedOnly = true, 1 // the larger one has room
		failFirst(w, vanish)
		o := pure("large")
		s := w.selection(o)
		larger := s.Profile
		larger.Name, larger.Digest = "large", protocol.DigestOf([]byte("large"))
		s.Larger = &larger
		if _, err := w.lane(o).attempt(always(t), s); err != nil {
			t.Fatal(err)
		}
		r, ok := w.records.Active()[0].Record.(attempt.TerminalConfirmed)
		if !ok || r.Outcome.Operation != attempt.OperationComplete || len(r.Executions) != 2 {
			t.Fatalf("record is %s, %+v; events %q", stateOf(w), w.failure(), w.events)
		}
		first, second := r.Executions[0], r.Executions[1]
		if first.Failure != "worker_oom" || first.Profile != "p" || second.Profile != "large" || second.ProfileDigest != larger.Digest || second.Entered == nil {
			t.Fatalf("executions %+v", r.Executions)
		}
		if first.Preparation.PreparedSHA256 != second.Preparation.PreparedSHA256 {
			t.Fatal("the replacement got other bytes")
		}
		w.order("allocate 1", "first", "retire 1", "consume 1", "allocate 2", "executed", "complete")
	})
}
