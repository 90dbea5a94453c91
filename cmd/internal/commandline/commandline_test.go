package commandline

import (
	"errors"
	"fmt"
	"maps"
	"testing"

	"github.com/spf13/cobra"
)

func TestUsageIsToldFromFailure(t *testing.T) {
	failed := errors.New("failed")
	root := Root("x", "", "")
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
	root := Root("x", "", "")
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

func TestVersion(t *testing.T) {
	if got := Version("1.2.3"); got != "1.2.3" {
		t.Errorf("a version that the linker set became %q", got)
	}
}
