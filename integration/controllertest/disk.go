package controllertest

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
)

// Disk is a small file system of its own.
type Disk struct {
	site   *Site
	filler string
}

// SmallDisk mounts a small file system and moves the state directory of every
// later controller there: the lanes', where the service has been started before.
// The provider's key goes along. whole tells that what the service has moves
// too; it must not run.
func (s *Site) SmallDisk(size string, whole bool) *Disk {
	s.T.Helper()
	disk := s.path("disk")
	if err := os.Mkdir(disk, 0o755); err != nil {
		s.T.Fatal(err)
	}
	if err := syscall.Mount("tmpfs", disk, "tmpfs", 0, "mode=0755,size="+size); err != nil {
		s.T.Fatal(err)
	}
	s.T.Cleanup(func() {
		// What runs there yet ends after this; the file system goes with its last user.
		if err := syscall.Unmount(disk, syscall.MNT_DETACH); err != nil {
			s.T.Error(err)
		}
	})
	state := filepath.Join(disk, "state")
	err := os.Mkdir(state, 0o700)
	if err = errors.Join(err, os.Chown(state, UID, GID)); err != nil {
		s.T.Fatal(err)
	}
	if whole {
		if err := os.Symlink(state, s.StateDir()); err != nil {
			s.T.Fatal(err)
		}
	} else if out, err := exec.CommandContext(s.T.Context(), "cp", "-a", filepath.Join(s.StateDir(), "provider.key"), state).CombinedOutput(); err != nil {
		s.T.Fatalf("%v: %s", err, out)
	}
	s.Flag("--state-dir", state)
	return &Disk{s, filepath.Join(disk, "filler")}
}

// Fill writes until nothing more fits.
func (d *Disk) Fill() error {
	file, err := os.OpenFile(d.filler, os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o600)
	if err != nil {
		return err
	}
	for size := 1 << 20; size > 0; size /= 2 {
		for err = nil; err == nil; {
			_, err = file.Write(make([]byte, size))
		}
		if !errors.Is(err, syscall.ENOSPC) {
			return errors.Join(fmt.Errorf("fill: %w", err), file.Close())
		}
	}
	return file.Close()
}

// Empty gives the space back.
func (d *Disk) Empty() {
	d.site.T.Helper()
	if err := os.Remove(d.filler); err != nil {
		d.site.T.Error(err)
	}
}
