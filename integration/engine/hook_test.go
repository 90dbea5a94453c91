//go:build engine

package engine_test

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/quittance/quittance/protocol"
	"github.com/quittance/quittance/protocol/hostclient"
)

// hangs are hooks of a device that do not come back, one for each kind that runs
// on the host and each way to outlive the runtime, and what the retirement then
// says. The runtime ends the hook alone by its bound; as long as a child holds
// its output it waits on, and the engine's deadline ends the create.
var hangs = []struct{ hook, script, says string }{
	{"createRuntime", "exec sleep 1000", "hook ran past specified timeout"},
	{"createRuntime", "setsid sleep 1000 & wait", ""},
	{"createRuntime", "cd /; trap '' TERM INT; while :; do setsid sleep 1000; done", ""},
	{"prestart", "setsid sleep 1000 >/dev/null 2>&1 </dev/null & exec sleep 1000", "hook ran past specified timeout"},
	{"poststart", "exec sleep 1000", ""},
	{"poststop", "exec sleep 1000", ""},
}

// A device's hook runs on the host, as root, outside of the allocation's cgroup.
// One that hangs costs the engine's deadline and its allocation, which says so;
// no process of it is left when the card is granted again (I13, I16, I33, FR-14,
// FR-17).
func TestHookHangs(t *testing.T) {
	lab := kit.NewLab(t, "--stuck-after", "5m", "--max-slots", "16", "--engine-create-timeout", "20s")
	cards := newCards(t, lab, 0)
	marks := t.TempDir()
	ran := func(i int) string { return filepath.Join(marks, fmt.Sprint(i)) }
	spec := "cdiVersion: 0.6.0\nkind: quittance.test/card\ndevices:\n"
	for i, row := range hangs {
		// Nobody opens them, so any number will do.
		if err := unix.Mknod(cards.node(i), unix.S_IFCHR|0o600, int(unix.Mkdev(10, uint32(100+i)))); err != nil {
			t.Fatal(err)
		}
		spec += fmt.Sprintf("- name: %q\n  containerEdits:\n    deviceNodes: [{path: /dev/card, hostPath: %s}]\n    hooks: [{hookName: %s, path: /bin/sh, args: [sh, -c, %q]}]\n",
			fmt.Sprint(i), cards.node(i), row.hook, "echo >"+ran(i)+"; "+row.script)
	}
	if err := os.WriteFile(cards.spec, []byte(spec), 0o644); err != nil {
		t.Fatal(err)
	}
	deviceProfiles(lab)
	lab.Start()
	c := newCaller(t, lab)
	c.witness()
	one := c.request("one")
	nonces, asked := make([]protocol.ID, len(hangs)), make([]time.Time, len(hangs))
	number := func(i int) protocol.Number { return protocol.Number(i + 1) }
	for i := range hangs {
		asked[i] = time.Now()
		accepted, err := c.gen.Allocate(t.Context(), number(i), one)
		if err != nil {
			t.Fatal(err)
		}
		b := body[protocol.AcceptedBody](t, accepted.Receipt)
		if want := fmt.Sprintf("quittance.test/card=%d", i); len(b.Devices) != 1 || b.Devices[0].Name != want {
			t.Fatalf("number %d got %v, want %s", number(i), b.Devices, want)
		}
		nonces[i] = *b.Nonce
	}
	// While they hang the cards are nobody else's.
	c.refused(number(len(hangs)), one, "card=0 is held by number 1")
	for i, row := range hangs {
		if row.hook == "poststop" {
			c.await(number(i), protocol.StateStarted)
			if _, err := c.gen.Retire(t.Context(), number(i), protocol.RetireRequest{Purpose: "attempt-1"}, 0); err != nil {
				t.Fatal(err)
			}
		}
	}
	bounded := make([]bool, len(hangs))
	for i, row := range hangs {
		c.await(number(i), protocol.StateRetired)
		lab.Eventually("the allocation is retired", func() (bool, error) {
			a, err := c.gen.Get(t.Context(), number(i), "", 0)
			return err == nil && a.State == protocol.StateRetired, err
		})
		if left := hookProcesses(t, nonces[i]); len(left) != 0 {
			t.Errorf("%s: the card is free and these run: %q", row.hook, left)
		}
		info, err := os.Stat(ran(i))
		if err != nil {
			t.Errorf("%s: the hook did not run: %v", row.hook, err)
			continue
		}
		// The bound leaves a quarter of the engine's call. Where a slow machine took
		// most of that before the hook began, the call may well end first.
		bounded[i] = info.ModTime().Sub(asked[i]) < 2*time.Second
	}
	for _, l := range c.leaves() {
		if l.Receipt.Kind != protocol.KindRetired {
			continue
		}
		i := int(*l.Receipt.Number - 1)
		row, b := hangs[i], body[protocol.RetiredBody](t, l.Bytes)
		if row.hook == "poststop" {
			if b.Reason != protocol.ReasonRequested || !b.Dispatched || b.Exit == nil {
				t.Errorf("%s: retired %+v", row.hook, b)
			}
		} else if b.Reason != protocol.ReasonSetupFailed || b.Dispatched || b.Error == "" || bounded[i] && !strings.Contains(b.Error, row.says) {
			t.Errorf("%s: retired %+v, want an error that says %q", row.hook, b, row.says)
		}
		if b.Removal.Devices != protocol.RemovedByUs {
			t.Errorf("%s: devices %s", row.hook, b.Removal.Devices)
		}
	}
	grant := func(n protocol.Number) (nonce protocol.ID) {
		t.Helper()
		lab.Eventually("the card is granted", func() (bool, error) {
			accepted, err := c.gen.Allocate(t.Context(), n, one)
			if hostclient.IsCode(err, protocol.CodeEngineUnavailable) || hostclient.IsCode(err, protocol.CodeProfileUnavailable) {
				return false, nil // since the end of agent or engine
			}
			if err == nil {
				nonce = *body[protocol.AcceptedBody](t, accepted.Receipt).Nonce
			}
			return err == nil, err
		})
		return nonce
	}
	// A hook hangs while agent or engine is killed: the next life ends it.
	n := number(len(hangs))
	for _, row := range []struct {
		name   string
		killed func() error
		reason protocol.Reason
	}{
		{"agent", func() error { lab.Kill(); lab.Start(); return nil }, protocol.ReasonAgentRecovery},
		{"engine", func() error { return errors.Join(lab.Engine.Kill(), lab.RestartEngine()) }, protocol.ReasonSetupFailed},
	} {
		mark := ran(100 + int(n))
		cards.write(1, fmt.Sprintf("  hooks:\n  - {hookName: createRuntime, path: /bin/sh, args: [sh, -c, %q]}\n", "echo >"+mark+"; setsid sleep 1000"))
		nonce := grant(n)
		lab.Eventually("the hook runs", func() (bool, error) {
			_, err := os.Stat(mark)
			return err == nil, nil
		})
		if err := row.killed(); err != nil {
			t.Fatal(err)
		}
		c.witness()
		lab.Eventually("the allocation is retired", func() (bool, error) {
			a, err := c.gen.Get(t.Context(), n, "", 0)
			return err == nil && a.State == protocol.StateRetired, err
		})
		if left := hookProcesses(t, nonce); len(left) != 0 {
			t.Errorf("%s killed: the card is free and these run: %q", row.name, left)
		}
		if a, err := c.gen.Get(t.Context(), n, "", 0); err != nil || *a.Reason != row.reason {
			t.Errorf("%s killed: %+v, %v", row.name, a, err)
		}
		n++
	}
	// The cards can be had again; a hook that ends takes none away.
	cards.write(1, "  hooks:\n  - {hookName: createRuntime, path: /bin/true}\n")
	grant(n)
	c.await(n, protocol.StateStarted)
	c.retire(n)
	if left := lab.Leftovers(); len(left) != 0 {
		t.Errorf("left on the machine: %v", left)
	}
}

// hookProcesses lists what runs on the machine of a container's hooks, and of the
// runtime that starts them: whoever has its identifier in arguments or
// environment.
func hookProcesses(t *testing.T, nonce protocol.ID) (out []string) {
	t.Helper()
	entries, err := filepath.Glob("/proc/[0-9]*")
	if err != nil {
		t.Fatal(err)
	}
	id := []byte(nonce)
	for _, dir := range entries {
		// Gone meanwhile, or nobody that the engine could have started.
		args, _ := os.ReadFile(filepath.Join(dir, "cmdline"))
		environment, _ := os.ReadFile(filepath.Join(dir, "environ"))
		if bytes.Contains(args, id) || bytes.Contains(environment, id) {
			out = append(out, filepath.Base(dir)+" "+string(bytes.ReplaceAll(args, []byte{0}, []byte{' '})))
		}
	}
	return out
}
