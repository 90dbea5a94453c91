package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/quittance/quittance/controller/api"
	"github.com/quittance/quittance/protocol"
	"github.com/quittance/quittance/protocol/hostclient"
	"github.com/quittance/quittance/protocol/tlog"
)

// The two profiles of clockSteps. The brief one's lease is longer than a creation
// takes; all three together outlast a period of the agent's watchdog. What the
// lasting one is allowed is never used up here by the boot-time clock, and by the
// wall clock it is over with every step forward.
const (
	briefLease   = 20 * time.Second
	lastingLease = 55 * time.Minute
)

// wallClock is the machine's real-time clock.
type wallClock struct {
	// ahead is how far it is ahead of the boot-time clock when it is right.
	ahead time.Duration
}

func readClock(id int32) (time.Duration, error) {
	var now unix.Timespec
	if err := unix.ClockGettime(id, &now); err != nil {
		return 0, fmt.Errorf("clock %d: %w", id, err)
	}
	return time.Duration(now.Nano()), nil
}

// findClock takes the clock as it is for right.
func findClock() (wallClock, error) {
	wall, wallErr := readClock(unix.CLOCK_REALTIME)
	boot, bootErr := readClock(unix.CLOCK_BOOTTIME)
	return wallClock{ahead: wall - boot}, errors.Join(wallErr, bootErr)
}

// right is what the clock would show now had nobody stepped it.
func (c wallClock) right() (time.Time, error) {
	boot, err := readClock(unix.CLOCK_BOOTTIME)
	return time.Unix(0, int64(c.ahead+boot)), err
}

// set makes the clock wrong by that much, or right with 0.
func (c wallClock) set(wrong time.Duration) error {
	right, err := c.right()
	if err != nil {
		return err
	}
	to := unix.NsecToTimespec(right.Add(wrong).UnixNano())
	if err := unix.ClockSettime(unix.CLOCK_REALTIME, &to); err != nil {
		return fmt.Errorf("the clock cannot be set: %w", err)
	}
	return nil
}

// clockSteps steps the machine's clock back by an hour, forward by two and back
// to where it was, under a live worker, a worker whose lease runs out, and both
// daemons: nothing of order, identity, number or duration changes (FR-23 I25).
// Then a job goes through the very processes that lived through it.
//
// It begins and ends with the controller's store as the owner and its unit
// stopped; in between this program is the owner. Its argument is the index of the
// last leaf that the test holds, its notes are those of load and settle.
func clockSteps(ctx context.Context, t *task) (_ string, err error) {
	receipts, err := t.newFollower(ctx, t.argument(0))
	if err != nil {
		return "", err
	}
	clock, err := findClock()
	if err != nil {
		return "", err
	}
	// Whatever happens, who comes next finds it right.
	defer func() { err = errors.Join(err, clock.set(0)) }()
	if err := addLeased(ctx); err != nil {
		return "", err
	}
	defer func() { err = errors.Join(err, removeLeased(ctx)) }()
	if err := setOwner(ctx, ownOwner); err != nil {
		return "", err
	}
	if _, err := run(ctx, "systemctl", "start", controllerUnit); err != nil {
		return "", err
	}
	if err := awaitService(ctx); err != nil {
		return "", err
	}
	s, err := newStepped(ctx, clock)
	if err != nil {
		return "", err
	}
	for _, wrong := range []time.Duration{-time.Hour, time.Hour, 0} {
		if err := t.say("the clock is wrong by %s", wrong); err != nil {
			return "", err
		}
		if err := s.step(ctx, wrong); err != nil {
			return "", fmt.Errorf("with the clock wrong by %s: %w", wrong, err)
		}
	}
	if err := s.close(ctx); err != nil {
		return "", err
	}
	if err := receipts.checkpoint(ctx); err != nil {
		return "", err
	}
	job, err := s.job(ctx, t, receipts.last)
	if err != nil {
		return "", fmt.Errorf("after the steps: %w", err)
	}
	return fmt.Sprintf("back 1 h, forward 2 h, back; leases of %s ended after %s; %d receipts verified; job: %s",
		briefLease, strings.Join(s.took, ", "), s.verified, job), leftovers(ctx)
}

// leased are the files of the two profiles.
var leased = map[string]string{
	"brief":   fmt.Sprintf("lease = %q\n", briefLease),
	"lasting": fmt.Sprintf("lease = %q\nmax_lifetime = %q\n", lastingLease, lastingLease),
}

func leasedFile(name string) string { return filepath.Join(profileDir, name+".toml") }

// addLeased adds the two profiles: the steady one with other bounds.
func addLeased(ctx context.Context) error {
	steady, err := os.ReadFile(leasedFile("steady"))
	if err != nil {
		return err
	}
	for name, bounds := range leased {
		text := strings.NewReplacer(`name = "steady"`, fmt.Sprintf("name = %q", name), "[lifecycle]\n", "[lifecycle]\n"+bounds).Replace(string(steady))
		if err := writeFile(leasedFile(name), text); err != nil {
			return err
		}
	}
	if _, err := run(ctx, "systemctl", "reload", agentUnit); err != nil {
		return err
	}
	return awaitProfiles(ctx, "brief", "lasting")
}

func removeLeased(ctx context.Context) error {
	var problems []error
	for name := range leased {
		problems = append(problems, os.Remove(leasedFile(name)))
	}
	_, err := run(ctx, "systemctl", "reload", agentUnit)
	return errors.Join(append(problems, err)...)
}

// stepped is what must not change.
type stepped struct {
	clock    wallClock
	key      *tlog.PublicKey
	units    map[string]string // who they are, by unit
	lasting  *worker
	channel  *channel // to it, open all the time
	head     protocol.Index
	verified int
	took     []string // each brief worker, from before it was asked for to its end
}

func newStepped(ctx context.Context, clock wallClock) (*stepped, error) {
	text, err := os.ReadFile("/var/lib/quittance/host.key.pub")
	if err != nil {
		return nil, err
	}
	s := &stepped{clock: clock, units: map[string]string{}}
	if s.key, err = tlog.ParsePublicKey(strings.TrimSpace(string(text))); err != nil {
		return nil, err
	}
	host, _, err := connect(ctx)
	if err != nil {
		return nil, err
	}
	s.head = host.Index.Head
	if s.lasting, err = allocate(ctx, "lasting"); err != nil {
		return nil, err
	}
	if s.channel, err = s.lasting.open(ctx); err != nil {
		return nil, err
	}
	for _, unit := range []string{agentUnit, controllerUnit, engineUnit, workersUnitOf} {
		if s.units[unit], err = whoIs(ctx, unit); err != nil {
			return nil, err
		}
	}
	return s, s.same(ctx)
}

// whoIs tells a unit's process from one that was started again.
func whoIs(ctx context.Context, unit string) (string, error) {
	out, err := run(ctx, "systemctl", "show", "--property=MainPID", "--property=NRestarts", "--property=ActiveState", unit)
	return strings.Join(strings.Fields(out), " "), err
}

// step makes the clock wrong and looks at everything.
func (s *stepped) step(ctx context.Context, wrong time.Duration) error {
	began, err := readClock(unix.CLOCK_BOOTTIME)
	if err != nil {
		return err
	}
	brief, err := allocate(ctx, "brief")
	if err != nil {
		return err
	}
	if err := s.clock.set(wrong); err != nil {
		return err
	}
	took, err := brief.leaseEnds(ctx, began)
	if err != nil {
		return err
	}
	s.took = append(s.took, fmt.Sprintf("%.1f s", took.Seconds()))
	_, generation, err := connect(ctx)
	if err != nil {
		return err
	}
	return errors.Join(brief.settle(ctx, generation), s.same(ctx), s.next(ctx, brief.number+1), s.log(ctx, wrong))
}

// leaseEnds waits until the agent has retired the worker because its owner was
// not heard, and returns how long that took since began. Meanwhile only an
// operator asks: each request of the owner would begin the lease anew. It began
// when the worker was accepted or later, so it cannot end earlier than that far
// from began; a lease that the clock held up would come an hour late, which is
// far more than patience.
func (w *worker) leaseEnds(ctx context.Context, began time.Duration) (time.Duration, error) {
	_, generation, err := operator(ctx)
	if err != nil {
		return 0, err
	}
	err = await(ctx, patience, fmt.Sprintf("the lease of number %d ends", w.number), func() (err error) {
		w.seen, err = generation.Get(ctx, w.number, protocol.StateRetired, 20*time.Second)
		if err == nil && w.seen.State != protocol.StateRetired {
			err = fmt.Errorf("it is %s", w.seen.State)
		}
		return err
	})
	if err != nil {
		return 0, err
	}
	ended, err := readClock(unix.CLOCK_BOOTTIME)
	if err != nil {
		return 0, err
	}
	retired, err := receiptOf[protocol.RetiredBody](ctx, generation, w.seen, protocol.KindRetired)
	if err != nil {
		return 0, err
	}
	took := ended - began
	if retired.Reason != protocol.ReasonLeaseExpired || took < briefLease {
		return 0, fmt.Errorf("number %d was retired after %s for %s, expected %s after its lease of %s",
			w.number, took, retired.Reason, protocol.ReasonLeaseExpired, briefLease)
	}
	return took, nil
}

// same checks that the daemons are the processes that they were and answer, and
// that the lasting worker serves, on the channel that it had and on a new one.
func (s *stepped) same(ctx context.Context) error {
	var problems []error
	for unit, before := range s.units {
		now, err := whoIs(ctx, unit)
		if err == nil && now != before {
			err = fmt.Errorf("%s is %s, it was %s", unit, now, before)
		}
		problems = append(problems, err)
	}
	_, err := run(ctx, "agentctl", "status")
	problems = append(problems, err, awaitService(ctx),
		s.lasting.alive(), s.channel.echo("on the same channel"), s.lasting.limits(), s.lasting.sameGroup())
	if err := s.lasting.awaitState(ctx, protocol.StateStarted); err != nil {
		return errors.Join(append(problems, err)...)
	}
	if s.lasting.seen.State != protocol.StateStarted {
		return errors.Join(append(problems, fmt.Errorf("the lasting worker is %s", s.lasting.seen.State))...)
	}
	second, err := s.lasting.open(ctx)
	if err != nil {
		return errors.Join(append(problems, err)...)
	}
	return errors.Join(append(problems, second.echo("on a new one"), second.conn.Close())...)
}

// next lives one more whole life under the number that is due, which is refused
// to another purpose afterwards (I5).
func (s *stepped) next(ctx context.Context, due protocol.Number) error {
	w, err := allocate(ctx, "steady")
	if err != nil {
		return err
	}
	if w.number != due {
		return fmt.Errorf("the next number is %d, expected %d", w.number, due)
	}
	c, err := w.open(ctx)
	if err != nil {
		return err
	}
	if err := errors.Join(c.echo("a new one"), c.conn.Close()); err != nil {
		return err
	}
	retired, err := w.end(ctx)
	if err != nil {
		return err
	}
	if retired.Reason != protocol.ReasonRequested || retired.Exit == nil || retired.Exit.Code == nil || *retired.Exit.Code != 3 {
		return fmt.Errorf("number %d was retired for %s with exit %+v, expected %s and code 3", due, retired.Reason, retired.Exit, protocol.ReasonRequested)
	}
	_, generation, err := connect(ctx)
	if err != nil {
		return err
	}
	_, err = generation.Allocate(ctx, due, protocol.AllocateRequest{Profile: "steady", ProfileDigest: protocol.DigestOf(nil), Purpose: "again"})
	if !hostclient.IsCode(err, protocol.CodeNumberConflict) {
		return fmt.Errorf("number %d asked for again: %w", due, errors.Join(err, errors.New("expected number_conflict")))
	}
	return nil
}

// log verifies every receipt that is new, each with its own proof, in an order
// without a gap (I8 I10). The last one's time shows that the agent saw the step.
func (s *stepped) log(ctx context.Context, wrong time.Duration) error {
	host, generation, err := operator(ctx)
	if err != nil {
		return err
	}
	var last protocol.Receipt
	for s.head < host.Index.Head {
		after := s.head
		leaves, err := generation.Receipts(ctx, hostclient.ReceiptsQuery{After: &after})
		if err != nil {
			return err
		}
		if len(leaves) == 0 {
			return fmt.Errorf("the log ends after receipt %d, its head is %d", s.head, host.Index.Head)
		}
		for _, leaf := range leaves {
			last = leaf.Receipt
			if last.Index != s.head+1 {
				return fmt.Errorf("after receipt %d came %d", s.head, last.Index)
			}
			proof, err := generation.Proof(ctx, last.Index)
			if err == nil {
				_, err = proof.Verify(leaf.Bytes, s.key)
			}
			if err != nil {
				return fmt.Errorf("receipt %d: %w", last.Index, err)
			}
			s.head = last.Index
			s.verified++
		}
	}
	right, err := s.clock.right()
	if err != nil {
		return err
	}
	if shown := last.At.Time().Sub(right); (shown - wrong).Abs() > time.Hour/2 {
		return fmt.Errorf("receipt %d, %s, shows a time that is wrong by %s, expected about %s", last.Index, last.Kind, shown, wrong)
	}
	return nil
}

// close ends the lasting worker as any other.
func (s *stepped) close(ctx context.Context) error {
	if err := s.channel.conn.Close(); err != nil {
		return err
	}
	retired, err := s.lasting.end(ctx)
	if err != nil {
		return err
	}
	if retired.Reason != protocol.ReasonRequested {
		return fmt.Errorf("the lasting worker was retired for %s, expected %s", retired.Reason, protocol.ReasonRequested)
	}
	return s.log(ctx, 0)
}

// job gives the generation back to the controller's store, all of whose history
// up to the given index is noted, and runs a job through the processes that saw
// the steps.
func (s *stepped) job(ctx context.Context, t *task, noted protocol.Index) (string, error) {
	if err := releaseAll(ctx); err != nil {
		return "", err
	}
	owner, err := os.ReadFile(storeOwnerFile)
	if err != nil {
		return "", err
	}
	if err := setOwner(ctx, protocol.ID(owner)); err != nil {
		return "", err
	}
	w, err := t.startWatch(ctx, fmt.Sprint(noted)) // which runs already
	if err != nil {
		return "", err
	}
	id, state, err := t.oneJob(ctx, "clock-steps")
	if err == nil && state != api.JobFinished {
		err = fmt.Errorf("job %s is %s", id, state)
	}
	for unit, before := range s.units {
		now, whoErr := whoIs(ctx, unit)
		if whoErr == nil && now != before {
			whoErr = fmt.Errorf("%s is %s, it was %s", unit, now, before)
		}
		err = errors.Join(err, whoErr)
	}
	if err != nil {
		return "", errors.Join(err, w.end())
	}
	return w.finish(ctx, []string{id})
}
