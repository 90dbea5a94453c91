package hostagent

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"

	"github.com/quittance/quittance/hostagent/internal/core"
	"github.com/quittance/quittance/hostagent/internal/ledger"
	"github.com/quittance/quittance/protocol"
	"github.com/quittance/quittance/protocol/tlog"
)

// LedgerFormat is the newest format of a ledger that this agent reads, and the
// one that it writes. The packages' scripts know it too.
const LedgerFormat = ledger.Format

// Created says what [Init] made.
type Created struct {
	Generation protocol.ID
	HostKey    string // the public key, for whoever verifies receipts
	KeyFile    string // the private key's file, which never leaves the node
}

// Init makes a new generation: host key, ledger and genesis receipt, durable
// when it returns. Where a ledger is, or once was, it refuses and changes
// nothing. An Init that was cut short is completed by the next.
func Init(c Config, version string) (_ Created, err error) {
	if err := makePrivateDir(c.StateDir); err != nil {
		return Created{}, err
	}
	lock, err := lockState(c)
	if err != nil {
		return Created{}, err
	}
	defer func() { err = errors.Join(err, lock.Close()) }()
	if err := checkNotReplacing(c); err != nil {
		return Created{}, err
	}
	for _, name := range []string{ledgerDir(c), markerBeside(c), markerInside(c)} {
		if _, err := os.Lstat(name); !errors.Is(err, fs.ErrNotExist) {
			if err == nil {
				err = ledger.ErrExists
			}
			return Created{}, fmt.Errorf("init: %w", err)
		}
	}
	signer, err := tlog.LoadKeyFile(hostKeyFile(c))
	if errors.Is(err, fs.ErrNotExist) {
		signer, err = tlog.CreateKeyFile(hostKeyFile(c), protocol.NewID())
	}
	if err != nil {
		return Created{}, fmt.Errorf("init: %w", err)
	}
	if err := createLedger(c, version, nil); err != nil {
		return Created{}, fmt.Errorf("init: %w", err)
	}
	return Created{Generation: signer.Generation(), HostKey: signer.PublicKey(), KeyFile: hostKeyFile(c)}, nil
}

func versions(version string) protocol.Versions {
	return protocol.Versions{Agent: version, Protocol: []int{protocol.Version}}
}

// makePrivateDir makes a directory for root alone and checks one that exists.
func makePrivateDir(dir string) error {
	err := os.Mkdir(dir, 0o700)
	if err != nil && !errors.Is(err, fs.ErrExist) {
		return fmt.Errorf("make %s: %w", dir, err)
	}
	info, err := os.Lstat(dir)
	if err != nil {
		return err
	}
	if !info.IsDir() || info.Mode().Perm()&0o077 != 0 {
		return fmt.Errorf("%s must be a directory of mode 0700: chmod 0700 it", dir)
	}
	return nil
}

// ballastBytes is given up first on a full disk, so that the engine's own
// metadata can be written too.
const ballastBytes = 16 << 20

func ledgerOptions(c Config) ledger.Options {
	return ledger.Options{
		Segment: segmentSize(c), Reserve: core.ReserveBytes(c.MaxSlots, c.MaxSlots+c.MaxUnreleased), Ballast: ballastBytes, Marker: markerFile(c),
	}
}

// segmentSize is that of a segment which takes the base of any release within
// the bounds, so that history is released with the disk full too (I36). Bounds
// beyond some 1,100 allocations need more than the largest segment: then a
// release whose base does not fit is refused with no_space while the disk is full.
func segmentSize(c Config) int64 {
	const block = 4096 // the first one is more than the segment's header
	need := block + (core.BaseBytes(c.MaxSlots+c.MaxUnreleased)+block-1)/block*block
	return min(max(need, ledger.DefaultSegment), ledger.MaxSegment)
}

// The marker remembers that there was a ledger. It lies beside the state
// directory, so that it outlives a lost file system there; inside where this
// process may not write beside it.
func markerBeside(c Config) string { return c.StateDir + ".created" }
func markerInside(c Config) string { return ledgerDir(c) + ".created" }

// markerFile is the marker that is there, or where one is to be made.
func markerFile(c Config) string {
	for _, path := range []string{markerBeside(c), markerInside(c)} {
		if _, err := os.Lstat(path); err == nil {
			return path
		}
	}
	if unix.Access(filepath.Dir(c.StateDir), unix.W_OK) == nil {
		return markerBeside(c)
	}
	return markerInside(c)
}

// LedgerReport is what [CheckLedger] found.
type LedgerReport = ledger.Report

// CheckLedger verifies the ledger and changes nothing; the agent may run.
func CheckLedger(c Config) (LedgerReport, error) {
	return ledger.Check(ledgerDir(c), ledgerOptions(c))
}

// BackupLedger copies the valid part of the ledger into a directory that does
// not exist yet; the agent may run. The host key is not part of it.
func BackupLedger(c Config, destination string) (LedgerReport, error) {
	return ledger.Backup(ledgerDir(c), destination, ledgerOptions(c))
}
