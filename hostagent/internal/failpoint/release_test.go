//go:build !failpoints

package failpoint

import (
	"context"
	"os"
	"os/exec"
	"testing"
	"time"
)

// Without the build tag nothing can be struck: a process that was started with
// every strike armed in turn passes every point and lives.
func TestNothingIsArmedInARelease(t *testing.T) {
	const variable, child = "QUITTANCE_FAILPOINT", "QUITTANCE_FAILPOINT_CHILD"
	if os.Getenv(child) != "" {
		for _, p := range Points() {
			Hit(p)
			if DropReply() || Write() != nil || Sync() != nil {
				t.Errorf("a release can be made to fail at %s", p)
			}
		}
		return
	}
	for _, action := range []string{"kill", "stop", "fail", "failsync", "nospace", "drop", "nonsense"} {
		ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
		cmd := exec.CommandContext(ctx, os.Args[0], "-test.run=^TestNothingIsArmedInARelease$")
		cmd.Env = append(os.Environ(), child+"=1", variable+"="+string(Accepted)+":"+action)
		if out, err := cmd.CombinedOutput(); err != nil {
			t.Errorf("%s: %v\n%s", action, err, out)
		}
		cancel()
	}
}
