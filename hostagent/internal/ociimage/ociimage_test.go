package ociimage_test

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"encoding/json"
	"errors"
	"io"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"

	"github.com/opencontainers/go-digest"
	v1 "github.com/opencontainers/image-spec/specs-go/v1"

	"github.com/quittance/quittance/hostagent/internal/ociimage"
	"github.com/quittance/quittance/integration/ociarchive"
)

func unpack(t *testing.T, archive string) (dir string, err error) {
	t.Helper()
	image, err := ociimage.Open(archive)
	if err != nil {
		return "", err
	}
	dir = t.TempDir()
	root, err := os.OpenRoot(dir)
	if err != nil {
		t.Fatal(err)
	}
	defer root.Close()
	return dir, errors.Join(image.Unpack(root), image.Close())
}

// What this project's writer packs is unpacked: content, modes, command.
func TestUnpackWhatWasPacked(t *testing.T) {
	layer, err := ociarchive.Files([]ociarchive.File{
		{Target: "/usr/bin/controller", Mode: 0o755, Content: []byte("program")}, {Target: "/etc/x", Mode: 0o640, Content: []byte("x")},
	}, "/tmp")
	if err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(t.TempDir(), "a.tar")
	written, err := ociarchive.Write(file, ociarchive.Image{Name: "controller", Layers: []ociarchive.Layer{layer}, Entrypoint: []string{"/usr/bin/controller"}})
	if err != nil {
		t.Fatal(err)
	}
	image, err := ociimage.Open(file)
	if err != nil {
		t.Fatal(err)
	}
	if string(image.Digest) != string(written.Digest) || strings.Join(image.Entrypoint, " ") != "/usr/bin/controller" {
		t.Errorf("image %s with %q, want %s", image.Digest, image.Entrypoint, written.Digest)
	}
	if err := image.Close(); err != nil {
		t.Fatal(err)
	}
	dir, err := unpack(t, file)
	if err != nil {
		t.Fatal(err)
	}
	for name, want := range map[string]os.FileMode{"usr/bin/controller": 0o755, "etc/x": 0o640, "tmp": 0o755 | os.ModeDir} {
		info, err := os.Stat(filepath.Join(dir, name))
		if err != nil || info.Mode() != want {
			t.Errorf("%s: %v, %v, want %s", name, info, err, want)
		}
	}
	if text, err := os.ReadFile(filepath.Join(dir, "usr/bin/controller")); string(text) != "program" {
		t.Errorf("%q, %v", text, err)
	}
}

// entry is one file of a layer or an archive.
type entry struct {
	kind          byte
	name, content string // content is the target of a link
	mode          int64
}

func tarOf(t testing.TB, entries ...entry) []byte {
	t.Helper()
	var out bytes.Buffer
	w := tar.NewWriter(&out)
	for _, e := range entries {
		h := &tar.Header{Typeflag: e.kind, Name: e.name, Mode: e.mode}
		if h.Mode == 0 {
			h.Mode = 0o644
		}
		if e.kind == tar.TypeReg {
			h.Size = int64(len(e.content))
		} else {
			h.Linkname = e.content
		}
		if err := w.WriteHeader(h); err != nil {
			t.Fatal(err)
		}
		if e.kind == tar.TypeReg {
			if _, err := io.WriteString(w, e.content); err != nil {
				t.Fatal(err)
			}
		}
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	return out.Bytes()
}

// image is an archive as it is spoilt by a test before it is written.
type image struct {
	layers    [][]byte
	mediaType string
	config    v1.Image
	index     v1.Index
	files     map[string][]byte
}

// write makes an archive; change is called with everything in place.
func write(t testing.TB, i image, change func(*image)) string {
	t.Helper()
	i.files = map[string][]byte{"oci-layout": []byte(`{"imageLayoutVersion":"1.0.0"}`)}
	blob := func(mediaType string, data []byte) v1.Descriptor {
		d := digest.FromBytes(data)
		i.files["blobs/sha256/"+d.Encoded()] = data
		return v1.Descriptor{MediaType: mediaType, Digest: d, Size: int64(len(data))}
	}
	encode := func(value any) []byte {
		data, err := json.Marshal(value)
		if err != nil {
			t.Fatal(err)
		}
		return data
	}
	if i.mediaType == "" {
		i.mediaType = v1.MediaTypeImageLayer
	}
	if i.config.OS == "" {
		i.config.OS, i.config.Architecture = "linux", runtime.GOARCH
		i.config.Config.Entrypoint = []string{"/program"}
	}
	manifest := v1.Manifest{Config: blob(v1.MediaTypeImageConfig, encode(i.config))}
	for _, l := range i.layers {
		manifest.Layers = append(manifest.Layers, blob(i.mediaType, l))
	}
	i.index = v1.Index{Manifests: []v1.Descriptor{blob(v1.MediaTypeImageManifest, encode(manifest))}}
	if change != nil {
		change(&i)
	}
	if i.files["index.json"] == nil {
		i.files["index.json"] = encode(i.index)
	}
	var entries []entry
	for name, data := range i.files {
		entries = append(entries, entry{tar.TypeReg, name, string(data), 0o644})
	}
	file := filepath.Join(t.TempDir(), "a.tar")
	if err := os.WriteFile(file, tarOf(t, entries...), 0o644); err != nil {
		t.Fatal(err)
	}
	return file
}

// Later layers replace and remove; gzip is read; modes lose set-user-ID.
func TestLayers(t *testing.T) {
	var zipped bytes.Buffer
	layers := [][]byte{
		tarOf(t, entry{tar.TypeReg, "a", "old", 0o4755}, entry{tar.TypeReg, "gone", "x", 0}, entry{tar.TypeReg, "dir/one", "x", 0}, entry{tar.TypeReg, "dir/two", "x", 0}),
		tarOf(t, entry{tar.TypeReg, "./a", "new", 0o4755}, entry{tar.TypeReg, ".wh.gone", "", 0}, entry{tar.TypeReg, "dir/.wh..wh..opq", "", 0},
			entry{tar.TypeReg, "dir/three", "x", 0}, entry{tar.TypeSymlink, "link", "a", 0}, entry{tar.TypeLink, "hard", "a", 0}),
	}
	for n, l := range layers {
		zipped.Reset()
		w := gzip.NewWriter(&zipped)
		if _, err := w.Write(l); err != nil {
			t.Fatal(err)
		}
		if err := w.Close(); err != nil {
			t.Fatal(err)
		}
		layers[n] = bytes.Clone(zipped.Bytes())
	}
	dir, err := unpack(t, write(t, image{layers: layers, mediaType: v1.MediaTypeImageLayerGzip}, nil))
	if err != nil {
		t.Fatal(err)
	}
	for name, want := range map[string]string{"a": "new", "link": "new", "hard": "new", "dir/three": "x", "gone": "", "dir/one": "", "dir/two": ""} {
		text, err := os.ReadFile(filepath.Join(dir, name))
		if string(text) != want || (err != nil) != (want == "") {
			t.Errorf("%s: %q, %v, want %q", name, text, err, want)
		}
	}
	info, err := os.Stat(filepath.Join(dir, "a"))
	if err != nil || info.Mode() != 0o755 {
		t.Errorf("mode %v, %v", info.Mode(), err)
	}
}

// Nothing leaves the directory, whatever a layer says.
func TestEscapesRefused(t *testing.T) {
	outside := filepath.Join(t.TempDir(), "outside")
	if err := os.WriteFile(outside, []byte("safe"), 0o644); err != nil {
		t.Fatal(err)
	}
	for what, entries := range map[string][]entry{
		"name":             {{tar.TypeReg, "../outside", "x", 0}},
		"symbolic link":    {{tar.TypeSymlink, "out", filepath.Dir(outside), 0}, {tar.TypeReg, "out/outside", "x", 0}},
		"relative link":    {{tar.TypeSymlink, "out", "../../../../../..", 0}, {tar.TypeReg, "out/outside", "x", 0}},
		"hard link":        {{tar.TypeLink, "hard", "../../outside", 0}},
		"whiteout":         {{tar.TypeSymlink, "out", filepath.Dir(outside), 0}, {tar.TypeReg, "out/.wh.outside", "", 0}},
		"device":           {{tar.TypeBlock, "disk", "", 0}},
		"named pipe":       {{tar.TypeFifo, "pipe", "", 0}},
		"removed ancestor": {{tar.TypeReg, ".wh...", "", 0}},
	} {
		if _, err := unpack(t, write(t, image{layers: [][]byte{tarOf(t, entries...)}}, nil)); err == nil {
			t.Errorf("%s: accepted", what)
		}
		if text, err := os.ReadFile(outside); string(text) != "safe" {
			t.Fatalf("%s: the file outside is %q, %v", what, text, err)
		}
	}
}

// I33: what is not plainly an image of this machine is refused, with a reason.
func TestRefusals(t *testing.T) {
	good := image{layers: [][]byte{tarOf(t, entry{tar.TypeReg, "program", "x", 0o755})}}
	spoil := func(i *image, prefix string, with func([]byte) []byte) {
		for name, data := range i.files {
			if strings.HasPrefix(name, "blobs/") && bytes.HasPrefix(data, []byte(prefix)) {
				i.files[name] = with(bytes.Clone(data))
			}
		}
	}
	flip := func(data []byte) []byte { data[len(data)/2] ^= 1; return data }
	for want, change := range map[string]func(*image){
		"oci-layout is missing":       func(i *image) { delete(i.files, "oci-layout") },
		"imageLayoutVersion":          func(i *image) { i.files["oci-layout"] = []byte(`{"imageLayoutVersion":"2"}`) },
		"0 images":                    func(i *image) { i.index.Manifests = nil },
		"2 images":                    func(i *image) { i.index.Manifests = append(i.index.Manifests, i.index.Manifests[0]) },
		"has more than 1048576 bytes": func(i *image) { i.files["index.json"] = bytes.Repeat([]byte(" "), 1<<20+1) },
		"invalid checksum digest":     func(i *image) { i.index.Manifests[0].Digest = "sha256:../../etc/passwd" },
		"another digest":              func(i *image) { spoil(i, "program", func(d []byte) []byte { d[512] = 0x79; return d }) },
		"manifest: the bytes":         func(i *image) { spoil(i, `{"schemaVersion`, flip) },
		"bytes, expected":             func(i *image) { spoil(i, `{"schemaVersion`, func(d []byte) []byte { return append(d, ' ') }) },
		"is missing":                  func(i *image) { clear(i.files); i.files["oci-layout"] = []byte(`{"imageLayoutVersion":"1.0.0"}`) },
	} {
		if _, err := unpack(t, write(t, good, change)); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v", want, err)
		}
	}
	other, silent := v1.Image{}, v1.Image{}
	other.OS, other.Architecture, other.Config.Entrypoint = "linux", "m68k", []string{"/program"}
	silent.OS, silent.Architecture = "linux", runtime.GOARCH
	for want, i := range map[string]image{
		"the image is for linux/m68k": {layers: good.layers, config: other},
		"no Entrypoint":               {layers: good.layers, config: silent},
		"no layers":                   {},
		"media type":                  {layers: good.layers, mediaType: v1.MediaTypeImageLayerZstd},
	} {
		if _, err := unpack(t, write(t, i, nil)); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v", want, err)
		}
	}
	text := filepath.Join(t.TempDir(), "text")
	if err := os.WriteFile(text, bytes.Repeat([]byte("no tar "), 200), 0o644); err != nil {
		t.Fatal(err)
	}
	if _, err := ociimage.Open(text); err == nil || !strings.Contains(err.Error(), "uncompressed tar") {
		t.Errorf("a text: %v", err)
	}
	if _, err := ociimage.Open(text + ".none"); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("no file: %v", err)
	}
}
