package hostagent

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/hashicorp/go-hclog"
	"golang.org/x/sys/unix"

	"github.com/quittance/quittance/hostagent/internal/cgroup"
	"github.com/quittance/quittance/hostagent/internal/engine"
	"github.com/quittance/quittance/hostagent/internal/ledger"
	"github.com/quittance/quittance/profiles"
	"github.com/quittance/quittance/protocol"
	"github.com/quittance/quittance/protocol/hostclient"
	"github.com/quittance/quittance/protocol/tlog"
)

// Bounds of what is looked at.
const (
	syncRounds   = 5
	slowSync     = 100 * time.Millisecond // above it every receipt is felt
	shownOrphans = 8
)

// Doctor looks at this machine as the agent would find it, whether the agent
// runs or not, and says what to do about each thing that is wrong. Apart from
// one file in the state directory, written for a moment to time its disk, it
// changes nothing.
func Doctor(ctx context.Context, c Config, log hclog.Logger) protocol.Checkup {
	d := &doctor{cfg: c, log: log}
	d.state()
	d.ledger()
	d.disk()
	d.users()
	d.init()
	d.clock()
	d.cgroups()
	d.engine(ctx)
	d.profiles()
	d.devices()
	d.leftovers(ctx)
	return protocol.Checkup{Checks: d.checks}
}

// DoctorRefused is the checkup of a configuration that is refused: nothing else
// can be looked at.
func DoctorRefused(err error) protocol.Checkup {
	return protocol.Checkup{Checks: []protocol.Check{{
		Name: "configuration", State: protocol.CheckFailed, Found: err.Error(), Remedy: "mend each problem that is listed; `hostagent config check` shows them too",
	}}}
}

// doctor collects.
type doctor struct {
	cfg    Config
	log    hclog.Logger
	checks []protocol.Check
	groups *cgroup.Manager // nil where they cannot be used
}

func (d *doctor) add(name string, state protocol.CheckState, remedy, found string, args ...any) {
	d.checks = append(d.checks, protocol.Check{Name: name, State: state, Found: fmt.Sprintf(found, args...), Remedy: remedy})
}

func (d *doctor) fine(name, found string, args ...any) {
	d.add(name, protocol.CheckFine, "", found, args...)
}

func (d *doctor) state() {
	const name = "state directory"
	if err := checkStateDir(d.cfg); err != nil {
		d.add(name, protocol.CheckFailed, "run `hostagent init` on a new machine; otherwise put back what was there, or look at `hostagent ledger abandon`", "%v", err)
		return
	}
	signer, err := tlog.LoadKeyFile(hostKeyFile(d.cfg))
	if err != nil {
		d.add(name, protocol.CheckFailed, "put back the key that `hostagent init` made", "host key: %v", err)
		return
	}
	d.fine(name, "%s, host key %s", d.cfg.StateDir, signer.PublicKey())
}

func (d *doctor) ledger() {
	report, err := CheckLedger(d.cfg)
	if err != nil {
		d.add("ledger", protocol.CheckFailed, "read the runbook of a damaged ledger: restore a backup only together with its witness, or use `hostagent ledger abandon`", "%v", err)
		return
	}
	d.fine("ledger", "generation %s, sequences %d to %d verified", report.Generation, report.First, report.Last)
}

// fleeting are file systems that lose what was synced, or may.
var fleeting = map[int64]struct {
	name  string
	state protocol.CheckState
}{
	unix.TMPFS_MAGIC:           {"tmpfs", protocol.CheckFailed},
	unix.RAMFS_MAGIC:           {"ramfs", protocol.CheckFailed},
	unix.OVERLAYFS_SUPER_MAGIC: {"overlay", protocol.CheckWarning},
	unix.NFS_SUPER_MAGIC:       {"NFS", protocol.CheckWarning},
	unix.FUSE_SUPER_MAGIC:      {"FUSE", protocol.CheckWarning},
}

func (d *doctor) disk() {
	const name = "disk of the state directory"
	var st unix.Statfs_t
	if err := unix.Statfs(d.cfg.StateDir, &st); err != nil {
		d.add(name, protocol.CheckFailed, "make the directory readable to root", "%v", err)
		return
	}
	took, err := timeSync(d.cfg.StateDir)
	if err != nil {
		d.add(name, protocol.CheckFailed, "the agent ends at its first failed sync: mend or replace the disk", "a write with sync fails: %v", err)
		return
	}
	options := ledgerOptions(d.cfg)
	short, err := ledger.FindShortage(ledgerDir(d.cfg), options)
	if errors.Is(err, ledger.ErrNotExist) {
		err, short = nil, ledger.Shortage{} // the check of the ledger tells
	}
	if err != nil {
		d.add(name, protocol.CheckFailed, "mend what the check of the ledger names, then look again", "what the ledger has prepared cannot be looked at: %v", err)
		return
	}
	d.checks = append(d.checks, judgeDisk(name, int64(st.Type), roomOf(st, options, short), took))
}

// diskRoom is the space of a file system, in bytes, beside what decides there
// whether the agent takes new work.
type diskRoom struct {
	available int64 // to everybody
	free      int64 // to root, the agent
	// low is the bound of free below which the ledger counts the disk as full:
	// it depends on what is prepared, for that is to be made of what is free.
	low int64
	// content is the bound from which a full ledger takes the disk for usable.
	content int64
	ballast bool // is there: the ledger does not count the disk as full
}

func roomOf(st unix.Statfs_t, o ledger.Options, short ledger.Shortage) diskRoom {
	return diskRoom{
		available: int64(st.Bavail) * st.Bsize, free: int64(st.Bfree) * st.Bsize,
		low: o.FullBelow() + int64(short.Spares)*o.Segment, content: o.ContentFrom(short.Spares, !short.Ballast), ballast: !short.Ballast,
	}
}

// more is how many bytes are to be freed so that new work is taken for certain,
// whatever the running agent thinks now.
func (r diskRoom) more() int64 {
	return max(r.content-r.free, freeForNewWork-r.available, 0)
}

// judgeDisk says what a file system is good for: kind is statfs's, and took is
// what one sync takes. Free space between the ledger's two bounds is enough for
// an agent that has found no full disk, and not for one that has: that one has
// given up the ballast, and refuses new work.
func judgeDisk(name string, kind int64, room diskRoom, took time.Duration) protocol.Check {
	const mib = 1 << 20
	c := protocol.Check{Name: name, State: protocol.CheckFine, Found: fmt.Sprintf("%d MiB free, a sync takes %s", room.available/mib, took.Round(10*time.Microsecond))}
	loses, fleets := fleeting[kind]
	remedy := fmt.Sprintf("free %d MiB more on this file system: new work is refused until then, existing allocations can still be retired", (room.more()+mib-1)/mib)
	switch {
	case fleets:
		c.State, c.Remedy = loses.state, "put state_dir on a local disk with ext4 or xfs"
		c.Found = fmt.Sprintf("%s: what was synced may be lost with the machine (%s)", loses.name, c.Found)
	case room.available < freeForNewWork || room.free < room.low:
		c.State, c.Remedy = protocol.CheckFailed, remedy
	case !room.ballast && room.free < room.content:
		c.State, c.Remedy = protocol.CheckWarning, remedy
		c.Found = fmt.Sprintf("the ledger has given up its ballast, or never had it, and needs %d MiB free to count the disk as usable again (%s)", (room.content+mib-1)/mib, c.Found)
	case took > slowSync:
		c.State, c.Remedy = protocol.CheckWarning, "use a faster disk: every receipt waits for a sync"
	}
	return c
}

// timeSync is the median time of a small overwrite with fdatasync.
func timeSync(dir string) (took time.Duration, err error) {
	f, err := os.CreateTemp(dir, ".doctor-*")
	if err != nil {
		return 0, err
	}
	defer func() { err = errors.Join(err, f.Close(), os.Remove(f.Name())) }()
	block := make([]byte, 4096)
	var times []time.Duration
	for range syncRounds {
		began := time.Now()
		if _, err := f.WriteAt(block, 0); err != nil {
			return 0, err
		}
		if err := unix.Fdatasync(int(f.Fd())); err != nil {
			return 0, err
		}
		times = append(times, time.Since(began))
	}
	slices.Sort(times)
	return times[len(times)/2], nil
}

func (d *doctor) users() {
	const name = "users"
	controllers, err := d.cfg.ControllerUIDs.Resolve()
	if err == nil {
		_, err = d.cfg.OperatorUIDs.Resolve()
	}
	if err == nil {
		_, err = d.cfg.GroupID()
	}
	switch {
	case err != nil:
		d.add(name, protocol.CheckFailed, "name users and a group that exist in controller_uids, operator_uids and socket_group", "%v", err)
	case slices.Contains(controllers, 0):
		d.add(name, protocol.CheckWarning, "give the controller a user of its own and name it in controller_uids", "root is a controller: it could use the engine itself")
	case len(controllers) == 0:
		d.add(name, protocol.CheckWarning, "name the controller's user in controller_uids", "no user may act as the controller")
	default:
		d.fine(name, "controllers %v, group of the socket %s", controllers, d.cfg.SocketGroup)
	}
}

func (d *doctor) init() {
	const name, remedy = "init", "install the package catatonit, or point init_path at a static init"
	info, err := os.Stat(d.cfg.InitPath)
	switch {
	case err != nil:
		d.add(name, protocol.CheckFailed, remedy, "%v", err)
	case !info.Mode().IsRegular() || info.Mode()&0o111 == 0:
		d.add(name, protocol.CheckFailed, remedy, "%s is no program", d.cfg.InitPath)
	case info.Mode()&0o022 != 0:
		d.add(name, protocol.CheckFailed, "chmod go-w "+d.cfg.InitPath, "%s can be written by others than root", d.cfg.InitPath)
	default:
		d.fine(name, "%s", d.cfg.InitPath)
	}
}

func (d *doctor) clock() {
	var t unix.Timex
	state, err := unix.Adjtimex(&t)
	d.checks = append(d.checks, judgeClock(state, t.Status, err))
}

// judgeClock reads adjtimex's answer. No decision of the agent's depends on the
// wall clock (I25); signatures of the controller's and people reading receipts do.
func judgeClock(state int, status int32, err error) protocol.Check {
	c := protocol.Check{Name: "clock", State: protocol.CheckFine, Found: "synchronised"}
	switch {
	case err != nil:
		c.State, c.Remedy = protocol.CheckWarning, "run a time service"
		c.Found = fmt.Sprintf("whether it is synchronised cannot be read: %v", err)
	case state == unix.TIME_ERROR || status&unix.STA_UNSYNC != 0:
		c.State, c.Remedy, c.Found = protocol.CheckWarning, "run a time service, for example systemd-timesyncd or chrony", "not synchronised"
	}
	return c
}

func (d *doctor) cgroups() {
	groups, err := cgroup.Open(cgroup.Options{Root: d.cfg.WorkersCgroup()})
	if err != nil {
		d.add("cgroups", protocol.CheckFailed, "under systemd start quittance-workers.service; elsewhere mount the memory controller", "%v", err)
		return
	}
	d.groups = groups
	d.fine("cgroups", "%s at %s", groups.Mode(), groups.Root())
}

func (d *doctor) engine(ctx context.Context) {
	const name = "engine"
	info, err := os.Stat(d.cfg.EngineAddress)
	if errors.Is(err, fs.ErrNotExist) {
		d.add(name, protocol.CheckFailed, "install and start containerd, or set engine_address", "no socket at %s", d.cfg.EngineAddress)
		return
	}
	if err != nil {
		d.add(name, protocol.CheckFailed, "run this as root", "%v", err)
		return
	}
	e, err := openEngine(ctx, d.cfg, d.log)
	if err != nil {
		d.add(name, protocol.CheckFailed, "mend the configuration", "%v", err)
		return
	}
	health := e.Health()
	if err := e.Close(); err != nil {
		d.log.Debug("engine_close_failed", "error", err)
	}
	switch {
	case !health.Available:
		d.add(name, protocol.CheckFailed, "look at `systemctl status containerd` and its journal", "%s", health.Detail)
	case info.Mode().Perm()&0o006 != 0:
		d.add(name, protocol.CheckFailed, "chmod o-rw "+d.cfg.EngineAddress+": whoever can use it is root", "every user can use containerd's socket")
	default:
		d.fine(name, "containerd %s", health.Version)
	}
}

func (d *doctor) profiles() {
	const name = "profiles"
	loaded, err := profiles.Load(d.cfg.ProfileDir)
	if err != nil {
		d.add(name, protocol.CheckFailed, "make profile_dir a directory that only root can write", "%v", err)
		return
	}
	bad := 0
	for _, l := range loaded {
		if l.Err != nil {
			bad++
			d.add("profile "+l.File, protocol.CheckWarning, "mend the file, then reload the agent", "%v", l.Err)
		}
	}
	if len(loaded) == 0 {
		d.add(name, protocol.CheckWarning, "put a profile there and reload the agent; examples lie in /usr/share/doc", "none in %s", d.cfg.ProfileDir)
		return
	}
	d.fine(name, "%d of %d files are valid; what else one needs is in `agentctl profiles`", len(loaded)-bad, len(loaded))
}

// leftovers compares what is on the machine with what the running agent knows.
// It looks before and after it asks: what is being made or removed meanwhile is
// in one of the two looks only, or among the allocations.
func (d *doctor) leftovers(ctx context.Context) {
	const name = "leftovers"
	before, err := d.audit(ctx)
	if err != nil {
		d.add(name, protocol.CheckWarning, "once the checks above are fine, look again", "cannot be looked for: %v", err)
		return
	}
	client := hostclient.New(d.cfg.Socket, hostclient.Options{})
	host, err := client.Host(ctx)
	var known []protocol.Allocation
	if err == nil {
		known, err = client.In(host.Generation).List(ctx, "")
	}
	if err != nil {
		d.add("agent", protocol.CheckFailed, "start the agent: `systemctl start quittance-hostagent`", "it does not answer: %v", err)
		if len(before) > 0 {
			d.add(name, protocol.CheckWarning, "none needed: the agent adopts or removes them when it starts", "%d things of the agent's: %s", len(before), list(before))
			return
		}
		d.fine(name, "none")
		return
	}
	d.fine("agent", "answers, version %s", host.Versions.Agent)
	after, err := d.audit(ctx)
	if err != nil {
		d.add(name, protocol.CheckWarning, "look again", "cannot be looked for: %v", err)
		return
	}
	orphans, making := orphansOf(before, after, known)
	switch {
	case len(orphans) > 0 && making > 0:
		d.add(name, protocol.CheckWarning, "look again once no allocation is being created", "%d things that may belong to %d allocations being created: %s", len(orphans), making, list(orphans))
	case len(orphans) > 0:
		d.add(name, protocol.CheckFailed, "restart the agent, which sweeps what is its own; what stays then is somebody else's doing: look at it and remove it by hand",
			"%d things that belong to no allocation: %s", len(orphans), list(orphans))
	default:
		d.fine(name, "none; %d things belong to allocations", len(after))
	}
}

// orphansOf are the things in both looks that no allocation accounts for, and
// how many allocations cannot say yet what is theirs.
func orphansOf(before, after []engine.Leftover, known []protocol.Allocation) (orphans []engine.Leftover, making int) {
	nonces := map[protocol.ID]bool{}
	for _, a := range known {
		if a.Container != nil {
			nonces[a.Container.Nonce] = true
		} else if a.State == protocol.StateAccepted || a.State == protocol.StateCreating || a.State == protocol.StateRetiring {
			making++
		}
	}
	for _, l := range before {
		if !nonces[l.Nonce] && slices.Contains(after, l) {
			orphans = append(orphans, l)
		}
	}
	return orphans, making
}

func list(all []engine.Leftover) string {
	var names []string
	for _, l := range all[:min(len(all), shownOrphans)] {
		names = append(names, l.String())
	}
	text := strings.Join(names, ", ")
	if len(all) > shownOrphans {
		text += fmt.Sprintf(" and %d more; `hostagent leftovers` lists all", len(all)-shownOrphans)
	}
	return text
}

// audit is the one look at the machine that Leftovers shows too.
func (d *doctor) audit(ctx context.Context) ([]engine.Leftover, error) {
	if d.groups == nil {
		return nil, errors.New("no cgroups")
	}
	return audit(ctx, d.cfg, d.groups, d.log)
}

// audit finds everything of the agent's on this machine, what lives included.
func audit(ctx context.Context, c Config, groups *cgroup.Manager, log hclog.Logger) (found []engine.Leftover, err error) {
	e, err := openEngine(ctx, c, log)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, e.Close()) }()
	return e.Leftovers(ctx, groups)
}
