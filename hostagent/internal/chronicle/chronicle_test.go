package chronicle

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/hashicorp/go-hclog"

	"github.com/quittance/quittance/hostagent/internal/core"
	"github.com/quittance/quittance/protocol"
)

// paper is a journal whose disk the test is.
type paper struct {
	dones []func(error)
	base  *core.ReleaseBase
}

func (p *paper) Append(_ []core.Entry, done func(error)) { p.dones = append(p.dones, done) }
func (p *paper) Release(base *core.ReleaseBase, _ []core.Entry, done func(error)) {
	p.base, p.dones = base, append(p.dones, done)
}
func (p *paper) Space() core.Space { return core.Space{Room: 7} }

// tally writes down what is counted.
type tally struct{ told []string }

func (c *tally) note(format string, args ...any) {
	c.told = append(c.told, fmt.Sprintf(format, args...))
}
func (c *tally) Commit(entries int, _ time.Duration) { c.note("commit %d", entries) }
func (c *tally) Receipt(k protocol.Kind)             { c.note("%s", k) }
func (c *tally) Started(b protocol.StartedBody)      { c.note("started in %d ms", b.Durations.CreateMillis) }
func (c *tally) Exited(b protocol.ExitedBody)        { c.note("verdict %s", b.OOM.Verdict) }
func (c *tally) Retired(b protocol.RetiredBody)      { c.note("reason %s", b.Reason) }
func (c *tally) Leased(devices []protocol.Device, by int) {
	if len(devices) > 0 {
		c.note("devices %+d", by*len(devices))
	}
}

var (
	generation = protocol.NewID()
	nonce      = protocol.NewID()
)

func receipt(index protocol.Index, kind protocol.Kind, n protocol.Number, body any) core.Entry {
	return core.Entry{Receipt: true, Payload: protocol.EncodeReceipt(generation, index, kind, n, protocol.TimestampOf(time.Unix(1, 0)), body)}
}

func accepted(index protocol.Index, n protocol.Number, purpose string, devices ...protocol.Device) core.Entry {
	profile := "ocr"
	if devices == nil {
		devices = []protocol.Device{}
	}
	return receipt(index, protocol.KindAccepted, n, protocol.AcceptedBody{Owner: generation, Purpose: purpose, Nonce: &nonce, Profile: &profile, Devices: devices})
}

// One life: nothing is told before it is durable, then every receipt once, in
// order, with its purpose to the end, whatever intents stand between.
func TestOneLife(t *testing.T) {
	var out bytes.Buffer
	disk, counts := &paper{}, &tally{}
	c := New(disk, core.NewState(), counts, hclog.New(&hclog.LoggerOptions{Output: &out, JSONFormat: true, Level: hclog.Info}))
	var waited []error
	done := func(err error) { waited = append(waited, err) }

	code := int64(137)
	scope := protocol.ScopeContainer
	c.Append([]core.Entry{{Payload: []byte(`{"intent":"profile"}`)}, accepted(1, 7, "att.job-1.x", protocol.Device{Name: "v/c=0", Nodes: []string{}})}, done)
	if out.Len() != 0 || len(counts.told) != 0 || c.Purpose(7) != "" {
		t.Fatalf("told before it is durable: %s %v", &out, counts.told)
	}
	disk.dones[0](nil)
	if len(waited) != 1 || c.Purpose(7) != "att.job-1.x" {
		t.Fatalf("%v, %q", waited, c.Purpose(7))
	}
	c.Append([]core.Entry{receipt(2, protocol.KindStarted, 7, protocol.StartedBody{Durations: protocol.CreateTook{CreateMillis: 5}})}, done)
	c.Append([]core.Entry{
		receipt(3, protocol.KindExited, 7, protocol.ExitedBody{Exit: protocol.Exit{Source: protocol.ExitFromEngine, Code: &code}, OOM: protocol.OOM{Verdict: protocol.VerdictKilled, Scope: &scope}}),
		receipt(4, protocol.KindRetired, 7, protocol.RetiredBody{Dispatched: true, Reason: protocol.ReasonOOM, OOM: protocol.OOM{Verdict: protocol.VerdictKilled}}),
		receipt(5, protocol.KindConsumed, 7, protocol.ConsumedBody{RetiredIndex: 4}),
	}, done)
	c.Append([]core.Entry{accepted(6, 8, "att.job-2.x")}, done)
	c.Release(&core.ReleaseBase{}, []core.Entry{receipt(7, protocol.KindReleased, 0, protocol.ReleasedBody{Frontier: 8, Except: []protocol.Number{8}})}, done)
	for _, settle := range disk.dones[1:] {
		settle(nil)
	}
	if disk.base == nil || len(waited) != 5 || c.Purpose(7) != "" || c.Purpose(8) != "att.job-2.x" {
		t.Errorf("base %v, %d waited, purposes %q and %q", disk.base, len(waited), c.Purpose(7), c.Purpose(8))
	}

	var told []string
	for text := range strings.Lines(out.String()) {
		var l struct {
			Message string `json:"@message"`
			Number  int    `json:"number"`
			Index   int    `json:"index"`
			Purpose string `json:"purpose"`
			Verdict string `json:"verdict"`
		}
		if err := json.Unmarshal([]byte(text), &l); err != nil {
			t.Fatal(err)
		}
		told = append(told, strings.TrimSpace(fmt.Sprintf("%d %s %d %s %s", l.Index, l.Message, l.Number, l.Purpose, l.Verdict)))
	}
	want := []string{
		"1 accepted 7 att.job-1.x", "2 started 7 att.job-1.x", "3 exited 7 att.job-1.x killed", "4 retired 7 att.job-1.x killed",
		"5 consumed 7 att.job-1.x", "6 accepted 8 att.job-2.x", "7 released 7 att.job-1.x", "7 frontier_released 0",
	}
	if got := strings.Join(told, "\n"); got != strings.Join(want, "\n") {
		t.Errorf("got\n%s\nwant\n%s", got, strings.Join(want, "\n"))
	}
	counted := "commit 2|accepted|devices +1|commit 1|started|started in 5 ms|commit 3|exited|verdict killed|retired|reason oom|devices -1|consumed|commit 1|accepted|commit 1|released"
	if got := strings.Join(counts.told, "|"); got != counted {
		t.Errorf("counted\n%s\nwant\n%s", got, counted)
	}
}

// I35: what did not become durable is not told, and whoever waits gets the
// journal's own error.
func TestFailureIsNotTold(t *testing.T) {
	var out bytes.Buffer
	disk, counts := &paper{}, &tally{}
	c := New(disk, core.NewState(), counts, hclog.New(&hclog.LoggerOptions{Output: &out}))
	full := errors.New("full")
	var got error
	c.Append([]core.Entry{accepted(1, 1, "att.x")}, func(err error) { got = err })
	disk.dones[0](full)
	if !errors.Is(got, full) || out.Len() != 0 || len(counts.told) != 0 || c.Purpose(1) != "" {
		t.Errorf("%v, %s, %v", got, &out, counts.told)
	}
}
