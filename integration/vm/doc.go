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
//	go test -tags vm -count=1 -timeout 3h -v -run TestMachine ./integration/vm \
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
// after every row. The emulator ends with the test, however that ends; nothing is
// mounted on this side.
//
// # Repetition
//
// The system's disk, which takes three minutes, is kept for a day; every run
// begins with an empty overlay over it, -reuse takes the packages of the run
// before, and -only the rows that are tried. From there to the first row it is a
// boot, an installation and a first job: 51 to 118 seconds were measured, by what
// else the machine does. A snapshot of the emulator's memory would save just that,
// and lose what is worth most: that each run installs the packages as they are now
// on a machine that has never seen them.
//
// # Slow machines
//
// Nothing is judged by the time that it took. Every wait is for a condition, with
// a bound (patience, bootLimit, rowLimit) that only a machine that hangs reaches;
// the workers' own bounds are widened where the machine is configured. What luck
// decides, such as which jobs an act hits, is counted and shown, and nothing is
// expected of it.
//
// # Standstill
//
// An emulated machine has been seen to stand still, once in about a hundred
// boots: both processors busy, nothing written, no kernel that answers. The guest
// is asked for a sign of life all the time; without one for five minutes the
// power is cut and the run fails, saying so. make vm and make vm-soak (run.sh) then
// begin again from the start, once, unless something had failed before: what stands
// still proves nothing, in either direction. What the first run left is kept in
// build/vm/first-run.
//
// # Stops, restarts and kills
//
// While jobs flow and one worker lives with open channels, every ordered pair of
// our units, the socket and containerd is stopped, restarted and killed. What was
// stopped is started by hand; all else must come back by itself, the worker must
// not notice unless the controller itself was acted on, and the whole log must
// tell of no job lost or run twice. What was stopped is started before it is
// killed, and every worker is let go before the workers' sleeper is, so that each
// kill takes a process; what says nothing is left out, and the row's text counts
// both. Between the restarts systemd itself is reloaded and executed anew.
//
// # Refusals
//
// What the controller's container, the controller's user and a stranger are
// refused is written to refused.txt beside the table, and must be what
// packaging/systemd/refused.txt says. A unit test compares that with the attempts.
//
// # Clock steps
//
// The machine's clock is set back by an hour, forward by two and back, by the
// kernel's own call, under a live worker and a lease that runs: it ends by the
// boot-time clock, numbers and indexes go on, the receipts tell the wrong time and
// nothing else, and neither daemon is started again. The clock is right again
// whatever happens. Nothing after that row reads the journal.
//
// # Outrun
//
// Whoever follows the log has no say in when the controller releases history,
// which it does as soon as an attempt is archived. So the guest may be told that
// what comes next is gone. It then goes on with what is served, and the gap is
// filled from the receipts, with proofs, that the job service holds of every
// job. What that proves, and what would still be caught, is in package witness.
//
// # The power cuts
//
// While jobs run through everything, the guest sends out every receipt as it
// reads it, every job that the job service acknowledged, and every job's end
// with the hash of its result. At a random moment the emulator is killed. After
// the next boot, with nothing but what was sent out:
//
//	every receipt is still in the log, byte for byte, and the log's signed roots
//	    are that of all of them, computed here anew         I5 I8 I10
//	numbers are contiguous, used once, each lived in order   I5 I16 I18 I20
//	every acknowledged job exists and ends, and one that had ended is unchanged
//	every finished job has the receipts of its allocation, proved in that log
//	no attempt was executed twice                            I27
//	the controller's store holds every attempt that the job service knows of,
//	    once, ended alike, with the same result or failure  I28 I29
//	the agent's own check accepts the ledger, and nothing is left behind
package vm
