package ociimage

import (
	"archive/tar"
	"compress/gzip"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"strings"

	v1 "github.com/opencontainers/image-spec/specs-go/v1"
)

// Names with which a layer removes files of the layers below it.
const (
	whiteout = ".wh."
	opaque   = ".wh..wh..opq"
)

// budget is what may still come out of the layers of one image. It only falls:
// a file that a later one replaces is not given back.
type budget struct {
	bytes  int64 // of files
	stream int64 // of layers after decompression: headers and padding too
	names  int   // files, and directories that lead to one
}

// take counts one file of a layer before it is made.
func (b *budget) take(h *tar.Header) error {
	if err := b.name(1); err != nil {
		return err
	}
	// Only a regular file has content. What another kind says of its size moves
	// nothing, and tar checks none of it: it may be less than nothing.
	if h.Typeflag != tar.TypeReg {
		return nil
	}
	if b.bytes -= h.Size; b.bytes < 0 {
		return errors.New("with this file the image unpacks to more than may be unpacked")
	}
	return nil
}

func (b *budget) name(n int) error {
	if b.names -= n; b.names < 0 {
		return errors.New("with this file the image has more names than may be unpacked")
	}
	return nil
}

// metered is a layer whose bytes count: a compressed one may hold a thousand
// times as many in headers alone.
type metered struct {
	io.Reader
	left *int64
}

func (m metered) Read(b []byte) (int, error) {
	n, err := m.Reader.Read(b)
	if *m.left -= int64(n); *m.left < 0 {
		return 0, errors.New("the layers are longer than may be unpacked")
	}
	return n, err
}

// Unpack writes the image's files below root, which is empty. After an error
// what it holds is worthless.
func (i *Image) Unpack(root *os.Root) error {
	left := i.most
	for n, d := range i.layers {
		if err := i.layer(root, d, &left); err != nil {
			return fmt.Errorf("layer %d: %w", n+1, err)
		}
	}
	return nil
}

func (i *Image) layer(root *os.Root, d v1.Descriptor, left *budget) error {
	b, err := i.blob(d)
	if err != nil {
		return err
	}
	var content io.Reader = b
	switch d.MediaType {
	case v1.MediaTypeImageLayer:
	case v1.MediaTypeImageLayerGzip:
		if content, err = gzip.NewReader(b); err != nil {
			return fmt.Errorf("gzip: %w", err)
		}
	default:
		return fmt.Errorf("media type %q is neither %s nor the same with +gzip", d.MediaType, v1.MediaTypeImageLayer)
	}
	for r := tar.NewReader(metered{content, &left.stream}); ; {
		h, err := r.Next()
		if errors.Is(err, io.EOF) {
			return b.verify()
		}
		if err != nil {
			return fmt.Errorf("tar: %w", err)
		}
		if err := checkName(h.Name); err != nil {
			return err
		}
		if err := entry(root, h, r, left); err != nil {
			return fmt.Errorf("%s: %w", h.Name, err)
		}
	}
}

// entry makes one file; a later one replaces an earlier of the same name.
func entry(root *os.Root, h *tar.Header, content io.Reader, left *budget) error {
	if err := left.take(h); err != nil {
		return err
	}
	name := path.Clean(strings.TrimLeft(h.Name, "/"))
	if name == "." {
		return nil
	}
	dir, base := path.Split(name)
	dir = path.Clean(dir)
	if base == opaque {
		return empty(root, dir)
	}
	if removed, ok := strings.CutPrefix(base, whiteout); ok {
		if removed == "" || removed == "." || removed == ".." {
			return errors.New("removes no file of its directory")
		}
		return root.RemoveAll(path.Join(dir, removed))
	}
	if err := parents(root, dir, left); err != nil {
		return err
	}
	mode := fs.FileMode(h.Mode).Perm()
	if h.Typeflag == tar.TypeDir {
		if info, err := root.Lstat(name); err == nil && !info.IsDir() {
			if err := root.Remove(name); err != nil {
				return err
			}
		}
		if err := root.Mkdir(name, 0o755); err != nil && !errors.Is(err, fs.ErrExist) {
			return err
		}
		return chmodDir(root, name, mode)
	}
	if err := root.RemoveAll(name); err != nil {
		return err
	}
	switch h.Typeflag {
	case tar.TypeReg:
		return regular(root, name, mode, content)
	case tar.TypeSymlink:
		return root.Symlink(h.Linkname, name)
	case tar.TypeLink:
		return root.Link(path.Clean(strings.TrimLeft(h.Linkname, "/")), name)
	default:
		return fmt.Errorf("is neither a file nor a directory nor a link (type %q)", h.Typeflag)
	}
}

// parents makes the directories that lead to a file; each counts as a name,
// because one file's name may make thousands.
func parents(root *os.Root, dir string, left *budget) error {
	if _, err := root.Stat(dir); err == nil {
		return nil
	}
	if err := left.name(1 + strings.Count(dir, "/")); err != nil {
		return err
	}
	return root.MkdirAll(dir, 0o755)
}

// chmodDir sets a directory's mode by its descriptor: by name it takes a system
// call that is younger than the filters of many units.
func chmodDir(root *os.Root, name string, mode fs.FileMode) error {
	dir, err := root.Open(name)
	if err != nil {
		return err
	}
	return errors.Join(dir.Chmod(mode), dir.Close())
}

func regular(root *os.Root, name string, mode fs.FileMode, content io.Reader) (err error) {
	f, err := root.OpenFile(name, os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, f.Close()) }()
	if _, err := io.Copy(f, content); err != nil {
		return err
	}
	return f.Chmod(mode)
}

// empty removes everything in a directory of the layers below.
func empty(root *os.Root, dir string) error {
	f, err := root.Open(dir)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	names, err := f.Readdirnames(-1)
	if err := errors.Join(err, f.Close()); err != nil {
		return err
	}
	for _, n := range names {
		if err := root.RemoveAll(path.Join(dir, n)); err != nil {
			return err
		}
	}
	return nil
}
