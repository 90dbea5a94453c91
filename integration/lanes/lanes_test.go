package main

import (
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

func parse(t *testing.T, text string) list {
	t.Helper()
	l, err := parseList(strings.NewReader(text))
	if err != nil {
		t.Fatal(err)
	}
	return l
}

func TestJudge(t *testing.T) {
	expected := parse(t, "# comment\na TestOne\na TestTwo\nskip b TestThree: no such device here\n")
	for name, tc := range map[string]struct {
		ran  map[row]outcome
		want []string
	}{
		"as listed":     {map[row]outcome{{"a", "TestOne"}: passed, {"a", "TestTwo"}: passed, {"b", "TestThree"}: skipped}, nil},
		"skip that ran": {map[row]outcome{{"a", "TestOne"}: passed, {"a", "TestTwo"}: passed, {"b", "TestThree"}: passed}, nil},
		"not run":       {map[row]outcome{{"a", "TestOne"}: passed, {"b", "TestThree"}: skipped}, []string{"a TestTwo is listed and did not run"}},
		"not listed": {
			map[row]outcome{{"a", "TestOne"}: passed, {"a", "TestTwo"}: passed, {"b", "TestThree"}: skipped, {"c", "TestNew"}: passed},
			[]string{"c TestNew ran and is not listed", "to list what ran: ADD"},
		},
		"silent skip": {
			map[row]outcome{{"a", "TestOne"}: skipped, {"a", "TestTwo"}: passed, {"b", "TestThree"}: skipped},
			[]string{"a TestOne was skipped, and no reason is listed"},
		},
	} {
		if got := judge(expected, tc.ran, false, "ADD"); !slices.Equal(got, tc.want) {
			t.Errorf("%s: got %q, want %q", name, got, tc.want)
		}
	}
	if got := judge(parse(t, ""), nil, false, "ADD"); !slices.Equal(got, []string{"the lane selected no test"}) {
		t.Errorf("empty lane: %q", got)
	}
}

func TestListRefuses(t *testing.T) {
	for text, want := range map[string]string{
		"a\n":                    "line 1: expected a package and a test",
		"a TestOne\na TestOne\n": "line 2: a TestOne is listed twice",
		"skip a TestOne\n":       "line 1: a skip needs its reason after a colon",
		"skip a TestOne:  \n":    "line 1: a skip needs its reason after a colon",
	} {
		if _, err := parseList(strings.NewReader(text)); err == nil || err.Error() != want {
			t.Errorf("%q: got %v, want %s", text, err, want)
		}
	}
}

func TestMergedKeepsReasons(t *testing.T) {
	old := parse(t, "a TestGone\nskip b TestThree: no such device here\n")
	got := merged(old, map[row]outcome{{"b", "TestThree"}: skipped, {"a", "TestNew/case one"}: passed}, true).format()
	const want = "# The tests of this lane. Written by: go run ./integration/lanes -add LANE\na TestNew/case one\nskip b TestThree: no such device here\n"
	if got != want {
		t.Errorf("got %q, want %q", got, want)
	}
}

// A sampled row may be left out unless the run is whole; all of them may not.
func TestJudgeSampled(t *testing.T) {
	expected := parse(t, "a TestMatrix\nsampled a TestMatrix/one\nsampled a TestMatrix/two\n")
	top := map[row]outcome{{"a", "TestMatrix"}: passed}
	part := map[row]outcome{{"a", "TestMatrix"}: passed, {"a", "TestMatrix/two"}: passed}
	for name, tc := range map[string]struct {
		ran   map[row]outcome
		whole bool
		want  []string
	}{
		"a part":             {part, false, nil},
		"a part of a whole":  {part, true, []string{"a TestMatrix/one is listed and did not run"}},
		"nothing of a part":  {top, false, []string{"a TestMatrix: none of its sampled rows ran"}},
		"nothing of a whole": {top, true, []string{"a TestMatrix/one is listed and did not run", "a TestMatrix/two is listed and did not run"}},
	} {
		if got := judge(expected, tc.ran, tc.whole, "ADD"); !slices.Equal(got, tc.want) {
			t.Errorf("%s: got %q, want %q", name, got, tc.want)
		}
	}
	const head = "# The tests of this lane. Written by: go run ./integration/lanes -add LANE\n"
	if got, want := merged(expected, part, false).format(), head+"a TestMatrix\nsampled a TestMatrix/one\nsampled a TestMatrix/two\n"; got != want {
		t.Errorf("after a part: %q, want %q", got, want)
	}
	if got, want := merged(expected, part, true).format(), head+"a TestMatrix\nsampled a TestMatrix/two\n"; got != want {
		t.Errorf("after a whole: %q, want %q", got, want)
	}
}

// Events as go test -json writes them: a pass with a subtest, a failure, a skip,
// a package that does not build, one that crashes.
const events = `{"Action":"run","Package":"m/a","Test":"TestOne"}
{"Action":"run","Package":"m/a","Test":"TestOne/sub"}
{"Action":"pass","Package":"m/a","Test":"TestOne/sub","Elapsed":0}
{"Action":"pass","Package":"m/a","Test":"TestOne","Elapsed":0}
{"Action":"output","Package":"m/a","Test":"TestBad","Output":"    a_test.go:1: broken\n"}
{"Action":"fail","Package":"m/a","Test":"TestBad","Elapsed":0}
{"Action":"skip","Package":"m/a","Test":"TestSkipped","Elapsed":0}
{"Action":"fail","Package":"m/a","Elapsed":1.5}
{"ImportPath":"m/b [m/b.test]","Action":"build-output","Output":"b_test.go:3:1: undefined: x\n"}
{"ImportPath":"m/b [m/b.test]","Action":"build-fail"}
{"Action":"output","Package":"m/b","Output":"FAIL\tm/b [build failed]\n"}
{"Action":"fail","Package":"m/b","Elapsed":0,"FailedBuild":"m/b [m/b.test]"}
{"Action":"run","Package":"m/c","Test":"TestCrash"}
{"Action":"output","Package":"m/c","Test":"TestCrash","Output":"panic: boom\n"}
{"Action":"fail","Package":"m/c","Elapsed":0.1}
{"Action":"skip","Package":"m/d","Elapsed":0}
`

func TestEvents(t *testing.T) {
	var shown strings.Builder
	rs := newResults("m", false)
	if err := rs.read(strings.NewReader(events), &shown); err != nil {
		t.Fatal(err)
	}
	if pass, fail := rs.count(); pass != 1 || fail != 3 {
		t.Errorf("%d passed, %d failed; want 1 (TestOne/sub) and 3 (TestBad, b, c)", pass, fail)
	}
	if _, ok := rs.ran[row{"a", "TestOne/sub"}]; ok || rs.ran[row{"a", "TestOne"}] != passed {
		t.Errorf("rows of the unit lane: %v", rs.ran)
	}
	for _, want := range []string{"broken", "undefined: x", "panic: boom", "SKIP: a TestSkipped"} {
		if !strings.Contains(shown.String(), want) {
			t.Errorf("%q is not shown in:\n%s", want, &shown)
		}
	}
	deep := newResults("m", true)
	if err := deep.read(strings.NewReader(events), io.Discard); err != nil {
		t.Fatal(err)
	}
	if deep.ran[row{"a", "TestOne/sub"}] != passed {
		t.Errorf("rows of another lane: %v", deep.ran)
	}
}

// A module of its own: exactly the tests of the tagged file are selected.
func TestTaggedSelectsOnlyTheTagsTests(t *testing.T) {
	root := t.TempDir()
	for name, text := range map[string]string{
		"go.mod":          "module example.test/m\n\ngo 1.26\n",
		"p/p.go":          "// Package p is a test's.\npackage p\n",
		"p/p_test.go":     "package p\n\nimport \"testing\"\n\nfunc TestPlain(t *testing.T) {}\n",
		"p/deep_test.go":  "//go:build deep\n\npackage p\n\nimport \"testing\"\n\nfunc TestMain(m *testing.M) { m.Run() }\nfunc TestDeep(t *testing.T) {}\nfunc TestAlso(t *testing.T) {}\nfunc helper() {}\n",
		"q/q_test.go":     "package q\n\nimport \"testing\"\n\nfunc TestOther(t *testing.T) {}\n",
		"only/o_test.go":  "//go:build deep\n\npackage only\n\nimport \"testing\"\n\nfunc TestOnly(t *testing.T) {}\n",
		"other/o_test.go": "//go:build elsewhere\n\npackage other\n",
	} {
		path := filepath.Join(root, name)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	selections, err := tagged(t.Context(), root, "deep")
	if err != nil {
		t.Fatal(err)
	}
	var got []string
	for _, s := range selections {
		got = append(got, s.pkg+" "+s.pattern())
	}
	want := []string{"example.test/m/only ^(TestOnly)$", "example.test/m/p ^(TestAlso|TestDeep)$"}
	if !slices.Equal(got, want) {
		t.Errorf("got %q, want %q", got, want)
	}
}
