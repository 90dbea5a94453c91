// Package hostagent is the privileged part of Quittance: one process per node
// that alone talks to the container engine. It owns the composition of its
// internal packages into a running agent, and the verbs of its command line.
// It must not know the controller, jobs, or what a worker computes.
package hostagent

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/quittance/quittance/hostagent/internal/config"
	"github.com/quittance/quittance/hostagent/internal/journal"
	"github.com/quittance/quittance/hostagent/internal/ledger"
)

// Config is the agent's effective configuration.
type Config = config.Config

// ConfigKey describes one key of it.
type ConfigKey = config.Key

// ConfigSources are where a configuration comes from.
type ConfigSources = config.Sources

// DefaultConfigFile is read when no other file is named; it may be absent.
const DefaultConfigFile = config.DefaultFile

// ConfigKeys lists every key with its meaning.
func ConfigKeys() []ConfigKey { return config.Keys() }

// DefaultConfig is the configuration without file, environment and flags.
func DefaultConfig() Config { return config.Default() }

// LoadConfig puts a configuration together. It is returned even with an error,
// which lists every problem.
func LoadConfig(s ConfigSources) (Config, error) { return config.Load(s) }

// ExampleConfig is the documented example file.
func ExampleConfig() string { return config.Example() }

// The names inside the state directory.
const (
	ledgerName  = "ledger"
	hostKeyName = "host.key"
	logsName    = "logs"
)

func ledgerDir(c Config) string   { return filepath.Join(c.StateDir, ledgerName) }
func hostKeyFile(c Config) string { return filepath.Join(c.StateDir, hostKeyName) }
func logsDir(c Config) string     { return filepath.Join(c.StateDir, logsName) }

// IsUnmending reports whether an error is one that starting the agent again
// cannot mend: an operator has to look first.
func IsUnmending(err error) bool {
	if _, refused := errors.AsType[*config.Error](err); refused {
		return true
	}
	if _, damaged := errors.AsType[*ledger.DamageError](err); damaged {
		return true
	}
	if _, other := errors.AsType[*ledger.GenerationError](err); other {
		return true
	}
	if _, newer := errors.AsType[*ledger.FormatError](err); newer {
		return true
	}
	return errors.Is(err, ledger.ErrNotExist) || errors.Is(err, journal.ErrContent) || errors.Is(err, ledger.ErrLost) || errors.Is(err, errState)
}

// errState says that the state directory or the host key is not as init made it.
var errState = errors.New("the agent's state is not usable")

// unusable is [errState] because of err, unless what failed is the disk or the
// machine: that may pass, and the agent must be tried again until it does.
func unusable(err error) error {
	if errno, ok := errors.AsType[syscall.Errno](err); ok {
		switch errno {
		case unix.ENOENT, unix.ENOTDIR, unix.EISDIR, unix.ELOOP, unix.EACCES, unix.EPERM:
		default:
			return err
		}
	}
	return fmt.Errorf("%w: %w", errState, err)
}

// checkStateDir refuses a state directory that others can enter, or that lies
// between two generations.
func checkStateDir(c Config) error {
	info, err := os.Stat(c.StateDir)
	if err != nil {
		return fmt.Errorf("state_dir: %w: run `hostagent init` where there never was one", unusable(err))
	}
	if !info.IsDir() || info.Mode().Perm()&0o077 != 0 {
		return fmt.Errorf("%w: state_dir %s must be a directory of mode 0700: chmod 0700 it", errState, c.StateDir)
	}
	return checkNotReplacing(c)
}
