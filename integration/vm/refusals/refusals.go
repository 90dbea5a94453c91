// Package refusals is the list of what was refused on the machine: who tried
// what, and how it was refused.
//
// It owns the list's form and the comparison of two of them. It must not know
// who tries, nor how: that is package guest. A line names a thing by what it is
// and never by a process, a path or a number that another run would not have, so
// that a list of one run can be compared with the one beside the units
// (packaging/systemd/refused.txt).
package refusals

import (
	"fmt"
	"slices"
	"strings"
)

// Refusal is one attempt that was refused.
type Refusal struct {
	Who   string // the attempting user, or what stood in the controller's place
	What  string // the attempt
	Error string // the answer: the system's error, or what was found instead
}

// head is above every list.
const head = `# What was refused, attempt by attempt, when the packages were tried on a whole
# machine: who tried, what, and the answer. Written by make vm to
# build/vm/refused.txt; the copy in packaging/systemd is what it is compared with.
# Answers are the kernel's, or what was found: none of it, something empty, or
# another one than the machine's own.
`

// String is the refusal as one line, as Parse reads it.
func (r Refusal) String() string { return fmt.Sprintf("%-22s  %-60s  %s", r.Who, r.What, r.Error) }

// Parse reads one line: three columns, two spaces or more between them.
func Parse(line string) (Refusal, error) {
	var columns []string
	for part := range strings.SplitSeq(strings.TrimSpace(line), "  ") {
		if part = strings.TrimSpace(part); part != "" {
			columns = append(columns, part)
		}
	}
	if len(columns) != 3 {
		return Refusal{}, fmt.Errorf("refusal %q has %d columns, expected who, what and the error with two spaces between them", line, len(columns))
	}
	return Refusal{columns[0], columns[1], columns[2]}, nil
}

// Format is a whole list, sorted.
func Format(list []Refusal) string {
	var text strings.Builder
	text.WriteString(head)
	for _, line := range lines(list) {
		text.WriteString(line + "\n")
	}
	return text.String()
}

func lines(list []Refusal) []string {
	var all []string
	for _, r := range list {
		all = append(all, r.String())
	}
	slices.Sort(all)
	return all
}

// ParseList reads what Format wrote.
func ParseList(text string) ([]Refusal, error) {
	var all []Refusal
	for line := range strings.Lines(text) {
		if strings.HasPrefix(line, "#") {
			continue
		}
		r, err := Parse(line)
		if err != nil {
			return nil, err
		}
		all = append(all, r)
	}
	return all, nil
}

// Of are the refusals of some.
func Of(list []Refusal, who ...string) []Refusal {
	return slices.DeleteFunc(slices.Clone(list), func(r Refusal) bool { return !slices.Contains(who, r.Who) })
}

// Same compares a list with the expected one: nothing may be missing, more, or
// answered otherwise.
func Same(got, wanted []Refusal) error {
	is, should := lines(got), lines(wanted)
	var problems []string
	for _, line := range should {
		if !slices.Contains(is, line) {
			problems = append(problems, "missing: "+line)
		}
	}
	for _, line := range is {
		if !slices.Contains(should, line) {
			problems = append(problems, "new: "+line)
		}
	}
	if len(problems) == 0 && len(is) != len(should) {
		problems = append(problems, "an attempt was made twice")
	}
	if len(problems) > 0 {
		return fmt.Errorf("what was refused is not what packaging/systemd/refused.txt says; if that is intended, build/vm/refused.txt of a whole run becomes its content:\n%s",
			strings.Join(problems, "\n"))
	}
	return nil
}
