// Package sandbox runs one unprivileged program, made for nothing but sockets
// and a few directories, in a container of its own: the controller on a node.
//
// It owns the container's shape (mounts, namespaces, identities, system calls),
// its life under one supervising process, and what an earlier life left behind.
// It must not know what the program does; it has no engine, no ledger and no
// configuration of the host agent.
//
// # Why runc and not the engine
//
// The program must live on while containerd restarts, is upgraded or hangs: that
// is when its records matter most. Under containerd it would also need what this
// project takes away from everybody else, a client of the engine, only to be
// started. runc needs no daemon:
//
//	systemd ─► hostagent controller-container ─► program (PID 1)
//	           supervisor: unpacks, lets runc
//	           start, cleans up, passes signals
//	           and readiness on
//
// systemd sees the supervisor as the main process. runc ends once the program
// has started (run --detach), and the program becomes the supervisor's child: its
// output goes straight to where the supervisor's goes, native journal fields
// included, its exit status becomes the supervisor's, and no process can take its
// number before the last signal was sent. The supervisor has no socket that the
// program could talk to, but one: datagrams of sd_notify(3), of which it passes
// on what a service may say about itself.
//
// # What the program sees
//
//	/                 the image's files, read-only
//	/etc              hosts, resolv.conf and the like: copies that are made again
//	                  when the machine's change, because a mounted file stays the
//	                  old one when it is replaced; certificates of authorities
//	/dev /proc /tmp   a few devices; its own processes; 64 MiB of memory
//	read, write       the directories that it was given, at their own paths, and
//	                  never with programs, devices or set-user-ID in them, nor in
//	                  what is mounted below them at the start; what is mounted
//	                  there later is not seen
//
// No /sys, no cgroup file system, no device beyond null, zero, full, random,
// urandom and tty.
//
// # Identities
//
// The user namespace maps the program's user and its groups to themselves and
// nothing else, so that files, the agent's socket (by its group) and SO_PEERCRED
// mean the same on both sides. runc needs a root to make the container with:
// that is an id that no file and no process of the machine has, [containerRoot].
// A range of ids would do neither: the agent's socket then answers "permission
// denied" although the group looks right inside.
//
// # What keeps a second program from running
//
// A lock is held for the supervisor's life. When the supervisor dies systemd kills
// whatever is left in the unit's cgroup (KillMode=mixed). Without systemd the
// program may outlive it; the next supervisor therefore ends whatever is left in
// the container's cgroup before it starts anything, and refuses to start where it
// cannot.
//
// # Cgroups
//
// runc puts a container beside its own cgroup, which below systemd is outside of
// the unit. So in a delegated unit the supervisor moves itself into one leaf and
// gives the container the other:
//
//	quittance-controller.service/supervisor
//	quittance-controller.service/container
//
// Limits are the unit's. Anywhere else the container's cgroup lies at the top of
// the hierarchy and is called quittance-container-NAME.
//
// # Limits of it
//
// With the host's network the program reaches what listens on the machine's
// addresses, abstract Unix sockets too: give it a network namespace where that
// matters. No AppArmor or SELinux label is set.
package sandbox
