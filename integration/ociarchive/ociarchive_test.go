package ociarchive

import (
	"archive/tar"
	"bytes"
	"encoding/json"
	"errors"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-containerregistry/pkg/v1/layout"
	"github.com/google/go-containerregistry/pkg/v1/validate"

	"github.com/quittance/quittance/protocol"
)

func testImage(t *testing.T) Image {
	t.Helper()
	files, err := Files([]File{
		{Target: "/usr/bin/worker", Mode: 0o755, Content: []byte("program")},
		{Target: "/etc/worker.conf", Mode: 0o644, Content: []byte("a = 1\n")},
	}, "/tmp")
	if err != nil {
		t.Fatal(err)
	}
	return Image{
		Name: "worker", Layers: []Layer{files}, Entrypoint: []string{"/usr/bin/worker"},
		Env: []string{"A=1"}, User: "65532:65532",
	}
}

// unpack extracts an archive made by Write and returns its entries in order.
func unpack(t *testing.T, archive, dir string) []string {
	t.Helper()
	f, err := os.Open(archive)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	var names []string
	r := tar.NewReader(f)
	for {
		h, err := r.Next()
		if errors.Is(err, io.EOF) {
			return names
		}
		if err != nil {
			t.Fatal(err)
		}
		names = append(names, h.Name)
		target := filepath.Join(dir, h.Name)
		if h.Typeflag == tar.TypeDir {
			if err := os.MkdirAll(target, 0o755); err != nil {
				t.Fatal(err)
			}
			continue
		}
		content, err := io.ReadAll(r)
		if err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(target, content, 0o644); err != nil {
			t.Fatal(err)
		}
	}
}

// The archive is a valid image layout by another implementation's judgement,
// and its index names exactly the reference that Write returned.
func TestWriteMakesValidLayout(t *testing.T) {
	archive := filepath.Join(t.TempDir(), "worker.tar")
	written, err := Write(archive, testImage(t))
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	names := unpack(t, archive, dir)
	if !slices.Equal(names[:4], []string{"oci-layout", "index.json", "blobs/", "blobs/sha256/"}) || len(names) != 7 {
		t.Errorf("entries %q", names)
	}
	index, err := layout.ImageIndexFromPath(dir)
	if err != nil {
		t.Fatal(err)
	}
	// Fast, because that implementation expects gzip inside every layer; the
	// layer's own bytes are compared in the tests below.
	if err := validate.Index(index, validate.Fast); err != nil {
		t.Error(err)
	}
	manifest, err := index.IndexManifest()
	if err != nil {
		t.Fatal(err)
	}
	if len(manifest.Manifests) != 1 {
		t.Fatalf("%d manifests", len(manifest.Manifests))
	}
	top := manifest.Manifests[0]
	if top.Annotations[nameAnnotation] != written.Ref || written.Ref != "quittance.local/worker@"+string(written.Digest) {
		t.Errorf("name %q, ref %q, digest %q", top.Annotations[nameAnnotation], written.Ref, written.Digest)
	}
	raw, err := os.ReadFile(filepath.Join(dir, "blobs/sha256", written.Digest.Hex()))
	if err != nil || protocol.DigestOf(raw) != written.Digest {
		t.Errorf("manifest blob: digest %s, error %v", protocol.DigestOf(raw), err)
	}
	image, err := index.Image(top.Digest)
	if err != nil {
		t.Fatal(err)
	}
	config, err := image.ConfigFile()
	if err != nil {
		t.Fatal(err)
	}
	if config.OS != "linux" || config.Config.User != "65532:65532" || config.Config.WorkingDir != "/" ||
		!slices.Equal(config.Config.Entrypoint, []string{"/usr/bin/worker"}) || !slices.Equal(config.Config.Env, []string{"A=1"}) {
		t.Errorf("config %+v", config)
	}
}

func TestWriteIsReproducible(t *testing.T) {
	read := func() []byte {
		archive := filepath.Join(t.TempDir(), "worker.tar")
		written, err := Write(archive, testImage(t))
		if err != nil {
			t.Fatal(err)
		}
		content, err := os.ReadFile(archive)
		if err != nil || int64(len(content)) != written.Bytes {
			t.Fatalf("%d bytes, announced %d, error %v", len(content), written.Bytes, err)
		}
		return content
	}
	if !bytes.Equal(read(), read()) {
		t.Error("two archives of one image differ")
	}
}

func TestFilesLayerContent(t *testing.T) {
	layer := testImage(t).Layers[0]
	r, err := layer.open()
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	var got []string
	for reader := tar.NewReader(r); ; {
		h, err := reader.Next()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			t.Fatal(err)
		}
		got = append(got, h.FileInfo().Mode().String()+" "+h.Name)
		if h.Uid != 0 || h.Gid != 0 || !h.ModTime.Equal(epoch) {
			t.Errorf("%s: owner %d:%d, time %v", h.Name, h.Uid, h.Gid, h.ModTime)
		}
	}
	want := []string{
		"drwxr-xr-x tmp/", "drwxr-xr-x etc/", "-rw-r--r-- etc/worker.conf",
		"drwxr-xr-x usr/", "drwxr-xr-x usr/bin/", "-rwxr-xr-x usr/bin/worker",
	}
	if !slices.Equal(got, want) {
		t.Errorf("got  %q\nwant %q", got, want)
	}
}

func TestRefusals(t *testing.T) {
	good := testImage(t)
	for name, image := range map[string]Image{
		"upper case":        {Name: "Worker", Layers: good.Layers},
		"path":              {Name: "../worker", Layers: good.Layers},
		"no name":           {Layers: good.Layers},
		"no layer":          {Name: "worker"},
		"layer not made by": {Name: "worker", Layers: make([]Layer, 1)},
	} {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			if _, err := Write(filepath.Join(dir, "x.tar"), image); err == nil {
				t.Error("accepted")
			}
			if left, err := os.ReadDir(dir); err != nil || len(left) != 0 {
				t.Errorf("left %v, error %v", left, err)
			}
		})
	}
	for name, files := range map[string][]File{
		"relative": {{Target: "bin/x"}},
		"unclean":  {{Target: "/bin/../x/y"}},
		"twice":    {{Target: "/x"}, {Target: "/x"}},
	} {
		if _, err := Files(files); err == nil {
			t.Errorf("Files accepted %s", name)
		}
	}
}

func TestRootfs(t *testing.T) {
	dir := t.TempDir()
	source := filepath.Join(dir, "root.tar")
	write := func(content string) {
		t.Helper()
		var buf bytes.Buffer
		w := tar.NewWriter(&buf)
		header := &tar.Header{Typeflag: tar.TypeReg, Name: "etc/motd", Mode: 0o644, Size: int64(len(content))}
		if err := errors.Join(w.WriteHeader(header), func() error { _, err := io.WriteString(w, content); return err }(), w.Close()); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(source, buf.Bytes(), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	write("first")
	layer, err := Rootfs(source)
	if err != nil {
		t.Fatal(err)
	}
	archive := filepath.Join(dir, "a.tar")
	written, err := Write(archive, Image{Name: "motd", Layers: []Layer{layer}})
	if err != nil {
		t.Fatal(err)
	}
	out := t.TempDir()
	unpack(t, archive, out)
	raw, err := os.ReadFile(filepath.Join(out, "blobs/sha256", written.Digest.Hex()))
	if err != nil {
		t.Fatal(err)
	}
	var manifest struct {
		Layers []struct {
			Digest    string `json:"digest"`
			MediaType string `json:"mediaType"`
		} `json:"layers"`
	}
	if err := json.Unmarshal(raw, &manifest); err != nil {
		t.Fatal(err)
	}
	original, err := os.ReadFile(source)
	if err != nil {
		t.Fatal(err)
	}
	if len(manifest.Layers) != 1 || manifest.Layers[0].Digest != string(protocol.DigestOf(original)) ||
		manifest.Layers[0].MediaType != "application/vnd.oci.image.layer.v1.tar" {
		t.Errorf("layers %+v", manifest.Layers)
	}

	write("other") // the same length: only the digest can tell
	if _, err := Write(archive, Image{Name: "motd", Layers: []Layer{layer}}); err == nil || !strings.Contains(err.Error(), "changed") {
		t.Errorf("a changed layer: %v", err)
	}
	if err := os.WriteFile(source, []byte{0x1f, 0x8b, 8, 0}, 0o644); err != nil {
		t.Fatal(err)
	}
	if _, err := Rootfs(source); err == nil || !strings.Contains(err.Error(), "uncompressed tar") {
		t.Errorf("a compressed tar: %v", err)
	}
}

func TestBinaryMissing(t *testing.T) {
	if _, err := Binary(filepath.Join(t.TempDir(), "none"), "/x"); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("error %v", err)
	}
}
