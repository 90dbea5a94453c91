package records

import (
	"bytes"
	"errors"
	"strconv"

	"github.com/go-json-experiment/json/jsontext"
	"github.com/santhosh-tekuri/jsonschema/v6"

	"github.com/quittance/quittance/controller/api"
)

// pointer is the JSON pointer of an array's item.
func pointer(array string, index int) string { return array + "/" + strconv.Itoa(index) }

// acceptable refuses a creation that no provider could run: an unknown kind, an
// input against every announced offering's rules, or missing uploads.
func (t *transaction) acceptable(workspace string, create *api.CreateJob, input api.Identity, data []byte) error {
	var offerings []api.HelloOffering
	if err := t.rows(func(scan func(...any) error) error {
		var body []byte
		if err := scan(&body); err != nil {
			return err
		}
		var offering api.HelloOffering
		if err := api.Decode(body, api.RouteHello.MaxRequest, &offering); err != nil {
			return err
		}
		offerings = append(offerings, offering)
		return nil
	}, `SELECT body FROM offerings WHERE kind = ? ORDER BY provider`, create.Kind); err != nil {
		return err
	}
	if len(offerings) == 0 {
		return refuseField(api.CodeUnknownKind, "/kind")
	}
	if err := t.available(workspace, create.Uploads); err != nil {
		return err
	}
	var first *api.Problem
	for i := range offerings {
		problem, err := t.fits(&offerings[i].Input, create, input, data)
		if err != nil {
			return err
		}
		if problem == nil {
			return nil
		}
		if first == nil {
			first = problem
		}
	}
	return first
}

// fits checks a creation against one offering's rules. Messages name the place
// and the rule, never the value (I37).
func (t *transaction) fits(rule *api.HelloInput, create *api.CreateJob, input api.Identity, data []byte) (*api.Problem, error) {
	if rule.From == api.InputFromUpload {
		if len(create.Uploads) != 1 {
			return invalidInput("/uploads", "This kind takes its input from exactly one upload."), nil
		}
		var length int64
		if _, err := t.row([]any{&length}, `SELECT length FROM uploads WHERE upload = ?`, create.Uploads[0]); err != nil {
			return nil, err
		}
		if length > rule.MaxBytes {
			return invalidInput("/uploads/0", "The upload is longer than the "+strconv.FormatInt(rule.MaxBytes, 10)+" bytes that this kind takes."), nil
		}
	} else if input.Length > rule.MaxBytes {
		return invalidInput("/input", "The input is longer than the "+strconv.FormatInt(rule.MaxBytes, 10)+" bytes that this kind takes."), nil
	}
	if rule.Schema == nil || rule.Schema.Kind() == 'n' {
		return nil, nil
	}
	return checkSchema(rule.Schema, data)
}

func invalidInput(field, detail string) *api.Problem {
	problem := api.NewProblem(api.CodeInvalidInput, detail, "Correct the input; the offering's rules are at /v1/offerings.")
	problem.Field = field
	return problem
}

// noLoader refuses references to other documents: nothing in Quittance fetches a
// URL that it found in a message.
type noLoader struct{}

// Load implements jsonschema.URLLoader.
func (noLoader) Load(string) (any, error) {
	return nil, errors.New("references to other documents are not followed")
}

// compile reads a JSON Schema that refers to nothing outside itself.
func compile(schema []byte) (*jsonschema.Schema, error) {
	document, err := jsonschema.UnmarshalJSON(bytes.NewReader(schema))
	if err != nil {
		return nil, err
	}
	compiler := jsonschema.NewCompiler()
	compiler.UseLoader(noLoader{})
	const location = "offering:input"
	if err := compiler.AddResource(location, document); err != nil {
		return nil, err
	}
	return compiler.Compile(location)
}

// CheckSchemas refuses an announcement whose JSON Schemas cannot be used.
func CheckSchemas(hello *api.Hello) error {
	for i := range hello.Offerings {
		schema := hello.Offerings[i].Input.Schema
		if schema == nil || schema.Kind() == 'n' {
			continue
		}
		if _, err := compile(schema); err != nil {
			return malformed(pointer("/offerings", i)+"/input/schema", "is not a JSON Schema that can be used alone")
		}
	}
	return nil
}

func checkSchema(schema, data []byte) (*api.Problem, error) {
	compiled, err := compile(schema)
	if err != nil {
		return nil, err // hello refuses such a schema
	}
	value, err := jsonschema.UnmarshalJSON(bytes.NewReader(data))
	if err != nil || !jsontext.Value(data).IsValid() {
		return invalidInput("/input", "The input is not one JSON value, which this kind requires."), nil
	}
	if err := compiled.Validate(value); err != nil {
		where := "/input"
		var failed *jsonschema.ValidationError
		if errors.As(err, &failed) {
			leaf := failed
			for len(leaf.Causes) > 0 {
				leaf = leaf.Causes[0]
			}
			for _, part := range leaf.InstanceLocation {
				where += "/" + part
			}
			return invalidInput(where, "The input breaks the offering's JSON Schema at its keyword "+keyword(leaf)+"."), nil
		}
		return invalidInput(where, "The input breaks the offering's JSON Schema."), nil
	}
	return nil, nil
}

func keyword(failed *jsonschema.ValidationError) string {
	path := failed.ErrorKind.KeywordPath()
	if len(path) == 0 {
		return "schema"
	}
	return path[0]
}
