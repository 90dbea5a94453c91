package main

import (
	"bufio"
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"
)

// row names one test: its package below the module and its name.
type row struct{ pkg, test string }

func (r row) String() string { return r.pkg + " " + r.test }

// list is the checked-in expectation of a lane.
type list struct {
	rows    map[row]bool
	skips   map[row]string // reason by row; every skip is also one of rows
	sampled map[row]bool   // may be left out of a run that is not whole; each is also one of rows
}

// parseList reads a list; errors name the line.
func parseList(r io.Reader) (list, error) {
	l := list{rows: map[row]bool{}, skips: map[row]string{}, sampled: map[row]bool{}}
	scanner := bufio.NewScanner(r)
	for n := 1; scanner.Scan(); n++ {
		line := scanner.Text()
		if line == "" || strings.HasPrefix(line, "#") {
			continue
		}
		rest, isSkip := strings.CutPrefix(line, "skip ")
		reason := ""
		if isSkip {
			var ok bool
			if rest, reason, ok = strings.Cut(rest, ": "); !ok || strings.TrimSpace(reason) == "" {
				return list{}, fmt.Errorf("line %d: a skip needs its reason after a colon", n)
			}
		}
		rest, isSampled := strings.CutPrefix(rest, "sampled ")
		pkg, test, ok := strings.Cut(rest, " ")
		if !ok || pkg == "" || test == "" {
			return list{}, fmt.Errorf("line %d: expected a package and a test", n)
		}
		key := row{pkg, test}
		if l.rows[key] {
			return list{}, fmt.Errorf("line %d: %s is listed twice", n, key)
		}
		l.rows[key] = true
		if isSkip {
			l.skips[key] = reason
		}
		if isSampled {
			l.sampled[key] = true
		}
	}
	return l, scanner.Err()
}

// format writes a list, sorted.
func (l list) format() string {
	var b strings.Builder
	b.WriteString("# The tests of this lane. Written by: go run ./integration/lanes -add LANE\n")
	for _, r := range slices.SortedFunc(maps.Keys(l.rows), compareRows) {
		if reason, ok := l.skips[r]; ok {
			fmt.Fprintf(&b, "skip %s: %s\n", r, reason)
			continue
		}
		if l.sampled[r] {
			b.WriteString("sampled ")
		}
		fmt.Fprintln(&b, r)
	}
	return b.String()
}

func compareRows(a, b row) int {
	if c := strings.Compare(a.pkg, b.pkg); c != 0 {
		return c
	}
	return strings.Compare(a.test, b.test)
}

// outcome is how a test ended.
type outcome string

const (
	passed  outcome = "pass"
	failed  outcome = "fail"
	skipped outcome = "skip"
)

// judge compares what ran with what is listed. add is the command that accepts
// new rows. In a run that is not whole sampled rows may be left out, but not all
// of a test's.
func judge(expected list, ran map[row]outcome, whole bool, add string) []string {
	var problems []string
	sample := map[row]int{} // rows that ran, by the test whose sample they are
	for _, r := range slices.SortedFunc(maps.Keys(expected.rows), compareRows) {
		_, did := ran[r]
		if expected.sampled[r] && !whole {
			of := r
			of.test, _, _ = strings.Cut(r.test, "/")
			sample[of] += 0 // that it has one
			if did {
				sample[of]++
			}
			continue
		}
		if !did {
			problems = append(problems, fmt.Sprintf("%s is listed and did not run", r))
		}
	}
	for _, of := range slices.SortedFunc(maps.Keys(sample), compareRows) {
		if sample[of] == 0 {
			problems = append(problems, fmt.Sprintf("%s: none of its sampled rows ran", of))
		}
	}
	unlisted := 0
	for _, r := range slices.SortedFunc(maps.Keys(ran), compareRows) {
		if !expected.rows[r] {
			unlisted++
			problems = append(problems, fmt.Sprintf("%s ran and is not listed", r))
		}
		if _, ok := expected.skips[r]; ran[r] == skipped && !ok {
			problems = append(problems, fmt.Sprintf("%s was skipped, and no reason is listed", r))
		}
	}
	if unlisted > 0 {
		problems = append(problems, "to list what ran: "+add)
	}
	if len(ran) == 0 {
		problems = append(problems, "the lane selected no test")
	}
	return problems
}

// merged is the list after -add: what ran, with the reasons of known skips, and
// in a run that is not whole the sampled rows that were left out.
func merged(old list, ran map[row]outcome, whole bool) list {
	l := list{rows: map[row]bool{}, skips: map[row]string{}, sampled: map[row]bool{}}
	for r := range old.sampled {
		if _, did := ran[r]; did || !whole {
			l.rows[r], l.sampled[r] = true, true
		}
	}
	for r := range ran {
		l.rows[r] = true
		if reason, ok := old.skips[r]; ok {
			l.skips[r] = reason
		}
	}
	return l
}
