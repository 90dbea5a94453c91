// Package matrix has what both crash matrices, the agent's and the controller's,
// do with the names of their rows: it takes the part of them that a run strikes,
// and holds them against the failpoints there are and against the lane's list.
//
// It must not know what a row does.
package matrix

import (
	"cmp"
	"hash/fnv"
	"os"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
)

// Sample names the part that a run takes: a number that the lane's runner takes
// from the commit, so that every commit is struck elsewhere and any run can be
// repeated. Without it every row is taken.
const Sample = "QUITTANCE_SAMPLE"

// Part gives whether this run takes a row: of the given number of parts, equally
// large and spread by a hash, the one that [Sample] names.
func Part(t *testing.T, rows []string, parts int) func(row string) bool {
	t.Helper()
	text := os.Getenv(Sample)
	if text == "" {
		return func(string) bool { return true }
	}
	number, err := strconv.ParseUint(text, 10, 64)
	if err != nil {
		t.Fatalf("%s must be a number: %v", Sample, err)
	}
	part := int(number % uint64(parts))
	taken := map[string]bool{}
	for i, row := range slices.SortedFunc(slices.Values(rows), func(a, b string) int { return cmp.Compare(hash(a), hash(b)) }) {
		taken[row] = i%parts == part
	}
	return func(row string) bool { return taken[row] }
}

func hash(s string) uint64 {
	h := fnv.New64a()
	if _, err := h.Write([]byte(s)); err != nil {
		panic(err) // never: a hash takes everything
	}
	return h.Sum64()
}

// CheckParts fails unless the parts are of the same size and together all rows.
func CheckParts(t *testing.T, rows []string, parts int) {
	t.Helper()
	taken := map[string]int{}
	for number := range parts {
		t.Setenv(Sample, strconv.Itoa(number+7*parts))
		take, size := Part(t, rows, parts), 0
		for _, row := range rows {
			if take(row) {
				size++
				taken[row]++
			}
		}
		if size < len(rows)/parts || size > len(rows)/parts+1 {
			t.Errorf("part %d has %d rows of %d", number, size, len(rows))
		}
	}
	for _, row := range rows {
		if taken[row] != 1 {
			t.Errorf("%s is in %d parts", row, taken[row])
		}
	}
}

// CheckListed fails unless a lane's list has exactly these rows of the test,
// given as package and name, each as one that a run may leave out. What has
// fewer elements than a row (a fault by itself) is not looked at.
func CheckListed(t *testing.T, list, test string, rows []string) {
	t.Helper()
	text, err := os.ReadFile(list)
	if err != nil {
		t.Fatal(err)
	}
	prefix := "sampled " + test + "/"
	missing := map[string]bool{}
	for _, row := range rows {
		missing[row] = true
	}
	for line := range strings.Lines(string(text)) {
		row, ours := strings.CutPrefix(strings.TrimSuffix(line, "\n"), prefix)
		if !ours || !strings.Contains(row, "/") {
			continue
		}
		if !missing[row] {
			t.Errorf("%s names, once too often, %s", list, row)
		}
		delete(missing, row)
	}
	for row := range missing {
		t.Errorf("%s lacks: %s%s", list, prefix, row)
	}
}

var pointName = regexp.MustCompile(`(?m)^\t[A-Z]\w+ +Point = "([a-z._-]+)"`)

// CheckFailpoints fails unless exactly the failpoints that a source file declares
// are struck. Behind a # stands which arrival it is.
func CheckFailpoints(t *testing.T, source string, struck []string) {
	t.Helper()
	text, err := os.ReadFile(source)
	if err != nil {
		t.Fatal(err)
	}
	declared := pointName.FindAllStringSubmatch(string(text), -1)
	if all := strings.Count(string(text), `Point = "`); len(declared) != all || all < 20 {
		t.Fatalf("%s: %d failpoints were read of %d", source, len(declared), all)
	}
	spare := map[string]bool{}
	for _, name := range struck {
		name, _, _ = strings.Cut(name, "#")
		spare[name] = true
	}
	for _, point := range declared {
		if !spare[point[1]] {
			t.Errorf("failpoint %s has no row", point[1])
		}
		delete(spare, point[1])
	}
	for name := range spare {
		t.Errorf("%s is struck and is no failpoint", name)
	}
}
