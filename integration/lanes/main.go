package main

import (
	"bytes"
	"context"
	"errors"
	"flag"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	os.Exit(run(ctx))
}

// options of one run.
type options struct {
	lanes   []string
	race    []string // lanes that run with the race detector
	add     bool
	whole   bool // every row, not a sample of those that may be sampled
	timeout time.Duration
}

const usage = "usage: lanes [-race LANE,…] [-add] [-whole] [-timeout D] unit|engine|crash|e2e|vm …"

func run(ctx context.Context) int {
	var o options
	race := flag.String("race", "", "comma-separated lanes to run with the race detector")
	flag.BoolVar(&o.add, "add", false, "list what ran instead of comparing")
	flag.BoolVar(&o.whole, "whole", false, "run every row of the tests that are sampled otherwise")
	flag.DurationVar(&o.timeout, "timeout", 10*time.Minute, "for the tests of one package")
	flag.Parse()
	o.lanes, o.race = flag.Args(), strings.Split(*race, ",")
	if len(o.lanes) == 0 || slices.ContainsFunc(o.lanes, func(l string) bool { return strings.ContainsAny(l, "/. ") }) {
		fmt.Fprintln(os.Stderr, usage)
		return 2
	}
	module, root, err := mainModule(ctx)
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	if err := o.sample(ctx, root); err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	pass, fail := 0, 0
	for _, lane := range o.lanes {
		p, f, err := o.runLane(ctx, module, root, lane)
		if err != nil {
			fmt.Fprintf(os.Stderr, "lane %s: %v\n", lane, err)
			f++
		}
		fmt.Printf("lane %s: %d passed, %d failed\n", lane, p, f)
		pass, fail = pass+p, fail+f
	}
	fmt.Printf("%d passed, %d failed\n", pass, fail)
	if fail > 0 {
		return 1
	}
	return 0
}

// sampleVariable tells tests which part of their rows to run; without it they
// run all.
const sampleVariable = "QUITTANCE_SAMPLE"

// sample chooses the part: the one that is given, or one that the commit
// decides, so that every commit tries another and each run can be repeated.
func (o options) sample(ctx context.Context, root string) error {
	if o.whole {
		return os.Unsetenv(sampleVariable)
	}
	if os.Getenv(sampleVariable) == "" {
		number := uint64(0) // outside of a repository
		cmd := exec.CommandContext(ctx, "git", "rev-parse", "HEAD")
		cmd.Dir = root
		if out, err := cmd.Output(); err == nil && len(out) > 8 {
			if number, err = strconv.ParseUint(string(out[:8]), 16, 64); err != nil {
				return fmt.Errorf("git rev-parse HEAD: %w", err)
			}
		}
		if err := os.Setenv(sampleVariable, strconv.FormatUint(number, 10)); err != nil {
			return err
		}
	}
	fmt.Printf("sampled tests run the part %s=%s; -whole runs all\n", sampleVariable, os.Getenv(sampleVariable))
	return nil
}

// runLane runs one lane and counts: a problem with its list counts as a failure.
func (o options) runLane(ctx context.Context, module, root, lane string) (pass, fail int, err error) {
	rs := newResults(module, lane != "unit")
	runErr := o.runTests(ctx, root, lane, rs)
	pass, fail = rs.count()
	if runErr != nil {
		return pass, fail, runErr
	}

	path := filepath.Join(root, "integration", "lanes", lane+".txt")
	expected, err := readList(path)
	if err != nil {
		return pass, fail, err
	}
	if o.add {
		if len(rs.broken) > 0 {
			return pass, fail, fmt.Errorf("the list is left as it is: %s did not run whole", strings.Join(rs.broken, ", "))
		}
		expected = merged(expected, rs.ran, o.whole)
		if err := os.WriteFile(path, []byte(expected.format()), 0o644); err != nil {
			return pass, fail, err
		}
	}
	problems := judge(expected, rs.ran, o.whole, "go run ./integration/lanes -add "+lane)
	for _, p := range problems {
		fmt.Printf("lane %s: %s\n", lane, p)
	}
	return pass, fail + len(problems), nil
}

func (o options) runTests(ctx context.Context, root, lane string, rs *results) error {
	args := []string{"-vet=off", "-timeout", o.timeout.String()} // vet is make lint
	if slices.Contains(o.race, lane) {
		args = append(args, "-race")
	}
	if lane == "unit" {
		return rs.goTest(ctx, root, os.Stdout, append(args, "./...")...)
	}
	selections, err := tagged(ctx, root, lane)
	if err != nil {
		return err
	}
	// One package after the other: they share the machine's kernel facilities.
	for _, s := range selections {
		run := append([]string{"-count=1", "-tags", lane, "-run", s.pattern()}, args...)
		if err := rs.goTest(ctx, root, os.Stdout, append(run, s.pkg)...); err != nil {
			return err
		}
	}
	return nil
}

func mainModule(ctx context.Context) (path, dir string, err error) {
	cmd := exec.CommandContext(ctx, "go", "list", "-m", "-f", "{{.Path}}\n{{.Dir}}")
	cmd.Stderr = os.Stderr
	out, err := cmd.Output()
	if err != nil {
		return "", "", fmt.Errorf("go list -m: %w", err)
	}
	path, dir, ok := strings.Cut(strings.TrimSpace(string(out)), "\n")
	if !ok {
		return "", "", errors.New("go list -m: no main module")
	}
	return path, dir, nil
}

// readList reads a lane's list; one that is not there yet is empty.
func readList(path string) (list, error) {
	data, err := os.ReadFile(path)
	if errors.Is(err, fs.ErrNotExist) {
		data, err = nil, nil
	}
	if err != nil {
		return list{}, err
	}
	l, err := parseList(bytes.NewReader(data))
	if err != nil {
		return list{}, fmt.Errorf("%s: %w", path, err)
	}
	return l, nil
}
