package logsink

import "github.com/coreos/go-systemd/v22/journal"

const (
	// journalLine bounds one line in the journal; longer ones are cut there.
	journalLine = 2048
	// journalQueue is how many lines may wait for the journal. A slow journal
	// loses lines, it never slows the worker; the capture has them anyway.
	journalQueue = 256
)

// lineSplitter cuts output into lines for the journal. It is not safe for
// concurrent use.
type lineSplitter struct {
	queue   chan<- []byte
	partial []byte
}

func (l *lineSplitter) add(p []byte) {
	for _, b := range p {
		if b != '\n' {
			l.partial = append(l.partial, b)
		}
		if b == '\n' || len(l.partial) == journalLine {
			l.flush()
		}
	}
}

func (l *lineSplitter) flush() {
	if len(l.partial) == 0 {
		return
	}
	select {
	case l.queue <- l.partial:
	default:
	}
	l.partial = nil
}

func (l *lineSplitter) close() {
	l.flush()
	close(l.queue)
}

// sendToJournal forwards lines until the queue is closed.
func sendToJournal(nonce string, lines <-chan []byte) {
	fields := map[string]string{"SYSLOG_IDENTIFIER": "quittance-worker", "QUITTANCE_NONCE": nonce}
	for line := range lines {
		// A journal that is not there loses the line; the capture has it.
		_ = journal.Send(string(line), journal.PriInfo, fields)
	}
}
