package serve_test

import (
	"bytes"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strings"
	"testing"

	"github.com/quittance/quittance/protocol"
	"github.com/quittance/quittance/protocol/uds"
)

// Whatever a peer sends is answered: by JSON of a known route, or by a whole
// problem that repeats nothing of the body (I34, I37). It never panics.
func FuzzHandler(f *testing.F) {
	for _, seed := range [][3]string{
		{"GET", "/v1/host", ""},
		{"GET", "/v1/{g}/receipts?after=0&limit=2", ""},
		{"GET", "/v1/{g}/receipts/1/proof", ""},
		{"GET", "/v1/{g}/consistency?from=1", ""},
		{"GET", "/v1/{g}/allocations/1?until=retired&wait=1ms", ""},
		{"PUT", "/v1/{g}/witness", nothingHeld},
		{"PUT", "/v1/{g}/allocations/1/retirement", `{"purpose":"p","note":""}`},
		{"PUT", "/v1/{g}/release", `{"frontier":1,"except":[]}`},
		{"POST", "/v1/{g}/allocations/1/channel", `{"purpose":"p"}`},
		{"DELETE", "/v1/{g}/drain", ""},
	} {
		f.Add(seed[0], seed[1], seed[2], true)
	}
	a := newAgent(f)
	f.Fuzz(func(t *testing.T, method, path, body string, asController bool) {
		target, err := url.ParseRequestURI(strings.ReplaceAll(path, "{g}", string(a.signer.Generation())))
		if err != nil || strings.Contains(target.RawQuery, "wait") && target.RawQuery != "until=retired&wait=1ms" {
			return // no server would pass it on; or a wait that takes time
		}
		r := httptest.NewRequestWithContext(t.Context(), http.MethodGet, "/", strings.NewReader(body))
		r.Method, r.URL, r.ContentLength = method, target, int64(len(body))
		uid := operatorUID
		if asController {
			uid = controllerUID
			r.Header.Set(protocol.HeaderOwner, owner)
		}
		r.Header.Set(protocol.HeaderVersion, "1")
		r = r.WithContext(uds.WithPeer(r.Context(), uds.Peer{UID: uid}))
		w := httptest.NewRecorder()
		a.handler.ServeHTTP(w, r)
		if w.Code < 400 {
			return
		}
		var p protocol.Problem
		if err := protocol.DecodeStrict(bytes.TrimSpace(w.Body.Bytes()), protocol.MaxBodyBytes, &p); err != nil || p.Status != w.Code || p.Code == "" {
			t.Fatalf("%d %s: %v", w.Code, w.Body, err)
		}
		if p.Code == protocol.CodeInternal {
			t.Fatalf("our own fault at %s %s: %s\n%s", method, path, w.Body, a.log)
		}
	})
}
