package main

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"os/user"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"

	"github.com/quittance/quittance/integration/vm/refusals"
	"github.com/quittance/quittance/protocol"
)

// controllerUser is the user that the controller's unit runs as.
const controllerUser = "quittance-controller"

// credential is a user as systemd would start it: its groups too.
func credential(name string) (*syscall.Credential, error) {
	account, err := user.Lookup(name)
	if err != nil {
		return nil, err
	}
	ids, err := account.GroupIds()
	if err != nil {
		return nil, err
	}
	c := &syscall.Credential{Groups: []uint32{}}
	number := func(text string) uint32 {
		n, parseErr := strconv.ParseUint(text, 10, 32)
		err = errors.Join(err, parseErr)
		return uint32(n)
	}
	c.Uid, c.Gid = number(account.Uid), number(account.Gid)
	for _, id := range ids {
		c.Groups = append(c.Groups, number(id))
	}
	return c, err
}

// try is run as another user: one attempt, and how it went: "allowed", or the
// system's error.
func try(what, target string) string {
	var err error
	switch what {
	case "connect":
		var conn net.Conn
		if conn, err = net.Dial("unix", target); err == nil {
			err = conn.Close()
		}
	case "read":
		var f *os.File
		if f, err = os.Open(target); err == nil {
			err = f.Close()
		}
	case "write":
		var f *os.File
		if f, err = os.OpenFile(target, os.O_WRONLY, 0); err == nil {
			err = f.Close()
		}
	case "ptrace", "kill":
		var pid int
		if pid, err = strconv.Atoi(target); err != nil {
			return err.Error()
		}
		if what == "kill" {
			err = syscall.Kill(pid, syscall.SIGTERM)
		} else {
			err = syscall.PtraceAttach(pid)
		}
	default:
		return "unknown attempt"
	}
	if number, ok := errors.AsType[syscall.Errno](err); ok {
		return number.Error()
	}
	if err != nil {
		return err.Error()
	}
	return "allowed"
}

// attempt is something that a user tries, and what must come of it. Its name says
// what the target is, which is another process or path in every run.
type attempt struct{ user, what, target, name, wanted string }

// The two ways in which the kernel refuses.
const (
	noAccess     = "permission denied"
	notPermitted = "operation not permitted"
	allowed      = "allowed"
)

// users lets the controller's user and a stranger try what they must not be
// able to do, against a live worker.
func users(ctx context.Context, t *task) (string, error) {
	w, err := allocate(ctx, "steady")
	if err != nil {
		return "", err
	}
	aims, err := aimsAt(ctx, w)
	if err != nil {
		return "", err
	}
	var problems []error
	refused := 0
	for _, a := range attempts(aims) {
		as, err := credential(a.user)
		if err != nil {
			return "", err
		}
		got, err := runAs(ctx, as, "", "/payload/guest", "try", a.what, a.target)
		if err != nil {
			return "", err
		}
		if got != a.wanted {
			problems = append(problems, fmt.Errorf("%s tried to %s, %s %s: %s, expected %s", a.user, a.name, a.what, a.target, got, a.wanted))
		}
		if a.wanted == allowed {
			continue
		}
		refused++
		if err := t.note("%s", refusals.Refusal{Who: a.user, What: a.name, Error: got}); err != nil {
			return "", err
		}
	}
	if err := w.alive(); err != nil {
		problems = append(problems, err)
	}
	if _, err := w.end(ctx); err != nil {
		problems = append(problems, err)
	}
	return fmt.Sprintf("%d attempts refused", refused), errors.Join(append(problems, leftovers(ctx))...)
}

// aims are what is different in every run.
type aims struct{ agent, container, shim, group string }

func aimsAt(ctx context.Context, w *worker) (aims, error) {
	agent, err := mainPID(ctx, agentUnit)
	if err != nil {
		return aims{}, err
	}
	shims, err := filepath.Glob("/run/containerd/s/*")
	if err != nil || len(shims) == 0 {
		return aims{}, fmt.Errorf("no shim's socket: %v", err)
	}
	return aims{strconv.Itoa(agent), strconv.FormatInt(w.body.PID, 10), shims[0], w.group("")}, nil
}

// strangers are those who must have nothing of the agent and the engine.
var strangers = []string{controllerUser, "nobody"}

func attempts(at aims) []attempt {
	var all []attempt
	for _, who := range strangers {
		all = append(all,
			attempt{who, "connect", "/run/containerd/containerd.sock", "connect to the engine's socket", noAccess},
			attempt{who, "connect", "/run/containerd/containerd.sock.ttrpc", "connect to the engine's socket for shims", noAccess},
			attempt{who, "connect", at.shim, "connect to a shim's socket", noAccess},
			attempt{who, "read", "/var/lib/containerd", "read /var/lib/containerd", noAccess},
			attempt{who, "read", "/var/lib/quittance", "read the agent's state directory", noAccess},
			attempt{who, "read", "/var/lib/quittance/ledger", "read the ledger's directory", noAccess},
			attempt{who, "read", "/var/lib/quittance/host.key", "read the host's key", noAccess},
			attempt{who, "read", "/proc/" + at.agent + "/mem", "read the agent's memory", noAccess},
			attempt{who, "read", "/proc/" + at.agent + "/environ", "read the agent's environment", noAccess},
			attempt{who, "read", "/proc/" + at.agent + "/root/etc/shadow", "read /etc/shadow through the agent's root", noAccess},
			attempt{who, "read", "/proc/" + at.container + "/root/worker", "read a worker's program through its root", noAccess},
			attempt{who, "read", "/proc/" + at.container + "/ns/net", "open a worker's network namespace", noAccess},
			attempt{who, "ptrace", at.agent, "trace the agent", notPermitted},
			attempt{who, "ptrace", at.container, "trace a worker", notPermitted},
			attempt{who, "kill", at.agent, "send a signal to the agent", notPermitted},
			attempt{who, "kill", at.container, "send a signal to a worker", notPermitted},
			attempt{who, "write", at.group + "cgroup.kill", "kill a worker's cgroup", noAccess},
			attempt{who, "write", at.group + "memory.max", "write a worker's memory limit", noAccess},
			attempt{who, "write", "/etc/quittance/hostagent.toml", "write the agent's configuration", noAccess},
			attempt{who, "write", "/etc/quittance/profiles/steady.toml", "write a profile", noAccess},
		)
	}
	return append(all,
		attempt{controllerUser, "connect", socketPath, "connect to the agent's socket", allowed},
		attempt{"nobody", "connect", socketPath, "connect to the agent's socket", noAccess},
		attempt{"nobody", "read", "/var/lib/quittance-controller/jobs", "read the jobs' directory", noAccess},
	)
}

// upgrade installs newer packages while a worker lives and a channel to it is
// open.
func upgrade(ctx context.Context, _ *task) (string, error) {
	w, err := allocate(ctx, "steady")
	if err != nil {
		return "", err
	}
	c, err := w.open(ctx)
	if err != nil {
		return "", err
	}
	if err := c.echo("before"); err != nil {
		return "", err
	}
	before, err := mainPID(ctx, agentUnit)
	if err != nil {
		return "", err
	}
	old, err := run(ctx, "dpkg-query", "-W", "-f", "${Version}", "quittance-hostagent")
	if err != nil {
		return "", err
	}
	packages, err := debs("upgrade")
	if err != nil {
		return "", err
	}
	if _, err := run(ctx, "apt-get", append([]string{"-y", "--no-install-recommends", "install"}, packages...)...); err != nil {
		return "", err
	}
	if err := restarted(ctx, agentUnit, before); err != nil {
		return "", err
	}
	host, _, err := connect(ctx)
	if err != nil {
		return "", err
	}
	if host.Versions.Agent == old || !strings.HasPrefix(host.Versions.Agent, "9.") {
		return "", fmt.Errorf("the agent is still version %s", host.Versions.Agent)
	}
	// What the administrator wrote is still there.
	config, err := os.ReadFile(agentConfig)
	if err != nil {
		return "", err
	}
	if !strings.Contains(string(config), "max_slots = 8") {
		return "", errors.New("the upgrade replaced the administrator's configuration")
	}
	if err := errors.Join(w.alive(), c.echo("after, on the same channel"), w.limits(), w.sameGroup()); err != nil {
		return "", err
	}
	if err := c.conn.Close(); err != nil {
		return "", err
	}
	retired, err := w.end(ctx)
	if err != nil {
		return "", err
	}
	if retired.Exit == nil || retired.Exit.Source != protocol.ExitFromEngine || retired.Exit.Code == nil || *retired.Exit.Code != 3 {
		return "", fmt.Errorf("exit %+v, expected code 3 from the engine", retired.Exit)
	}
	return old + " to " + host.Versions.Agent, leftovers(ctx)
}

// removalRefused tries to remove the package while a worker lives.
func removalRefused(ctx context.Context, _ *task) (string, error) {
	w, err := allocate(ctx, "steady")
	if err != nil {
		return "", err
	}
	if out, err := run(ctx, "apt-get", "-y", "remove", "quittance-hostagent"); err == nil {
		return "", fmt.Errorf("the removal was not refused: %s", last(out, 300))
	} else if !strings.Contains(err.Error(), "containers are still allocated on this node") {
		return "", fmt.Errorf("the refusal does not say why: %w", err)
	}
	if err := errors.Join(w.alive(), properties(ctx, agentUnit, "ActiveState=active")); err != nil {
		return "", err
	}
	if state, err := run(ctx, "dpkg-query", "-W", "-f", "${db:Status-Abbrev}", "quittance-hostagent"); err != nil || !strings.HasSuffix(strings.TrimSpace(state), "i") {
		return "", fmt.Errorf("the package is in state %q after the refusal: %v", state, err)
	}
	if _, err := w.end(ctx); err != nil {
		return "", err
	}
	// Whoever asked changes his mind.
	_, err = run(ctx, "apt-mark", "manual", "quittance-hostagent")
	return "", errors.Join(err, leftovers(ctx))
}
