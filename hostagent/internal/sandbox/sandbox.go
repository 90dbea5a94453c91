package sandbox

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"runtime"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/hashicorp/go-hclog"
	specs "github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"

	"github.com/quittance/quittance/hostagent/internal/ociimage"
)

// HostNetwork is the network that is not a namespace of its own.
const HostNetwork = "host"

// netnsDir is where ip-netns(8) keeps namespaces by name.
const netnsDir = "/run/netns"

// Names below the container's directory.
const (
	lockName   = "lock"        // held for the supervisor's life
	rootfsDir  = "rootfs"      // the image's files, in memory, seen by this process only
	etcDir     = "etc"         // mounted at /etc
	notifyName = "notify"      // mounted at notifyDir
	stateDir   = "runc"        // runc's own
	specName   = "config.json" // the bundle's; it may hold secrets of the environment
	pidName    = "pid"         // the program's, once it runs
	freshPID   = ".pid"        // runc's, on its way to pidName
)

// made is everything that one life leaves in the container's directory.
var made = []string{rootfsDir, etcDir, notifyName, stateDir, specName, pidName, freshPID}

// runDir is where container directories lie: in memory, so that no life before a
// reboot is left, and root's.
const runDir = "/run"

// Bounds of waits.
const (
	runtimeTime = 30 * time.Second // for what runc does beside running, starting too
	stopTime    = 5 * time.Second  // for a start to end, once a stop was asked for
	pipeTime    = 2 * time.Second  // for what has runc's output, once runc has ended
	emptyTime   = 10 * time.Second // for a killed cgroup to be empty
)

// Config is one container.
type Config struct {
	// Name is the container's: lower-case letters, digits and hyphens.
	Name string
	// Archive is an OCI archive of the program for this architecture.
	Archive string
	// Args follow the image's entrypoint.
	Args []string
	// Environment is added to the program's, each NAME=VALUE.
	Environment []string
	// Identity is the program's user; neither root nor containerRoot.
	Identity Identity
	// Network is [HostNetwork] or a namespace's name as ip netns lists it.
	Network string
	// Read and Write are absolute paths that the program sees where they are.
	// Those to write are directories, made for the program's user where they are
	// missing.
	Read, Write []string
	// Seccomp refuses what it does not name; it is narrowed here.
	Seccomp *specs.LinuxSeccomp
	// Runtime is runc's file.
	Runtime string
	// Dir holds the container's directory: below /run, root's, made where it is
	// missing. Everybody may walk through it, and only root writes in it.
	Dir string
	// Signals are passed on to the program.
	Signals <-chan os.Signal
	// Notify passes a state in the form of sd_notify(3) on; nil: nowhere.
	Notify func(state string) error
	Log    hclog.Logger
}

var (
	nameForm    = regexp.MustCompile(`^[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?$`)
	networkForm = regexp.MustCompile(`^[A-Za-z0-9_][A-Za-z0-9_.-]{0,254}$`)
)

// check reports everything that is wrong with the configuration at once.
func (c *Config) check() error {
	var problems []error
	refuse := func(format string, args ...any) { problems = append(problems, fmt.Errorf(format, args...)) }
	if !nameForm.MatchString(c.Name) {
		refuse("name: %q must be 1 to 63 of a-z, 0-9 and, inside, hyphens", c.Name)
	}
	if filepath.Clean(c.Dir) != c.Dir || !strings.HasPrefix(c.Dir, runDir+"/") {
		refuse("container directory: %q must be a clean path below %s", c.Dir, runDir)
	}
	if c.Network != HostNetwork {
		if !networkForm.MatchString(c.Network) {
			refuse("network: %q is neither %s nor the name of a network namespace", c.Network, HostNetwork)
		} else if _, err := os.Stat(filepath.Join(netnsDir, c.Network)); err != nil {
			refuse("network: %w; make it with: ip netns add %s", err, c.Network)
		}
	}
	for _, id := range append(c.Identity.groups(), c.Identity.UID) {
		if id == 0 || id == containerRoot {
			refuse("user: the program may not be or belong to %d", id)
		}
	}
	for _, path := range slices.Concat(c.Read, c.Write) {
		if !filepath.IsAbs(path) || filepath.Clean(path) != path || path == "/" {
			refuse("read, write: %q must be an absolute, clean path below /", path)
		}
		for _, taken := range []string{"/proc", "/dev", "/tmp", "/etc", "/sys", "/usr", notifyDir} {
			if path == taken {
				refuse("read, write: %s is the container's own", path)
			}
		}
	}
	return errors.Join(problems...)
}

// supervisor is one life of a container.
type supervisor struct {
	config Config
	dir    string
	cgroup string            // below every hierarchy's mount
	seen   map[string]seen   // by machineFile.target; first live's, then attend's
	told   map[string]string // what was last said of a machineFile.target; likewise

	deep map[string]bool // those of Read and Write that have mounts below them

	stopTime time.Duration
	early    []os.Signal // came while runc started the program
}

func (s *supervisor) path(name string) string { return filepath.Join(s.dir, name) }

// Run runs the program to its end and returns its exit status, 128 and more for
// a signal. An error means that it did not run, or that something of it is left.
func Run(c Config) (status int, err error) {
	if c.Log == nil {
		c.Log = hclog.NewNullLogger()
	}
	if err := c.check(); err != nil {
		return 0, err
	}
	// The container's root, who is nobody outside, walks through what is made here;
	// what is secret has a mode of its own.
	unix.Umask(0o022)
	image, err := ociimage.Open(c.Archive)
	if err != nil {
		return 0, err
	}
	defer func() { err = errors.Join(err, image.Close()) }()
	s := &supervisor{config: c, dir: filepath.Join(c.Dir, c.Name), seen: map[string]seen{}, told: map[string]string{}, stopTime: stopTime}
	lock, err := s.lock(runDir)
	if err != nil {
		return 0, err
	}
	defer func() { err = errors.Join(err, lock.Close()) }()
	if s.cgroup, err = placement(c.Name); err != nil {
		return 0, err
	}
	// What an earlier life left, for example because it was killed.
	if err := s.clear(); err != nil {
		return 0, fmt.Errorf("what is left of an earlier start: %w", err)
	}
	defer func() { err = errors.Join(err, s.clear()) }()
	if err := s.paths(); err != nil {
		return 0, err
	}
	c.Log.Info("container starts", "name", c.Name, "image", image.Digest, "network", c.Network, "cgroup", s.cgroup, "uid", c.Identity.UID)
	type outcome struct {
		status int
		err    error
	}
	ended := make(chan outcome)
	go func() {
		// This thread gets mounts of its own, and runc dies with it: it is never
		// given back, so it ends with this function.
		runtime.LockOSThread()
		status, err := s.live(image)
		ended <- outcome{status, err}
	}()
	end := <-ended
	return end.status, end.err
}

// lock makes the container's directory, below one that is there, and takes it.
func (s *supervisor) lock(below string) (*os.File, error) {
	if err := ownWay(below, s.dir); err != nil {
		return nil, fmt.Errorf("directory of containers: %w", err)
	}
	lock, err := os.OpenFile(s.path(lockName), os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		return nil, err
	}
	if err := unix.Flock(int(lock.Fd()), unix.LOCK_EX|unix.LOCK_NB); err != nil {
		if errors.Is(err, unix.EWOULDBLOCK) {
			err = fmt.Errorf("container %s is supervised by another process: stop that first, or choose another --name", s.config.Name)
		}
		return nil, errors.Join(err, lock.Close())
	}
	return lock, nil
}

// ownWay makes the directories from below a directory to dir that are missing,
// and leaves the others as they are: each must be root's, and the container's
// root, who is nobody outside, must be able to walk through.
func ownWay(below, dir string) error {
	way, err := filepath.Rel(below, dir)
	if err != nil {
		return err
	}
	for name := range strings.SplitSeq(way, "/") {
		below = filepath.Join(below, name)
		info, err := os.Lstat(below)
		if errors.Is(err, fs.ErrNotExist) {
			if err := os.Mkdir(below, 0o711); err != nil {
				return err
			}
			info, err = os.Lstat(below)
		}
		if err != nil {
			return err
		}
		mode, owner := info.Mode().Perm(), info.Sys().(*syscall.Stat_t).Uid
		switch {
		case !info.IsDir():
			return fmt.Errorf("%s is not a directory", below)
		case int(owner) != os.Geteuid() || mode&0o022 != 0:
			return fmt.Errorf("%s belongs to user %d and has mode %04o: choose a directory that only root can write", below, owner, mode)
		case mode&0o001 == 0:
			return fmt.Errorf("%s has mode %04o: the container cannot walk through it; chmod 0711 it, or choose another", below, mode)
		}
	}
	return nil
}

// clear ends and removes everything of the container but its lock. A name that is
// not the container's says that this is somebody else's directory: nothing in it
// is touched then.
func (s *supervisor) clear() error {
	entries, err := os.ReadDir(s.dir)
	if err != nil {
		return err
	}
	for _, e := range entries {
		if e.Name() != lockName && !slices.Contains(made, e.Name()) {
			return fmt.Errorf("%s is not of a container: remove it, or choose another container directory", s.path(e.Name()))
		}
	}
	if err := s.removeContainer(); err != nil {
		return err
	}
	if err := emptyGroup(s.cgroup, emptyTime); err != nil {
		return err
	}
	for _, name := range made {
		if err := os.RemoveAll(s.path(name)); err != nil {
			return err
		}
	}
	return nil
}

// paths makes the directories to write that are missing, checks that the others
// are the program's, and looks at what is mounted below them all.
func (s *supervisor) paths() error {
	id := s.config.Identity
	for _, path := range s.config.Read {
		if _, err := os.Stat(path); err != nil {
			return fmt.Errorf("read: %w", err)
		}
	}
	for _, path := range s.config.Write {
		info, err := os.Stat(path)
		if errors.Is(err, fs.ErrNotExist) {
			if err := os.MkdirAll(path, 0o700); err != nil {
				return fmt.Errorf("write: %w", err)
			}
			if err := os.Chown(path, int(id.UID), int(id.GID)); err != nil {
				return fmt.Errorf("write: %w", err)
			}
			continue
		}
		if err != nil {
			return fmt.Errorf("write: %w", err)
		}
		owner := info.Sys().(*syscall.Stat_t).Uid
		if !info.IsDir() || owner != id.UID {
			return fmt.Errorf("write: %s must be a directory of user %d (it belongs to %d): chown it", path, id.UID, owner)
		}
	}
	deep, err := mountsBelow(slices.Concat(s.config.Read, s.config.Write))
	if err != nil {
		return fmt.Errorf("mounts below what is given: %w", err)
	}
	s.deep = deep
	return nil
}
