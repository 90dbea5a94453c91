package powerloss

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"golang.org/x/sys/unix"
)

// Workload is a store under test.
type Workload interface {
	// Run uses the store in dir, an empty directory, and calls ack with
	// something that Check understands after each promise that the store made.
	// ack may be called from any goroutine. Run returns with everything closed.
	Run(dir string, ack func(promise string)) error
	// Check opens what is left in dir after a power cut, closes it, and returns
	// an error unless all of these promises, in the order in which they were
	// made, are kept. With none of them dir may hold anything or nothing.
	Check(dir string, promises []string) error
}

// Recording is everything that reached the disk while a workload ran.
type Recording struct {
	base []byte
	log  []event
}

// Promises is the number of promises that were made.
func (r *Recording) Promises() int {
	n := 0
	for _, e := range r.log {
		if e.kind == ackEvent {
			n++
		}
	}
	return n
}

// Flushes is the number of completed flushes.
func (r *Recording) Flushes() int {
	n := 0
	for _, e := range r.log {
		if e.kind == flushEvent {
			n++
		}
	}
	return n
}

// workDir is the directory that the workload uses below the mounted disk.
const workDir = "state"

// Record runs the workload on a fresh disk, mounted below scratch.
func Record(scratch string, w Workload) (_ *Recording, err error) {
	image, err := format(scratch)
	if err != nil {
		return nil, err
	}
	d := &disk{image: image}
	file, stop, err := serve(d, filepath.Join(scratch, "fuse"))
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, stop()) }()
	mounted := filepath.Join(scratch, "recorded")
	if err := mountExt4(file, mounted); err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, unmount(mounted)) }()
	dir := filepath.Join(mounted, workDir)
	if err := os.Mkdir(dir, 0o700); err != nil {
		return nil, err
	}
	if err := syncFS(mounted); err != nil {
		return nil, err
	}
	d.start()
	if err := w.Run(dir, d.ack); err != nil {
		return nil, fmt.Errorf("workload: %w", err)
	}
	return d.stop(), nil
}

func syncFS(dir string) (err error) {
	f, err := os.Open(dir)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, f.Close()) }()
	return unix.Syncfs(int(f.Fd()))
}

// State is one disk as a power cut may leave it.
type State struct {
	image    []byte
	promises []string
	how      string
}

// String tells how the state was made.
func (s State) String() string { return s.how }

const sector = 512

// Cut makes the state of a random moment.
func (r *Recording) Cut(random *rand.Rand) State {
	at := random.IntN(len(r.log) + 1)
	durable := 0
	s := State{image: slices.Clone(r.base)}
	for _, e := range r.log[:at] {
		switch e.kind {
		case flushEvent:
			durable = max(durable, e.covers)
		case ackEvent:
			s.promises = append(s.promises, e.ack)
		}
	}
	var loose []event
	for i, e := range r.log[:at] {
		if e.kind != writeEvent {
			continue
		}
		if i < durable {
			copy(s.image[e.offset:], e.data)
		} else {
			loose = append(loose, e)
		}
	}
	mode := random.IntN(5)
	switch mode {
	case 0: // nothing of it arrived
		loose = nil
	case 1: // all of it arrived
	case 2: // whole writes are missing
		loose = slices.DeleteFunc(loose, func(event) bool { return random.IntN(2) == 0 })
	case 3: // sectors are missing
		loose = tear(loose, random)
	case 4: // sectors are missing, and what arrived did so in another order
		loose = tear(loose, random)
		random.Shuffle(len(loose), func(i, j int) { loose[i], loose[j] = loose[j], loose[i] })
	}
	for _, e := range loose {
		copy(s.image[e.offset:], e.data)
	}
	s.how = fmt.Sprintf("cut at event %d of %d, %d promises, mode %d, %d pieces of unflushed writes kept",
		at, len(r.log), len(s.promises), mode, len(loose))
	return s
}

// tear splits writes into sectors and drops a part of them.
func tear(loose []event, random *rand.Rand) []event {
	keep := random.Float64()
	var out []event
	for _, e := range loose {
		for at := 0; at < len(e.data); at += sector {
			if random.Float64() < keep {
				end := min(at+sector, len(e.data))
				out = append(out, event{kind: writeEvent, offset: e.offset + int64(at), data: e.data[at:end]})
			}
		}
	}
	return out
}

// ErrBroken is returned by Inspect for a promise that was not kept.
var ErrBroken = errors.New("a promise was broken by a power cut")

// Inspect mounts a state below scratch and lets the workload check it. Broken
// promises are ErrBroken; any other error is the harness's own.
func Inspect(scratch string, s State, w Workload) (err error) {
	fd, err := unix.MemfdCreate("powerloss", unix.MFD_CLOEXEC)
	if err != nil {
		return fmt.Errorf("make the disk: %w", err)
	}
	backing := os.NewFile(uintptr(fd), "memfd")
	defer func() { err = errors.Join(err, backing.Close()) }()
	if _, err := backing.WriteAt(s.image, 0); err != nil {
		return err
	}
	mounted := filepath.Join(scratch, "after")
	if err := mountExt4(backing, mounted); err != nil {
		return err
	}
	defer func() { err = errors.Join(err, unmount(mounted)) }()
	if err := w.Check(filepath.Join(mounted, workDir), s.promises); err != nil {
		return fmt.Errorf("%w: %s: %w", ErrBroken, s, err)
	}
	return nil
}

// Number reads the highest number from promises of the form "<prefix> <n>",
// for workloads whose promises are counted; 0 if there is none.
func Number(promises []string, prefix string) (highest int) {
	for _, p := range promises {
		var n int
		if rest, ok := strings.CutPrefix(p, prefix+" "); ok {
			if _, err := fmt.Sscanf(rest, "%d", &n); err == nil {
				highest = max(highest, n)
			}
		}
	}
	return highest
}
