package serve_test

import (
	"bytes"
	"context"
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/hashicorp/go-hclog"

	"github.com/quittance/quittance/hostagent/internal/channel"
	"github.com/quittance/quittance/hostagent/internal/core"
	"github.com/quittance/quittance/hostagent/internal/journal"
	"github.com/quittance/quittance/hostagent/internal/ledger"
	"github.com/quittance/quittance/hostagent/internal/process"
	"github.com/quittance/quittance/hostagent/internal/serve"
	"github.com/quittance/quittance/protocol"
	"github.com/quittance/quittance/protocol/tlog"
	"github.com/quittance/quittance/protocol/uds"
)

const (
	controllerUID = 1001
	operatorUID   = 1002
	owner         = "0000000000000000000000000000000a"
)

type clock struct{}

func (clock) Now() core.Now {
	return core.Now{BootMillis: process.Now().Milliseconds(), Wall: protocol.TimestampOf(time.Now())}
}

// idleWorkers carry nothing out: burns are all that the tests need.
type idleWorkers struct{ dialled error }

func (idleWorkers) Do(core.Effect) {}

func (w idleWorkers) Dial(context.Context, protocol.Number, string, string) (*os.File, error) {
	return nil, w.dialled
}

func (idleWorkers) Live(protocol.Number, *protocol.StartedBody) (protocol.OOM, protocol.Peaks, bool) {
	return protocol.OOM{}, protocol.Peaks{}, false
}

func (idleWorkers) Captured(n protocol.Number, _ protocol.ID) (protocol.Log, error) {
	return protocol.Log{Number: n}, nil
}

// agent is core, a real ledger and the handler, without sockets.
type agent struct {
	t       testing.TB
	dir     string
	signer  *tlog.Signer
	journal *journal.Journal
	scarce  *scarce // the same, for the core
	handler *serve.Handler
	log     *lockedBuffer
	end     func()
}

type lockedBuffer struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (l *lockedBuffer) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.Write(p)
}

func (l *lockedBuffer) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.String()
}

func newAgent(t testing.TB) *agent {
	t.Helper()
	a := &agent{t: t, dir: t.TempDir(), log: new(lockedBuffer)}
	var err error
	if a.signer, err = tlog.CreateKeyFile(filepath.Join(a.dir, "host.key"), protocol.NewID()); err != nil {
		t.Fatal(err)
	}
	genesis := core.Genesis(a.signer.Generation(), protocol.TimestampOf(time.Now()), protocol.GenesisBody{
		HostKey: a.signer.PublicKey(), BootID: protocol.NewID(), Versions: protocol.Versions{Agent: "test", Protocol: []int{1}},
	})
	if err := journal.Create(a.ledger(), a.options(), genesis); err != nil {
		t.Fatal(err)
	}
	a.start()
	t.Cleanup(func() { a.end() })
	return a
}

func (a *agent) ledger() string { return filepath.Join(a.dir, "ledger") }

func (a *agent) options() ledger.Options {
	return ledger.Options{Generation: a.signer.Generation(), Segment: ledger.MinSegment, Reserve: core.ReserveBytes(maxSlots, 2*maxSlots)}
}

const maxSlots = 4

// start begins a life of the agent.
func (a *agent) start() {
	a.t.Helper()
	j, state, err := journal.Open(a.ledger(), a.options(), a.signer)
	if err != nil {
		a.t.Fatal(err)
	}
	a.journal, a.scarce = j, &scarce{Journal: j}
	c := core.New(core.Config{
		State: state, Session: core.NewSession(protocol.NewID(), protocol.CgroupV2, core.Bounds{MaxSlots: maxSlots, MaxUnreleased: 4, StuckAfterMillis: 1000}),
		Journal: a.scarce, Workers: idleWorkers{}, Clock: clock{},
	})
	key, err := tlog.ParsePublicKey(a.signer.PublicKey())
	if err != nil {
		a.t.Fatal(err)
	}
	a.handler = serve.New(serve.Config{
		Core: c, Receipts: j.Receipts(), Workers: idleWorkers{dialled: channel.ErrNotConnectable}, Generation: a.signer.Generation(), HostKey: key,
		Versions: protocol.Versions{Agent: "test", Protocol: []int{1}}, ControllerUIDs: []int{controllerUID}, OperatorUIDs: []int{operatorUID},
		Now: clock{}.Now, NoSpace: func() bool { return false }, Devices: func(string) []core.Offered { return nil },
		Logger: hclog.New(&hclog.LoggerOptions{Output: a.log}),
	})
	ctx, stop := context.WithCancel(context.Background())
	over := make(chan error, 1)
	go func() { over <- c.Run(ctx, protocol.Versions{Agent: "test", Protocol: []int{1}}) }()
	c.Post(core.EngineListed{})
	a.end = func() {
		stop()
		if err := errors.Join(<-over, j.Close()); err != nil {
			a.t.Error(err)
		}
		a.end = func() {}
	}
}

// do sends one request as a user and returns its answer.
func (a *agent) do(uid int, method, path, body string, header ...string) *httptest.ResponseRecorder {
	a.t.Helper()
	var content io.Reader = http.NoBody
	if body != "" {
		content = strings.NewReader(body)
	}
	r := httptest.NewRequestWithContext(uds.WithPeer(a.t.Context(), uds.Peer{UID: uid, PID: 4}), method,
		strings.ReplaceAll(path, "{g}", string(a.signer.Generation())), content)
	for i := 0; i < len(header); i += 2 {
		r.Header.Add(header[i], header[i+1])
	}
	w := httptest.NewRecorder()
	a.handler.ServeHTTP(w, r)
	return w
}

// controller sends a controller's request and decodes the answer into v.
func (a *agent) controller(method, path, body string, status int, v any) {
	a.t.Helper()
	w := a.do(controllerUID, method, path, body, protocol.HeaderVersion, "1", protocol.HeaderOwner, owner)
	if w.Code != status {
		a.t.Fatalf("%s %s: %d %s", method, path, w.Code, w.Body)
	}
	if v != nil {
		if err := protocol.DecodeStrict(bytes.TrimSpace(w.Body.Bytes()), protocol.MaxAnswerBytes, v); err != nil {
			a.t.Fatalf("%s %s: %v\n%s", method, path, err, w.Body)
		}
	}
}

func (a *agent) host() protocol.Host {
	var h protocol.Host
	a.controller("GET", "/v1/host", "", 200, &h)
	return h
}

const nothingHeld = `{"checkpoint":null,"highest":null}`

// burnAndConsume uses a number up.
func (a *agent) burnAndConsume(n int) {
	a.t.Helper()
	path := "/v1/{g}/allocations/" + strconv.Itoa(n)
	var burnt protocol.EffectAnswer
	a.controller("PUT", path+"/retirement", `{"purpose":"p","note":""}`, 200, &burnt)
	a.controller("PUT", path+"/consumption", `{"purpose":"p","leaf_hash":"`+string(*burnt.LeafHash)+`"}`, 200, nil)
}

// I9: what the owner presents is compared with the log.
func TestWitness(t *testing.T) {
	a := newAgent(t)
	if !a.host().WitnessRequired {
		t.Error("no witness is required after a start")
	}
	var problem protocol.Problem
	a.controller("PUT", "/v1/{g}/allocations/1/retirement", `{"purpose":"p","note":""}`, 409, &problem)
	if problem.Code != protocol.CodeWitnessRequired {
		t.Errorf("a burn without witness: %s", problem.Code)
	}
	a.controller("PUT", "/v1/{g}/witness", nothingHeld, 200, nil)
	a.burnAndConsume(1)
	held := a.host()
	quoted := strconv.Quote(held.Checkpoint)

	// The log extends what was held, and proves it.
	a.burnAndConsume(2)
	var answer protocol.WitnessAnswer
	a.controller("PUT", "/v1/{g}/witness", `{"checkpoint":`+quoted+`,"highest":null}`, 200, &answer)
	key, err := tlog.ParsePublicKey(held.HostKey)
	if err != nil {
		t.Fatal(err)
	}
	older, err := tlog.ParseCheckpoint(held.Checkpoint, key)
	if err != nil {
		t.Fatal(err)
	}
	newer, err := tlog.ParseCheckpoint(answer.Checkpoint, key)
	if err != nil {
		t.Fatal(err)
	}
	hashes, err := tlog.ParseHashes(answer.Consistency)
	if err != nil {
		t.Fatal(err)
	}
	if err := tlog.VerifyConsistency(older.Tree, newer.Tree, hashes); err != nil || newer.Tree.Size <= older.Tree.Size {
		t.Errorf("consistency from %d to %d: %v", older.Tree.Size, newer.Tree.Size, err)
	}

	// A checkpoint that this key signed for more than there is, and one of
	// another history, stop new work until something better is presented.
	ahead, err := tlog.SignCheckpoint(a.signer, tlog.Tree{Size: newer.Tree.Size + 5})
	if err != nil {
		t.Fatal(err)
	}
	other, err := tlog.SignCheckpoint(a.signer, tlog.Tree{Size: newer.Tree.Size - 1})
	if err != nil {
		t.Fatal(err)
	}
	for what, body := range map[string]string{
		"ahead":         `{"checkpoint":` + strconv.Quote(ahead) + `,"highest":null}`,
		"other history": `{"checkpoint":` + strconv.Quote(other) + `,"highest":null}`,
		"higher leaf":   `{"checkpoint":null,"highest":{"index":99,"leaf_hash":"sha256:` + strings.Repeat("0", 64) + `"}}`,
		"other leaf":    `{"checkpoint":null,"highest":{"index":1,"leaf_hash":"sha256:` + strings.Repeat("0", 64) + `"}}`,
	} {
		a.controller("PUT", "/v1/{g}/witness", body, 409, &problem)
		if problem.Code != protocol.CodeLedgerBehind || problem.Head == nil {
			t.Errorf("%s: %+v", what, problem)
		}
		a.controller("PUT", "/v1/{g}/allocations/3/retirement", `{"purpose":"p","note":""}`, 409, &problem)
		if problem.Code != protocol.CodeLedgerBehind {
			t.Errorf("%s: new work is answered by %s", what, problem.Code)
		}
	}
	a.controller("PUT", "/v1/{g}/witness", `{"checkpoint":`+quoted+`,"highest":null}`, 200, nil)
	a.burnAndConsume(3)
}

// scarce is a journal whose prepared space is gone at the next looks.
type scarce struct {
	*journal.Journal
	looks atomic.Int64
	full  atomic.Bool
}

func (j *scarce) Space() core.Space {
	if j.looks.Add(-1) >= 0 {
		return core.Space{Full: j.full.Load()}
	}
	return j.Journal.Space()
}

// While the ledger prepares its next segment a request waits here; with a full
// disk, or for too long, it is refused, and nothing has changed (I36).
func TestSpaceThatIsPrepared(t *testing.T) {
	a := newAgent(t)
	a.controller("PUT", "/v1/{g}/witness", nothingHeld, 200, nil)
	a.burnAndConsume(1)
	for _, tc := range []struct {
		name  string
		looks int64
		full  bool
		want  int
	}{
		{"full", 3, true, 503},
		{"for too long", 1 << 40, false, 503},
		{"for a moment", 3, false, 200},
	} {
		a.scarce.full.Store(tc.full)
		a.scarce.looks.Store(tc.looks)
		before := a.journal.Receipts().Queued()
		path, body := "/v1/{g}/release", `{"frontier":1,"except":[]}`
		if tc.want == 200 {
			a.controller("PUT", path, body, 200, nil)
			continue
		}
		var problem protocol.Problem
		a.controller("PUT", path, body, tc.want, &problem)
		a.scarce.looks.Store(0)
		if problem.Code != protocol.CodeNoSpace || a.journal.Receipts().Queued() != before {
			t.Errorf("%s: %+v", tc.name, problem)
		}
	}
}

// I8, I21: what was released is an explicit answer, over restarts too; what
// remains is contiguous and still proved against a checkpoint from before.
func TestReleasedHistory(t *testing.T) {
	a := newAgent(t)
	a.controller("PUT", "/v1/{g}/witness", nothingHeld, 200, nil)
	a.burnAndConsume(1)
	a.burnAndConsume(2)
	held := a.host()
	a.controller("PUT", "/v1/{g}/witness", `{"checkpoint":`+strconv.Quote(held.Checkpoint)+`,"highest":null}`, 200, nil)
	a.controller("PUT", "/v1/{g}/release", `{"frontier":1,"except":[]}`, 200, nil)
	for life := range 2 {
		a.controller("PUT", "/v1/{g}/witness", `{"checkpoint":`+strconv.Quote(held.Checkpoint)+`,"highest":null}`, 200, nil)
		h := a.host()
		if h.Frontiers != (protocol.Frontiers{Accepted: 2, Released: 1}) || h.Index.First != held.Index.Head+1 {
			t.Errorf("life %d: %+v %+v", life, h.Frontiers, h.Index)
		}
		var problem protocol.Problem
		a.controller("GET", "/v1/{g}/receipts?after=1", "", 410, &problem)
		if problem.Code != protocol.CodePruned || *problem.FirstIndex != h.Index.First {
			t.Errorf("life %d: %+v", life, problem)
		}
		a.controller("GET", "/v1/{g}/allocations/1", "", 410, &problem)
		if problem.Code != protocol.CodeReleased || *problem.Frontier != 1 {
			t.Errorf("life %d: %+v", life, problem)
		}
		// Number 2 is above the frontier: its receipts lie below the first
		// index and are still proved.
		var allocation protocol.Allocation
		a.controller("GET", "/v1/{g}/allocations/2", "", 200, &allocation)
		for _, r := range allocation.Receipts {
			w := a.do(controllerUID, "GET", "/v1/{g}/receipts/"+strconv.Itoa(int(r.Index))+"/proof", "")
			if w.Code != 200 {
				t.Errorf("life %d: proof of %d: %d %s", life, r.Index, w.Code, w.Body)
			}
			w = a.do(controllerUID, "GET", "/v1/{g}/receipts/"+strconv.Itoa(int(r.Index)), "")
			leaf, ended := strings.CutSuffix(w.Body.String(), "\n")
			if w.Code != 200 || !ended || tlog.LeafDigest([]byte(leaf)) != r.LeafHash {
				t.Errorf("life %d: receipt %d: %d %s", life, r.Index, w.Code, w.Body)
			}
		}
		w := a.do(controllerUID, "GET", "/v1/{g}/receipts", "")
		if lines := strings.Split(strings.TrimSpace(w.Body.String()), "\n"); w.Code != 200 || len(lines) != int(h.Index.Head-h.Index.First)+1 || !strings.Contains(lines[0], `"kind":"released"`) {
			t.Errorf("life %d: receipts %d\n%s", life, w.Code, w.Body)
		}
		a.end()
		a.start()
	}
}

// A long poll of the receipts ends with the first new one, and with its time.
func TestReceiptsWait(t *testing.T) {
	a := newAgent(t)
	a.controller("PUT", "/v1/{g}/witness", nothingHeld, 200, nil)
	head := strconv.Itoa(int(a.host().Index.Head))
	if w := a.do(controllerUID, "GET", "/v1/{g}/receipts?after="+head+"&wait=20ms", ""); w.Code != 200 || w.Body.Len() != 0 {
		t.Errorf("nothing new: %d %s", w.Code, w.Body)
	}
	got := make(chan string, 1)
	go func() {
		got <- a.do(controllerUID, "GET", "/v1/{g}/receipts?after="+head+"&limit=1&wait=30s", "").Body.String()
	}()
	a.burnAndConsume(1)
	select {
	case body := <-got:
		if !strings.Contains(body, `"kind":"accepted"`) || strings.Count(body, "\n") != 1 {
			t.Errorf("got %q", body)
		}
	case <-time.After(20 * time.Second):
		t.Fatal("the poll did not end")
	}
}

// Strangers get 403 and the log one line, not one a request.
func TestStrangersAreLoggedOnce(t *testing.T) {
	a := newAgent(t)
	for range 20 {
		if w := a.do(4711, "GET", "/v1/host", ""); w.Code != 403 {
			t.Fatalf("got %d", w.Code)
		}
	}
	if n := strings.Count(a.log.String(), "peer_refused"); n != 1 {
		t.Errorf("%d lines:\n%s", n, a.log)
	}
}

// After its core is over the handler says that the effect is unknown (I11).
func TestStoppedAgentSaysUnknown(t *testing.T) {
	a := newAgent(t)
	a.end()
	var p protocol.Problem
	a.controller("PUT", "/v1/{g}/allocations/1/retirement", `{"purpose":"p","note":""}`, 503, &p)
	if p.Code != protocol.CodeUnavailable || p.Disposition != protocol.Unknown {
		t.Errorf("got %+v", p)
	}
}

// curl just works: a GET needs neither version nor owner.
func TestPlainGet(t *testing.T) {
	a := newAgent(t)
	for _, path := range []string{"/healthz", "/v1/host", "/v1/{g}/profiles", "/v1/{g}/allocations", "/v1/{g}/checkpoint", "/v1/{g}/consistency?from=0", "/v1/{g}/receipts"} {
		w := a.do(operatorUID, "GET", path, "")
		if w.Code != 200 || w.Header().Get(protocol.HeaderVersion) != "1" || w.Body.Len() == 0 {
			t.Errorf("%s: %d %s", path, w.Code, w.Body)
		}
	}
}
