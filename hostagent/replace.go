package hostagent

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"time"

	"github.com/quittance/quittance/hostagent/internal/core"
	"github.com/quittance/quittance/hostagent/internal/journal"
	"github.com/quittance/quittance/hostagent/internal/ledger"
	"github.com/quittance/quittance/hostagent/internal/process"
	"github.com/quittance/quittance/protocol"
	"github.com/quittance/quittance/protocol/tlog"
)

// replacement is the durable intent to replace a generation of which nothing
// lives any more. While its file is there, the state directory is on its way
// from one generation to the next, and only [Abandon] goes on with it.
type replacement struct {
	Previous protocol.AbandonedPrevious `json:"previous"`
	Next     protocol.ID                `json:"next"` // the generation that is being made
}

// Validate implements protocol.Validator.
func (r *replacement) Validate() error {
	if !r.Previous.Generation.Valid() || !r.Next.Valid() {
		return errors.New("it must name two generations")
	}
	return nil
}

func replacementFile(c Config) string { return filepath.Join(c.StateDir, "abandoning") }

const maxReplacement = 4 << 10

// readReplacement reads the intent; fs.ErrNotExist where there is none.
func readReplacement(c Config) (r replacement, err error) {
	text, err := os.ReadFile(replacementFile(c))
	if err != nil {
		return r, err
	}
	if err := protocol.DecodeStrict(text, maxReplacement, &r); err != nil {
		return r, fmt.Errorf("%s: %w", replacementFile(c), err)
	}
	return r, nil
}

// checkNotReplacing refuses to use a state directory between two generations.
func checkNotReplacing(c Config) error {
	r, err := readReplacement(c)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return nil
	case err != nil:
		return unusable(err)
	}
	return fmt.Errorf("%w: generation %s is being abandoned: run `hostagent ledger abandon %s` again to complete it", errState, r.Previous.Generation, r.Previous.Generation)
}

// replace makes the next generation in the place of the previous one. Each step
// looks whether it was done by an earlier call that was cut short.
func replace(c Config, r replacement, version string) (Created, error) {
	for _, step := range replaceSteps(c, r, version) {
		if err := step(); err != nil {
			return Created{}, err
		}
	}
	signer, err := tlog.LoadKeyFile(hostKeyFile(c))
	if err != nil {
		return Created{}, err
	}
	return Created{Generation: signer.Generation(), HostKey: signer.PublicKey(), KeyFile: hostKeyFile(c)}, nil
}

func replaceSteps(c Config, r replacement, version string) []func() error {
	isNext := func() bool {
		// Whatever cannot be read is not what this made, or was not finished.
		report, err := ledger.Check(ledgerDir(c), ledgerOptions(c))
		return err == nil && report.Generation == r.Next
	}
	keyIsNext := func() bool {
		signer, err := tlog.LoadKeyFile(hostKeyFile(c))
		return err == nil && signer.Generation() == r.Next
	}
	return []func() error{
		func() error {
			if isNext() {
				return nil
			}
			return putAside(ledgerDir(c), r.Previous.Generation)
		},
		func() error {
			if keyIsNext() {
				return nil
			}
			return errors.Join(putAside(hostKeyFile(c), r.Previous.Generation), putAside(hostKeyFile(c)+".pub", r.Previous.Generation))
		},
		func() error {
			if keyIsNext() {
				return nil
			}
			_, err := tlog.CreateKeyFile(hostKeyFile(c), r.Next)
			return err
		},
		func() error {
			if isNext() {
				return nil
			}
			return errors.Join(removeFile(markerBeside(c)), removeFile(markerInside(c)))
		},
		func() error {
			if isNext() {
				return nil
			}
			return createLedger(c, version, &r.Previous)
		},
		func() error { return removeFile(replacementFile(c)) },
	}
}

// createLedger makes the ledger of the host key's generation with its genesis.
func createLedger(c Config, version string, abandoned *protocol.AbandonedPrevious) error {
	signer, err := tlog.LoadKeyFile(hostKeyFile(c))
	if err != nil {
		return err
	}
	bootID, err := process.BootID()
	if err != nil {
		return err
	}
	options := ledgerOptions(c)
	options.Generation = signer.Generation()
	return journal.Create(ledgerDir(c), options, core.Genesis(signer.Generation(), protocol.TimestampOf(time.Now()), protocol.GenesisBody{
		HostKey: signer.PublicKey(), BootID: bootID, Versions: versions(version), Abandoned: abandoned,
	}))
}

// putAside gives a file or directory of a generation a name that says so. What
// is not there needs no other name, and nothing is ever written over.
func putAside(path string, generation protocol.ID) error {
	if _, err := os.Lstat(path); errors.Is(err, fs.ErrNotExist) {
		return nil
	} else if err != nil {
		return err
	}
	to := path + abandonedSuffix + string(generation)
	for i := 2; ; i++ {
		_, err := os.Lstat(to)
		if errors.Is(err, fs.ErrNotExist) {
			break
		}
		if err != nil {
			return err
		}
		to = fmt.Sprintf("%s%s%s.%d", path, abandonedSuffix, generation, i)
	}
	if err := os.Rename(path, to); err != nil {
		return err
	}
	return syncDir(filepath.Dir(path))
}

// removeFile removes a file durably; one that is not there is removed.
func removeFile(path string) error {
	err := os.Remove(path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	return errors.Join(err, syncDir(filepath.Dir(path)))
}

// writeDurably writes a whole file for root alone: after a crash it is there as
// a whole, or not at all.
func writeDurably(path string, data []byte) error {
	fresh := path + ".new"
	if err := removeFile(fresh); err != nil {
		return err
	}
	f, err := os.OpenFile(fresh, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return err
	}
	_, err = f.Write(data)
	if err == nil {
		err = f.Sync()
	}
	if err = errors.Join(err, f.Close()); err != nil {
		return err
	}
	if err := os.Rename(fresh, path); err != nil {
		return err
	}
	return syncDir(filepath.Dir(path))
}

func syncDir(path string) error {
	d, err := os.Open(path)
	if err != nil {
		return err
	}
	return errors.Join(d.Sync(), d.Close())
}
