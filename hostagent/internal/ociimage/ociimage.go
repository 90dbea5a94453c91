// Package ociimage reads an image of an OCI archive (a tar of an image layout)
// on this machine and unpacks it into a directory, without an engine.
//
// It owns the way from the archive's index over digests to files, and the bounds
// on it. It must not know what the image is for, run anything, or believe a
// byte whose digest it did not compute.
//
//	index.json ─► manifest ─► config
//	                      └─► layers, in order ─► files below one directory
//
// # What it refuses
//
// Archives come with a package or from an administrator, and are read as root:
// everything that is not plainly an image of this architecture is an error.
// That is more than one image, a blob whose bytes have another digest or size,
// a layer compressed otherwise than by gzip, a name that leaves the directory
// (the kernel refuses it: every name is resolved below one open directory), device
// nodes, and more of anything than the bounds below. Owners, times and set-user-ID bits in layers have no effect:
// every file is root's, and the program that uses it gains nothing by it.
package ociimage

import (
	"archive/tar"
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path"
	"runtime"

	"github.com/opencontainers/go-digest"
	v1 "github.com/opencontainers/image-spec/specs-go/v1"
)

// Bounds of what is read (I33).
const (
	maxJSON    = 1 << 20 // bytes of an index, a manifest or a config
	maxEntries = 1 << 16 // files of the archive; names of all layers together
	maxName    = 4096    // bytes of a name, as the kernel bounds a path
	maxLayers  = 128     // layers of an image
	// MaxBytes is the most that one image may unpack to. Out of its layers may
	// come twice as much: headers and padding.
	MaxBytes = 512 << 20
)

// Image is an image in an archive that stays open until Close.
type Image struct {
	// Digest is the digest of the image's manifest.
	Digest digest.Digest
	// Entrypoint is the command that the image was made for, at least one word.
	Entrypoint []string

	file   *os.File
	blobs  map[string]*io.SectionReader // by their path in the archive
	layers []v1.Descriptor
	most   budget
}

// Open reads the archive's index and the manifest and config of its one image
// for this architecture.
func Open(file string) (_ *Image, err error) {
	f, err := os.Open(file)
	if err != nil {
		return nil, fmt.Errorf("archive: %w", err)
	}
	i := &Image{file: f, most: budget{bytes: MaxBytes, stream: 2 * MaxBytes, names: maxEntries}}
	if err := i.read(); err != nil {
		return nil, errors.Join(fmt.Errorf("archive %s: %w", file, err), f.Close())
	}
	return i, nil
}

// Close closes the archive.
func (i *Image) Close() error { return i.file.Close() }

func (i *Image) read() error {
	if err := i.list(); err != nil {
		return err
	}
	var layout v1.ImageLayout
	if err := i.decode("oci-layout", &layout); err != nil {
		return err
	}
	if layout.Version != v1.ImageLayoutVersion {
		return fmt.Errorf("oci-layout: imageLayoutVersion is %q, expected %q", layout.Version, v1.ImageLayoutVersion)
	}
	var index v1.Index
	if err := i.decode("index.json", &index); err != nil {
		return err
	}
	manifest, err := i.manifest(index)
	if err != nil {
		return err
	}
	var config v1.Image
	if err := i.decodeBlob(manifest.Config, &config); err != nil {
		return fmt.Errorf("config: %w", err)
	}
	if config.OS != "linux" || config.Architecture != runtime.GOARCH {
		return fmt.Errorf("the image is for %s/%s, this machine is linux/%s", config.OS, config.Architecture, runtime.GOARCH)
	}
	if len(config.Config.Entrypoint) == 0 {
		return errors.New("config: no Entrypoint: the image names no program")
	}
	i.Entrypoint, i.layers = config.Config.Entrypoint, manifest.Layers
	return nil
}

// manifest finds the one image that may run here.
func (i *Image) manifest(index v1.Index) (m v1.Manifest, err error) {
	var fitting []v1.Descriptor
	for _, d := range index.Manifests {
		if d.MediaType == v1.MediaTypeImageManifest && (d.Platform == nil || d.Platform.Architecture == runtime.GOARCH) {
			fitting = append(fitting, d)
		}
	}
	if len(fitting) != 1 {
		return m, fmt.Errorf("index.json: %d images for %s, expected one", len(fitting), runtime.GOARCH)
	}
	i.Digest = fitting[0].Digest
	if err := i.decodeBlob(fitting[0], &m); err != nil {
		return m, fmt.Errorf("manifest: %w", err)
	}
	if len(m.Layers) == 0 {
		return m, errors.New("manifest: no layers")
	}
	if len(m.Layers) > maxLayers {
		return m, fmt.Errorf("manifest: %d layers, at most %d are read", len(m.Layers), maxLayers)
	}
	return m, nil
}

// list notes where each file of the archive lies in it.
func (i *Image) list() error {
	i.blobs = map[string]*io.SectionReader{}
	counted := &position{file: i.file}
	for r := tar.NewReader(counted); ; {
		h, err := r.Next()
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return fmt.Errorf("is not an uncompressed tar: %w", err)
		}
		if h.Typeflag != tar.TypeReg {
			continue
		}
		if err := checkName(h.Name); err != nil {
			return err
		}
		name := path.Clean(h.Name)
		if _, twice := i.blobs[name]; twice {
			return fmt.Errorf("%s is there twice", name)
		}
		if len(i.blobs) == maxEntries {
			return fmt.Errorf("more than %d files", maxEntries)
		}
		i.blobs[name] = io.NewSectionReader(i.file, counted.at, h.Size)
	}
}

// checkName bounds a name before it is kept, made, or part of an error.
func checkName(name string) error {
	if len(name) > maxName {
		return fmt.Errorf("a name has %d bytes, at most %d are read: %.64q…", len(name), maxName, name)
	}
	return nil
}

// position knows how far a tar reader has come: after Next it stands at the
// file's first byte, because tar reads in whole blocks and seeks over the rest.
type position struct {
	file *os.File
	at   int64
}

func (p *position) Read(b []byte) (int, error) {
	n, err := p.file.ReadAt(b, p.at)
	p.at += int64(n)
	return n, err
}

// decode reads a file of the archive that no digest covers: the two with which
// every reading begins.
func (i *Image) decode(name string, into any) error {
	section, ok := i.blobs[name]
	if !ok {
		return fmt.Errorf("%s is missing: this is no OCI archive", name)
	}
	if section.Size() > maxJSON {
		return fmt.Errorf("%s has more than %d bytes", name, maxJSON)
	}
	data, err := io.ReadAll(section)
	if err != nil {
		return fmt.Errorf("%s: %w", name, err)
	}
	if err := json.Unmarshal(data, into); err != nil {
		return fmt.Errorf("%s: %w", name, err)
	}
	return nil
}

func (i *Image) decodeBlob(d v1.Descriptor, into any) error {
	if d.Size > maxJSON {
		return fmt.Errorf("has more than %d bytes", maxJSON)
	}
	blob, err := i.blob(d)
	if err != nil {
		return err
	}
	var data bytes.Buffer
	if _, err := data.ReadFrom(blob); err != nil {
		return err
	}
	if err := blob.verify(); err != nil {
		return err
	}
	return json.Unmarshal(data.Bytes(), into)
}

// blob is one content-addressed file as it is read; nothing that came out of it
// may be used before verify said so.
type blob struct {
	io.Reader
	all      io.Reader
	digest   digest.Digest
	verifier digest.Verifier
}

func (i *Image) blob(d v1.Descriptor) (*blob, error) {
	if err := d.Digest.Validate(); err != nil {
		return nil, fmt.Errorf("digest: %w", err)
	}
	section, ok := i.blobs["blobs/"+d.Digest.Algorithm().String()+"/"+d.Digest.Encoded()]
	if !ok {
		return nil, fmt.Errorf("%s is missing", d.Digest)
	}
	if section.Size() != d.Size {
		return nil, fmt.Errorf("%s has %d bytes, expected %d", d.Digest, section.Size(), d.Size)
	}
	verifier := d.Digest.Verifier()
	all := io.TeeReader(io.NewSectionReader(section, 0, section.Size()), verifier)
	return &blob{Reader: all, all: all, digest: d.Digest, verifier: verifier}, nil
}

// verify reads what a decoder left over and compares the digest.
func (b *blob) verify() error {
	if _, err := io.Copy(io.Discard, b.all); err != nil {
		return err
	}
	if !b.verifier.Verified() {
		return fmt.Errorf("the bytes of %s have another digest", b.digest)
	}
	return nil
}
