// Package vm proves the packages, the units and the ledger on a whole machine:
// a Debian system under QEMU's software emulation, with a real systemd, cgroup
// v2 and containerd, on which our .debs are installed as anybody would.
//
//	make vm        the lane: every check once, 40 kills, five power cuts
//	make vm-soak   the long form: CUTS (30) power cuts, 200 kills, and every
//	               order of two different acts on two units
//
// To try a row, alone with those that it needs, with the packages of the run
// before:
//
//	go test -tags vm -count=1 -timeout 1h -v -run TestMachine ./integration/vm \
//	    -args -reuse -only orders-kill -cuts 0
//
// It owns the order of the checks, what is kept over a power cut, and the
// verdict. It must not know how a check is done inside: that is package guest.
//
// # The parts
//
//	disk     the system's disk (cached below build/vm), the payload, overlays
//	machine  the emulator's process: boot, port, power cut
//	wire     what both sides say to each other
//	guest    the program inside
//
// All checks share one disk and, apart from the reboot and the power cuts, one
// boot. Each is a row of the lane. When one fails, the guest says what explains
// it (failed units, journal, mounts, processes) and that is kept below build/vm
// beside the console. The table, with the time that each row took, is written
// after every row.
//
// # Stops, restarts and kills
//
// While jobs flow and one worker lives with open channels, every ordered pair of
// our units, the socket and containerd is stopped, restarted and killed. What was
// stopped is started by hand; all else must come back by itself, the worker must
// not notice unless the controller itself was acted on, and the whole log must
// tell of no job lost or run twice.
//
// # The power cuts
//
// While jobs run through everything, the guest sends out every receipt as it
// reads it, every job that the job service acknowledged, and every job's end
// with the hash of its result. At a random moment the emulator is killed. After
// the next boot, with nothing but what was sent out:
//
//	every receipt is still in the log, byte for byte, and the log's signed root
//	    is that of all of them, computed here anew          I5 I8 I10
//	numbers are contiguous, used once, each lived in order   I5 I16 I18 I20
//	every acknowledged job exists and ends, and one that had ended is unchanged
//	no attempt was executed twice                            I27
//	the agent's own check accepts the ledger, and nothing is left behind
package vm
