// Package ociarchive packs worker images without a registry: it makes an OCI
// image-layout archive of one image from files and root file systems on this
// machine, reproducibly, and says which reference pins it.
//
// It owns the archive's bytes and the name that goes into it. It must not know
// what the image is for, and it never talks to an engine or a network.
//
// # The archive
//
// A tar with oci-layout, index.json and blobs/sha256/…: what containerd's
// Import, from Debian's 1.6 to 2.x, and every other OCI tool reads. Layers are
// kept uncompressed: they travel no further than the machine's own disk, and
// compressors differ in their bytes between versions. The image's name in the
// archive is its digest reference, so that importing it makes exactly the
// reference that a profile pins.
package ociarchive

import (
	"archive/tar"
	"bytes"
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"runtime"
	"slices"
	"time"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/types"

	"github.com/quittance/quittance/protocol"
)

// Host is the pretended registry of all images made here. Nothing ever
// resolves it: images are imported, not pulled.
const Host = "quittance.local"

// nameAnnotation is what containerd's importer takes an image's name from.
const nameAnnotation = "io.containerd.image.name"

// epoch is every time in an archive, so that the same input gives the same
// bytes.
var epoch = time.Unix(0, 0).UTC()

// Image describes one image.
type Image struct {
	// Name is the repository below [Host], for example "ocr": lower-case
	// letters, digits and single hyphens.
	Name string
	// Layers lie over each other in order. There is at least one.
	Layers []Layer
	// Entrypoint is the image's default command. Profiles carry their own.
	Entrypoint []string
	// Env is the image's environment, each NAME=VALUE.
	Env []string
	// User is the default user, for example "65532:65532".
	User string
	// WorkDir is the default working directory; "" means /.
	WorkDir string
	// Architecture is that of the programs inside, as Go names it; "" means
	// this machine's.
	Architecture string
}

func (i Image) architecture() string { return cmp.Or(i.Architecture, runtime.GOARCH) }

// Written identifies an image in an archive.
type Written struct {
	// Ref pins the image: quittance.local/name@sha256:….
	Ref string `json:"ref"`
	// Digest is the digest of the image's manifest.
	Digest protocol.Digest `json:"digest"`
	// Bytes is the size of the archive.
	Bytes int64 `json:"bytes"`
}

var nameForm = regexp.MustCompile(`^[a-z0-9]+(-[a-z0-9]+)*$`)

// Write makes the archive of image at path, replacing an older one only when
// the new one is whole. The same input gives the same bytes on every machine
// of the same architecture.
func Write(path string, image Image) (written Written, err error) {
	made, err := build(image)
	if err != nil {
		return Written{}, fmt.Errorf("image %s: %w", image.Name, err)
	}
	digest, err := made.Digest()
	if err != nil {
		return Written{}, fmt.Errorf("image %s: %w", image.Name, err)
	}
	ref := Host + "/" + image.Name + "@" + digest.String()

	f, err := os.CreateTemp(filepath.Dir(path), ".ociarchive-*")
	if err != nil {
		return Written{}, fmt.Errorf("archive: %w", err)
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, f.Close(), removeIfThere(f.Name()))
		}
	}()
	if err := writeLayout(f, made, ref, image.architecture()); err != nil {
		return Written{}, fmt.Errorf("archive %s: %w", path, err)
	}
	info, err := f.Stat()
	if err != nil {
		return Written{}, fmt.Errorf("archive %s: %w", path, err)
	}
	if err := f.Chmod(0o644); err != nil {
		return Written{}, fmt.Errorf("archive %s: %w", path, err)
	}
	if err := f.Close(); err != nil {
		return Written{}, fmt.Errorf("archive %s: %w", path, err)
	}
	if err := os.Rename(f.Name(), path); err != nil {
		return Written{}, fmt.Errorf("archive: %w", err)
	}
	return Written{Ref: ref, Digest: protocol.Digest(digest.String()), Bytes: info.Size()}, nil
}

func removeIfThere(path string) error {
	if err := os.Remove(path); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	return nil
}

func build(image Image) (v1.Image, error) {
	if !nameForm.MatchString(image.Name) {
		return nil, errors.New("name must be lower-case letters, digits and single hyphens")
	}
	if len(image.Layers) == 0 {
		return nil, errors.New("an image needs at least one layer")
	}
	made := mutate.MediaType(empty.Image, types.OCIManifestSchema1)
	made = mutate.ConfigMediaType(made, types.OCIConfigJSON)
	for i, layer := range image.Layers {
		if layer.open == nil {
			return nil, fmt.Errorf("layer %d is empty", i)
		}
		next, err := mutate.Append(made, mutate.Addendum{
			Layer:   layer.oci(),
			History: v1.History{Created: v1.Time{Time: epoch}, CreatedBy: layer.comment},
		})
		if err != nil {
			return nil, fmt.Errorf("layer %d: %w", i, err)
		}
		made = next
	}
	return mutate.ConfigFile(made, configFile(made, image))
}

func configFile(made v1.Image, image Image) *v1.ConfigFile {
	config, err := made.ConfigFile()
	if err != nil {
		// The image lives in memory and was made three lines above.
		panic(fmt.Sprintf("ociarchive: config of our own image: %v", err))
	}
	config = config.DeepCopy()
	config.OS, config.Architecture = "linux", image.architecture()
	config.Created = v1.Time{Time: epoch}
	config.Config = v1.Config{
		Entrypoint: image.Entrypoint,
		Env:        image.Env,
		User:       image.User,
		WorkingDir: cmp.Or(image.WorkDir, "/"),
	}
	return config
}

// writeLayout writes the image layout as a tar: fixed order, fixed headers.
func writeLayout(w io.Writer, made v1.Image, ref, architecture string) error {
	index := mutate.IndexMediaType(empty.Index, types.OCIImageIndex)
	index = mutate.AppendManifests(index, mutate.IndexAddendum{
		Add: made,
		Descriptor: v1.Descriptor{
			Annotations: map[string]string{nameAnnotation: ref},
			Platform:    &v1.Platform{OS: "linux", Architecture: architecture},
		},
	})
	indexJSON, err := index.RawManifest()
	if err != nil {
		return err
	}
	manifest, err := made.RawManifest()
	if err != nil {
		return err
	}
	config, err := made.RawConfigFile()
	if err != nil {
		return err
	}
	layout, err := json.Marshal(map[string]string{"imageLayoutVersion": "1.0.0"})
	if err != nil {
		return err
	}
	blobs, err := collect(made, manifest, config)
	if err != nil {
		return err
	}

	out := tar.NewWriter(w)
	if err := writeFile(out, "oci-layout", int64(len(layout)), bytes.NewReader(layout)); err != nil {
		return err
	}
	if err := writeFile(out, "index.json", int64(len(indexJSON)), bytes.NewReader(indexJSON)); err != nil {
		return err
	}
	for _, dir := range []string{"blobs/", "blobs/sha256/"} {
		header := &tar.Header{Typeflag: tar.TypeDir, Name: dir, Mode: 0o755, ModTime: epoch, Format: tar.FormatPAX}
		if err := out.WriteHeader(header); err != nil {
			return err
		}
	}
	for _, b := range blobs {
		if err := b.write(out); err != nil {
			return fmt.Errorf("blob %s: %w", b.hash, err)
		}
	}
	return out.Close()
}

// blob is one content-addressed file of the layout.
type blob struct {
	hash v1.Hash
	size int64
	open func() (io.ReadCloser, error)
}

// collect lists the image's blobs, each once, sorted by digest.
func collect(made v1.Image, manifest, config []byte) ([]blob, error) {
	inMemory := func(data []byte) (blob, error) {
		hash, size, err := v1.SHA256(bytes.NewReader(data))
		return blob{hash, size, func() (io.ReadCloser, error) { return io.NopCloser(bytes.NewReader(data)), nil }}, err
	}
	var blobs []blob
	for _, data := range [][]byte{manifest, config} {
		b, err := inMemory(data)
		if err != nil {
			return nil, err
		}
		blobs = append(blobs, b)
	}
	layers, err := made.Layers()
	if err != nil {
		return nil, err
	}
	for _, layer := range layers {
		hash, err := layer.Digest()
		if err != nil {
			return nil, err
		}
		size, err := layer.Size()
		if err != nil {
			return nil, err
		}
		blobs = append(blobs, blob{hash, size, layer.Compressed})
	}
	slices.SortFunc(blobs, func(a, b blob) int { return cmp.Compare(a.hash.Hex, b.hash.Hex) })
	return slices.CompactFunc(blobs, func(a, b blob) bool { return a.hash == b.hash }), nil
}

func (b blob) write(out *tar.Writer) (err error) {
	r, err := b.open()
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, r.Close()) }()
	return writeFile(out, "blobs/"+b.hash.Algorithm+"/"+b.hash.Hex, b.size, r)
}

// writeFile writes one regular file; it fails when the content is not exactly
// size bytes long (a source that changed while it was read).
func writeFile(out *tar.Writer, name string, size int64, content io.Reader) error {
	header := &tar.Header{Typeflag: tar.TypeReg, Name: name, Size: size, Mode: 0o644, ModTime: epoch, Format: tar.FormatPAX}
	if err := out.WriteHeader(header); err != nil {
		return err
	}
	n, err := io.Copy(out, content)
	if err != nil {
		return err
	}
	if n != size {
		return fmt.Errorf("%s: %d bytes where %d were announced", name, n, size)
	}
	return nil
}
