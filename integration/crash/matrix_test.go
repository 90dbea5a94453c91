package crash_test

import (
	"cmp"
	"fmt"
	"hash/fnv"
	"os"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
)

// point is one failpoint of the agent, or one of its arrivals.
type point struct {
	name string
	when when
	// call is the next call to the engine that has an effect, "" where none
	// follows in this allocation's life.
	call string
	// shim tells that the allocation has one at this point.
	shim bool
}

// when is the part of a life in which a point lies.
type when int

const (
	atStart when = iota // of the agent, before it serves
	commits             // of the ledger, whatever they are for
	making              // until the ledger knows the container
	running             // from there to the end
	gone                // nothing of it is held by the engine any more
)

// points is the matrix's one axis: every name of package failpoint.
var points = []point{
	{name: "ledger-opened", when: atStart},
	{name: "socket-bound", when: atStart},
	{name: "commit-written#1", when: commits}, {name: "commit-written#2", when: commits}, {name: "commit-written#3", when: commits},
	{name: "commit-written#4", when: commits}, {name: "commit-written#5", when: commits}, {name: "commit-written#6", when: commits},
	{name: "commit-written#8", when: commits}, {name: "commit-written#10", when: commits},
	{name: "commit-synced#1", when: commits}, {name: "commit-synced#2", when: commits}, {name: "commit-synced#3", when: commits},
	{name: "commit-synced#4", when: commits}, {name: "commit-synced#5", when: commits}, {name: "commit-synced#6", when: commits},
	{name: "commit-synced#8", when: commits}, {name: "commit-synced#10", when: commits},
	{name: "spare-made", when: commits},
	{name: "accepted", when: making, call: "Leases/Create"},
	{name: "cgroup-half-made", when: making, call: "Leases/Create"},
	{name: "cgroup-made", when: making, call: "Leases/Create"},
	{name: "before-create", when: making, call: "Leases/Create"},
	{name: "lease-made", when: making, call: "Snapshots/Prepare"},
	{name: "snapshot-made", when: making, call: "Containers/Create"},
	{name: "record-made", when: making, call: "Tasks/Create"},
	{name: "after-create", when: making, call: "Tasks/Start", shim: true},
	{name: "between-create-run", when: making, call: "Tasks/Start", shim: true}, // FR-16
	{name: "after-run", when: running, call: "Tasks/Delete", shim: true},        // FR-15: adopted
	{name: "started", when: running, call: "Tasks/Delete", shim: true},
	{name: "channel-dialled", when: running, call: "Tasks/Delete", shim: true},
	{name: "channel-handed-over", when: running, call: "Tasks/Delete", shim: true},
	{name: "retire-intended", when: running, call: "Tasks/Delete", shim: true},
	{name: "stop-signalled", when: running, call: "Tasks/Delete", shim: true},
	{name: "before-exited", when: running, call: "Tasks/Delete", shim: true},
	{name: "exited", when: running, call: "Tasks/Delete", shim: true}, // FR-12
	{name: "task-removed", when: running, call: "Containers/Delete"},
	{name: "record-removed", when: running, call: "Snapshots/Remove"},
	{name: "snapshot-removed", when: running, call: "Leases/Delete"},
	{name: "container-removed", when: gone},
	{name: "sink-ended", when: gone},
	{name: "cgroup-half-removed", when: gone},
	{name: "removed", when: gone},
	{name: "retired", when: gone},
	{name: "consumed", when: gone},
	{name: "release-base-synced", when: gone},
	{name: "release-removed-one", when: gone},
	{name: "released", when: gone},
	{name: "capture-removed", when: gone},
}

// The matrix's other axis. Each strikes once, at its point.
const (
	killAgent      = "kill"           // SIGKILL of the agent
	killContainerd = "containerd"     // SIGKILL of the engine's daemon, which starts again
	killShim       = "shim"           // SIGKILL of the container's shim
	loseReply      = "reply-lost"     // the next reply on the private socket
	loseAnswer     = "answer-lost"    // the engine's answer to its next effect
	timeOut        = "engine-timeout" // the engine's next effect happens and is never answered
	failWrite      = "write-fails"    // of the next commit
	failSync       = "sync-fails"     // of the next commit, which is written
	noSpace        = "write-no-space" // the next commit
	fullDisk       = "disk-full"      // the state directory's, to the last block, until the number is released
)

var faults = []string{killAgent, killContainerd, killShim, loseReply, loseAnswer, timeOut, failWrite, failSync, noSpace, fullDisk}

// possible tells whether a fault can strike at a point.
func possible(fault string, p point) bool {
	switch fault {
	case killAgent:
		return true
	case killShim:
		return p.shim
	case loseAnswer, timeOut:
		return p.call != ""
	}
	return p.when >= making
}

// strikeRow is one row of the matrix.
type strikeRow struct {
	fault string
	point point
}

func (r strikeRow) String() string { return r.fault + "/" + r.point.name }

// matrix is every row, by fault and then in the order of a life.
func matrix() []strikeRow {
	var rows []strikeRow
	for _, fault := range faults {
		for _, p := range points {
			if possible(fault, p) {
				rows = append(rows, strikeRow{fault, p})
			}
		}
	}
	return rows
}

// samples is into how many parts the matrix is cut for the runs that take only
// one; all of them together are the matrix.
const samples = 12

// sampleOf gives every row its part: spread by a hash, equally large.
func sampleOf(rows []strikeRow) map[string]int {
	names := make([]string, len(rows))
	for i, r := range rows {
		names[i] = r.String()
	}
	hash := func(s string) uint64 {
		h := fnv.New64a()
		if _, err := h.Write([]byte(s)); err != nil {
			panic(err) // never: a hash takes everything
		}
		return h.Sum64()
	}
	slices.SortFunc(names, func(a, b string) int { return cmp.Compare(hash(a), hash(b)) })
	parts := map[string]int{}
	for i, name := range names {
		parts[name] = i % samples
	}
	return parts
}

// chosen tells whether this run takes a row. QUITTANCE_SAMPLE is a number that
// the lane's runner takes from the commit, so that every commit is struck
// elsewhere and any run can be repeated; without it every row is taken.
func chosen(t *testing.T, rows []strikeRow) func(strikeRow) bool {
	t.Helper()
	text := os.Getenv("QUITTANCE_SAMPLE")
	if text == "" {
		return func(strikeRow) bool { return true }
	}
	number, err := strconv.ParseUint(text, 10, 64)
	if err != nil {
		t.Fatalf("QUITTANCE_SAMPLE must be a number: %v", err)
	}
	parts := sampleOf(rows)
	return func(r strikeRow) bool { return parts[r.String()] == int(number%samples) }
}

// The matrix has every failpoint, and strikes each by more than a kill where
// more is possible.
func TestMatrixHasEveryFailpoint(t *testing.T) {
	source, err := os.ReadFile("../../hostagent/internal/failpoint/doc.go")
	if err != nil {
		t.Fatal(err)
	}
	named := regexp.MustCompile(`Point += "([a-z-]+)"`).FindAllStringSubmatch(string(source), -1)
	inGroup := regexp.MustCompile(`(?m)^\t[A-Z]\w+ +Point = "([a-z-]+)"`).FindAllStringSubmatch(string(source), -1)
	if len(named) < 30 || len(named) != len(inGroup) {
		t.Fatalf("%d failpoints were found, %d of them as constants", len(named), len(inGroup))
	}
	struck := map[string]bool{}
	for _, p := range points {
		name, _, _ := strings.Cut(p.name, "#")
		struck[name] = true
	}
	for _, n := range named {
		if !struck[n[1]] {
			t.Errorf("failpoint %s has no row in the matrix", n[1])
		}
		delete(struck, n[1])
	}
	for name := range struck {
		t.Errorf("the matrix strikes %s, which is no failpoint", name)
	}
}

// The checked-in list names exactly the matrix's rows, each as one that a
// sampled run may leave out.
func TestMatrixIsListed(t *testing.T) {
	list, err := os.ReadFile("../lanes/crash.txt")
	if err != nil {
		t.Fatal(err)
	}
	const prefix = "sampled integration/crash TestMatrix/"
	var want, got []string
	for _, r := range matrix() {
		want = append(want, prefix+r.String())
	}
	for line := range strings.Lines(string(list)) {
		if strings.HasPrefix(line, prefix) && strings.Count(line, "/") == 3 {
			got = append(got, strings.TrimSuffix(line, "\n"))
		}
	}
	slices.Sort(want)
	slices.Sort(got)
	for _, line := range want {
		if _, found := slices.BinarySearch(got, line); !found {
			t.Errorf("integration/lanes/crash.txt lacks: %s", line)
		}
	}
	for _, line := range got {
		if _, found := slices.BinarySearch(want, line); !found {
			t.Errorf("integration/lanes/crash.txt has no such row: %s", line)
		}
	}
}

// Every sample is a part of the matrix of the same size, and together they are
// all of it.
func TestSamplesCoverTheMatrix(t *testing.T) {
	rows := matrix()
	sizes := map[int]int{}
	taken := 0
	for sample := range samples {
		t.Setenv("QUITTANCE_SAMPLE", fmt.Sprint(sample+7*samples))
		take := chosen(t, rows)
		for _, r := range rows {
			if take(r) {
				sizes[sample]++
				taken++
			}
		}
		if n := sizes[sample]; n < len(rows)/samples || n > len(rows)/samples+1 {
			t.Errorf("sample %d has %d rows of %d", sample, n, len(rows))
		}
	}
	if taken != len(rows) {
		t.Errorf("%d rows were taken over all samples, of %d", taken, len(rows))
	}
}
