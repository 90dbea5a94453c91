package audit

import (
	"bytes"
	"testing"

	"github.com/quittance/quittance/cmd/agentctl/internal/sample"
)

// FuzzCheck: a file that anybody may have written is verified without a panic,
// and a log of which one byte is not as it was signed is never found true (I33).
func FuzzCheck(f *testing.F) {
	l := sample.History()
	whole := stretch(l, 0)
	sound := bytes.Join(whole.Leaves, []byte("\n"))
	f.Add(sound)
	f.Add(bytes.Join(whole.Leaves[:2], []byte("\n")))
	f.Add([]byte("{}\n{}"))
	f.Fuzz(func(t *testing.T, file []byte) {
		log := Log{Leaves: bytes.Split(file, []byte("\n")), Checkpoint: whole.Checkpoint}
		report, err := Check(log, l.Key())
		if err == nil && len(report.Findings) == 0 && !bytes.HasPrefix(file, sound) {
			t.Errorf("found true: %q", file)
		}
		// Unsigned, the same bytes must not upset the reader either.
		if _, err := Check(Log{Leaves: log.Leaves, Checkpoint: string(file)}, l.Key()); err == nil && !bytes.Equal(file, sound) {
			t.Errorf("a checkpoint out of receipts: %q", file)
		}
	})
}
