package hostagent

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/quittance/quittance/hostagent/internal/engine"
	"github.com/quittance/quittance/protocol"
)

// What is in one look only was being made or removed; what an allocation
// accounts for is its own, a stuck one's too.
func TestOrphans(t *testing.T) {
	own, lost, late, gone := protocol.NewID(), protocol.NewID(), protocol.NewID(), protocol.NewID()
	of := func(nonce protocol.ID) engine.Leftover {
		return engine.Leftover{Kind: "container", Name: "q-" + string(nonce), Nonce: nonce}
	}
	unnamed := engine.Leftover{Kind: "cgroup", Name: "strange"}
	known := []protocol.Allocation{
		{State: protocol.StateRetiring, Container: &protocol.Container{Nonce: own}},
		{State: protocol.StateCreating},
		{State: protocol.StateConsumed},
	}
	orphans, making := orphansOf(
		[]engine.Leftover{of(own), of(lost), of(gone), unnamed},
		[]engine.Leftover{of(own), of(lost), of(late), unnamed}, known)
	if len(orphans) != 2 || orphans[0] != of(lost) || orphans[1] != unnamed || making != 1 {
		t.Errorf("orphans %v, %d being made", orphans, making)
	}
	if orphans, making := orphansOf(nil, []engine.Leftover{of(late)}, nil); len(orphans) != 0 || making != 0 {
		t.Errorf("orphans %v, %d being made", orphans, making)
	}
}

// The disk is timed without a trace, and a directory that cannot be written is
// an error and not a figure.
func TestTimeSync(t *testing.T) {
	dir := t.TempDir()
	if took, err := timeSync(dir); err != nil || took <= 0 {
		t.Errorf("%s, %v", took, err)
	}
	if left, err := os.ReadDir(dir); err != nil || len(left) != 0 {
		t.Errorf("left: %v, %v", left, err)
	}
	if _, err := timeSync(filepath.Join(dir, "absent")); err == nil {
		t.Error("no error for a directory that is not there")
	}
}
