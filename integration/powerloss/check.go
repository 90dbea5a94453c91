package powerloss

import (
	"bytes"
	"errors"
	"math/rand/v2"
	"os"
	"os/exec"
	"regexp"
	"strings"
	"syscall"
	"testing"
)

// isolated tells a test that it runs in a mount namespace of its own.
const isolated = "QUITTANCE_POWERLOSS_ISOLATED"

// Isolate runs the calling top-level test again in a process with its own mount
// namespace, so that no mount outlives it, however it ends. It returns true in
// that process; in the first one it returns false when the second has passed.
//
//	if !powerloss.Isolate(t) {
//		return
//	}
func Isolate(t *testing.T) bool {
	t.Helper()
	if os.Getenv(isolated) != "" {
		return true
	}
	cmd := exec.CommandContext(t.Context(), os.Args[0], "-test.run=^"+t.Name()+"$", "-test.v", "-test.count=1", "-test.timeout=50m")
	cmd.Env = append(os.Environ(), isolated+"=1")
	cmd.SysProcAttr = &syscall.SysProcAttr{Unshareflags: syscall.CLONE_NEWNS, Pdeathsig: syscall.SIGKILL}
	out, err := cmd.CombinedOutput()
	if err != nil {
		t.Fatalf("in its own mount namespace (needs root): %v\n%s", err, out)
	}
	if !bytes.Contains(out, []byte("--- PASS: "+t.Name())) {
		t.Fatalf("the test did not run in its own mount namespace:\n%s", out)
	}
	t.Logf("in its own mount namespace:\n%s", out)
	// Its subtests are rows of this process too, so that a lane can expect them.
	for _, m := range subtest.FindAllSubmatch(out, -1) {
		name, isOurs := strings.CutPrefix(string(m[2]), t.Name()+"/")
		if isOurs {
			t.Run(name, func(t *testing.T) {
				if string(m[1]) != "PASS" {
					t.Errorf("%s in its own mount namespace", m[1])
				}
			})
		}
	}
	return false
}

var subtest = regexp.MustCompile(`(?m)^ +--- (PASS|FAIL|SKIP): (\S+) `)

// Holds records the workload once and inspects that many states. The first
// broken promise fails the test and tells how its state was made.
func Holds(t *testing.T, w Workload, states int, seed uint64) {
	t.Helper()
	scratch := t.TempDir()
	r := record(t, scratch, w)
	for i := range states {
		random := rand.New(rand.NewPCG(seed, uint64(i)))
		if err := Inspect(scratch, r.Cut(random), w); err != nil {
			t.Fatalf("state %d of seed %d: %v", i, seed, err)
		}
	}
	t.Logf("%d states, %d promises, %d flushes: every promise kept", states, r.Promises(), r.Flushes())
}

// Catches records a workload with a seeded defect and inspects states until
// one of them shows it; the test fails when none of that many does.
func Catches(t *testing.T, w Workload, states int, seed uint64) {
	t.Helper()
	scratch := t.TempDir()
	r := record(t, scratch, w)
	for i := range states {
		random := rand.New(rand.NewPCG(seed, uint64(i)))
		err := Inspect(scratch, r.Cut(random), w)
		if errors.Is(err, ErrBroken) {
			t.Logf("caught at state %d: %v", i, err)
			return
		}
		if err != nil {
			t.Fatalf("state %d of seed %d: %v", i, seed, err)
		}
	}
	t.Fatalf("the defect was not caught in %d states (%d promises, %d flushes)", states, r.Promises(), r.Flushes())
}

func record(t *testing.T, scratch string, w Workload) *Recording {
	t.Helper()
	r, err := Record(scratch, w)
	if err != nil {
		t.Fatal(err)
	}
	if r.Promises() == 0 {
		t.Fatal("the workload made no promise")
	}
	return r
}
