package checks

import (
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"maps"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// proofs are the tests that show each field report, as the lane lists name
// them: not all that cite it, but those that do what it asks for.
var proofs = map[string][]string{
	"FR-01": {"integration/engine TestManyKilledAtStart", "integration/vm TestMachine/oom-late-readers"},
	"FR-02": {"integration/engine TestManyKilledAtStart", "integration/engine TestShimStalledAroundExit"},
	"FR-03": {"integration/engine TestExitFacts", "hostagent/internal/engine TestOOMKillIsAFact"},
	"FR-04": {"integration/engine TestExitFacts", "hostagent/internal/engine TestOwnKillIsNoOOM"},
	"FR-05": {"integration/engine TestExitFacts", "integration/vm TestMachine/oom-observe"},
	"FR-06": {"integration/engine TestExitFacts", "integration/vm TestMachine/oom-group"},
	"FR-07": {"hostagent/internal/cgroup TestVerdict", "integration/vm TestMachine/oom-late-readers"},
	"FR-08": {"integration/engine TestKilledForTheHost", "integration/vm TestMachine/oom-host"},
	"FR-09": {"hostagent/internal/engine TestExitZeroThenShimKilled", "integration/engine TestShimKilledWhileRunning"},
	"FR-10": {"integration/engine TestShimStalledAroundExit"},
	"FR-11": {"hostagent/internal/engine TestExitWhileDaemonDown", "integration/crash TestContainerEndsWhileNoAgentRuns"},
	"FR-12": {"integration/crash TestMatrix/kill/exited", "integration/crash/controller TestAgentKilledUnderController"},
	"FR-13": {"integration/vm TestMachine/reboot-allocations", "hostagent/internal/worker TestInspectWithoutProcess"},
	"FR-14": {"integration/engine TestLostRepliesMakeOneContainer", "integration/hostile TestCreateReplyLost"},
	"FR-15": {"integration/crash TestAgentKilledAtRandomMoments", "integration/crash TestMatrix/kill/after-run"},
	"FR-16": {"hostagent/internal/engine TestCreatedNeverStarted", "integration/crash TestMatrix/kill/between-create-run"},
	"FR-17": {"integration/hostile TestFrozenWorkerAmongOthers", "integration/engine TestDevices"},
	"FR-18": {"hostagent/internal/cgroup TestRealKillAndRemove", "integration/hostile TestChildStorm"},
	"FR-19": {"integration/engine TestMissingLeaseCompletesItsStep"},
	"FR-20": {"hostagent/internal/process TestForcedReuseReachesNobody"},
	"FR-21": {"integration/engine TestDamagedLedgerTouchesNothing", "hostagent/internal/ledger TestDamageMatrix"},
	"FR-22": {"integration/engine TestDiskFull", "integration/engine TestSharedDiskFull"},
	"FR-23": {"hostagent/internal/core TestWallClockStepsChangeNothing", "integration/vm TestMachine/clock-steps"},
	"FR-24": {"integration/engine TestSecondAgentAndStop", "integration/engine TestSocketPath"},
	"FR-25": {"integration/engine TestReceiptsGoOn", "controller/internal/jobs TestEventsResumeExactly"},
	"FR-26": {"integration/e2e TestStartRepliesLost", "integration/engine TestLostRepliesMakeOneContainer"},
	"FR-27": {"integration/e2e TestCompleteRepliesLost", "integration/crash/controller TestKillAtEveryPoint"},
	"FR-28": {"controller/internal/jobs TestOnPostgreSQL/outcomes_are_exact", "controller/internal/provider TestWholeContract"},
	"FR-29": {"controller/internal/lane TestOverDuringRun", "controller/internal/jobs TestOnPostgreSQL/heartbeats"},
	"FR-30": {"integration/e2e TestKernelKillAndOneReplacement", "integration/e2e TestKernelKillsTwice"},
	"FR-31": {"integration/e2e TestWorkersThatLookWell"},
	"FR-32": {"integration/e2e TestWorkersThatLookWell"},
	"FR-33": {"integration/engine TestStrangerIsLeftAlone", "integration/hostile TestLeftoversAreOwn"},
	"FR-34": {"integration/e2e TestThreeJobsThroughOneSlot", "controller/internal/jobs TestOnPostgreSQL/leases_lapse"},
	"FR-35": {"integration/vm TestMachine/devices", "integration/vm TestMachine/under-worker-daemon-reload"},
	"FR-36": {"integration/e2e TestWorkersThatLookWell"},
}

// stories are the end-to-end stories that must be told, and the test of each.
var stories = map[string]string{
	"three jobs through one slot":  "integration/e2e TestThreeJobsThroughOneSlot",
	"weak client":                  "controller/internal/jobs TestOnPostgreSQL/retry_window",
	"every ceiling at once":        "controller/internal/provider TestContractAtItsCeilings",
	"stall":                        "controller/internal/provider TestStall",
	"real OOM and one replacement": "integration/e2e TestKernelKillAndOneReplacement",
	"soak":                         "integration/e2e TestManyJobs",
}

// storyForm is how a doc comment names the story that its test tells.
var storyForm = regexp.MustCompile(`(?m)^Story: ([A-Za-z ]+)\.`)

// comment is one comment of the tests.
type comment struct {
	dir      string // of its file, below the root
	function string // whose doc it is or in which it stands; "" for neither
	doc      bool
	text     string
}

// testComments are the comments of everything that is there for tests: below
// integration all, the guest's programs too, but not these checks.
func testComments(t *testing.T) (all []comment) {
	t.Helper()
	for _, file := range goFiles(t) {
		dir := filepath.Dir(file)
		if !strings.HasSuffix(file, "_test.go") && !under(dir, "integration") || under(dir, "integration/checks") {
			continue
		}
		parsed, err := parser.ParseFile(token.NewFileSet(), filepath.Join(root(t), file), nil, parser.ParseComments|parser.SkipObjectResolution)
		if err != nil {
			t.Fatal(err)
		}
		for _, group := range parsed.Comments {
			c := comment{dir: dir, text: group.Text()}
			for _, d := range parsed.Decls {
				if f, ok := d.(*ast.FuncDecl); ok && (f.Doc == group || f.Pos() <= group.Pos() && group.End() <= f.End()) {
					c.function, c.doc = f.Name.Name, f.Doc == group
				}
			}
			all = append(all, c)
		}
	}
	return all
}

// of tells whether a comment may speak for a row of a lane: that of a test is
// its function's; a subtest's row may stand in a table or have a function of its
// own, also one that runs elsewhere, so that any of its package or below will do.
func (c comment) of(row string) bool {
	pkg, test, _ := strings.Cut(row, " ")
	if strings.Contains(test, "/") {
		return under(c.dir, pkg)
	}
	return c.dir == pkg && c.function == test
}

// listed are the rows that some lane runs.
func listed(t *testing.T) map[string]bool {
	t.Helper()
	rows := map[string]bool{}
	for _, file := range files(t) {
		if filepath.Dir(file) != "integration/lanes" || filepath.Ext(file) != ".txt" {
			continue
		}
		for line := range strings.Lines(string(read(t, file))) {
			line = strings.TrimSpace(line)
			if line != "" && !strings.HasPrefix(line, "#") && !strings.HasPrefix(line, "skip ") { // what is skipped shows nothing
				rows[strings.TrimPrefix(line, "sampled ")] = true
			}
		}
	}
	return rows
}

// Every field report is shown by tests that some lane runs, and that say so.
func TestEveryFieldReportHasItsTest(t *testing.T) {
	rows, comments := listed(t), testComments(t)
	for n := 1; n <= lastFieldReport; n++ {
		if len(proofs[fmt.Sprintf("FR-%02d", n)]) == 0 {
			t.Errorf("FR-%02d has no test", n)
		}
	}
	if len(proofs) != lastFieldReport {
		t.Errorf("%d field reports have tests, there are %d", len(proofs), lastFieldReport)
	}
	for _, report := range slices.Sorted(maps.Keys(proofs)) {
		for _, row := range proofs[report] {
			if !rows[row] {
				t.Errorf("%s: no lane runs %s", report, row)
			}
			found := map[string]bool{}
			for _, c := range comments {
				if c.of(row) {
					cited(c.text, found)
				}
			}
			if !found[strings.Replace(report, "-0", "-", 1)] {
				t.Errorf("%s: %s does not cite it", report, row)
			}
		}
	}
}

// Every story is told by a test that some lane runs and whose doc comment names
// it, and no other story is named.
func TestEveryStoryIsTold(t *testing.T) {
	rows, comments := listed(t), testComments(t)
	told := map[string]bool{}
	for _, c := range comments {
		if m := storyForm.FindStringSubmatch(c.text); m != nil && c.doc {
			if row, ok := stories[m[1]]; !ok {
				t.Errorf("%s %s tells an unknown story: %s", c.dir, c.function, m[1])
			} else if c.of(row) {
				told[m[1]] = true
			}
		}
	}
	for _, story := range slices.Sorted(maps.Keys(stories)) {
		if row := stories[story]; !rows[row] || !told[story] {
			t.Errorf("story %q: %s is listed %v, names it %v", story, row, rows[row], told[story])
		}
	}
}
