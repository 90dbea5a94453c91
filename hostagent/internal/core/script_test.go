package core

import (
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"github.com/quittance/quittance/protocol"
)

var update = flag.Bool("update", false, "write the outcome of the scripts as expected")

// TestScripts runs each script of testdata: a line is a command, the indented
// lines after it are everything that core decided.
func TestScripts(t *testing.T) {
	files, err := filepath.Glob("testdata/*.txt")
	if err != nil || len(files) == 0 {
		t.Fatalf("no scripts: %v", err)
	}
	for _, file := range files {
		t.Run(strings.TrimSuffix(filepath.Base(file), ".txt"), func(t *testing.T) {
			want, err := os.ReadFile(file)
			if err != nil {
				t.Fatal(err)
			}
			var got strings.Builder
			r := &script{sim: newSim(t)}
			r.shadow = r.fold()
			r.witness()
			for line := range strings.Lines(string(want)) {
				switch {
				case strings.HasPrefix(line, "    "):
				case strings.HasPrefix(line, "#"), strings.TrimSpace(line) == "":
					got.WriteString(line)
				default:
					got.WriteString(line)
					got.WriteString(r.run(strings.Fields(line)))
				}
			}
			r.checkFold()
			if *update {
				if err := os.WriteFile(file, []byte(got.String()), 0o644); err != nil {
					t.Fatal(err)
				}
				return
			}
			if got.String() != string(want) {
				t.Errorf("got\n%s", firstDifference(got.String(), string(want)))
			}
		})
	}
}

// Stepping the wall clock by an hour either way between any two events changes
// no decision of order, identity, number or time (I25, FR-23).
func TestWallClockStepsChangeNothing(t *testing.T) {
	files, err := filepath.Glob("testdata/*.txt")
	if err != nil {
		t.Fatal(err)
	}
	for _, file := range files {
		text, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		var steady, stepped strings.Builder
		for i, out := range []*strings.Builder{&steady, &stepped} {
			r := &script{sim: newSim(t)}
			r.witness()
			const hour = protocol.Timestamp(3_600_000_000)
			step := hour
			for line := range strings.Lines(string(text)) {
				if strings.HasPrefix(line, "    ") || strings.HasPrefix(line, "#") || strings.TrimSpace(line) == "" {
					continue
				}
				if i == 1 {
					r.now.Wall += step
					step = map[bool]protocol.Timestamp{true: -2 * hour, false: 2 * hour}[step > 0]
				}
				out.WriteString(line + r.run(strings.Fields(line)))
			}
		}
		if steady.String() != stepped.String() {
			t.Errorf("%s: %s", file, firstDifference(stepped.String(), steady.String()))
		}
	}
}

// A wall clock that shows nonsense ends nothing.
func TestMadWallClock(t *testing.T) {
	for _, wall := range []protocol.Timestamp{-1 << 62, 1 << 62} {
		r := &script{sim: newSim(t)}
		r.witness()
		r.now.Wall = wall
		if got := r.run([]string{"retire", "1", "a"}); !strings.Contains(got, "retired of 1") {
			t.Errorf("at %d: %s", wall, got)
		}
	}
}

func firstDifference(got, want string) string {
	g, w := strings.Split(got, "\n"), strings.Split(want, "\n")
	for i := range g {
		if i >= len(w) || g[i] != w[i] {
			return fmt.Sprintf("line %d:\n%s\nwant\n%s", i+1, strings.Join(g[max(0, i-3):min(len(g), i+4)], "\n"), strings.Join(w[max(0, i-3):min(len(w), i+4)], "\n"))
		}
	}
	return got
}

type script struct{ *sim }

// run carries out one command and describes the outcome.
func (r *script) run(words []string) string {
	r.t.Helper()
	before := len(r.groups)
	word := func(i int) string {
		if i < len(words) {
			return words[i]
		}
		return ""
	}
	num := func(i int) protocol.Number {
		n, err := strconv.ParseInt(word(i), 10, 64)
		if err != nil {
			r.t.Fatalf("%v: word %d is no number", words, i)
		}
		return protocol.Number(n)
	}
	nonce := func(n protocol.Number) protocol.ID { return *r.state.Allocation(n).Accepted.Nonce }
	r.effects, r.replies = nil, nil
	switch words[0] {
	case "allocate": // N PROFILE PURPOSE [other]
		owner := testOwner
		if word(4) == "other" {
			owner = otherOwner
		}
		r.allocate(num(1), word(2), word(3), owner)
	case "retire": // N PURPOSE [wait MILLIS | operator]
		r.nextID++
		e := Retire{ID: r.nextID, Caller: controller(testOwner), Number: num(1), Body: protocol.RetireRequest{Purpose: word(2), Note: "a note"}}
		if word(3) == "wait" {
			e.DeadlineMillis = r.now.BootMillis + int64(num(4))
		}
		if word(3) == "operator" {
			e.Caller = Caller{Operator: true}
		}
		r.step(e)
	case "consume": // N PURPOSE [wrong]
		if word(3) == "wrong" {
			r.ask(func(id RequestID) Event {
				return Consume{ID: id, Caller: controller(testOwner), Number: num(1), Body: protocol.ConsumeRequest{Purpose: word(2), LeafHash: "sha256:" + hex64}}
			})
		} else {
			r.consume(num(1), word(2))
		}
	case "release": // FRONTIER [EXCEPT…]
		var except []protocol.Number
		for i := 2; i < len(words); i++ {
			except = append(except, num(i))
		}
		r.release(num(1), except...)
	case "witness": // [behind]
		r.ask(func(id RequestID) Event {
			return Witness{ID: id, Caller: controller(testOwner), Behind: word(1)}
		})
	case "channel": // N PURPOSE
		r.ask(func(id RequestID) Event {
			return TakeChannel{ID: id, Caller: controller(testOwner), Number: num(1), Body: protocol.ChannelRequest{Purpose: word(2)}}
		})
	case "hand-channel":
		r.ask(func(id RequestID) Event { return HandChannel{ID: id, Number: num(1)} })
	case "return-channel":
		r.step(ReturnChannel{Number: num(1)})
	case "get": // N UNTIL MILLIS
		r.ask(func(id RequestID) Event {
			return GetAllocation{ID: id, Number: num(1), Until: protocol.State(word(2)), DeadlineMillis: r.now.BootMillis + int64(num(3))}
		})
	case "drain", "undrain":
		r.ask(func(id RequestID) Event {
			return Drain{ID: id, Caller: Caller{Operator: true, UID: 0}, On: words[0] == "drain"}
		})
	case "owner": // other
		r.ask(func(id RequestID) Event { return SetOwner{ID: id, Caller: Caller{Operator: true}, Owner: otherOwner} })
	case "engine": // up | down
		r.step(EngineChanged{Engine: protocol.Engine{Available: word(1) == "up"}})
	case "listed": // ours N | stranger N | foreign | nothing
		if word(1) == "nothing" {
			r.step(EngineListed{})
			break
		}
		l := Listed{ID: "q-listed", Generation: testGeneration, Nonce: protocol.ID(strings.Repeat("f", 32))}
		switch word(1) {
		case "ours":
			l.Number, l.Nonce = num(2), nonce(num(2))
		case "stranger":
			l.Number = num(2)
		case "foreign":
			l.Generation = otherOwner
		}
		r.step(EngineListed{Containers: []Listed{l}})
	case "wait": // MILLIS
		r.now.BootMillis += int64(num(1))
		r.now.Wall += protocol.Timestamp(num(1) * 1000)
		r.step(Tick{})
	case "heard":
		r.step(Heard{Owner: testOwner})
	case "created":
		r.step(WorkCreated{Number: num(1), Body: createdBody(num(1), nonce(num(1)), r.boot)})
	case "create-failed": // N [unknown]
		r.step(WorkCreateFailed{Number: num(1), Error: "no such image", Unknown: word(2) == "unknown"})
	case "started":
		r.step(WorkStarted{Number: num(1), StartMillis: 30})
	case "start-failed":
		r.step(WorkStartFailed{Number: num(1), Error: "exec: not found"})
	case "running":
		r.step(WorkRunning{Number: num(1)})
	case "oom":
		one := int64(1)
		r.step(WorkOOM{Number: num(1), Counters: protocol.Counters{OOMKill: &one}})
	case "exited": // N CODE [killed]
		verdict := protocol.VerdictNotKilled
		if word(3) == "killed" {
			verdict = protocol.VerdictKilled
		}
		r.step(WorkExited{Number: num(1), Body: exitFacts(int64(num(2)), verdict)})
	case "never-ran":
		r.step(WorkNeverRan{Number: num(1)})
	case "failing": // N STEP MILLIS
		r.step(WorkProgress{Number: num(1), Step: word(2), Error: "device busy", ProcessState: "D", WaitChannel: "nvlock", SinceMillis: int64(num(3))})
	case "step": // N STEP
		r.step(WorkProgress{Number: num(1), Step: word(2)})
	case "removed":
		r.step(WorkRemoved{Number: num(1), Removal: allRemoved})
	case "crash":
		r.restart(r.boot)
	case "reboot":
		r.now.BootMillis = 5_000
		r.restart(secondBoot)
	default:
		r.t.Fatalf("no command %s", words[0])
	}
	return r.describe(before)
}

func (r *script) describe(before int) string {
	var b strings.Builder
	for _, group := range r.groups[before:] {
		for _, e := range group {
			fmt.Fprintf(&b, "    %s\n", describeEntry(e))
		}
	}
	for _, e := range r.effects {
		fmt.Fprintf(&b, "    → %s\n", strings.TrimPrefix(describeEffect(e), "core."))
	}
	for _, reply := range r.replies {
		fmt.Fprintf(&b, "    ← %s\n", describeReply(reply))
	}
	return b.String()
}

func describeEntry(e Entry) string {
	if !e.Receipt {
		in, body, err := decodeIntent(e.Payload)
		if err != nil {
			return err.Error()
		}
		out := fmt.Sprintf("intent %s %d", in.Intent, in.Number)
		if r, ok := body.(*RetireBody); ok {
			out += " " + string(r.Reason)
		}
		return out
	}
	r, err := protocol.DecodeReceipt(e.Payload)
	if err != nil {
		return err.Error()
	}
	out := fmt.Sprintf("%d %s", r.Index, r.Kind)
	if r.Number != nil {
		out += fmt.Sprintf(" of %d", *r.Number)
	}
	switch r.Kind {
	case protocol.KindRetired:
		b, err := protocol.BodyOf[protocol.RetiredBody](r)
		if err != nil {
			return err.Error()
		}
		out += fmt.Sprintf(": %s, dispatched %t, oom %s, stop %d ms, remove %d ms", b.Reason, b.Dispatched, b.OOM.Verdict, b.Durations.StopMillis, b.Durations.RemoveMillis)
		if b.Exit != nil && b.Exit.Code != nil {
			out += fmt.Sprintf(", exit %d", *b.Exit.Code)
		}
		if b.RequestedBy != nil {
			out += ", by " + *b.RequestedBy
		}
		if b.Error != "" {
			out += ", " + b.Error
		}
	case protocol.KindOOMObserved, protocol.KindStuck, protocol.KindUnstuck, protocol.KindReleased, protocol.KindOwnerChanged:
		out += ": " + string(r.Body)
	}
	return out
}

func describeEffect(e Effect) string {
	name := fmt.Sprintf("%T", e)
	switch e := e.(type) {
	case CreateEffect:
		return fmt.Sprintf("%s %d %s", name, e.Number, e.Profile.Name)
	case StopEffect:
		return fmt.Sprintf("%s %d kill %t", name, e.Number, e.Kill)
	case InspectEffect:
		return fmt.Sprintf("%s %d made %t, ran %t, rebooted %t", name, e.Number, e.Created != nil, e.Ran, e.Rebooted)
	case RemoveEffect:
		return fmt.Sprintf("%s %d made %t, unsettled %t", name, e.Number, e.Created != nil, e.Unsettled)
	case SweepEffect:
		return fmt.Sprintf("%s %d", name, e.Number)
	case StartEffect:
		return fmt.Sprintf("%s %d", name, e.Number)
	case WatchEffect:
		return fmt.Sprintf("%s %d", name, e.Number)
	case ForgetEffect:
		return fmt.Sprintf("%s %d", name, e.Number)
	case DiscardEffect:
		return fmt.Sprintf("%s %d", name, e.Number)
	}
	return name
}

func describeReply(r Reply) string {
	if p := r.Problem; p != nil {
		out := fmt.Sprintf("%d %s", p.Status, p.Code)
		if p.Expected != 0 {
			out += fmt.Sprintf(", expected %d", p.Expected)
		}
		if p.Blocker != 0 {
			out += fmt.Sprintf(", blocker %d", p.Blocker)
		}
		return out
	}
	switch b := r.Body.(type) {
	case *protocol.EffectAnswer:
		out := fmt.Sprintf("%d %s", r.Status, b.Allocation.State)
		if b.Receipt != nil {
			if receipt, err := protocol.DecodeReceipt(b.Receipt); err == nil {
				out += fmt.Sprintf(", receipt %d %s", receipt.Index, receipt.Kind)
			}
		}
		return out
	case *AllocationView:
		out := fmt.Sprintf("%d %s", r.Status, b.State)
		if b.Stuck != nil {
			out += ", stuck at " + b.Stuck.Step
		}
		return out
	case *protocol.ReleaseAnswer:
		return fmt.Sprintf("%d frontier %d, carried %v, receipt %t", r.Status, b.Frontier, b.Carried, b.Receipt != nil)
	case *ChannelGrant:
		return fmt.Sprintf("%d %s %s", r.Status, b.Network, b.Address)
	case *protocol.DrainAnswer:
		return fmt.Sprintf("%d draining %t, active %d", r.Status, b.Draining, b.Active)
	}
	return fmt.Sprintf("%d", r.Status)
}
