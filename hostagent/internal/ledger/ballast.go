package ledger

import (
	"errors"
	"io/fs"
	"path/filepath"
)

// ballastName is a file that only takes up space. It is given up first when
// the disk is full, so that the engine's metadata writes, without which no
// container can be removed, find some (I36, FR-22).
const ballastName = "ballast"

func (l *Ledger) ballastPath() string { return filepath.Join(l.dir, ballastName) }

// findBallast takes over the ballast of an earlier process. One that is not
// whole is removed: a full disk, or a crash, cut it short.
func (l *Ledger) findBallast() error {
	file, err := l.o.FS.OpenFile(l.ballastPath(), false)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	size, err := file.Size()
	if err := errors.Join(err, file.Close()); err != nil {
		return err
	}
	if l.ballast = size == l.o.Ballast; l.ballast {
		return nil
	}
	return errors.Join(l.o.FS.Remove(l.ballastPath()), l.o.FS.SyncDir(l.dir))
}

// giveUpBallast removes the ballast if it is there.
func (l *Ledger) giveUpBallast() error {
	if !l.ballast {
		return nil
	}
	l.ballast = false
	l.o.Logger.Warn("giving up the ledger's ballast so that containers can be removed on a full disk", "bytes", l.o.Ballast)
	return errors.Join(l.o.FS.Remove(l.ballastPath()), l.o.FS.SyncDir(l.dir))
}

// watch looks at the free space where there is a ballast to give up or to get
// back. It takes much more to be content again than not to be full, so that the
// space which was given up is not taken back at once.
func (l *Ledger) watch(missing int) (full bool, err error) {
	if l.o.Ballast == 0 {
		return false, nil
	}
	free, err := l.o.FS.Free(l.dir)
	if err != nil {
		return false, err
	}
	low := l.o.FullBelow()
	if l.isFull() {
		low = l.o.ContentFrom(max(missing, 0), l.ballast)
	}
	if free >= low {
		return false, nil
	}
	l.setFull(true)
	return true, l.giveUpBallast()
}
