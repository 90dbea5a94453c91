// Package openapi writes the OpenAPI 3.1 description of the job service from the
// Go types of package api, so that the two cannot differ. It owns the mapping of
// types to JSON Schema and the list of operations with their parameters. It must
// not know how an operation is carried out.
//
// The document of each released API version is kept in this directory; a test
// compares it byte for byte, so a change of the types is seen as what it is, a
// change of the contract.
package openapi

import (
	"fmt"
	"maps"
	"reflect"
	"slices"
	"strconv"
	"strings"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"

	"github.com/quittance/quittance/controller/api"
	"github.com/quittance/quittance/protocol"
)

// Param is a query or header parameter of an operation.
type Param struct {
	Name     string
	Header   bool
	Required bool
	Text     string
	Enum     []string
}

// Operation describes one route.
type Operation struct {
	Route    api.Route
	Summary  string
	Params   []Param
	Request  any   // a pointer to the message, nil for none, [Raw] for bytes
	Response any   // likewise
	Statuses []int // of success
}

// Raw stands for exact bytes of a media type.
type Raw string

type object = map[string]any

// Document is the whole description, deterministic.
func Document() []byte {
	g := &generator{schemas: object{}}
	paths := object{}
	for _, op := range Operations() {
		path, _ := paths[op.Route.Path].(object)
		if path == nil {
			path = object{}
			paths[op.Route.Path] = path
		}
		path[strings.ToLower(op.Route.Method)] = g.operation(op)
	}
	problem := g.reference(reflect.TypeFor[api.Problem]())
	document := object{
		"openapi":           "3.1.0",
		"jsonSchemaDialect": "https://json-schema.org/draft/2020-12/schema",
		"info": object{
			"title": "Quittance job service", "version": strconv.Itoa(api.Version),
			"license":     object{"name": "Apache-2.0", "identifier": "Apache-2.0"},
			"description": "Every object is closed within a version. Errors are RFC 9457 problems with a stable code, the effect of the refused request and the next action.",
		},
		"paths": paths,
		"components": object{
			"schemas": g.schemas,
			"responses": object{"Problem": object{
				"description": "The request was refused, or failed; effect says whether anything may have changed.",
				"headers":     object{api.HeaderRequestID: object{"schema": object{"type": "string"}}},
				"content":     object{api.ContentProblem: object{"schema": problem}},
			}},
			"securitySchemes": object{
				"token": object{"type": "http", "scheme": "bearer", "description": "A token of a workspace with role reader, submitter or admin."},
				"grant": object{"type": "http", "scheme": "bearer", "description": "The bearer of a read grant."},
				"signature": object{"type": "apiKey", "in": "header", "name": "Signature",
					"description": "RFC 9421, label sig, Ed25519, over @method, @target-uri and, with a body, content-digest; created, expires, keyid, nonce."},
			},
		},
	}
	encoded, err := json.Marshal(document, json.Deterministic(true), jsontext.WithIndent("  "))
	if err != nil {
		panic(fmt.Sprintf("openapi: %v", err)) // only our own types are in it
	}
	return append(encoded, '\n')
}

func (g *generator) operation(op Operation) object {
	var parameters []any
	for _, part := range strings.Split(op.Route.Path, "/") {
		if name, ok := strings.CutPrefix(part, "{"); ok {
			parameters = append(parameters, object{"name": strings.TrimSuffix(name, "}"), "in": "path", "required": true, "schema": object{"type": "string"}})
		}
	}
	if op.Route.Name != "store" && op.Route.Name != "openapi" {
		parameters = append(parameters, object{
			"name": api.HeaderVersion, "in": "header", "required": op.Route.Provider || op.Route.Method != "GET",
			"schema": object{"type": "string", "const": strconv.Itoa(api.Version)},
		})
	}
	for _, p := range op.Params {
		schema := object{"type": "string"}
		if len(p.Enum) != 0 {
			schema["enum"] = p.Enum
		}
		in := "query"
		if p.Header {
			in = "header"
		}
		parameters = append(parameters, object{"name": p.Name, "in": in, "required": p.Required, "description": p.Text, "schema": schema})
	}
	described := object{"operationId": op.Route.Name, "summary": op.Summary, "security": security(op.Route)}
	if len(parameters) != 0 {
		described["parameters"] = parameters
	}
	if op.Request != nil {
		described["requestBody"] = object{"required": true, "content": g.content(op.Request),
			"description": fmt.Sprintf("At most %d bytes.", op.Route.MaxRequest)}
	}
	responses := object{"default": object{"$ref": "#/components/responses/Problem"}}
	for _, status := range op.Statuses {
		headers := object{api.HeaderRequestID: object{"schema": object{"type": "string"}}}
		if op.Route.Provider {
			headers[api.HeaderTopology] = object{"schema": object{"type": "string"}}
		}
		responses[strconv.Itoa(status)] = object{"description": success(status), "headers": headers, "content": g.content(op.Response)}
	}
	described["responses"] = responses
	return described
}

func success(status int) string {
	if status == 201 {
		return "Done now."
	}
	return "The answer, or what an earlier equal request did."
}

func security(route api.Route) []any {
	switch {
	case route.Provider:
		return []any{object{"signature": []any{}}}
	case route.Name == "openapi":
		return []any{}
	case route.Name == "store":
		return []any{object{"grant": []any{}}}
	}
	return []any{object{"token": []any{}}}
}

func (g *generator) content(message any) object {
	if raw, ok := message.(Raw); ok {
		return object{string(raw): object{}}
	}
	return object{api.ContentJSON: object{"schema": g.reference(reflect.TypeOf(message).Elem())}}
}

// generator turns types into component schemas.
type generator struct{ schemas object }

// enums are the closed lists of named strings.
var enums = map[reflect.Type][]string{
	reflect.TypeFor[api.Code]():               texts(api.Codes()),
	reflect.TypeFor[api.Condition]():          texts(api.Conditions()),
	reflect.TypeFor[api.FailureCode]():        texts(api.FailureCodes()),
	reflect.TypeFor[api.Effect]():             {string(api.EffectNone), string(api.EffectUnknown)},
	reflect.TypeFor[api.Phase]():              {string(api.PhasePreparing), string(api.PhaseRunning)},
	reflect.TypeFor[api.InputSource]():        {string(api.InputFromJob), string(api.InputFromUpload)},
	reflect.TypeFor[api.Trust]():              texts([]api.Trust{api.TrustVerified, api.TrustAnnounced, api.TrustInvalid}),
	reflect.TypeFor[api.JobState]():           texts([]api.JobState{api.JobOpen, api.JobClosed, api.JobFinished, api.JobFailed, api.JobCancelled, api.JobExpired}),
	reflect.TypeFor[api.AttemptState]():       texts([]api.AttemptState{api.AttemptInProgress, api.AttemptCompleted, api.AttemptFailed, api.AttemptExpired}),
	reflect.TypeFor[protocol.Verdict]():       texts([]protocol.Verdict{protocol.VerdictKilled, protocol.VerdictNotKilled, protocol.VerdictUnknown}),
	reflect.TypeFor[protocol.Scope]():         texts([]protocol.Scope{protocol.ScopeContainer, protocol.ScopeHost, protocol.ScopeDaemon, protocol.ScopeUnknown}),
	reflect.TypeFor[protocol.CounterSource](): texts([]protocol.CounterSource{protocol.CountersFromV2, protocol.CountersFromV1, protocol.CountersFromNone}),
	reflect.TypeFor[protocol.ExitSource]():    texts([]protocol.ExitSource{protocol.ExitFromEngine, protocol.ExitFromPIDFD, protocol.ExitFromReboot, protocol.ExitFromNone}),
}

func texts[T ~string](list []T) []string {
	out := make([]string, len(list))
	for i, item := range list {
		out[i] = string(item)
	}
	return out
}

// forms are scalars with a written form.
var forms = map[reflect.Type]object{
	reflect.TypeFor[protocol.ID]():        {"type": "string", "pattern": "^[0-9a-f]{32}$"},
	reflect.TypeFor[protocol.Timestamp](): {"type": "string", "pattern": `^[0-9]{4}-[0-9]{2}-[0-9]{2}T[0-9]{2}:[0-9]{2}:[0-9]{2}\.[0-9]{6}Z$`},
	reflect.TypeFor[api.Bytes]():          {"type": "string", "contentEncoding": "base64"},
	reflect.TypeFor[jsontext.Value]():     {},
	reflect.TypeFor[protocol.Digest]():    {"type": "string", "pattern": "^sha256:[0-9a-f]{64}$"},
}

// special are members whose form differs from their type's.
var special = map[string]object{
	// Empty while the profile is unavailable.
	"HelloOffering.profile_digest": {"type": "string", "pattern": "^(sha256:[0-9a-f]{64})?$"},
}

func (g *generator) schema(t reflect.Type) object {
	if form, ok := forms[t]; ok {
		return maps.Clone(form)
	}
	if values, ok := enums[t]; ok {
		return object{"type": "string", "enum": values}
	}
	switch t.Kind() {
	case reflect.Pointer:
		return object{"anyOf": []any{g.schema(t.Elem()), object{"type": "null"}}}
	case reflect.Struct:
		return g.reference(t)
	case reflect.Slice:
		return object{"type": "array", "items": g.schema(t.Elem())}
	case reflect.String:
		return object{"type": "string"}
	case reflect.Bool:
		return object{"type": "boolean"}
	case reflect.Int, reflect.Int64:
		return object{"type": "integer"}
	}
	panic("openapi: no schema for " + t.String())
}

// reference names a struct's schema, writing it at the first use.
func (g *generator) reference(t reflect.Type) object {
	name := t.Name()
	reference := object{"$ref": "#/components/schemas/" + name}
	if _, known := g.schemas[name]; known {
		return reference
	}
	g.schemas[name] = nil // a type may hold itself
	properties, required := object{}, []string{}
	for i := range t.NumField() {
		field := t.Field(i)
		member, options, _ := strings.Cut(field.Tag.Get("json"), ",")
		if form, ok := special[name+"."+member]; ok {
			properties[member] = maps.Clone(form)
		} else {
			properties[member] = g.schema(field.Type)
		}
		if options != "omitempty" {
			required = append(required, member)
		}
	}
	slices.Sort(required)
	g.schemas[name] = object{"type": "object", "additionalProperties": false, "properties": properties, "required": required}
	return reference
}
