package protocol

import (
	"reflect"
	"strings"
	"testing"
)

// The example of the design, byte for byte.
func TestReceiptCanonicalBytes(t *testing.T) {
	leaf := EncodeReceipt("0123456789abcdef0123456789abcdef", 42, KindConsumed, 7, 1796046230776540, ConsumedBody{40, DigestOf(nil)})
	want := `{"v":1,"generation":"0123456789abcdef0123456789abcdef","index":42,"kind":"consumed","number":7,"at":"2026-11-30T13:43:50.776540Z","body":{"retired_index":40,"retired_leaf":"sha256:e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855"}}`
	if string(leaf) != want {
		t.Fatalf("\n got %s\nwant %s", leaf, want)
	}
	if _, err := DecodeReceipt(leaf); err != nil {
		t.Fatal(err)
	}
}

func TestDecodeStrictNamesFieldNotValue(t *testing.T) {
	for in, want := range map[string]string{
		`{"profile":"ocr","profile":"x"}`: "/profile: occurs twice",
		`{"Profile":"ocr"}`:               "/Profile: is not a member of this object in this version",
		`{"profile":7}`:                   "/profile: has the wrong type or form: a number given",
		`{"profile":"ocr"} x`:             "has bytes after its end",
		`{"profile":`:                     "/profile: is not JSON (at byte 11)",
		``:                                "is empty; a JSON object is required",
		`null`:                            "has the wrong type or form: null given",
		`[]`:                              "has the wrong type or form: an array given",
		`{"profile":"` + "\xff" + `"}`:    "/profile: is not valid UTF-8",
	} {
		var r AllocateRequest
		err := DecodeStrict([]byte(in), 1000, &r)
		if err == nil || err.Error() != want {
			t.Errorf("%s: got %v, want %q", in, err, want)
		}
	}
}

// I34: null is a value of its own, not every type's zero.
func TestNullOnlyWhereThereIsOne(t *testing.T) {
	for in, want := range map[string]string{
		`null`:                                         "has the wrong type or form: null given",
		`{"purpose":"p","note":null}`:                  "/note: has the wrong type or form: null given",
		`{"frontier":1,"except":null}`:                 "/except: has the wrong type or form: null given",
		`{"frontier":1,"except":[null]}`:               "/except: has the wrong type or form: null given",
		`{"checkpoint":null,"highest":null}`:           "",
		`{"checkpoint":null,"highest":{"index":null}}`: "/highest/index: has the wrong type or form: null given",
		`{"disposition":"done","frontier":1,"carried":[],"receipt":null}`: "",
	} {
		var v any = new(RetireRequest)
		switch {
		case strings.Contains(in, "except"):
			v = new(ReleaseRequest)
		case strings.Contains(in, "highest"), in == "null":
			v = new(WitnessRequest)
		case strings.Contains(in, "carried"):
			v = new(ReleaseAnswer)
		}
		if err := DecodeStrict([]byte(in), 1000, v); err == nil && want != "" || err != nil && err.Error() != want {
			t.Errorf("%s: got %v, want %q", in, err, want)
		}
	}
}

// What a request's own rules refuse, with the field and not the value (I37).
func TestValidate(t *testing.T) {
	const hash = `"sha256:aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa"`
	for _, tc := range []struct {
		into     Validator
		in, want string
	}{
		{&AllocateRequest{}, `{"profile":"ocr","profile_digest":` + hash + `,"purpose":"a:b.c_d-E9"}`, ""},
		{&AllocateRequest{}, `{"profile":"OCR","profile_digest":` + hash + `,"purpose":"p"}`, "/profile: must be [a-z0-9-], 1 to 40 characters"},
		{&AllocateRequest{}, `{"profile":"ocr","profile_digest":"sha256:AA","purpose":"p"}`, "/profile_digest: must be sha256: and 64 lower-case hexadecimal digits"},
		{&AllocateRequest{}, `{"profile":"ocr","profile_digest":` + hash + `}`, "/purpose: must be 1 to 128 characters of A-Z a-z 0-9 . _ : -"},
		{&ChannelRequest{}, `{"purpose":"` + strings.Repeat("p", 129) + `"}`, "/purpose: must be 1 to 128 characters of A-Z a-z 0-9 . _ : -"},
		{&ChannelRequest{}, `{"purpose":"a/b"}`, "/purpose: must be 1 to 128 characters of A-Z a-z 0-9 . _ : -"},
		{&ChannelRequest{}, `{"purpose":"a\n"}`, "/purpose: must be 1 to 128 characters of A-Z a-z 0-9 . _ : -"},
		{&RetireRequest{}, `{"purpose":"p","note":"` + strings.Repeat("n", 512) + `"}`, ""},
		{&RetireRequest{}, `{"purpose":"p","note":"` + strings.Repeat("n", 513) + `"}`, "/note: is longer than 512 bytes"},
		{&ConsumeRequest{}, `{"purpose":"p","leaf_hash":"x"}`, "/leaf_hash: must be sha256: and 64 lower-case hexadecimal digits"},
		{&ReleaseRequest{}, `{"frontier":9,"except":[3,5]}`, ""},
		{&ReleaseRequest{}, `{"frontier":0,"except":[]}`, "/frontier: " + ErrNumber.Error()},
		{&ReleaseRequest{}, `{"frontier":9007199254740992,"except":[]}`, "/frontier: " + ErrNumber.Error()},
		{&ReleaseRequest{}, `{"frontier":9,"except":[5,3]}`, "/except: must be ascending numbers up to the frontier"},
		{&ReleaseRequest{}, `{"frontier":9,"except":[3,3]}`, "/except: must be ascending numbers up to the frontier"},
		{&ReleaseRequest{}, `{"frontier":9,"except":[10]}`, "/except: must be ascending numbers up to the frontier"},
		{&WitnessRequest{}, `{"checkpoint":null,"highest":{"index":-1,"leaf_hash":` + hash + `}}`, "/highest: must be an index from 0 and a SHA-256 leaf hash"},
		{&OwnerRequest{}, `{"owner":"x"}`, "/owner: must be 32 lower-case hexadecimal digits"},
	} {
		if err := DecodeStrict([]byte(tc.in), MaxBodyBytes, tc.into); err == nil && tc.want != "" || err != nil && err.Error() != tc.want {
			t.Errorf("%T %s: got %v, want %q", tc.into, tc.in, err, tc.want)
		}
	}
}

func TestParseNumber(t *testing.T) { // I5
	for in, want := range map[string]Number{"1": 1, "42": 42, "9007199254740991": MaxNumber} {
		if got, err := ParseNumber(in); err != nil || got != want || got.String() != in {
			t.Errorf("%q: %d %v", in, got, err)
		}
	}
	for _, in := range []string{"", "0", "-1", "+1", "01", "1.0", "1e3", " 1", "1 ", "0x1", "9007199254740992", "99999999999999999", "١", "1_000"} {
		if got, err := ParseNumber(in); err != ErrNumber {
			t.Errorf("%q: %d %v", in, got, err)
		}
	}
}

func TestTimestamp(t *testing.T) {
	for in, want := range map[string]Timestamp{"1970-01-01T00:00:00.000000Z": 0, "2026-11-30T13:43:50.776540Z": 1796046230776540, "1969-12-31T23:59:59.999999Z": -1} {
		var got Timestamp
		if err := got.UnmarshalText([]byte(in)); err != nil || got != want || got.String() != in {
			t.Errorf("%s: %d %v", in, got, err)
		}
	}
	for _, in := range []string{"", "2026-11-30T13:43:50Z", "2026-11-30T13:43:50.77654Z", "2026-11-30T13:43:50.7765401Z", "2026-11-30T13:43:50.776540+00:00", "2026-11-30 13:43:50.776540Z", "2026-13-30T13:43:50.776540Z"} {
		var got Timestamp
		if err := got.UnmarshalText([]byte(in)); err == nil {
			t.Errorf("%q was accepted", in)
		}
	}
}

// Every code has a status and a disposition of its own choosing; only our own
// faults leave the effect unknown.
func TestProblems(t *testing.T) {
	for code, want := range map[Code]int{
		CodeBadRequest: 400, CodeBadNumber: 400, CodeTooLarge: 413, CodeVersionRequired: 400, CodeUnknownVersion: 406, CodeNotFound: 404,
		CodeMethodNotAllowed: 405, CodeForbidden: 403, CodeOwnerRequired: 400, CodeOtherOwner: 403, CodeOtherGeneration: 409, CodeNumberConflict: 409,
		CodeSequenceGap: 409, CodeReleased: 410, CodeExhausted: 409, CodeWitnessRequired: 409, CodeLedgerBehind: 409, CodeCapacity: 409, CodeBudget: 409,
		CodeDeviceUnavailable: 409, CodeDraining: 409, CodeEngineUnavailable: 503, CodeProfileUnknown: 409, CodeProfileUnavailable: 409,
		CodeProfileChanged: 409, CodeHistoryFull: 409, CodeNoSpace: 503, CodeNotRetired: 409, CodeOtherReceipt: 409, CodeNotConsumed: 409,
		CodeNotStuck: 409, CodeBusy: 409, CodePruned: 410, CodeNotConnectable: 503, CodeExited: 409, CodeRetiring: 409, CodeChannelLimit: 409,
		CodeTooManyConnections: 429, CodeTimeout: 408, CodeInternal: 500, CodeUnavailable: 503,
	} {
		p := NewProblem(code, "detail", "next")
		disposition := Refused
		if code == CodeInternal || code == CodeUnavailable {
			disposition = Unknown
		}
		if p.Status != want || p.Disposition != disposition || p.Title == "" || p.Error() != string(code)+": detail" {
			t.Errorf("%s: %+v, want status %d", code, p, want)
		}
	}
}

func TestNewIDsAreValidAndDiffer(t *testing.T) {
	a, b := NewID(), NewID()
	if !a.Valid() || !b.Valid() || a == b {
		t.Errorf("%s %s", a, b)
	}
}

// What the formats do not have is a fault of the program.
func TestAppendCanonicalPanics(t *testing.T) {
	for name, v := range map[string]any{"float": 1.5, "map": map[string]int{"a": 1}, "invalid UTF-8": "\xff", "untagged": struct{ A int }{1}} {
		func() {
			defer func() {
				if recover() == nil {
					t.Errorf("%s: no panic", name)
				}
			}()
			AppendCanonical(nil, v)
		}()
	}
}

// FuzzDecodeReceipt: what is accepted is one canonical form (I34).
func FuzzDecodeReceipt(f *testing.F) {
	for _, r := range receiptRows {
		f.Add([]byte(leafOf(r)))
	}
	f.Add([]byte(leafOf(receiptRow{"novel", 7, nil, `{"a":[null,1.5]}`})))
	f.Fuzz(func(t *testing.T, leaf []byte) {
		r, err := DecodeReceipt(leaf)
		if err != nil {
			if _, ok := err.(*DecodeError); !ok {
				t.Errorf("error of type %T", err)
			}
			return
		}
		if got := AppendCanonical(nil, r); string(got) != string(leaf) {
			t.Errorf("%s is written back as %s", leaf, got)
		}
	})
}

// FuzzDecodeStrict: whatever the bytes, every message decodes to an error that
// names no value, or to something that is written and read back the same (I34).
func FuzzDecodeStrict(f *testing.F) {
	for i, r := range messageRows {
		f.Add(i, []byte(r.want))
	}
	f.Fuzz(func(t *testing.T, which int, data []byte) {
		if which < 0 || which >= len(messageRows) {
			return
		}
		kind := reflect.TypeOf(messageRows[which].message).Elem()
		first := reflect.New(kind).Interface()
		if err := DecodeStrict(data, MaxAnswerBytes, first); err != nil {
			if _, ok := err.(*DecodeError); !ok {
				t.Errorf("error of type %T", err)
			}
			return
		}
		written := AppendCanonical(nil, first)
		second := reflect.New(kind).Interface()
		if err := DecodeStrict(written, 2*MaxAnswerBytes, second); err != nil {
			t.Errorf("%s cannot be read back: %v", written, err)
			return
		}
		if again := AppendCanonical(nil, second); string(again) != string(written) {
			t.Errorf("%s became %s", written, again)
		}
	})
}

// I9, I34: a member that is left out is not read as zero or null.
func TestCheckPresence(t *testing.T) {
	hash := `"sha256:` + strings.Repeat("0", 64) + `"`
	for _, row := range []struct {
		v        any
		document string
		want     string
	}{
		{&WitnessRequest{}, `{"checkpoint":null,"highest":null}`, ""},
		{&WitnessRequest{}, `{}`, "/checkpoint: is missing"},
		{&WitnessRequest{}, `{"checkpoint":null}`, "/highest: is missing"},
		{&WitnessRequest{}, `{"checkpoint":null,"highest":{"leaf_hash":` + hash + `}}`, "/highest/index: is missing"},
		{&ReleaseRequest{}, `{"frontier":1}`, "/except: is missing"},
		{&Problem{}, `{"type":"t","title":"t","status":400,"code":"c","disposition":"refused","detail":"d","next":"n"}`, ""},
		{&AllocationList{}, `{"allocations":[{"number":1}]}`, "/allocations/0/state: is missing"},
		{&WitnessRequest{}, `not JSON`, ""}, // for DecodeStrict to say
	} {
		got := ""
		if err := CheckPresence([]byte(row.document), row.v); err != nil {
			got = err.Error()
		}
		if got != row.want {
			t.Errorf("%T %s: got %q, want %q", row.v, row.document, got, row.want)
		}
	}
}
