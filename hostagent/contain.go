package hostagent

import (
	"fmt"
	"os"
	"os/exec"
	"os/user"
	"slices"
	"strconv"
	"strings"

	"github.com/coreos/go-systemd/v22/daemon"
	"github.com/hashicorp/go-hclog"

	"github.com/quittance/quittance/hostagent/internal/engine"
	"github.com/quittance/quittance/hostagent/internal/sandbox"
)

// Container is how the controller runs in its container.
type Container struct {
	Name    string   // of the container and of its directory below Dir
	Archive string   // OCI archive with the program
	Args    []string // after the image's entrypoint
	User    string   // name, or UID:GID with further groups as UID:GID:GROUP…
	Network string   // "host", or a network namespace as ip netns lists it
	Read    []string // paths that the program may read, at the same place
	Write   []string // directories of its own, at the same place
	Runtime string   // runc's name or path
	Dir     string   // for the container's directory; below /run
}

// DefaultContainer is the packaged controller's.
func DefaultContainer() Container {
	return Container{
		Name: "controller", Archive: "/usr/lib/quittance/controller.oci.tar", Args: []string{"serve"}, User: "quittance-controller",
		Network: sandbox.HostNetwork, Read: []string{"/etc/quittance", "/run/quittance"},
		Write:   []string{"/var/lib/quittance-controller", "/run/quittance-controller"},
		Runtime: "runc", Dir: "/run/quittance-container",
	}
}

// Contain runs the controller in its container to its end and returns its exit
// status. Signals are passed on to it, and what it says to systemd.
func Contain(c Container, signals <-chan os.Signal, log hclog.Logger) (status int, err error) {
	id, err := identity(c.User)
	if err != nil {
		return 0, fmt.Errorf("user: %w", err)
	}
	runtime, err := exec.LookPath(c.Runtime)
	if err != nil {
		return 0, fmt.Errorf("runtime: %w: install runc", err)
	}
	environment, read := passedOn(os.Environ()), c.Read
	if slices.ContainsFunc(environment, func(e string) bool { return strings.HasPrefix(e, "JOURNAL_STREAM=") }) {
		if _, err := os.Stat(journalDir); err == nil && !slices.Contains(read, journalDir) {
			read = append(slices.Clone(read), journalDir)
		}
	}
	return sandbox.Run(sandbox.Config{
		Name: c.Name, Archive: c.Archive, Args: c.Args, Environment: environment, Identity: id, Network: c.Network,
		Read: read, Write: c.Write, Seccomp: engine.BaseSeccomp(), Runtime: runtime, Dir: c.Dir, Signals: signals,
		Notify: func(state string) error { _, err := daemon.SdNotify(false, state); return err },
		Log:    log,
	})
}

// journalDir has the journal's socket, for a program whose output goes there.
const journalDir = "/run/systemd/journal"

// passedOnNames are the variables that the program gets of this process's; and
// every QUITTANCE_ one.
var passedOnNames = []string{
	"JOURNAL_STREAM", "RUNTIME_DIRECTORY", "TZ", "GOMAXPROCS", "GOMEMLIMIT", "GOGC", "GOTRACEBACK", "GODEBUG",
	"HTTP_PROXY", "HTTPS_PROXY", "NO_PROXY", "http_proxy", "https_proxy", "no_proxy",
	"PGPASSWORD", "PGSSLMODE", "PGSSLROOTCERT",
}

func passedOn(all []string) []string {
	var out []string
	for _, e := range all {
		name, _, _ := strings.Cut(e, "=")
		if strings.HasPrefix(name, "QUITTANCE_") || slices.Contains(passedOnNames, name) {
			out = append(out, e)
		}
	}
	return out
}

// identity finds a user with all its groups, or takes numbers.
func identity(text string) (sandbox.Identity, error) {
	if strings.Contains(text, ":") {
		var numbers []uint32
		for field := range strings.SplitSeq(text, ":") {
			n, err := number(field)
			if err != nil {
				return sandbox.Identity{}, err
			}
			numbers = append(numbers, n)
		}
		return sandbox.Identity{UID: numbers[0], GID: numbers[1], Groups: numbers[2:]}, nil
	}
	account, err := user.Lookup(text)
	if err != nil {
		return sandbox.Identity{}, err
	}
	groups, err := account.GroupIds()
	if err != nil {
		return sandbox.Identity{}, err
	}
	id := sandbox.Identity{Name: account.Username}
	if id.UID, err = number(account.Uid); err != nil {
		return id, err
	}
	if id.GID, err = number(account.Gid); err != nil {
		return id, err
	}
	for _, g := range groups {
		n, err := number(g)
		if err != nil {
			return id, err
		}
		id.Groups = append(id.Groups, n)
	}
	return id, nil
}

func number(text string) (uint32, error) {
	n, err := strconv.ParseUint(text, 10, 32)
	if err != nil {
		return 0, fmt.Errorf("%q is not the number of a user or group", text)
	}
	return uint32(n), nil
}
