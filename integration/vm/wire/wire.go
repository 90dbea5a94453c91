// Package wire is what the tests on this side and the guest program inside the
// virtual machine say to each other over a virtio serial port: one JSON object
// a line.
//
// It owns the messages and their reading and writing. It must not know what a
// command does, nor how the port is made.
//
//	host → guest   {"id":7,"command":"oom-observe","arguments":[]}
//	guest → host   {"id":0,"kind":"hello","text":"<boot id>"}      once per start of the guest program
//	               {"id":7,"kind":"say","text":"…"}                any number: for people
//	               {"id":7,"kind":"note","text":"…"}               any number: for the test
//	               {"id":7,"kind":"pass"|"fail","text":"…"}        exactly one, the last
//
// A request with the number 0 and the command "alive" may come at any time and is
// answered at once, with that number.
//
// A note is written before the guest goes on: what was noted when the power was
// cut has left the machine.
package wire

import (
	"bufio"
	"fmt"
	"io"
	"sync"

	"github.com/go-json-experiment/json"
)

// maxLine bounds one message in bytes, the line feed included.
const maxLine = 1 << 20

// Alive is the command that asks for a sign of life.
const Alive = "alive"

// Request asks the guest to run one command.
type Request struct {
	ID        int64    `json:"id"` // from 1, never used again; 0 for [Alive]
	Command   string   `json:"command"`
	Arguments []string `json:"arguments"`
}

// Kind says what a message is.
type Kind string

// The kinds of messages.
const (
	Hello Kind = "hello"
	Say   Kind = "say"
	Note  Kind = "note"
	Pass  Kind = "pass"
	Fail  Kind = "fail"
)

// Final reports whether a message of this kind ends its command.
func (k Kind) Final() bool { return k == Pass || k == Fail }

// Message is what the guest says about one request.
type Message struct {
	ID   int64  `json:"id"`
	Kind Kind   `json:"kind"`
	Text string `json:"text"`
}

// Writer writes messages of either direction. It is safe for concurrent use.
type Writer struct {
	mu sync.Mutex
	w  io.Writer
}

// NewWriter writes to w.
func NewWriter(w io.Writer) *Writer { return &Writer{w: w} }

// Write writes one message in one call.
func (w *Writer) Write(message any) error {
	line, err := json.Marshal(message)
	if err != nil {
		return fmt.Errorf("virtual machine's port: %w", err)
	}
	line = append(line, '\n')
	if len(line) > maxLine {
		return fmt.Errorf("virtual machine's port: a message of %d bytes is longer than %d", len(line), maxLine)
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	if _, err := w.w.Write(line); err != nil {
		return fmt.Errorf("virtual machine's port: %w", err)
	}
	return nil
}

// Read reads messages from r until it ends and gives each to take. A line that
// is cut off by the end of r was never a message.
func Read[M Request | Message](r io.Reader, take func(M)) error {
	lines := bufio.NewReaderSize(r, 64<<10)
	var line []byte
	for {
		part, err := lines.ReadSlice('\n')
		line = append(line, part...)
		if len(line) > maxLine {
			return fmt.Errorf("virtual machine's port: a message is longer than %d bytes", maxLine)
		}
		if err == bufio.ErrBufferFull {
			continue
		}
		if err == io.EOF {
			return nil
		}
		if err != nil {
			return fmt.Errorf("virtual machine's port: %w", err)
		}
		var m M
		if err := json.Unmarshal(line, &m, json.RejectUnknownMembers(true)); err != nil {
			return fmt.Errorf("virtual machine's port: %w", err)
		}
		take(m)
		line = line[:0]
	}
}
