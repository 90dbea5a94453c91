package provider

import (
	"bytes"
	"fmt"
	"io"
	"strings"
	"testing"

	"github.com/go-json-experiment/json/jsontext"

	"github.com/quittance/quittance/controller/api"
	"github.com/quittance/quittance/controller/internal/attempt"
	"github.com/quittance/quittance/controller/internal/signing"
	"github.com/quittance/quittance/protocol"
)

// Story: every ceiling at once. What the contract allows goes through the real
// client and the real service whole (I33): 64 offerings with the largest
// schemas, pages of 100 items, 64 uploads, one of 32 MiB, results of 786,432
// bytes, messages of 1,024 four-byte scalars.
func TestContractAtItsCeilings(t *testing.T) {
	s := newService(t)
	schema := `{"maxLength":`
	schema += "9" + strings.Repeat(" ", api.MaxInputSchema-len(schema)-2) + "}"
	hello := api.Hello{Store: s.store, Seq: api.MaxSequence, Lanes: api.MaxLanes, Versions: api.HelloVersions{Controller: strings.Repeat("v", api.MaxStringBytes), API: []int{1}}}
	for i := range api.MaxOfferings {
		hello.Offerings = append(hello.Offerings, api.HelloOffering{
			Kind: fmt.Sprintf("kind-%02d", i), Profile: "p", ProfileDigest: testDigest, Adapter: "http", Available: true, Reason: "",
			Input: api.HelloInput{From: api.InputFromJob, ContentType: "text/plain", MaxBytes: api.MaxInputBytes, Schema: jsontext.Value(schema)},
		})
	}
	if _, err := s.client.Hello(background(), hello); err != nil {
		t.Fatalf("hello of %d bytes: %v", len(api.Encode(hello)), err)
	}
	hello.Offerings = append(hello.Offerings, hello.Offerings[0])
	if _, err := s.client.Hello(background(), hello); failure(t, err).Class != ClassNotSent {
		t.Errorf("one offering more: %v", err)
	}

	text := `"` + strings.Repeat("x", 7) + `"`
	var started []api.Admission
	for range api.MaxPageItems + 1 {
		s.create(api.CreateJob{Kind: "kind-00", Input: &api.CreateData{Text: &text}})
	}
	for cursor, pages := "", 0; ; pages++ {
		feed, err := s.client.Feed(background(), FeedQuery{Kind: "kind-00", Limit: api.MaxPageItems, Cursor: cursor})
		if err != nil || pages == 0 && len(feed.Jobs) != api.MaxPageItems {
			t.Fatalf("page %d has %d jobs, %v", pages, len(feed.Jobs), err)
		}
		for _, j := range feed.Jobs {
			_, a := s.start(j, strings.Repeat("k", 128-8)+fmt.Sprintf("%08d", len(started)))
			started = append(started, a)
		}
		if feed.NextCursor == nil {
			break
		}
		cursor = *feed.NextCursor
	}
	inventory, err := s.client.Inventory(background(), api.MaxPageItems, "")
	if err != nil || len(inventory.Attempts) != api.MaxPageItems || inventory.NextCursor == nil || len(started) != api.MaxPageItems+1 {
		t.Fatalf("%d attempts listed of %d, %v", len(inventory.Attempts), len(started), err)
	}

	result := strings.Repeat("r", api.MaxResultBytes)
	receipt, _, err := s.client.Complete(background(), started[0].Attempt, completeBody(started[0].Attempt, result))
	if err != nil || receipt.Length != api.MaxResultBytes {
		t.Fatalf("COMPLETE: %+v, %v", receipt, err)
	}
	if _, _, err := s.client.Complete(background(), started[1].Attempt, completeBody(started[1].Attempt, result+"r")); failure(t, err).Class != ClassNotSent {
		t.Errorf("one byte more: %v", err)
	}
	long := strings.Repeat("😀", api.MaxMessageScalars)
	fail := api.Encode(api.Fail{Attempt: started[1].Attempt, Code: api.FailWorkerFailed, Message: long, Next: long, Entered: true})
	if r, _, err := s.client.Fail(background(), started[1].Attempt, fail); err != nil || r.Message != long {
		t.Fatalf("FAIL: %v", err)
	}

	members := []string{}
	large := bytes.Repeat([]byte("0123456789abcdef"), api.MaxUploadBytes/16)
	for i := range api.MaxUploads {
		data := fmt.Appendf(nil, "upload %d", i)
		if i == 0 {
			data = large
		}
		var upload api.Upload
		s.user("POST", "/v1/uploads", map[string]string{"Content-Type": "image/png", api.HeaderContentDigest: signing.ContentDigest(data)}, data, &upload)
		members = append(members, upload.Upload)
	}
	s.create(api.CreateJob{Kind: "kind-01", Input: &api.CreateData{Text: &text}, Uploads: members})
	job := s.feed("kind-01").Jobs[0]
	_, a := s.start(job, "uploads")
	all, err := s.client.Uploads(background(), job.Job)
	if err != nil || len(all.Uploads) != api.MaxUploads || all.Uploads[0].Length != api.MaxUploadBytes {
		t.Fatalf("%d uploads, %v", len(all.Uploads), err)
	}
	grant, err := s.client.Grant(background(), job.Job, all.Uploads[0], a.Attempt)
	if err != nil {
		t.Fatal(err)
	}
	file, err := s.client.Fetch(background(), grant, privateDir(t), NewBudget(api.MaxUploadBytes, 1))
	if err != nil {
		t.Fatal(err)
	}
	got, err := io.ReadAll(file.File)
	if err != nil || protocol.DigestOf(got) != protocol.DigestOf(large) {
		t.Errorf("%d bytes, %v", len(got), err)
	}
	if err := file.Discard(); err != nil {
		t.Error(err)
	}
	// The record that retains such an attempt fits its own ceiling; see package
	// attempt for the rest of it.
	if n := int64(len(completeBody(a.Attempt, result))); n > api.RouteComplete.MaxRequest || n > attempt.MaxRecordBytes {
		t.Errorf("a COMPLETE at its ceiling has %d bytes", n)
	}
}
