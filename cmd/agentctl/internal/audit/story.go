package audit

import (
	"bytes"
	"fmt"
	"slices"

	"github.com/quittance/quittance/protocol"
	"github.com/quittance/quittance/protocol/tlog"
)

// story folds receipts in their order and notes what the agent's rules do not
// allow. Where the log is pruned, numbers whose beginning is gone are known
// only from what is left of them.
type story struct {
	pruned   bool
	accepted protocol.Number // 0: none seen yet
	released protocol.Number
	numbers  map[protocol.Number]*chapter
	holders  map[string]protocol.Number // device node → the number, not retired, that it is granted to
	findings []Finding
	index    protocol.Index // of the receipt being added
}

// chapter is what was seen of one number.
type chapter struct {
	whole    bool // its accepted receipt was seen
	burn     bool
	nodes    []string // device nodes that it is granted
	started  bool
	killed   bool // a kill was observed
	exit     *protocol.ExitedBody
	stuck    bool
	retired  *protocol.Index
	leaf     protocol.Digest // of the retired receipt
	consumed bool
}

func newStory(first protocol.Index) *story {
	return &story{pruned: first > 0, numbers: map[protocol.Number]*chapter{}, holders: map[string]protocol.Number{}}
}

func (s *story) live() int {
	live := 0
	for _, c := range s.numbers {
		if !c.consumed {
			live++
		}
	}
	return live
}

func (s *story) wrong(format string, args ...any) {
	index := s.index
	if len(s.findings) <= MaxFindings {
		s.findings = append(s.findings, Finding{&index, fmt.Sprintf(format, args...)})
	}
}

// checkKey compares the key that genesis names with those that are trusted.
func (s *story) checkKey(first protocol.Receipt, keys []*tlog.PublicKey) {
	if first.Kind != protocol.KindGenesis {
		return
	}
	s.index = first.Index
	body, err := protocol.BodyOf[protocol.GenesisBody](first)
	if err != nil {
		s.wrong("unreadable body: %v", err)
		return
	}
	if !slices.ContainsFunc(keys, func(k *tlog.PublicKey) bool { return k.String() == body.HostKey }) {
		s.wrong("genesis names another host key than the one that signed")
	}
}

func (s *story) add(r protocol.Receipt, leaf protocol.Digest) {
	s.index = r.Index
	if (r.Index == 0) != (r.Kind == protocol.KindGenesis) {
		s.wrong("the log does not begin with genesis, or has another one")
	}
	switch r.Kind {
	case protocol.KindReleased:
		s.release(r)
		return
	case protocol.KindAccepted, protocol.KindStarted, protocol.KindOOMObserved, protocol.KindExited,
		protocol.KindStuck, protocol.KindUnstuck, protocol.KindRetired, protocol.KindConsumed:
	default:
		return // concerns no number, or is of a kind that this version does not know
	}
	if r.Number == nil {
		s.wrong("%s without a number", r.Kind)
		return
	}
	n := *r.Number
	if r.Kind == protocol.KindAccepted {
		s.accept(n, r)
		return
	}
	c := s.numbers[n]
	if c == nil {
		if !s.pruned || (s.accepted != 0 && n > s.accepted) {
			s.wrong("%s for number %s, which was never accepted", r.Kind, n)
		}
		c = &chapter{}
		s.numbers[n] = c
	}
	s.advance(n, c, r, leaf)
}

func (s *story) accept(n protocol.Number, r protocol.Receipt) {
	if s.numbers[n] != nil || (s.accepted != 0 && n <= s.accepted) {
		s.wrong("number %s is accepted a second time (I5)", n)
		return
	}
	if expected := s.accepted + 1; (s.accepted != 0 || !s.pruned) && n != expected {
		s.wrong("number %s is accepted where %s is due (I5)", n, expected)
	}
	s.accepted = n
	body, err := protocol.BodyOf[protocol.AcceptedBody](r)
	if err != nil {
		s.wrong("unreadable body: %v", err)
	}
	c := &chapter{whole: true, burn: body.Profile == nil}
	for _, d := range body.Devices {
		c.nodes = append(c.nodes, d.Nodes...)
	}
	told := map[protocol.Number]bool{}
	for _, node := range c.nodes {
		if other, held := s.holders[node]; held && other != n && !told[other] {
			told[other] = true
			s.wrong("number %s is granted a device that number %s holds", n, other)
		}
		s.holders[node] = n
	}
	s.numbers[n] = c
}

// advance checks one receipt of a number against what came before.
func (s *story) advance(n protocol.Number, c *chapter, r protocol.Receipt, leaf protocol.Digest) {
	if c.retired != nil && r.Kind != protocol.KindConsumed {
		s.wrong("%s for number %s after it was retired", r.Kind, n)
		return
	}
	switch r.Kind {
	case protocol.KindStarted:
		if c.started || c.killed || c.exit != nil || c.burn {
			s.wrong("number %s is started again, or after its end, or was burnt", n)
		}
		c.started = true
	case protocol.KindOOMObserved:
		// A start whose outcome nobody learnt, because the engine's answer was
		// lost or the agent ended there, leaves no started receipt.
		if c.burn {
			s.wrong("a kill is observed in number %s, which was burnt", n)
		}
		c.killed = true
	case protocol.KindExited:
		body, err := protocol.BodyOf[protocol.ExitedBody](r)
		if err != nil {
			s.wrong("unreadable body: %v", err)
		}
		if c.exit != nil {
			s.wrong("number %s exits a second time (I23)", n)
			return
		}
		if c.burn {
			s.wrong("number %s exits and was burnt", n)
		}
		c.exit = &body
	case protocol.KindStuck:
		c.stuck = true
	case protocol.KindUnstuck:
		c.stuck = false
	case protocol.KindRetired:
		s.retire(n, c, r)
		index := r.Index
		c.retired, c.leaf, c.stuck = &index, leaf, false
		for _, node := range c.nodes {
			if s.holders[node] == n {
				delete(s.holders, node)
			}
		}
	case protocol.KindConsumed:
		s.consume(n, c, r)
	}
}

func (s *story) retire(n protocol.Number, c *chapter, r protocol.Receipt) {
	body, err := protocol.BodyOf[protocol.RetiredBody](r)
	switch {
	case err != nil:
		s.wrong("unreadable body: %v", err)
	case body.Dispatched && c.whole && c.exit == nil:
		s.wrong("number %s is retired as dispatched without exited (I18)", n)
	case !body.Dispatched && (c.started || c.killed || c.exit != nil):
		s.wrong("number %s is retired as never dispatched and was started", n)
	case c.exit != nil && (body.Exit == nil || !equal(*body.Exit, c.exit.Exit) || !equal(body.OOM, c.exit.OOM)):
		s.wrong("number %s: the exit or the OOM verdict was amended at retirement (I23)", n)
	}
}

func (s *story) consume(n protocol.Number, c *chapter, r protocol.Receipt) {
	body, err := protocol.BodyOf[protocol.ConsumedBody](r)
	switch {
	case err != nil:
		s.wrong("unreadable body: %v", err)
	case c.consumed:
		s.wrong("number %s is consumed a second time (I20)", n)
	case c.retired == nil && c.whole:
		s.wrong("number %s is consumed before it was retired (I20)", n)
	case c.retired != nil && (body.RetiredIndex != *c.retired || body.RetiredLeaf != c.leaf):
		s.wrong("number %s: consumption names another receipt than its retirement (I20)", n)
	}
	c.consumed = true
}

func (s *story) release(r protocol.Receipt) {
	body, err := protocol.BodyOf[protocol.ReleasedBody](r)
	if err != nil {
		s.wrong("unreadable body: %v", err)
		return
	}
	if body.Frontier < s.released {
		s.wrong("the released frontier goes back from %s to %s", s.released, body.Frontier)
		return
	}
	if s.accepted != 0 && body.Frontier > s.accepted {
		s.wrong("history is released up to %s, and only %s numbers were accepted", body.Frontier, s.accepted)
	}
	for n, c := range s.numbers {
		if n > body.Frontier {
			continue
		}
		switch carried := slices.Contains(body.Except, n); {
		case carried && !c.stuck:
			s.wrong("number %s is carried along and is not stuck (I21)", n)
		case !carried && !c.consumed && c.whole:
			s.wrong("number %s is released and was never consumed (I21)", n)
		case !carried:
			// Its history is over: it must not be seen again.
			c.consumed = true
		}
	}
	s.released = body.Frontier
}

// equal compares two facts by their canonical bytes.
func equal[T any](a, b T) bool {
	return bytes.Equal(protocol.AppendCanonical(nil, a), protocol.AppendCanonical(nil, b))
}
