// Package machine runs the virtual machine: QEMU with one overlay disk, its
// console in a file, and a port to the guest program.
//
// It owns the emulator's process. It must not know what a command means.
//
// The disk is cached write-through: a write that the guest was told is done is
// in the overlay. [Machine.Cut] kills the emulator, and what the guest's kernel
// still held in memory is gone, as at a power cut.
package machine

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/quittance/quittance/integration/vm/disk"
	"github.com/quittance/quittance/integration/vm/wire"
)

// Config is a machine to boot.
type Config struct {
	Base    disk.Base
	Overlay string // over Base.Image, written to
	Payload string // read-only disk
	Dir     string // of the port's socket; short, because socket paths are
	Console string // file that the console is appended to
	Accel   string // "tcg", "kvm", or "kvm:tcg" for the first that works
	// Started is told the emulator's process.
	Started func(pid int)
	// StoodStill is called when the guest said nothing for [standstill] although
	// it was asked all the time: its kernel runs no more. Then the power is cut.
	StoodStill func()
}

// Machine is a running virtual machine.
type Machine struct {
	console string
	cmd     *exec.Cmd
	port    net.Conn
	out     *wire.Writer
	over    chan struct{} // closed once the emulator was reaped
	err     error         // how it ended; read after over
	heard   atomic.Int64  // when the guest said something last, in Unix nanoseconds

	mu      sync.Mutex
	last    int64                       // highest request id
	waiting map[int64]chan wire.Message // by request id, open until its final message or the next hello
	hellos  chan string                 // boot ids, one per start of the guest program
}

// Boot starts the machine and waits until the guest program answers.
func Boot(ctx context.Context, c Config) (m *Machine, bootID string, err error) {
	if m, err = start(ctx, c); err != nil {
		return nil, "", fmt.Errorf("virtual machine: %w", err)
	}
	if bootID, err = m.AwaitHello(ctx); err != nil {
		return nil, "", errors.Join(err, m.Cut())
	}
	go m.guard(c.StoodStill)
	return m, bootID, nil
}

func start(ctx context.Context, c Config) (m *Machine, err error) {
	socket := filepath.Join(c.Dir, "port")
	if err := os.RemoveAll(socket); err != nil {
		return nil, err
	}
	listener, err := net.ListenUnix("unix", &net.UnixAddr{Name: socket, Net: "unix"})
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, listener.Close()) }()
	console, err := os.OpenFile(c.Console, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o644)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, console.Close()) }()
	cmd := exec.Command("qemu-system-x86_64", arguments(c, socket)...)
	cmd.Stdout, cmd.Stderr = console, console
	// Its own process group: an interrupt is for the test, which ends it. And it
	// never outlives the test.
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL}
	m = &Machine{console: c.Console, cmd: cmd, over: make(chan struct{}), waiting: map[int64]chan wire.Message{}, hellos: make(chan string, 8)}
	if err := startOnOwnThread(cmd, m); err != nil {
		return nil, err
	}
	if c.Started != nil {
		c.Started(cmd.Process.Pid)
	}
	accepted := make(chan error, 1)
	go func() {
		var err error
		m.port, err = listener.Accept()
		accepted <- err
	}()
	select {
	case err = <-accepted:
	case <-m.over:
		err = fmt.Errorf("the emulator ended: %w\n%s", m.err, m.Console(10))
	case <-ctx.Done():
		err = errors.Join(context.Cause(ctx), m.Cut())
	}
	if err != nil {
		return nil, err
	}
	m.out = wire.NewWriter(m.port)
	go m.listen()
	return m, nil
}

// arguments is QEMU's command line.
func arguments(c Config, socket string) []string {
	args := []string{
		"-machine", "q35", "-smp", "2", "-m", "1G", "-display", "none", "-monitor", "none", "-nodefaults",
		"-serial", "stdio", "-kernel", c.Base.Kernel, "-initrd", c.Base.Initrd,
		// no_timer_check: on a loaded machine the emulated timer is late, which
		// the kernel would take for a broken one. A panic boots anew and is seen
		// as a guest that was gone. Debian's kernel measures pressure, which the
		// OOM daemon decides by, when it is told to.
		"-append", "root=/dev/vda rw console=ttyS0 quiet no_timer_check panic=1 psi=1 systemd.show_status=0",
		"-drive", "file=" + c.Overlay + ",if=virtio,format=qcow2,cache=writethrough",
		"-drive", "file=" + c.Payload + ",if=virtio,format=raw,readonly=on",
		"-device", "virtio-rng-pci", "-device", "virtio-serial-pci",
		"-chardev", "socket,id=port,path=" + socket, "-device", "virtserialport,chardev=port,name=quittance.vm",
	}
	for accel := range strings.SplitSeq(c.Accel, ":") {
		if accel == "tcg" {
			accel = "tcg,thread=multi"
		}
		args = append(args, "-accel", accel)
	}
	return args
}

// listen passes the guest's messages on until the port closes.
func (m *Machine) listen() {
	// The port ends with the machine, in the middle of a line if it must.
	err := wire.Read(m.port, m.take)
	m.mu.Lock()
	defer m.mu.Unlock()
	m.dropWaiting(err)
}

func (m *Machine) take(message wire.Message) {
	m.heard.Store(time.Now().UnixNano())
	m.mu.Lock()
	defer m.mu.Unlock()
	if message.Kind == wire.Hello {
		m.dropWaiting(nil) // whoever was asked is gone
		select {
		case m.hellos <- message.Text:
		default: // more restarts than anybody waits for
		}
		return
	}
	replies, known := m.waiting[message.ID]
	if !known {
		return
	}
	replies <- message
	if message.Kind.Final() {
		delete(m.waiting, message.ID)
		close(replies)
	}
}

// dropWaiting ends every wait; the caller holds mu.
func (m *Machine) dropWaiting(err error) {
	for id, replies := range m.waiting {
		if err != nil {
			replies <- wire.Message{ID: id, Kind: wire.Fail, Text: err.Error()}
		}
		delete(m.waiting, id)
		close(replies)
	}
}

// AwaitHello waits for the next start of the guest program, after a boot, and
// returns the boot id.
func (m *Machine) AwaitHello(ctx context.Context) (string, error) {
	select {
	case bootID := <-m.hellos:
		return bootID, nil
	case <-m.over:
		return "", fmt.Errorf("the emulator ended: %w\n%s", m.err, m.Console(20))
	case <-ctx.Done():
		return "", fmt.Errorf("the guest did not answer: %w; the console said last:\n%s", context.Cause(ctx), m.Console(30))
	}
}

// backlog bounds the messages of one request that nobody read yet.
const backlog = 1 << 16

// Ask sends one request. The channel gives what the guest says about it and is
// closed after the final message, or without one when the guest is gone.
func (m *Machine) Ask(command string, arguments ...string) (<-chan wire.Message, error) {
	m.mu.Lock()
	m.last++
	request := wire.Request{ID: m.last, Command: command, Arguments: append([]string{}, arguments...)}
	replies := make(chan wire.Message, backlog)
	m.waiting[request.ID] = replies
	m.mu.Unlock()
	return replies, m.out.Write(request)
}

// Do runs one command to its end. It returns the notes and the text of the
// final message; a failed command is an error with that text. said is given
// what is said for people.
func (m *Machine) Do(ctx context.Context, said func(string), command string, arguments ...string) (text string, notes []string, err error) {
	replies, err := m.Ask(command, arguments...)
	if err != nil {
		return "", nil, err
	}
	for {
		select {
		case message, open := <-replies:
			switch {
			case !open:
				return "", notes, fmt.Errorf("%s: the guest was gone before it was done", command)
			case message.Kind == wire.Note:
				notes = append(notes, message.Text)
			case message.Kind == wire.Say:
				said(message.Text)
			case message.Kind == wire.Fail:
				return "", notes, errors.New(message.Text)
			case message.Kind == wire.Pass:
				return message.Text, notes, nil
			}
		case <-ctx.Done():
			return "", notes, fmt.Errorf("%s: %w", command, context.Cause(ctx))
		}
	}
}

const (
	// standstill is several times what a starved machine needs for a reboot,
	// during which nobody answers.
	standstill  = 5 * time.Minute
	askInterval = 30 * time.Second
)

// guard asks the guest for a sign of life until the machine ends. An emulated
// machine stands still now and then, both of its processors busy with nothing;
// whoever waits for it would wait for ever.
func (m *Machine) guard(stoodStill func()) {
	if silent(&m.heard, m.over, func() error { return m.out.Write(wire.Request{Command: wire.Alive}) }) {
		stoodStill()
		// A failure means that it has ended.
		_ = m.cmd.Process.Kill()
	}
}

// silent asks at every interval and returns true once nothing was heard for a
// standstill, and false once it is over.
func silent(heard *atomic.Int64, over <-chan struct{}, ask func() error) bool {
	heard.Store(time.Now().UnixNano())
	ticker := time.NewTicker(askInterval)
	defer ticker.Stop()
	for {
		select {
		case <-over:
			return false
		case <-ticker.C:
		}
		if time.Since(time.Unix(0, heard.Load())) >= standstill {
			return true
		}
		if err := ask(); err != nil {
			return false // the port has ended, as the machine has or will
		}
	}
}

// Cut is a power cut: the emulator is killed and reaped.
func (m *Machine) Cut() error {
	err := m.cmd.Process.Kill()
	if errors.Is(err, os.ErrProcessDone) {
		err = nil
	}
	<-m.over
	if m.port != nil {
		err = errors.Join(err, m.port.Close())
	}
	return err
}

// AwaitOff waits for the machine to power itself off.
func (m *Machine) AwaitOff(ctx context.Context) error {
	select {
	case <-m.over:
		return errors.Join(m.err, m.port.Close())
	case <-ctx.Done():
		return fmt.Errorf("the machine did not power off: %w", context.Cause(ctx))
	}
}

// Console is the last lines of the console.
func (m *Machine) Console(lines int) string {
	text, err := os.ReadFile(m.console)
	if err != nil {
		return err.Error()
	}
	all := strings.Split(strings.TrimRight(string(text), "\r\n"), "\n")
	return strings.Join(all[max(0, len(all)-lines):], "\n")
}
