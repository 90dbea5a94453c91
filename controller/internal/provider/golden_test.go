package provider

import (
	"bufio"
	"bytes"
	"context"
	"crypto/ed25519"
	"errors"
	"flag"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/rogpeppe/go-internal/txtar"
	xtlog "golang.org/x/mod/sumdb/tlog"

	"github.com/quittance/quittance/controller/api"
	"github.com/quittance/quittance/controller/internal/jobs"
	"github.com/quittance/quittance/controller/internal/signing"
	"github.com/quittance/quittance/protocol"
	"github.com/quittance/quittance/protocol/tlog"
)

var update = flag.Bool("update", false, "record the golden exchanges anew")

// The recorded exchanges of API version 1, and the receipt that one of them
// carries. They are the contract as it stands on the wire: a change of either
// side that changes a byte shows here.
const (
	goldenFile   = "testdata/golden/v1.txtar"
	goldenLeaf   = "testdata/golden/receipt.txtar"
	goldenOrigin = "http://jobs.test"
)

// tape records every exchange of a client, down to the bytes on the wire.
type tape struct {
	mu    sync.Mutex
	reels []*reel // guarded by mu
}

type reel struct{ sent, received bytes.Buffer }

// dial makes connections to address that are recorded, one exchange each.
func (t *tape) dial(address string) func(context.Context) (net.Conn, error) {
	return func(ctx context.Context) (net.Conn, error) {
		conn, err := new(net.Dialer).DialContext(ctx, "tcp", address)
		if err != nil {
			return nil, err
		}
		r := &reel{}
		t.mu.Lock()
		t.reels = append(t.reels, r)
		t.mu.Unlock()
		return recorded{conn, r}, nil
	}
}

type recorded struct {
	net.Conn
	reel *reel
}

func (r recorded) Write(p []byte) (int, error) {
	n, err := r.Conn.Write(p)
	r.reel.sent.Write(p[:n])
	return n, err
}

func (r recorded) Read(p []byte) (int, error) {
	n, err := r.Conn.Read(p)
	r.reel.received.Write(p[:n])
	return n, err
}

// normal replaces what differs from run to run by what does not, of the same
// length, each identity by its number in order of appearance.
type normal struct{ seen map[string]string }

var volatile = []struct {
	form *regexp.Regexp
	with string // "" for a number in order of appearance
}{
	{regexp.MustCompile(`\b[0-9a-f]{32}\b`), ""},
	{regexp.MustCompile(`(?:"bearer":"|Authorization: Bearer )[^"\r]+`), "bearer"},
	{regexp.MustCompile(`\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{6}Z`), "2026-01-01T00:00:00.000000Z"},
	{regexp.MustCompile(`(?m)^Date: [^\r]+`), "Date: Thu, 01 Jan 2026 00:00:00 GMT"},
	{regexp.MustCompile(`(?m)^X-Request-Id: [^\r]+`), "X-Request-Id: r-1"},
	{regexp.MustCompile(`(?m)^Signature: sig=:[^\r]+:`), "Signature: sig=:…:"},
	{regexp.MustCompile(`;created=\d+;expires=\d+;`), `;created=…;expires=…;`},
	{regexp.MustCompile(`;nonce="[^"]+"`), `;nonce="…"`},
}

func (n *normal) text(s string) string {
	for _, v := range volatile {
		s = v.form.ReplaceAllStringFunc(s, func(found string) string {
			switch v.with {
			case "":
				if n.seen[found] == "" {
					n.seen[found] = fmt.Sprintf("%032d", len(n.seen)+1)
				}
				return n.seen[found]
			case "bearer":
				name, value, _ := strings.Cut(found, "earer")
				head := value[:strings.IndexFunc(value, func(r rune) bool { return r != '"' && r != ':' && r != ' ' })]
				return name + "earer" + head + strings.Repeat("b", len(value)-len(head))
			}
			return v.with
		})
	}
	return s
}

// message is a request or an answer in the form of the file. The digest of a
// body is checked and then left out, as it differs with the body's identities.
func (n *normal) message(t *testing.T, name string, raw []byte) txtar.File {
	t.Helper()
	head, body, ok := strings.Cut(string(raw), "\r\n\r\n")
	if !ok {
		t.Fatalf("%s is no HTTP message: %q", name, raw)
	}
	var lines []string
	for line := range strings.SplitSeq(head, "\r\n") {
		if digest, ok := strings.CutPrefix(line, "Content-Digest: "); ok && strings.HasSuffix(name, "request") {
			if digest != signing.ContentDigest([]byte(body)) {
				t.Errorf("%s: the Content-Digest is not the body's", name)
			}
			line = "Content-Digest: …"
		}
		lines = append(lines, line+"\r")
	}
	text := strings.ReplaceAll(n.text(strings.Join(lines, "\n")+"\n\n"+body), "\r", "")
	return txtar.File{Name: name, Data: []byte(text + "\n")}
}

// archive is everything that was recorded.
func (t *tape) archive(test *testing.T, names []string) *txtar.Archive {
	test.Helper()
	t.mu.Lock()
	defer t.mu.Unlock()
	if len(names) != len(t.reels) {
		test.Fatalf("%d exchanges were made, %d have names", len(t.reels), len(names))
	}
	n := &normal{map[string]string{}}
	a := &txtar.Archive{Comment: []byte("The provider contract on the wire, API version 1. Recorded by go test -run TestGolden -update;\nidentities are numbered in order of appearance, times, nonces, signatures and bearers are left out.\n")}
	for i, r := range t.reels {
		a.Files = append(a.Files,
			n.message(test, names[i]+" request", r.sent.Bytes()),
			n.message(test, names[i]+" answer", r.received.Bytes()))
	}
	return a
}

// hostReceipt is a signed receipt with its proof, always the same one.
func hostReceipt(t *testing.T) (key string, receipt api.HostReceipt) {
	t.Helper()
	if _, err := os.Stat(goldenLeaf); *update && errors.Is(err, os.ErrNotExist) {
		recordReceipt(t)
	}
	a, err := txtar.ParseFile(goldenLeaf)
	if err != nil {
		t.Fatal(err)
	}
	text := map[string]string{}
	for _, f := range a.Files {
		text[f.Name] = string(f.Data)
	}
	return strings.TrimSuffix(text["key"], "\n"), api.HostReceipt{Leaf: []byte(strings.TrimSuffix(text["leaf"], "\n")), Proof: text["proof"]}
}

func recordReceipt(t *testing.T) {
	t.Helper()
	signer, _, err := tlog.NewSigner(protocol.NewID())
	if err != nil {
		t.Fatal(err)
	}
	leaf := protocol.EncodeReceipt(signer.Generation(), 0, protocol.KindGenesis, 0, protocol.TimestampOf(time.Unix(1_800_000_000, 0)),
		protocol.GenesisBody{HostKey: signer.PublicKey(), BootID: signer.Generation(), Versions: protocol.Versions{Agent: "test", Protocol: []int{1}}})
	checkpoint, err := tlog.SignCheckpoint(signer, tlog.Tree{Size: 1, Root: xtlog.RecordHash(leaf)})
	if err != nil {
		t.Fatal(err)
	}
	record(t, goldenLeaf, &txtar.Archive{Files: []txtar.File{
		{Name: "key", Data: []byte(signer.PublicKey() + "\n")}, {Name: "leaf", Data: append(leaf, '\n')},
		{Name: "proof", Data: []byte(tlog.Proof{Index: 0, Checkpoint: checkpoint}.Format())},
	}})
}

func record(t *testing.T, path string, a *txtar.Archive) {
	t.Helper()
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, txtar.Format(a), 0o644); err != nil {
		t.Fatal(err)
	}
}

// user does what somebody on the other side of the service does; against a
// recording it is done already.
type user struct{ text, upload func() }

// play makes every operation of the contract once, the refusals that matter
// too, and names the exchanges. What it asks for later comes out of earlier
// answers, so it is the same against a service and against a recording.
func play(t *testing.T, c *Client, u user, dir string) (names []string) {
	t.Helper()
	done := func(name string, err error) {
		t.Helper()
		names = append(names, fmt.Sprintf("%02d %s", len(names)+1, name))
		if err != nil {
			t.Fatalf("%s: %v", name, err)
		}
	}
	refusedAs := func(name string, err error, code api.Code) {
		t.Helper()
		done(name, nil)
		refusal(t, err, code)
	}
	offered := func(kind string, from api.InputSource, contentType string) api.HelloOffering {
		return api.HelloOffering{Kind: kind, Profile: kind, ProfileDigest: testDigest, Adapter: "http", Available: true,
			Input: api.HelloInput{From: from, ContentType: contentType, MaxBytes: 1000}}
	}
	key, receipt := hostReceipt(t)
	hello := api.Hello{
		Store: testStore, Seq: 5, Lanes: 4, Versions: api.HelloVersions{Controller: "test", API: []int{1}},
		Offerings: []api.HelloOffering{offered("echo", api.InputFromJob, "text/plain"), offered("page", api.InputFromUpload, "image/png")},
	}
	_, err := c.Hello(background(), hello)
	done("hello", err)
	_, err = c.Hello(background(), hello)
	done("hello, the same seq", err)
	other := hello
	other.Store = "00000000000000000000000000000002"
	_, err = c.Hello(background(), other)
	refusedAs("hello, another store", err, api.CodeIdentityInUse)

	u.text()
	feed, err := c.Feed(background(), FeedQuery{Kind: "echo", Limit: 10})
	done("jobs", err)
	job := feed.Jobs[0]
	_, err = c.Input(background(), job.Job, job.Input)
	done("input", err)
	start := api.Start{Key: "key-1", Job: job.Job, Kind: "echo", Store: testStore, Lane: 1, Input: job.Input}
	admitted, _, err := c.Start(background(), api.Encode(start), nil)
	done("start", err)
	_, _, err = c.Start(background(), api.Encode(start), nil)
	done("start, replayed", err)
	start.Lane = 2
	_, _, err = c.Start(background(), api.Encode(start), nil)
	refusedAs("start, other bytes", err, api.CodeKeyConflict)
	start.Key = "key-2"
	_, _, err = c.Start(background(), api.Encode(start), nil)
	refusedAs("start, a second attempt", err, api.CodeJobBusy)
	reference := admitted.Attempt
	_, err = c.Inventory(background(), 10, "")
	done("inventory", err)
	_, _, err = c.Attempt(background(), reference)
	done("attempt", err)
	condition := api.ConditionLoadingModel
	beat := api.Progress{Store: testStore, Seq: 9, Phase: api.PhasePreparing, Condition: &condition}
	_, err = c.Progress(background(), reference, beat)
	done("heartbeat", err)
	beat.Seq, beat.Phase, beat.Condition = 10, api.PhaseRunning, nil
	_, err = c.Progress(background(), reference, beat)
	done("heartbeat, running", err)
	complete := completeBody(reference, "result")
	_, _, err = c.Complete(background(), reference, complete)
	done("complete", err)
	_, _, err = c.Complete(background(), reference, complete)
	done("complete, replayed", err)
	_, _, err = c.Complete(background(), reference, completeBody(reference, "other"))
	refusedAs("complete, other bytes", err, api.CodeOutcomeConflict)
	_, _, err = c.Fail(background(), reference, api.Encode(api.Fail{Attempt: reference, Code: api.FailCancelled, Message: "m", Next: "n"}))
	refusedAs("fail, the opposite outcome", err, api.CodeOppositeOutcome)
	beat.Seq = 11
	_, err = c.Progress(background(), reference, beat)
	refusedAs("heartbeat, after the end", err, api.CodeAttemptOver)
	_, _, err = c.Receipts(background(), reference, api.HostReceipts{Attempt: reference, Key: key, Receipts: []api.HostReceipt{receipt}})
	done("receipts", err)

	u.upload()
	feed, err = c.Feed(background(), FeedQuery{Kind: "page", Limit: 10})
	done("jobs with uploads", err)
	job = feed.Jobs[0]
	admitted, _, err = c.Start(background(), api.Encode(api.Start{Key: "key-3", Job: job.Job, Kind: "page", Store: testStore, Input: job.Input}), nil)
	done("start with an upload", err)
	members, err := c.Uploads(background(), job.Job)
	done("uploads", err)
	grant, err := c.Grant(background(), job.Job, members.Uploads[0], admitted.Attempt)
	done("grant", err)
	file, err := c.Fetch(background(), grant, dir, NewBudget(1<<20, 1))
	done("transfer", err)
	if err := file.Discard(); err != nil {
		t.Fatal(err)
	}
	fail := api.Encode(api.Fail{Attempt: admitted.Attempt, Code: api.FailInterrupted, Message: "restarted é😀", Next: "n"})
	_, _, err = c.Fail(background(), admitted.Attempt, fail)
	done("fail, reopened", err)
	_, _, err = c.Fail(background(), admitted.Attempt, fail)
	done("fail, replayed", err)
	_, _, err = c.Attempt(background(), "att-ffffffffffffffffffffffffffffffff")
	refusedAs("attempt, unknown", err, api.CodeNotFound)
	return names
}

// golden is the recording.
func golden(t *testing.T) *txtar.Archive {
	t.Helper()
	a, err := txtar.ParseFile(goldenFile)
	if err != nil {
		t.Fatal(err)
	}
	return a
}

func compare(t *testing.T, got, want *txtar.Archive) {
	t.Helper()
	if len(got.Files) != len(want.Files) {
		t.Errorf("%d messages, the recording has %d", len(got.Files), len(want.Files))
	}
	for i := range min(len(got.Files), len(want.Files)) {
		if g, w := got.Files[i], want.Files[i]; g.Name != w.Name || !bytes.Equal(g.Data, w.Data) {
			t.Errorf("%s is\n%s\nrecorded as %s\n%s", g.Name, g.Data, w.Name, w.Data)
		}
	}
}

func goldenClient(t *testing.T, topology string, dial func(context.Context) (net.Conn, error)) *Client {
	t.Helper()
	c, err := New(Config{Origin: goldenOrigin, Topology: topology, Signer: testSigner(t), UserAgent: "quittance-test",
		Timeout: time.Minute, FetchTimeout: time.Minute, Dial: dial})
	if err != nil {
		t.Fatal(err)
	}
	return c
}

// TestGoldenService: the real service answers the recorded requests with the
// recorded answers.
func TestGoldenService(t *testing.T) {
	s, err := jobs.Open(t.Context(), jobs.Config{Directory: filepath.Join(t.TempDir(), "jobs"), PublicOrigin: goldenOrigin, Topology: "golden"})
	if err != nil {
		t.Fatal(err)
	}
	server := httptest.NewServer(s.Handler())
	t.Cleanup(func() {
		s.Interrupt()
		server.Close()
		if err := s.Close(); err != nil {
			t.Error(err)
		}
	})
	line, err := signing.AuthorizedLine("node-1", ed25519.NewKeyFromSeed(make([]byte, ed25519.SeedSize)).Public().(ed25519.PublicKey))
	if err != nil {
		t.Fatal(err)
	}
	if err := s.AddProviderKey(t.Context(), line); err != nil {
		t.Fatal(err)
	}
	token, err := s.CreateToken(t.Context(), jobs.TokenSpec{Workspace: "default", Principal: "alice", Role: "submitter"})
	if err != nil {
		t.Fatal(err)
	}
	person := &service{t: t, jobs: s, origin: server.URL, token: token}
	u := user{
		text: func() {
			text := "hello"
			person.create(api.CreateJob{Kind: "echo", Input: &api.CreateData{Text: &text}})
		},
		upload: func() {
			var upload api.Upload
			data := []byte("png?")
			person.user("POST", "/v1/uploads", map[string]string{"Content-Type": "image/png", api.HeaderContentDigest: signing.ContentDigest(data)}, data, &upload)
			person.create(api.CreateJob{Kind: "page", Uploads: []string{upload.Upload}})
		},
	}
	recording := &tape{}
	names := play(t, goldenClient(t, "golden", recording.dial(server.Listener.Addr().String())), u, privateDir(t))
	got := recording.archive(t, names)
	if *update {
		record(t, goldenFile, got)
	}
	compare(t, got, golden(t))
}

// TestGoldenClient: the client makes the recorded requests, and the recorded
// answers mean to it what they should.
func TestGoldenClient(t *testing.T) {
	want := golden(t)
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	var served sync.WaitGroup
	t.Cleanup(func() {
		if err := listener.Close(); err != nil {
			t.Error(err)
		}
		served.Wait()
	})
	served.Go(func() {
		for i := 1; i < len(want.Files); i += 2 {
			conn, err := listener.Accept()
			if err != nil {
				return
			}
			if err := answerFrom(conn, string(want.Files[i].Data)); err != nil {
				t.Errorf("%s: %v", want.Files[i].Name, err)
			}
		}
	})
	recording := &tape{}
	idle := user{text: func() {}, upload: func() {}}
	names := play(t, goldenClient(t, "golden", recording.dial(listener.Addr().String())), idle, privateDir(t))
	compare(t, recording.archive(t, names), want)
}

// answerFrom reads one request and says a recorded answer.
func answerFrom(conn net.Conn, text string) (err error) {
	defer func() { err = errors.Join(err, conn.Close()) }()
	request, err := http.ReadRequest(bufio.NewReader(conn))
	if err != nil {
		return err
	}
	if _, err := io.Copy(io.Discard, request.Body); err != nil {
		return err
	}
	head, body, _ := strings.Cut(strings.TrimSuffix(text, "\n"), "\n\n")
	if _, err := io.WriteString(conn, strings.ReplaceAll(head, "\n", "\r\n")+"\r\n\r\n"+body); err != nil {
		return err
	}
	_, err = io.Copy(io.Discard, conn) // the client closes
	return err
}
