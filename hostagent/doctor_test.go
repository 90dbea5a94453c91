package hostagent

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/hashicorp/go-hclog"
	"golang.org/x/sys/unix"

	"github.com/quittance/quittance/hostagent/internal/engine"
	"github.com/quittance/quittance/hostagent/internal/ledger"
	"github.com/quittance/quittance/protocol"
)

// What is in one look only was being made or removed; what an allocation
// accounts for is its own, a stuck one's too.
func TestOrphans(t *testing.T) {
	own, lost, late, gone := protocol.NewID(), protocol.NewID(), protocol.NewID(), protocol.NewID()
	of := func(nonce protocol.ID) engine.Leftover {
		return engine.Leftover{Kind: "container", Name: "q-" + string(nonce), Nonce: nonce}
	}
	unnamed := engine.Leftover{Kind: "cgroup", Name: "strange"}
	known := []protocol.Allocation{
		{State: protocol.StateRetiring, Container: &protocol.Container{Nonce: own}},
		{State: protocol.StateCreating},
		{State: protocol.StateConsumed},
	}
	orphans, making := orphansOf(
		[]engine.Leftover{of(own), of(lost), of(gone), unnamed},
		[]engine.Leftover{of(own), of(lost), of(late), unnamed}, known)
	if len(orphans) != 2 || orphans[0] != of(lost) || orphans[1] != unnamed || making != 1 {
		t.Errorf("orphans %v, %d being made", orphans, making)
	}
	if orphans, making := orphansOf(nil, []engine.Leftover{of(late)}, nil); len(orphans) != 0 || making != 0 {
		t.Errorf("orphans %v, %d being made", orphans, making)
	}
}

// The disk is timed without a trace, and a directory that cannot be written is
// an error and not a figure.
func TestTimeSync(t *testing.T) {
	dir := t.TempDir()
	if took, err := timeSync(dir); err != nil || took <= 0 {
		t.Errorf("%s, %v", took, err)
	}
	if left, err := os.ReadDir(dir); err != nil || len(left) != 0 {
		t.Errorf("left: %v, %v", left, err)
	}
	if _, err := timeSync(filepath.Join(dir, "absent")); err == nil {
		t.Error("no error for a directory that is not there")
	}
}

// Every check that needs neither engine nor root: fine on a sound node, and with
// the one thing broken it says so, with a remedy that fits.
func TestDoctorFinds(t *testing.T) {
	write := func(path, text string, mode os.FileMode) {
		t.Helper()
		if err := os.WriteFile(path, []byte(text), mode); err != nil {
			t.Fatal(err)
		}
		if err := os.Chmod(path, mode); err != nil { // whatever the umask is
			t.Fatal(err)
		}
	}
	const profile = "name = \"p\"\nimage = \"quittance.local/x@sha256:e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855\"\nargs = [\"/x\"]\n" +
		"[resources]\nmemory = \"64MiB\"\n[channel]\naddress = \"tcp://127.0.0.1:8080\"\nready = { connect = true }\n"
	for what, row := range map[string]struct {
		look   func(*doctor)
		breaks func(*Config)
		name   string
		state  protocol.CheckState
		found  string
		remedy string
	}{
		"no state directory": {(*doctor).state, func(c *Config) { remove(t, c.StateDir) }, "state directory", protocol.CheckFailed, "no such file", "hostagent init"},
		"others can enter it": {(*doctor).state, func(c *Config) {
			if err := os.Chmod(c.StateDir, 0o755); err != nil {
				t.Fatal(err)
			}
		}, "state directory", protocol.CheckFailed, "0700", "put back"},
		"no host key": {(*doctor).state, func(c *Config) { remove(t, hostKeyFile(*c)) }, "state directory", protocol.CheckFailed, "host key", "put back the key"},
		"no ledger":   {(*doctor).ledger, func(c *Config) { remove(t, ledgerDir(*c)) }, "ledger", protocol.CheckFailed, "", "ledger abandon"},
		"a damaged ledger": {(*doctor).ledger, func(c *Config) {
			segments, err := filepath.Glob(filepath.Join(ledgerDir(*c), "*.segment"))
			if err != nil || len(segments) == 0 {
				t.Fatalf("%v, %v", segments, err)
			}
			data, err := os.ReadFile(segments[0])
			if err != nil {
				t.Fatal(err)
			}
			data[strings.Index(string(data), "genesis")] ^= 1
			write(segments[0], string(data), 0o600)
		}, "ledger", protocol.CheckFailed, "at byte", "runbook"},
		"a disk that cannot be written": {(*doctor).disk, func(c *Config) { c.StateDir += "/absent" }, "disk of the state directory", protocol.CheckFailed, "no such file", "readable"},
		"an unknown user":               {(*doctor).users, func(c *Config) { c.ControllerUIDs = []any{"nobody-of-this-name"} }, "users", protocol.CheckFailed, "nobody-of-this-name", "controller_uids"},
		"an unknown group":              {(*doctor).users, func(c *Config) { c.SocketGroup = "no-group-of-this-name" }, "users", protocol.CheckFailed, "no-group-of-this-name", "socket_group"},
		"root as the controller":        {(*doctor).users, func(c *Config) { c.ControllerUIDs = []any{"0"} }, "users", protocol.CheckWarning, "root is a controller", "user of its own"},
		"no init":                       {(*doctor).init, func(c *Config) { remove(t, c.InitPath) }, "init", protocol.CheckFailed, "no such file", "catatonit"},
		"an init that is no program":    {(*doctor).init, func(c *Config) { write(c.InitPath, "", 0o644) }, "init", protocol.CheckFailed, "is no program", "catatonit"},
		"an init that others can write": {(*doctor).init, func(c *Config) { write(c.InitPath, "", 0o757) }, "init", protocol.CheckFailed, "can be written", "chmod go-w"},
		"no profiles":                   {(*doctor).profiles, func(c *Config) { remove(t, filepath.Join(c.ProfileDir, "p.toml")) }, "profiles", protocol.CheckWarning, "none in", "put a profile there"},
		"no profile directory":          {(*doctor).profiles, func(c *Config) { remove(t, c.ProfileDir) }, "profiles", protocol.CheckFailed, "", "profile_dir"},
		"a profile with a mistake":      {(*doctor).profiles, func(c *Config) { write(filepath.Join(c.ProfileDir, "p.toml"), profile+"nonsense = 1\n", 0o644) }, "profile p.toml", protocol.CheckWarning, "nonsense", "mend the file"},
		"no memory controller":          {(*doctor).cgroups, func(c *Config) { c.CgroupRoot = "not a path" }, "cgroups", protocol.CheckFailed, "", "memory controller"},
	} {
		c, _ := oldNode(t)
		dir := t.TempDir()
		c.InitPath, c.ProfileDir = filepath.Join(dir, "init"), filepath.Join(dir, "profiles")
		c.SocketGroup = "0"
		c.ControllerUIDs = []any{"7"}
		write(c.InitPath, "", 0o755)
		if err := os.Mkdir(c.ProfileDir, 0o755); err != nil {
			t.Fatal(err)
		}
		write(filepath.Join(c.ProfileDir, "p.toml"), profile, 0o644)
		look := func() (found protocol.Check, ok bool) {
			d := &doctor{cfg: c, log: hclog.NewNullLogger()}
			row.look(d)
			for _, check := range d.checks {
				if check.Name == row.name {
					return check, true
				}
			}
			return protocol.Check{}, false
		}
		if sound, ok := look(); ok && row.name != "cgroups" && row.name != "disk of the state directory" && (sound.State != protocol.CheckFine || sound.Remedy != "") {
			t.Errorf("%s: before it: %+v", what, sound)
		}
		row.breaks(&c)
		if got, _ := look(); got.State != row.state || !strings.Contains(got.Found, row.found) || !strings.Contains(got.Remedy, row.remedy) {
			t.Errorf("%s: %+v, want %s with %q, remedy with %q", what, got, row.state, row.found, row.remedy)
		}
	}
}

// The disk is judged by what the ledger has prepared: an agent that was never
// started, as one that has found its disk full, needs all of it and more (I36).
func TestDoctorKnowsTheBallast(t *testing.T) {
	c := testConfig(t)
	if _, err := Init(c, "test"); err != nil {
		t.Fatal(err)
	}
	var st unix.Statfs_t
	room := func() diskRoom {
		t.Helper()
		short, err := ledger.FindShortage(ledgerDir(c), ledgerOptions(c))
		if err != nil {
			t.Fatal(err)
		}
		return roomOf(st, ledgerOptions(c), short)
	}
	before := room()
	l, err := ledger.Open(ledgerDir(c), ledgerOptions(c))
	if err != nil {
		t.Fatal(err)
	}
	after := room()
	prepared := ledger.Footprint(ledgerOptions(c), 0) - segmentSize(c) // all but the segment in use
	if before.ballast || !after.ballast || before.content-after.content != prepared || after.low != ballastBytes/2 {
		t.Errorf("before it was opened %+v, after %+v; it prepared %d bytes", before, after, prepared)
	}
	if err := l.Close(); err != nil {
		t.Fatal(err)
	}
	remove(t, filepath.Join(ledgerDir(c), "ballast"))
	if got := room(); got.ballast || got.content != 3*ballastBytes {
		t.Errorf("without the ballast: %+v", got)
	}
}

// What cannot be broken here is judged from what the kernel would say.
func TestDoctorJudges(t *testing.T) {
	const ext4, mib = 0xef53, 1 << 20
	options := ledger.Options{Segment: 4 * mib, Ballast: 16 * mib}
	// room is of a disk on which a twentieth is kept for root.
	room := func(free int64, short ledger.Shortage) diskRoom {
		return roomOf(unix.Statfs_t{Bsize: 1, Bfree: uint64(free), Bavail: uint64(free - free/20)}, options, short)
	}
	whole, given := ledger.Shortage{}, ledger.Shortage{Spares: 2, Ballast: true}
	plenty := room(1<<30, whole)
	for what, row := range map[string]struct {
		got    protocol.Check
		state  protocol.CheckState
		remedy string
	}{
		"a sound disk":    {judgeDisk("d", ext4, plenty, time.Millisecond), protocol.CheckFine, ""},
		"memory":          {judgeDisk("d", unix.TMPFS_MAGIC, plenty, time.Millisecond), protocol.CheckFailed, "local disk"},
		"a network":       {judgeDisk("d", unix.NFS_SUPER_MAGIC, plenty, time.Millisecond), protocol.CheckWarning, "local disk"},
		"a full disk":     {judgeDisk("d", ext4, room(0, whole), time.Millisecond), protocol.CheckFailed, "free 32 MiB more"},
		"root's rest":     {judgeDisk("d", ext4, diskRoom{available: freeForNewWork - 1, free: 1 << 30, ballast: true}, time.Millisecond), protocol.CheckFailed, "free 1 MiB more"},
		"the ledger's":    {judgeDisk("d", ext4, room(16*mib-1, ledger.Shortage{Spares: 2}), time.Millisecond), protocol.CheckFailed, "free 25 MiB more"},
		"just enough":     {judgeDisk("d", ext4, room(16*mib, ledger.Shortage{Spares: 2}), time.Millisecond), protocol.CheckFine, ""},
		"full still":      {judgeDisk("d", ext4, room(56*mib-1, given), time.Millisecond), protocol.CheckWarning, "free 1 MiB more"},
		"full long since": {judgeDisk("d", ext4, room(20*mib, given), time.Second), protocol.CheckWarning, "free 36 MiB more"},
		"full no more":    {judgeDisk("d", ext4, room(56*mib, given), time.Millisecond), protocol.CheckFine, ""},
		"a slow disk":     {judgeDisk("d", ext4, plenty, time.Second), protocol.CheckWarning, "faster disk"},
		"a sound clock":   {judgeClock(unix.TIME_OK, 0, nil), protocol.CheckFine, ""},
		"a free clock":    {judgeClock(unix.TIME_ERROR, 0, nil), protocol.CheckWarning, "time service"},
		"an unset clock":  {judgeClock(unix.TIME_OK, unix.STA_UNSYNC, nil), protocol.CheckWarning, "time service"},
		"an unread clock": {judgeClock(0, 0, errors.New("denied")), protocol.CheckWarning, "time service"},
	} {
		if row.got.State != row.state || !strings.Contains(row.got.Remedy, row.remedy) || (row.state == protocol.CheckFine) != (row.got.Remedy == "") || row.got.Found == "" {
			t.Errorf("%s: %+v", what, row.got)
		}
	}
}
