//go:build engine

package engine_test

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/quittance/quittance/integration/agenttest"
	"github.com/quittance/quittance/protocol"
	"github.com/quittance/quittance/protocol/uds"
)

// raw sends one request as it is and returns status and body.
type raw struct {
	t   *testing.T
	lab *agenttest.Lab
}

func (r raw) send(method, path, body string, header ...string) (int, *protocol.Problem) {
	r.t.Helper()
	conn, err := uds.Dial(r.t.Context(), r.lab.Socket())
	if err != nil {
		r.t.Fatal(err)
	}
	defer conn.Close()
	if err := conn.SetDeadline(time.Now().Add(20 * time.Second)); err != nil {
		r.t.Fatal(err)
	}
	var b strings.Builder
	fmt.Fprintf(&b, "%s %s HTTP/1.1\r\nHost: agent\r\nConnection: close\r\n", method, path)
	for _, h := range header {
		b.WriteString(h + "\r\n")
	}
	if body != "" {
		fmt.Fprintf(&b, "Content-Length: %d\r\n", len(body))
	}
	b.WriteString("\r\n" + body)
	if _, err := io.WriteString(conn, b.String()); err != nil {
		r.t.Logf("write: %v", err) // the agent may answer before it has read all
	}
	answer, err := readAnswer(conn)
	if err != nil {
		r.t.Fatalf("%s %s: %v", method, path, err)
	}
	defer answer.Body.Close()
	text, err := io.ReadAll(answer.Body)
	if err != nil {
		r.t.Fatal(err)
	}
	if answer.Header.Get("Content-Type") != protocol.ContentProblem {
		return answer.StatusCode, nil
	}
	var p protocol.Problem
	if err := protocol.DecodeStrict(bytes.TrimSpace(text), protocol.MaxBodyBytes, &p); err != nil {
		r.t.Fatalf("problem: %v\n%s", err, text)
	}
	if p.Status != answer.StatusCode || p.Detail == "" || p.Next == "" || p.Type != "about:blank" {
		r.t.Errorf("problem is incomplete: %s", text)
	}
	return answer.StatusCode, &p
}

const (
	owner       = "Quittance-Owner: 0000000000000000000000000000000a"
	otherOwner  = "Quittance-Owner: 0000000000000000000000000000000b"
	version     = "Quittance-Version: 1"
	secretValue = "s3cret-value"
)

// Every route with every kind of bad input, through the real socket: the
// documented problem, no effect, no number consumed (I7, I33, I34, I37).
func TestBadInput(t *testing.T) {
	lab := kit.NewLab(t)
	lab.Profile("echo", agenttest.Profile{Args: []string{"serve"}})
	lab.Start()
	r := raw{t, lab}
	generation := "/v1/" + string(lab.Generation) + "/"
	digest := string(profileDigest(t, lab, "echo"))
	allocate := fmt.Sprintf(`{"profile":"echo","profile_digest":%q,"purpose":"a"}`, digest)
	leaf := `"sha256:` + strings.Repeat("0", 64) + `"`

	// One allocation is known: a burn, consumed by nobody.
	mustSucceed := func(method, path, body string) {
		t.Helper()
		if status, p := r.send(method, generation+path, body, version, owner); p != nil || status >= 300 {
			t.Fatalf("%s %s: %d %+v", method, path, status, p)
		}
	}
	mustSucceed("PUT", "witness", `{"checkpoint":null,"highest":null}`)
	mustSucceed("PUT", "allocations/1/retirement", `{"purpose":"a","note":""}`)

	deep := strings.Repeat("[", 20000) + strings.Repeat("]", 20000)
	type row struct {
		method, path, body string
		header             []string
		status             int
		code               protocol.Code
		field              string
	}
	v, o := []string{version}, []string{version, owner}
	rows := []row{
		// Versions.
		{"PUT", generation + "witness", `{}`, []string{owner}, 400, protocol.CodeVersionRequired, ""},
		{"DELETE", generation + "drain", "", nil, 400, protocol.CodeVersionRequired, ""},
		{"PUT", generation + "witness", `{}`, []string{"Quittance-Version: 2", owner}, 406, protocol.CodeUnknownVersion, ""},
		{"GET", "/v1/host", "", []string{"Quittance-Version: 0"}, 406, protocol.CodeUnknownVersion, ""},
		{"GET", "/v1/host", "", []string{version, version}, 406, protocol.CodeUnknownVersion, ""},
		// Routes and methods.
		{"GET", "/", "", v, 404, protocol.CodeNotFound, ""},
		{"GET", "/v1", "", v, 404, protocol.CodeNotFound, ""},
		{"GET", "/v1/host/", "", v, 409, protocol.CodeOtherGeneration, ""},
		{"GET", generation, "", v, 404, protocol.CodeNotFound, ""},
		{"GET", generation + "nothing", "", v, 404, protocol.CodeNotFound, ""},
		{"GET", generation + "allocations/1/nothing", "", v, 404, protocol.CodeNotFound, ""},
		{"GET", generation + "allocations//1", "", v, 404, protocol.CodeNotFound, ""},
		{"POST", "/v1/host", "", v, 405, protocol.CodeMethodNotAllowed, ""},
		{"POST", generation + "allocations/1", "", o, 405, protocol.CodeMethodNotAllowed, ""},
		{"DELETE", generation + "allocations/1", "", o, 405, protocol.CodeMethodNotAllowed, ""},
		{"PATCH", generation + "release", "", o, 405, protocol.CodeMethodNotAllowed, ""},
		// Generations.
		{"PUT", "/v1/" + strings.Repeat("0", 32) + "/allocations/2", allocate, o, 409, protocol.CodeOtherGeneration, ""},
		{"GET", "/v1/" + strings.Repeat("0", 32) + "/receipts", "", v, 409, protocol.CodeOtherGeneration, ""},
		{"GET", "/v1/nonsense/receipts", "", v, 409, protocol.CodeOtherGeneration, ""},
		// Owners.
		{"PUT", generation + "witness", `{"checkpoint":null,"highest":null}`, append([]string{otherOwner}, v...), 403, protocol.CodeOtherOwner, ""},
		{"PUT", generation + "allocations/2", allocate, append([]string{otherOwner}, v...), 403, protocol.CodeOtherOwner, ""},
		{"PUT", generation + "allocations/2/retirement", `{"purpose":"a","note":""}`, append([]string{otherOwner}, v...), 403, protocol.CodeOtherOwner, ""},
		{"PUT", generation + "release", `{"frontier":1,"except":[]}`, append([]string{otherOwner}, v...), 403, protocol.CodeOtherOwner, ""},
		{"PUT", generation + "allocations/2", allocate, v, 400, protocol.CodeOwnerRequired, "Quittance-Owner"},
		{"PUT", generation + "allocations/2", allocate, append([]string{"Quittance-Owner: " + secretValue}, v...), 400, protocol.CodeBadRequest, "Quittance-Owner"},
		{"PUT", generation + "allocations/2", allocate, append([]string{owner, owner}, v...), 400, protocol.CodeBadRequest, "Quittance-Owner"},
		// Numbers.
		{"PUT", generation + "allocations/0", allocate, o, 400, protocol.CodeBadNumber, ""},
		{"PUT", generation + "allocations/-1", allocate, o, 400, protocol.CodeBadNumber, ""},
		{"PUT", generation + "allocations/02", allocate, o, 400, protocol.CodeBadNumber, ""},
		{"PUT", generation + "allocations/2.0", allocate, o, 400, protocol.CodeBadNumber, ""},
		{"PUT", generation + "allocations/+2", allocate, o, 400, protocol.CodeBadNumber, ""},
		{"PUT", generation + "allocations/%32", allocate, o, 400, protocol.CodeBadNumber, ""},
		{"PUT", generation + "allocations/9007199254740992", allocate, o, 400, protocol.CodeBadNumber, ""},
		{"PUT", generation + "allocations/9007199254740991", allocate, o, 409, protocol.CodeSequenceGap, ""},
		{"PUT", generation + "allocations/3", allocate, o, 409, protocol.CodeSequenceGap, ""},
		{"PUT", generation + "allocations/1", allocate, o, 409, protocol.CodeNumberConflict, ""},
		{"GET", generation + "allocations/2", "", v, 404, protocol.CodeNotFound, ""},
		{"GET", generation + "allocations/x", "", v, 400, protocol.CodeBadNumber, ""},
		// Bodies of PUT allocations.
		{"PUT", generation + "allocations/2", "", o, 400, protocol.CodeBadRequest, "body"},
		{"PUT", generation + "allocations/2", "null", o, 400, protocol.CodeBadRequest, "body"},
		{"PUT", generation + "allocations/2", "[]", o, 400, protocol.CodeBadRequest, "body"},
		{"PUT", generation + "allocations/2", allocate + "x", o, 400, protocol.CodeBadRequest, "body"},
		{"PUT", generation + "allocations/2", allocate + allocate, o, 400, protocol.CodeBadRequest, "body"},
		{"PUT", generation + "allocations/2", deep, o, 400, protocol.CodeBadRequest, "body"},
		{"PUT", generation + "allocations/2", strings.Replace(allocate, `{`, `{"profile":"echo",`, 1), o, 400, protocol.CodeBadRequest, "/profile"},
		{"PUT", generation + "allocations/2", strings.Replace(allocate, `{`, `{"image":"`+secretValue+`",`, 1), o, 400, protocol.CodeBadRequest, "/image"},
		{"PUT", generation + "allocations/2", strings.Replace(allocate, `"purpose"`, `"Purpose"`, 1), o, 400, protocol.CodeBadRequest, "/Purpose"},
		{"PUT", generation + "allocations/2", strings.Replace(allocate, `"purpose":"a"`, `"purpose":7`, 1), o, 400, protocol.CodeBadRequest, "/purpose"},
		{"PUT", generation + "allocations/2", strings.Replace(allocate, `"purpose":"a"`, `"purpose":"`+secretValue+`/"`, 1), o, 400, protocol.CodeBadRequest, "/purpose"},
		{"PUT", generation + "allocations/2", strings.Replace(allocate, `"purpose":"a"`, `"purpose":"`+strings.Repeat("a", 129)+`"`, 1), o, 400, protocol.CodeBadRequest, "/purpose"},
		{"PUT", generation + "allocations/2", strings.Replace(allocate, `"purpose":"a"`, "\"purpose\":\"\xff\"", 1), o, 400, protocol.CodeBadRequest, "/purpose"},
		{"PUT", generation + "allocations/2", strings.Replace(allocate, `"echo"`, `"Echo"`, 1), o, 400, protocol.CodeBadRequest, "/profile"},
		{"PUT", generation + "allocations/2", strings.Replace(allocate, digest, "sha256:1", 1), o, 400, protocol.CodeBadRequest, "/profile_digest"},
		{"PUT", generation + "allocations/2", `{"profile":NaN}`, o, 400, protocol.CodeBadRequest, ""},
		{"PUT", generation + "allocations/2", strings.Repeat(" ", protocol.MaxBodyBytes+1), o, 413, protocol.CodeTooLarge, ""},
		{"PUT", generation + "allocations/2", allocate, append([]string{"Content-Type: text/plain"}, o...), 400, protocol.CodeBadRequest, "Content-Type"},
		{"PUT", generation + "allocations/2?x=1", allocate, o, 400, protocol.CodeBadRequest, "query"},
		// What cannot be accepted now.
		{"PUT", generation + "allocations/2", strings.Replace(allocate, `"echo"`, `"absent"`, 1), o, 409, protocol.CodeProfileUnknown, ""},
		{"PUT", generation + "allocations/2", strings.Replace(allocate, digest, "sha256:"+strings.Repeat("0", 64), 1), o, 409, protocol.CodeProfileChanged, ""},
		// Retirement.
		{"PUT", generation + "allocations/1/retirement", `{"purpose":"b","note":""}`, o, 409, protocol.CodeNumberConflict, ""},
		{"PUT", generation + "allocations/3/retirement", `{"purpose":"b","note":""}`, o, 409, protocol.CodeSequenceGap, ""},
		{"PUT", generation + "allocations/1/retirement", `{"purpose":"a","note":"` + strings.Repeat("n", 513) + `"}`, o, 400, protocol.CodeBadRequest, "/note"},
		{"PUT", generation + "allocations/1/retirement", `{"note":""}`, o, 400, protocol.CodeBadRequest, "/purpose"},
		{"PUT", generation + "allocations/1/retirement?wait=61s", `{"purpose":"a","note":""}`, o, 400, protocol.CodeBadRequest, "wait"},
		{"PUT", generation + "allocations/1/retirement?wait=-1s", `{"purpose":"a","note":""}`, o, 400, protocol.CodeBadRequest, "wait"},
		{"PUT", generation + "allocations/1/retirement?wait=5", `{"purpose":"a","note":""}`, o, 400, protocol.CodeBadRequest, "wait"},
		{"PUT", generation + "allocations/2/retirement", `{"purpose":"a","note":""}`, v, 403, protocol.CodeForbidden, ""}, // an operator does not burn
		// Consumption.
		{"PUT", generation + "allocations/1/consumption", `{"purpose":"a","leaf_hash":` + leaf + `}`, o, 409, protocol.CodeOtherReceipt, ""},
		{"PUT", generation + "allocations/1/consumption", `{"purpose":"b","leaf_hash":` + leaf + `}`, o, 409, protocol.CodeNumberConflict, ""},
		{"PUT", generation + "allocations/1/consumption", `{"purpose":"a","leaf_hash":"x"}`, o, 400, protocol.CodeBadRequest, "/leaf_hash"},
		{"PUT", generation + "allocations/2/consumption", `{"purpose":"a","leaf_hash":` + leaf + `}`, o, 404, protocol.CodeNotFound, ""},
		// Channels.
		{"POST", generation + "allocations/1/channel", `{"purpose":"a"}`, o, 400, protocol.CodeBadRequest, "Upgrade"},
		{"POST", generation + "allocations/1/channel", `{"purpose":"a"}`, append([]string{"Upgrade: quittance-channel"}, o...), 400, protocol.CodeBadRequest, "Upgrade"},
		// Release.
		{"PUT", generation + "release", `{"frontier":1,"except":[]}`, o, 409, protocol.CodeNotConsumed, ""},
		{"PUT", generation + "release", `{"frontier":1,"except":[1]}`, o, 409, protocol.CodeNotStuck, ""},
		{"PUT", generation + "release", `{"frontier":0,"except":[]}`, o, 400, protocol.CodeBadRequest, "/frontier"},
		{"PUT", generation + "release", `{"frontier":1,"except":[2]}`, o, 400, protocol.CodeBadRequest, "/except"},
		{"PUT", generation + "release", `{"frontier":9,"except":[2,1]}`, o, 400, protocol.CodeBadRequest, "/except"},
		{"PUT", generation + "release", `{"frontier":1.5,"except":[]}`, o, 400, protocol.CodeBadRequest, "/frontier"},
		// Witness.
		{"PUT", generation + "witness", `{"checkpoint":"` + secretValue + `","highest":null}`, o, 400, protocol.CodeBadRequest, "/checkpoint"},
		{"PUT", generation + "witness", `{"checkpoint":null,"highest":{"index":-1,"leaf_hash":` + leaf + `}}`, o, 400, protocol.CodeBadRequest, "/highest"},
		// Long polls and lists.
		{"GET", generation + "allocations/1?until=released", "", v, 400, protocol.CodeBadRequest, "until"},
		{"GET", generation + "allocations/1?wait=1s", "", v, 400, protocol.CodeBadRequest, "wait"},
		{"GET", generation + "allocations/1?until=started&until=exited", "", v, 400, protocol.CodeBadRequest, "until"},
		{"GET", generation + "allocations?state=stuck", "", v, 400, protocol.CodeBadRequest, "state"},
		{"GET", generation + "allocations/1", "{}", v, 400, protocol.CodeBadRequest, "body"},
		// History.
		{"GET", generation + "receipts?after=-1", "", v, 400, protocol.CodeBadRequest, "after"},
		{"GET", generation + "receipts?after=01", "", v, 400, protocol.CodeBadRequest, "after"},
		{"GET", generation + "receipts?after=1000", "", v, 409, protocol.CodeLedgerBehind, ""},
		{"GET", generation + "receipts?limit=0", "", v, 400, protocol.CodeBadRequest, "limit"},
		{"GET", generation + "receipts?limit=1001", "", v, 400, protocol.CodeBadRequest, "limit"},
		{"GET", generation + "receipts?wait=forever", "", v, 400, protocol.CodeBadRequest, "wait"},
		{"GET", generation + "receipts?limit=%zz", "", v, 400, protocol.CodeBadRequest, "query"},
		{"GET", generation + "receipts/x", "", v, 400, protocol.CodeBadRequest, "index"},
		{"GET", generation + "receipts/1000", "", v, 409, protocol.CodeLedgerBehind, ""},
		{"GET", generation + "receipts/1?x=1", "", v, 400, protocol.CodeBadRequest, "query"},
		{"GET", generation + "receipts/x/proof", "", v, 400, protocol.CodeBadRequest, "index"},
		{"GET", generation + "receipts/1000/proof", "", v, 409, protocol.CodeLedgerBehind, ""},
		{"GET", generation + "consistency", "", v, 400, protocol.CodeBadRequest, "from"},
		{"GET", generation + "consistency?from=1000", "", v, 409, protocol.CodeLedgerBehind, ""},
		{"GET", generation + "allocations/2/log", "", v, 404, protocol.CodeNotFound, ""},
		// Operators.
		{"PUT", generation + "owner", `{"owner":"x"}`, v, 400, protocol.CodeBadRequest, "/owner"},
		{"PUT", generation + "drain", `{}`, v, 400, protocol.CodeBadRequest, "body"},
	}
	// Every route that takes a body, with everything that no body may be.
	upgrade := []string{"Connection: Upgrade", "Upgrade: quittance-channel"}
	for _, route := range []struct {
		method, path, body string
		header             []string
	}{
		{"PUT", "witness", `{"checkpoint":null,"highest":null}`, o},
		{"PUT", "allocations/2", allocate, o},
		{"PUT", "allocations/1/retirement", `{"purpose":"a","note":""}`, o},
		{"PUT", "allocations/1/consumption", `{"purpose":"a","leaf_hash":` + leaf + `}`, o},
		{"POST", "allocations/1/channel", `{"purpose":"a"}`, append(upgrade, o...)},
		{"PUT", "release", `{"frontier":1,"except":[]}`, o},
		{"PUT", "owner", `{"owner":"0000000000000000000000000000000c"}`, v},
	} {
		path := generation + route.path
		first := route.body[1 : strings.Index(route.body, ":")+1] // with its colon
		member := "/" + strings.Trim(first, `":`)
		add := func(body string, header []string, status int, code protocol.Code, field string) {
			rows = append(rows, row{route.method, path, body, header, status, code, field})
		}
		add("", route.header, 400, protocol.CodeBadRequest, "body")
		add("null", route.header, 400, protocol.CodeBadRequest, "body")
		add("[]", route.header, 400, protocol.CodeBadRequest, "body")
		add(route.body+"x", route.header, 400, protocol.CodeBadRequest, "body")
		add("{"+first+"true,"+route.body[1:], route.header, 400, protocol.CodeBadRequest, member)
		add("{"+first+"true}", route.header, 400, protocol.CodeBadRequest, member)
		add(`{"surprise":"`+secretValue+`",`+route.body[1:], route.header, 400, protocol.CodeBadRequest, "/surprise")
		add(`{}`, route.header, 400, protocol.CodeBadRequest, "")
		add(strings.Repeat(" ", protocol.MaxBodyBytes+1), route.header, 413, protocol.CodeTooLarge, "")
		add(route.body, append([]string{"Content-Type: text/plain"}, route.header...), 400, protocol.CodeBadRequest, "Content-Type")
		add(route.body, append([]string{owner}, upgrade...), 400, protocol.CodeVersionRequired, "")
		add(route.body, append([]string{"Quittance-Version: 2", owner}, upgrade...), 406, protocol.CodeUnknownVersion, "")
		rows = append(rows, row{route.method, "/v1/" + strings.Repeat("0", 32) + "/" + route.path, route.body, route.header, 409, protocol.CodeOtherGeneration, ""})
		if route.path != "owner" { // an operator's
			add(route.body, append(append([]string{otherOwner}, upgrade...), v...), 403, protocol.CodeOtherOwner, "")
		}
	}
	// A witness without its members is not a witness of nothing (I9).
	rows = append(rows, row{"PUT", generation + "witness", `{"highest":null}`, o, 400, protocol.CodeBadRequest, "/checkpoint"})
	before := hostOf(t, lab)
	for _, row := range rows {
		name := fmt.Sprintf("%s %s %s", row.method, strings.ReplaceAll(row.path, string(lab.Generation), "G"), clip(row.body))
		status, p := r.send(row.method, row.path, row.body, row.header...)
		if p == nil || status != row.status || p.Code != row.code || row.field != "" && p.Field != row.field {
			t.Errorf("%s: got %d %+v, want %d %s %s", name, status, p, row.status, row.code, row.field)
			continue
		}
		if p.Disposition != protocol.Refused {
			t.Errorf("%s: disposition %s", name, p.Disposition)
		}
		if strings.Contains(p.Detail+p.Next+p.Field, secretValue) { // I37
			t.Errorf("%s: the problem shows the value: %+v", name, p)
		}
	}
	after := hostOf(t, lab)
	if before.Frontiers != after.Frontiers || before.Index != after.Index || *before.Owner != *after.Owner {
		t.Errorf("bad input had an effect:\nbefore %+v\nafter  %+v", before, after)
	}
	// A sequence gap names the expected number, which still works.
	if _, p := r.send("PUT", generation+"allocations/7", allocate, o...); p.Expected != 2 {
		t.Errorf("expected %d", p.Expected)
	}
	mustSucceed("PUT", "allocations/2", allocate)
	mustSucceed("PUT", "allocations/2/retirement?wait=30s", `{"purpose":"a","note":""}`)
}

func clip(s string) string {
	if len(s) > 80 {
		return s[:80] + "…"
	}
	return s
}

// Another user is refused, whatever it asks, and cannot even connect where the
// socket's mode says so.
func TestOtherUserIsForbidden(t *testing.T) {
	lab := kit.NewLab(t, "--socket-group", "65534")
	lab.Profile("echo", agenttest.Profile{Args: []string{"serve"}})
	lab.Start()
	as := func(uid, gid uint32, path string) (string, error) {
		ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
		defer cancel()
		cmd := exec.CommandContext(ctx, lab.Worker(), "get", lab.Socket(), path)
		cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: uid, Gid: gid}}
		out, err := cmd.CombinedOutput()
		return string(out), err
	}
	for _, path := range []string{"/v1/host", "/healthz", "/v1/" + string(lab.Generation) + "/receipts"} {
		out, err := as(65534, 65534, path)
		if err != nil || !strings.HasPrefix(out, "403\n") || !strings.Contains(out, `"code":"forbidden"`) {
			t.Errorf("%s: %v\n%s", path, err, out)
		}
	}
	if out, err := as(65533, 65533, "/v1/host"); err == nil || !strings.Contains(out, "permission denied") {
		t.Errorf("a user outside the group: %v\n%s", err, out)
	}
	if _, err := os.ReadDir(lab.StateDir()); err != nil {
		t.Fatal(err)
	}
	if info, err := os.Stat(lab.StateDir()); err != nil || info.Mode().Perm() != 0o700 {
		t.Errorf("state directory: %v, %v", info.Mode(), err)
	}
}

// A controller that is no operator, and an operator that is no controller.
func TestRoles(t *testing.T) {
	t.Run("controller", func(t *testing.T) {
		lab := kit.NewLab(t, "--operator-uids", "1")
		lab.Start()
		r := raw{t, lab}
		generation := "/v1/" + string(lab.Generation) + "/"
		for _, row := range [][3]string{{"PUT", "drain", ""}, {"DELETE", "drain", ""}, {"PUT", "owner", `{"owner":"0000000000000000000000000000000b"}`}} {
			if status, p := r.send(row[0], generation+row[1], row[2], version, owner); status != 403 || p.Code != protocol.CodeForbidden {
				t.Errorf("%v: %d %+v", row, status, p)
			}
		}
		if status, p := r.send("GET", "/v1/host", ""); status != 200 {
			t.Errorf("a read without owner: %d %+v", status, p)
		}
	})
	t.Run("operator", func(t *testing.T) {
		lab := kit.NewLab(t, "--controller-uids", "1")
		lab.Profile("echo", agenttest.Profile{Args: []string{"serve"}})
		lab.Start()
		r := raw{t, lab}
		generation := "/v1/" + string(lab.Generation) + "/"
		for _, row := range [][3]string{
			{"PUT", "witness", `{"checkpoint":null,"highest":null}`}, {"PUT", "allocations/1", `{}`},
			{"PUT", "release", `{}`}, {"PUT", "allocations/1/consumption", `{}`}, {"POST", "allocations/1/channel", `{}`},
		} {
			if status, p := r.send(row[0], generation+row[1], row[2], version, owner); status != 403 || p.Code != protocol.CodeForbidden {
				t.Errorf("%v: %d %+v", row, status, p)
			}
		}
		for _, method := range []string{"PUT", "PUT", "DELETE", "DELETE"} {
			if status, p := r.send(method, generation+"drain", "", version); status != 200 {
				t.Errorf("%s drain: %d %+v", method, status, p)
			}
		}
	})
}

func readAnswer(conn io.Reader) (*http.Response, error) {
	return http.ReadResponse(newReader(conn), nil)
}
