package checks

import (
	"fmt"
	"regexp"
	"strconv"
	"testing"
)

// What the tests have to prove, by number: the invariants I1 to I37 and the
// field reports FR-01 to FR-36.
const (
	lastInvariant   = 37
	lastFieldReport = 36
)

// citation matches one number or a range of them: I5, I26–I32, FR-09.
var citation = regexp.MustCompile(`\b(I|FR-)([0-9]{1,2})(?:(?:–|-| to )(?:I|FR-)([0-9]{1,2}))?\b`)

// cited collects the numbers that a comment cites.
func cited(comment string, into map[string]bool) {
	for _, m := range citation.FindAllStringSubmatch(comment, -1) {
		first, errFirst := strconv.Atoi(m[2])
		last, errLast := first, error(nil)
		if m[3] != "" {
			last, errLast = strconv.Atoi(m[3])
		}
		if errFirst != nil || errLast != nil {
			continue // the expression admits digits only
		}
		for n := first; n <= last; n++ {
			into[m[1]+strconv.Itoa(n)] = true
		}
	}
}

// Every invariant and every field report is cited by the comment of at least
// one test: what nobody proves is promised to nobody.
func TestEveryPromiseIsCited(t *testing.T) {
	found := map[string]bool{}
	for _, c := range testComments(t) {
		cited(c.text, found)
	}
	for n := 1; n <= lastInvariant; n++ {
		if !found[fmt.Sprint("I", n)] {
			t.Errorf("no test cites I%d", n)
		}
	}
	for n := 1; n <= lastFieldReport; n++ {
		if !found[fmt.Sprint("FR-", n)] {
			t.Errorf("no test cites FR-%02d", n)
		}
	}
}

// The check reads single numbers and ranges, and nothing else.
func TestCitations(t *testing.T) {
	found := map[string]bool{}
	cited("one (I5, FR-09), a range I26–I28, no I/O, no I128 and no AI7", found)
	for _, want := range []string{"I5", "FR-9", "I26", "I27", "I28"} {
		if !found[want] {
			t.Errorf("%s was not read", want)
		}
	}
	if len(found) != 5 {
		t.Errorf("read %v", found)
	}
}
