// Package notice makes a daemon's logger. It owns where log lines go (text or
// JSON on standard error, or native fields in systemd's journal), and that no
// line ever makes its writer wait: lines go through a bounded queue that one
// goroutine empties, and what finds the queue full is dropped and counted. The
// count is a line of its own once lines flow again.
//
//	lanes, core, … ─► hclog ─► queue (bounded, never blocks) ─► one goroutine ─► standard error | journal
//
// It must not know what is logged, and nothing of the daemons.
package notice

import (
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"slices"
	"time"

	"github.com/coreos/go-systemd/v22/journal"
	"github.com/hashicorp/go-hclog"
	"golang.org/x/sys/unix"
)

// Format is how lines are written.
type Format string

// The formats.
const (
	Auto    Format = "auto"    // text on a terminal, journal where standard error is systemd's, json elsewhere
	Text    Format = "text"    // one line for people
	JSON    Format = "json"    // one JSON object a line
	Journal Format = "journal" // systemd's journal, with every key as a field of its own
)

// Options of a log.
type Options struct {
	Name   string // of the program
	Level  string // trace, debug, info, warn or error
	Format Format // "" is auto
	// Output is where text and JSON go; nil is standard error.
	Output io.Writer
	// send delivers one entry to the journal; tests replace it.
	send func(message string, priority journal.Priority, fields map[string]string) error
}

// Log is a logger with the goroutine that writes for it.
type Log struct {
	hclog.Logger
	queue *queue
}

// Open makes a log and starts its goroutine. Close ends it.
func Open(o Options) *Log {
	if o.Output == nil {
		o.Output = os.Stderr
		// A reader of standard error that is gone must not end the process.
		signal.Notify(make(chan os.Signal, 1), unix.SIGPIPE)
	}
	if o.send == nil {
		o.send = journal.Send
	}
	level := hclog.LevelFromString(o.Level)
	stream := hclog.LoggerOptions{Name: o.Name, Level: level, JSONFormat: resolve(o) == JSON}
	if resolve(o) != Journal {
		direct := stream
		direct.Output = o.Output
		direct.Level = min(level, hclog.Warn) // at every level lines may be dropped, which is told as a warning
		q := newQueue(hclog.New(&direct))
		stream.Output = &lines{queue: q, out: o.Output}
		return &Log{Logger: hclog.New(&stream), queue: q}
	}
	stream.Output = io.Discard // the logger is asked for its level only; the sink writes
	sink := &journalSink{level: level, program: o.Name, send: o.send, out: o.Output}
	sink.queue = newQueue(&dropped{sink})
	logger := hclog.NewInterceptLogger(&stream)
	logger.RegisterSink(sink)
	return &Log{Logger: logger, queue: sink.queue}
}

// resolve decides what auto means for this process.
func resolve(o Options) Format {
	if o.Format != "" && o.Format != Auto {
		return o.Format
	}
	file, ok := o.Output.(*os.File)
	if !ok {
		return JSON
	}
	if _, err := unix.IoctlGetTermios(int(file.Fd()), unix.TCGETS); err == nil {
		return Text
	}
	if native, err := journal.StderrIsJournalStream(); err == nil && native && file == os.Stderr {
		return Journal
	}
	return JSON
}

// closeTime is how long the last lines may take.
const closeTime = time.Second

// Close writes what is queued and ends the goroutine. Where nobody takes the
// lines it gives up after a second: a blocked sink never keeps a process.
func (l *Log) Close() { l.queue.close(closeTime) }

// Print writes a last line for people to standard error, and does not wait for
// a reader for longer than a second.
func Print(line string) {
	done := make(chan struct{})
	go func() {
		defer close(done)
		// Nobody is left to be told that it failed.
		_, _ = fmt.Fprintln(os.Stderr, line)
	}()
	select {
	case <-done:
	case <-time.After(closeTime):
	}
}

// lines is the output of a logger: each Write is one whole line.
type lines struct {
	queue *queue
	out   io.Writer
}

// Write implements [io.Writer]; it never waits and never fails.
func (l *lines) Write(line []byte) (int, error) {
	kept := slices.Clone(line) // the logger writes its next one over it
	l.queue.add(len(kept), func() error {
		n, err := l.out.Write(kept)
		if err == nil && n < len(kept) {
			err = io.ErrShortWrite
		}
		return err
	})
	return len(line), nil
}

var errNotDelivered = errors.New("the journal did not take the entry")
