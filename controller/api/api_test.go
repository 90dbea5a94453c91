package api

import (
	"bytes"
	"errors"
	"strings"
	"testing"

	"github.com/quittance/quittance/protocol"
)

const startJSON = `{"key":"k-1","job":"job-00000000000000000000000000000001","kind":"ocr.page.v1",` +
	`"store":"00000000000000000000000000000002","lane":0,` +
	`"input":{"schema":"text/plain","length":2,"sha256":"sha256:8f434346648f6b96df89dda901c5176b10a6d83961dd3c1ac88b59b2dc327aa4"}}`

// I34: closed objects, every member named, no value echoed.
func TestDecodeRefusesWhatIsNotExactlyTheMessage(t *testing.T) {
	rows := []struct{ name, from, to, field, reason string }{
		{"unknown member", `"lane":0`, `"lane":0,"extra":1`, "/extra", "is not a member"},
		{"missing member", `"lane":0,`, ``, "/lane", "is missing"},
		{"missing nested member", `"length":2,`, ``, "/input/length", "is missing"},
		{"duplicate member", `"lane":0`, `"lane":0,"lane":0`, "/lane", "occurs twice"},
		{"wrong case", `"lane"`, `"Lane"`, "/lane", "is missing"},
		{"wrong type", `"lane":0`, `"lane":"0"`, "/lane", "wrong type"},
		{"float", `"lane":0`, `"lane":0.5`, "/lane", "wrong type"},
		{"null", `"lane":0`, `"lane":null`, "/lane", "must not be null"},
		{"trailing bytes", `aa4"}}`, `aa4"}} ` + "{}", "", "after its end"},
		{"bad digest", `sha256:8f`, `sha256:8F`, "/input/sha256", "must be sha256:"},
		{"negative length", `"length":2`, `"length":-1`, "/input/length", "must be from 0"},
		{"bad job", `job-0`, `job-x`, "/job", "must be job-"},
		{"bad key", `k-1`, `k 1`, "/key", "must be 1 to 128"},
		{"invalid UTF-8", `k-1`, "k\xff", "/key", "UTF-8"},
	}
	var whole Start
	if err := Decode([]byte(startJSON), RouteStart.MaxRequest, &whole); err != nil {
		t.Fatalf("the message itself: %v", err)
	}
	if got := string(Encode(&whole)); got != startJSON {
		t.Fatalf("encoded form differs:\n%s\n%s", got, startJSON)
	}
	for _, row := range rows {
		t.Run(row.name, func(t *testing.T) {
			input := strings.Replace(startJSON, row.from, row.to, 1)
			if input == startJSON {
				t.Fatal("the row changes nothing")
			}
			err := Decode([]byte(input), RouteStart.MaxRequest, new(Start))
			var refused *protocol.DecodeError
			if !errors.As(err, &refused) {
				t.Fatalf("accepted or untyped: %v", err)
			}
			if refused.Field != row.field || !strings.Contains(refused.Reason, row.reason) {
				t.Fatalf("got %q %q, want %q … %q", refused.Field, refused.Reason, row.field, row.reason)
			}
		})
	}
	if err := Decode([]byte(startJSON), 10, new(Start)); err == nil || !strings.Contains(err.Error(), "longer than 10 bytes") {
		t.Fatalf("over the ceiling: %v", err)
	}
}

// I34: one spelling per byte string.
func TestBytesAreCanonicalBase64(t *testing.T) {
	for _, bad := range []string{"aGk", "aGk=\n", "aG\nk=", "aGl=", "aGk==", " aGk=", "aGk_", "-Gk=", "="} {
		var b Bytes
		if err := b.UnmarshalText([]byte(bad)); err == nil {
			t.Errorf("%q was accepted", bad)
		}
	}
	for text, want := range map[string]string{"": "", "aGk=": "hi", "aA==": "h", "aGlp": "hii"} {
		var b Bytes
		if err := b.UnmarshalText([]byte(text)); err != nil || string(b) != want {
			t.Errorf("%q: %q, %v", text, b, err)
		}
	}
}

// I33: the bytes of a COMPLETE are those that it describes.
func TestCompleteChecksItsOwnBytes(t *testing.T) {
	good := Complete{
		Attempt: NewAttemptID(), Schema: "application/json", Length: 2, SHA256: protocol.DigestOf([]byte("{}")), Data: Bytes("{}"),
		Provenance: Provenance{Executions: []Execution{}, Claimed: []Claim{}},
	}
	if err := Decode(Encode(&good), RouteComplete.MaxRequest, new(Complete)); err != nil {
		t.Fatal(err)
	}
	other := good
	other.Data = Bytes("[]")
	if err := other.Validate(); err == nil || !strings.Contains(err.Error(), "/sha256") {
		t.Fatalf("other bytes: %v", err)
	}
	other = good
	other.Length = 3
	if err := other.Validate(); err == nil || !strings.Contains(err.Error(), "/length") {
		t.Fatalf("other length: %v", err)
	}
	largest := good
	largest.Data = make(Bytes, MaxResultBytes)
	largest.Length, largest.SHA256 = MaxResultBytes, protocol.DigestOf(largest.Data)
	encoded := Encode(&largest)
	if int64(len(encoded)) > RouteComplete.MaxRequest {
		t.Fatalf("the largest result takes %d bytes, over the route's ceiling", len(encoded))
	}
	if err := Decode(encoded, RouteComplete.MaxRequest, new(Complete)); err != nil {
		t.Fatalf("the largest result: %v", err)
	}
}

func TestFailMessageIsBoundedInScalars(t *testing.T) {
	fail := Fail{Attempt: NewAttemptID(), Code: FailWorkerFailed, Message: strings.Repeat("𝄞", MaxMessageScalars)}
	encoded := Encode(&fail)
	if err := Decode(encoded, RouteFail.MaxRequest, new(Fail)); err != nil {
		t.Fatalf("1,024 four-byte scalars: %v", err)
	}
	fail.Message += "x"
	if err := fail.Validate(); err == nil || !strings.Contains(err.Error(), "/message") {
		t.Fatalf("one more: %v", err)
	}
	fail.Message, fail.Code = "", "made_up"
	if err := fail.Validate(); err == nil || !strings.Contains(err.Error(), "/code") {
		t.Fatalf("foreign code: %v", err)
	}
}

func TestCreateJobTakesOneFormOfInput(t *testing.T) {
	rows := []struct{ input, schema, data, refused string }{
		{`{"kind":"k"}`, "application/octet-stream", "", ""},
		{`{"kind":"k","input":{"text":"hé"}}`, "text/plain", "hé", ""},
		{`{"kind":"k","input":{"json":{"b":1, "a":[]}}}`, "application/json", `{"b":1, "a":[]}`, ""},
		{`{"kind":"k","input":{"base64":"AAE=","schema":"image/png"}}`, "image/png", "\x00\x01", ""},
		{`{"kind":"k","input":{}}`, "", "", "/input"},
		{`{"kind":"k","input":{"text":"a","json":1}}`, "", "", "/input"},
		{`{"kind":"k","input":{"base64":"AAE"}}`, "", "", "/input/base64"},
		{`{"kind":"K"}`, "", "", "/kind"},
		{`{"kind":"k","uploads":["up-1"]}`, "", "", "/uploads/0"},
		{`{"kind":"k","cancel_after_ms":0}`, "", "", "/cancel_after_ms"},
		{`{"kind":"k","labels":[{"name":"a","value":"1"},{"name":"a","value":"2"}]}`, "", "", "/labels/1/name"},
	}
	for _, row := range rows {
		var create CreateJob
		err := Decode([]byte(row.input), RouteCreateJob.MaxRequest, &create)
		if row.refused != "" {
			var refused *protocol.DecodeError
			if !errors.As(err, &refused) || refused.Field != row.refused {
				t.Errorf("%s: got %v, want a refusal of %s", row.input, err, row.refused)
			}
			continue
		}
		if err != nil {
			t.Errorf("%s: %v", row.input, err)
			continue
		}
		if schema, data := create.Input.Bytes(); schema != row.schema || string(data) != row.data {
			t.Errorf("%s: %q %q", row.input, schema, data)
		}
	}
}

// Every code of the closed lists has its text and an error status.
func TestClosedListsAreWhole(t *testing.T) {
	for _, c := range Conditions() {
		if text, ok := c.Text(); !ok || text.Message == "" || text.Next == "" {
			t.Errorf("condition %s has no text", c)
		}
	}
	for _, c := range FailureCodes() {
		if text, ok := c.Text(); !ok || text.Message == "" || text.Next == "" {
			t.Errorf("failure %s has no text", c)
		}
	}
	if len(conditionTexts) != len(Conditions()) || len(failureTexts) != len(FailureCodes()) {
		t.Error("a text belongs to no listed code")
	}
	for _, c := range Codes() {
		if c.Status() < 400 {
			t.Errorf("code %s has status %d", c, c.Status())
		}
	}
}

// Whatever is accepted is written back in a form that is accepted again and
// means the same; nothing else happens for any input.
func FuzzDecode(f *testing.F) {
	f.Add([]byte(startJSON))
	f.Add([]byte(`{"kind":"k","input":{"base64":"AAE="},"labels":[{"name":"a","value":""}]}`))
	f.Add([]byte(`{"attempt":"att-00000000000000000000000000000001","code":"protocol","message":"m","next":"","entered":true,"provenance":null}`))
	f.Fuzz(func(t *testing.T, data []byte) {
		for _, pair := range [][2]any{
			{new(Hello), new(Hello)}, {new(Start), new(Start)}, {new(Progress), new(Progress)}, {new(Complete), new(Complete)},
			{new(Fail), new(Fail)}, {new(HostReceipts), new(HostReceipts)}, {new(GrantRequest), new(GrantRequest)}, {new(CreateJob), new(CreateJob)},
			{new(Admission), new(Admission)}, {new(Feed), new(Feed)}, {new(Problem), new(Problem)},
		} {
			if Decode(data, 1<<20, pair[0]) != nil {
				continue
			}
			again := Encode(pair[0])
			if err := Decode(again, 8<<20, pair[1]); err != nil {
				t.Fatalf("%T: %v in %s", pair[0], err, again)
			}
			if !bytes.Equal(Encode(pair[1]), again) {
				t.Fatalf("%T: %s changes when it is read again", pair[0], again)
			}
		}
	})
}
