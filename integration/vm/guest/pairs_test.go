package main

import (
	"slices"
	"strings"
	"testing"
)

// model is what runs of the units, as far as a plan decides it: everything that
// is not stopped by hand comes back by itself.
type model map[string]bool

func (m model) do(t *testing.T, a act) {
	t.Helper()
	switch {
	case refused(a):
	case a.what == doKill && !m[a.unit]:
		t.Errorf("%s: nothing runs that could be killed", a)
	case a.what == doStop:
		for _, unit := range a.stops() {
			m[unit] = false
		}
	case a.what == doRestart:
		m.start(t, a.unit)
	}
}

// start also starts what the unit requires.
func (m model) start(t *testing.T, unit string) {
	t.Helper()
	if unit == workersUnitOf {
		t.Error("the workers' unit is started, which fails beside live workers")
	}
	m[unit] = true
	if unit == agentUnit {
		m[socketUnit] = true
	}
}

// Every ordered pair of every row is possible or left out with a reason: each kill
// has a process to kill, what was killed comes back by itself and not by hand, and
// in the end everything runs or can be activated.
func TestPairs(t *testing.T) {
	whats := []string{doStop, doRestart, doKill}
	for _, first := range whats {
		for _, second := range whats {
			t.Run(first+"-"+second, func(t *testing.T) {
				all := pairs(first, second)
				seen := map[[2]act]bool{}
				controller := false
				for _, p := range all {
					seen[[2]act{p.first, p.second}] = true
					if controller = controller || p.on(controllerUnit); controller != p.on(controllerUnit) {
						t.Errorf("%s, %s: comes after pairs with the controller", p.first, p.second)
					}
					socketKilled := p.first == act{doKill, socketUnit} || p.second == act{doKill, socketUnit}
					if excused := p.first == p.second || socketKilled; excused != (p.leftOut != "") {
						t.Errorf("%s, %s: left out %q", p.first, p.second, p.leftOut)
					}
					if p.leftOut == "" {
						playThrough(t, p)
					}
				}
				if len(all) != len(ours)*len(ours) || len(seen) != len(all) {
					t.Errorf("%d pairs, %d of them different, expected %d", len(all), len(seen), len(ours)*len(ours))
				}
			})
		}
	}
}

func playThrough(t *testing.T, p pair) {
	t.Helper()
	m := model{}
	for _, unit := range ours {
		m[unit] = true
	}
	m.do(t, p.first)
	for _, unit := range p.between {
		if p.second.what != doKill || !slices.Contains(p.first.stops(), unit) {
			t.Errorf("%s: %s is started between both", p, unit)
		}
		m.start(t, unit)
	}
	m.do(t, p.second)
	for _, unit := range p.after {
		if m[unit] && p.second.what == doKill && unit == p.second.unit {
			t.Errorf("%s: %s is started by hand, which was only killed", p, unit)
		}
		m.start(t, unit)
	}
	for _, unit := range ours {
		activated := unit == agentUnit && m[socketUnit] && p.second.unit != agentUnit && p.first.unit != agentUnit
		activated = activated || unit == agentUnit && m[socketUnit] && p.on(socketUnit)
		if !m[unit] && !activated {
			t.Errorf("%s: %s does not run in the end", p, unit)
		}
	}
}

// What the audit of the lane found, as it is decided now.
func TestPlan(t *testing.T) {
	for _, row := range []struct {
		first, second  act
		between, after []string
	}{
		{act{doStop, engineUnit}, act{doKill, engineUnit}, []string{engineUnit}, nil},
		{act{doStop, controllerUnit}, act{doKill, controllerUnit}, []string{controllerUnit}, nil},
		{act{doStop, agentUnit}, act{doKill, agentUnit}, []string{agentUnit}, nil},
		{act{doStop, socketUnit}, act{doKill, agentUnit}, []string{socketUnit, agentUnit}, nil},
		{act{doStop, workersUnitOf}, act{doKill, workersUnitOf}, nil, nil},
		{act{doStop, agentUnit}, act{doKill, workersUnitOf}, nil, []string{agentUnit}},
		{act{doStop, engineUnit}, act{doRestart, engineUnit}, nil, nil},
		{act{doKill, engineUnit}, act{doStop, engineUnit}, nil, []string{engineUnit}},
		{act{doStop, socketUnit}, act{doStop, agentUnit}, nil, []string{socketUnit, agentUnit}},
		{act{doKill, agentUnit}, act{doStop, socketUnit}, nil, []string{socketUnit}},
	} {
		p := plan(row.first, row.second)
		if p.leftOut != "" || !slices.Equal(p.between, row.between) || !slices.Equal(p.after, row.after) {
			t.Errorf("%s: left out %q, started between %q and after %q, expected %q and %q", p, p.leftOut, p.between, p.after, row.between, row.after)
		}
	}
}

// What is left out is counted with its reason, and what was hit by name.
func TestRowText(t *testing.T) {
	chosen, leftOut := tried(pairs(doKill, doKill))
	if len(chosen) != 12 || !strings.Contains(leftOut, "5 left out: one act on one unit has no order") ||
		!strings.Contains(leftOut, "8 left out: a socket has no process to kill") {
		t.Errorf("%d pairs are tried, %q", len(chosen), leftOut)
	}
	var hit tally
	for _, p := range chosen {
		hit.add(p.first.done())
		hit.add(p.second.done())
	}
	if got := hit.String(); !strings.Contains(got, "6 killed workers") || !strings.Contains(got, "6 killed containerd") {
		t.Errorf("what was hit: %q", got)
	}
	if chosen, leftOut = tried(pairs(doStop, doRestart)); len(chosen) != 25 || leftOut != "" {
		t.Errorf("%d pairs of a stop and a restart are tried, %q", len(chosen), leftOut)
	}
}
