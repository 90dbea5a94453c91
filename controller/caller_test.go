package controller

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// Who may work in a directory, and what the others are told.
func TestCallerOwnsTheDirectories(t *testing.T) {
	names := func(uid int) string {
		if uid == 994 {
			return "quittance-controller"
		}
		return ""
	}
	for _, c := range []struct {
		what        string
		euid, owner int
		open        bool
		want        []string // in the refusal; nil: permitted
	}{
		{"the controller's own user", 994, 994, true, nil},
		{"root, where root runs it", 0, 0, true, nil},
		{"a user without a name, where that runs it", 1234, 1234, true, nil},
		{"root, at the unit's directory", 0, 994, true, []string{"state_dir: /s belongs to quittance-controller", "what root makes", "`runuser -u quittance-controller -- controller …`"}},
		{"root without its capabilities", 0, 994, false, []string{"`runuser -u quittance-controller -- controller …`"}},
		{"root, where a user without a name runs it", 0, 1234, true, []string{"belongs to user 1234", "`setpriv --reuid=1234 --regid=55 --clear-groups controller …`"}},
		{"somebody else", 1000, 994, false, []string{"closed to user 1000", "as root, use `runuser -u quittance-controller -- controller …`"}},
		{"an unprivileged user, where root runs it", 1000, 0, false, []string{"belongs to user 0", "closed to user 1000"}},
		{"a user whom the administrator let in", 1000, 994, true, nil},
	} {
		err := folder{key: "state_dir", path: "/s", owner: c.owner, gid: 55, open: c.open}.permits(c.euid, names)
		if (err != nil) != (c.want != nil) {
			t.Errorf("%s: %v", c.what, err)
			continue
		}
		for _, want := range c.want {
			if !strings.Contains(err.Error(), want) {
				t.Errorf("%s: %v, want %q in it", c.what, err, want)
			}
		}
	}
}

// The check reads real directories: one's own, one that is not there yet, and a
// job directory elsewhere.
func TestCallerOfRealDirectories(t *testing.T) {
	dir := t.TempDir()
	f, err := lookAt("state_dir", dir, os.Geteuid())
	if err != nil || f.owner != os.Geteuid() || f.gid != os.Getegid() || !f.open {
		t.Errorf("%+v, %v", f, err)
	}
	stranger, err := lookAt("state_dir", dir, os.Geteuid()+1)
	if err != nil || !stranger.open {
		t.Errorf("the caller may write there whoever it is thought to be: %+v, %v", stranger, err)
	}
	c := Config{StateDir: dir}
	if err := CheckCaller(c); err != nil {
		t.Error(err)
	}
	c.StateDir = filepath.Join(dir, "later")
	if err := CheckCaller(c); err != nil {
		t.Error(err)
	}
	// What cannot be looked at is told with the key: below a file there is nothing.
	file := filepath.Join(dir, "file")
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	c.Service.DataDir = filepath.Join(file, "jobs")
	if err := CheckCaller(c); err == nil || !strings.HasPrefix(err.Error(), "service.data_dir: ") {
		t.Errorf("%v", err)
	}
}
