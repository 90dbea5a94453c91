package cgroup

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"github.com/quittance/quittance/protocol"
	"golang.org/x/sys/unix"
)

// Read reads counters and peaks now. A group that is gone or not ours gives a
// reading with source none and no error; an error means that what is there
// could not be read.
func (g *Group) Read() (Reading, error) {
	err := g.check()
	if gone(err) || errors.Is(err, ErrNotOurs) {
		return Reading{Source: protocol.CountersFromNone, LeafGone: true}, nil
	}
	if err != nil {
		return Reading{}, err
	}
	if g.m.mode == protocol.CgroupV2 {
		return g.readV2()
	}
	return g.readV1()
}

func (g *Group) readV2() (Reading, error) {
	parent := g.dir(g.m.memory)
	leaf := filepath.Join(parent, leafName)
	r := Reading{Source: protocol.CountersFromV2}
	events, err := readPairs(filepath.Join(parent, "memory.events"))
	if err != nil {
		return Reading{}, err
	}
	r.Counters = protocol.Counters{
		OOM: events["oom"], OOMKill: events["oom_kill"], OOMGroupKill: events["oom_group_kill"], Max: events["max"],
	}
	if r.Peaks.MemoryBytes, err = readOptional(filepath.Join(parent, "memory.peak")); err != nil {
		return Reading{}, err
	}
	if r.Peaks.PIDs, err = readOptional(filepath.Join(parent, "pids.peak")); err != nil {
		return Reading{}, err
	}
	stat, err := readPairs(filepath.Join(parent, "cpu.stat"))
	if err != nil {
		return Reading{}, err
	}
	r.Peaks.CPUMicros = stat["usage_usec"]
	for _, dir := range []string{parent, leaf} {
		marks, err := daemonMarks(dir)
		if gone(err) {
			r.LeafGone = true
			continue
		}
		if err != nil {
			return Reading{}, err
		}
		r.DaemonMarks += marks
	}
	return r, nil
}

func (g *Group) readV1() (Reading, error) {
	parent := g.dir(g.m.memory)
	leaf := filepath.Join(parent, leafName)
	r := Reading{Source: protocol.CountersFromV1}
	var failures int64
	for _, dir := range []string{parent, leaf} {
		for _, prefix := range []string{"memory.", "memory.memsw."} {
			n, err := readOptional(filepath.Join(dir, prefix+"failcnt"))
			if err != nil {
				return Reading{}, err
			}
			if n != nil {
				failures += *n
			}
			reached, err := limitReached(filepath.Join(dir, prefix))
			if err != nil {
				return Reading{}, err
			}
			r.LimitReached = r.LimitReached || reached
		}
	}
	// The leaf is looked at last: if it is still there now, it was there while
	// its failures were counted.
	control, err := readPairs(filepath.Join(leaf, "memory.oom_control"))
	switch {
	case gone(err):
		r.LeafGone = true
	case err != nil:
		return Reading{}, err
	default:
		r.Counters.OOMKill, r.Counters.FailCnt = control["oom_kill"], &failures
	}
	if r.Peaks.MemoryBytes, err = readOptional(filepath.Join(parent, "memory.max_usage_in_bytes")); err != nil {
		return Reading{}, err
	}
	for _, h := range g.m.hierarchies {
		if h.has("pids") {
			if r.Peaks.PIDs, err = readOptional(filepath.Join(g.dir(h), "pids.peak")); err != nil {
				return Reading{}, err
			}
		}
		if h.has("cpuacct") {
			nanos, err := readOptional(filepath.Join(g.dir(h), "cpuacct.usage"))
			if err != nil {
				return Reading{}, err
			}
			if nanos != nil {
				micros := *nanos / 1000
				r.Peaks.CPUMicros = &micros
			}
		}
	}
	return r, nil
}

// limitMargin is more than the kernel ever lacks when it gives a charge up: the
// largest piece for which it invokes the OOM killer.
const limitMargin = 64 << 10

// limitReached compares the highest usage with the limit of one v1 counter,
// named by its files' common prefix.
func limitReached(prefix string) (bool, error) {
	peak, err := readOptional(prefix + "max_usage_in_bytes")
	if err != nil || peak == nil {
		return false, err
	}
	limit, err := readOptional(prefix + "limit_in_bytes")
	if err != nil || limit == nil {
		return false, err
	}
	return *peak >= *limit-limitMargin, nil
}

// Populated reports whether any process is inside, on either level and, on v1,
// in any hierarchy. A group that is gone holds none.
func (g *Group) Populated() (bool, error) {
	err := g.check()
	if errors.Is(err, ErrNotOurs) {
		return false, err
	}
	if err != nil && !gone(err) {
		return false, err
	}
	if g.m.mode == protocol.CgroupV2 {
		events, err := readPairs(filepath.Join(g.dir(g.m.memory), "cgroup.events"))
		if gone(err) {
			return false, nil
		}
		if err != nil {
			return false, err
		}
		populated := events["populated"]
		if populated == nil {
			return false, errors.New("cgroup: cgroup.events does not say populated")
		}
		return *populated != 0, nil
	}
	for _, h := range g.m.hierarchies {
		pids, err := g.processes(h)
		if err != nil {
			return false, err
		}
		if len(pids) > 0 {
			return true, nil
		}
	}
	return false, nil
}

// processes lists the processes on both levels in one hierarchy.
func (g *Group) processes(h hierarchy) ([]int64, error) {
	var pids []int64
	for _, dir := range []string{g.dir(h), filepath.Join(g.dir(h), leafName)} {
		text, err := os.ReadFile(filepath.Join(dir, "cgroup.procs"))
		if gone(err) {
			continue
		}
		if err != nil {
			return nil, fmt.Errorf("cgroup: %w", err)
		}
		for _, field := range strings.Fields(string(text)) {
			pid, err := strconv.ParseInt(field, 10, 64)
			if err != nil {
				return nil, errors.New("cgroup: cgroup.procs holds something that is no number")
			}
			// 0 is a process of a PID namespace that we do not see.
			pids = append(pids, pid)
		}
	}
	return pids, nil
}

// gone covers the ways in which a cgroup says that it was removed: no entry,
// or an open file whose directory went away.
func gone(err error) bool { return errors.Is(err, fs.ErrNotExist) || errors.Is(err, unix.ENODEV) }

// daemonMarks sums what systemd-oomd leaves as extended attributes.
func daemonMarks(dir string) (int64, error) {
	var sum int64
	for _, name := range []string{"user.oomd_kill", "user.oomd_ooms"} {
		var buffer [64]byte
		n, err := unix.Getxattr(dir, name, buffer[:])
		if errors.Is(err, unix.ENODATA) || errors.Is(err, unix.EOPNOTSUPP) {
			continue
		}
		if err != nil {
			return 0, fmt.Errorf("cgroup: attribute %s of %s: %w", name, dir, err)
		}
		mark, err := parseMark(buffer[:n])
		if err != nil {
			return 0, fmt.Errorf("cgroup: attribute %s of %s: %w", name, dir, err)
		}
		sum += mark
	}
	return sum, nil
}

// parseMark reads a count written as decimal text, or as a little-endian
// integer where a daemon writes that.
func parseMark(value []byte) (int64, error) {
	text := strings.TrimRight(string(value), "\x00\n ")
	if n, err := strconv.ParseInt(text, 10, 64); err == nil {
		return n, nil
	}
	if len(value) == 8 {
		return int64(binary.LittleEndian.Uint64(value) & (1<<63 - 1)), nil
	}
	return 0, errors.New("is no count")
}

func readInt(file string) (int64, error) {
	text, err := os.ReadFile(file)
	if err != nil {
		return 0, fmt.Errorf("cgroup: %w", err)
	}
	return parseCount(bytes.TrimSpace(text), file)
}

// readOptional is readInt where an absent file means that the kernel has no
// such counter, or that the level is gone.
func readOptional(file string) (*int64, error) {
	n, err := readInt(file)
	if gone(err) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	return &n, nil
}

// readPairs reads a file of "name value" lines; values that are no integers
// are left out.
func readPairs(file string) (map[string]*int64, error) {
	text, err := os.ReadFile(file)
	if err != nil {
		return nil, fmt.Errorf("cgroup: %w", err)
	}
	pairs := map[string]*int64{}
	for line := range strings.Lines(string(text)) {
		name, value, ok := strings.Cut(strings.TrimSpace(line), " ")
		if !ok {
			continue
		}
		if n, err := strconv.ParseInt(value, 10, 64); err == nil {
			pairs[name] = &n
		}
	}
	return pairs, nil
}

// parseCount reads an unsigned decimal; values above the signed range ("no
// limit" in some files) become the largest signed one.
func parseCount(text []byte, file string) (int64, error) {
	n, err := strconv.ParseUint(string(text), 10, 64)
	if err != nil {
		return 0, fmt.Errorf("cgroup: %s does not hold a count", file)
	}
	return int64(min(n, 1<<63-1)), nil
}
