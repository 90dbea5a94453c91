package engine

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strings"

	containerd "github.com/containerd/containerd/v2/client"
	"github.com/containerd/containerd/v2/core/images"
	"github.com/containerd/errdefs"
	"github.com/opencontainers/image-spec/identity"
	"github.com/quittance/quittance/protocol"
)

// ResolveImage checks that name@digest is present under that name, that it is
// what the digest says, and that it is unpacked. Otherwise the error wraps
// [ErrImage] and has the command that mends it.
//
// What a digest means never changes, so once resolved only the presence of the
// unpacked layers is asked for again.
func (e *Engine) ResolveImage(ctx context.Context, reference string) (Image, error) {
	call, cancel := e.call(ctx, e.o.Deadlines.Read)
	defer cancel()
	_, digest, ok := splitReference(reference)
	if !ok {
		return Image{}, fmt.Errorf("%w: %s must be name@sha256:…; `hostagent image import` prints it", ErrImage, reference)
	}
	if image, known := e.resolved(reference); known {
		_, err := e.client.SnapshotService(e.o.Snapshotter).Stat(call, image.ChainID)
		if err == nil {
			return image, nil
		}
		if !errdefs.IsNotFound(err) {
			return Image{}, fmt.Errorf("engine: image %s: %w", reference, native(err))
		}
	}
	image, err := e.resolve(call, reference, digest)
	if err != nil {
		return Image{}, err
	}
	e.remember(image)
	return image, nil
}

// maxResolved bounds the memory of resolved images: one per profile, normally.
const maxResolved = 256

func (e *Engine) resolved(reference string) (Image, bool) {
	e.mu.Lock()
	defer e.mu.Unlock()
	image, known := e.images[reference]
	return image, known
}

func (e *Engine) remember(image Image) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.images == nil || len(e.images) >= maxResolved {
		e.images = map[string]Image{}
	}
	e.images[image.Reference] = image
}

// resolve reads manifest and configuration to find the layers.
func (e *Engine) resolve(ctx context.Context, reference string, digest protocol.Digest) (Image, error) {
	record, err := e.client.ImageService().Get(ctx, reference)
	if errdefs.IsNotFound(err) {
		return Image{}, fmt.Errorf("%w: %s is not on this machine; run `hostagent image import FILE` or `hostagent image pull %s`", ErrImage, reference, reference)
	}
	if err != nil {
		return Image{}, fmt.Errorf("engine: image %s: %w", reference, native(err))
	}
	if record.Target.Digest.String() != string(digest) {
		return Image{}, fmt.Errorf("%w: the engine has another image under the name %s; remove that name and import again", ErrImage, reference)
	}
	image := containerd.NewImage(e.client, record)
	layers, err := image.RootFS(ctx)
	if errdefs.IsNotFound(err) {
		return Image{}, fmt.Errorf("%w: parts of %s are missing, or it is for another platform; import it again", ErrImage, reference)
	}
	if err != nil {
		return Image{}, fmt.Errorf("engine: image %s: %w", reference, native(err))
	}
	chain := identity.ChainID(layers).String()
	if _, err := e.client.SnapshotService(e.o.Snapshotter).Stat(ctx, chain); err != nil {
		if errdefs.IsNotFound(err) {
			return Image{}, fmt.Errorf("%w: %s is not unpacked; run `hostagent image import FILE` again", ErrImage, reference)
		}
		return Image{}, fmt.Errorf("engine: image %s: %w", reference, native(err))
	}
	return Image{Reference: reference, Digest: digest, ChainID: chain}, nil
}

// ImportImage loads an OCI or Docker archive, unpacks it and pins each image
// under name@digest. An archive without a name is refused: nothing could
// refer to it.
func (e *Engine) ImportImage(ctx context.Context, file string) (_ []Imported, err error) {
	call, cancel := e.call(ctx, e.o.Deadlines.Image)
	defer cancel()
	archive, err := os.Open(file)
	if err != nil {
		return nil, fmt.Errorf("image archive: %w", err)
	}
	defer func() { err = errors.Join(err, archive.Close()) }()
	records, err := e.client.Import(call, archive)
	if err != nil {
		return nil, fmt.Errorf("image archive %s: %w", file, native(err))
	}
	if len(records) == 0 {
		return nil, fmt.Errorf("image archive %s: no image in it has a name; write one into its index", file)
	}
	var out []Imported
	for _, record := range records {
		imported, err := e.pin(call, containerd.NewImage(e.client, record))
		if err != nil {
			return nil, err
		}
		out = append(out, imported)
	}
	return out, nil
}

// PullImage fetches an image with containerd's own resolver, unpacks it and
// pins it under name@digest.
func (e *Engine) PullImage(ctx context.Context, reference string) (Imported, error) {
	call, cancel := e.call(ctx, e.o.Deadlines.Image)
	defer cancel()
	image, err := e.client.Pull(call, reference, containerd.WithPullSnapshotter(e.o.Snapshotter))
	if err != nil {
		return Imported{}, fmt.Errorf("image %s: %w", reference, native(err))
	}
	return e.pin(call, image)
}

// pin unpacks an image and gives it the name that profiles use.
func (e *Engine) pin(ctx context.Context, image containerd.Image) (Imported, error) {
	if err := image.Unpack(ctx, e.o.Snapshotter); err != nil {
		return Imported{}, fmt.Errorf("image %s: unpack: %w", image.Name(), native(err))
	}
	target := image.Target()
	out := Imported{Name: image.Name(), Digest: protocol.Digest(target.Digest), Pinned: PinnedName(image.Name(), protocol.Digest(target.Digest))}
	if out.Pinned == image.Name() {
		return out, nil
	}
	pinned := images.Image{Name: out.Pinned, Target: target}
	if _, err := e.client.ImageService().Create(ctx, pinned); err != nil && !errdefs.IsAlreadyExists(err) {
		return Imported{}, fmt.Errorf("image %s: pin: %w", image.Name(), native(err))
	}
	return out, nil
}

// PinnedName is the name with its tag or digest replaced by the digest.
func PinnedName(name string, digest protocol.Digest) string {
	name, _, _ = strings.Cut(name, "@")
	if colon := strings.LastIndexByte(name, ':'); colon > strings.LastIndexByte(name, '/') {
		name = name[:colon]
	}
	return name + "@" + string(digest)
}

func splitReference(reference string) (name string, digest protocol.Digest, ok bool) {
	name, after, found := strings.Cut(reference, "@")
	digest = protocol.Digest(after)
	return name, digest, found && name != "" && digest.Valid()
}
