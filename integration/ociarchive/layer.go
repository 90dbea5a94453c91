package ociarchive

import (
	"archive/tar"
	"bytes"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"os"
	"path"
	"slices"
	"strings"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/types"
)

// Layer is one layer of an image; make it with [Files] or [Rootfs].
type Layer struct {
	open    func() (io.ReadCloser, error)
	hash    v1.Hash
	size    int64
	comment string
}

// File is one file of a layer made by [Files].
type File struct {
	// Target is the absolute path in the image.
	Target string
	// Mode is the permission bits, for example 0o755. Owner is root.
	Mode int64
	// Content is the file's bytes.
	Content []byte
}

// Binary reads a program from this machine as an executable file of a layer.
func Binary(source, target string) (File, error) {
	content, err := os.ReadFile(source)
	if err != nil {
		return File{}, fmt.Errorf("program: %w", err)
	}
	return File{Target: target, Mode: 0o755, Content: content}, nil
}

// Files makes a layer of the given files and of the directories that lead to
// them (root, 0755). The directories in dirs are made too, for example
// "/tmp" as a mount point of a read-only root.
func Files(files []File, dirs ...string) (Layer, error) {
	var buf bytes.Buffer
	out := tar.NewWriter(&buf)
	made := map[string]bool{"/": true}
	for _, dir := range slices.Sorted(slices.Values(dirs)) {
		if err := writeDirs(out, made, dir); err != nil {
			return Layer{}, err
		}
	}
	sorted := slices.SortedFunc(slices.Values(files), func(a, b File) int { return strings.Compare(a.Target, b.Target) })
	for i, f := range sorted {
		if i > 0 && sorted[i-1].Target == f.Target {
			return Layer{}, fmt.Errorf("file %s is given twice", f.Target)
		}
		if !path.IsAbs(f.Target) || path.Clean(f.Target) != f.Target {
			return Layer{}, fmt.Errorf("path %s must be absolute and clean", f.Target)
		}
		if err := writeDirs(out, made, path.Dir(f.Target)); err != nil {
			return Layer{}, err
		}
		header := &tar.Header{
			Typeflag: tar.TypeReg, Name: strings.TrimPrefix(f.Target, "/"), Size: int64(len(f.Content)),
			Mode: f.Mode, ModTime: epoch, Format: tar.FormatPAX,
		}
		if err := out.WriteHeader(header); err != nil {
			return Layer{}, fmt.Errorf("file %s: %w", f.Target, err)
		}
		if _, err := out.Write(f.Content); err != nil {
			return Layer{}, fmt.Errorf("file %s: %w", f.Target, err)
		}
	}
	if err := out.Close(); err != nil {
		return Layer{}, err
	}
	data := buf.Bytes()
	return newLayer("files", func() (io.ReadCloser, error) { return io.NopCloser(bytes.NewReader(data)), nil })
}

// writeDirs writes dir and its parents, each once.
func writeDirs(out *tar.Writer, made map[string]bool, dir string) error {
	if !path.IsAbs(dir) || path.Clean(dir) != dir {
		return fmt.Errorf("path %s must be absolute and clean", dir)
	}
	if made[dir] {
		return nil
	}
	if err := writeDirs(out, made, path.Dir(dir)); err != nil {
		return err
	}
	made[dir] = true
	header := &tar.Header{
		Typeflag: tar.TypeDir, Name: strings.TrimPrefix(dir, "/") + "/", Mode: 0o755, ModTime: epoch, Format: tar.FormatPAX,
	}
	if err := out.WriteHeader(header); err != nil {
		return fmt.Errorf("directory %s: %w", dir, err)
	}
	return nil
}

// Rootfs makes a layer of a root file system in an uncompressed tar, byte for
// byte. The file is read again when the archive is written and must not change
// until then; a change is noticed and refused.
func Rootfs(tarFile string) (Layer, error) {
	if err := checkTar(tarFile); err != nil {
		return Layer{}, fmt.Errorf("root file system %s: %w", tarFile, err)
	}
	return newLayer("root file system", func() (io.ReadCloser, error) { return os.Open(tarFile) })
}

// checkTar refuses what is no uncompressed tar, a compressed one above all:
// it would become an image that no engine can unpack.
func checkTar(tarFile string) (err error) {
	f, err := os.Open(tarFile)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, f.Close()) }()
	if _, err := tar.NewReader(f).Next(); err != nil {
		return fmt.Errorf("is not an uncompressed tar: %w", err)
	}
	return nil
}

func newLayer(comment string, open func() (io.ReadCloser, error)) (layer Layer, err error) {
	r, err := open()
	if err != nil {
		return Layer{}, err
	}
	defer func() { err = errors.Join(err, r.Close()) }()
	hash, size, err := v1.SHA256(r)
	if err != nil {
		return Layer{}, err
	}
	return Layer{open: open, hash: hash, size: size, comment: comment}, nil
}

func (l Layer) oci() v1.Layer { return ociLayer{l} }

// ociLayer is an uncompressed layer: its digest and its diff id are one.
type ociLayer struct{ layer Layer }

func (o ociLayer) Digest() (v1.Hash, error)             { return o.layer.hash, nil }
func (o ociLayer) DiffID() (v1.Hash, error)             { return o.layer.hash, nil }
func (o ociLayer) Size() (int64, error)                 { return o.layer.size, nil }
func (o ociLayer) MediaType() (types.MediaType, error)  { return types.OCIUncompressedLayer, nil }
func (o ociLayer) Uncompressed() (io.ReadCloser, error) { return o.verified() }
func (o ociLayer) Compressed() (io.ReadCloser, error)   { return o.verified() }

// verified reads the layer and fails at its end when its bytes are not those
// that were hashed.
func (o ociLayer) verified() (io.ReadCloser, error) {
	r, err := o.layer.open()
	if err != nil {
		return nil, err
	}
	return &verifyReader{ReadCloser: r, hasher: sha256.New(), want: o.layer.hash.Hex}, nil
}
