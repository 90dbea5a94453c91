package controllertest

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"

	"github.com/quittance/quittance/integration/ociarchive"
)

// Contained is a container that hostagent controller-container makes on a site.
type Contained struct {
	Archive string // default: the controller's
	Name    string // of the container; unique on the machine
	Network string // default: host
	Args    []string
}

// archive packs a static program as packages do.
func archive(file, program string) error {
	const inside = "/usr/bin/controller"
	binary, err := ociarchive.Binary(program, inside)
	if err != nil {
		return err
	}
	layer, err := ociarchive.Files([]ociarchive.File{binary})
	if err != nil {
		return err
	}
	_, err = ociarchive.Write(file, ociarchive.Image{Name: "controller", Layers: []ociarchive.Layer{layer}, Entrypoint: []string{inside}})
	return err
}

// Archive packs a package's program in the controller's place and returns the
// archive's file.
func (s *Site) Archive(pkg string) string {
	s.T.Helper()
	program := s.path("program")
	if err := build(program, pkg, ""); err != nil {
		s.T.Fatal(err)
	}
	file := program + ".oci.tar"
	if err := archive(file, program); err != nil {
		s.T.Fatal(err)
	}
	return file
}

// containers is the directory of containers, which the supervisor wants below /run.
func (s *Site) containers() string {
	s.T.Helper()
	if s.run == "" {
		dir, err := os.MkdirTemp("/run", "quittance-test-")
		if err == nil {
			err = os.Chmod(dir, 0o711)
		}
		if err != nil {
			s.T.Fatal(err)
		}
		s.run = dir
		s.T.Cleanup(func() {
			if err := os.RemoveAll(dir); err != nil {
				s.T.Error(err)
			}
		})
	}
	return s.run
}

// Contain starts a container and does not wait. At the test's end it is stopped,
// and whatever is left of it fails the test.
func (s *Site) Contain(c Contained) *Process {
	s.T.Helper()
	if c.Archive == "" {
		c.Archive = s.path("controller.oci.tar")
		if err := archive(c.Archive, s.kit.binary); err != nil {
			s.T.Fatal(err)
		}
	}
	if c.Network == "" {
		c.Network = "host"
	}
	p := &Process{site: s, exited: make(chan struct{})}
	p.cmd = exec.Command(s.Lab.Binary(), append([]string{"controller-container", "--archive", c.Archive, "--name", c.Name,
		"--container-dir", s.containers(), "--network", c.Network, "--user", fmt.Sprintf("%d:%d", UID, GID),
		"--read", s.path("offerings"), "--read", filepath.Dir(s.Lab.Socket()), "--write", s.path("user"), "--"}, c.Args...)...)
	p.file = s.path(fmt.Sprintf("container-%d.log", len(s.processes)))
	log, err := os.Create(p.file)
	if err != nil {
		s.T.Fatal(err)
	}
	p.cmd.Stdout, p.cmd.Stderr = log, log
	if err := errors.Join(p.cmd.Start(), log.Close()); err != nil {
		s.T.Fatal(err)
	}
	s.processes = append(s.processes, p)
	go func() {
		// How it ended is what the test did to it; see Status.
		_ = p.cmd.Wait()
		close(p.exited)
	}()
	s.T.Cleanup(func() {
		if !p.ended() {
			p.Stop()
		}
		for _, left := range s.LeftOf(c.Name) {
			s.T.Errorf("container %s left %s", c.Name, left)
		}
	})
	return p
}

// ServeContained runs job service and lanes in a container and waits until the
// service answers.
func (s *Site) ServeContained(name string) *Process {
	s.T.Helper()
	p := s.Contain(Contained{Name: name, Args: append([]string{"serve"}, s.flags...)})
	// An earlier one of the same name may answer until this one ends it.
	s.Eventually("the controller in the container listens", func() (bool, error) {
		if p.ended() {
			return false, fmt.Errorf("it ended:\n%s", p.Log())
		}
		return strings.Contains(p.Log(), "job service listens"), nil
	})
	s.awaitService(p)
	return p
}

// Status is the exit status of a process that has ended.
func (p *Process) Status() int { return p.cmd.ProcessState.ExitCode() }

// ContainerPID is the first process of a container that runs.
func (s *Site) ContainerPID(name string) int {
	s.T.Helper()
	text, err := os.ReadFile(filepath.Join(s.containers(), name, "pid"))
	if err != nil {
		s.T.Fatal(err)
	}
	var pid int
	if _, err := fmt.Sscan(string(text), &pid); err != nil {
		s.T.Fatal(err)
	}
	return pid
}

// LeftOf lists what is on the machine of a container: files, cgroups, mounts.
func (s *Site) LeftOf(name string) []string {
	s.T.Helper()
	var left []string
	for _, pattern := range []string{filepath.Join(s.containers(), name, "*"), "/sys/fs/cgroup/*/quittance-container-" + name, "/sys/fs/cgroup/quittance-container-" + name} {
		found, err := filepath.Glob(pattern)
		if err != nil {
			s.T.Fatal(err)
		}
		for _, f := range found {
			if filepath.Base(f) != "lock" {
				left = append(left, f)
			}
		}
	}
	mounts, err := os.ReadFile("/proc/self/mountinfo")
	if err != nil {
		s.T.Fatal(err)
	}
	if bytes.Contains(mounts, []byte(s.containers())) {
		left = append(left, "a mount")
	}
	return left
}

// Offerings is the directory of offerings.
func (s *Site) Offerings() string { return s.path("offerings") }

// UserDir is the controller's own directory.
func (s *Site) UserDir() string { return s.path("user") }

// Alive reports whether a process exists.
func Alive(pid int) bool {
	status, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	// A zombie has no life in it.
	return err == nil && !strings.Contains(string(status), ") Z ") && syscall.Kill(pid, 0) == nil
}
