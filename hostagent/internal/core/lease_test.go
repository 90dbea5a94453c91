package core

import (
	"slices"
	"strings"
	"testing"

	"github.com/quittance/quittance/protocol"
)

// granted are the names of the devices that an allocation holds.
func granted(t *testing.T, s *sim, n protocol.Number) []string {
	t.Helper()
	a := s.state.Allocation(n)
	if a == nil {
		t.Fatalf("number %d is not accepted: %+v", n, s.replies)
	}
	var names []string
	for _, d := range a.Accepted.Devices {
		names = append(names, strings.TrimPrefix(d.Name, testKind+"="))
	}
	return names
}

// end retires a number whose container was never made.
func (s *sim) end(n protocol.Number) {
	s.t.Helper()
	s.step(WorkCreateFailed{Number: n, Error: "no container"})
	s.step(WorkRemoved{Number: n, Removal: allRemoved})
}

func refusedDevice(t *testing.T, r *Reply, detail ...string) {
	t.Helper()
	if r == nil || r.Problem == nil || r.Problem.Code != protocol.CodeDeviceUnavailable || r.Problem.RetryAfterMillis == 0 {
		t.Fatalf("expected device_unavailable, got %+v", r)
	}
	for _, want := range detail {
		if !strings.Contains(r.Problem.Detail, want) {
			t.Errorf("%q is missing in %q", want, r.Problem.Detail)
		}
	}
}

// A lease is exclusive on nodes, under whatever names; a refusal consumes no
// number (I7) and says who holds what; only retired frees (I16).
func TestLeasesAreExclusive(t *testing.T) {
	s := newSim(t)
	s.witness()
	if r := s.allocate(1, "card", "a", testOwner); r.Problem != nil {
		t.Fatalf("%+v", r.Problem)
	}
	accepted := s.state.Allocation(1).Accepted
	if got := granted(t, s, 1); !slices.Equal(got, []string{"0", "UUID-0"}) || accepted.CDIDigest == nil || *accepted.CDIDigest != "sha256:"+hex64 {
		t.Errorf("got %v, digest %v", got, accepted.CDIDigest)
	}
	create := s.effects[0].(CreateEffect)
	if len(create.Devices) != 2 || create.CDIDigest == nil {
		t.Errorf("the creation gets %+v", create)
	}
	refusedDevice(t, s.allocate(2, "pair", "a", testOwner), "2 devices", "1 can be granted", "=0 is held by number 1", "=0:1 is held by number 1")
	if r := s.allocate(2, "card", "a", testOwner); r.Problem != nil {
		t.Fatalf("%+v", r.Problem)
	}
	if got := granted(t, s, 2); !slices.Equal(got, []string{"1"}) {
		t.Errorf("got %v", got)
	}
	refusedDevice(t, s.allocate(3, "card", "a", testOwner), "=1 is held by number 2")
	if s.state.Accepted != 2 {
		t.Errorf("a refusal consumed number %d", s.state.Accepted)
	}
	// A profile without devices does not care.
	if r := s.allocate(3, "group", "a", testOwner); r.Problem != nil {
		t.Fatalf("%+v", r.Problem)
	}
	s.end(3)
	if removal := s.state.Allocation(3).Retired.Removal; removal.Devices != protocol.RemovedAbsent {
		t.Errorf("removal without devices %+v", removal)
	}
	s.consume(3, "a")
	s.step(WorkCreateFailed{Number: 1, Error: "no container"})
	refusedDevice(t, s.allocate(4, "card", "a", testOwner), "=0 is held by number 1")
	s.step(WorkRemoved{Number: 1, Removal: allRemoved})
	if removal := s.state.Allocation(1).Retired.Removal; removal.Devices != protocol.RemovedByUs {
		t.Errorf("removal %+v", removal)
	}
	s.consume(1, "a")
	if r := s.allocate(4, "card", "a", testOwner); r.Problem != nil {
		t.Errorf("after the retirement: %+v", r.Problem)
	}
	s.checkFold()
}

// A card stays leased when its spec is written anew with other paths, or with
// other paths and one name fewer.
func TestRewrittenSpecFreesNoLease(t *testing.T) {
	s := newSim(t)
	s.witness()
	s.allocate(1, "card", "a", testOwner)
	card := s.offered[0]
	for _, names := range [][]string{card.Names, card.Names[1:]} {
		card.Names, card.Nodes = names, []string{"/dev/dri/by-path/card0"}
		s.offered = []Offered{card}
		refusedDevice(t, s.allocate(2, "card", "a", testOwner), names[0]+" is held by number 1")
	}
	s.end(1)
	s.consume(1, "a")
	if r := s.allocate(2, "card", "a", testOwner); r.Problem != nil {
		t.Errorf("after the retirement: %+v", r.Problem)
	}
	s.checkFold()
}

// Leases are what the ledger says: a new life of the agent and a reboot know
// them before anything is inspected.
func TestLeasesOutliveTheAgent(t *testing.T) {
	for _, boot := range []protocol.ID{firstBoot, secondBoot} {
		s := newSim(t)
		s.witness()
		s.allocate(1, "pair", "a", testOwner)
		if got := granted(t, s, 1); !slices.Equal(got, []string{"0", "UUID-0", "1"}) {
			t.Fatalf("got %v", got)
		}
		s.restart(boot)
		s.witness()
		refusedDevice(t, s.allocate(2, "card", "a", testOwner), "=0 is held by number 1", "=1 is held by number 1")
	}
}

// A stuck allocation's device is quarantined, over restart and release too
// (I19, FR-17).
func TestStuckQuarantines(t *testing.T) {
	s := newSim(t)
	s.witness()
	s.allocate(1, "card", "a", testOwner)
	s.step(WorkCreateFailed{Number: 1, Error: "no container"})
	s.step(WorkProgress{Number: 1, Step: "kill", Error: "still there", ProcessState: "D", SinceMillis: 60_000})
	s.step(Retire{ID: 90, Caller: controller(testOwner), Number: 2, Body: protocol.RetireRequest{Purpose: "b"}})
	s.consume(2, "b")
	if r := s.release(2, 1); r.Problem != nil {
		t.Fatalf("%+v", r.Problem)
	}
	s.offered = s.offered[:2]
	refusedDevice(t, s.allocate(3, "card", "a", testOwner), "=0 is quarantined: number 1 holds it and is stuck")
}

// A device that would not work is passed over, and named where none is left.
func TestFaultyDeviceIsPassedOver(t *testing.T) {
	s := newSim(t)
	s.witness()
	s.offered[0].Fault, s.offered[1].Fault = "device node /dev/card0: no such file", "likewise"
	s.allocate(1, "card", "a", testOwner)
	if got := granted(t, s, 1); !slices.Equal(got, []string{"1"}) {
		t.Errorf("got %v", got)
	}
	refusedDevice(t, s.allocate(2, "card", "a", testOwner), "device node /dev/card0: no such file", "=1 is held by number 1")
	s.offered = nil
	refusedDevice(t, s.allocate(2, "card", "a", testOwner), "the CDI specs define no other")
}

// Devices that share a node are not both granted to one allocation.
func TestOneAllocationGetsNoNodeTwice(t *testing.T) {
	s := newSim(t)
	s.witness()
	s.offered = s.offered[:2]
	refusedDevice(t, s.allocate(1, "pair", "a", testOwner), "1 can be granted")
}

// The fold refuses a ledger in which two live allocations hold one node: this
// program cannot have written it.
func TestFoldRefusesAnOverlap(t *testing.T) {
	s := newSim(t)
	s.witness()
	s.allocate(1, "card", "a", testOwner)
	state := s.fold()
	body := s.state.Allocation(1).Accepted
	if err := Apply(state, encodeIntent(intentProfile, 2, BootTime{BootID: firstBoot}, profileBody{Profile: s.state.Allocation(1).Profile.Canonical()})); err != nil {
		t.Fatal(err)
	}
	err := Apply(state, Entry{Receipt: true, Payload: protocol.EncodeReceipt(testGeneration, state.Next, protocol.KindAccepted, 2, s.now.Wall, body)})
	if err == nil || !strings.Contains(err.Error(), "number 2 gets the device node /dev/card0, which number 1 holds") {
		t.Errorf("got %v", err)
	}
}

// What is shown of the host's devices is what was last found, never null.
func TestHostShowsDevices(t *testing.T) {
	s := newSim(t)
	show := func() []protocol.Device {
		return s.ask(func(id RequestID) Event { return GetHost{ID: id} }).Body.(*HostView).Devices
	}
	if got := show(); got == nil || len(got) != 0 {
		t.Errorf("got %#v", got)
	}
	found := []protocol.Device{{Name: testKind + "=0", Nodes: []string{"/dev/card0"}}}
	s.step(ProfilesLoaded{Profiles: testProfiles(), Devices: found})
	if got := show(); len(got) != 1 || got[0].Name != found[0].Name {
		t.Errorf("got %#v", got)
	}
}

// A profile that only lacks devices is decided by the request's own look.
func TestLackingProfileIsDecidedAnew(t *testing.T) {
	s := newSim(t)
	s.witness()
	list := testProfiles()
	for i := range list {
		if list[i].Info.Name == "card" {
			list[i].Info.Available, list[i].Info.Reason, list[i].LacksDevices = false, "stale", true
		}
	}
	s.step(ProfilesLoaded{Profiles: list})
	offered := s.offered
	s.offered = nil
	refusedDevice(t, s.allocate(1, "card", "a", testOwner))
	s.offered = offered
	if r := s.allocate(1, "card", "a", testOwner); r.Problem != nil {
		t.Errorf("%+v", r.Problem)
	}
}
