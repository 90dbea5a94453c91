package core

import (
	"fmt"
	"reflect"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/quittance/quittance/profiles"
	"github.com/quittance/quittance/protocol"
)

const (
	testGeneration = protocol.ID("0123456789abcdef0123456789abcdef")
	testOwner      = protocol.ID("00000000000000000000000000000001")
	otherOwner     = protocol.ID("00000000000000000000000000000002")
	firstBoot      = protocol.ID("b0000000000000000000000000000001")
	secondBoot     = protocol.ID("b0000000000000000000000000000002")
)

func testProfile(name string, oom profiles.OOMPolicy) *profiles.Profile {
	return &profiles.Profile{
		Name: name, Image: "quittance.local/x@sha256:" + hex64, Args: []string{"/x"}, UID: 1, GID: 1,
		Resources: profiles.Resources{MemoryBytes: 64 << 20, PIDs: 8},
		Channel:   profiles.Channel{Network: "tcp", Address: "127.0.0.1:8080", Ready: protocol.ReadyRule{Connect: true}, MaxChannels: 2},
		Lifecycle: profiles.Lifecycle{StopSignal: "SIGTERM", StopGraceMillis: 1000, MaxLifetimeMillis: 3_600_000, LeaseMillis: 240_000, OOM: oom},
	}
}

const hex64 = "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855"

// sim is a core without goroutine, journal and workers: it keeps the ledger as
// groups of entries and hands out effects and replies as Core does.
type sim struct {
	t       testing.TB
	state   *State
	shadow  *State // folds the same entries, as a reader of the ledger would; nil: not compared
	session *Session
	stepper stepFunc // nil: Step
	now     Now
	bounds  Bounds
	boot    protocol.ID
	mode    protocol.CgroupMode

	offered []Offered // what every request finds on the host

	groups  [][]Entry // the ledger, one group for each Step that wrote
	effects []Effect  // of the last step
	replies []Reply   // of the last step
	nextID  RequestID
	nonces  int
}

func newSim(t testing.TB) *sim {
	s := &sim{
		t: t, now: Now{BootMillis: 1_000_000, Wall: 1_796_046_230_000_000}, boot: firstBoot, mode: protocol.CgroupV1,
		bounds: Bounds{MaxSlots: 3, MaxUnreleased: 3, StuckAfterMillis: 60_000}, offered: cards(),
	}
	s.groups = [][]Entry{{Genesis(testGeneration, s.now.Wall, protocol.GenesisBody{HostKey: "key", BootID: firstBoot})}}
	s.restart(firstBoot)
	return s
}

// restart begins a life of the agent from what is in the ledger.
func (s *sim) restart(boot protocol.ID) {
	s.t.Helper()
	s.state = s.fold()
	if s.shadow != nil {
		s.shadow = s.fold()
	}
	s.boot = boot
	s.session = NewSession(boot, s.mode, s.bounds)
	s.step(Started{Versions: protocol.Versions{Agent: "test", Protocol: []int{1}}})
	// What the agent itself does right after its start.
	effects := s.effects
	s.step(EngineListed{})
	s.step(EngineChanged{Engine: protocol.Engine{Available: true}})
	s.step(ProfilesLoaded{Profiles: testProfiles()})
	s.effects = effects
}

func testProfiles() []Loaded {
	var list []Loaded
	card, pair := testProfile("card", profiles.OOMKillGroup), testProfile("pair", profiles.OOMKillGroup)
	card.Resources.Devices = []profiles.DeviceRequest{{Kind: testKind, Count: 1}}
	pair.Resources.Devices = []profiles.DeviceRequest{{Kind: testKind, Count: 2}}
	for _, p := range []*profiles.Profile{
		testProfile("group", profiles.OOMKillGroup), testProfile("observe", profiles.OOMObserve), card, pair,
	} {
		list = append(list, Loaded{Profile: p, Info: protocol.ProfileInfo{
			Name: p.Name, Digest: p.Digest(), Available: true, ImageDigest: "sha256:" + hex64, Limits: p.Limits(),
		}})
	}
	broken := Loaded{Info: protocol.ProfileInfo{Name: "broken", Reason: "the file cannot be read"}}
	return append(list, broken)
}

const testKind = "quittance.test/card"

// cards are two devices, the first of which has a second name and shares a node
// with a third one.
func cards() []Offered {
	name := func(n string) string { return testKind + "=" + n }
	return []Offered{
		{Kind: testKind, Names: []string{name("0"), name("UUID-0")}, Nodes: []string{"/dev/card0", "/dev/render0"}, Spec: "sha256:" + hex64},
		{Kind: testKind, Names: []string{name("0:1")}, Nodes: []string{"/dev/card0", "/dev/slice1"}, Spec: "sha256:" + hex64},
		{Kind: testKind, Names: []string{name("1")}, Nodes: []string{"/dev/card1"}, Spec: "sha256:" + hex64},
	}
}

func digestOf(profile string) protocol.Digest {
	for _, l := range testProfiles() {
		if l.Info.Name == profile && l.Info.Digest != "" {
			return l.Info.Digest
		}
	}
	return "sha256:" + hex64
}

// fold is the state of the ledger, read as a start reads it.
func (s *sim) fold() *State {
	s.t.Helper()
	state := NewState()
	for _, group := range s.groups {
		for _, e := range group {
			if err := Apply(state, e); err != nil {
				s.t.Fatalf("fold: %v\n%s", err, e.Payload)
			}
		}
	}
	return state
}

var stateOptions = cmp.AllowUnexported(State{}, Allocation{}, pendingProfile{}, Written{})

// step runs one event; the state must be the fold of the ledger, from a base too
// (I15).
func (s *sim) step(e Event) {
	s.t.Helper()
	step := Step
	if s.stepper != nil {
		step = s.stepper
	}
	out := step(s.state, s.session, s.now, e)
	if len(out.Entries) > 0 {
		s.groups = append(s.groups, out.Entries)
	}
	if s.shadow != nil {
		s.compareShadow(out.Entries)
	}
	s.effects, s.replies = out.Effects, out.Replies
	if out.Base != nil {
		s.checkBase(out)
	}
}

// compareShadow applies entries alone and compares the states.
func (s *sim) compareShadow(entries []Entry) {
	s.t.Helper()
	for _, e := range entries {
		if err := Apply(s.shadow, e); err != nil {
			s.t.Fatal(err)
		}
	}
	if !reflect.DeepEqual(s.shadow, s.state) {
		s.t.Fatalf("the state is not the fold of the ledger (-fold +state):\n%s", cmp.Diff(s.shadow, s.state, stateOptions))
	}
}

func (s *sim) checkFold() {
	s.t.Helper()
	if folded := s.fold(); !reflect.DeepEqual(folded, s.state) {
		s.t.Fatalf("the state is not the fold of the ledger (-fold +state):\n%s", cmp.Diff(folded, s.state, stateOptions))
	}
}

// checkBase opens a release's base and folds what follows it.
func (s *sim) checkBase(out Output) {
	s.t.Helper()
	state, tree, err := OpenBase(out.Base.Encode([]byte("tree")))
	if err != nil {
		s.t.Fatalf("base: %v", err)
	}
	if string(tree) != "tree" {
		s.t.Fatalf("base: tree %q", tree)
	}
	for _, e := range out.Entries {
		if err := Apply(state, e); err != nil {
			s.t.Fatalf("after the base: %v", err)
		}
	}
	if !reflect.DeepEqual(state, s.state) {
		s.t.Fatalf("the base is not the state (-base +state):\n%s", cmp.Diff(state, s.state, stateOptions))
	}
}

// ask steps a request and returns its reply, nil while it waits.
func (s *sim) ask(make func(id RequestID) Event) *Reply {
	s.t.Helper()
	s.nextID++
	id := s.nextID
	s.step(make(id))
	for i := range s.replies {
		if s.replies[i].ID == id {
			return &s.replies[i]
		}
	}
	return nil
}

func controller(owner protocol.ID) Caller { return Caller{Owner: owner, UID: 7} }

func (s *sim) allocate(n protocol.Number, profile, purpose string, owner protocol.ID) *Reply {
	s.nonces++
	nonce := protocol.ID(fmt.Sprintf("%032x", s.nonces))
	return s.ask(func(id RequestID) Event {
		return Allocate{ID: id, Caller: controller(owner), Number: n, Nonce: nonce, Body: protocol.AllocateRequest{
			Profile: profile, ProfileDigest: digestOf(profile), Purpose: purpose,
		}, Devices: s.offered}
	})
}

func (s *sim) consume(n protocol.Number, purpose string) *Reply {
	leaf := protocol.Digest("sha256:" + hex64)
	if a := s.state.Allocation(n); a != nil {
		if w := a.Receipt(protocol.KindRetired); w != nil {
			leaf = w.Entry.LeafHash
		}
	}
	return s.ask(func(id RequestID) Event {
		return Consume{ID: id, Caller: controller(testOwner), Number: n, Body: protocol.ConsumeRequest{Purpose: purpose, LeafHash: leaf}}
	})
}

func (s *sim) release(frontier protocol.Number, except ...protocol.Number) *Reply {
	return s.ask(func(id RequestID) Event {
		return Release{ID: id, Caller: controller(testOwner), Body: protocol.ReleaseRequest{Frontier: frontier, Except: slices.Clone(except)}}
	})
}

func (s *sim) witness() *Reply {
	return s.ask(func(id RequestID) Event { return Witness{ID: id, Caller: controller(testOwner)} })
}

func createdBody(n protocol.Number, nonce protocol.ID, boot protocol.ID) CreatedBody {
	zero := int64(0)
	return CreatedBody{
		Container: protocol.Container{
			ID: "q-" + string(nonce), Nonce: nonce, Created: 1_796_046_230_000_001, ImageDigest: "sha256:" + hex64,
			SpecDigest: "sha256:" + hex64, Profile: "group", ProfileDigest: digestOf("group"),
		},
		PID: 100 + int64(n), StartTicks: 100_000, BootID: boot,
		Cgroup:   protocol.CgroupRef{Mode: protocol.CgroupV1, Path: "/quittance/" + string(nonce), Inode: 40 + int64(n)},
		Baseline: protocol.Counters{OOMKill: &zero}, CreateMillis: 150,
	}
}

func exitFacts(code int64, verdict protocol.Verdict) protocol.ExitedBody {
	at := protocol.Timestamp(1_796_046_231_000_000)
	b := protocol.ExitedBody{
		Exit: protocol.Exit{Source: protocol.ExitFromEngine, Code: &code, At: &at},
		OOM:  protocol.OOM{Verdict: verdict, Source: protocol.CountersFromV1}, LogSink: protocol.LogSinkOK,
	}
	if verdict == protocol.VerdictKilled {
		scope := protocol.ScopeContainer
		b.OOM.Scope = &scope
	}
	return b
}

var allRemoved = protocol.Removal{
	Task: protocol.RemovedByUs, Container: protocol.RemovedByUs, Snapshot: protocol.RemovedByUs,
	Cgroup: protocol.RemovedByUs, LogSink: protocol.RemovedByUs, Devices: protocol.RemovedAbsent,
}
