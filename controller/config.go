// Package controller is the unprivileged half of Quittance: the job service and
// the lanes that run attempts. It owns the composition of its internal packages
// into a running process and the verbs of its command line. It must not know
// any container engine: everything about containers comes as receipts over the
// host agent's private socket (I1).
package controller

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/quittance/quittance/controller/internal/config"
	"github.com/quittance/quittance/controller/internal/offering"
)

// Config is the effective configuration.
type Config = config.Config

// ConfigKey is one leaf of the configuration.
type ConfigKey = config.Key

// Mode is what the process does.
type Mode = config.Mode

// The modes.
const (
	Serve = config.Serve // job service and lanes
	API   = config.API   // job service alone
	Work  = config.Work  // lanes alone
)

// DefaultConfigFile is read when no other file is named; it may be absent.
const DefaultConfigFile = config.DefaultPath

// ConfigKeys lists every key with its meaning.
func ConfigKeys() []ConfigKey { return config.Keys() }

// ExampleConfig is the documented example file.
func ExampleConfig() string { return config.Example() }

// LoadConfig reads the file, then lets the environment and the flags that were
// given override it. required says that the file must be there.
func LoadConfig(path string, required bool, flags map[string]string) (Config, error) {
	return config.Load(path, !required, os.LookupEnv, flags)
}

// CheckConfig reports every problem of the configuration at once, the offerings
// included, and describes what is in force: the effective keys and the worst
// case of what is kept on which file system.
func CheckConfig(c Config, mode Mode) (string, error) {
	problems := []error{c.Check(mode)}
	var b strings.Builder
	b.WriteString(c.String())
	if mode.HasLanes() {
		offers, err := offering.LoadDir(c.Lanes.OfferingsDir)
		problems = append(problems, err)
		for _, o := range offers {
			fmt.Fprintf(&b, "\n# offering %s: profile %s, input %s from %s, at most %d bytes (%s)", o.Kind, o.Profile, o.Input.ContentType, o.Input.From, o.Input.MaxBytes, o.File)
		}
		b.WriteString("\n")
	}
	for _, use := range worstCase(c, mode) {
		fmt.Fprintf(&b, "\n# at most %s of %s in %s (%s)", bytesText(use.bytes), use.what, use.dir, fileSystem(use.dir))
	}
	b.WriteString("\n")
	return b.String(), join(problems)
}

// use is what may lie in one directory at most.
type use struct {
	what  string
	dir   string
	bytes int64
}

func bytesText(n int64) string {
	switch {
	case n < 0:
		return "an unbounded amount"
	case n >= 1<<30:
		return fmt.Sprintf("%.1f GiB", float64(n)/(1<<30))
	}
	return fmt.Sprintf("%.1f MiB", float64(n)/(1<<20))
}

// fileSystem names the file system of the nearest directory that exists.
func fileSystem(dir string) string {
	for ; ; dir = filepath.Dir(dir) {
		var st unix.Statfs_t
		err := unix.Statfs(dir, &st)
		if err == nil {
			return fmt.Sprintf("file system of %s, type 0x%x, %s free", dir, st.Type, bytesText(int64(st.Bavail)*st.Bsize))
		}
		if dir == filepath.Dir(dir) {
			return "file system unknown: " + err.Error()
		}
	}
}
