//go:build engine && fixture

package engine_test

import (
	"bytes"
	"flag"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/quittance/quittance/integration/agenttest"
	"github.com/quittance/quittance/protocol"
	"github.com/quittance/quittance/protocol/hostclient"
)

var releasedDir = flag.String("released", "", "where the state directory of a new release goes, as hostagent/testdata/released/VERSION")

// A fixture for the tests of all later versions: what the agent of this tree
// leaves on disk after a life with something of everything, killed in the middle.
// packaging/fixtures.sh runs it.
func TestWriteReleased(t *testing.T) {
	if *releasedDir == "" {
		t.Fatal("-released is required")
	}
	lab := kit.NewLab(t)
	lab.Profile("serve", agenttest.Profile{Args: []string{"serve"}})
	lab.Profile("eat", agenttest.Profile{Args: []string{"eat", "128"}})
	lab.Profile("exit-7", agenttest.Profile{Args: []string{"exit", "7"}})
	newCards(t, lab, 1)
	deviceProfiles(lab)
	lab.Start()
	c := newCaller(t, lab)
	c.witness()
	c.allocate(1, "serve")
	c.await(1, protocol.StateStarted)
	c.retire(1)
	c.consume(1)
	c.allocate(2, "eat") // killed by the kernel
	c.await(2, protocol.StateExited)
	c.retire(2)
	c.consume(2)
	c.allocate(3, "one") // holds a device, had a channel, and lives on over the release
	c.await(3, protocol.StateStarted)
	if got := c.ask(3, "/open", "/dev/card0"); got != "opened" {
		t.Fatalf("the card: %s", got)
	}
	first := c.leaves()
	if _, err := c.gen.Release(t.Context(), protocol.ReleaseRequest{Frontier: 1, Except: []protocol.Number{}}); err != nil {
		t.Fatal(err)
	}
	c.retire(4) // a burn: it was never allocated
	c.consume(4)
	c.allocate(5, "exit-7") // retired and not consumed
	c.await(5, protocol.StateExited)
	c.retire(5)
	if _, err := lab.Operator().In(lab.Generation).Drain(t.Context()); err != nil {
		t.Fatal(err)
	}
	all := append(first, c.leavesAfter(first[len(first)-1].Receipt.Index)...)
	checkpoint, err := c.gen.Checkpoint(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	lab.Kill()
	var receipts bytes.Buffer
	for _, leaf := range all {
		receipts.Write(append(leaf.Bytes, '\n'))
	}
	for name, content := range map[string][]byte{"receipts.jsonl": receipts.Bytes(), "checkpoint": []byte(checkpoint)} {
		writeFixture(t, name, content)
	}
	err = filepath.WalkDir(lab.StateDir(), func(path string, entry os.DirEntry, err error) error {
		if err != nil || entry.IsDir() {
			return err
		}
		relative, err := filepath.Rel(lab.StateDir(), path)
		if err != nil {
			return err
		}
		content, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		// What is still to be written, and output, is no part of what must be read.
		// The reader puts the zeros back that end a segment.
		content = bytes.TrimRight(content, "\x00")
		if len(content) > 0 && !strings.HasPrefix(relative, "logs/") {
			writeFixture(t, filepath.Join("state", relative), content)
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	lab.Start()
	if _, err := lab.Operator().In(lab.Generation).Undrain(t.Context()); err != nil {
		t.Fatal(err)
	}
	c.witness()
	c.retire(3)
}

// leavesAfter reads the receipts after an index.
func (c *caller) leavesAfter(index protocol.Index) []hostclient.Leaf {
	c.t.Helper()
	var out []hostclient.Leaf
	for {
		leaves, err := c.gen.Receipts(c.t.Context(), hostclient.ReceiptsQuery{After: &index, Wait: time.Second})
		if err != nil {
			c.t.Fatal(err)
		}
		if len(leaves) == 0 {
			return out
		}
		out, index = append(out, leaves...), leaves[len(leaves)-1].Receipt.Index
	}
}

func writeFixture(t *testing.T, name string, content []byte) {
	t.Helper()
	path := filepath.Join(*releasedDir, name)
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, content, 0o644); err != nil {
		t.Fatal(err)
	}
}
