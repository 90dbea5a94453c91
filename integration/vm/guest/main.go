// Command guest runs inside the virtual machine: it does what the tests ask for
// over a virtio serial port, against the real systemd, kernel and packages.
//
// It owns what each command does and what must be true afterwards. It must not
// know the order in which the tests ask, nor what they keep over a power cut.
//
//	guest                    serve the port
//	guest try WHAT TARGET    one attempt at something that another user must not
//	                         be able to do; prints how it went (see users.go)
package main

import (
	"context"
	"fmt"
	"io"
	"os"
	"os/signal"
	"strings"
	"syscall"
	"time"

	"github.com/quittance/quittance/integration/vm/wire"
)

// portFile is the port's device as udev names it.
const portFile = "/dev/virtio-ports/quittance.vm"

// commandLimit bounds one command; load and follow end with the machine.
const commandLimit = 80 * time.Minute

func main() {
	if len(os.Args) == 4 && os.Args[1] == "try" {
		fmt.Println(try(os.Args[2], os.Args[3]))
		return
	}
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM, os.Interrupt)
	defer stop()
	if err := serve(ctx); err != nil {
		fmt.Fprintln(os.Stderr, "guest:", err)
		os.Exit(1)
	}
}

func serve(ctx context.Context) error {
	port, err := openPort(ctx)
	if err != nil {
		return err
	}
	g := &guest{out: wire.NewWriter(port)}
	bootID, err := os.ReadFile("/proc/sys/kernel/random/boot_id")
	if err != nil {
		return err
	}
	if err := g.out.Write(wire.Message{Kind: wire.Hello, Text: strings.TrimSpace(string(bootID))}); err != nil {
		return err
	}
	failed := make(chan error, 1)
	go func() {
		failed <- wire.Read(port, func(r wire.Request) { go g.answer(ctx, r) })
	}()
	select {
	case err := <-failed:
		return err
	case <-ctx.Done():
		return nil
	}
}

func openPort(ctx context.Context) (io.ReadWriter, error) {
	for {
		port, err := os.OpenFile(portFile, os.O_RDWR, 0)
		if err == nil {
			return port, nil
		}
		select {
		case <-ctx.Done():
			return nil, err
		case <-time.After(100 * time.Millisecond): // udev has not named it yet
		}
	}
}

// guest is the serving program.
type guest struct{ out *wire.Writer }

// answer runs one command and says how it ended.
func (g *guest) answer(ctx context.Context, r wire.Request) {
	ctx, cancel := context.WithTimeoutCause(ctx, commandLimit, fmt.Errorf("not done within %s", commandLimit))
	defer cancel()
	reply := wire.Message{ID: r.ID, Kind: wire.Pass}
	command, known := commands[r.Command]
	var err error
	if !known {
		err = fmt.Errorf("the guest has no command %q", r.Command)
	} else {
		reply.Text, err = command(ctx, &task{guest: g, id: r.ID, args: r.Arguments})
	}
	if err != nil {
		reply.Kind, reply.Text = wire.Fail, err.Error()
	}
	if err := g.out.Write(reply); err != nil {
		fmt.Fprintln(os.Stderr, "guest:", err)
		os.Exit(1)
	}
}

// task is one command as it runs.
type task struct {
	*guest
	id   int64
	args []string
}

// say tells people something.
func (t *task) say(format string, args ...any) error {
	return t.out.Write(wire.Message{ID: t.id, Kind: wire.Say, Text: fmt.Sprintf(format, args...)})
}

// note tells the test something; it has left the machine when note returns.
func (t *task) note(format string, args ...any) error {
	return t.out.Write(wire.Message{ID: t.id, Kind: wire.Note, Text: fmt.Sprintf(format, args...)})
}

// argument is the command's i-th argument, "" where there is none.
func (t *task) argument(i int) string {
	if i >= len(t.args) {
		return ""
	}
	return t.args[i]
}

// commands are what the tests can ask for. The text of a success is shown in
// the table at the end: figures and facts, one line.
var commands = map[string]func(context.Context, *task) (string, error){
	"install":              install,
	"files":                files,
	"units":                units,
	"unit-files":           unitFiles,
	"security":             security,
	"configure":            configure,
	"socket-activation":    socketActivation,
	"reload":               reloadProfiles,
	"controller-job":       controllerJob,
	"take-owner":           takeOwner,
	"give-owner":           giveOwner,
	"life":                 life,
	"devices":              devices,
	"oom-group":            oomGroup,
	"oom-observe":          oomObserve,
	"oom-host":             oomHost,
	"oom-daemon":           oomDaemon,
	"oom-mark":             oomMark,
	"metrics":              metrics,
	"journal":              journalFields,
	"journal-job":          journalOfJob,
	"boot-order":           bootOrder,
	"clock-steps":          clockSteps,
	"kills":                kills,
	"orders":               orders,
	"under-worker":         underWorker,
	"watchdog":             watchdog,
	"shim-killed":          shimKilled,
	"workers-unit":         workersUnit,
	"users":                users,
	"controller-container": controllerContainer,
	"controller-isolation": controllerIsolation,
	"upgrade":              upgrade,
	"removal-refused":      removalRefused,
	"reboot-leave":         rebootLeave,
	"reboot":               reboot,
	"reboot-audit":         rebootAudit,
	"load":                 load,
	"settle":               settle,
	"ledger":               checkLedger,
	"nothing-left":         nothingLeft,
	"secrets":              secrets,
	"purge-and-reinstall":  purgeAndReinstall,
	"power-off":            powerOff,
	"diagnose":             diagnose,
	wire.Alive:             func(context.Context, *task) (string, error) { return "", nil },
	"tidy":                 func(ctx context.Context, _ *task) (string, error) { return "", tidy(ctx) },
}
