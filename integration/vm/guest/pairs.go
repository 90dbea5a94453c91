package main

import (
	"fmt"
	"slices"
	"strings"
)

const engineUnit = "containerd.service"

// What is done to a unit.
const (
	doStop    = "stop"
	doRestart = "restart"
	doKill    = "kill"
)

// act is one thing done to one unit.
type act struct{ what, unit string }

func (a act) String() string {
	return a.what + " " + strings.TrimSuffix(strings.TrimPrefix(a.unit, "quittance-"), ".service")
}

// done says in the table what was done, with what it was done to.
func (a act) done() string {
	past := map[string]string{doStop: "stopped", doRestart: "restarted", doKill: "killed"}
	return strings.Replace(a.String(), a.what, past[a.what], 1)
}

// ours are the units that are acted on, the controller's last.
var ours = []string{agentUnit, socketUnit, workersUnitOf, engineUnit, controllerUnit}

// ofManager are the acts on systemd itself. They stop nothing, and may take from
// a live worker what systemd does not know that it has (FR-35).
var ofManager = []string{"daemon-reload", "daemon-reexec"}

// pair is two acts in their order, and what must be done by hand around them.
type pair struct {
	first, second act
	// between are units that the first act stopped and that the second is to
	// kill: they are started before it, and come back by themselves after it.
	between []string
	// after are units that were stopped and not started since.
	after []string
	// leftOut is why the pair says nothing; "" for one that is tried.
	leftOut string
}

func (p pair) String() string {
	text := p.first.String() + ", "
	if len(p.between) > 0 {
		text += "start it, "
	}
	return text + p.second.String()
}

// on reports whether one of both acts is on the unit.
func (p pair) on(unit string) bool { return p.first.unit == unit || p.second.unit == unit }

// kills reports whether one of both acts kills the unit's process.
func (p pair) kills(unit string) bool {
	return p.first == act{doKill, unit} || p.second == act{doKill, unit}
}

// stops are the units that the act stops, its own first: nothing but a start by
// hand brings them back, or, for the agent, a connection to its socket.
func (a act) stops() []string {
	switch {
	case a.what != doStop, refused(a):
		return nil
	case a.unit == socketUnit:
		return []string{socketUnit, agentUnit} // the agent requires it
	}
	return []string{a.unit}
}

// refused reports whether systemd refuses the act: stopping the workers' unit, and
// so restarting it, needs every worker gone.
func refused(a act) bool { return a.unit == workersUnitOf && a.what != doKill }

// plan decides what is done for two acts.
func plan(first, second act) pair {
	p := pair{first: first, second: second}
	switch {
	case first == second:
		p.leftOut = "one act on one unit has no order"
	case p.kills(socketUnit):
		p.leftOut = "a socket has no process to kill"
	}
	if p.leftOut != "" {
		return p
	}
	down := first.stops()
	if slices.Contains(down, second.unit) {
		switch second.what {
		case doKill:
			p.between, down = down, nil
		case doRestart:
			down = nil // which is a start
		}
	}
	// Of each act its own unit alone: the agent that stopped with its socket comes
	// back by a connection to that.
	for _, stopped := range [][]string{down, second.stops()} {
		if len(stopped) > 0 {
			p.after = append(p.after, stopped[0])
		}
	}
	return p
}

// pairs are all ordered pairs of two units, the first with one act and the second
// with another. Those without the controller come first.
func pairs(first, second string) []pair {
	var without, with []pair
	for _, a := range ours {
		for _, b := range ours {
			p := plan(act{first, a}, act{second, b})
			if p.on(controllerUnit) {
				with = append(with, p)
			} else {
				without = append(without, p)
			}
		}
	}
	return append(without, with...)
}

// tried splits pairs into those that are tried and a text that counts the others,
// each with its reason.
func tried(all []pair) (chosen []pair, leftOut string) {
	var reasons []string
	count := map[string]int{}
	for _, p := range all {
		switch {
		case p.leftOut == "":
			chosen = append(chosen, p)
		case count[p.leftOut] == 0:
			reasons = append(reasons, p.leftOut)
			fallthrough
		default:
			count[p.leftOut]++
		}
	}
	for i, reason := range reasons {
		reasons[i] = fmt.Sprintf("%d left out: %s", count[reason], reason)
	}
	return chosen, strings.Join(reasons, "; ")
}

// tally counts what the acts hit, in the order in which each first did.
type tally struct {
	words []string
	count map[string]int
}

func (n *tally) add(word string) {
	if n.count == nil {
		n.count = map[string]int{}
	}
	if n.count[word] == 0 {
		n.words = append(n.words, word)
	}
	n.count[word]++
}

func (n *tally) String() string {
	var parts []string
	for _, word := range n.words {
		parts = append(parts, fmt.Sprintf("%d %s", n.count[word], word))
	}
	return strings.Join(parts, ", ")
}
