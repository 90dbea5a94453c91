package command

import (
	"fmt"
	"os"
	"os/signal"
	"slices"

	"github.com/spf13/cobra"
	"golang.org/x/sys/unix"

	"github.com/quittance/quittance/hostagent"
)

// exitStatus ends this program as the one that it ran.
type exitStatus int

func (e exitStatus) Error() string { return fmt.Sprintf("the controller ended with status %d", int(e)) }

// passedSignals are those that mean something to the controller.
var passedSignals = []os.Signal{unix.SIGTERM, unix.SIGINT, unix.SIGHUP, unix.SIGQUIT, unix.SIGUSR1, unix.SIGUSR2}

func containerCommand() *cobra.Command {
	c := hostagent.DefaultContainer()
	cmd := &cobra.Command{
		Use:   "controller-container [flags] [-- ARGUMENT...]",
		Short: "Run the controller in an isolated container, without an engine",
		Long: "Run the controller in an isolated container, without an engine.\n\n" +
			"Unpacks the archive into memory and runs its program under runc: as an unprivileged user with its\n" +
			"groups, every other user unmapped; with processes, mounts, IPC and names of its own; with a\n" +
			"read-only root, no capability and few system calls. Of the machine it has --read and --write, at\n" +
			"their own paths, and copies of hosts, resolv.conf and the authorities' certificates.\n\n" +
			"ARGUMENT... are the controller's own, \"serve\" by default. Its configuration is its file's\n" +
			"and QUITTANCE_ variables, which are passed on. SIGTERM and others are passed on too, and so is its\n" +
			"readiness to systemd; its exit status becomes this command's. When this process is killed, the\n" +
			"container's rest is ended by systemd, or by the next start. The engine and the agent may be\n" +
			"restarted meanwhile. The host agent's own configuration, and its flags, have no meaning here.\n\n" +
			"The controller needs no container: \"controller serve\", as any user that may use the agent's socket,\n" +
			"is the same program. A unit for a machine with the job service alone needs User=quittance-controller,\n" +
			"StateDirectory=quittance-controller, RuntimeDirectory=quittance-controller and ExecStart=/usr/bin/controller api.",
		Example: "  hostagent controller-container -- serve --config /etc/quittance/controller.toml\n\n" +
			"The packaged unit runs it. To change how, \"systemctl edit quittance-controller\":\n\n" +
			"  [Service]\n" +
			"  ExecStart=\n" +
			"  ExecStart=!/usr/sbin/hostagent controller-container --network jobs --write /var/lib/quittance-controller --write /run/quittance-controller --write /srv/jobs\n" +
			"  ReadWritePaths=/srv/jobs",
		RunE: func(cmd *cobra.Command, args []string) error {
			if len(args) > 0 {
				c.Args = args
			}
			signals := make(chan os.Signal, 16)
			signal.Notify(signals, passedSignals...)
			defer signal.Stop(signals)
			// The agent's configuration is not read: a mistake in it must not keep the
			// controller from running.
			log := openLog(hostagent.DefaultConfig())
			defer log.Close()
			status, err := hostagent.Contain(c, signals, log)
			if err == nil && status != 0 {
				err = exitStatus(status)
			}
			return err
		},
	}
	flags := cmd.Flags()
	flags.StringVar(&c.Archive, "archive", c.Archive, "OCI archive with the controller")
	flags.StringVar(&c.Name, "name", c.Name, "the container's name; one container of a name runs at a time")
	flags.StringVar(&c.User, "user", c.User, "the controller's user, with its groups; or numbers, as UID:GID or UID:GID:GROUP:...")
	flags.StringVar(&c.Network, "network", c.Network, "host, or the name of a network namespace that ip netns lists")
	flags.StringArrayVar(&c.Read, "read", slices.Clone(c.Read), "file or directory that the controller may read; the flag may be repeated and replaces the default")
	flags.StringArrayVar(&c.Write, "write", slices.Clone(c.Write), "directory of the controller's user that it may write; the flag may be repeated and replaces the default")
	flags.StringVar(&c.Runtime, "runtime", c.Runtime, "runc 1.1 or later, by name or path")
	flags.StringVar(&c.Dir, "container-dir", c.Dir, "directory below /run for what the container is made of")
	return cmd
}
