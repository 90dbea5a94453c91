//go:build engine

package engine_test

import (
	"bufio"
	"crypto/sha256"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/quittance/quittance/integration/agenttest"
	"github.com/quittance/quittance/protocol"
	"github.com/quittance/quittance/protocol/hostclient"
)

// cards is a made-up CDI kind over harmless device nodes that no container gets
// by itself.
type cards struct {
	t    *testing.T
	lab  *agenttest.Lab
	dir  string // of the nodes, which a container sees at /nodes
	spec string
}

// patientCreate is for labs whose creations must not fail on a loaded machine.
var patientCreate = []string{"--engine-create-timeout", "60s", "--engine-start-timeout", "60s", "--engine-read-timeout", "60s"}

// misc are harmless character devices: fuse, loop-control and tun.
var misc = []uint32{229, 237, 200}

func newCards(t *testing.T, lab *agenttest.Lab, count int) *cards {
	t.Helper()
	c := &cards{t: t, lab: lab, dir: filepath.Join(t.TempDir(), "nodes"), spec: filepath.Join(lab.CDIDir(), "card.yaml")}
	for _, dir := range []string{c.dir, lab.CDIDir()} {
		if err := os.MkdirAll(dir, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	for i := range count {
		c.make(i)
	}
	c.write(count, "")
	return c
}

func (c *cards) node(i int) string { return filepath.Join(c.dir, fmt.Sprintf("card%d", i)) }

// make makes a node that every user may open: the cgroup alone decides.
func (c *cards) make(i int) {
	c.t.Helper()
	if err := unix.Mknod(c.node(i), unix.S_IFCHR|0o666, int(unix.Mkdev(10, misc[i]))); err != nil {
		c.t.Fatal(err)
	}
	if err := os.Chmod(c.node(i), 0o666); err != nil {
		c.t.Fatal(err)
	}
}

func (c *cards) remove(path string) {
	c.t.Helper()
	if err := os.Remove(path); err != nil {
		c.t.Fatal(err)
	}
}

// write writes the spec of the first cards: each by index and UUID, and all.
// extra are further lines of the edits that every card gets.
func (c *cards) write(count int, extra string) {
	c.t.Helper()
	var b strings.Builder
	fmt.Fprintf(&b, "cdiVersion: 0.6.0\nkind: quittance.test/card\ncontainerEdits:\n  mounts:\n  - {hostPath: %s, containerPath: /nodes, options: [ro, rbind]}\n%sdevices:\n", c.dir, extra)
	device := func(name string, of ...int) {
		fmt.Fprintf(&b, "- name: %q\n  containerEdits:\n    deviceNodes:\n", name)
		for _, i := range of {
			fmt.Fprintf(&b, "    - {path: /dev/card%d, hostPath: %s}\n", i, c.node(i))
		}
	}
	var all []int
	for i := range count {
		device(fmt.Sprint(i), i)
		device(fmt.Sprintf("CARD-%08d", i), i)
		all = append(all, i)
	}
	device("all", all...)
	if err := os.WriteFile(c.spec, []byte(b.String()), 0o644); err != nil {
		c.t.Fatal(err)
	}
}

func (c *cards) digest() protocol.Digest {
	c.t.Helper()
	data, err := os.ReadFile(c.spec)
	if err != nil {
		c.t.Fatal(err)
	}
	return protocol.Digest(fmt.Sprintf("sha256:%x", sha256.Sum256(data)))
}

// deviceProfiles writes one with a card and one with two.
func deviceProfiles(lab *agenttest.Lab) {
	for name, count := range map[string]int{"one": 1, "two": 2} {
		lab.Profile(name, agenttest.Profile{Args: []string{"serve"}, Grace: "100ms", Tables: fmt.Sprintf(
			"[[resources.device]]\nkind = \"quittance.test/card\"\ncount = %d\n", count)})
	}
}

// ask has the worker of a number answer a request.
func (c *caller) ask(n protocol.Number, path, text string) (answer string) {
	c.t.Helper()
	c.lab.Eventually("the worker answers", func() (bool, error) {
		conn, err := c.gen.Channel(c.t.Context(), n, "attempt-1")
		if hostclient.IsCode(err, protocol.CodeNotConnectable) {
			return false, nil
		}
		if err != nil {
			return false, err
		}
		defer conn.Close() // read to the end, or the test fails
		if err := conn.SetDeadline(time.Now().Add(20 * time.Second)); err != nil {
			return false, err
		}
		req, err := http.NewRequestWithContext(c.t.Context(), http.MethodPost, "http://localhost"+path, strings.NewReader(text))
		if err != nil {
			return false, err
		}
		if err := req.Write(conn); err != nil {
			return false, err
		}
		reply, err := http.ReadResponse(bufio.NewReader(conn), req)
		if err != nil {
			return false, err
		}
		defer reply.Body.Close() // likewise
		data, err := io.ReadAll(reply.Body)
		answer = string(data)
		return err == nil, err
	})
	return answer
}

// refused wants the next number refused for want of a device, and not consumed.
func (c *caller) refused(n protocol.Number, request protocol.AllocateRequest, details ...string) {
	c.t.Helper()
	_, err := c.gen.Allocate(c.t.Context(), n, request)
	if !hostclient.IsCode(err, protocol.CodeDeviceUnavailable) {
		c.t.Fatalf("number %d: expected device_unavailable, got %v", n, err)
	}
	for _, want := range details {
		if !strings.Contains(err.Error(), want) {
			c.t.Errorf("%q is missing in: %v", want, err)
		}
	}
	if host := hostOf(c.t, c.lab); host.Frontiers.Accepted != n-1 { // I7
		c.t.Errorf("the refusal left the frontier at %d", host.Frontiers.Accepted)
	}
}

// Cards are leased exclusively under all their names, injected with exactly
// their nodes, kept over a kill of the agent, quarantined while their allocation
// is stuck, and free once it is retired (I16, I19, FR-17).
func TestDevices(t *testing.T) {
	lab := kit.NewLab(t, append(patientCreate, "--stuck-after", "1s")...)
	cards := newCards(t, lab, 2)
	mark := filepath.Join(t.TempDir(), "hook-ran")
	touch, err := filepath.EvalSymlinks("/usr/bin/touch")
	if err != nil {
		t.Fatal(err)
	}
	cards.write(2, fmt.Sprintf("  hooks:\n  - {hookName: createRuntime, path: %s, args: [touch, %s]}\n", touch, mark))
	deviceProfiles(lab)
	lab.Start()
	c := newCaller(t, lab)
	c.witness()
	one, two := c.request("one"), c.request("two")

	answer := c.allocate(1, "one")
	accepted := body[protocol.AcceptedBody](t, answer.Receipt)
	if got := fmt.Sprint(accepted.Devices); got != fmt.Sprintf("[{quittance.test/card=0 [%s]} {quittance.test/card=CARD-00000000 [%s]}]", cards.node(0), cards.node(0)) {
		t.Errorf("devices %s", got)
	}
	if accepted.CDIDigest == nil || *accepted.CDIDigest != cards.digest() {
		t.Errorf("digest %v, the spec's is %s", accepted.CDIDigest, cards.digest())
	}
	c.await(1, protocol.StateStarted)
	if _, err := os.Stat(mark); err != nil {
		t.Errorf("the spec's hook: %v", err)
	}
	for file, want := range map[string]string{
		"/dev/card0": "opened", "/nodes/card0": "opened",
		"/dev/card1": "no such file", "/nodes/card1": "operation not permitted", // the node is there, the cgroup refuses it
	} {
		if got := c.ask(1, "/open", file); !strings.Contains(got, want) {
			t.Errorf("open %s: %s, expected %s", file, got, want)
		}
	}
	c.refused(2, two, "2 devices of kind quittance.test/card", "card=0 is held by number 1")
	c.allocate(2, "one")
	c.await(2, protocol.StateStarted)
	if got := c.ask(2, "/open", "/dev/card1"); got != "opened" {
		t.Errorf("the second card: %s", got)
	}
	c.refused(3, one, "card=0 is held by number 1", "card=1 is held by number 2")
	if host := hostOf(t, lab); len(host.Devices) != 4 {
		t.Errorf("devices of the host %v", host.Devices)
	}

	lab.Kill()
	lab.Start()
	c.witness()
	c.refused(3, one, "card=0 is held by number 1", "card=1 is held by number 2")

	var pid int64
	for _, l := range c.leaves() {
		if l.Receipt.Kind == protocol.KindStarted && *l.Receipt.Number == 1 {
			pid = body[protocol.StartedBody](t, l.Bytes).PID
		}
	}
	file := freezer(t, pid)
	set := func(state string) {
		t.Helper()
		if err := os.WriteFile(file, []byte(state), 0); err != nil {
			t.Fatal(err)
		}
	}
	set("FROZEN")
	thawed := false
	defer func() {
		if !thawed {
			set("THAWED")
		}
	}()
	if _, err := c.gen.Retire(t.Context(), 1, protocol.RetireRequest{Purpose: "attempt-1"}, 0); err != nil {
		t.Fatal(err)
	}
	lab.Eventually("the allocation is stuck", func() (bool, error) {
		a, err := c.gen.Get(t.Context(), 1, "", 0)
		return err == nil && a.Stuck != nil, err
	})
	c.refused(3, one, "card=0 is quarantined: number 1 holds it and is stuck")
	set("THAWED")
	thawed = true
	c.await(1, protocol.StateRetired)
	for _, l := range c.leaves() {
		if l.Receipt.Kind == protocol.KindRetired {
			if b := body[protocol.RetiredBody](t, l.Bytes); b.Removal.Devices != protocol.RemovedByUs {
				t.Errorf("removal %+v", b.Removal)
			}
		}
	}
	c.allocate(3, "one")
	if a := c.await(3, protocol.StateStarted); len(a.Devices) == 0 || a.Devices[0].Name != "quittance.test/card=0" {
		t.Errorf("the card of the stuck one went to nobody: %v", a.Devices)
	}
	c.retire(2)
	c.retire(3)
	if left := lab.Leftovers(); len(left) != 0 {
		t.Errorf("left on the machine: %v", left)
	}
}

// A spec that names what is not there is refused before a number is consumed,
// and works again by itself once it is; a profile that cannot be had at all is
// listed as unavailable, with the reason.
func TestStaleSpec(t *testing.T) {
	lab := kit.NewLab(t, patientCreate...)
	cards := newCards(t, lab, 1)
	library := filepath.Join(t.TempDir(), "library.so")
	if err := os.WriteFile(library, nil, 0o644); err != nil {
		t.Fatal(err)
	}
	cards.write(1, fmt.Sprintf("  - {hostPath: %s, containerPath: /usr/lib/library.so, options: [ro, bind]}\n", library))
	deviceProfiles(lab)
	lab.Start()
	c := newCaller(t, lab)
	c.witness()
	one := c.request("one")
	lab.Eventually("the profile with two cards is unavailable", func() (bool, error) {
		list, err := c.gen.Profiles(t.Context())
		for _, p := range list {
			if p.Name == "two" {
				return !p.Available && strings.Contains(p.Reason, "2 wanted, 1 of 1"), err
			}
		}
		return false, err
	})
	cards.remove(library)
	c.refused(1, one, "mount source "+library, "stale")
	if err := os.WriteFile(library, nil, 0o644); err != nil {
		t.Fatal(err)
	}
	cards.remove(cards.node(0))
	c.refused(1, one, "device node "+cards.node(0), "stale")
	cards.make(0)
	if _, err := c.gen.Allocate(t.Context(), 1, one); err != nil {
		t.Fatal(err)
	}
	c.await(1, protocol.StateStarted)
	// What is written anew while it runs does not concern it.
	cards.write(1, "")
	if got := c.ask(1, "/open", "/dev/card0"); got != "opened" {
		t.Errorf("open: %s", got)
	}
	c.retire(1)
}

// A hook that fails, or that hangs until the engine's deadline, costs its
// allocation and gives the card back: what it left in the cgroup is killed (I11,
// I16, FR-17).
func TestHookFails(t *testing.T) {
	lab := kit.NewLab(t, "--stuck-after", "5m")
	cards := newCards(t, lab, 1)
	deviceProfiles(lab)
	lab.Start()
	c := newCaller(t, lab)
	c.witness()
	one := c.request("one")
	n := protocol.Number(0)
	for _, hook := range []string{"path: /usr/bin/false", "path: /usr/bin/sleep, args: [sleep, \"1000\"]"} {
		cards.write(1, "  hooks:\n  - {hookName: createContainer, "+hook+"}\n")
		n++
		if _, err := c.gen.Allocate(t.Context(), n, one); err != nil {
			t.Fatalf("%s: %v", hook, err)
		}
		c.await(n, protocol.StateRetired)
		lab.Eventually("retired", func() (bool, error) {
			a, err := c.gen.Get(t.Context(), n, "", 0)
			return err == nil && a.State == protocol.StateRetired, err
		})
		for _, l := range c.leaves() {
			if l.Receipt.Kind == protocol.KindRetired && *l.Receipt.Number == n {
				b := body[protocol.RetiredBody](t, l.Bytes)
				if b.Reason != protocol.ReasonSetupFailed || b.Dispatched || b.Removal.Devices != protocol.RemovedByUs {
					t.Errorf("%s: retired %+v", hook, b)
				}
			}
		}
	}
	cards.write(1, "")
	n++
	c.allocate(n, "one")
	c.retire(n)
	if left := lab.Leftovers(); len(left) != 0 {
		t.Errorf("left on the machine: %v", left)
	}
}

// The spec changes between acceptance and creation: what was accepted is
// injected or nothing is, and the retirement says why.
func TestSpecChangesBeforeCreation(t *testing.T) {
	lab := kit.NewLab(t, patientCreate...)
	cards := newCards(t, lab, 1)
	deviceProfiles(lab)
	lab.Start()
	c := newCaller(t, lab)
	c.witness()
	one := c.request("one")
	// The creation waits for the engine before it looks at the specs again.
	if err := lab.Engine.Pause(); err != nil {
		t.Fatal(err)
	}
	if _, err := c.gen.Allocate(t.Context(), 1, one); err != nil {
		t.Error(err)
	}
	cards.write(1, "  env: [\"OTHER=1\"]\n")
	if err := lab.Engine.Resume(); err != nil {
		t.Fatal(err)
	}
	c.await(1, protocol.StateRetired)
	var retired protocol.RetiredBody
	for _, l := range c.leaves() {
		if l.Receipt.Kind == protocol.KindRetired {
			retired = body[protocol.RetiredBody](t, l.Bytes)
		}
	}
	if retired.Reason != protocol.ReasonSetupFailed || retired.Dispatched || !strings.Contains(retired.Error, "the CDI specs changed after the devices were leased") {
		t.Errorf("retired %+v", retired)
	}
	c.allocate(2, "one")
	c.await(2, protocol.StateStarted)
	c.retire(2)
}
