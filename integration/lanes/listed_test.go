package main

import (
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// Every test of every lane is listed, and every listed one is there: what a lane
// that takes an hour, or a whole machine, would say at its end.
func TestEveryTestIsListed(t *testing.T) {
	module, root, err := mainModule(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	for _, lane := range []string{"unit", "engine", "crash", "e2e", "vm"} {
		t.Run(lane, func(t *testing.T) {
			l, err := readList(filepath.Join(root, "integration", "lanes", lane+".txt"))
			if err != nil {
				t.Fatal(err)
			}
			listed := map[row]bool{}
			for r := range l.rows {
				top, _, _ := strings.Cut(r.test, "/")
				listed[row{r.pkg, top}] = true
			}
			there := map[row]bool{}
			for _, s := range testsOf(t, root, lane) {
				pkg := strings.TrimPrefix(strings.TrimPrefix(s.pkg, module), "/")
				for _, test := range s.tests {
					r := row{pkg, test}
					there[r] = true
					if !listed[r] {
						t.Errorf("%s is not listed in integration/lanes/%s.txt", r, lane)
					}
				}
			}
			for r := range listed {
				if !there[r] {
					t.Errorf("integration/lanes/%s.txt lists %s, which is not there", lane, r)
				}
			}
		})
	}
}

func testsOf(t *testing.T, root, lane string) []selection {
	t.Helper()
	if lane != "unit" {
		selections, err := tagged(t.Context(), root, lane)
		if err != nil {
			t.Fatal(err)
		}
		return selections
	}
	packages, err := goList(t.Context(), root, "./...")
	if err != nil {
		t.Fatal(err)
	}
	var selections []selection
	for _, p := range packages {
		s := selection{pkg: p.ImportPath}
		for _, file := range slices.Concat(p.TestGoFiles, p.XTestGoFiles) {
			names, err := testsIn(filepath.Join(p.Dir, file))
			if err != nil {
				t.Fatal(err)
			}
			s.tests = append(s.tests, names...)
		}
		selections = append(selections, s)
	}
	return selections
}
