package hostagent

import (
	"maps"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/quittance/quittance/protocol"
)

// A look that hangs delays nobody for longer than its bound, is not piled upon,
// and what was there before is not granted meanwhile (I33).
func TestLookIsBounded(t *testing.T) {
	cdi := t.TempDir()
	if err := os.Chmod(cdi, 0o755); err != nil {
		t.Fatal(err)
	}
	spec := "cdiVersion: 1.1.0\nkind: quittance.test/card\ndevices: [{name: \"0\", containerEdits: {deviceNodes: [{path: /dev/null}]}}]\n"
	if err := os.WriteFile(filepath.Join(cdi, "card.yaml"), []byte(spec), 0o644); err != nil {
		t.Fatal(err)
	}
	synctest.Test(t, func(t *testing.T) {
		table := newDeviceTable(Config{CDIDirs: []string{cdi}})
		table.ask(map[string]bool{"llm": true})
		if got := table.offered("ocr"); got != nil {
			t.Errorf("a profile that asks for none: %+v", got)
		}
		if got := table.offered("llm"); len(got) != 1 || got[0].Fault != "" {
			t.Fatalf("offered %+v", got)
		}
		hang := make(chan struct{})
		began := time.Now()
		if table.bounded(func() { <-hang }) {
			t.Error("a look that hangs came back")
		}
		if got := table.offered("llm"); len(got) != 1 || !strings.Contains(got[0].Fault, "hangs") {
			t.Errorf("offered meanwhile %+v", got)
		}
		if _, err := table.inject(nil, ""); err != errLook {
			t.Errorf("injected meanwhile: %v", err)
		}
		if took := time.Since(began); took != 3*lookTime {
			t.Errorf("three looks took %s", took)
		}
		if found := table.look(); len(found.Problems) != 1 || found.Problems[0].Harmless || !strings.Contains(found.Problems[0].Detail, "hangs") {
			t.Errorf("doctor is told %+v", found.Problems)
		}
		began = time.Now()
		table.ask(map[string]bool{"ocr": false})
		if found := table.survey(); len(found.Devices) != 1 {
			t.Errorf("shown where no profile asks: %+v", found)
		}
		if took := time.Since(began); took != 0 {
			t.Errorf("profiles that ask for none waited %s", took)
		}
		table.ask(map[string]bool{"llm": true})
		close(hang)
		synctest.Wait()
		if got := table.offered("llm"); len(got) != 1 || got[0].Fault != "" {
			t.Errorf("offered afterwards %+v", got)
		}
		table.ask(nil)
		if err := os.Remove(filepath.Join(cdi, "card.yaml")); err != nil {
			t.Fatal(err)
		}
		table.survey()
		synctest.Wait()
		if found := table.survey(); len(found.Devices) != 0 {
			t.Errorf("a survey's own look is not kept: %+v", found)
		}
		synctest.Wait()
	})
}

// A look that came back keeps no other from beginning: without that a survey
// after it shows what was there before for one round more.
func TestLookIsOverWhenItCameBack(t *testing.T) {
	// In a bubble no look takes any time: none is late on a busy machine.
	synctest.Test(t, func(t *testing.T) {
		table := newDeviceTable(Config{})
		for range 1000 {
			if !table.bounded(func() {}) {
				t.Fatal("a look that ends at once did not come back")
			}
			select {
			case table.looking <- struct{}{}:
				<-table.looking
			default:
				t.Fatal("the table is still held by a look that came back")
			}
		}
	})
}

// What is held is counted by node, each lease once however many names it has, and
// forgotten when the last one ends.
func TestHeldNodes(t *testing.T) {
	table := newDeviceTable(Config{})
	card := []protocol.Device{{Name: "quittance.test/card=0", Nodes: []string{"/dev/a", "/dev/b"}}, {Name: "quittance.test/card=UUID", Nodes: []string{"/dev/a", "/dev/b"}}}
	for i, want := range []map[string]int{{"/dev/a": 1, "/dev/b": 1}, {}} {
		table.leased(card, 1-2*i)
		if !maps.Equal(table.held, want) {
			t.Errorf("held %v, want %v", table.held, want)
		}
	}
}
