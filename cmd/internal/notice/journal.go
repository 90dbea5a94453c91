package notice

import (
	"fmt"
	"io"
	"strconv"
	"strings"
	"time"

	"github.com/coreos/go-systemd/v22/journal"
	"github.com/hashicorp/go-hclog"
)

// journalSink turns log lines into journal entries: MESSAGE is the line for
// people, QUITTANCE_EVENT its event, QUITTANCE_LOGGER the part that speaks, and
// every key a field QUITTANCE_KEY, so that `journalctl QUITTANCE_JOB=…` works.
type journalSink struct {
	level   hclog.Level
	program string
	queue   *queue
	send    func(message string, priority journal.Priority, fields map[string]string) error
	out     io.Writer // for what the journal does not take
}

// Accept implements [hclog.SinkAdapter]. Values are written down here: they may
// change afterwards.
func (s *journalSink) Accept(name string, level hclog.Level, msg string, args ...any) {
	if level < s.level {
		return
	}
	message, fields := s.entry(name, msg, args)
	s.queue.add(len(message)*2, func() error { return s.deliver(message, priorityOf(level), fields) })
}

func (s *journalSink) deliver(message string, priority journal.Priority, fields map[string]string) error {
	err := s.send(message, priority, fields)
	if err == nil {
		return nil
	}
	// Standard error is systemd's too, by another way.
	if _, fallback := fmt.Fprintf(s.out, "<%d>%s\n", int(priority), message); fallback != nil {
		return fmt.Errorf("%w: %w", errNotDelivered, err)
	}
	return nil
}

func (s *journalSink) entry(name, msg string, args []any) (string, map[string]string) {
	part := strings.TrimPrefix(strings.TrimPrefix(name, s.program), ".")
	fields := map[string]string{"SYSLOG_IDENTIFIER": s.program, "QUITTANCE_EVENT": msg}
	var line strings.Builder
	if part != "" {
		fields["QUITTANCE_LOGGER"] = part
		line.WriteString(part + ": ")
	}
	line.WriteString(msg)
	for i := 0; i+1 < len(args); i += 2 {
		key, value := text(args[i]), text(args[i+1])
		fields[fieldName(key)] = value
		line.WriteString(" " + key + "=")
		if strings.ContainsAny(value, " \t\n\"=") || value == "" {
			value = strconv.Quote(value)
		}
		line.WriteString(value)
	}
	return line.String(), fields
}

// text is a value as the text format writes it.
func text(v any) string {
	switch v := v.(type) {
	case string:
		return v
	case error:
		return v.Error()
	case time.Time:
		return v.Format(time.RFC3339Nano)
	}
	return fmt.Sprint(v)
}

// maxFieldName is journald's bound.
const maxFieldName = 64

// fieldName makes a journal field of a key: capitals, digits and underscores.
func fieldName(key string) string {
	name := "QUITTANCE_" + strings.Map(func(r rune) rune {
		switch {
		case r >= 'a' && r <= 'z':
			return r - 'a' + 'A'
		case r >= 'A' && r <= 'Z', r >= '0' && r <= '9':
			return r
		}
		return '_'
	}, key)
	return name[:min(len(name), maxFieldName)]
}

func priorityOf(level hclog.Level) journal.Priority {
	switch level {
	case hclog.Error:
		return journal.PriErr
	case hclog.Warn:
		return journal.PriWarning
	case hclog.Info:
		return journal.PriInfo
	}
	return journal.PriDebug
}

// dropped reports lost lines to the journal, from the queue's own goroutine.
type dropped struct{ sink *journalSink }

// Warn implements reporter.
func (d *dropped) Warn(message string, args ...any) {
	line, fields := d.sink.entry(d.sink.program, message, args)
	// A failure here is the sink's, which the next line meets again.
	_ = d.sink.deliver(line, journal.PriWarning, fields)
}
