package logsink

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// The descriptors that containerd's binary logging hands over.
const (
	fdStdout = 3
	fdStderr = 4
	fdReady  = 5
)

const (
	// chunkBytes is how much is read at once from each pipe.
	chunkBytes = 32 << 10
	// drainTimeout bounds the draining after SIGTERM, below the 12 seconds
	// after which the shim kills its logger.
	drainTimeout = 8 * time.Second
)

// Main is the whole process `hostagent log-sink ARGUMENT` below the shim: it
// reads descriptors 3 and 4, reports readiness by closing 5, and returns its
// exit code. Nobody reads its own output; how it fared is in the capture.
func Main(argument string) int {
	// From here on only SIGKILL ends it before the output does.
	terminate := make(chan os.Signal, 1)
	signal.Notify(terminate, unix.SIGTERM)
	signal.Ignore(unix.SIGINT, unix.SIGHUP, unix.SIGPIPE)
	s := sink{
		stdout: os.NewFile(fdStdout, "stdout"), stderr: os.NewFile(fdStderr, "stderr"), ready: os.NewFile(fdReady, "ready"),
		terminate: terminate, drop: dropPrivileges, journal: sendToJournal, drain: drainTimeout,
	}
	if err := s.run(argument); err != nil {
		return 1
	}
	return 0
}

// sink is one run of the process, with its surroundings as fields.
type sink struct {
	stdout, stderr, ready *os.File
	terminate             <-chan os.Signal
	drop                  func(uid int) error
	journal               func(nonce string, lines <-chan []byte)
	drain                 time.Duration
}

func (s *sink) run(argument string) (err error) {
	config, err := ParseArgument(argument)
	if err != nil {
		return err
	}
	f, err := os.OpenFile(config.path(), os.O_RDWR|unix.O_NOFOLLOW, 0)
	if err != nil {
		return fmt.Errorf("log sink: %w", err)
	}
	defer func() { err = errors.Join(err, f.Close()) }()
	if err := lock(f); err != nil {
		return err
	}
	c, err := openCapture(f)
	if err != nil {
		return err
	}
	uid := config.UID
	if uid == 0 {
		uid = DefaultUID
	}
	if err := s.drop(uid); err != nil {
		return err
	}
	if err := c.begin(); err != nil {
		return err
	}
	if err := s.ready.Close(); err != nil {
		return fmt.Errorf("log sink: ready: %w", err)
	}
	out := &output{capture: c}
	var forwarder sync.WaitGroup
	if config.Journal {
		queue := make(chan []byte, journalQueue)
		out.lines = &lineSplitter{queue: queue}
		forwarder.Go(func() { s.journal(string(config.Nonce), queue) })
	}
	ended := make(chan error, 2)
	for _, pipe := range []*os.File{s.stdout, s.stderr} {
		go func() { ended <- out.copyFrom(pipe) }()
	}
	err = s.await(ended)
	// A pipe that somebody still holds open has a reader blocked in it; what
	// it might add is cut off here, before the end is recorded.
	err = errors.Join(err, out.finish())
	forwarder.Wait()
	return err
}

// await waits for the end of both outputs, after SIGTERM only for a while.
func (s *sink) await(ended <-chan error) error {
	var failed []error
	var expired <-chan time.Time
	for range 2 {
		for waiting := true; waiting; {
			select {
			case err := <-ended:
				failed = append(failed, err)
				waiting = false
			case <-s.terminate:
				timer := time.NewTimer(s.drain)
				defer timer.Stop()
				expired = timer.C
			case <-expired:
				return errors.Join(failed...)
			}
		}
	}
	return errors.Join(failed...)
}

// output puts both pipes into one capture, in the order of arrival.
type output struct {
	mu      sync.Mutex // guards what follows
	capture *capture
	lines   *lineSplitter // nil: no journal
	closed  bool
}

// copyFrom reads one pipe to its end. A capture that cannot be written is no
// reason to stop: the worker would be stopped by its full pipe.
func (o *output) copyFrom(pipe *os.File) error {
	buffer := make([]byte, chunkBytes)
	var first error
	for {
		n, err := pipe.Read(buffer)
		if n > 0 {
			if err := o.add(buffer[:n]); first == nil {
				first = err
			}
		}
		if errors.Is(err, io.EOF) {
			return first
		}
		if err != nil {
			return errors.Join(first, fmt.Errorf("log sink: read: %w", err))
		}
	}
}

func (o *output) add(p []byte) error {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.closed {
		return nil
	}
	if o.lines != nil {
		o.lines.add(p)
	}
	return o.capture.add(p)
}

func (o *output) finish() error {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.closed = true
	if o.lines != nil {
		o.lines.close()
	}
	return o.capture.put(offsetState, stateFinished)
}

// dropPrivileges becomes the unprivileged user for good and then looks whether
// that is true of every thread.
func dropPrivileges(uid int) error {
	if err := syscall.Setgroups(nil); err != nil {
		return fmt.Errorf("log sink: give up groups: %w", err)
	}
	if err := syscall.Setresgid(uid, uid, uid); err != nil {
		return fmt.Errorf("log sink: give up gid: %w", err)
	}
	if err := syscall.Setresuid(uid, uid, uid); err != nil {
		return fmt.Errorf("log sink: give up uid: %w", err)
	}
	files, err := filepath.Glob("/proc/self/task/*/status")
	if err != nil || len(files) == 0 {
		return errors.Join(errors.New("log sink: own threads cannot be listed"), err)
	}
	for _, file := range files {
		text, err := os.ReadFile(file)
		if errors.Is(err, os.ErrNotExist) {
			continue // a thread that ended meanwhile
		}
		if err != nil {
			return fmt.Errorf("log sink: %w", err)
		}
		if !unprivileged(text, uid) {
			return errors.New("log sink: privileges are still there after giving them up")
		}
	}
	return nil
}

// unprivileged reads a /proc status: all four uids and gids changed, no
// capability left that could be used.
func unprivileged(status []byte, uid int) bool {
	id := fmt.Sprintf("%d\t%d\t%d\t%d", uid, uid, uid, uid)
	want := map[string]string{"Uid": id, "Gid": id, "CapPrm": "0000000000000000", "CapEff": "0000000000000000", "CapAmb": "0000000000000000"}
	for line := range bytes.Lines(status) {
		name, value, _ := strings.Cut(strings.TrimSuffix(string(line), "\n"), ":\t")
		if expected, ok := want[name]; ok {
			if value != expected {
				return false
			}
			delete(want, name)
		}
	}
	return len(want) == 0
}
