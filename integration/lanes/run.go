package main

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"os/exec"
	"slices"
	"strings"
	"time"
)

// event is one line of go test -json.
type event struct {
	Action      string
	Package     string
	ImportPath  string // of build output
	Test        string
	Output      string
	Elapsed     float64
	FailedBuild string
}

// results gathers the events of a lane.
type results struct {
	module   string
	subtests bool // whether subtests are rows
	ran      map[row]outcome
	leaves   map[row]outcome // tests without subtests: what is counted
	parents  map[row]bool
	output   map[row]*strings.Builder // of tests not yet ended
	builds   map[string]*strings.Builder
	broken   []string // packages that failed beside their tests
}

func newResults(module string, subtests bool) *results {
	return &results{
		module: module, subtests: subtests, ran: map[row]outcome{}, leaves: map[row]outcome{}, parents: map[row]bool{},
		output: map[row]*strings.Builder{}, builds: map[string]*strings.Builder{},
	}
}

// read takes the events of one go test run and shows progress on w: one line a
// package, and the whole output of what failed.
func (rs *results) read(r io.Reader, w io.Writer) error {
	scanner := bufio.NewScanner(r)
	scanner.Buffer(nil, 16<<20)
	for scanner.Scan() {
		var e event
		if err := json.Unmarshal(scanner.Bytes(), &e); err != nil {
			fmt.Fprintln(w, scanner.Text()) // what go itself says before there are tests
			continue
		}
		rs.take(e, w)
	}
	return scanner.Err()
}

func (rs *results) take(e event, w io.Writer) {
	pkg := strings.TrimPrefix(strings.TrimPrefix(e.Package, rs.module), "/")
	key := row{pkg, e.Test}
	switch e.Action {
	case "build-output":
		builder(rs.builds, e.ImportPath).WriteString(e.Output)
	case "output":
		builder(rs.output, key).WriteString(e.Output)
	case "pass", "fail", "skip":
		if e.Test == "" {
			rs.endPackage(e, key, w)
			return
		}
		rs.endTest(outcome(e.Action), key, w)
	}
}

func builder[K comparable](m map[K]*strings.Builder, key K) *strings.Builder {
	b, ok := m[key]
	if !ok {
		b = &strings.Builder{}
		m[key] = b
	}
	return b
}

func (rs *results) endTest(o outcome, key row, w io.Writer) {
	parent, _, isSub := cutLast(key.test)
	if isSub {
		rs.parents[row{key.pkg, parent}] = true
	}
	if rs.subtests || !isSub {
		rs.ran[key] = o
	}
	rs.leaves[key] = o
	if o == failed || o == skipped {
		fmt.Fprintf(w, "%s: %s\n%s", strings.ToUpper(string(o)), key, builder(rs.output, key))
	}
	delete(rs.output, key)
}

// cutLast cuts the last part of a subtest's name.
func cutLast(test string) (parent, last string, ok bool) {
	i := strings.LastIndexByte(test, '/')
	if i < 0 {
		return test, "", false
	}
	return test[:i], test[i+1:], true
}

func (rs *results) endPackage(e event, key row, w io.Writer) {
	tests, bad := 0, 0
	for r, o := range rs.ran {
		if r.pkg == key.pkg {
			tests++
			if o == failed {
				bad++
			}
		}
	}
	if e.Action == "fail" {
		if b := rs.builds[e.FailedBuild]; b != nil {
			fmt.Fprint(w, b.String())
		}
		if bad == 0 { // it did not build, crashed or ran out of time
			fmt.Fprint(w, builder(rs.output, key))
			for r, b := range rs.output {
				if r.pkg == key.pkg && r.test != "" {
					fmt.Fprintf(w, "did not end: %s\n%s", r, b)
				}
			}
			rs.broken = append(rs.broken, key.pkg)
		}
	}
	if e.Action == "fail" || tests > 0 {
		fmt.Fprintf(w, "%-4s %-50s %4d tests %7.1fs\n", e.Action, key.pkg, tests, e.Elapsed)
	}
	delete(rs.output, key)
}

// count is the number of tests that have no subtests, passed and failed; a
// package that broke beside its tests counts as one failure.
func (rs *results) count() (pass, fail int) {
	fail = len(rs.broken)
	for r, o := range rs.leaves {
		if rs.parents[r] && o != failed {
			continue
		}
		switch o {
		case passed:
			pass++
		case failed:
			fail++
		}
	}
	return pass, fail
}

// goTest runs go test with arguments and reads its events. Its own failure to
// run is an error; failed tests are in the results.
func (rs *results) goTest(ctx context.Context, root string, w io.Writer, args ...string) error {
	args = append([]string{"test", "-json"}, args...)
	fmt.Fprintf(w, "go %s\n", strings.Join(args, " "))
	cmd := exec.CommandContext(ctx, "go", args...)
	cmd.Dir = root
	cmd.Stderr = os.Stderr
	// An interrupt lets the tests clean up what they started.
	cmd.Cancel = func() error { return cmd.Process.Signal(os.Interrupt) }
	cmd.WaitDelay = 30 * time.Second
	out, err := cmd.StdoutPipe()
	if err != nil {
		return err
	}
	if err := cmd.Start(); err != nil {
		return err
	}
	readErr := rs.read(out, w)
	err = cmd.Wait()
	if readErr != nil {
		return readErr
	}
	if _, bad := rs.count(); err != nil && bad == 0 {
		return fmt.Errorf("go test: %w", err)
	}
	return ctx.Err()
}

// selection is the tests of one package that a lane runs; nil tests: all.
type selection struct {
	pkg   string // import path
	tests []string
}

// pattern is the -run expression that selects exactly the tests.
func (s selection) pattern() string {
	return "^(" + strings.Join(slices.Sorted(slices.Values(s.tests)), "|") + ")$"
}
