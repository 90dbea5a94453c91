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

// Unpack writes the image's files below root, which is empty. After an error
// what it holds is worthless.
func (i *Image) Unpack(root *os.Root) error {
	budget := int64(MaxBytes)
	for n, d := range i.layers {
		if err := i.layer(root, d, &budget); err != nil {
			return fmt.Errorf("layer %d: %w", n+1, err)
		}
	}
	return nil
}

func (i *Image) layer(root *os.Root, d v1.Descriptor, budget *int64) error {
	b, err := i.blob(d)
	if err != nil {
		return err
	}
	var content io.Reader = b
	switch d.MediaType {
	case v1.MediaTypeImageLayer:
	case v1.MediaTypeImageLayerGzip:
		if content, err = gzip.NewReader(b); err != nil {
			return err
		}
	default:
		return fmt.Errorf("media type %q is neither %s nor the same with +gzip", d.MediaType, v1.MediaTypeImageLayer)
	}
	r := tar.NewReader(content)
	for n := 0; ; n++ {
		h, err := r.Next()
		if errors.Is(err, io.EOF) {
			return b.verify()
		}
		if err != nil {
			return err
		}
		if n == maxEntries {
			return fmt.Errorf("more than %d files", maxEntries)
		}
		if *budget -= h.Size; *budget < 0 {
			return fmt.Errorf("the image unpacks to more than %d bytes", int64(MaxBytes))
		}
		if err := entry(root, h, r); err != nil {
			return fmt.Errorf("%s: %w", h.Name, err)
		}
	}
}

// entry makes one file; a later one replaces an earlier of the same name.
func entry(root *os.Root, h *tar.Header, content io.Reader) error {
	name := path.Clean(strings.TrimLeft(h.Name, "/"))
	if name == "." {
		return nil
	}
	dir, base := path.Split(name)
	if base == opaque {
		return empty(root, path.Clean(dir))
	}
	if removed, ok := strings.CutPrefix(base, whiteout); ok {
		return root.RemoveAll(path.Join(dir, removed))
	}
	if dir != "" {
		if err := root.MkdirAll(path.Clean(dir), 0o755); err != nil {
			return err
		}
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
