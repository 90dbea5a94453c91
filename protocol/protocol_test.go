package protocol

import (
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
		`{"profile":`:                     "",
		``:                                "is empty; a JSON object is required",
		`null`:                            "",
		`[]`:                              "",
		`{"profile":"` + "\xff" + `"}`:    "/profile: is not valid UTF-8",
	} {
		var r AllocateRequest
		err := DecodeStrict([]byte(in), 1000, &r)
		t.Logf("%s -> %v", in, err)
		if err == nil || want != "" && err.Error() != want {
			t.Errorf("%s: got %v, want %q", in, err, want)
		}
	}
}
