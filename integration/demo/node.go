package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"github.com/quittance/quittance/integration/canary"
	"github.com/quittance/quittance/integration/privateengine"
	"github.com/quittance/quittance/integration/workers/images"
)

// controllerUID is the user and group that the controller runs as. It needs no
// entry in the password file.
const controllerUID = 64917

// node is one machine with everything on it.
type node struct {
	show   *show
	cache  string
	dir    string
	images []images.Built

	engine     *privateengine.Engine
	host       *process
	controller *process
	follower   *process // agentctl receipts --follow --raw
	api        string   // the job service's URL
	killed     string   // the job that the kernel ended
	poster     string   // file of the very large page
	secrets    canary.Set
}

func (n *node) path(parts ...string) string {
	return filepath.Join(append([]string{n.dir}, parts...)...)
}
func (n *node) program(name string) string { return n.path("bin", name) }
func (n *node) socket() string             { return n.path("run", "agent.sock") }
func (n *node) hostKey() string            { return n.path("host", "host.key.pub") }

// cgroupRoot is the demonstration's own cgroup in every hierarchy.
func (n *node) cgroupRoot() string { return "/" + filepath.Base(n.dir) }

// process is a program that runs beside the demonstration.
type process struct {
	name   string
	cmd    *exec.Cmd
	out    string        // file of its standard output
	log    string        // file of its standard error
	exited chan struct{} // closed once it was reaped
	err    error         // how it ended; read after exited
	told   bool          // its early end was reported already
}

// start starts a program with its output in two files of its name.
func (n *node) start(name string, credential *syscall.Credential, args ...string) (*process, error) {
	return n.startAs(name, name, credential, nil, args...)
}

// startAs is start with a name of its own and more environment.
func (n *node) startAs(name, program string, credential *syscall.Credential, env []string, args ...string) (*process, error) {
	p := &process{name: name, out: n.path(name + ".out"), log: n.path(name + ".log"), exited: make(chan struct{})}
	out, err := os.OpenFile(p.out, os.O_CREATE|os.O_WRONLY|os.O_EXCL, 0o600)
	if err != nil {
		return nil, err
	}
	log, err := os.OpenFile(p.log, os.O_CREATE|os.O_WRONLY|os.O_EXCL, 0o600)
	if err != nil {
		return nil, errors.Join(err, out.Close())
	}
	p.cmd = exec.Command(n.program(program), args...)
	p.cmd.Dir = "/"
	p.cmd.Env = append([]string{"PATH=/usr/sbin:/usr/bin:/sbin:/bin"}, env...)
	p.cmd.Stdout, p.cmd.Stderr = out, log
	// Its own process group: an interrupt at the terminal is for the
	// demonstration, which then stops the others in order.
	p.cmd.SysProcAttr = &syscall.SysProcAttr{Credential: credential, Setpgid: true}
	if err := errors.Join(p.cmd.Start(), out.Close(), log.Close()); err != nil {
		return nil, fmt.Errorf("start %s: %w", name, err)
	}
	go func() {
		p.err = p.cmd.Wait()
		close(p.exited)
	}()
	return p, nil
}

// stop asks a program to end, asks again after a third of the patience (the
// controller finishes what it does at the first signal and stops at the
// second), and waits.
func (p *process) stop(patience time.Duration) error {
	if p == nil {
		return nil
	}
	for _, wait := range []time.Duration{patience / 3, patience - patience/3} {
		if err := p.cmd.Process.Signal(syscall.SIGTERM); err != nil && !errors.Is(err, os.ErrProcessDone) {
			return fmt.Errorf("stop %s: %w", p.name, err)
		}
		select {
		case <-p.exited:
			if p.err != nil && !p.told {
				return fmt.Errorf("%s did not end well: %w", p.name, p.err)
			}
			return nil
		case <-time.After(wait):
		}
	}
	said, err := os.ReadFile(p.log)
	err = errors.Join(fmt.Errorf("%s did not end within %s and was killed; it said last:\n%s", p.name, patience, lastLines(string(said), 10)), err)
	if killErr := p.cmd.Process.Kill(); killErr != nil && !errors.Is(killErr, os.ErrProcessDone) {
		return errors.Join(err, killErr)
	}
	<-p.exited
	return err
}

// kill ends a program without warning, as a crash does, and waits until it is
// gone.
func (p *process) kill() error {
	if err := p.cmd.Process.Kill(); err != nil {
		return fmt.Errorf("kill %s: %w", p.name, err)
	}
	<-p.exited
	return nil
}

// await polls until ready says so, the program ends, or time is up.
func (n *node) await(ctx context.Context, p *process, what string, patience time.Duration, ready func() error) error {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	for {
		err := ready()
		if err == nil {
			return nil
		}
		select {
		case <-p.exited:
			p.told = true
			return fmt.Errorf("%s: %s ended: %w", what, p.name, errors.Join(p.err, err))
		case <-ctx.Done():
			return fmt.Errorf("%s: not within %s: %w", what, patience, err)
		case <-time.After(100 * time.Millisecond):
		}
	}
}

// call runs a program to its end and returns its standard output. An exit
// status other than 0 is an error with what it said.
func call(ctx context.Context, credential *syscall.Credential, stdin string, env []string, name string, args ...string) (string, error) {
	command := exec.CommandContext(ctx, name, args...)
	command.Dir = "/"
	command.Env = append([]string{"PATH=/usr/sbin:/usr/bin:/sbin:/bin"}, env...)
	command.SysProcAttr = &syscall.SysProcAttr{Credential: credential}
	if stdin != "" {
		command.Stdin = strings.NewReader(stdin)
	}
	var out, said bytes.Buffer
	command.Stdout, command.Stderr = &out, &said
	if err := command.Run(); err != nil {
		return out.String(), fmt.Errorf("%s: %w: %s", filepath.Base(name), err, lastLines(said.String(), 5))
	}
	return out.String(), nil
}

func (n *node) controllerUser() *syscall.Credential {
	return &syscall.Credential{Uid: controllerUID, Gid: controllerUID, NoSetGroups: false, Groups: []uint32{}}
}

// showLogs writes the end of each program's log, for a run that failed.
func (n *node) showLogs() {
	for _, p := range []*process{n.host, n.controller} {
		if p == nil {
			continue
		}
		text, err := os.ReadFile(p.log)
		if err != nil {
			text = []byte(err.Error())
		}
		n.show.say("the end of %s's log:", p.name)
		n.show.output(lastLines(string(text), 25), 25)
	}
}

// takeDown ends and removes whatever is still there. After a good run that is
// only what the audit could not remove before: nothing.
func (n *node) takeDown() error {
	var failed []error
	failed = append(failed, n.follower.stop(5*time.Second), n.controller.stop(30*time.Second), n.host.stop(15*time.Second))
	n.follower, n.controller, n.host = nil, nil, nil
	if n.engine != nil {
		failed = append(failed, n.engine.Destroy())
		n.engine = nil
	}
	if n.dir != "" {
		failed = append(failed, removeCgroups(n.cgroupRoot()), os.RemoveAll(n.dir))
		n.dir = ""
	}
	return errors.Join(failed...)
}
