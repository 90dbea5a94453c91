package ociimage_test

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"encoding/json"
	"io/fs"
	"os"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"github.com/opencontainers/go-digest"
	v1 "github.com/opencontainers/image-spec/specs-go/v1"

	"github.com/quittance/quittance/hostagent/internal/ociimage"
	"github.com/quittance/quittance/integration/ociarchive"
)

// Bounds with which the targets unpack, far below the package's: inputs are small.
const (
	fewBytes = 64 << 10
	fewNames = 200
)

// nowhere is a name outside of every directory that a test makes.
const nowhere = "/quittance-nothing-is-made-here"

// place is a directory to unpack into beside what must stay as it is.
type place struct{ dir, root, outside, archive string }

func newPlace(t *testing.T, archive []byte) place {
	t.Helper()
	dir := t.TempDir()
	p := place{dir, filepath.Join(dir, "root"), filepath.Join(dir, "outside"), filepath.Join(dir, "a.tar")}
	// Directories without permissions keep others than root from removing them.
	t.Cleanup(func() {
		err := filepath.WalkDir(p.root, func(name string, d fs.DirEntry, err error) error {
			if err == nil && d.IsDir() {
				return os.Chmod(name, 0o700)
			}
			return err
		})
		if err != nil && !os.IsPermission(err) {
			t.Error(err)
		}
	})
	if err := os.Mkdir(p.root, 0o700); err != nil {
		t.Fatal(err)
	}
	for name, content := range map[string][]byte{p.outside: []byte("safe"), p.archive: archive} {
		if err := os.WriteFile(name, content, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	return p
}

// check tells whether anything outside of the root was made or changed, and
// whether what is inside is only what an image may have and within the bounds.
func (p place) check(t *testing.T) {
	t.Helper()
	if text, err := os.ReadFile(p.outside); err != nil || string(text) != "safe" {
		t.Errorf("the file outside is %q, %v", text, err)
	}
	if info, err := os.Lstat(p.outside); err != nil || info.Mode() != 0o600 || info.Sys().(*syscall.Stat_t).Nlink != 1 {
		t.Errorf("the file outside is %v, %v", info, err)
	}
	if there, err := os.ReadDir(p.dir); err != nil || len(there) != 3 {
		t.Errorf("beside the directory: %v, %v", there, err)
	}
	if _, err := os.Lstat(nowhere); !os.IsNotExist(err) {
		t.Errorf("%s: %v", nowhere, err)
	}
	names, size, seen := -1, int64(0), map[uint64]bool{} // the root itself is no name
	err := filepath.WalkDir(p.root, func(name string, d fs.DirEntry, err error) error {
		if os.IsPermission(err) {
			return fs.SkipDir // a mode of the image, and not root
		}
		if err != nil {
			return err
		}
		info, err := d.Info()
		if err != nil {
			return err
		}
		names++
		if kind := info.Mode() &^ (fs.ModePerm | fs.ModeDir | fs.ModeSymlink); kind != 0 {
			t.Errorf("%s is %s", name, info.Mode())
		}
		if stat := info.Sys().(*syscall.Stat_t); info.Mode().IsRegular() && !seen[stat.Ino] {
			seen[stat.Ino] = true
			size += info.Size()
		}
		return nil
	})
	if err != nil {
		t.Error(err)
	}
	if names > fewNames || size > fewBytes {
		t.Errorf("%d names with %d bytes, at most %d with %d were allowed", names, size, fewNames, fewBytes)
	}
}

// through opens and unpacks an archive that may be anything, and returns what
// either said.
func through(t *testing.T, archive []byte) error {
	t.Helper()
	p := newPlace(t, archive)
	image, err := ociimage.Open(p.archive)
	if err != nil {
		if !strings.HasPrefix(err.Error(), "archive "+p.archive+": ") {
			t.Errorf("the error does not name the archive: %v", err)
		}
		p.check(t)
		return err
	}
	defer image.Close() // only read
	if err := image.Digest.Validate(); err != nil || len(image.Entrypoint) == 0 {
		t.Errorf("digest %q, entry point %q: %v", image.Digest, image.Entrypoint, err)
	}
	image.Bound(fewBytes, 4*fewBytes, fewNames)
	root, err := os.OpenRoot(p.root)
	if err != nil {
		t.Fatal(err)
	}
	defer root.Close() // what was written is looked at
	if err = image.Unpack(root); err != nil && !strings.HasPrefix(err.Error(), "layer ") {
		t.Errorf("the error does not name the layer: %v", err)
	}
	p.check(t)
	return err
}

// packed is an archive by this project's own writer.
func packed(tb testing.TB) []byte {
	tb.Helper()
	var layers []ociarchive.Layer
	for _, files := range [][]ociarchive.File{
		{{Target: "/usr/bin/controller", Mode: 0o755, Content: []byte("program")}, {Target: "/etc/x", Mode: 0o640}},
		{{Target: "/etc/x", Mode: 0o644, Content: []byte("later")}},
	} {
		layer, err := ociarchive.Files(files, "/tmp")
		if err != nil {
			tb.Fatal(err)
		}
		layers = append(layers, layer)
	}
	file := filepath.Join(tb.TempDir(), "a.tar")
	if _, err := ociarchive.Write(file, ociarchive.Image{Name: "controller", Layers: layers, Entrypoint: []string{"/usr/bin/controller"}}); err != nil {
		tb.Fatal(err)
	}
	data, err := os.ReadFile(file)
	if err != nil {
		tb.Fatal(err)
	}
	return data
}

// header is one header with what follows it, as no writer of Go's would make it.
func header(tb testing.TB, h tar.Header, content string) []byte {
	tb.Helper()
	var out bytes.Buffer
	w := tar.NewWriter(&out)
	h.Format = tar.FormatGNU
	if err := w.WriteHeader(&h); err != nil {
		tb.Fatal(err)
	}
	out.WriteString(content)
	out.Write(make([]byte, -out.Len()&511))
	return out.Bytes()
}

// pax is a header of the PAX kind, which changes the next one.
func pax(tb testing.TB, key, value string) []byte {
	tb.Helper()
	record := " " + key + "=" + value + "\n"
	length := len(record)
	for length != len(record)+len(strconv.Itoa(length)) {
		length = len(record) + len(strconv.Itoa(length))
	}
	record = strconv.Itoa(length) + record
	h := header(tb, tar.Header{Typeflag: tar.TypeReg, Name: "pax", Size: int64(len(record))}, "")
	h[156] = tar.TypeXHeader
	sum := 0
	copy(h[148:156], "        ")
	for _, b := range h[:512] {
		sum += int(b)
	}
	copy(h[148:156], "0"+strconv.FormatInt(int64(sum), 8)+"\x00 ")
	block := make([]byte, (len(record)+511)&^511)
	copy(block, record)
	return append(h, block...)
}

// hostile are layers that no good tool writes, and the part of the error that
// says why each is refused; "" is one that is harmless.
func hostile(tb testing.TB) map[string]struct {
	layer []byte
	want  string
} {
	tb.Helper()
	file := entry{tar.TypeReg, "a", "x", 0}
	negative := pax(tb, "size", "-1048576")
	many := make([]entry, fewNames+1)
	for i := range many {
		many[i] = entry{tar.TypeReg, strconv.Itoa(i), "", 0}
	}
	type row = struct {
		layer []byte
		want  string
	}
	return map[string]row{
		"a name upwards":         {tarOf(tb, entry{tar.TypeReg, "../outside", "x", 0}), "../outside: "},
		"an absolute name":       {tarOf(tb, entry{tar.TypeReg, nowhere, "x", 0}), ""}, // below the directory
		"through a link":         {tarOf(tb, entry{tar.TypeSymlink, "out", "..", 0}, entry{tar.TypeReg, "out/outside", "x", 0}), "out/outside: "},
		"through a link to /":    {tarOf(tb, entry{tar.TypeSymlink, "out", "/", 0}, entry{tar.TypeReg, "out" + nowhere, "x", 0}), "out" + nowhere + ": "},
		"a directory over there": {tarOf(tb, entry{tar.TypeSymlink, "out", "..", 0}, entry{tar.TypeDir, "out/root", "", 0o777}), "out/root: "},
		"a mode over there":      {tarOf(tb, entry{tar.TypeSymlink, "out", "../outside", 0}, entry{tar.TypeDir, "out", "", 0o777}), ""}, // replaces the link
		"a hard link upwards":    {tarOf(tb, entry{tar.TypeLink, "hard", "../outside", 0}), "hard: "},
		"a hard link by a link":  {tarOf(tb, entry{tar.TypeSymlink, "out", "..", 0}, entry{tar.TypeLink, "hard", "out/outside", 0}), "hard: "},
		"a hard link to itself":  {tarOf(tb, file, entry{tar.TypeLink, "a", "a", 0}), "a: "},
		"a link to itself":       {tarOf(tb, entry{tar.TypeSymlink, "a", "a", 0}, entry{tar.TypeReg, "a/b", "x", 0}), "a/b: "},
		"a removal over there":   {tarOf(tb, entry{tar.TypeSymlink, "out", "..", 0}, entry{tar.TypeReg, "out/.wh.outside", "", 0}), "out/.wh.outside: "},
		"an emptying over there": {tarOf(tb, entry{tar.TypeSymlink, "out", "..", 0}, entry{tar.TypeReg, "out/.wh..wh..opq", "", 0}), "out/.wh..wh..opq: "},
		"a removal upwards":      {tarOf(tb, entry{tar.TypeReg, "a/b/c", "x", 0}, entry{tar.TypeReg, "a/b/.wh...", "", 0}), "removes no file"},
		"a removal of itself":    {tarOf(tb, entry{tar.TypeReg, "a/b/c", "x", 0}, entry{tar.TypeReg, "a/b/.wh..", "", 0}), "removes no file"},
		"a removal of no name":   {tarOf(tb, entry{tar.TypeReg, "a/b/c", "x", 0}, entry{tar.TypeReg, "a/b/.wh.", "", 0}), "removes no file"},
		"a block device":         {tarOf(tb, entry{tar.TypeBlock, "disk", "", 0}), "disk: is neither"},
		"a character device":     {tarOf(tb, entry{tar.TypeChar, "null", "", 0}), "null: is neither"},
		"a pipe":                 {tarOf(tb, entry{tar.TypeFifo, "pipe", "", 0}), "pipe: is neither"},
		"a name twice":           {tarOf(tb, file, entry{tar.TypeDir, "a", "", 0}, file, entry{tar.TypeSymlink, "a", "b", 0}), ""},
		"set-user-ID":            {tarOf(tb, entry{tar.TypeReg, "a", "x", 0o7755}, entry{tar.TypeDir, "d", "", 0o7777}), ""},
		"no permission":          {tarOf(tb, entry{tar.TypeDir, "d", "", 0o001}), ""},
		"a huge file":            {header(tb, tar.Header{Typeflag: tar.TypeReg, Name: "huge", Size: 1 << 60}, "x"), "huge: with this file the image unpacks to more"},
		"more than was there":    {header(tb, tar.Header{Typeflag: tar.TypeReg, Name: "short", Size: 4096}, "x"), "short: unexpected EOF"},
		"less than nothing": {bytes.Join([][]byte{
			negative, header(tb, tar.Header{Typeflag: tar.TypeDir, Name: "d", Mode: 0o755}, ""),
			header(tb, tar.Header{Typeflag: tar.TypeReg, Name: "huge", Size: fewBytes + 1}, strings.Repeat("x", fewBytes+1)),
		}, nil), "huge: with this file the image unpacks to more"},
		"a negative file": {append(negative, header(tb, tar.Header{Typeflag: tar.TypeReg, Name: "f"}, "")...), "tar: "},
		"too many files":  {tarOf(tb, many...), "200: with this file the image has more names"},
		"one deep name":   {tarOf(tb, entry{tar.TypeReg, strings.Repeat("d/", fewNames) + "f", "x", 0}), "f: with this file the image has more names"},
		"a long name":     {tarOf(tb, entry{tar.TypeReg, strings.Repeat("d/", 2048) + "f", "x", 0}), "a name has 4097 bytes"},
		"nothing but PAX": {bytes.Repeat(negative, 4*fewBytes/len(negative)+1), "tar: the layers are longer than may be unpacked"},
		"half a header":   {tarOf(tb, file)[:300], "tar: unexpected EOF"},
		"nothing":         {nil, ""},
		"what is no tar":  {bytes.Repeat([]byte("no tar "), 100), "tar: "},
	}
}

// around makes an archive of layers that may be anything.
func around(tb testing.TB, mediaType string, layers ...[]byte) []byte {
	tb.Helper()
	archive, err := os.ReadFile(write(tb, image{layers: layers, mediaType: mediaType}, nil))
	if err != nil {
		tb.Fatal(err)
	}
	return archive
}

func zip(tb testing.TB, data []byte) []byte {
	tb.Helper()
	var out bytes.Buffer
	w := gzip.NewWriter(&out)
	if _, err := w.Write(data); err != nil {
		tb.Fatal(err)
	}
	if err := w.Close(); err != nil {
		tb.Fatal(err)
	}
	return out.Bytes()
}

// I33: every hostile layer is refused for what is wrong with it, or does no harm,
// compressed or not.
func TestHostileLayers(t *testing.T) {
	for what, row := range hostile(t) {
		t.Run(what, func(t *testing.T) {
			for _, archive := range [][]byte{around(t, "", row.layer), around(t, v1.MediaTypeImageLayerGzip, zip(t, row.layer))} {
				if err := through(t, archive); (err == nil) != (row.want == "") || err != nil && !strings.Contains(err.Error(), row.want) {
					t.Errorf("%v, want %q", err, row.want)
				}
			}
		})
	}
	for want, archive := range map[string][]byte{
		"layer 1: tar: unexpected EOF": around(t, v1.MediaTypeImageLayerGzip, zip(t, tarOf(t, entry{tar.TypeReg, "a", "x", 0}))[:40]),
		"layer 1: gzip: ":              around(t, v1.MediaTypeImageLayerGzip, []byte("no gzip at all")),
		"129 layers, at most 128":      around(t, "", bytes.SplitN(make([]byte, 129), nil, 129)...),
		"a name has 4097 bytes":        tarOf(t, entry{tar.TypeReg, strings.Repeat("n", 4097), "", 0}),
	} {
		if err := through(t, archive); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v, want %q", err, want)
		}
	}
	if err := through(t, packed(t)); err != nil {
		t.Errorf("what this project packs: %v", err)
	}
}

// FuzzOpen opens anything as an archive, and unpacks what is one.
func FuzzOpen(f *testing.F) {
	good := packed(f)
	f.Add(good)
	f.Add(good[:len(good)/2])
	f.Add(good[:700])
	f.Add(zip(f, good))
	f.Add(tarOf(f, entry{tar.TypeReg, "oci-layout", "{}", 0}, entry{tar.TypeReg, "./oci-layout", "{}", 0}))
	f.Add(header(f, tar.Header{Typeflag: tar.TypeReg, Name: "index.json", Size: 1 << 60}, "x"))
	f.Add(append(pax(f, "path", strings.Repeat("n", 5000)), good...))
	f.Add(append(pax(f, "size", "-1"), good...))
	for _, row := range hostile(f) {
		if archive := around(f, "", row.layer); len(archive) < fewBytes {
			f.Add(archive)
		}
	}
	f.Fuzz(func(t *testing.T, archive []byte) {
		if len(archive) <= 4*fewBytes {
			_ = through(t, archive) // whatever it says
		}
	})
}

// FuzzDescribed opens an archive whose index, manifest and config are anything;
// an @CONFIG or @LAYER in them stands for the descriptor of the true one, so that
// digests lead on to what comes behind them.
func FuzzDescribed(f *testing.F) {
	const (
		index    = `{"schemaVersion":2,"manifests":[@MANIFEST]}`
		manifest = `{"schemaVersion":2,"config":@CONFIG,"layers":[@LAYER]}`
		config   = `{"os":"linux","architecture":"@HERE","config":{"Entrypoint":["/program"]}}`
	)
	f.Add(index, manifest, config)
	f.Add(index, `{"config":@CONFIG,"layers":[@LAYER,@LAYER,@LAYER]}`, config)
	f.Add(index, `{"config":@LAYER,"layers":[@CONFIG]}`, config)
	f.Add(index, `{"config":@CONFIG,"layers":[]}`, `{}`)
	f.Add(index, `{"config":@CONFIG,"layers":[{"mediaType":"application/vnd.oci.image.layer.v1.tar","digest":"sha256:../../outside","size":4}]}`, config)
	f.Add(index, `{"config":{"digest":"sha512:`+strings.Repeat("0", 128)+`","size":-1},"layers":[@LAYER]}`, config)
	f.Add(index, `{"config":{"digest":"md5:00","size":1e99},"layers":null}`, config)
	f.Add(index, manifest, `{"os":"linux","architecture":"@HERE","config":{"Entrypoint":[""]}}`)
	f.Add(`{"manifests":[@MANIFEST,@MANIFEST]}`, manifest, config)
	f.Add(`{"manifests":[@CONFIG]}`, manifest, config)
	f.Add(strings.Repeat("[", 2000), strings.Repeat(`{"layers":`, 200), "null")
	f.Fuzz(func(t *testing.T, index, manifest, config string) {
		if len(index)+len(manifest)+len(config) > fewBytes {
			return
		}
		var entries []entry
		blob := func(mediaType, data string) (descriptor string) {
			d := v1.Descriptor{MediaType: mediaType, Digest: digest.FromString(data), Size: int64(len(data))}
			text, err := json.Marshal(d)
			if err != nil {
				t.Fatal(err)
			}
			entries = append(entries, entry{tar.TypeReg, "blobs/sha256/" + d.Digest.Encoded(), data, 0})
			return string(text)
		}
		layer := blob(v1.MediaTypeImageLayer, string(tarOf(t, entry{tar.TypeReg, "program", "x", 0o755})))
		known := strings.NewReplacer("@HERE", runtime.GOARCH, "@LAYER", layer)
		known = strings.NewReplacer("@LAYER", layer, "@CONFIG", blob(v1.MediaTypeImageConfig, known.Replace(config)))
		known = strings.NewReplacer("@LAYER", layer, "@MANIFEST", blob(v1.MediaTypeImageManifest, known.Replace(manifest)))
		entries = append(entries, entry{tar.TypeReg, "index.json", known.Replace(index), 0},
			entry{tar.TypeReg, "oci-layout", `{"imageLayoutVersion":"1.0.0"}`, 0})
		_ = through(t, tarOf(t, entries...)) // whatever it says
	})
}

// FuzzUnpack unpacks layers that are anything, under their true digests.
func FuzzUnpack(f *testing.F) {
	base := tarOf(f, entry{tar.TypeDir, "a", "", 0o755}, entry{tar.TypeReg, "a/b", "x", 0o644}, entry{tar.TypeSymlink, "l", "a", 0})
	f.Add(base, tarOf(f, entry{tar.TypeReg, "l/.wh.b", "", 0}, entry{tar.TypeReg, ".wh..wh..opq", "", 0}, entry{tar.TypeLink, "h", "l", 0}), false)
	f.Add(zip(f, base), zip(f, base)[:40], true)
	for _, row := range hostile(f) {
		if len(row.layer) < fewBytes {
			f.Add(base, row.layer, false)
		} else {
			f.Add(zip(f, base), zip(f, row.layer), true)
		}
	}
	f.Fuzz(func(t *testing.T, first, second []byte, zipped bool) {
		if len(first)+len(second) > 4*fewBytes {
			return
		}
		mediaType := v1.MediaTypeImageLayer
		if zipped {
			mediaType = v1.MediaTypeImageLayerGzip
		}
		_ = through(t, around(t, mediaType, first, second)) // whatever it says
	})
}
