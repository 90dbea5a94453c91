package jobs

import (
	"bufio"
	"bytes"
	"database/sql"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/quittance/quittance/controller/api"
	"github.com/quittance/quittance/protocol"
)

// snapshot is every row of every table.
func (f *fixture) snapshot() string {
	f.t.Helper()
	db, err := sql.Open("sqlite", strings.TrimPrefix(f.s.config.Database, "sqlite:"))
	if err != nil {
		f.t.Fatal(err)
	}
	defer db.Close()
	tables := column(f.t, db, `SELECT name FROM sqlite_master WHERE type = 'table' ORDER BY name`)
	if len(tables) < 10 {
		f.t.Fatalf("only %d tables", len(tables))
	}
	var b strings.Builder
	for _, table := range tables {
		fmt.Fprintf(&b, "%s\n", table)
		rows, err := db.Query(`SELECT * FROM ` + table + ` ORDER BY 1, 2`)
		if err != nil {
			f.t.Fatal(err)
		}
		names, err := rows.Columns()
		if err != nil {
			f.t.Fatal(err)
		}
		for rows.Next() {
			values := make([]any, len(names))
			targets := make([]any, len(names))
			for i := range values {
				targets[i] = &values[i]
			}
			if err := rows.Scan(targets...); err != nil {
				f.t.Fatal(err)
			}
			fmt.Fprintf(&b, "%v\n", values)
		}
		if err := rows.Close(); err != nil {
			f.t.Fatal(err)
		}
	}
	return b.String()
}

func column(t testing.TB, db *sql.DB, query string) []string {
	t.Helper()
	rows, err := db.Query(query)
	if err != nil {
		t.Fatal(err)
	}
	defer rows.Close()
	var values []string
	for rows.Next() {
		var value string
		if err := rows.Scan(&value); err != nil {
			t.Fatal(err)
		}
		values = append(values, value)
	}
	if err := rows.Err(); err != nil {
		t.Fatal(err)
	}
	return values
}

// scene is a service with a running attempt on which every route has something
// to work on.
type scene struct {
	*fixture
	job, page api.Job
	attempt   string
	upload    string
}

func newScene(t *testing.T) *scene {
	f := open(t, "", nil)
	s := &scene{fixture: f}
	upload := must[api.Upload](t, 201, f.upload(f.token, "image/png", []byte("picture")))
	s.upload = upload.Upload
	s.page = must[api.CreateJobAnswer](t, 201, f.user(f.token, "POST", "/v1/jobs",
		&api.CreateJob{Kind: "page", Uploads: []string{s.upload}}, api.HeaderIdempotencyKey, "page")).Job
	s.job = f.create("op", "x")
	s.attempt = f.node.start(&s.page, "key").Attempt
	return s
}

// target fills a route's path for the scene.
func (s *scene) target(route api.Route) string {
	job := s.job.Job
	if route.Name == "grant" || route.Name == "uploads" {
		job = s.page.Job
	}
	path := strings.NewReplacer("{job}", job, "{attempt}", s.attempt, "{upload}", s.upload).Replace(route.Path)
	switch route.Name {
	case "feed":
		path += "?kind=echo&attempted=false&limit=10"
	case "inventory":
		path += "?state=in_progress&limit=10"
	}
	return path
}

// message is a request of the route that would have an effect if it were let in.
func (s *scene) message(route api.Route) any {
	switch route.Name {
	case "hello":
		return s.node.announcement(2)
	case "grant":
		return &api.GrantRequest{Attempt: s.attempt}
	case "start":
		return s.node.startOf(&s.job, "another")
	case "progress":
		return &api.Progress{Store: s.node.store, Seq: 1, Phase: api.PhaseRunning}
	case "complete":
		return completeOf(s.attempt, "result")
	case "fail":
		return &api.Fail{Attempt: s.attempt, Code: api.FailWorkerLost, Message: "m"}
	case "receipts":
		return &api.HostReceipts{Attempt: s.attempt, Key: "k", Receipts: []api.HostReceipt{{Leaf: api.Bytes("x"), Proof: "p"}}}
	case "createJob":
		return &api.CreateJob{Kind: "echo", Input: &api.CreateData{Text: new(string)}}
	case "createUpload":
		return []byte("a file")
	}
	return nil
}

// base is a good request of the route, not yet sent.
func (s *scene) base(route api.Route) request {
	r := request{method: route.Method, path: s.target(route), header: http.Header{}}
	if message := s.message(route); message != nil {
		r.body = encode(message)
	}
	switch {
	case route.Provider:
	case route.Name == "store":
		r.header.Set("Authorization", "Bearer qg_unknown")
	default:
		r.header.Set("Authorization", "Bearer "+s.token)
	}
	switch route.Name {
	case "createUpload":
		r.header.Set("Content-Type", "image/png")
		r.header.Set("Content-Digest", digestField(protocol.DigestOf(r.body)))
	case "createJob", "retry":
		r.header.Set(api.HeaderIdempotencyKey, "fresh")
	}
	return r
}

func (s *scene) sendTo(route api.Route, r request) reply {
	if route.Provider {
		return s.send(r, s.node.signer)
	}
	return s.send(r, nil)
}

// I33, I34: whatever is wrong with a request, the documented problem comes back
// and nothing changed.
func TestEveryRouteRefusesBadRequests(t *testing.T) {
	s := newScene(t)
	stranger := s.newNode("unregistered-later")
	for _, route := range api.Routes() {
		t.Run(route.Name, func(t *testing.T) {
			s.t, s.fixture.t = t, t
			before := s.snapshot()
			check := func(name string, code api.Code, field string, got reply) {
				t.Helper()
				problem := refused(t, code, got)
				if field != "" && problem.Field != field {
					t.Fatalf("%s: field %q, want %q: %s", name, problem.Field, field, got.body)
				}
				if route.Provider && got.header.Get(api.HeaderTopology) == "" {
					t.Fatalf("%s: no topology", name)
				}
			}
			with := func(change func(*request)) reply {
				t.Helper()
				r := s.base(route)
				change(&r)
				return s.sendTo(route, r)
			}
			header := func(name string, values ...string) func(*request) {
				return func(r *request) {
					r.bend = func(sent *http.Request) { sent.Header[http.CanonicalHeaderKey(name)] = values }
				}
			}

			if route.Name != "store" {
				if route.Provider || route.Method != "GET" {
					check("no version", api.CodeVersionRequired, api.HeaderVersion, with(header(api.HeaderVersion)))
				}
				check("other version", api.CodeUnknownVersion, api.HeaderVersion, with(header(api.HeaderVersion, "2")))
				check("two versions", api.CodeUnknownVersion, api.HeaderVersion, with(header(api.HeaderVersion, "1", "1")))
			}
			check("content encoding", api.CodeUnsupportedType, "", with(header("Content-Encoding", "gzip")))
			query := "?surprise=1"
			if strings.Contains(s.target(route), "?") {
				query = "&surprise=1"
			}
			check("unknown query", api.CodeBadRequest, "query", with(func(r *request) { r.path += query }))
			check("broken query", api.CodeBadRequest, "query", with(func(r *request) { r.path += strings.Replace(query, "surprise=1", "a=%zz", 1) }))
			check("wrong method", api.CodeMethodNotAllowed, "", s.send(request{method: "DELETE", path: s.target(route)}, nil))

			if route.Provider {
				s.badSigners(t, route, stranger, check, with)
			} else if route.Name != "store" && route.Name != "openapi" {
				s.badTokens(t, route, check, with)
			}
			if route.MaxRequest > 0 {
				s.badBodies(t, route, check, with)
			} else {
				check("body where none is", api.CodeBadRequest, "body", with(func(r *request) { r.body = []byte("{}") }))
				check("type where no body is", api.CodeBadRequest, "Content-Type", with(header("Content-Type", "application/json")))
			}
			if strings.Contains(route.Path, "{job}") {
				check("absent job", api.CodeNotFound, "", with(func(r *request) {
					r.path = strings.ReplaceAll(strings.ReplaceAll(r.path, s.job.Job, api.NewJobID()), s.page.Job, api.NewJobID())
				}))
				check("job out of form", api.CodeNotFound, "", with(func(r *request) {
					r.path = strings.ReplaceAll(strings.ReplaceAll(r.path, s.job.Job, "job-1"), s.page.Job, "job-1")
				}))
			}
			if strings.Contains(route.Path, "{attempt}") && route.MaxRequest == 0 {
				check("absent attempt", api.CodeNotFound, "", with(func(r *request) {
					r.path = strings.ReplaceAll(r.path, s.attempt, api.NewAttemptID())
				}))
			}
			s.badQueries(route, check, with)
			if after := s.snapshot(); after != before {
				t.Fatalf("a refused request had an effect:\n%s\n%s", before, after)
			}
		})
	}
}

type checkFunc func(name string, code api.Code, field string, got reply)

type withFunc func(change func(*request)) reply

func (s *scene) badSigners(t *testing.T, route api.Route, stranger *node, check checkFunc, with withFunc) {
	t.Helper()
	check("unsigned", api.CodeUnsigned, "", s.send(s.base(route), nil))
	check("a token instead", api.CodeUnsigned, "", s.send(func() request {
		r := s.base(route)
		r.header.Set("Authorization", "Bearer "+s.token)
		return r
	}(), nil))
	check("signed for another target", api.CodeBadSignature, "", with(func(r *request) {
		r.bend = func(sent *http.Request) { sent.URL.RawQuery += "&" }
	}))
	check("altered after signing", api.CodeBadSignature, "", with(func(r *request) {
		r.bend = func(sent *http.Request) {
			if r.body == nil {
				sent.Header.Set("Signature", "sig=:"+strings.Repeat("A", 86)+"==:")
				return
			}
			changed := append(bytes.Clone(r.body), ' ')
			sent.Body, sent.ContentLength = io.NopCloser(bytes.NewReader(changed)), int64(len(changed))
			sent.GetBody = nil
		}
	}))
	other := s.base(route)
	got := s.send(other, s.unregistered())
	check("unregistered key", api.CodeUnknownKey, "", got)
	if strings.Contains(route.Path, "{attempt}") {
		check("another provider's attempt", api.CodeNotFound, "", s.send(s.goodFor(route), stranger.signer))
	}
}

func (s *scene) badTokens(t *testing.T, route api.Route, check checkFunc, with withFunc) {
	t.Helper()
	token := func(values ...string) func(*request) {
		return func(r *request) { r.header["Authorization"] = values }
	}
	check("no token", api.CodeUnauthenticated, "", with(token()))
	check("unknown token", api.CodeUnauthenticated, "", with(token("Bearer qt_unknown")))
	check("other scheme", api.CodeUnauthenticated, "", with(token("Basic "+s.token)))
	check("two tokens", api.CodeUnauthenticated, "", with(token("Bearer "+s.token, "Bearer "+s.token)))
	check("signed instead", api.CodeUnauthenticated, "", func() reply {
		r := s.base(route)
		r.header.Del("Authorization")
		return s.send(r, s.node.signer)
	}())
}

func (s *scene) badBodies(t *testing.T, route api.Route, check checkFunc, with withFunc) {
	t.Helper()
	check("over the ceiling", api.CodeTooLarge, "", s.announce(route, route.MaxRequest+1))
	check("no length", api.CodeLengthRequired, "", with(func(r *request) {
		r.bend = func(sent *http.Request) { sent.ContentLength = -1 }
	}))
	if route.Name == "createUpload" {
		check("no digest", api.CodeBadRequest, "Content-Digest", with(func(r *request) { r.header.Del("Content-Digest") }))
		check("other digest", api.CodeBadRequest, "Content-Digest", with(func(r *request) { r.header.Set("Content-Digest", "sha-512=:AAAA:") }))
		check("a digest that the parser panics on", api.CodeBadRequest, "Content-Digest", with(func(r *request) { r.header.Set("Content-Digest", "sha-256=%0") }))
		check("no type", api.CodeUnsupportedType, "", with(func(r *request) { r.header["Content-Type"] = nil }))
		return
	}
	check("other type", api.CodeUnsupportedType, "", with(func(r *request) { r.header.Set("Content-Type", "text/plain") }))
	bodies := []struct{ name, body, field string }{
		{"empty", "", ""},
		{"not JSON", "hello", ""},
		{"an array", "[]", ""},
		{"null", "null", ""},
		{"cut", string(s.base(route).body[:len(s.base(route).body)-1]), ""},
		{"trailing bytes", string(s.base(route).body) + "{}", ""},
		{"unknown member", strings.Replace(string(s.base(route).body), "{", `{"surprise":1,`, 1), "/surprise"},
		{"duplicate member", duplicated(string(s.base(route).body)), ""},
		{"invalid UTF-8", strings.Replace(string(s.base(route).body), `"`, "\"\xff", 1), ""},
	}
	for _, row := range bodies {
		check(row.name, api.CodeBadRequest, row.field, with(func(r *request) { r.body = []byte(row.body) }))
	}
	first, _, _ := strings.Cut(strings.TrimPrefix(string(s.base(route).body), `{"`), `"`)
	check("wrong type", api.CodeBadRequest, "/"+first, with(func(r *request) {
		_, rest, _ := strings.Cut(string(r.body), ",")
		if rest == "" {
			rest = "}"
		} else {
			rest = "," + rest
		}
		r.body = []byte(`{"` + first + `":true` + rest)
	}))
}

// duplicated repeats an object's first member.
func duplicated(object string) string {
	first, _, _ := strings.Cut(strings.TrimPrefix(object, `{"`), `"`)
	return strings.TrimSuffix(object, "}") + `,"` + first + `":0}`
}

func (s *scene) badQueries(route api.Route, check checkFunc, with withFunc) {
	queries := map[string][]struct{ query, field string }{
		"feed": {
			{"?attempted=false&limit=1", "kind"}, {"?kind=echo&limit=1", "attempted"}, {"?kind=echo&attempted=1&limit=1", "attempted"},
			{"?kind=echo&attempted=true", "limit"}, {"?kind=echo&attempted=true&limit=0", "limit"}, {"?kind=echo&attempted=true&limit=101", "limit"},
			{"?kind=echo&attempted=true&limit=01", "limit"}, {"?kind=echo&kind=echo&attempted=true&limit=1", "kind"},
			{"?kind=echo&attempted=true&limit=1&cursor=", "cursor"}, {"?kind=echo&attempted=true&limit=1&cursor=" + strings.Repeat("A", 600), "cursor"},
		},
		"inventory": {{"?limit=1", "state"}, {"?state=failed&limit=1", "state"}, {"?state=in_progress", "limit"}},
		"listJobs": {
			{"?state=running", "state"}, {"?kind=No", "kind"}, {"?label=a", "label"}, {"?wait=61s", "wait"}, {"?wait=-1s", "wait"},
			{"?wait=soon", "wait"}, {"?after=1", "after"}, {"?wait=1s&after=x", "after"}, {"?limit=101", "limit"},
		},
		"getJob": {{"?wait=1h", "wait"}, {"?wait=1s&after=-1", "after"}},
	}
	for _, row := range queries[route.Name] {
		check(row.query, api.CodeBadRequest, row.field, with(func(r *request) {
			path, _, _ := strings.Cut(r.path, "?")
			r.path = path + row.query
		}))
	}
}

// goodFor is a request whose messages are right in themselves, so that only who
// sends it decides.
func (s *scene) goodFor(route api.Route) request {
	r := s.base(route)
	if route.Name == "receipts" {
		signer, leaf := s.receipt(s.attempt)
		r.body = encode(&api.HostReceipts{Attempt: s.attempt, Key: signer, Receipts: []api.HostReceipt{{Leaf: leaf, Proof: ""}}})
	}
	return r
}

// announce sends a header that announces length bytes and no byte of them: the
// answer must not wait for the body.
func (s *scene) announce(route api.Route, length int64) reply {
	s.t.Helper()
	r := s.base(route)
	kind := r.header.Get("Content-Type")
	if kind == "" {
		kind = api.ContentJSON
	}
	got, closed := s.converse(fmt.Sprintf("%s %s HTTP/1.1\r\nHost: x\r\nQuittance-API-Version: 1\r\nAuthorization: Bearer %s\r\nIdempotency-Key: k\r\nContent-Type: %s\r\nContent-Length: %d\r\n\r\n",
		route.Method, r.path, s.token, kind, length), false)
	if !closed {
		s.t.Fatal("the connection goes on")
	}
	return got
}

func TestUnknownPaths(t *testing.T) {
	f := open(t, "", nil)
	for _, path := range []string{"/v2/jobs", "/provider/v1", "/v1/jobs/", "//v1/jobs", "/v1/./jobs", "/v1/jobs/../jobs", "/store/v1/uploads"} {
		refused(t, api.CodeNotFound, f.user(f.token, "GET", path, nil))
	}
	refused(t, api.CodeNotFound, f.user(f.token, "GET", "/v1/jobs/"+strings.Repeat("a", 2000), nil))
	equal(t, "allow", f.user(f.token, "PUT", "/v1/jobs", nil).header.Get("Allow"), "GET, POST")
}

// converse sends raw bytes and reads one answer; half closes the sending side
// first. It returns the answer and whether the service then closed the connection.
func (s *scene) converse(text string, half bool) (got reply, closed bool) {
	s.t.Helper()
	conn, err := net.Dial("tcp", strings.TrimPrefix(s.origin, "http://"))
	if err != nil {
		s.t.Fatal(err)
	}
	defer conn.Close()
	if err := conn.SetDeadline(time.Now().Add(20 * time.Second)); err != nil {
		s.t.Fatal(err)
	}
	if _, err := io.WriteString(conn, text); err != nil {
		s.t.Fatal(err)
	}
	if half {
		if err := conn.(*net.TCPConn).CloseWrite(); err != nil {
			s.t.Fatal(err)
		}
	}
	reader := bufio.NewReader(conn)
	response, err := http.ReadResponse(reader, nil)
	if err != nil {
		s.t.Fatal(err)
	}
	defer response.Body.Close()
	body, err := io.ReadAll(response.Body)
	if err != nil {
		s.t.Fatal(err)
	}
	_, err = reader.ReadByte()
	return reply{status: response.StatusCode, header: response.Header, body: body}, err != nil
}

// I33: a body that breaks off or stops arriving is refused in time, the
// connection ends, and nothing changed.
func TestBodiesThatNeverEnd(t *testing.T) {
	// What breaks off comes in time, whatever the machine; what stalls is waited for.
	patient := &scene{fixture: open(t, "", nil)}
	hasty := &scene{fixture: open(t, "", func(c *Config) { c.ReadTimeout, c.UploadTimeout = 500*time.Millisecond, 500*time.Millisecond })}
	before := map[*scene]string{patient: patient.snapshot(), hasty: hasty.snapshot()}
	const token = "TOKEN"
	head := func(path, kind, more string) string {
		return fmt.Sprintf("POST %s HTTP/1.1\r\nHost: x\r\nQuittance-API-Version: 1\r\nAuthorization: Bearer %s\r\nIdempotency-Key: k\r\nContent-Type: %s\r\n%sContent-Length: 100\r\n\r\n", path, token, kind, more)
	}
	digest := "Content-Digest: " + digestField(protocol.DigestOf([]byte("x"))) + "\r\n"
	for _, row := range []struct {
		name, text string
		half       bool
		code       api.Code
	}{
		{"message breaks off", head("/v1/jobs", "application/json", "") + `{"kind":"echo"}`, true, api.CodeBadRequest},
		{"message stalls", head("/v1/jobs", "application/json", "") + `{"kind":"echo"}`, false, api.CodeTimeout},
		{"stranger stalls", strings.Replace(head("/v1/jobs", "application/json", "")+`{"kind":"echo"}`, token, "qt_unknown", 1), false, api.CodeUnauthenticated},
		{"nobody's route stalls", head("/v1/nothing", "application/json", "") + "x", false, api.CodeNotFound},
		{"upload breaks off", head("/v1/uploads", "image/png", digest) + "half", true, api.CodeBadRequest},
		{"upload stalls", head("/v1/uploads", "image/png", digest) + "half", false, api.CodeTimeout},
	} {
		s := hasty
		if row.half {
			s = patient
		}
		got, closed := s.converse(strings.Replace(row.text, token, s.token, 1), row.half)
		refused(t, row.code, got)
		if !closed {
			t.Errorf("%s: the connection goes on", row.name)
		}
	}
	for s, rows := range before {
		equal(t, "rows", s.snapshot(), rows)
		if left, err := os.ReadDir(filepath.Join(s.s.config.BlobDirectory, "incoming")); err != nil || len(left) != 0 {
			t.Fatalf("%d files left, %v", len(left), err)
		}
	}
}

// I37: no token, input or result reaches the log or a refusal.
func TestSecretsStayOut(t *testing.T) {
	s := newScene(t)
	const secret = "s3cr3t-value"
	for _, body := range []string{
		`{"kind":"` + secret + `"}`, `{"kind":"echo","input":{"text":"` + secret + `","json":1}}`, `{"kind":"echo","` + secret + `":1`,
		`{"kind":"typed","input":{"json":{"n":"` + secret + `"}}}`,
	} {
		got := s.user(s.token, "POST", "/v1/jobs", body, api.HeaderIdempotencyKey, "k")
		if got.status < 400 || (bytes.Contains(got.body, []byte(secret)) && !strings.Contains(body, `"`+secret+`":1`)) {
			t.Fatalf("%s: %d %s", body, got.status, got.body)
		}
	}
	if got := s.user("qt_"+secret, "GET", "/v1/jobs", nil); bytes.Contains(got.body, []byte(secret)) {
		t.Fatalf("%s", got.body)
	}
	dump := s.snapshot()
	if strings.Contains(dump, s.token) {
		t.Fatal("a token is stored in the clear")
	}
}
