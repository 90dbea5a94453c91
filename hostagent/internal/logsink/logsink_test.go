package logsink

import (
	"bytes"
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/quittance/quittance/protocol"
	"golang.org/x/sys/unix"
)

const nonce = protocol.ID("00112233445566778899aabbccddeeff")

func prepared(t *testing.T, capture int64) Config {
	t.Helper()
	c := Config{Dir: t.TempDir(), Nonce: nonce, CaptureBytes: capture}
	if err := Prepare(c); err != nil {
		t.Fatal(err)
	}
	return c
}

// process is a sink whose pipes the test holds; privileges stay as they are.
type process struct {
	stdout, stderr *os.File
	terminate      chan os.Signal
	ready          *os.File
	done           chan error
	lines          chan string
}

func startSink(t *testing.T, c Config, drain time.Duration) *process {
	t.Helper()
	p := &process{terminate: make(chan os.Signal, 1), done: make(chan error, 1), lines: make(chan string, 100)}
	pipe := func() (r, w *os.File) {
		r, w, err := os.Pipe()
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _, _ = r.Close(), w.Close() })
		return r, w
	}
	outR, outW := pipe()
	errR, errW := pipe()
	readyR, readyW := pipe()
	p.stdout, p.stderr, p.ready = outW, errW, readyR
	s := sink{
		stdout: outR, stderr: errR, ready: readyW, terminate: p.terminate, drain: drain,
		drop: func(uid int) error {
			if uid != DefaultUID {
				return errors.New("wrong uid")
			}
			return nil
		},
		journal: func(_ string, lines <-chan []byte) {
			for line := range lines {
				p.lines <- string(line)
			}
			close(p.lines)
		},
	}
	argument := c.Argument()
	go func() { p.done <- s.run(argument) }()
	return p
}

func (p *process) awaitReady(t *testing.T) {
	t.Helper()
	if err := p.ready.SetReadDeadline(time.Now().Add(10 * time.Second)); err != nil {
		t.Fatal(err)
	}
	if n, err := p.ready.Read(make([]byte, 1)); n != 0 || err == nil || errors.Is(err, os.ErrDeadlineExceeded) {
		t.Fatalf("ready: %d, %v, want the end of the pipe", n, err)
	}
}

func (p *process) end(t *testing.T) error {
	t.Helper()
	if err := errors.Join(p.stdout.Close(), p.stderr.Close()); err != nil {
		t.Fatal(err)
	}
	select {
	case err := <-p.done:
		return err
	case <-time.After(10 * time.Second):
		t.Fatal("the sink does not end at the end of its input")
		return nil
	}
}

func status(t *testing.T, c Config, want Status) {
	t.Helper()
	if got, err := Inspect(c.Dir, c.Nonce); got != want || err != nil {
		t.Errorf("status %q, %v, want %q", got, err, want)
	}
}

// I33: head and tail are kept, what is between is counted, for every size
// around every bound, and whatever the pieces in which it came.
func TestHeadAndTail(t *testing.T) {
	pattern := make([]byte, 400)
	for i := range pattern {
		pattern[i] = byte(i) // not text, on purpose: nothing interprets it (I4)
	}
	for _, capture := range []int64{0, 1, 2, 33, 64} {
		for _, size := range []int{0, 1, 16, 31, 32, 33, 63, 64, 65, 96, 97, 400} {
			for _, piece := range []int{1, 7, 64, 400} {
				c := prepared(t, capture)
				f, err := os.OpenFile(c.path(), os.O_RDWR, 0)
				if err != nil {
					t.Fatal(err)
				}
				w, err := openCapture(f)
				if err != nil {
					t.Fatal(err)
				}
				for at := 0; at < size; at += piece {
					if err := w.add(pattern[at:min(at+piece, size)]); err != nil {
						t.Fatal(err)
					}
				}
				if err := f.Close(); err != nil {
					t.Fatal(err)
				}
				log, err := Read(c.Dir, c.Nonce, 5)
				if err != nil {
					t.Fatal(err)
				}
				head := min(int(capture/2), size)
				tail := min(int(capture-capture/2), size-head)
				if !bytes.Equal(log.Head, pattern[:head]) || !bytes.Equal(log.Tail, pattern[size-tail:size]) ||
					log.TotalBytes != int64(size) || log.DroppedBytes != int64(size-head-tail) || log.Number != 5 {
					t.Errorf("capture %d, %d bytes in pieces of %d: %+v", capture, size, piece, log)
				}
			}
		}
	}
}

func TestSinkFromBeginToEnd(t *testing.T) {
	c := prepared(t, 1024)
	status(t, c, StatusNone)
	p := startSink(t, c, time.Minute)
	p.awaitReady(t)
	status(t, c, StatusRunning)
	if _, err := p.stdout.WriteString("to stdout\n"); err != nil {
		t.Fatal(err)
	}
	if err := p.end(t); err != nil {
		t.Fatal(err)
	}
	status(t, c, StatusFinished)
	log, err := Read(c.Dir, c.Nonce, 1)
	if err != nil || string(log.Head) != "to stdout\n" || log.TotalBytes != 10 {
		t.Errorf("log %+v, %v", log, err)
	}
	// A second sink on the same capture would mix two workers' output.
	again := startSink(t, c, time.Minute)
	if err := again.end(t); err == nil {
		t.Error("a used capture was taken by a second sink")
	}
	// Made ready again, it keeps what it holds.
	if err := Prepare(c); err != nil {
		t.Fatal(err)
	}
	status(t, c, StatusFinished)
	if removed, err := Remove(c.Dir, c.Nonce); removed != protocol.RemovedByUs || err != nil {
		t.Errorf("remove: %q, %v", removed, err)
	}
	if removed, err := Remove(c.Dir, c.Nonce); removed != protocol.RemovedAbsent || err != nil {
		t.Errorf("remove again: %q, %v", removed, err)
	}
	if _, err := Read(c.Dir, c.Nonce, 1); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("read after removal: %v, want os.ErrNotExist", err)
	}
	status(t, c, StatusNone)
}

// A SIGTERM drains to the end of the output, and no longer than the bound.
func TestTerminate(t *testing.T) {
	c := prepared(t, 1024)
	p := startSink(t, c, time.Hour)
	p.awaitReady(t)
	p.terminate <- unix.SIGTERM
	if _, err := p.stderr.WriteString("last words"); err != nil {
		t.Fatal(err)
	}
	if err := p.end(t); err != nil {
		t.Fatal(err)
	}
	if log, err := Read(c.Dir, c.Nonce, 1); err != nil || string(log.Head) != "last words" {
		t.Errorf("log %+v, %v", log, err)
	}

	held := prepared(t, 1024)
	p = startSink(t, held, time.Millisecond)
	p.awaitReady(t)
	p.terminate <- unix.SIGTERM // nobody closes the pipes
	select {
	case err := <-p.done:
		if err != nil {
			t.Errorf("run: %v", err)
		}
	case <-time.After(10 * time.Second):
		t.Error("a pipe that is held open keeps the sink for ever")
	}
	status(t, held, StatusFinished)
}

// A lock that nobody holds on a capture that was begun is a lost sink.
func TestLost(t *testing.T) {
	c := prepared(t, 64)
	f, err := os.OpenFile(c.path(), os.O_RDWR, 0)
	if err != nil {
		t.Fatal(err)
	}
	w, err := openCapture(f)
	if err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(lock(f), w.begin()); err != nil {
		t.Fatal(err)
	}
	status(t, c, StatusRunning)
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Millisecond)
	defer cancel()
	if got, err := AwaitEnd(ctx, c.Dir, c.Nonce); got != StatusRunning || !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("await: %q, %v", got, err)
	}
	if err := f.Close(); err != nil {
		t.Fatal(err)
	}
	got, err := AwaitEnd(t.Context(), c.Dir, c.Nonce)
	if got != StatusLost || err != nil || got.Receipt() != protocol.LogSinkLost {
		t.Errorf("await: %q, %v, want lost", got, err)
	}
}

// What a power cut leaves of a capture is a lost sink, not an error that would
// hold up the retirement for ever. Found by cutting a virtual machine's power.
func TestCaptureAfterPowerCut(t *testing.T) {
	for name, left := range map[string][]byte{
		"empty": nil, "cut short": []byte(magic), "zeros": make([]byte, headerBytes+64), "only its magic": append([]byte("QLOGSNK1"), bytes.Repeat([]byte{0xff}, headerBytes)...),
	} {
		t.Run(name, func(t *testing.T) {
			c := prepared(t, 64)
			if err := os.WriteFile(c.path(), left, 0o600); err != nil {
				t.Fatal(err)
			}
			status(t, c, StatusLost)
			if got, err := AwaitEnd(t.Context(), c.Dir, c.Nonce); got != StatusLost || err != nil || got.Receipt() != protocol.LogSinkLost {
				t.Errorf("await: %q, %v, want lost", got, err)
			}
			if removed, err := Remove(c.Dir, c.Nonce); removed != protocol.RemovedByUs || err != nil {
				t.Errorf("remove: %q, %v", removed, err)
			}
		})
	}
}

// A capture that cannot be written any more loses bytes, never the worker.
func TestStorageFailureOnlyCounts(t *testing.T) {
	c := prepared(t, 64)
	f, err := os.OpenFile(c.path(), os.O_RDWR, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = f.Close() }()
	w, err := openCapture(f)
	if err != nil {
		t.Fatal(err)
	}
	if err := w.add([]byte("0123456789")); err != nil {
		t.Fatal(err)
	}
	w.failed = true // as after a failed write at byte 10
	if err := w.put(offsetFailed, 11); err != nil {
		t.Fatal(err)
	}
	if err := w.add([]byte("lost")); err != nil {
		t.Fatal(err)
	}
	log, err := Read(c.Dir, c.Nonce, 1)
	if err != nil || string(log.Head) != "0123456789" || len(log.Tail) != 0 || log.TotalBytes != 14 || log.DroppedBytes != 4 {
		t.Errorf("log %+v, %v", log, err)
	}
}

func TestJournalLines(t *testing.T) {
	c := prepared(t, 64)
	c.Journal = true
	p := startSink(t, c, time.Minute)
	p.awaitReady(t)
	long := strings.Repeat("x", journalLine+5)
	if _, err := p.stdout.WriteString("one\n\ntwo\n" + long + "\nrest"); err != nil {
		t.Fatal(err)
	}
	if err := p.end(t); err != nil {
		t.Fatal(err)
	}
	var got []string
	for line := range p.lines {
		got = append(got, line)
	}
	want := []string{"one", "two", long[:journalLine], "xxxxx", "rest"}
	if strings.Join(got, "\n") != strings.Join(want, "\n") {
		t.Errorf("lines %q, want %q", got, want)
	}
}

func TestArguments(t *testing.T) {
	c := Config{Dir: "/var/lib/x y/&=%", Nonce: nonce, CaptureBytes: 77, Journal: true, UID: 1234}
	if got, err := ParseArgument(c.Argument()); got != c || err != nil {
		t.Errorf("%+v, %v, want %+v", got, err, c)
	}
	for name, argument := range map[string]string{
		"empty": "", "no uid": strings.ReplaceAll(c.Argument(), "uid=1234", ""), "extra": c.Argument() + "&x=1",
		"relative":   Config{Dir: "x", Nonce: nonce}.Argument(),
		"a path":     Config{Dir: "/x", Nonce: "../../etc/passwd"}.Argument(),
		"too much":   Config{Dir: "/x", Nonce: nonce, CaptureBytes: protocol.MaxLogCapture + 1}.Argument(),
		"bad escape": "%zz",
	} {
		if got, err := ParseArgument(argument); err == nil {
			t.Errorf("%s: %+v, want an error", name, got)
		}
	}
}

func TestForeignFileIsRefused(t *testing.T) {
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, string(nonce)), bytes.Repeat([]byte("x"), 100), 0o600); err != nil {
		t.Fatal(err)
	}
	c := Config{Dir: dir, Nonce: nonce, CaptureBytes: 10}
	if err := Prepare(c); err == nil {
		t.Error("a file that is no capture was taken")
	}
	if _, err := Read(dir, nonce, 1); err == nil {
		t.Error("a file that is no capture was read")
	}
	if err := os.Remove(c.path()); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink("/etc/hostname", c.path()); err != nil {
		t.Fatal(err)
	}
	if err := Prepare(c); err == nil {
		t.Error("a symbolic link was followed")
	}
}

func TestUnprivileged(t *testing.T) {
	good := "Name:\tx\nUid:\t65534\t65534\t65534\t65534\nGid:\t65534\t65534\t65534\t65534\nCapInh:\t0000000000000000\nCapPrm:\t0000000000000000\nCapEff:\t0000000000000000\nCapBnd:\t000001ffffffffff\nCapAmb:\t0000000000000000\n"
	if !unprivileged([]byte(good), 65534) {
		t.Error("a status without privileges was refused")
	}
	for name, change := range map[string][2]string{
		"saved uid": {"Uid:\t65534\t65534\t65534\t65534", "Uid:\t65534\t65534\t0\t65534"},
		"effective": {"CapEff:\t0000000000000000", "CapEff:\t0000000000000001"}, "missing": {"CapAmb:\t0000000000000000\n", ""},
	} {
		if unprivileged([]byte(strings.Replace(good, change[0], change[1], 1)), 65534) {
			t.Errorf("%s: privileges were overlooked", name)
		}
	}
}

// What another process may have done to the file never crashes the reader, and
// never gives more than the capture's size.
func FuzzRead(f *testing.F) {
	c := Config{Dir: f.TempDir(), Nonce: nonce, CaptureBytes: 32}
	if err := Prepare(c); err != nil {
		f.Fatal(err)
	}
	seed, err := os.ReadFile(c.path())
	if err != nil {
		f.Fatal(err)
	}
	f.Add(seed)
	f.Add(append(bytes.Clone(seed), "some output of a worker, of some length"...))
	f.Fuzz(func(t *testing.T, content []byte) {
		if err := os.WriteFile(c.path(), content, 0o600); err != nil {
			t.Fatal(err)
		}
		log, err := Read(c.Dir, c.Nonce, 1)
		if err != nil {
			return
		}
		if kept := int64(len(log.Head) + len(log.Tail)); kept > protocol.MaxLogCapture || log.DroppedBytes != log.TotalBytes-kept || log.DroppedBytes < 0 {
			t.Errorf("kept %d, dropped %d of %d", kept, log.DroppedBytes, log.TotalBytes)
		}
	})
}

func FuzzParseArgument(f *testing.F) {
	f.Add(Config{Dir: "/x", Nonce: nonce, CaptureBytes: 3}.Argument())
	f.Add("dir=%2Fx&nonce=")
	f.Fuzz(func(t *testing.T, argument string) {
		c, err := ParseArgument(argument)
		if err == nil && c.Argument() != argument {
			t.Errorf("%q parses and is not what we write", argument)
		}
	})
}
