package jobs

import (
	"bytes"
	"fmt"
	"net/http"
	"reflect"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/santhosh-tekuri/jsonschema/v6"

	"github.com/quittance/quittance/controller/api"
	"github.com/quittance/quittance/controller/internal/jobs/openapi"
)

// description is the served document, ready to check traffic against.
type description struct {
	mux      *http.ServeMux // finds the operation of a request
	byRoute  map[string]openapi.Operation
	schemas  map[string]*jsonschema.Schema // by type name
	problems *jsonschema.Schema
}

var theDescription = sync.OnceValues(func() (*description, error) {
	parsed, err := jsonschema.UnmarshalJSON(bytes.NewReader(openapi.Document()))
	if err != nil {
		return nil, err
	}
	compiler := jsonschema.NewCompiler()
	const location = "quittance:openapi"
	if err := compiler.AddResource(location, parsed); err != nil {
		return nil, err
	}
	d := &description{mux: http.NewServeMux(), byRoute: map[string]openapi.Operation{}, schemas: map[string]*jsonschema.Schema{}}
	compile := func(message any) error {
		if message == nil || reflect.TypeOf(message) == reflect.TypeFor[openapi.Raw]() {
			return nil
		}
		name := reflect.TypeOf(message).Elem().Name()
		schema, err := compiler.Compile(location + "#/components/schemas/" + name)
		d.schemas[name] = schema
		return err
	}
	for _, op := range openapi.Operations() {
		d.byRoute[op.Route.Pattern()] = op
		d.mux.HandleFunc(op.Route.Pattern(), func(http.ResponseWriter, *http.Request) {})
		for _, message := range []any{op.Request, op.Response} {
			if err := compile(message); err != nil {
				return nil, err
			}
		}
	}
	if d.problems, err = compiler.Compile(location + "#/components/schemas/Problem"); err != nil {
		return nil, err
	}
	return d, nil
})

// described checks one exchange against the document: every answer has a
// described status and body, and every request that was let in was a described
// one.
func described(t testing.TB, sent *http.Request, body []byte, got reply) {
	t.Helper()
	d, err := theDescription()
	if err != nil {
		t.Fatal(err)
	}
	if got.status >= 400 {
		conforms(t, d.problems, got.body, "problem of "+sent.URL.Path)
		return
	}
	_, pattern := d.mux.Handler(sent)
	op, ok := d.byRoute[pattern]
	if !ok {
		t.Fatalf("%s %s was answered with %d and is not described", sent.Method, sent.URL.Path, got.status)
	}
	if !slices.Contains(op.Statuses, got.status) {
		t.Fatalf("%s answered with the undescribed status %d", op.Route.Name, got.status)
	}
	for name := range sent.URL.Query() {
		if !slices.ContainsFunc(op.Params, func(p openapi.Param) bool { return !p.Header && p.Name == name }) {
			t.Fatalf("%s took the undescribed query member %s", op.Route.Name, name)
		}
	}
	for _, p := range op.Params {
		present := sent.URL.Query().Has(p.Name)
		if p.Header {
			present = sent.Header.Get(p.Name) != ""
		}
		if p.Required && !present {
			t.Fatalf("%s was let in without %s, described as required", op.Route.Name, p.Name)
		}
	}
	check := func(message any, data []byte, what string) {
		t.Helper()
		if raw, isRaw := message.(openapi.Raw); isRaw {
			if what == "answer" && got.header.Get("Content-Type") != string(raw) {
				t.Fatalf("%s: type %s, described as %s", op.Route.Name, got.header.Get("Content-Type"), raw)
			}
			return
		}
		if message != nil {
			conforms(t, d.schemas[reflect.TypeOf(message).Elem().Name()], data, what+" of "+op.Route.Name)
		}
	}
	check(op.Request, body, "request")
	check(op.Response, got.body, "answer")
	if int64(len(got.body)) > op.Route.MaxResponse && op.Route.MaxResponse > 0 {
		t.Fatalf("%s answered with %d bytes, over its ceiling", op.Route.Name, len(got.body))
	}
}

func conforms(t testing.TB, schema *jsonschema.Schema, data []byte, what string) {
	t.Helper()
	value, err := jsonschema.UnmarshalJSON(bytes.NewReader(data))
	if err != nil {
		t.Fatalf("%s: %v", what, err)
	}
	if err := schema.Validate(value); err != nil {
		t.Fatalf("%s differs from the description: %v\n%s", what, err, data)
	}
}

func TestTheServedDocumentDescribesWhatIsServed(t *testing.T) {
	f := open(t, "", nil)
	got := f.send(request{method: "GET", path: "/openapi.json"}, nil)
	if got.status != 200 || !bytes.Equal(got.body, openapi.Document()) {
		t.Fatalf("status %d", got.status)
	}
	// The query members that the service knows are those described.
	byName := map[string][]string{}
	for _, op := range openapi.Operations() {
		for _, p := range op.Params {
			if !p.Header {
				byName[op.Route.Name] = append(byName[op.Route.Name], p.Name)
			}
		}
	}
	served := 0
	for _, e := range f.s.endpoints() {
		served++
		known := slices.Sorted(slices.Values(e.params))
		equal(t, e.route.Name, fmt.Sprint(known), fmt.Sprint(slices.Sorted(slices.Values(byName[e.route.Name]))))
	}
	equal(t, "served", served, len(api.Routes()))
	// The check can fail: another member is seen.
	d, err := theDescription()
	if err != nil {
		t.Fatal(err)
	}
	value, err := jsonschema.UnmarshalJSON(strings.NewReader(`{"attempt":"a","surprise":1}`))
	if err != nil {
		t.Fatal(err)
	}
	if d.schemas["GrantRequest"].Validate(value) == nil {
		t.Fatal("an added member conforms")
	}
}
