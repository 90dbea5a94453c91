package worker

import (
	"context"
	"net/http"
	"strings"
	"time"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"

	"github.com/quittance/quittance/controller/internal/offering"
	"github.com/quittance/quittance/protocol"
)

// kserve is the dialect of the Open Inference Protocol, version 2. The job's
// input is an inference request without an id; the attempt's key becomes it and
// must come back.
type kserve struct {
	offer *offering.Offering
	id    string
}

// kserveHealth is the protocol's own path of readiness.
const kserveHealth = "/v2/health/ready"

// kserveWant is what an answer must repeat.
type kserveWant struct {
	model string
	id    string
}

// tensor is one input or output.
type tensor struct {
	Name       *string                   `json:"name"`
	Shape      []int64                   `json:"shape"`
	DataType   string                    `json:"datatype"`
	Parameters map[string]jsontext.Value `json:"parameters"`
	Data       jsontext.Value            `json:"data"`
}

// dataTypes are those that JSON can carry, with the kind of their elements.
var dataTypes = map[string]jsontext.Kind{
	"BOOL": 't', "UINT8": '0', "UINT16": '0', "UINT32": '0', "UINT64": '0', "INT8": '0', "INT16": '0', "INT32": '0', "INT64": '0',
	"FP32": '0', "FP64": '0', "BYTES": '"',
}

// maxElements bounds one tensor; more would not fit a result anyway.
const maxElements = 32 << 20

// check says what is wrong with a tensor, or "".
func (t tensor) check() string {
	kind, known := dataTypes[t.DataType]
	switch {
	case t.Name == nil || *t.Name == "":
		return "has no name"
	case !known:
		return "has a datatype that is not one of the protocol's JSON ones"
	case t.Shape == nil:
		return "has no shape"
	case t.Data.Kind() != '[':
		return "has no data"
	}
	want := int64(1)
	for _, extent := range t.Shape {
		if extent < 0 || extent > maxElements {
			return "has an impossible shape"
		}
		if want *= extent; want > maxElements {
			return "has an impossible shape"
		}
	}
	got, uniform := elements(t.Data, kind)
	if !uniform {
		return "has data of another type than its datatype"
	}
	if got != want {
		return "has data that do not fit its shape"
	}
	return ""
}

// elements counts the elements of data, flat or nested by its dimensions.
func elements(data jsontext.Value, kind jsontext.Kind) (n int64, uniform bool) {
	tokens := jsontext.NewDecoder(strings.NewReader(string(data)))
	for {
		token, err := tokens.ReadToken()
		if err != nil {
			return n, true // the value was decoded before: this is its end
		}
		switch k := token.Kind(); {
		case k == '[' || k == ']':
		case k == kind || kind == 't' && k == 'f':
			n++
		default:
			return n, false
		}
	}
}

func (d kserve) admit(in Input) (request, error) {
	data, err := in.read()
	if err != nil {
		return request{}, err
	}
	var members map[string]jsontext.Value
	if jsontext.Value(data).Kind() != '{' || json.Unmarshal(data, &members) != nil {
		return request{}, fail(InvalidInput, nil, "the input is not an inference request object")
	}
	if _, has := members["id"]; has {
		return request{}, fail(InvalidInput, nil, "the input has an id; leave it out, the attempt's key takes its place")
	}
	var inputs []tensor
	if err := json.Unmarshal(members["inputs"], &inputs); err != nil || len(inputs) == 0 {
		return request{}, fail(InvalidInput, nil, "inputs is required: a list of tensors")
	}
	for i, t := range inputs {
		if wrong := t.check(); wrong != "" {
			return request{}, fail(InvalidInput, nil, "input %d %s", i, wrong)
		}
	}
	id, err := json.Marshal(d.id)
	if err != nil {
		return request{}, fail(Protocol, err, "the attempt's key is no text")
	}
	members["id"] = id
	body, err := json.Marshal(members, json.Deterministic(true))
	if err != nil {
		return request{}, fail(Protocol, err, "the inference request cannot be built")
	}
	return request{body: MemoryInput("application/json", body), want: kserveWant{model: offering.KServeModel(d.offer.Request.Path), id: d.id}}, nil
}

// kserveInterval is between two looks at the server's readiness.
const kserveInterval = 100 * time.Millisecond

// ready waits until the server says that it is; the offering's prepare_timeout
// bounds it.
func (d kserve) ready(ctx context.Context, dial Dialer, report Report) error {
	return Ready(ctx, dial, protocol.ReadyRule{
		HTTP: kserveHealth, Status: http.StatusOK,
		TimeoutMillis: d.offer.PrepareTimeout.Milliseconds(), IntervalMillis: kserveInterval.Milliseconds(),
	}, report)
}

func (kserve) prepare(_ context.Context, _ *stream, r request, _ Report) (request, error) {
	return r, nil
}

func (d kserve) execute(ctx context.Context, s *stream, r request) (Outcome, error) {
	rule := d.offer.Response
	m := message{method: http.MethodPost, path: d.offer.Request.Path, accept: rule.ContentType, body: r.body}
	var out Outcome
	err := s.exchange(ctx, m, func(resp *http.Response) error {
		data, err := s.result(resp, rule)
		if err != nil {
			return err
		}
		claims, err := r.want.(kserveWant).check(data)
		if err != nil {
			return err
		}
		if err := checkSchema(rule, data); err != nil {
			return err
		}
		out = Outcome{ContentType: rule.ContentType, Body: data, Warnings: warnings(resp), Claims: claims}
		return nil
	})
	return out, err
}

// kserveAnswer is what this package reads of an answer.
type kserveAnswer struct {
	ModelName    string         `json:"model_name"`
	ModelVersion *string        `json:"model_version"`
	ID           string         `json:"id"`
	Error        jsontext.Value `json:"error"`
	Outputs      []tensor       `json:"outputs"`
}

// check holds an answer against its request.
func (w kserveWant) check(data []byte) ([]Claim, error) {
	var said kserveAnswer
	if jsontext.Value(data).Kind() != '{' || json.Unmarshal(data, &said) != nil {
		return nil, fail(Protocol, nil, "the answer is not one inference response object with members of the right types")
	}
	if isSet(said.Error) {
		return nil, workerSaid(data)
	}
	switch {
	case said.ID != w.id:
		return nil, fail(Protocol, nil, "the answer's id is not the request's")
	case said.ModelName != w.model:
		return nil, fail(Protocol, nil, "the answer is of another model than the request's")
	case len(said.Outputs) == 0:
		return nil, fail(Protocol, nil, "the answer has no outputs")
	}
	for i, t := range said.Outputs {
		if wrong := t.check(); wrong != "" {
			return nil, fail(Protocol, nil, "output %d %s", i, wrong)
		}
	}
	claims := claim(nil, "model", said.ModelName)
	if said.ModelVersion != nil {
		claims = claim(claims, "model_version", *said.ModelVersion)
	}
	return claims, nil
}
