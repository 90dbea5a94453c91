package provider

import (
	"bytes"
	"encoding/base64"
	"fmt"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/quittance/quittance/controller/api"
	"github.com/quittance/quittance/controller/internal/attempt"
	"github.com/quittance/quittance/protocol"
)

func answers(v any) func(*peerConn) {
	return says(jsonAnswer("200 OK", api.ContentJSON, string(api.Encode(v))))
}

// I29: a receipt confirms only the request that it repeats, in every member
// that identifies it.
func TestReceiptsMatchExactly(t *testing.T) {
	data := []byte("result")
	complete := api.Encode(api.Complete{Attempt: testReference, Schema: "text/plain", Length: int64(len(data)),
		SHA256: protocol.DigestOf(data), Data: data})
	receipt := api.CompleteReceipt{Attempt: testReference, Schema: "text/plain", Length: int64(len(data)),
		SHA256: protocol.DigestOf(data), CommittedAt: 1}
	for name, row := range map[string]struct {
		change func(*api.CompleteReceipt)
		ok     bool
	}{
		"equal":       {func(*api.CompleteReceipt) {}, true},
		"replayed":    {func(r *api.CompleteReceipt) { r.Replayed = true; r.CommittedAt = 77 }, true},
		"attempt":     {func(r *api.CompleteReceipt) { r.Attempt = testReference[:len(testReference)-1] + "2" }, false},
		"schema":      {func(r *api.CompleteReceipt) { r.Schema = "text/html" }, false},
		"schema case": {func(r *api.CompleteReceipt) { r.Schema = "text/Plain" }, false},
		"length":      {func(r *api.CompleteReceipt) { r.Length++ }, false},
		"sha256":      {func(r *api.CompleteReceipt) { r.SHA256 = testDigest }, false},
	} {
		t.Run("COMPLETE "+name, func(t *testing.T) {
			r := receipt
			row.change(&r)
			p := newPeer(t, false, answers(r))
			got, reply, err := p.client().Complete(background(), testReference, complete)
			checkReceipt(t, row.ok, got == r, reply, err)
			conns := p.allClosed(1)
			if !bytes.Equal(conns[0].bodies[0], complete) || conns[0].requests[0].Method != "POST" ||
				conns[0].requests[0].RequestURI != "/provider/v1/attempts/"+testReference+"/complete" {
				t.Error("another request was sent")
			}
		})
	}
	message := strings.Repeat("é😀", 512)
	fail := api.Encode(api.Fail{Attempt: testReference, Code: api.FailWorkerOOM, Message: message, Next: "n"})
	failed := api.FailReceipt{Attempt: testReference, Code: api.FailWorkerOOM, Message: message, CommittedAt: 1}
	for name, row := range map[string]struct {
		change func(*api.FailReceipt)
		ok     bool
	}{
		"equal":      {func(*api.FailReceipt) {}, true},
		"reopened":   {func(r *api.FailReceipt) { r.Reopened = true }, true},
		"attempt":    {func(r *api.FailReceipt) { r.Attempt = testReference[:len(testReference)-1] + "2" }, false},
		"code":       {func(r *api.FailReceipt) { r.Code = api.FailWorkerLost }, false},
		"normalised": {func(r *api.FailReceipt) { r.Message = strings.ReplaceAll(message, "é", "e\u0301") }, false},
		"shortened":  {func(r *api.FailReceipt) { r.Message = message[:len(message)-4] }, false},
	} {
		t.Run("FAIL "+name, func(t *testing.T) {
			r := failed
			row.change(&r)
			p := newPeer(t, false, answers(r))
			got, reply, err := p.client().Fail(background(), testReference, fail)
			checkReceipt(t, row.ok, got == r, reply, err)
			p.allClosed(1)
		})
	}
}

func checkReceipt(t *testing.T, ok, same bool, reply attempt.Reply, err error) {
	t.Helper()
	if ok {
		if err != nil || !same || reply.Status != 200 || len(reply.Body) == 0 || reply.RequestID != "r-1" {
			t.Errorf("got %v, reply %+v", err, reply)
		}
		return
	}
	f := failure(t, err)
	if f.Class != ClassMismatch || f.Disposition != protocol.Unknown || f.Repeat || len(f.Reply.Body) == 0 {
		t.Errorf("got %v, repeat %v", f, f.Repeat)
	}
	if _, _, held := RefusedForGood(err); held {
		t.Error("a mismatch was taken for a refusal")
	}
}

// What each refusal of a terminal request means for the record (I28).
func TestRefusedForGood(t *testing.T) {
	fail := api.Encode(api.Fail{Attempt: testReference, Code: api.FailCancelled})
	want := map[api.Code]attempt.HoldReason{
		api.CodeAttemptExpired: attempt.HoldExpired, api.CodeAttemptOver: attempt.HoldExpired,
		api.CodeOppositeOutcome: attempt.HoldOppositeOutcome, api.CodeOutcomeConflict: attempt.HoldMismatch,
		api.CodeNotFound: attempt.HoldNotVisible,
	}
	for _, code := range api.Codes() {
		p := newPeer(t, false, says(problem(code)))
		_, _, err := p.client().Fail(background(), testReference, fail)
		reason, f, ok := RefusedForGood(err)
		if reason != want[code] || ok != (want[code] != "") || ok && f.Code != code {
			t.Errorf("%s: %q, %v", code, reason, ok)
		}
		if ok && Repeatable(err) {
			t.Errorf("%s may be repeated", code)
		}
	}
}

// A START refused because the job is not to be had is ordinary; a key conflict
// or a refused signature is not.
func TestStartRefused(t *testing.T) {
	ordinary := map[api.Code]bool{api.CodeJobNotOpen: true, api.CodeJobBusy: true, api.CodeAttemptLimit: true,
		api.CodeProviderLimit: true, api.CodeKindMismatch: true, api.CodeInputMismatch: true, api.CodeNotFound: true}
	for _, code := range api.Codes() {
		p := newPeer(t, false, says(problem(code)))
		_, _, err := p.client().Start(background(), startBody(), nil)
		if _, ok := StartRefused(err); ok != ordinary[code] {
			t.Errorf("%s: %v", code, ok)
		}
	}
}

// TestAnswersToOtherRequests: each read refuses an answer that is not one to
// its own request.
func TestAnswersToOtherRequests(t *testing.T) {
	cursor := "c"
	identity := api.Identity{Schema: "text/plain", Length: 3, SHA256: testDigest}
	job := api.FeedJob{Job: testJob, Kind: "test.v1", Input: identity, Created: 1}
	feed := api.Feed{Kind: "test.v1", Limit: 2, Jobs: []api.FeedJob{job}}
	view := api.Attempt{Attempt: testReference, Key: "k", Job: testJob, Kind: "test.v1", State: api.AttemptInProgress, JobState: api.JobOpen}
	input := api.Input{Job: testJob, Schema: "text/plain", Length: 3, SHA256: testDigest, Data: []byte("abc")}
	hello := api.Hello{Store: testStore, Seq: 5, Lanes: 1, Versions: api.HelloVersions{API: []int{1}}}
	acknowledged := api.HelloAnswer{Provider: "p", Store: testStore, Seq: 5, LeaseMillis: 1, HelloTTL: 1}
	progress := api.Progress{Store: testStore, Seq: 5, Phase: api.PhaseRunning}
	member := api.UploadMember{Upload: testUpload, ContentType: "image/png", Length: 3, SHA256: testDigest}
	host := api.HostReceipts{Attempt: testReference, Key: "k", Receipts: []api.HostReceipt{{Leaf: []byte("x"), Proof: "p"}}}
	query := FeedQuery{Kind: "test.v1", Limit: 2, Cursor: cursor}
	edit := func(v any, old, new string) string {
		text := string(api.Encode(v))
		if !strings.Contains(text, old) {
			t.Fatalf("no %s in %s", old, text)
		}
		return strings.Replace(text, old, new, 1)
	}
	type send func(*Client) error
	readFeed := func(c *Client) error { _, err := c.Feed(background(), query); return err }
	readInput := func(c *Client) error { _, err := c.Input(background(), testJob, identity); return err }
	readAttempt := func(c *Client) error { _, _, err := c.Attempt(background(), testReference); return err }
	readInventory := func(c *Client) error { _, err := c.Inventory(background(), 1, cursor); return err }
	readUploads := func(c *Client) error { _, err := c.Uploads(background(), testJob); return err }
	sayHello := func(c *Client) error { _, err := c.Hello(background(), hello); return err }
	beat := func(c *Client) error { _, err := c.Progress(background(), testReference, progress); return err }
	attach := func(c *Client) error { _, _, err := c.Receipts(background(), testReference, host); return err }
	inventory := api.Inventory{State: api.AttemptInProgress, Limit: 1, Attempts: []api.Attempt{view}}
	stands := api.ProgressAnswer{Attempt: testReference, Seq: 5, Phase: api.PhaseRunning, LeaseMillis: 1}
	counted := api.HostReceiptsAnswer{Attempt: testReference, Added: 1, Total: 1}
	uploads := api.Uploads{Job: testJob, Uploads: []api.UploadMember{member}}
	for name, row := range map[string]struct {
		send send
		body string
		ok   bool
	}{
		"feed":                     {readFeed, string(api.Encode(feed)), true},
		"feed of another kind":     {readFeed, edit(feed, "test.v1", "test.v2"), false},
		"feed with attempted":      {readFeed, edit(feed, "false", "true"), false},
		"feed of another limit":    {readFeed, edit(feed, `"limit":2`, `"limit":3`), false},
		"feed over its limit":      {readFeed, string(api.Encode(api.Feed{Kind: "test.v1", Limit: 2, Jobs: []api.FeedJob{job, job, job}})), false},
		"feed with a job twice":    {readFeed, string(api.Encode(api.Feed{Kind: "test.v1", Limit: 2, Jobs: []api.FeedJob{job, job}})), false},
		"feed that leads nowhere":  {readFeed, string(api.Encode(api.Feed{Kind: "test.v1", Limit: 2, NextCursor: &cursor})), false},
		"feed with a foreign job":  {readFeed, edit(feed, `"kind":"test.v1","input"`, `"kind":"test.v2","input"`), false},
		"input":                    {readInput, string(api.Encode(input)), true},
		"input of another job":     {readInput, edit(input, "0001", "0002"), false},
		"input of other bytes":     {readInput, edit(input, base64.StdEncoding.EncodeToString([]byte("abc")), base64.StdEncoding.EncodeToString([]byte("abd"))), false},
		"input of another length":  {readInput, edit(input, `"length":3`, `"length":4`), false},
		"input of another schema":  {readInput, edit(input, "text/plain", "text/html"), false},
		"attempt":                  {readAttempt, string(api.Encode(view)), true},
		"another attempt":          {readAttempt, edit(view, "0001", "0002"), false},
		"attempt in no state":      {readAttempt, edit(view, "in_progress", "dreaming"), false},
		"attempt of no job state":  {readAttempt, edit(view, `"open"`, `"ajar"`), false},
		"inventory":                {readInventory, string(api.Encode(inventory)), true},
		"inventory of the ended":   {readInventory, edit(inventory, "in_progress", "completed"), false},
		"inventory over limit":     {readInventory, string(api.Encode(api.Inventory{State: api.AttemptInProgress, Limit: 1, Attempts: []api.Attempt{view, view}})), false},
		"inventory of other limit": {readInventory, edit(inventory, `"limit":1`, `"limit":9`), false},
		"inventory, same cursor":   {readInventory, string(api.Encode(api.Inventory{State: api.AttemptInProgress, Limit: 1, NextCursor: &cursor})), false},
		"uploads":                  {readUploads, string(api.Encode(uploads)), true},
		"uploads of another job":   {readUploads, edit(uploads, "job-00000000000000000000000000000001", "job-00000000000000000000000000000002"), false},
		"upload twice":             {readUploads, string(api.Encode(api.Uploads{Job: testJob, Uploads: []api.UploadMember{member, member}})), false},
		"upload too long":          {readUploads, edit(uploads, `"length":3`, `"length":33554433`), false},
		"hello":                    {sayHello, string(api.Encode(acknowledged)), true},
		"hello of another store":   {sayHello, edit(acknowledged, "0001", "0002"), false},
		"hello with a lower seq":   {sayHello, edit(acknowledged, `"seq":5`, `"seq":4`), false},
		"hello with a higher seq":  {sayHello, edit(acknowledged, `"seq":5`, `"seq":6`), true},
		"hello without lease":      {sayHello, edit(acknowledged, `"lease_ms":1`, `"lease_ms":0`), false},
		"heartbeat":                {beat, string(api.Encode(stands)), true},
		"heartbeat of another":     {beat, edit(stands, "0001", "0002"), false},
		"heartbeat, lower seq":     {beat, edit(stands, `"seq":5`, `"seq":4`), false},
		"heartbeat, other phase":   {beat, edit(stands, "running", "preparing"), false},
		"heartbeat, higher seq":    {beat, edit(stands, `"seq":5,"phase":"running"`, `"seq":6,"phase":"preparing"`), true},
		"receipts":                 {attach, string(api.Encode(counted)), true},
		"receipts of another":      {attach, edit(counted, "0001", "0002"), false},
		"receipts that are fewer":  {attach, edit(counted, `"total":1`, `"total":0`), false},
		"receipts over-verified":   {attach, edit(counted, `"verified":0`, `"verified":2`), false},
	} {
		t.Run(name, func(t *testing.T) {
			p := newPeer(t, false, says(jsonAnswer("200 OK", api.ContentJSON, row.body)))
			err := row.send(p.client())
			if row.ok {
				if err != nil {
					t.Error(err)
				}
			} else if f := failure(t, err); f.Class != ClassMismatch || f.Disposition != protocol.Unknown || f.Repeat {
				t.Errorf("got %v, repeat %v", f, f.Repeat)
			}
			p.allClosed(1)
		})
	}
}

// The form of what is sent: version, signature, no content headers without a
// body.
func TestRequestsAsSent(t *testing.T) {
	p := newPeer(t, false, says(problem(api.CodeNotFound)))
	c := p.client()
	_, _, _ = c.Attempt(background(), testReference)
	_, _ = c.Feed(background(), FeedQuery{Kind: "test.v1", Limit: 7})
	_, _, _ = c.Start(background(), startBody(), nil)
	conns := p.allClosed(3)
	read, feed, start := conns[0].requests[0], conns[1].requests[0], conns[2].requests[0]
	for _, r := range []string{"Content-Type", "Content-Digest", "Content-Length", "Transfer-Encoding"} {
		if read.Header.Get(r) != "" || read.ContentLength > 0 {
			t.Errorf("a read has %s", r)
		}
	}
	if read.Header.Get("Signature") == "" || read.Header.Get("Signature-Input") == "" || read.Header.Get(api.HeaderVersion) != "1" ||
		read.Header.Get("Accept-Encoding") != "" {
		t.Errorf("headers %v", read.Header)
	}
	if feed.RequestURI != "/provider/v1/jobs?attempted=false&kind=test.v1&limit=7" {
		t.Errorf("feed asks %s", feed.RequestURI)
	}
	if start.Header.Get("Content-Type") != api.ContentJSON || start.Header.Get("Content-Digest") == "" || start.ContentLength != int64(len(startBody())) {
		t.Errorf("START has %v", start.Header)
	}
}

// A grant is never repeated as such, and what it holds never shows.
func TestGrant(t *testing.T) {
	member := api.UploadMember{Upload: testUpload, Length: 3, SHA256: testDigest}
	secret := "bearer-s3cret"
	grant := func(c *peerConn) api.Grant {
		return api.Grant{Upload: testUpload, URL: "http://" + c.LocalAddr().String() + "/store/v1/uploads/" + testUpload,
			Bearer: secret, Expires: 1, Length: 3, SHA256: testDigest}
	}
	for name, row := range map[string]struct {
		change func(*api.Grant)
		ok     bool
	}{
		"good":           {func(*api.Grant) {}, true},
		"other upload":   {func(g *api.Grant) { g.Upload = testUpload[:len(testUpload)-1] + "2" }, false},
		"other length":   {func(g *api.Grant) { g.Length = 4 }, false},
		"other digest":   {func(g *api.Grant) { g.SHA256 = protocol.DigestOf(nil) }, false},
		"other origin":   {func(g *api.Grant) { g.URL = "http://127.0.0.1:1/x" }, false},
		"other scheme":   {func(g *api.Grant) { g.URL = "https" + strings.TrimPrefix(g.URL, "http") }, false},
		"user in url":    {func(g *api.Grant) { g.URL = strings.Replace(g.URL, "http://", "http://u:p@", 1) }, false},
		"file url":       {func(g *api.Grant) { g.URL = "file:///etc/passwd" }, false},
		"relative url":   {func(g *api.Grant) { g.URL = "/store" }, false},
		"bearer of text": {func(g *api.Grant) { g.Bearer = secret + "\r\nX: y" }, false},
	} {
		t.Run(name, func(t *testing.T) {
			p := newPeer(t, false, func(c *peerConn) {
				g := grant(c)
				row.change(&g)
				answers(g)(c)
			})
			got, err := p.client().Grant(background(), testJob, member, testReference)
			if row.ok {
				if err != nil || got.Bearer != secret {
					t.Error(got, err)
				}
				return
			}
			f := failure(t, err)
			if f.Class != ClassMismatch || f.Repeat {
				t.Errorf("got %v, repeat %v", f, f.Repeat)
			}
			if strings.Contains(fmt.Sprintf("%v %+v %s", f, f, f.Reply.Body), secret) {
				t.Error("the bearer shows (I37)")
			}
		})
	}
	for _, status := range []string{"500 X", "503 X"} {
		p := newPeer(t, false, says("HTTP/1.1 "+status+"\r\nContent-Length: 0\r\n\r\n"))
		_, err := p.client().Grant(background(), testJob, member, testReference)
		if f := failure(t, err); f.Repeat || f.Disposition != protocol.Unknown {
			t.Errorf("%s: %v, repeat %v", status, f, f.Repeat)
		}
	}
	lost := newPeer(t, false, ends(""))
	_, err := lost.client().Grant(background(), testJob, member, testReference)
	if f := failure(t, err); f.Repeat {
		t.Errorf("a possibly issued grant may be asked for again: %v", f)
	}
}

// No goroutine outlives its exchange.
func TestNoGoroutineIsLeft(t *testing.T) {
	p := newPeer(t, true, says(jsonAnswer("200 OK", api.ContentJSON, "x")[:30]))
	c := p.client(func(cfg *Config) { cfg.Timeout = 100 * time.Millisecond })
	_, _, _ = c.Start(background(), startBody(), nil)
	p.allClosed(len(p.seen()))
	before := runtime.NumGoroutine()
	for range 20 {
		if _, _, err := c.Start(background(), startBody(), nil); err == nil {
			t.Fatal("half an answer was taken")
		}
	}
	p.allClosed(len(p.seen())) // a machine that stands still may have let some never begin
	deadline := time.Now().Add(10 * time.Second)
	for runtime.NumGoroutine() > before+1 {
		if time.Now().After(deadline) {
			t.Fatalf("%d goroutines before, %d after", before, runtime.NumGoroutine())
		}
		time.Sleep(5 * time.Millisecond) // polls a real condition with a deadline
	}
}
