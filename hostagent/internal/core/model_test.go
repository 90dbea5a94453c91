package core

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"

	"pgregory.net/rapid"

	_ "github.com/quittance/quittance/integration/seed"
	"github.com/quittance/quittance/profiles"
	"github.com/quittance/quittance/protocol"
)

// container is what the machine has of one nonce: the model's engine. It
// outlives the agent.
type container struct {
	number  protocol.Number
	made    bool
	running bool
	ended   bool
	starts  int
	nodes   []string // device nodes that it has
}

// defect breaks one promise of Core in the model, to show that the properties
// can fail.
type defect int

const (
	noDefect       defect = iota
	effectsEarly          // effects begin before their entries are durable
	repliesEarly          // replies leave before their entries are durable
	frontierLost          // the fold forgets that numbers were accepted
	removalForgets        // removal is reported while the container is there
	leasesLost            // the fold forgets who holds which device
	channelsLost          // a restart forgets how many channels left
)

// world runs the real Step against a model of everything around it, loses
// whatever was not durable at a crash, and checks the invariants that must
// survive.
type world struct {
	*sim
	defect defect
	err    string // the first violation

	decoded    decoded
	durable    int // groups that are durable
	held       []heldStep
	containers map[protocol.ID]*container
	pending    []Event                       // results that the workers have not reported yet
	acked      map[string]string             // receipt index → leaf that a client has seen
	handed     map[protocol.Number]int64     // channels that left, over all lives
	handing    map[RequestID]protocol.Number // hand-overs under way
	nonceOf    map[protocol.Number]protocol.ID
	asked      map[RequestID]asked // what was asked under each id
	answered   map[string]string   // kind and number → the leaf that answered first
}

// decoded remembers receipts by their bytes: the checks read the same ones over
// and over. Worlds that were cloned share it.
type decoded map[string]protocol.Receipt

func (d decoded) receipt(leaf []byte) (protocol.Receipt, error) {
	if r, ok := d[string(leaf)]; ok {
		return r, nil
	}
	r, err := protocol.DecodeReceipt(leaf)
	if err == nil {
		d[string(leaf)] = r
	}
	return r, err
}

type heldStep struct {
	groups  int // all of these must be durable
	effects []Effect
	replies []Reply
}

func newWorld(t testing.TB, d defect) *world {
	w := &world{defect: d, decoded: decoded{}, containers: map[protocol.ID]*container{}, acked: map[string]string{}, handed: map[protocol.Number]int64{}, handing: map[RequestID]protocol.Number{}, nonceOf: map[protocol.Number]protocol.ID{}, asked: map[RequestID]asked{}, answered: map[string]string{}}
	w.sim = newSim(t)
	w.durable = len(w.groups)
	w.do(Witness{ID: 1, Caller: controller(testOwner)})
	w.sync(len(w.groups))
	return w
}

func (w *world) fail(format string, args ...any) {
	if w.err == "" {
		w.err = fmt.Sprintf(format, args...)
	}
}

// do runs one event and holds what it leads to until its entries are durable.
func (w *world) do(e Event) {
	w.step(e)
	h := heldStep{groups: len(w.groups), effects: w.effects, replies: w.replies}
	if w.defect == effectsEarly {
		w.begin(h.effects)
		h.effects = nil
	}
	if w.defect == repliesEarly {
		w.answer(h.replies)
		h.replies = nil
	}
	w.held = append(w.held, h)
}

// sync makes the ledger durable up to a number of groups.
func (w *world) sync(groups int) {
	w.durable = max(w.durable, groups)
	for len(w.held) > 0 && w.held[0].groups <= w.durable {
		h := w.held[0]
		w.held = w.held[1:]
		w.begin(h.effects)
		w.answer(h.replies)
	}
}

// answer notes what clients have seen: it must be there after every crash.
func (w *world) answer(replies []Reply) {
	for _, r := range replies {
		if n, ok := w.handing[r.ID]; ok && r.Problem == nil {
			w.handed[n]++
			if most := testProfile("group", profiles.OOMKillGroup).Channel.MaxChannels; w.handed[n] > most {
				w.fail("number %d gave %d channels, %d at most", n, w.handed[n], most) // I33
			}
		}
		if a, ok := r.Body.(*protocol.EffectAnswer); ok && a.Receipt != nil {
			receipt, err := protocol.DecodeReceipt(a.Receipt)
			if err != nil {
				w.fail("reply: %v", err)
				return
			}
			w.acked[fmt.Sprint(receipt.Index)] = string(a.Receipt)
			w.checkAnswer(r.ID, a.Receipt, receipt)
		}
	}
}

// begin carries effects out on the model's engine; the results are pending.
func (w *world) begin(effects []Effect) {
	for _, e := range effects {
		switch e := e.(type) {
		case CreateEffect:
			if c := w.containers[e.Nonce]; c != nil {
				w.fail("nonce of number %d is created twice", e.Number)
			}
			if other, ok := w.nonceOf[e.Number]; ok && other != e.Nonce {
				w.fail("number %d gets a second container", e.Number) // I5
			}
			w.nonceOf[e.Number] = e.Nonce
			made := &container{number: e.Number, made: true}
			for _, d := range e.Devices {
				made.nodes = append(made.nodes, d.Nodes...)
			}
			w.containers[e.Nonce] = made
			w.pending = append(w.pending, WorkCreated{Number: e.Number, Body: createdBody(e.Number, e.Nonce, w.boot)})
		case StartEffect:
			c := w.containers[w.nonceOf[e.Number]]
			c.starts++
			c.running = true
			w.pending = append(w.pending, WorkStarted{Number: e.Number, StartMillis: 1})
		case WatchEffect:
		case StopEffect:
			c := w.containers[w.nonceOf[e.Number]]
			if c != nil && c.running {
				c.running, c.ended = false, true
				w.pending = append(w.pending, WorkExited{Number: e.Number, Body: exitFacts(143, protocol.VerdictNotKilled)})
			}
		case InspectEffect:
			w.inspect(e)
		case RemoveEffect:
			w.remove(e)
		case ForgetEffect, DiscardEffect:
		case SweepEffect:
			w.fail("a sweep that nothing asked for")
		}
	}
}

func (w *world) inspect(e InspectEffect) {
	c := w.containers[e.Nonce]
	switch {
	case c != nil && c.running:
		if e.Created == nil {
			w.fail("number %d runs and the ledger does not know that it was made", e.Number)
			return
		}
		w.pending = append(w.pending, WorkRunning{Number: e.Number})
	case c != nil && c.ended:
		w.pending = append(w.pending, WorkExited{Number: e.Number, Body: exitFacts(1, protocol.VerdictNotKilled)})
	default:
		w.pending = append(w.pending, WorkNeverRan{Number: e.Number})
	}
}

func (w *world) remove(e RemoveEffect) {
	c := w.containers[e.Nonce]
	if c != nil && c.running {
		w.fail("number %d is removed while it runs", e.Number) // I17
	}
	if c != nil && c.ended && w.durableKind(e.Number, protocol.KindExited) == "" {
		w.fail("number %d is removed before its exit is durable", e.Number) // I18
	}
	if c != nil && w.defect != removalForgets {
		delete(w.containers, e.Nonce)
	}
	w.pending = append(w.pending, WorkRemoved{Number: e.Number, Removal: allRemoved})
}

// durableKind is the durable receipt of a kind for a number, "" for none.
func (w *world) durableKind(n protocol.Number, kind protocol.Kind) string {
	for _, group := range w.groups[:w.durable] {
		for _, e := range group {
			if !e.Receipt {
				continue
			}
			r, err := w.decoded.receipt(e.Payload)
			if err != nil {
				w.fail("ledger: %v", err)
			} else if r.Number != nil && *r.Number == n && r.Kind == kind {
				return string(e.Payload)
			}
		}
	}
	return ""
}

// crash loses the session, the pending results and every group that is not
// durable, and begins a new life. The engine's containers live on.
func (w *world) crash() {
	w.groups = w.groups[:w.durable]
	w.held, w.pending = nil, nil
	w.restart(w.boot)
	if w.defect == channelsLost {
		for _, r := range w.session.runs {
			r.channels, r.handed = 0, 0
		}
	}
	if w.defect == frontierLost {
		w.state.Accepted = w.state.Released
		w.state.allocations = map[protocol.Number]*Allocation{}
		w.session.runs = map[protocol.Number]*run{}
		w.effects = nil
	}
	if w.defect == leasesLost {
		for _, a := range w.state.allocations {
			a.Accepted.Devices = nil
		}
	}
	w.held = append(w.held, heldStep{groups: len(w.groups), effects: w.effects})
	w.do(Witness{ID: 1, Caller: controller(testOwner)})
	w.sync(len(w.groups))
}

// check compares the durable ledger with the machine and with what clients saw.
func (w *world) check() {
	leaves := map[string]string{}
	accepted := map[protocol.Number]bool{}
	kinds := map[protocol.Number]map[protocol.Kind]int{}
	next := protocol.Index(0)
	var frontier protocol.Number
	for _, group := range w.groups[:w.durable] {
		for _, e := range group {
			if !e.Receipt {
				continue
			}
			r, err := w.decoded.receipt(e.Payload)
			if err != nil {
				w.fail("ledger: %v", err)
				return
			}
			if r.Index != next {
				w.fail("index %d where %d is next", r.Index, next) // I8
			}
			next++
			leaves[fmt.Sprint(r.Index)] = string(e.Payload)
			if r.Number == nil {
				continue
			}
			n := *r.Number
			if kinds[n] == nil {
				kinds[n] = map[protocol.Kind]int{}
			}
			kinds[n][r.Kind]++
			switch {
			case r.Kind == protocol.KindAccepted:
				if n != frontier+1 || accepted[n] {
					w.fail("number %d is accepted after %d", n, frontier) // I5
				}
				accepted[n], frontier = true, n
			case !accepted[n]:
				w.fail("%s of %d before its acceptance", r.Kind, n)
			case kinds[n][r.Kind] > 1 && r.Kind != protocol.KindOOMObserved && r.Kind != protocol.KindStuck && r.Kind != protocol.KindUnstuck:
				w.fail("number %d has two receipts %s", n, r.Kind) // I20, I23
			case r.Kind == protocol.KindConsumed && kinds[n][protocol.KindRetired] == 0:
				w.fail("number %d is consumed before it is retired", n)
			}
		}
	}
	for index, leaf := range w.acked {
		if leaves[index] != leaf {
			w.fail("receipt %s was acknowledged and is gone", index) // I10
		}
	}
	w.checkHistory()
	users := map[string]protocol.Number{}
	for nonce, c := range w.containers {
		for _, node := range c.nodes {
			if other, used := users[node]; used && other != c.number {
				w.fail("numbers %d and %d both have the device node %s", other, c.number, node)
			}
			users[node] = c.number
		}
		if !accepted[c.number] {
			w.fail("the engine holds number %d, which the ledger does not know", c.number) // I6
		}
		if kinds[c.number][protocol.KindRetired] > 0 {
			w.fail("number %d is retired and its container is there", c.number) // I16
		}
		if c.starts > 1 {
			w.fail("container %s was started %d times", nonce, c.starts)
		}
	}
}

// actions are what can happen next, in a fixed order.
func (w *world) actions() []string {
	out := []string{"sync", "crash"}
	for i := range w.pending {
		out = append(out, fmt.Sprintf("report %d", i))
	}
	for n := max(1, w.state.Accepted); n <= w.state.Accepted+2; n++ {
		out = append(out, fmt.Sprintf("allocate %d", n))
	}
	out = append(out, fmt.Sprintf("burn %d", w.state.Accepted+1), fmt.Sprintf("lease %d", w.state.Accepted+1))
	for _, n := range w.state.Numbers() {
		out = append(out, fmt.Sprintf("retire %d", n), fmt.Sprintf("consume %d", n), fmt.Sprintf("release %d", n))
		if c := w.containers[w.nonceOf[n]]; c != nil && c.running && w.session.runs[n] != nil && w.session.runs[n].phase == phaseRunning {
			out = append(out, fmt.Sprintf("exit %d", n))
		}
		if r := w.session.runs[n]; r != nil && (r.phase == phaseStopping || r.phase == phaseRemoving) && w.state.Allocation(n).Stuck == nil {
			out = append(out, fmt.Sprintf("stick %d", n))
		}
		if w.state.Allocation(n).Stuck != nil {
			out = append(out, fmt.Sprintf("pass %d", w.state.Accepted))
		}
	}
	if w.state.Released > 1 {
		out = append(out, fmt.Sprintf("release %d", w.state.Released-1))
	}
	return out
}

func (w *world) act(action string) {
	verb, rest, _ := strings.Cut(action, " ")
	var n int
	if rest != "" {
		if _, err := fmt.Sscan(rest, &n); err != nil {
			w.t.Fatal(err)
		}
	}
	number := protocol.Number(n)
	w.nextID++
	w.asked[w.nextID] = asked{verb, number}
	switch verb {
	case "sync":
		w.sync(len(w.groups))
	case "crash":
		w.crash()
	case "report":
		e := w.pending[n]
		w.pending = slices.Delete(slices.Clone(w.pending), n, n+1)
		w.do(e)
	case "allocate", "lease":
		w.nonces++
		profile := map[string]string{"allocate": "group", "lease": "card"}[verb]
		w.do(Allocate{ID: w.nextID, Caller: controller(testOwner), Number: number, Nonce: protocol.ID(fmt.Sprintf("%032x", w.nonces)),
			Body: protocol.AllocateRequest{Profile: profile, ProfileDigest: digestOf(profile), Purpose: "a"}, Devices: w.offered})
	case "burn", "retire":
		w.do(Retire{ID: w.nextID, Caller: controller(testOwner), Number: number, Body: protocol.RetireRequest{Purpose: "a"}})
	case "consume":
		leaf := protocol.Digest("sha256:" + hex64)
		if r := w.state.Allocation(number).Receipt(protocol.KindRetired); r != nil {
			leaf = r.Entry.LeafHash
		}
		w.do(Consume{ID: w.nextID, Caller: controller(testOwner), Number: number, Body: protocol.ConsumeRequest{Purpose: "a", LeafHash: leaf}})
	case "release":
		w.do(Release{ID: w.nextID, Caller: controller(testOwner), Body: protocol.ReleaseRequest{Frontier: number}})
	case "pass": // release past every stuck one
		body := protocol.ReleaseRequest{Frontier: number, Except: []protocol.Number{}}
		for _, n := range w.state.Numbers() {
			if n <= number && w.state.Allocation(n).Stuck != nil {
				body.Except = append(body.Except, n)
			}
		}
		w.do(Release{ID: w.nextID, Caller: controller(testOwner), Body: body})
	case "stick":
		w.do(WorkProgress{Number: number, Step: "remove task", Error: "device busy", SinceMillis: w.bounds.StuckAfterMillis})
	case "channel": // dialled at once, and handed out unless it is refused
		w.do(TakeChannel{ID: w.nextID, Caller: controller(testOwner), Number: number, Body: protocol.ChannelRequest{Purpose: "a"}})
		if len(w.replies) == 1 && w.replies[0].Problem == nil {
			w.nextID++
			w.handing[w.nextID] = number
			w.do(HandChannel{ID: w.nextID, Number: number})
		}
	case "exit":
		w.containers[w.nonceOf[number]].running, w.containers[w.nonceOf[number]].ended = false, true
		w.pending = append(w.pending, WorkExited{Number: number, Body: exitFacts(0, protocol.VerdictNotKilled)})
	}
	w.check()
}

// finish lets everything end: after it nothing of a retired number is left.
func (w *world) finish() {
	w.sync(len(w.groups))
	for range 200 {
		if len(w.pending) == 0 {
			break
		}
		w.act("report 0")
		w.sync(len(w.groups))
		for _, n := range w.state.Numbers() {
			if w.state.Allocation(n).Retire == nil {
				w.act(fmt.Sprintf("retire %d", n))
				w.sync(len(w.groups))
			}
		}
	}
	for _, n := range w.state.Numbers() {
		if a := w.state.Allocation(n); a.Retired == nil && a.Retire == nil {
			w.act(fmt.Sprintf("retire %d", n))
			w.sync(len(w.groups))
		}
	}
	for range 200 {
		if len(w.pending) == 0 {
			break
		}
		w.act("report 0")
		w.sync(len(w.groups))
	}
	w.check()
	for _, n := range w.state.Numbers() {
		if w.state.Allocation(n).Retired == nil {
			w.fail("number %d does not end: %v", n, w.session.runs[n])
		}
	}
	if len(w.containers) > 0 {
		w.fail("%d containers are left", len(w.containers)) // FR-15
	}
}

// I5, I6, I8, I10, I16, I17, I18, I20 with crashes at every point; no device node
// is ever in two containers.
func TestModelWithCrashes(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		w := newWorld(t, noDefect)
		for range rapid.IntRange(1, 40).Draw(rt, "steps") {
			actions := w.actions()
			for _, n := range w.state.Numbers() {
				if w.state.Allocation(n).Started != nil {
					actions = append(actions, fmt.Sprintf("channel %d", n))
				}
			}
			w.act(rapid.SampledFrom(actions).Draw(rt, "action"))
			if w.err != "" {
				rt.Fatal(w.err)
			}
		}
		w.checkFold()
		w.finish()
		if w.err != "" {
			rt.Fatal(w.err)
		}
	})
}

// Each broken variant is caught: the properties can fail.
func TestModelCatchesDefects(t *testing.T) {
	scripts := map[defect][]string{
		effectsEarly:   {"allocate 1", "crash"},
		repliesEarly:   {"burn 1", "crash"},
		frontierLost:   {"allocate 1", "sync", "crash", "allocate 1", "sync"},
		channelsLost:   {"allocate 1", "sync", "report 0", "sync", "report 0", "sync", "channel 1", "channel 1", "sync", "crash", "report 0", "channel 1", "sync"},
		leasesLost:     {"lease 1", "sync", "crash", "lease 2", "sync"},
		removalForgets: {"allocate 1", "sync", "retire 1", "sync", "report 0", "sync", "report 0", "sync"},
	}
	for d, actions := range scripts {
		w := newWorld(t, d)
		for _, a := range actions {
			w.act(a)
		}
		if w.err == "" {
			t.Errorf("defect %d went unnoticed", d)
		}
	}
}

// key identifies what decides the future: states, not times.
func (w *world) key() string {
	var b strings.Builder
	fmt.Fprintf(&b, "%d %d %d", w.state.Accepted, w.state.Released, len(w.groups)-w.durable)
	for _, n := range w.state.Numbers() {
		a := w.state.Allocation(n)
		fmt.Fprintf(&b, "|%d %t%t%t%t%t%t%t", n, a.Burn(), a.Created != nil, a.Started != nil, a.Retire != nil, a.Exited != nil, a.Retired != nil, a.Consumed)
		if a.Stuck != nil {
			b.WriteString(" stuck")
		}
		if r := w.session.runs[n]; r != nil {
			fmt.Fprintf(&b, " %s", r.phase)
		}
		if c := w.containers[w.nonceOf[n]]; c != nil {
			fmt.Fprintf(&b, " %t%t", c.running, c.ended)
		}
	}
	for _, e := range w.pending {
		fmt.Fprintf(&b, ";%T", e)
	}
	for _, h := range w.held {
		fmt.Fprintf(&b, ",%d", h.groups-w.durable)
		for _, e := range h.effects {
			fmt.Fprintf(&b, "%T", e)
		}
	}
	return b.String()
}

// clone is an independent copy of a world, for trying one more action. What a
// pointer of an allocation points to is never changed, only replaced.
func (w *world) clone() *world {
	c, simCopy, state, session := *w, *w.sim, *w.state, *w.session
	c.sim, simCopy.state, simCopy.session = &simCopy, &state, &session
	state.allocations = map[protocol.Number]*Allocation{}
	for n, a := range w.state.allocations {
		one := *a
		one.entries, one.receipts = slices.Clone(a.entries), slices.Clone(a.receipts)
		state.allocations[n] = &one
	}
	session.runs = map[protocol.Number]*run{}
	for n, r := range w.session.runs {
		one := *r
		session.runs[n] = &one
	}
	session.waiters = slices.Clone(w.session.waiters)
	simCopy.groups = slices.Clone(w.groups)
	c.containers = map[protocol.ID]*container{}
	for nonce, k := range w.containers {
		one := *k
		c.containers[nonce] = &one
	}
	c.held, c.pending = slices.Clone(w.held), slices.Clone(w.pending)
	c.asked, c.answered = maps.Clone(w.asked), maps.Clone(w.answered)
	c.acked, c.nonceOf, c.handed, c.handing = maps.Clone(w.acked), maps.Clone(w.nonceOf), maps.Clone(w.handed), maps.Clone(w.handing)
	return &c
}

// Every order of up to seven actions on two numbers, without repeating a
// situation: numbering, retirement, consumption and release.
func TestExhaustiveSmallScope(t *testing.T) {
	const mostNumbers = 2
	depth, least := 7, 2000
	if raceEnabled {
		depth, least = 5, 200 // one goroutine: there is nothing for the detector
	}
	type situation struct {
		world *world
		path  []string
	}
	seen := map[string]bool{}
	layer := []situation{{world: newWorld(t, noDefect)}}
	situations := 0
	for range depth {
		var next []situation
		for _, from := range layer {
			for _, action := range from.world.actions() {
				if strings.HasPrefix(action, "lease") {
					continue // as an allocation, with more to compare
				}
				if from.world.state.Accepted >= mostNumbers && (strings.HasPrefix(action, "allocate") || strings.HasPrefix(action, "burn")) {
					continue
				}
				w := from.world.clone()
				w.act(action)
				path := append(slices.Clone(from.path), action)
				if w.err != "" {
					t.Fatalf("%v: %s", path, w.err)
				}
				if key := w.key(); !seen[key] {
					seen[key] = true
					situations++
					next = append(next, situation{w, path})
				}
			}
		}
		layer = next
	}
	if situations < least {
		t.Errorf("only %d situations were seen", situations)
	}
	t.Logf("%d situations", situations)
}
