package commandline

import (
	"bytes"
	"errors"
	"fmt"
	"maps"
	"strings"
	"testing"

	"github.com/spf13/cobra"
)

func TestUsageIsToldFromFailure(t *testing.T) {
	failed := errors.New("failed")
	root := Root("x", "", "", "1.2.3")
	root.PersistentFlags().String("some-key", "", "")
	root.AddCommand(&cobra.Command{Use: "do", Args: Exactly(1), RunE: func(*cobra.Command, []string) error { return failed }},
		&cobra.Command{Use: "try", Args: AtMost(1), RunE: func(*cobra.Command, []string) error { return nil }})
	for _, tc := range []struct {
		args  []string
		usage bool
	}{
		{[]string{"do"}, true}, {[]string{"do", "it"}, false}, {[]string{"undo"}, true}, {[]string{"do", "it", "--other"}, true},
		{[]string{"try", "this", "that"}, true}, {[]string{"try", "this"}, false},
	} {
		root.SetArgs(tc.args)
		if err := root.Execute(); IsUsage(err) != tc.usage {
			t.Errorf("%v: %v", tc.args, err)
		}
	}
	if IsUsage(nil) || !IsUsage(fmt.Errorf("more: %w", &UsageError{failed})) {
		t.Error("wrapped usage errors are not seen")
	}
}

func TestGiven(t *testing.T) {
	root := Root("x", "", "", "1.2.3")
	root.PersistentFlags().String("one", "default", "")
	root.PersistentFlags().String("two", "default", "")
	var got map[string]string
	root.AddCommand(&cobra.Command{Use: "do", RunE: func(cmd *cobra.Command, _ []string) error {
		got = Given(cmd, []string{"one", "two", "three"})
		return nil
	}})
	root.SetArgs([]string{"do", "--two="})
	if err := root.Execute(); err != nil || !maps.Equal(got, map[string]string{"two": ""}) {
		t.Errorf("%v, %v", got, err)
	}
}

// A wrong number of arguments is answered with those that are wanted.
func TestArgumentsAreNamed(t *testing.T) {
	root := Root("x", "", "", "1.2.3")
	do := func(*cobra.Command, []string) error { return nil }
	root.AddCommand(&cobra.Command{Use: "one THING", Args: Exactly(1), RunE: do}, &cobra.Command{Use: "some THING ...", Args: AtLeast(1), RunE: do},
		&cobra.Command{Use: "most [THING]", Args: AtMost(1), RunE: do})
	for line, want := range map[string]string{
		"one": "0 arguments are given; the form is: x one THING [flags]", "one a b": "2 arguments are given; the form is: x one THING [flags]",
		"some": "0 arguments are given; the form is: x some THING ... [flags]", "most a b": "2 arguments are given; the form is: x most [THING] [flags]",
	} {
		root.SetArgs(strings.Fields(line))
		if err := root.Execute(); !IsUsage(err) || err.Error() != want {
			t.Errorf("%s: %v, want %q", line, err, want)
		}
	}
}

func TestVersion(t *testing.T) {
	for _, line := range []string{"version", "--version"} {
		var out bytes.Buffer
		root := Root("x", "", "", "1.2.3")
		root.SetOut(&out)
		root.SetArgs([]string{line})
		if err := root.Execute(); err != nil || out.String() != "x 1.2.3\n" {
			t.Errorf("%s: %v, %q", line, err, out.String())
		}
	}
	if got := Version("1.2.3"); got != "1.2.3" {
		t.Errorf("a version that the linker set became %q", got)
	}
}
