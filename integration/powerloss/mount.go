package powerloss

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"

	"github.com/hanwen/go-fuse/v2/fs"
	"github.com/hanwen/go-fuse/v2/fuse"
	"golang.org/x/sys/unix"
)

// DiskBytes is the size of the recorded disk: small, so that thousands of it
// can be built, and large enough for ext4 with a journal.
const DiskBytes = 40 << 20

// format gives the image of an empty ext4. Nothing is left to be initialised
// lazily: such writes would be noise in the recording.
func format(dir string) (_ []byte, err error) {
	name := filepath.Join(dir, "empty")
	if err := os.WriteFile(name, nil, 0o600); err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, os.Remove(name)) }()
	if err := os.Truncate(name, DiskBytes); err != nil {
		return nil, err
	}
	out, err := exec.Command("mkfs.ext4", "-q", "-F", "-b", "4096", "-J", "size=4",
		"-E", "lazy_itable_init=0,lazy_journal_init=0,nodiscard", name).CombinedOutput()
	if err != nil {
		return nil, fmt.Errorf("mkfs.ext4: %w: %s", err, strings.TrimSpace(string(out)))
	}
	return os.ReadFile(name)
}

// attach makes a loop device over an open file. The device frees itself when
// its last user closes it.
func attach(backing *os.File) (_ *os.File, err error) {
	control, err := os.OpenFile("/dev/loop-control", os.O_RDWR, 0)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, control.Close()) }()
	for {
		n, err := unix.IoctlRetInt(int(control.Fd()), unix.LOOP_CTL_GET_FREE)
		if err != nil {
			return nil, fmt.Errorf("find a free loop device: %w", err)
		}
		device, err := openLoop(n)
		if err != nil {
			return nil, err
		}
		config := unix.LoopConfig{Fd: uint32(backing.Fd()), Info: unix.LoopInfo64{Flags: unix.LO_FLAGS_AUTOCLEAR}}
		err = unix.IoctlLoopConfigure(int(device.Fd()), &config)
		if err == nil {
			return device, nil
		}
		if err := device.Close(); err != nil {
			return nil, err
		}
		if !errors.Is(err, unix.EBUSY) { // somebody else took it between the two calls
			return nil, fmt.Errorf("configure loop device %d: %w", n, err)
		}
	}
}

// openLoop opens a loop device, making its node where no udev does.
func openLoop(n int) (*os.File, error) {
	name := fmt.Sprintf("/dev/loop%d", n)
	device, err := os.OpenFile(name, os.O_RDWR, 0)
	if !errors.Is(err, os.ErrNotExist) {
		return device, err
	}
	const major = 7
	if err := unix.Mknod(name, unix.S_IFBLK|0o600, int(unix.Mkdev(major, uint32(n)))); err != nil && !errors.Is(err, unix.EEXIST) {
		return nil, fmt.Errorf("make %s: %w", name, err)
	}
	return os.OpenFile(name, os.O_RDWR, 0)
}

// mountExt4 mounts what backing holds at dir.
func mountExt4(backing *os.File, dir string) (err error) {
	device, err := attach(backing)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, device.Close()) }()
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return err
	}
	if err := unix.Mount(device.Name(), dir, "ext4", unix.MS_NOATIME, ""); err != nil {
		return fmt.Errorf("mount ext4: %w", err)
	}
	return nil
}

// unmount takes a mount away; what is still open there is a leak of the test.
func unmount(dir string) error {
	if err := unix.Unmount(dir, 0); err != nil {
		return errors.Join(fmt.Errorf("unmount %s: %w", dir, err), unix.Unmount(dir, unix.MNT_DETACH))
	}
	return nil
}

// serve mounts the recording disk's file system and gives the open file.
func serve(d *disk, dir string) (file *os.File, stop func() error, err error) {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, nil, err
	}
	root := &root{disk: d}
	server, err := fs.Mount(dir, root, &fs.Options{MountOptions: fuse.MountOptions{
		DirectMountStrict: true, FsName: "powerloss", Name: "powerloss", MaxWrite: 1 << 20,
	}})
	if err != nil {
		return nil, nil, fmt.Errorf("mount FUSE: %w", err)
	}
	file, err = os.OpenFile(filepath.Join(dir, diskName), os.O_RDWR, 0)
	if err != nil {
		return nil, nil, errors.Join(err, server.Unmount())
	}
	return file, func() error { return errors.Join(file.Close(), server.Unmount()) }, nil
}

const diskName = "disk"

// root is the directory that holds the disk's file.
type root struct {
	fs.Inode
	disk *disk
}

// OnAdd implements fs.NodeOnAdder.
func (r *root) OnAdd(ctx context.Context) {
	r.AddChild(diskName, r.NewPersistentInode(ctx, r.disk, fs.StableAttr{Mode: fuse.S_IFREG}), false)
}
