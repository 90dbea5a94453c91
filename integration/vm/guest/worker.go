package main

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"net"
	"net/http"
	"os"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/quittance/quittance/protocol"
	"github.com/quittance/quittance/protocol/hostclient"
)

const socketPath = "/run/quittance/agent.sock"

// ownOwner is the attempt store that this program pretends to have where it
// speaks to the agent itself.
const ownOwner protocol.ID = "76697274756c206d616368696e652121"

// newClient makes a client of the agent that is as patient as everything here;
// an operator has no owner.
func newClient(owner func() protocol.ID) *hostclient.Client {
	return hostclient.New(socketPath, hostclient.Options{Owner: owner, FirstByte: patience / 4, Body: patience / 4})
}

// connect learns the generation and returns its routes; where the agent wants a
// witness first, an empty one is presented.
func connect(ctx context.Context) (protocol.Host, *hostclient.Generation, error) {
	client := newClient(func() protocol.ID { return ownOwner })
	var host protocol.Host
	err := await(ctx, patience, "the agent serves with its engine", func() (err error) {
		host, err = client.Host(ctx)
		if err == nil && !host.Engine.Available {
			err = errors.New("the engine is not available: " + host.Engine.Detail)
		}
		return err
	})
	if err != nil {
		return host, nil, err
	}
	generation := client.In(host.Generation)
	if host.WitnessRequired && (host.Owner == nil || *host.Owner == ownOwner) {
		if _, err := generation.Witness(ctx, protocol.WitnessRequest{}); err != nil {
			return host, nil, err
		}
	}
	return host, generation, nil
}

// operator is a client without an owner.
func operator(ctx context.Context) (protocol.Host, *hostclient.Generation, error) {
	client := newClient(nil)
	var host protocol.Host
	err := await(ctx, patience, "the agent serves", func() (err error) {
		host, err = client.Host(ctx)
		return err
	})
	return host, client.In(host.Generation), err
}

// worker is one allocation of this program's.
type worker struct {
	number  protocol.Number
	purpose string
	seen    protocol.Allocation  // as read last
	body    protocol.StartedBody // of its started receipt
}

// registry holds the workers that this program made and did not settle.
type registry struct {
	mu      sync.Mutex
	workers map[protocol.Number]*worker
}

var living = registry{workers: map[protocol.Number]*worker{}}

func (r *registry) add(w *worker) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.workers[w.number] = w
}

func (r *registry) drop(w *worker) {
	r.mu.Lock()
	defer r.mu.Unlock()
	delete(r.workers, w.number)
}

// all are the workers, in no order.
func (r *registry) all() []*worker {
	r.mu.Lock()
	defer r.mu.Unlock()
	return slices.Collect(maps.Values(r.workers))
}

// tidy ends what a failed command left alive, so that the next one finds the
// machine as it should be.
func tidy(ctx context.Context) error {
	var problems []error
	for _, w := range living.all() {
		living.drop(w)
		_, err := w.end(ctx)
		problems = append(problems, err)
	}
	return errors.Join(problems...)
}

// allocate makes the next allocation of a profile and waits until it started.
func allocate(ctx context.Context, profile string) (*worker, error) {
	w, err := accept(ctx, profile)
	if err != nil {
		return nil, err
	}
	if err := w.awaitState(ctx, protocol.StateStarted); err != nil {
		return nil, err
	}
	_, generation, err := connect(ctx)
	if err != nil {
		return nil, err
	}
	w.body, err = receiptOf[protocol.StartedBody](ctx, generation, w.seen, protocol.KindStarted)
	return w, err
}

// accept has an allocation of a profile accepted and does not wait for more.
func accept(ctx context.Context, profile string) (*worker, error) {
	host, generation, err := connect(ctx)
	if err != nil {
		return nil, err
	}
	profiles, err := generation.Profiles(ctx)
	if err != nil {
		return nil, err
	}
	var digest protocol.Digest
	for _, p := range profiles {
		if p.Name == profile {
			if !p.Available {
				return nil, fmt.Errorf("profile %s is not available: %s", profile, p.Reason)
			}
			digest = p.Digest
		}
	}
	w := &worker{number: host.Frontiers.Accepted + 1}
	w.purpose = fmt.Sprintf("vm-%d", w.number)
	living.add(w)
	request := protocol.AllocateRequest{Profile: profile, ProfileDigest: digest, Purpose: w.purpose}
	var refused error
	err = await(ctx, patience, fmt.Sprintf("number %d is answered", w.number), func() error {
		_, err := generation.Allocate(ctx, w.number, request)
		if hostclient.IsCode(err, protocol.CodeEngineUnavailable) {
			return err // an agent that just started compares the engine first
		}
		refused = err
		return nil
	})
	if err = errors.Join(err, refused); err == nil {
		return w, nil
	}
	if hostclient.DispositionOf(refused) == protocol.Refused {
		living.drop(w)
	}
	return nil, err
}

// awaitState waits until the allocation reached or passed a state.
func (w *worker) awaitState(ctx context.Context, state protocol.State) error {
	order := []protocol.State{protocol.StateAccepted, protocol.StateCreating, protocol.StateStarted, protocol.StateRetiring,
		protocol.StateExited, protocol.StateRetired, protocol.StateConsumed, protocol.StateReleased}
	rank := func(s protocol.State) int {
		for i, o := range order {
			if o == s {
				return i
			}
		}
		return -1
	}
	return await(ctx, patience, fmt.Sprintf("number %d is %s", w.number, state), func() error {
		_, generation, err := connect(ctx)
		if err != nil {
			return err
		}
		w.seen, err = generation.Get(ctx, w.number, state, 20*time.Second)
		if err == nil && rank(w.seen.State) < rank(state) {
			err = fmt.Errorf("it is %s, step %q %s", w.seen.State, w.seen.Step, w.seen.StepError)
		}
		return err
	})
}

// receiptOf reads an allocation's receipt of a kind.
func receiptOf[T any](ctx context.Context, generation *hostclient.Generation, a protocol.Allocation, kind protocol.Kind) (T, error) {
	var none T
	for _, entry := range a.Receipts {
		if entry.Kind != kind {
			continue
		}
		// By its own index: what is not released stays readable where the log
		// around it is not served any more.
		leaf, err := generation.Receipt(ctx, entry.Index)
		if err != nil {
			return none, err
		}
		return protocol.BodyOf[T](leaf.Receipt)
	}
	return none, fmt.Errorf("number %d has no %s receipt", a.Number, kind)
}

// open opens a channel that stays open.
func (w *worker) open(ctx context.Context) (*channel, error) {
	var conn net.Conn
	err := await(ctx, patience, "the worker can be connected", func() error {
		_, generation, err := connect(ctx)
		if err != nil {
			return err
		}
		conn, err = generation.Channel(ctx, w.number, w.purpose)
		return err
	})
	if err != nil {
		return nil, err
	}
	return newChannel(conn), nil
}

func newChannel(conn net.Conn) *channel { return &channel{conn: conn, in: bufio.NewReader(conn)} }

// channel is one connection to a worker, used again and again.
type channel struct {
	conn net.Conn
	in   *bufio.Reader
}

// post sends text to a path of the worker and returns the answer.
func (c *channel) post(path, text string) (string, error) {
	if err := c.conn.SetDeadline(time.Now().Add(patience)); err != nil {
		return "", err
	}
	request, err := http.NewRequest(http.MethodPost, "http://worker"+path, strings.NewReader(text))
	if err != nil {
		return "", err
	}
	if err := request.Write(c.conn); err != nil {
		return "", err
	}
	answer, err := http.ReadResponse(c.in, request)
	if err != nil {
		return "", err
	}
	got, err := io.ReadAll(io.LimitReader(answer.Body, 1<<20))
	if err := errors.Join(err, answer.Body.Close()); err != nil {
		return "", err
	}
	if answer.StatusCode != http.StatusOK {
		return "", fmt.Errorf("the worker answered %s: %q", answer.Status, got)
	}
	return string(got), nil
}

// echo sends text and expects it back.
func (c *channel) echo(text string) error {
	got, err := c.post("/echo", text)
	if err == nil && got != text {
		err = fmt.Errorf("the worker answered %q", got)
	}
	return err
}

// devices lets the worker open devices anew: those that every container has.
func (c *channel) devices() error {
	var problems []error
	for _, name := range []string{"/dev/null", "/dev/urandom"} {
		got, err := c.post("/open", name)
		if err == nil && got != "opened" {
			err = fmt.Errorf("opening %s anew: %s", name, got)
		}
		problems = append(problems, err)
	}
	return errors.Join(problems...)
}

// end retires and consumes, and returns what the retirement says. The history
// is released later, once the test holds all of it: see giveOwner.
func (w *worker) end(ctx context.Context) (protocol.RetiredBody, error) {
	var none protocol.RetiredBody
	_, generation, err := connect(ctx)
	if err != nil {
		return none, err
	}
	if _, err := generation.Retire(ctx, w.number, protocol.RetireRequest{Purpose: w.purpose}, 0); err != nil {
		return none, err
	}
	if err := w.awaitState(ctx, protocol.StateRetired); err != nil {
		return none, err
	}
	retired, err := receiptOf[protocol.RetiredBody](ctx, generation, w.seen, protocol.KindRetired)
	if err != nil {
		return none, err
	}
	return retired, w.settle(ctx, generation)
}

// settle consumes the retirement.
func (w *worker) settle(ctx context.Context, generation *hostclient.Generation) error {
	for _, entry := range w.seen.Receipts {
		if entry.Kind != protocol.KindRetired {
			continue
		}
		_, err := generation.Consume(ctx, w.number, protocol.ConsumeRequest{Purpose: w.purpose, LeafHash: entry.LeafHash})
		if err == nil {
			living.drop(w)
		}
		return err
	}
	return fmt.Errorf("number %d has no retired receipt", w.number)
}

// group is a file of the allocation's own cgroup.
func (w *worker) group(name string) string {
	return "/sys/fs/cgroup" + w.body.Cgroup.Path + "/" + name
}

// read reads a file of the allocation's own cgroup.
func (w *worker) read(name string) (string, error) {
	text, err := os.ReadFile(w.group(name))
	return strings.TrimSpace(string(text)), err
}

// alive checks that the worker is the very process that was started.
func (w *worker) alive() error {
	stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", w.body.PID))
	if err != nil {
		return fmt.Errorf("the worker's process is gone: %w", err)
	}
	fields := strings.Fields(string(stat[strings.LastIndexByte(string(stat), ')')+1:]))
	if got := fields[22-3]; got != fmt.Sprint(w.body.StartTicks) {
		return fmt.Errorf("process %d started at tick %s, the worker at %d", w.body.PID, got, w.body.StartTicks)
	}
	return nil
}
