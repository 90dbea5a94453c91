//go:build e2e

package packaging

import (
	"archive/tar"
	"bufio"
	"bytes"
	"cmp"
	"compress/gzip"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/quittance/quittance/protocol"
)

const (
	testVersion = "0.1.0~test"
	testEpoch   = "1796000000"
)

// buildInto runs build.sh with a fixed version and time.
func buildInto(t *testing.T, dir string) {
	t.Helper()
	command := exec.CommandContext(t.Context(), "./build.sh", dir)
	command.Env = append(os.Environ(), "QUITTANCE_VERSION="+testVersion, "SOURCE_DATE_EPOCH="+testEpoch)
	if out, err := command.CombinedOutput(); err != nil {
		t.Fatalf("build.sh: %v\n%s", err, out)
	}
}

// The packages hold exactly the files of the golden lists with their modes,
// .deb and .rpm alike, and the same commit gives the same bytes. With
// UPDATE_GOLDEN=1 the lists are written anew.
func TestPackages(t *testing.T) {
	first, second := t.TempDir(), t.TempDir()
	buildInto(t, first)
	buildInto(t, second)
	entries, err := os.ReadDir(first)
	if err != nil {
		t.Fatal(err)
	}
	if len(entries) != 6 {
		t.Fatalf("%d packages", len(entries))
	}
	for _, entry := range entries {
		one, err := os.ReadFile(filepath.Join(first, entry.Name()))
		if err != nil {
			t.Fatal(err)
		}
		two, err := os.ReadFile(filepath.Join(second, entry.Name()))
		if err != nil {
			t.Fatal(err)
		}
		if protocol.DigestOf(one) != protocol.DigestOf(two) {
			t.Errorf("%s: two builds differ", entry.Name())
		}
		var files []string
		name := strings.FieldsFunc(entry.Name(), func(r rune) bool { return r == '_' || r == '~' })[0]
		if filepath.Ext(entry.Name()) == ".deb" {
			files, err = debFiles(one)
		} else {
			name = strings.TrimSuffix(name, "-0.1.0")
			files, err = rpmFiles(one)
		}
		if err != nil {
			t.Fatalf("%s: %v", entry.Name(), err)
		}
		checkGolden(t, entry.Name(), name, files)
	}
}

// checkGolden compares the regular files; which parent directories a package
// also lists is the format's own affair.
func checkGolden(t *testing.T, pkg, name string, files []string) {
	t.Helper()
	slices.Sort(files)
	got := strings.Join(files, "\n") + "\n"
	golden := filepath.Join("golden", name+".txt")
	if os.Getenv("UPDATE_GOLDEN") != "" {
		if err := os.WriteFile(golden, []byte(got), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(golden)
	if err != nil {
		t.Fatal(err)
	}
	if got != string(want) {
		t.Errorf("%s: files differ from %s (UPDATE_GOLDEN=1 rewrites it)\ngot:\n%s", pkg, golden, got)
	}
}

func line(mode int64, owner, path string) string {
	return fmt.Sprintf("%04o %s /%s", mode&0o7777, owner, strings.TrimPrefix(strings.TrimPrefix(path, "."), "/"))
}

// debFiles reads the data archive of a .deb, an ar archive.
func debFiles(deb []byte) ([]string, error) {
	rest, ok := bytes.CutPrefix(deb, []byte("!<arch>\n"))
	if !ok {
		return nil, errors.New("not an ar archive")
	}
	for len(rest) >= 60 {
		name := strings.Trim(string(rest[:16]), " /")
		size, err := strconv.Atoi(strings.TrimSpace(string(rest[48:58])))
		if err != nil {
			return nil, err
		}
		content := rest[60 : 60+size]
		rest = rest[min(len(rest), 60+size+size%2):]
		if name != "data.tar.gz" {
			continue
		}
		unpacked, err := gzip.NewReader(bytes.NewReader(content))
		if err != nil {
			return nil, err
		}
		return tarFiles(tar.NewReader(unpacked))
	}
	return nil, errors.New("no data.tar.gz")
}

func tarFiles(r *tar.Reader) ([]string, error) {
	var files []string
	for {
		h, err := r.Next()
		if errors.Is(err, io.EOF) {
			return files, nil
		}
		if err != nil {
			return nil, err
		}
		if h.Typeflag == tar.TypeDir {
			if h.Mode&0o7777 != 0o755 {
				return nil, fmt.Errorf("directory %s has mode %o", h.Name, h.Mode)
			}
			continue
		}
		files = append(files, line(h.Mode, fmt.Sprintf("%d:%d", h.Uid, h.Gid), h.Name))
	}
}

// rpmFiles reads the payload of an .rpm: a lead of 96 bytes, two headers (the
// first padded to 8 bytes), and a compressed cpio archive.
func rpmFiles(rpm []byte) ([]string, error) {
	at := 96
	for i := range 2 {
		if len(rpm) < at+16 || !bytes.Equal(rpm[at:at+3], []byte{0x8e, 0xad, 0xe8}) {
			return nil, errors.New("no rpm header")
		}
		entries, store := binary.BigEndian.Uint32(rpm[at+8:]), binary.BigEndian.Uint32(rpm[at+12:])
		at += 16 + int(entries)*16 + int(store)
		if i == 0 {
			at = (at + 7) / 8 * 8
		}
	}
	unpacked, err := gzip.NewReader(bytes.NewReader(rpm[at:]))
	if err != nil {
		return nil, err
	}
	return cpioFiles(bufio.NewReader(unpacked))
}

// cpioFiles reads a cpio archive of the "newc" form: headers of 110 characters
// with 8-digit hexadecimal fields.
func cpioFiles(r *bufio.Reader) ([]string, error) {
	var files []string
	for {
		header := make([]byte, 110)
		if _, err := io.ReadFull(r, header); err != nil {
			return nil, err
		}
		field := func(i int) int64 {
			v, err := strconv.ParseInt(string(header[6+8*i:14+8*i]), 16, 64)
			return cmp.Or(v, map[bool]int64{true: -1}[err != nil])
		}
		mode, uid, gid, size, nameSize := field(1), field(2), field(3), field(6), field(11)
		name := make([]byte, (110+nameSize+3)/4*4-110)
		if _, err := io.ReadFull(r, name); err != nil {
			return nil, err
		}
		if _, err := r.Discard(int((size + 3) / 4 * 4)); err != nil {
			return nil, err
		}
		path := string(name[:nameSize-1])
		if path == "TRAILER!!!" {
			return files, nil
		}
		const typeMask, regular = 0o170000, 0o100000
		if mode&typeMask != regular {
			if mode&0o7777 != 0o755 {
				return nil, fmt.Errorf("directory %s has mode %o", path, mode&0o7777)
			}
			continue
		}
		files = append(files, line(mode, fmt.Sprintf("%d:%d", uid, gid), path))
	}
}
