package provider

import (
	"net/http"
	"strings"
	"testing"

	"github.com/quittance/quittance/controller/api"
	"github.com/quittance/quittance/protocol"
)

// FuzzAnswers: whatever head and body a peer sends, START ends as a failure of
// the table, or as an answer to exactly the request that was made.
func FuzzAnswers(f *testing.F) {
	asked := api.Start{Key: "k-1", Job: testJob}
	good := api.Encode(admission())
	f.Add(201, api.ContentJSON, testTopology, "r-1", good)
	f.Add(200, api.ContentJSON, "other", "r 1", good[:len(good)-1])
	f.Add(204, "", testTopology, "", []byte{})
	for _, code := range api.Codes() {
		f.Add(code.Status(), api.ContentProblem, testTopology, "r-1", api.Encode(api.NewProblem(code, "d", "n")))
	}
	skewed := api.NewProblem(api.CodeClockSkew, "d", "n")
	now := protocol.Timestamp(1796046230776540)
	skewed.ServiceTime = &now
	f.Add(401, api.ContentProblem, testTopology, "r-1", api.Encode(skewed))
	f.Add(502, "text/html", "", "", []byte("<html>"))
	c, err := New(Config{Origin: "http://test", Topology: testTopology, Signer: testSigner(f), Timeout: 1, FetchTimeout: 1})
	if err != nil {
		f.Fatal(err)
	}
	f.Fuzz(func(t *testing.T, status int, contentType, topology, requestID string, body []byte) {
		if status < 100 || status > 999 {
			return // no head has it
		}
		header := http.Header{"Content-Type": {contentType}, api.HeaderTopology: {topology}, api.HeaderRequestID: {requestID}}
		got := received{sent: true, status: status, header: header, body: body}
		about := &Failure{Operation: api.RouteStart.Name}
		about.take(got)
		whole, failed := c.classify(about, api.RouteStart, got)
		if failed == nil {
			a, _, err := read(api.RouteStart, whole, checkAdmission(asked))
			if err == nil {
				if a.Key != asked.Key || a.Job != asked.Job || !api.ValidAttemptID(a.Attempt) || !success(status) || topology != testTopology {
					t.Fatalf("status %d, topology %q, body %q was taken for %+v", status, topology, body, a)
				}
				return
			}
			failed = failure(t, err)
			if failed.Class != ClassMalformed && failed.Class != ClassMismatch || failed.Repeat || failed.Disposition != protocol.Unknown {
				t.Fatalf("body %q: %v, repeat %v", body, failed, failed.Repeat)
			}
		}
		if failed.Disposition == protocol.Refused && (failed.Code == "" || topology != testTopology) {
			t.Fatalf("status %d, topology %q, body %q was taken for a refusal: %v", status, topology, body, failed)
		}
		if failed.Disposition != protocol.Refused && failed.Disposition != protocol.Unknown {
			t.Fatalf("no disposition: %v", failed)
		}
		if _, held, ok := RefusedForGood(failed); ok && held.Disposition != protocol.Refused {
			t.Fatalf("held although nothing was refused: %v", failed)
		}
		if strings.ContainsAny(failed.Error(), "\n\x00") {
			t.Fatalf("a message with the peer's bytes: %q", failed.Error())
		}
	})
}
