package hostagent

import (
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/quittance/quittance/hostagent/internal/sandbox"
)

// The program gets its own variables and none of the supervisor's: systemd's
// sockets and descriptors above all.
func TestEnvironmentPassedOn(t *testing.T) {
	got := passedOn([]string{
		"PATH=/bin", "HOME=/root", "NOTIFY_SOCKET=/run/systemd/notify", "LISTEN_FDS=1", "CREDENTIALS_DIRECTORY=/run/credentials/x",
		"QUITTANCE_SERVICE_DATABASE=postgres://x", "RUNTIME_DIRECTORY=/run/quittance-controller", "JOURNAL_STREAM=8:1", "NO_PROXY=localhost", "QUITTANCE=1",
	})
	want := []string{"QUITTANCE_SERVICE_DATABASE=postgres://x", "RUNTIME_DIRECTORY=/run/quittance-controller", "JOURNAL_STREAM=8:1", "NO_PROXY=localhost"}
	if !slices.Equal(got, want) {
		t.Errorf("passed on %q, want %q", got, want)
	}
}

func TestIdentity(t *testing.T) {
	got, err := identity("990:991:992")
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(sandbox.Identity{UID: 990, GID: 991, Groups: []uint32{992}}, got); diff != "" {
		t.Error(diff)
	}
	if got, err := identity("nobody"); err != nil || got.Name != "nobody" || got.UID == 0 || got.GID == 0 {
		t.Errorf("nobody is %+v, %v", got, err)
	}
	for _, text := range []string{"", "no-such-user-here", "990:", ":1", "990:x", "-1:1", "4294967296:1"} {
		if got, err := identity(text); err == nil {
			t.Errorf("%q is %+v", text, got)
		}
	}
}
