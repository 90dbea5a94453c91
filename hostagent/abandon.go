package hostagent

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/hashicorp/go-hclog"

	"github.com/quittance/quittance/hostagent/internal/cgroup"
	"github.com/quittance/quittance/hostagent/internal/core"
	"github.com/quittance/quittance/hostagent/internal/engine"
	"github.com/quittance/quittance/hostagent/internal/ledger"
	"github.com/quittance/quittance/hostagent/internal/worker"
	"github.com/quittance/quittance/protocol"
	"github.com/quittance/quittance/protocol/tlog"
)

// Abandoned says what [Abandon] did.
type Abandoned struct {
	Previous   protocol.AbandonedPrevious
	Containers int      // that were stopped and removed
	Aside      []string // what was kept of the old generation, under its new names
	Created
}

// abandonedSuffix is put behind the name of whatever is kept of a generation.
const abandonedSuffix = ".abandoned-"

// UnknownGenerationError says that the generation to abandon is not one that
// this node holds anything of. Nothing was changed.
type UnknownGenerationError struct {
	Named protocol.ID // "" where none was named
	Known []protocol.ID
}

func (e *UnknownGenerationError) Error() string {
	known := "none"
	if len(e.Known) > 0 {
		texts := make([]string, len(e.Known))
		for i, id := range e.Known {
			texts[i] = string(id)
		}
		known = strings.Join(texts, ", ")
	}
	if e.Named == "" {
		return "name the generation that is given up, with every container of it; this node holds something of: " + known
	}
	return fmt.Sprintf("this node holds nothing of generation %s, only of: %s", e.Named, known)
}

// Abandon gives generations up: the one whose ledger is lost, damaged or behind,
// and any others whose containers the engine still holds. It stops and removes
// every labelled container of them and verifies that nothing of them is left;
// then it puts the old ledger and host key aside and makes a new generation
// whose genesis names the first of them with its last receipt, where that can be
// read, and all others of this node that ended with it or before. Controllers
// take that as the retirement of everything there with unknown facts.
//
// The agent must not run. What cannot be stopped before ctx ends is an error,
// and the old generations stand. From the moment at which everything is gone
// the way goes forward only: an Abandon that was cut short after it is
// completed by the next, and neither init nor the agent does anything before.
func Abandon(ctx context.Context, c Config, old []protocol.ID, version string, log hclog.Logger) (_ Abandoned, err error) {
	if err := makePrivateDir(c.StateDir); err != nil {
		return Abandoned{}, err
	}
	lock, err := lockState(c)
	if err != nil {
		return Abandoned{}, err
	}
	defer func() { err = errors.Join(err, lock.Close()) }()
	removed := 0
	plan, err := readReplacement(c)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		a := &abandonment{cfg: c, old: old, log: log}
		if plan.Previous, removed, err = a.run(ctx); err != nil {
			return Abandoned{}, err
		}
		plan.Next = protocol.NewID()
		if err := writeDurably(replacementFile(c), append(protocol.AppendCanonical(nil, plan), '\n')); err != nil {
			return Abandoned{}, fmt.Errorf("abandon: %w", err)
		}
	case err != nil:
		return Abandoned{}, err
	default:
		known := append([]protocol.ID{plan.Previous.Generation}, plan.Previous.Also...)
		if err := checkNamed(old, known); err != nil {
			return Abandoned{}, err
		}
	}
	created, err := replace(c, plan, version)
	if err != nil {
		return Abandoned{}, fmt.Errorf("abandon: %w; everything of the old generation is gone: run this again to complete it", err)
	}
	aside, err := filepath.Glob(filepath.Join(c.StateDir, "*"+abandonedSuffix+string(plan.Previous.Generation)+"*"))
	return Abandoned{Previous: plan.Previous, Containers: removed, Aside: aside, Created: created}, err
}

// checkNamed refuses to give up what is not known here.
func checkNamed(named, known []protocol.ID) error {
	if len(named) == 0 {
		return &UnknownGenerationError{Known: known}
	}
	for _, id := range named {
		if !slices.Contains(known, id) {
			return &UnknownGenerationError{Named: id, Known: known}
		}
	}
	return nil
}

// abandonment ends what lives of a generation.
type abandonment struct {
	cfg    Config
	old    []protocol.ID // as named; the first is the one that the genesis tells most of
	log    hclog.Logger
	engine *engine.Engine
	groups *cgroup.Manager
	known  []protocol.ID // generations that the state directory speaks of
	before []protocol.ID // those that ended before the one of the old ledger
	// unsettled says that a creation of the agent's last life may still land.
	unsettled bool
}

// run stops and removes everything, and tells what the new genesis says of it.
func (a *abandonment) run(ctx context.Context) (previous protocol.AbandonedPrevious, removed int, err error) {
	a.known = knownGenerations(a.cfg)
	if len(a.old) > 0 {
		previous.Generation = a.old[0]
	}
	if head, ok := a.head(); ok {
		if head.Generation == previous.Generation {
			previous.Index, previous.LeafHash = &head.Index, &head.LeafHash
		}
	} else {
		a.unsettled = true
	}
	if a.groups, err = cgroup.Open(cgroup.Options{Root: a.cfg.WorkersCgroup()}); err != nil {
		return previous, 0, err
	}
	if a.engine, err = openEngine(ctx, a.cfg, a.log); err != nil {
		return previous, 0, err
	}
	defer func() { err = errors.Join(err, a.engine.Close()) }()
	if removed, err = a.clear(ctx); err != nil {
		return previous, removed, fmt.Errorf("abandon: %w; the old generation stands", err)
	}
	previous.Also = a.also()
	return previous, removed, nil
}

// also lists what the genesis names beside the first generation: the others
// that were named, that of the state directory, and what its own genesis named.
func (a *abandonment) also() []protocol.ID {
	also := []protocol.ID{}
	for _, ids := range [][]protocol.ID{a.old[1:], a.known, a.before} {
		for _, id := range ids {
			if id != a.old[0] && !slices.Contains(also, id) && len(also) < protocol.MaxAlsoAbandoned {
				also = append(also, id)
			}
		}
	}
	return also
}

// lastReceipt is the head of a ledger that can be read.
type lastReceipt struct {
	Generation protocol.ID
	Index      protocol.Index
	LeafHash   protocol.Digest
}

// head reads the old ledger, where that is possible; a ledger that is the
// reason for all this may be anything.
func (a *abandonment) head() (last lastReceipt, ok bool) {
	creating := map[protocol.Number]bool{}
	report, err := ledger.Export(ledgerDir(a.cfg), ledger.Options{Marker: markerFile(a.cfg)}, func(e ledger.Entry) error {
		if e.Kind != ledger.KindReceipt {
			return nil
		}
		r, err := protocol.DecodeReceipt(e.Payload)
		if err != nil {
			return err
		}
		last = lastReceipt{r.Generation, r.Index, core.LeafHash(e.Payload)}
		switch {
		case r.Kind == protocol.KindGenesis:
			genesis, err := protocol.BodyOf[protocol.GenesisBody](r)
			if err != nil {
				return err
			}
			if genesis.Abandoned != nil {
				a.before = append([]protocol.ID{genesis.Abandoned.Generation}, genesis.Abandoned.Also...)
			}
		case r.Number == nil:
		case r.Kind == protocol.KindAccepted:
			creating[*r.Number] = true
		case r.Kind == protocol.KindStarted, r.Kind == protocol.KindRetired:
			delete(creating, *r.Number)
		}
		return nil
	})
	if err != nil {
		a.log.Warn("old_ledger_unreadable", "error", err, "remark", "the new genesis names no last receipt")
		return lastReceipt{}, false
	}
	// What a base carries along is not looked into: one may be among it.
	a.unsettled = len(creating) > 0 || report.Base > 0
	return last, last.Generation != ""
}

// clear removes everything until nothing of it is found any more, once more
// after the time in which a creation of the agent's last life can still land.
func (a *abandonment) clear(ctx context.Context) (removed int, err error) {
	manager := worker.New(worker.Config{
		Engine: a.engine, Groups: a.groups, LogDir: logsDir(a.cfg), ExitGrace: a.cfg.ExitGrace.Duration,
		Post: func(core.Event) {}, Logger: a.log.Named("worker"),
	})
	defer manager.Close()
	for waited := !a.unsettled; ; {
		containers, nonces, err := a.found(ctx)
		if err != nil {
			return removed, err
		}
		if len(nonces) > 0 {
			removed += containers
			if err := a.giveUp(ctx, manager, nonces); err != nil {
				return removed, err
			}
			continue
		}
		if waited {
			return removed, nil
		}
		a.log.Info("waiting", "for", a.engine.LongestCall(), "remark", "a creation that the agent began may still land")
		select {
		case <-ctx.Done():
			return removed, context.Cause(ctx)
		case <-time.After(a.engine.LongestCall()):
		}
		waited = true
	}
}

// parallelRemovals bounds how many containers are ended at once.
const parallelRemovals = 8

func (a *abandonment) giveUp(ctx context.Context, manager *worker.Manager, nonces []protocol.ID) error {
	var all sync.WaitGroup
	tokens := make(chan struct{}, parallelRemovals)
	failures := make([]error, len(nonces))
	for i, nonce := range nonces {
		all.Go(func() {
			tokens <- struct{}{}
			defer func() { <-tokens }()
			removal, err := manager.GiveUp(ctx, nonce)
			if err != nil {
				failures[i] = fmt.Errorf("%s: %w", engine.ContainerID(nonce), err)
				return
			}
			a.log.Info("given_up", "container", engine.ContainerID(nonce), "task", string(removal.Task), "cgroup", string(removal.Cgroup))
		})
	}
	all.Wait()
	return errors.Join(failures...)
}

// found counts the containers that are to go, and names everything of which
// any part is left. It refuses what is of yet another generation: that may have
// a controller that waits for it.
func (a *abandonment) found(ctx context.Context) (containers int, nonces []protocol.ID, err error) {
	listed, err := a.engine.List(ctx)
	if err != nil {
		return 0, nil, err
	}
	held := map[protocol.ID]bool{}
	for _, c := range listed {
		held[c.Generation] = true
	}
	all := slices.Clone(a.known)
	for _, id := range slices.Sorted(maps.Keys(held)) {
		if !slices.Contains(all, id) {
			all = append(all, id)
		}
	}
	if err := checkNamed(a.old, all); err != nil {
		return 0, nil, err
	}
	for _, id := range a.old { // each stays known once its containers are gone
		if !slices.Contains(a.known, id) {
			a.known = append(a.known, id)
		}
	}
	var others []string
	for _, id := range slices.Sorted(maps.Keys(held)) {
		if !slices.Contains(a.known, id) {
			others = append(others, string(id))
		}
	}
	if len(others) > 0 {
		return 0, nil, fmt.Errorf("the engine also holds containers of generation %s, which was not named and is not the one of state_dir: "+
			"name it too to give it up, or restore the state directory that it belongs to", strings.Join(others, " "))
	}
	leftovers, err := a.engine.Leftovers(ctx, a.groups)
	if err != nil {
		return 0, nil, err
	}
	seen := map[protocol.ID]bool{}
	for _, l := range leftovers {
		if nonce, ok := nonceIn(l); ok {
			seen[nonce] = true
		} else if l.Kind == "cgroup" {
			return 0, nil, fmt.Errorf("cgroup_root holds %q, which is not ours by its name: look at it and remove it by hand", l.Name)
		}
	}
	return len(listed), slices.Sorted(maps.Keys(seen)), nil
}

// nonceIn finds the nonce that a leftover carries in its name: a cgroup's name
// is the nonce, all others have the container's id in theirs.
func nonceIn(l engine.Leftover) (protocol.ID, bool) {
	if l.Kind == "cgroup" {
		if id := protocol.ID(l.Name); id.Valid() {
			return id, true
		}
		return "", false
	}
	for _, part := range strings.FieldsFunc(l.Name, func(r rune) bool { return r == '/' || r == ' ' }) {
		if text, ok := strings.CutPrefix(part, "q-"); ok && protocol.ID(text).Valid() {
			return protocol.ID(text), true
		}
	}
	return "", false
}

// knownGenerations lists those that the state directory and its markers speak
// of, by whatever of them can still be read.
func knownGenerations(c Config) []protocol.ID {
	known := map[protocol.ID]bool{}
	// An error beside a report means that marker and ledger differ: both count.
	if r, _ := ledger.Check(ledgerDir(c), ledger.Options{Marker: markerFile(c)}); r.Generation != "" {
		known[r.Generation] = true
	}
	for _, marker := range []string{markerBeside(c), markerInside(c)} {
		if text, err := os.ReadFile(marker); err == nil {
			if id := protocol.ID(strings.TrimSpace(string(text))); id.Valid() {
				known[id] = true
			}
		}
	}
	if signer, err := tlog.LoadKeyFile(hostKeyFile(c)); err == nil {
		known[signer.Generation()] = true
	} else if text, err := os.ReadFile(hostKeyFile(c) + ".pub"); err == nil {
		if key, err := tlog.ParsePublicKey(string(text)); err == nil {
			known[key.Generation()] = true
		}
	}
	return slices.Sorted(maps.Keys(known))
}
