package wire

import (
	"bytes"
	"io"
	"slices"
	"strings"
	"testing"
)

func TestMessagesCross(t *testing.T) {
	var port bytes.Buffer
	sent := []Message{{0, Hello, "boot"}, {7, Note, "two\nlines"}, {7, Pass, ""}}
	w := NewWriter(&port)
	for _, m := range sent {
		if err := w.Write(m); err != nil {
			t.Fatal(err)
		}
	}
	if got := strings.Count(port.String(), "\n"); got != len(sent) {
		t.Errorf("%d lines for %d messages", got, len(sent))
	}
	var got []Message
	if err := Read(&port, func(m Message) { got = append(got, m) }); err != nil {
		t.Fatal(err)
	}
	if !slices.Equal(got, sent) {
		t.Errorf("read %v", got)
	}
}

// The power goes in the middle of a line: that line was never said.
func TestCutLineIsNoMessage(t *testing.T) {
	var got []Message
	err := Read(strings.NewReader(`{"id":1,"kind":"note","text":"a"}`+"\n"+`{"id":1,"kind":"note","te`), func(m Message) { got = append(got, m) })
	if err != nil || len(got) != 1 || got[0].Text != "a" {
		t.Errorf("read %v, %v", got, err)
	}
}

func TestMalformedLinesAreErrors(t *testing.T) {
	for name, text := range map[string]string{
		"no object":      "7\n",
		"unknown member": `{"id":1,"kind":"say","text":"","more":1}` + "\n",
		"wrong type":     `{"id":"1","kind":"say","text":""}` + "\n",
	} {
		if err := Read(strings.NewReader(text), func(Message) {}); err == nil {
			t.Errorf("%s was read", name)
		}
	}
}

// I33: neither side writes or keeps a line beyond the ceiling.
func TestLongLinesAreRefused(t *testing.T) {
	long := strings.Repeat("x", maxLine)
	if err := NewWriter(io.Discard).Write(Message{1, Say, long}); err == nil {
		t.Error("a message beyond the ceiling was written")
	}
	if err := Read(strings.NewReader(long+"\n"), func(Message) {}); err == nil {
		t.Error("a line beyond the ceiling was read")
	}
}

func TestFinal(t *testing.T) {
	for kind, final := range map[Kind]bool{Hello: false, Say: false, Note: false, Pass: true, Fail: true} {
		if kind.Final() != final {
			t.Errorf("%s: final %v", kind, kind.Final())
		}
	}
}
