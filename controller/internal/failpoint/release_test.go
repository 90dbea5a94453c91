//go:build !failpoints

package failpoint

import (
	"os"
	"os/exec"
	"testing"
)

// Without the build tag nothing can be struck: a process that was started with
// every strike armed in turn passes every point and lives.
func TestNothingIsArmedInARelease(t *testing.T) {
	const child = "QUITTANCE_FAILPOINT_CHILD"
	if os.Getenv(child) != "" {
		for _, p := range Points() {
			Hit(p)
			if Write() != nil || Sync() != nil || SyncDir() != nil {
				t.Errorf("a release can be made to fail at %s", p)
			}
		}
		return
	}
	for _, action := range []string{"kill", "stop", "fail", "failsync", "failname", "nonsense"} {
		cmd := exec.CommandContext(t.Context(), os.Args[0], "-test.run=^TestNothingIsArmedInARelease$")
		cmd.Env = append(os.Environ(), child+"=1", "QUITTANCE_FAILPOINT="+string(Acknowledged)+":"+action)
		if out, err := cmd.CombinedOutput(); err != nil {
			t.Errorf("%s: %v\n%s", action, err, out)
		}
	}
}
