// Package commandline is what the command lines of the daemons share: how a
// program says its version, how a command line that cannot be understood is
// told from a failure, and flags that are keys of a configuration.
//
// It must not know any command.
package commandline

import (
	"errors"
	"fmt"
	"runtime/debug"
	"strings"

	"github.com/spf13/cobra"
)

// ExitUsage is the exit code of a command line that cannot be understood.
const ExitUsage = 2

// unreleased is the version of a program that no package was made of.
const unreleased = "development"

// Version adds the commit to a version that the linker did not set, where the
// build knows it.
func Version(linked string) string {
	info, ok := debug.ReadBuildInfo()
	if ok && linked == unreleased {
		for _, s := range info.Settings {
			if s.Key == "vcs.revision" && len(s.Value) >= 12 {
				return linked + "-" + s.Value[:12]
			}
		}
	}
	return linked
}

// UsageError is a command line that cannot be understood.
type UsageError struct{ Err error }

func (e *UsageError) Error() string { return e.Err.Error() }

// Unwrap is what is wrong with it.
func (e *UsageError) Unwrap() error { return e.Err }

// Usage makes err a usage error.
func Usage(err error) error { return &UsageError{Err: err} }

// IsUsage reports whether err is a command line that cannot be understood, an
// unknown command included.
func IsUsage(err error) bool {
	_, usage := errors.AsType[*UsageError](err)
	return usage || err != nil && strings.HasPrefix(err.Error(), "unknown command")
}

// Root makes a program's root command, which knows its version: errors are
// printed by the caller, and flags that cannot be understood are usage errors.
func Root(use, short, long, version string) *cobra.Command {
	root := &cobra.Command{Use: use, Short: short, Long: long, SilenceErrors: true, SilenceUsage: true}
	root.SetFlagErrorFunc(func(_ *cobra.Command, err error) error { return Usage(err) })
	AddVersion(root, version)
	return root
}

// AddVersion gives a root command the flag --version and the command version,
// which say the same.
func AddVersion(root *cobra.Command, version string) {
	root.Version = version
	root.SetVersionTemplate("{{.Name}} {{.Version}}\n")
	root.AddCommand(&cobra.Command{
		Use: "version", Short: "Print the version", Args: Exactly(0),
		RunE: func(cmd *cobra.Command, _ []string) error {
			_, err := fmt.Fprintln(cmd.OutOrStdout(), root.Name()+" "+version)
			return err
		},
	})
}

// Exactly is cobra.ExactArgs as a usage error.
func Exactly(n int) cobra.PositionalArgs { return checked(cobra.ExactArgs(n)) }

// AtMost is cobra.MaximumNArgs as a usage error.
func AtMost(n int) cobra.PositionalArgs { return checked(cobra.MaximumNArgs(n)) }

// AtLeast is cobra.MinimumNArgs as a usage error.
func AtLeast(n int) cobra.PositionalArgs { return checked(cobra.MinimumNArgs(n)) }

// checked says of a wrong number of arguments which are wanted.
func checked(check cobra.PositionalArgs) cobra.PositionalArgs {
	return func(cmd *cobra.Command, args []string) error {
		if err := check(cmd, args); err != nil {
			return Usage(fmt.Errorf("%d arguments are given; the form is: %s", len(args), cmd.UseLine()))
		}
		return nil
	}
}

// Given are those of the flags named that stand on the command line, by name.
func Given(cmd *cobra.Command, names []string) map[string]string {
	given := map[string]string{}
	for _, name := range names {
		if f := cmd.Flags().Lookup(name); f != nil && f.Changed {
			given[name] = f.Value.String()
		}
	}
	return given
}
