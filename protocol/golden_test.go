package protocol

import (
	"bytes"
	"reflect"
	"strings"
	"testing"

	"github.com/go-json-experiment/json/jsontext"
)

const (
	testGeneration = ID("00112233445566778899aabbccddeeff")
	testOwner      = ID("ffeeddccbbaa99887766554433221100")
	testNonce      = ID("0123456789abcdef0123456789abcdef")
	testBoot       = ID("fedcba9876543210fedcba9876543210")
	digestA        = Digest("sha256:aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa")
	digestB        = Digest("sha256:bbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbb")
	at             = Timestamp(1796046230776540) // 2026-11-30T13:43:50.776540Z
)

func ptr[T any](v T) *T { return &v }

var (
	testContainer = Container{
		ID: "q-" + string(testNonce), Nonce: testNonce, Created: at, ImageDigest: digestA, SpecDigest: digestB, Profile: "ocr", ProfileDigest: digestA,
	}
	testCounters = Counters{OOM: ptr[int64](1), OOMKill: ptr[int64](2), OOMGroupKill: ptr[int64](3), Max: ptr[int64](4), FailCnt: ptr[int64](5)}
	testOOM      = OOM{Verdict: VerdictKilled, Scope: ptr(ScopeContainer), Source: CountersFromV2, Counters: testCounters, OOMD: true}
	testPeaks    = Peaks{MemoryBytes: ptr[int64](67108864), PIDs: ptr[int64](7), CPUMicros: ptr[int64](1234567)}
	testExit     = Exit{Source: ExitFromEngine, Code: ptr[int64](137), Signal: ptr[int64](9), At: ptr(at)}
	testDevices  = []Device{{Name: "example.com/net=0", Nodes: []string{"/dev/null", "/dev/zero"}}}
	testLimits   = Limits{MemoryBytes: 67108864, SwapBytes: 1, CPUMillis: 1500, PIDs: 64}
	testRemoval  = Removal{Task: RemovedByUs, Container: RemovedByUs, Snapshot: RemovedByUs, Cgroup: RemovedByUs, LogSink: RemovedAbsent, Devices: RemovedAbsent}
)

const (
	containerJSON = `{"id":"q-0123456789abcdef0123456789abcdef","nonce":"0123456789abcdef0123456789abcdef","created":"2026-11-30T13:43:50.776540Z","image_digest":"sha256:aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa","spec_digest":"sha256:bbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbb","profile":"ocr","profile_digest":"sha256:aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa"}`
	countersJSON  = `{"oom":1,"oom_kill":2,"oom_group_kill":3,"max":4,"failcnt":5}`
	noCounters    = `{"oom":null,"oom_kill":null,"oom_group_kill":null,"max":null,"failcnt":null}`
	oomJSON       = `{"verdict":"killed","scope":"container","source":"cgroup_v2","counters":` + countersJSON + `,"oomd":true}`
	peaksJSON     = `{"memory_bytes":67108864,"pids":7,"cpu_usec":1234567}`
	exitJSON      = `{"source":"engine","code":137,"signal":9,"at":"2026-11-30T13:43:50.776540Z"}`
	limitsJSON    = `{"memory_bytes":67108864,"swap_bytes":1,"cpu_millis":1500,"pids":64}`
	devicesJSON   = `[{"name":"example.com/net=0","nodes":["/dev/null","/dev/zero"]}]`
	versionsJSON  = `{"agent":"1.2.3","protocol":[1]}`
	removalJSON   = `{"task":"removed","container":"removed","snapshot":"removed","cgroup":"removed","log_sink":"absent","devices":"absent"}`
)

// receiptRow is one kind with one body and the bytes of that body.
type receiptRow struct {
	kind   Kind
	number Number
	body   any
	want   string
}

var receiptRows = []receiptRow{
	{KindGenesis, 0, GenesisBody{HostKey: "quittance/x+1+k", BootID: testBoot, Versions: Versions{"1.2.3", []int{1}}},
		`{"host_key":"quittance/x+1+k","boot_id":"fedcba9876543210fedcba9876543210","versions":` + versionsJSON + `,"abandoned":null}`},
	{KindGenesis, 0, GenesisBody{HostKey: "k", BootID: testBoot, Versions: Versions{"", nil}, Abandoned: &AbandonedPrevious{testOwner, ptr(Index(9)), ptr(digestA), []ID{testNonce}}},
		`{"host_key":"k","boot_id":"fedcba9876543210fedcba9876543210","versions":{"agent":"","protocol":[]},"abandoned":{"generation":"ffeeddccbbaa99887766554433221100","index":9,"leaf_hash":"` + string(digestA) + `","also":["0123456789abcdef0123456789abcdef"]}}`},
	{KindGenesis, 0, GenesisBody{HostKey: "k", BootID: testBoot, Versions: Versions{"", nil}, Abandoned: &AbandonedPrevious{Generation: testOwner}},
		`{"host_key":"k","boot_id":"fedcba9876543210fedcba9876543210","versions":{"agent":"","protocol":[]},"abandoned":{"generation":"ffeeddccbbaa99887766554433221100","index":null,"leaf_hash":null,"also":[]}}`},
	{KindAgentStarted, 0, AgentStartedBody{testBoot, Versions{"1.2.3", []int{1}}},
		`{"boot_id":"fedcba9876543210fedcba9876543210","versions":` + versionsJSON + `}`},
	{KindAccepted, 7, AcceptedBody{testOwner, "job:1", ptr(testNonce), ptr("ocr"), ptr(digestA), ptr(digestB), &testLimits, testDevices, ptr(digestA)},
		`{"owner":"ffeeddccbbaa99887766554433221100","purpose":"job:1","nonce":"0123456789abcdef0123456789abcdef","profile":"ocr","profile_digest":"` + string(digestA) + `","image_digest":"` + string(digestB) + `","limits":` + limitsJSON + `,"devices":` + devicesJSON + `,"cdi_digest":"` + string(digestA) + `"}`},
	// A burn names nothing that a late request could match (I7).
	{KindAccepted, 7, AcceptedBody{Owner: testOwner, Purpose: "job:1"},
		`{"owner":"ffeeddccbbaa99887766554433221100","purpose":"job:1","nonce":null,"profile":null,"profile_digest":null,"image_digest":null,"limits":null,"devices":[],"cdi_digest":null}`},
	{KindStarted, 7, StartedBody{testContainer, 4321, 99, testBoot, CgroupRef{CgroupV1, "/quittance/x", 17}, Counters{FailCnt: ptr[int64](0)}, CreateTook{120, 30}},
		`{"container":` + containerJSON + `,"pid":4321,"start_ticks":99,"boot_id":"fedcba9876543210fedcba9876543210","cgroup":{"mode":"v1","path":"/quittance/x","inode":17},"baseline":{"oom":null,"oom_kill":null,"oom_group_kill":null,"max":null,"failcnt":0},"durations":{"create_ms":120,"start_ms":30}}`},
	{KindOOMObserved, 7, OOMObservedBody{testCounters, 60}, `{"counters":` + countersJSON + `,"suppressed":60}`},
	{KindExited, 7, ExitedBody{testExit, testOOM, testPeaks, LogSinkOK, ptr[int64](1500)},
		`{"exit":` + exitJSON + `,"oom":` + oomJSON + `,"peaks":` + peaksJSON + `,"log_sink":"ok","run_ms":1500}`},
	// Nothing was seen: nothing is claimed (I22, I23).
	{KindExited, 7, ExitedBody{Exit: Exit{Source: ExitFromReboot}, OOM: OOM{Verdict: VerdictUnknown, Source: CountersFromNone}, LogSink: LogSinkLost},
		`{"exit":{"source":"reboot","code":null,"signal":null,"at":null},"oom":{"verdict":"unknown","scope":null,"source":"none","counters":` + noCounters + `,"oomd":false},"peaks":{"memory_bytes":null,"pids":null,"cpu_usec":null},"log_sink":"lost","run_ms":null}`},
	{KindStuck, 7, StuckBody{"kill", "D", "nvidia_wait", "context deadline exceeded", 30000, 2},
		`{"step":"kill","process_state":"D","wait_channel":"nvidia_wait","detail":"context deadline exceeded","since_ms":30000,"suppressed":2}`},
	{KindUnstuck, 7, UnstuckBody{61000}, `{"stuck_ms":61000}`},
	{KindRetired, 7, RetiredBody{true, ReasonOOM, ptr("controller"), `<"note"> & ü`, &testContainer, &testExit, testOOM, testPeaks, LogSinkOK, RetireTook{10, 20}, testRemoval, ""},
		`{"dispatched":true,"reason":"oom","requested_by":"controller","note":"<\"note\"> & ü","container":` + containerJSON + `,"exit":` + exitJSON + `,"oom":` + oomJSON + `,"peaks":` + peaksJSON + `,"log_sink":"ok","durations":{"stop_ms":10,"remove_ms":20},"removal":` + removalJSON + `,"error":""}`},
	{KindRetired, 7, RetiredBody{Reason: ReasonSetupFailed, OOM: OOM{Verdict: VerdictNotKilled, Source: CountersFromV1}, LogSink: LogSinkOK, Removal: testRemoval, Error: "runc create: exit status 1"},
		`{"dispatched":false,"reason":"setup_failed","requested_by":null,"note":"","container":null,"exit":null,"oom":{"verdict":"not_killed","scope":null,"source":"cgroup_v1","counters":` + noCounters + `,"oomd":false},"peaks":{"memory_bytes":null,"pids":null,"cpu_usec":null},"log_sink":"ok","durations":{"stop_ms":0,"remove_ms":0},"removal":` + removalJSON + `,"error":"runc create: exit status 1"}`},
	{KindConsumed, 7, ConsumedBody{40, digestB}, `{"retired_index":40,"retired_leaf":"` + string(digestB) + `"}`},
	{KindReleased, 0, ReleasedBody{9, []Number{3, 5}}, `{"frontier":9,"except":[3,5]}`},
	{KindReleased, 0, ReleasedBody{9, nil}, `{"frontier":9,"except":[]}`},
	{KindDrained, 0, DrainBody{0}, `{"uid":0}`},
	{KindUndrained, 0, DrainBody{1000}, `{"uid":1000}`},
	{KindOwnerChanged, 0, OwnerChangedBody{ptr(testOwner), testGeneration, 0}, `{"from":"ffeeddccbbaa99887766554433221100","to":"00112233445566778899aabbccddeeff","uid":0}`},
	{KindOwnerChanged, 0, OwnerChangedBody{nil, testGeneration, 0}, `{"from":null,"to":"00112233445566778899aabbccddeeff","uid":0}`},
}

// leafOf is the expected leaf around a body, written out.
func leafOf(r receiptRow) string {
	number := "null"
	if r.number != 0 {
		number = r.number.String()
	}
	return `{"v":1,"generation":"00112233445566778899aabbccddeeff","index":42,"kind":"` + string(r.kind) + `","number":` + number + `,"at":"2026-11-30T13:43:50.776540Z","body":` + r.want + `}`
}

// Every receipt kind, byte for byte, forth and back.
func TestGoldenReceipts(t *testing.T) {
	seen := map[Kind]bool{}
	for _, r := range receiptRows {
		seen[r.kind] = true
		leaf := EncodeReceipt(testGeneration, 42, r.kind, r.number, at, r.body)
		if want := leafOf(r); string(leaf) != want {
			t.Errorf("%s:\n got %s\nwant %s", r.kind, leaf, want)
			continue
		}
		decoded, err := DecodeReceipt(leaf)
		if err != nil {
			t.Errorf("%s: %v", r.kind, err)
			continue
		}
		body := newBody(r.kind)
		if err := decodeBody(decoded.Body, body); err != nil {
			t.Errorf("%s: %v", r.kind, err)
			continue
		}
		if reflect.TypeOf(body).Elem() != reflect.TypeOf(r.body) || !bytes.Equal(AppendCanonical(nil, body), []byte(r.want)) {
			t.Errorf("%s: came back as %T %s", r.kind, body, AppendCanonical(nil, body))
		}
	}
	for _, k := range Kinds() {
		if !seen[k] {
			t.Errorf("%s has no golden bytes", k)
		}
	}
}

func TestKindsAreThoseWithABody(t *testing.T) {
	if len(Kinds()) != 14 {
		t.Errorf("%d kinds, want the 14 of the design", len(Kinds()))
	}
	for _, k := range Kinds() {
		if newBody(k) == nil {
			t.Errorf("%s has no body type", k)
		}
	}
}

// A reader keeps and shows kinds that it does not know.
func TestUnknownKindIsKept(t *testing.T) {
	leaf := leafOf(receiptRow{"novel", 7, nil, `{"anything":[1,"x"]}`})
	r, err := DecodeReceipt([]byte(leaf))
	if err != nil || r.Kind != "novel" || string(r.Body) != `{"anything":[1,"x"]}` {
		t.Errorf("%+v %v", r, err)
	}
}

// I34: one leaf has one form; every other form of the same content is refused.
func TestDecodeReceiptRefuses(t *testing.T) {
	good := leafOf(receiptRow{KindConsumed, 7, nil, `{"retired_index":40,"retired_leaf":"` + string(digestB) + `"}`})
	if _, err := DecodeReceipt([]byte(good)); err != nil {
		t.Fatal(err)
	}
	for _, tc := range []struct{ name, leaf, want string }{
		{"space", strings.Replace(good, `:42`, `: 42`, 1), "is not in canonical form"},
		{"newline", good + "\n", "is not in canonical form"},
		{"trailing", good + "x", "has bytes after its end"},
		{"order", strings.Replace(good, `"v":1,"generation":"00112233445566778899aabbccddeeff"`, `"generation":"00112233445566778899aabbccddeeff","v":1`, 1), "is not in canonical form"},
		{"escape", strings.Replace(good, `consumed`, `consume\u0064`, 1), "is not in canonical form"},
		{"exponent", strings.Replace(good, `:42`, `:4.2e1`, 1), "/index: has the wrong type or form"},
		{"fraction digits", strings.Replace(good, `.776540Z`, `.77654Z`, 1), "/at: has the wrong type or form"},
		{"offset", strings.Replace(good, `.776540Z`, `.776540+00:00`, 1), "/at: has the wrong type or form"},
		{"version", strings.Replace(good, `"v":1`, `"v":2`, 1), "/v: is version 2; this program reads version 1"},
		{"generation", strings.Replace(good, `0011`, `00AA`, 1), "is not a receipt: generation, index or number is out of form"},
		{"negative index", strings.Replace(good, `:42`, `:-1`, 1), "is not a receipt: generation, index or number is out of form"},
		{"number 0", strings.Replace(good, `"number":7`, `"number":0`, 1), "is not a receipt: generation, index or number is out of form"},
		{"number too large", strings.Replace(good, `"number":7`, `"number":9007199254740992`, 1), "is not a receipt: generation, index or number is out of form"},
		{"unknown member", strings.Replace(good, `"v":1`, `"v":1,"w":1`, 1), "/w: is not a member of this object in this version"},
		{"duplicate", strings.Replace(good, `"v":1`, `"v":1,"v":1`, 1), "/v: occurs twice"},
		{"body unknown member", strings.Replace(good, `{"retired_index"`, `{"x":1,"retired_index"`, 1), "/body/x: is not a member of this object in this version"},
		{"body member missing", strings.Replace(good, `"retired_index":40,`, ``, 1), "/body: is not in canonical form"},
		{"body null", good[:strings.Index(good, `"body"`)] + `"body":null}`, "/body: has the wrong type or form: null given"},
		{"member missing", strings.Replace(good, `"index":42,`, ``, 1), "is not in canonical form"},
		{"too long", good + strings.Repeat(" ", MaxReceiptBytes), "is longer than 16384 bytes"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			if _, err := DecodeReceipt([]byte(tc.leaf)); err == nil || !strings.HasPrefix(err.Error(), tc.want) {
				t.Errorf("got %v, want %s", err, tc.want)
			}
		})
	}
}

func TestBodyOf(t *testing.T) {
	r, err := DecodeReceipt([]byte(leafOf(receiptRow{KindUnstuck, 7, nil, `{"stuck_ms":5}`})))
	if err != nil {
		t.Fatal(err)
	}
	body, err := BodyOf[UnstuckBody](r)
	if err != nil || body.StuckMillis != 5 {
		t.Errorf("%+v %v", body, err)
	}
	if _, err := BodyOf[ConsumedBody](r); err == nil {
		t.Error("a body of another kind was accepted")
	}
}

// messageRow is a message with its bytes.
type messageRow struct {
	message any // a pointer
	want    string
}

const (
	entryJSON      = `{"index":42,"kind":"started","leaf_hash":"` + string(digestA) + `","at":"2026-11-30T13:43:50.776540Z"}`
	allocationJSON = `{"number":7,"state":"exited","stuck":{"step":"kill","process_state":"D","wait_channel":"w","detail":"d","since_ms":1,"suppressed":0},"owner":"ffeeddccbbaa99887766554433221100","purpose":"job:1","profile":"ocr","profile_digest":"` + string(digestA) + `","limits":` + limitsJSON + `,"devices":` + devicesJSON + `,"container":` + containerJSON + `,"reason":"requested","exit":` + exitJSON + `,"oom":` + oomJSON + `,"peaks":` + peaksJSON + `,"read_at":"2026-11-30T13:43:50.776540Z","log_sink":"ok","channels":3,"step":"removing","step_error":"busy","receipts":[` + entryJSON + `]}`
	burnJSON       = `{"number":8,"state":"retired","stuck":null,"owner":"ffeeddccbbaa99887766554433221100","purpose":"job:2","profile":null,"profile_digest":null,"limits":null,"devices":[],"container":null,"reason":null,"exit":null,"oom":null,"peaks":null,"read_at":null,"log_sink":null,"channels":0,"step":"","step_error":"","receipts":[]}`
)

var testAllocation = Allocation{
	Number: 7, State: StateExited, Stuck: &StuckBody{"kill", "D", "w", "d", 1, 0}, Owner: testOwner, Purpose: "job:1",
	Profile: ptr("ocr"), ProfileDigest: ptr(digestA), Limits: &testLimits, Devices: testDevices, Container: &testContainer, Reason: ptr(ReasonRequested),
	Exit: &testExit, OOM: &testOOM, Peaks: &testPeaks, ReadAt: ptr(at), LogSink: ptr(LogSinkOK), Channels: 3, Step: "removing", StepError: "busy",
	Receipts: []ReceiptEntry{{42, KindStarted, digestA, at}},
}

var messageRows = []messageRow{
	{
		&Host{
			Generation: testGeneration, HostKey: "k", Versions: Versions{"1.2.3", []int{1}}, BootID: testBoot, Engine: Engine{true, "1.6.20", ""}, CgroupMode: CgroupV2,
			Frontiers: Frontiers{9, 4}, Index: IndexRange{10, 42}, Checkpoint: "c\n", Slots: Slots{4, 3, 1, 100, 2}, Devices: testDevices, Draining: true,
			Owner: ptr(testOwner), OwnerHeard: ptr(at), WitnessRequired: true, Time: at,
		},
		`{"generation":"00112233445566778899aabbccddeeff","host_key":"k","versions":` + versionsJSON + `,"boot_id":"fedcba9876543210fedcba9876543210","engine":{"available":true,"version":"1.6.20","detail":""},"cgroup_mode":"v2","frontiers":{"accepted":9,"released":4},"index":{"first":10,"head":42},"checkpoint":"c\n","slots":{"max":4,"used":3,"stuck":1,"max_unreleased":100,"unreleased":2},"devices":` + devicesJSON + `,"draining":true,"owner":"ffeeddccbbaa99887766554433221100","owner_heard":"2026-11-30T13:43:50.776540Z","witness_required":true,"time":"2026-11-30T13:43:50.776540Z"}`,
	},
	{
		&ProfileList{[]ProfileInfo{{
			Name: "ocr", Digest: digestA, Available: true, Reason: "", ImageDigest: digestB, Ready: ReadyRule{false, "/health", 200, "/status", "READY", 60000, 100},
			Limits: testLimits, Devices: []string{"a.example/x"}, LeaseMillis: 240000, StopGraceMillis: 5000, MaxLifetimeMilli: 3600000, MaxChannels: 1024, Spares: 0,
		}}},
		`{"profiles":[{"name":"ocr","digest":"` + string(digestA) + `","available":true,"reason":"","image_digest":"` + string(digestB) + `","ready":{"connect":false,"http":"/health","status":200,"json_pointer":"/status","json_value":"READY","timeout_ms":60000,"interval_ms":100},"limits":` + limitsJSON + `,"devices":["a.example/x"],"lease_ms":240000,"stop_grace_ms":5000,"max_lifetime_ms":3600000,"max_channels":1024,"spares":0}]}`,
	},
	{&testAllocation, allocationJSON},
	{&AllocationList{[]Allocation{{Number: 8, State: StateRetired, Owner: testOwner, Purpose: "job:2"}}}, `{"allocations":[` + burnJSON + `]}`},
	{&AllocateRequest{"ocr", digestA, "job:1"}, `{"profile":"ocr","profile_digest":"` + string(digestA) + `","purpose":"job:1"}`},
	{&EffectAnswer{Done, jsontext.Value(`{"v":1}`), ptr(digestA), testAllocation}, `{"disposition":"done","receipt":{"v":1},"leaf_hash":"` + string(digestA) + `","allocation":` + allocationJSON + `}`},
	{&EffectAnswer{Done, nil, nil, testAllocation}, `{"disposition":"done","receipt":null,"leaf_hash":null,"allocation":` + allocationJSON + `}`},
	{&RetireRequest{"job:1", "done & gone"}, `{"purpose":"job:1","note":"done & gone"}`},
	{&ConsumeRequest{"job:1", digestA}, `{"purpose":"job:1","leaf_hash":"` + string(digestA) + `"}`},
	{&ChannelRequest{"job:1"}, `{"purpose":"job:1"}`},
	{&ReleaseRequest{9, []Number{3, 5}}, `{"frontier":9,"except":[3,5]}`},
	{&ReleaseAnswer{Done, 9, []Number{3}, nil}, `{"disposition":"done","frontier":9,"carried":[3],"receipt":null}`},
	{&WitnessRequest{nil, nil}, `{"checkpoint":null,"highest":null}`},
	{&WitnessRequest{ptr("c"), &Seen{42, digestA}}, `{"checkpoint":"c","highest":{"index":42,"leaf_hash":"` + string(digestA) + `"}}`},
	{&WitnessAnswer{Done, "c", []string{"x"}}, `{"disposition":"done","checkpoint":"c","consistency":["x"]}`},
	{&ConsistencyAnswer{5, "c", nil}, `{"from":5,"checkpoint":"c","consistency":[]}`},
	{&DrainAnswer{Done, true, 2, jsontext.Value(`{}`)}, `{"disposition":"done","draining":true,"active":2,"receipt":{}}`},
	{&OwnerRequest{testOwner}, `{"owner":"ffeeddccbbaa99887766554433221100"}`},
	{&OwnerAnswer{Done, testOwner, nil}, `{"disposition":"done","owner":"ffeeddccbbaa99887766554433221100","receipt":null}`},
	{&Log{7, []byte("hi\x00"), nil, 5, 8}, `{"number":7,"head":"aGkA","tail":"","dropped_bytes":5,"total_bytes":8}`},
	{&Health{"ok"}, `{"status":"ok"}`},
	{
		&Problem{
			Type: "about:blank", Title: "Conflict", Status: 409, Code: CodeSequenceGap, Disposition: Refused, Detail: "d", Next: "n", Field: "/f", Versions: []int{1},
			Generation: testGeneration, Expected: 5, Blocker: 6, FirstIndex: ptr(Index(0)), Head: ptr(Index(42)), Frontier: ptr(Number(0)), RetryAfterMillis: 100,
		},
		`{"type":"about:blank","title":"Conflict","status":409,"code":"sequence_gap","disposition":"refused","detail":"d","next":"n","field":"/f","versions":[1],"generation":"00112233445566778899aabbccddeeff","expected":5,"blocker":6,"first_index":0,"head":42,"frontier":0,"retry_after_ms":100}`,
	},
	{NewProblem(CodeReleased, "d", "n"), `{"type":"about:blank","title":"Gone","status":410,"code":"released","disposition":"refused","detail":"d","next":"n"}`},
}

// Every message, byte for byte, forth and back.
func TestGoldenMessages(t *testing.T) {
	for _, r := range messageRows {
		name := reflect.TypeOf(r.message).Elem().Name()
		if got := string(AppendCanonical(nil, r.message)); got != r.want {
			t.Errorf("%s:\n got %s\nwant %s", name, got, r.want)
			continue
		}
		back := reflect.New(reflect.TypeOf(r.message).Elem()).Interface()
		if err := DecodeStrict([]byte(r.want), MaxAnswerBytes, back); err != nil {
			t.Errorf("%s: %v", name, err)
			continue
		}
		if got := string(AppendCanonical(nil, back)); got != r.want {
			t.Errorf("%s came back as %s", name, got)
		}
	}
}
