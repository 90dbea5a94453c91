// Package disk makes the disks of the virtual machine: a Debian system from
// the distribution's packages, a read-only one with what the tests bring along,
// and overlays that take the writes.
//
// It owns their contents and the cache below build/vm. It must not know what
// is tested on them.
//
//	base-KEY/disk.img, vmlinuz, initrd.img   the system, never written to again
//	payload.img                              what the tests bring, mounted at /payload
//	*.qcow2                                  overlays; a copy is a snapshot
//
// KEY is a digest of the package list, of how the system is set up, and of the
// day: a system is at most a day older than the distribution's packages.
package disk

import (
	"context"
	"crypto/sha256"
	_ "embed"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"
)

// packages is what the system holds beside what Debian calls required: an init
// system, a kernel made for virtual machines, and the engine.
var packages = []string{
	"systemd-sysv", "udev", "dbus", "kmod", "iproute2", "procps", "e2fsprogs", "linux-image-cloud-amd64",
	"containerd", "runc", "catatonit", "systemd-oomd",
}

// customize sets the system up; it is given its root as $1.
//
//go:embed customize.sh
var customize string

// suite is the distribution's release.
const suite = "bookworm"

// Sizes of the disks: sparse files, so these are bounds.
const (
	baseSize    = "4G"
	payloadRoom = 16 << 20
)

// Base is a bootable system.
type Base struct {
	Image, Kernel, Initrd string // files
}

// key names the system that would be made now.
func key(now time.Time) string {
	sum := sha256.Sum256([]byte(strings.Join(packages, " ") + "\n" + suite + " " + baseSize + "\n" + customize + "\n" + now.UTC().Format(time.DateOnly)))
	return hex.EncodeToString(sum[:8])
}

// System returns the cached system below dir or makes it, which takes a few
// minutes; systems with other keys are removed. It needs root, mmdebstrap and
// mke2fs.
func System(ctx context.Context, dir string, now time.Time) (Base, error) {
	made := filepath.Join(dir, "base-"+key(now))
	base := Base{Image: filepath.Join(made, "disk.img"), Kernel: filepath.Join(made, "vmlinuz"), Initrd: filepath.Join(made, "initrd.img")}
	if _, err := os.Stat(made); err == nil {
		return base, nil
	} else if !errors.Is(err, fs.ErrNotExist) {
		return Base{}, err
	}
	if err := removeOld(dir); err != nil {
		return Base{}, err
	}
	if err := build(ctx, dir, made); err != nil {
		return Base{}, fmt.Errorf("system disk: %w", err)
	}
	return base, nil
}

func removeOld(dir string) error {
	for _, pattern := range []string{"base-*", "building-*", "*.qcow2"} {
		old, err := filepath.Glob(filepath.Join(dir, pattern))
		if err != nil {
			return err
		}
		for _, o := range old {
			if err := os.RemoveAll(o); err != nil {
				return err
			}
		}
	}
	return nil
}

// build makes the system in a directory of its own that gets its name last.
func build(ctx context.Context, dir, made string) (err error) {
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return err
	}
	work, err := os.MkdirTemp(dir, "building-")
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(work)) }()
	root, hook := filepath.Join(work, "root"), filepath.Join(work, "customize.sh")
	if err := os.WriteFile(hook, []byte(customize), 0o755); err != nil {
		return err
	}
	// What it mounts below root ends with its mount namespace, even where it is
	// killed: nothing of the host can be met when root is removed.
	err = run(ctx, "unshare", "--mount", "mmdebstrap", "--variant=minbase", "--include="+strings.Join(packages, ","),
		"--aptopt=Acquire::Languages \"none\"", "--aptopt=Acquire::Retries \"5\"", "--customize-hook="+hook+` "$1"`, suite, root)
	if err != nil {
		return err
	}
	out := filepath.Join(work, "out")
	if err := os.Mkdir(out, 0o755); err != nil {
		return err
	}
	for _, name := range []string{"vmlinuz", "initrd.img"} {
		found, err := filepath.Glob(filepath.Join(root, "boot", name+"-*"))
		if err != nil {
			return err
		}
		if len(found) != 1 {
			return fmt.Errorf("%d files /boot/%s-*, expected one", len(found), name)
		}
		if err := os.Rename(found[0], filepath.Join(out, name)); err != nil {
			return err
		}
	}
	if err := format(ctx, root, filepath.Join(out, "disk.img"), baseSize); err != nil {
		return err
	}
	return os.Rename(out, made)
}

// format makes a file system image with the contents of a directory.
func format(ctx context.Context, root, image, size string) error {
	return run(ctx, "mke2fs", "-q", "-F", "-t", "ext4", "-m", "0", "-d", root, image, size)
}

// Payload makes the read-only disk with the files, by their names on it.
func Payload(ctx context.Context, dir string, files map[string]string) (image string, err error) {
	root, err := os.MkdirTemp(dir, "payload-")
	if err != nil {
		return "", err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(root)) }()
	size := int64(payloadRoom)
	for name, source := range files {
		info, err := os.Stat(source)
		if err != nil {
			return "", fmt.Errorf("payload disk: %w", err)
		}
		size += info.Size()
		target := filepath.Join(root, name)
		if err := os.MkdirAll(filepath.Dir(target), 0o755); err != nil {
			return "", err
		}
		if err := copyFile(source, target, info.Mode().Perm()); err != nil {
			return "", fmt.Errorf("payload disk: %w", err)
		}
	}
	image = filepath.Join(dir, "payload.img")
	if err := os.RemoveAll(image); err != nil {
		return "", err
	}
	return image, format(ctx, root, image, fmt.Sprintf("%dK", size*5/4>>10))
}

func copyFile(source, target string, mode fs.FileMode) (err error) {
	from, err := os.Open(source)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, from.Close()) }()
	to, err := os.OpenFile(target, os.O_CREATE|os.O_EXCL|os.O_WRONLY, mode)
	if err != nil {
		return err
	}
	_, err = io.Copy(to, from)
	return errors.Join(err, to.Close())
}

// Overlay makes a disk that reads from another one and keeps the writes. The
// one below must not change any more.
func Overlay(ctx context.Context, below, format, overlay string) error {
	return run(ctx, "qemu-img", "create", "-q", "-f", "qcow2", "-F", format, "-b", below, overlay)
}

// Check looks for damage of an overlay itself, after the emulator was killed.
// Clusters that nothing uses are no damage.
func Check(ctx context.Context, overlay string) error {
	err := run(ctx, "qemu-img", "check", "-q", overlay)
	if exit, ok := errors.AsType[*exec.ExitError](err); ok && exit.ExitCode() == 3 { // leaks only
		return nil
	}
	return err
}

// run runs a program to its end; its output is part of the error.
func run(ctx context.Context, name string, args ...string) error {
	cmd := exec.CommandContext(ctx, name, args...)
	cmd.Env = append(os.Environ(), "PATH="+os.Getenv("PATH")+":/usr/sbin:/sbin")
	path, err := look(name)
	if err != nil {
		return err
	}
	cmd.Path, cmd.Err = path, nil
	if out, err := cmd.CombinedOutput(); err != nil {
		text := string(out)
		if len(text) > 4<<10 {
			text = "…" + text[len(text)-4<<10:]
		}
		return fmt.Errorf("%s: %w\n%s", name, err, text)
	}
	return nil
}

// look finds a program also where only root looks.
func look(name string) (string, error) {
	path, err := exec.LookPath(name)
	if err == nil {
		return path, nil
	}
	for _, dir := range []string{"/usr/sbin", "/sbin"} {
		if path, sbin := exec.LookPath(filepath.Join(dir, name)); sbin == nil {
			return path, nil
		}
	}
	return "", err
}
