package controllertest

import (
	"bytes"
	"context"
	"fmt"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/quittance/quittance/integration/agenttest"
	"github.com/quittance/quittance/integration/engineproxy"
)

// Patience bounds every wait for a real condition.
const Patience = 2 * time.Minute

// Site is one test's agent, controller and job service.
type Site struct {
	T     testing.TB
	Lab   *agenttest.Lab
	Proxy *Proxy // in front of the job service; nil unless asked for
	// Engine stands between agent and containerd; nil unless asked for.
	Engine *engineproxy.Proxy

	kit       *Kit
	dir       string // of the controller's user
	run       string // directory of containers; "" before the first one
	gate      string // shared with workers
	listen    string // address of the job service
	origin    string
	flags     []string
	lanes     []string // flags of lanes alone
	processes []*Process
	stderr    *os.File // of processes started from now on; nil: their log
	inputs    int      // registered as secrets
}

// Options of a site.
type Options struct {
	Lossy bool // put a Proxy between lanes and job service; use StartAPI and StartWork
	Lanes int  // default 1
	Flags []string
	Agent []string // environment of the agent, for example a failpoint
	// EngineProxy puts an engineproxy between agent and containerd.
	EngineProxy bool
}

// profileText is the test worker's profile. The gate is the one writable mount.
const profileText = `name  = "test"
image = "quittance.local/controller-test"
args  = ["/worker"]
user  = "65532:65532"
[resources]
memory = "64MiB"
pids   = 64
[[filesystem.mounts]]
source   = %q
target   = "/gate"
writable = true
[channel]
address = "tcp://127.0.0.1:8080"
ready   = { http = "/health", status = 200, json = "/status=READY", timeout = "30s", interval = "20ms" }
[lifecycle]
stop_grace = "1s"
[process]
init = true
`

// observing makes of the profile the one "observe", in which a killed child
// leaves the worker alone.
var observing = strings.NewReplacer(`name  = "test"`, `name  = "observe"`, "[lifecycle]\n", "[lifecycle]\noom = \"observe\"\n")

// OfferingKind is the kind that the test worker serves.
const OfferingKind = "test.v1"

const offeringText = `kind    = "test.v1"
profile = "test"
adapter = "http"
[input]
content_type = "text/plain"
from         = "job"
[request]
path    = "/predict"
timeout = "1m"
[response]
content_type = "application/json"
max          = "64KiB"
`

// uploadOfferingText is the same worker with its input from an upload.
const uploadOfferingText = `kind    = "test-upload.v1"
profile = "test"
adapter = "http"
[input]
content_type = "text/plain"
from         = "upload"
[request]
path    = "/predict"
timeout = "1m"
[response]
content_type = "application/json"
max          = "64KiB"
`

// pureOfferingText is the same worker where a replacement is allowed, also
// after a kill for memory.
const pureOfferingText = `kind    = "test-pure.v1"
profile = "test"
adapter = "http"
pure    = true
on_oom  = "same"
[input]
content_type = "text/plain"
from         = "job"
[request]
path    = "/predict"
timeout = "1m"
[response]
content_type = "application/json"
max          = "64KiB"
`

// NewSite starts a private engine and an agent that serves the test worker.
// Controllers are started by the test.
func (k *Kit) NewSite(t testing.TB, o Options) *Site {
	t.Helper()
	lab := k.Agent.NewLab(t, "--controller-uids", fmt.Sprint(UID), "--socket-group", fmt.Sprint(GID))
	dir, err := os.MkdirTemp("", "qs")
	if err != nil {
		t.Fatal(err)
	}
	s := &Site{T: t, Lab: lab, kit: k, dir: dir}
	t.Cleanup(s.clean)
	s.gate = filepath.Join(dir, "gate")
	for _, d := range []string{s.gate, s.path("offerings"), s.path("user")} {
		if err := os.Mkdir(d, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	for path, mode := range map[string]os.FileMode{dir: 0o755, s.gate: 0o777} {
		if err := os.Chmod(path, mode); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.Chown(s.path("user"), UID, GID); err != nil {
		t.Fatal(err)
	}
	ref := strings.TrimSpace(lab.Command("image", "import", k.image))
	profile, err := pin(fmt.Sprintf(profileText, s.gate), ref)
	if err != nil {
		t.Fatal(err)
	}
	for path, text := range map[string]string{
		filepath.Join(filepath.Dir(lab.StateDir()), "profiles", "test.toml"):    profile,
		filepath.Join(filepath.Dir(lab.StateDir()), "profiles", "observe.toml"): observing.Replace(profile),
		s.path("offerings/test.toml"):                                           offeringText,
		s.path("offerings/upload.toml"):                                         uploadOfferingText,
		s.path("offerings/pure.toml"):                                           pureOfferingText,
	} {
		if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	s.listen = freeAddress(t)
	s.origin = "http://" + s.listen
	if o.Lossy {
		s.Proxy = newProxy(t, s.listen)
		s.origin = "http://" + s.Proxy.Address()
	}
	lanes := max(o.Lanes, 1)
	s.flags = append([]string{
		"--config", "/dev/null", "--state-dir", s.path("user/state"), "--host-socket", lab.Socket(), "--lanes-offerings-dir", s.path("offerings"),
		"--service-listen", s.listen, "--service-public-origin", s.origin, "--lanes-count", fmt.Sprint(lanes), "--lanes-history", "4",
		"--lanes-poll", "50ms", "--lanes-heartbeat", "250ms", "--lanes-disk-reserve", "1MiB", "--retry-backoff-min", "50ms", "--retry-backoff-max", "1s",
		"--lanes-stop-timeout", "20s", "--log-level", "debug",
	}, o.Flags...)
	if o.EngineProxy {
		s.proxyEngine()
	}
	lab.Start(o.Agent...)
	return s
}

// proxyEngine makes the agent reach containerd through a proxy.
func (s *Site) proxyEngine() {
	s.T.Helper()
	proxy, err := engineproxy.Start(filepath.Join(s.Lab.Engine.Dir(), "proxy.sock"), s.Lab.Engine.Address())
	if err != nil {
		s.T.Fatal(err)
	}
	s.Engine, s.Lab.EngineAddress = proxy, proxy.Address()
	s.T.Cleanup(func() {
		if err := proxy.Close(); err != nil {
			s.T.Error(err)
		}
	})
}

// Offering adds an offering, which later lanes announce.
func (s *Site) Offering(name, text string) {
	s.T.Helper()
	if err := os.WriteFile(s.path("offerings/"+name+".toml"), []byte(text), 0o644); err != nil {
		s.T.Fatal(err)
	}
}

// Flag adds a flag to every later command of the controller.
func (s *Site) Flag(name, value string) { s.flags = append(s.flags, name, value) }

// nextPort is where the search for the next free port begins: below the ports that
// the kernel gives to whoever asks for any, so that nobody has one of them when a
// service is started on it again.
var nextPort atomic.Int32

func init() { nextPort.Store(20_000 + int32(os.Getpid()*16%10_000)) }

// LanesFlag adds a flag to later lanes that run alone.
func (s *Site) LanesFlag(name, value string) { s.lanes = append(s.lanes, name, value) }

func freeAddress(t testing.TB) string {
	t.Helper()
	for port := nextPort.Add(1); port < 32_768; port = nextPort.Add(1) {
		address := fmt.Sprintf("127.0.0.1:%d", port)
		l, err := net.Listen("tcp", address)
		if err != nil {
			continue
		}
		if err := l.Close(); err != nil {
			t.Fatal(err)
		}
		return address
	}
	t.Fatal("no port is free")
	return ""
}

func (s *Site) path(name string) string { return filepath.Join(s.dir, name) }

// StateDir is the controller's state directory.
func (s *Site) StateDir() string { return s.path("user/state") }

// API is the address at which users find the job service.
func (s *Site) API() string { return "http://" + s.listen }

// Origin is the job service as the lanes find it, behind the proxy where there
// is one.
func (s *Site) Origin() string { return s.origin }

// Process is one controller process.
type Process struct {
	site   *Site
	cmd    *exec.Cmd
	log    lockedBuffer
	file   string // instead of log, for one whose children may outlive it
	exited chan struct{}
}

// Launch starts a controller with a verb as the controller's user and does not
// wait.
func (s *Site) Launch(verb string, environment ...string) *Process {
	s.T.Helper()
	p := &Process{site: s, exited: make(chan struct{})}
	arguments := append([]string{verb}, s.flags...)
	if verb == "work" {
		arguments = append(append(arguments, "--api", s.origin), s.lanes...)
	}
	p.cmd = exec.Command(s.kit.binary, arguments...)
	p.cmd.Env = append([]string{"PATH=/usr/bin:/bin"}, environment...)
	p.cmd.Stderr = &p.log
	if s.stderr != nil {
		p.cmd.Stderr = s.stderr
	}
	p.cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: UID, Gid: GID}}
	if err := p.cmd.Start(); err != nil {
		s.T.Fatal(err)
	}
	s.processes = append(s.processes, p)
	go func() {
		// How it ended is what the test did to it; see Exited.
		_ = p.cmd.Wait()
		close(p.exited)
	}()
	return p
}

// Serve starts job service and lanes in one process and waits until the
// service answers.
func (s *Site) Serve(environment ...string) *Process {
	s.T.Helper()
	p := s.Launch("serve", environment...)
	s.awaitService(p)
	return p
}

// StartAPI starts the job service alone, with the lanes' key registered.
func (s *Site) StartAPI() *Process {
	s.T.Helper()
	line := s.Command("provider", "key")
	s.Command("provider", "add", strings.TrimSpace(line))
	return s.RestartAPI()
}

// RestartAPI starts the job service again after its end.
func (s *Site) RestartAPI() *Process {
	s.T.Helper()
	p := s.Launch("api")
	s.awaitService(p)
	return p
}

// StartWork starts the lanes alone.
func (s *Site) StartWork(environment ...string) *Process {
	s.T.Helper()
	return s.Launch("work", environment...)
}

func (s *Site) awaitService(p *Process) {
	s.T.Helper()
	s.Eventually("the job service answers", func() (bool, error) {
		if p.ended() {
			return false, fmt.Errorf("the controller ended:\n%s", p.Log())
		}
		client := http.Client{Timeout: 2 * time.Second, Transport: &http.Transport{DisableKeepAlives: true}}
		answer, err := client.Get("http://" + s.listen + "/v1/jobs") // any answer will do
		if err != nil {
			return false, nil
		}
		return true, answer.Body.Close()
	})
}

// Command runs one command of the controller as its user and returns its
// output.
func (s *Site) Command(verb ...string) string {
	s.T.Helper()
	out, err := s.Try(verb...)
	if err != nil {
		s.T.Fatalf("controller %s: %v", strings.Join(verb, " "), err)
	}
	return out
}

// Try is Command where the command may fail.
func (s *Site) Try(verb ...string) (string, error) {
	s.T.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), Patience)
	defer cancel()
	cmd := exec.CommandContext(ctx, s.kit.binary, append(verb, s.flags...)...)
	cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: UID, Gid: GID}}
	var stdout, stderr bytes.Buffer
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	if err := cmd.Run(); err != nil {
		return stdout.String(), fmt.Errorf("%w\n%s", err, stderr.String())
	}
	return stdout.String(), nil
}

func (p *Process) ended() bool {
	select {
	case <-p.exited:
		return true
	default:
		return false
	}
}

// Log is what the process wrote so far, in whole lines as long as it runs.
func (p *Process) Log() string {
	if p.file == "" {
		ended := p.ended()
		text := p.log.String()
		if !ended {
			text = text[:strings.LastIndexByte(text, '\n')+1]
		}
		return text
	}
	text, err := os.ReadFile(p.file)
	if err != nil {
		p.site.T.Error(err)
	}
	return string(text)
}

// Kill ends the process as the kernel would.
func (p *Process) Kill() { p.signal(syscall.SIGKILL) }

// Stop ends the process as systemd would and waits until it has.
func (p *Process) Stop() { p.signal(syscall.SIGTERM) }

// Signal sends one signal and does not wait.
func (p *Process) Signal(sig syscall.Signal) {
	p.site.T.Helper()
	if p.ended() {
		return
	}
	if err := p.cmd.Process.Signal(sig); err != nil {
		p.site.T.Fatal(err)
	}
}

func (p *Process) signal(sig syscall.Signal) {
	p.site.T.Helper()
	p.Signal(sig)
	p.AwaitExit()
}

// AwaitExit waits for the process to end, for example at a failpoint.
func (p *Process) AwaitExit() {
	p.site.T.Helper()
	select {
	case <-p.exited:
	case <-time.After(Patience):
		p.site.T.Fatalf("the controller did not end:\n%s", p.Log())
	}
}

// Descriptors counts what the process has open.
func (p *Process) Descriptors() int {
	p.site.T.Helper()
	all, err := os.ReadDir(fmt.Sprintf("/proc/%d/fd", p.cmd.Process.Pid))
	if err != nil {
		p.site.T.Fatal(err)
	}
	return len(all)
}

// ResidentBytes is the running process's memory.
func (p *Process) ResidentBytes() int64 {
	p.site.T.Helper()
	return agenttest.ResidentBytes(p.site.T, p.cmd.Process.Pid)
}

// Killed reports whether the process, which has ended, ended by SIGKILL.
func (p *Process) Killed() bool {
	status, ok := p.cmd.ProcessState.Sys().(syscall.WaitStatus)
	return ok && status.Signaled() && status.Signal() == syscall.SIGKILL
}

// Eventually polls a real condition; an error ends the wait at once.
func (s *Site) Eventually(what string, condition func() (bool, error)) {
	s.T.Helper()
	deadline := time.Now().Add(Patience)
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	for {
		ok, err := condition()
		if err != nil {
			s.T.Fatalf("%s: %v", what, err)
		}
		if ok {
			return
		}
		if time.Now().After(deadline) {
			s.T.Fatalf("%s: not within %s", what, Patience)
		}
		<-tick.C
	}
}

// OpenGate lets every "hold" go on.
func (s *Site) OpenGate() {
	s.T.Helper()
	if err := os.WriteFile(filepath.Join(s.gate, "open"), nil, 0o644); err != nil {
		s.T.Fatal(err)
	}
}

// Loading keeps workers from becoming ready, until it is undone.
func (s *Site) Loading(on bool) {
	s.T.Helper()
	path := filepath.Join(s.gate, "loading")
	err := os.Remove(path)
	if on {
		err = os.WriteFile(path, nil, 0o644)
	} else if os.IsNotExist(err) {
		err = nil
	}
	if err != nil {
		s.T.Fatal(err)
	}
}

// Executions counts the requests that workers began to work on.
func (s *Site) Executions() int {
	s.T.Helper()
	data, err := os.ReadFile(filepath.Join(s.gate, "executions"))
	if err != nil && !os.IsNotExist(err) {
		s.T.Fatal(err)
	}
	return bytes.Count(data, []byte("\n"))
}

// clean stops every process and, where the test failed, shows their logs.
func (s *Site) clean() {
	for i, p := range s.processes {
		if !p.ended() {
			if err := p.cmd.Process.Kill(); err != nil {
				s.T.Error(err)
			}
			<-p.exited
		}
		if s.T.Failed() {
			s.T.Logf("controller %d's log:\n%s", i+1, p.Log())
		}
	}
	if s.Proxy != nil {
		s.Proxy.close()
	}
	s.searchSecrets()
	if err := os.RemoveAll(s.dir); err != nil {
		s.T.Error(err)
	}
}

// lockedBuffer may be written and read at once.
type lockedBuffer struct {
	mu  sync.Mutex
	buf bytes.Buffer
}

func (b *lockedBuffer) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.buf.Write(p)
}

func (b *lockedBuffer) String() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.buf.String()
}
