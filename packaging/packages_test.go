//go:build e2e

package packaging

import (
	"archive/tar"
	"bufio"
	"bytes"
	"cmp"
	"compress/gzip"
	"debug/buildinfo"
	"debug/elf"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"

	"github.com/quittance/quittance/protocol"
)

const (
	testVersion = "0.1.0~test"
	testEpoch   = "1796000000"
)

// buildInto runs build.sh with a fixed version and time, unless the environment
// given names others.
func buildInto(dir string, environment ...string) error {
	command := exec.Command("./build.sh", dir)
	command.Env = append(append(os.Environ(), "QUITTANCE_VERSION="+testVersion, "SOURCE_DATE_EPOCH="+testEpoch), environment...)
	if out, err := command.CombinedOutput(); err != nil {
		return fmt.Errorf("build.sh: %w\n%s", err, out)
	}
	return nil
}

// buildElsewhere builds the same under another host name, umask, time zone and
// settings of Go.
func buildElsewhere(dir string) error {
	command := exec.Command("unshare", "--uts", "sh", "-euc", `hostname elsewhere; umask 077; exec ./build.sh "$0"`, dir)
	command.Env = append(os.Environ(), "QUITTANCE_VERSION="+testVersion, "SOURCE_DATE_EPOCH="+testEpoch, "TZ=QTT-11:30", "GOAMD64=v3")
	if out, err := command.CombinedOutput(); err != nil {
		return fmt.Errorf("build.sh elsewhere: %w\n%s", err, out)
	}
	return nil
}

// built is a directory with all packages, made once for all tests.
var built = sync.OnceValues(func() (string, error) {
	dir, err := temporary()
	if err != nil {
		return "", err
	}
	return dir, buildInto(dir)
})

// temporaries are directories of all tests together, for TestMain to remove.
var temporaries []string

func temporary() (string, error) {
	dir, err := os.MkdirTemp("", "quittance-packages-")
	temporaries = append(temporaries, dir)
	return dir, err
}

func TestMain(m *testing.M) {
	code := m.Run()
	for _, dir := range temporaries {
		if err := os.RemoveAll(dir); err != nil {
			fmt.Fprintln(os.Stderr, err)
			code = 1
		}
	}
	os.Exit(code)
}

// The packages hold exactly the files of the golden lists with their owners and
// modes, .deb and .rpm alike but for what one of the two alone asks for; each
// file is what it was made of; their programs are static and by the Go of go.mod;
// and the same commit gives the same bytes under another machine's name. With UPDATE_GOLDEN=1 the lists are written anew.
func TestPackages(t *testing.T) {
	first, err := built()
	if err != nil {
		t.Fatal(err)
	}
	second := t.TempDir()
	if err := buildElsewhere(second); err != nil {
		t.Fatal(err)
	}
	entries, err := os.ReadDir(first)
	if err != nil {
		t.Fatal(err)
	}
	if len(entries) != 6 {
		t.Fatalf("%d packages", len(entries))
	}
	formats := map[string]map[string]protocol.Digest{} // by package, of the format seen first
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
		var found contents
		name := strings.FieldsFunc(entry.Name(), func(r rune) bool { return r == '_' || r == '~' })[0]
		if filepath.Ext(entry.Name()) == ".deb" {
			found, err = debFiles(one)
		} else {
			name = strings.TrimSuffix(name, "-0.1.0")
			found, err = rpmFiles(one)
		}
		if err != nil {
			t.Fatalf("%s: %v", entry.Name(), err)
		}
		checkGolden(t, entry.Name(), name, found.files)
		checkStatic(t, entry.Name(), found.program)
		checkContents(t, entry.Name(), name, found)
		if other := formats[name]; other != nil {
			for path, digest := range found.digests {
				if want, there := other[path]; there && want != digest {
					t.Errorf("%s: %s differs between .deb and .rpm", name, path)
				}
			}
		}
		formats[name] = found.digests
	}
}

// sources are where packaged files are in this tree, below packaging, but for
// what the build makes: programs, pages, completions, the archive.
var sources = []struct{ installed, source string }{
	{"/usr/lib/systemd/system/", "systemd/"}, {"/usr/lib/sysusers.d/", "sysusers.d/"}, {"/usr/lib/tmpfiles.d/", "tmpfiles.d/"},
	{"/usr/lib/quittance/hold-workers", "systemd/hold-workers"}, {"/etc/quittance/", "etc/"},
	{"/usr/share/doc/NAME/examples/", "etc/"}, {"/usr/share/doc/NAME/runbooks/", "runbooks/"},
	{"/usr/share/doc/NAME/metrics/", "metrics/PROGRAM/"}, {"/usr/share/doc/NAME/LICENSE", "../LICENSE"},
	{"/usr/share/doc/NAME/copyright", "copyright"}, {"/usr/share/lintian/overrides/NAME", "lint/NAME.overrides"},
}

// madeByBuild are the other files: what they hold is for the tests of the
// packages that make them. None may be empty.
var madeByBuild = regexp.MustCompile(`^/usr/(s?bin/[a-z]+|lib/quittance/controller\.oci\.tar|share/(man/man[1578]/[a-z-]+\.[1578]\.gz|` +
	`doc/[a-z-]+/changelog\.gz|bash-completion/completions/[a-z]+|zsh/site-functions/_[a-z]+|fish/vendor_completions\.d/[a-z]+\.fish))$`)

// checkContents compares every packaged file with what it was made of.
func checkContents(t *testing.T, pkg, name string, found contents) {
	t.Helper()
	places := strings.NewReplacer("NAME", name, "PROGRAM", strings.TrimPrefix(name, "quittance-"))
	for path, digest := range found.digests {
		if madeByBuild.MatchString(path) {
			if digest == protocol.DigestOf(nil) {
				t.Errorf("%s: %s is empty", pkg, path)
			}
			continue
		}
		at := slices.IndexFunc(sources, func(s struct{ installed, source string }) bool {
			return strings.HasPrefix(path, places.Replace(s.installed))
		})
		if at < 0 {
			t.Errorf("%s: nobody knows what %s is made of", pkg, path)
			continue
		}
		source := places.Replace(sources[at].source) + strings.TrimPrefix(path, places.Replace(sources[at].installed))
		want, err := os.ReadFile(source)
		if err != nil {
			t.Errorf("%s: %s: %v", pkg, path, err)
			continue
		}
		if protocol.DigestOf(want) != digest {
			t.Errorf("%s: %s is not packaging/%s", pkg, path, source)
		}
	}
}

// debOnly marks the lines of files that only a .deb has.
const debOnly = " (deb)"

// onlyInDeb are the files that only Debian's policy asks for.
var onlyInDeb = regexp.MustCompile(`^0644 0:0 /usr/share/(lintian/overrides/|doc/[a-z-]+/changelog\.gz$)`)

// checkGolden compares the regular files; which parent directories a package
// also lists is the format's own affair.
func checkGolden(t *testing.T, pkg, name string, files []string) {
	t.Helper()
	slices.Sort(files)
	golden := filepath.Join("golden", name+".txt")
	deb := filepath.Ext(pkg) == ".deb"
	if os.Getenv("UPDATE_GOLDEN") != "" && deb {
		var text strings.Builder
		for _, file := range files {
			text.WriteString(file)
			if onlyInDeb.MatchString(file) {
				text.WriteString(debOnly)
			}
			text.WriteString("\n")
		}
		if err := os.WriteFile(golden, []byte(text.String()), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	text, err := os.ReadFile(golden)
	if err != nil {
		t.Fatal(err)
	}
	var want []string
	for _, file := range strings.Split(strings.TrimSpace(string(text)), "\n") {
		file, marked := strings.CutSuffix(file, debOnly)
		if deb || !marked {
			want = append(want, file)
		}
	}
	for _, file := range files {
		if !slices.Contains(want, file) {
			t.Errorf("%s holds %s, which %s does not name (UPDATE_GOLDEN=1 rewrites it)", pkg, file, golden)
		}
	}
	for _, file := range want {
		if !slices.Contains(files, file) {
			t.Errorf("%s lacks %s, which %s names (UPDATE_GOLDEN=1 rewrites it)", pkg, file, golden)
		}
	}
}

// checkStatic refuses a program for another machine, by another Go than go.mod's,
// or that needs an interpreter or a library.
func checkStatic(t *testing.T, pkg string, program []byte) {
	t.Helper()
	binary, err := elf.NewFile(bytes.NewReader(program))
	if err != nil {
		t.Errorf("%s: its program: %v", pkg, err)
		return
	}
	if want := map[string]elf.Machine{"amd64": elf.EM_X86_64, "arm64": elf.EM_AARCH64}[runtime.GOARCH]; binary.Machine != want {
		t.Errorf("%s: its program is for %s", pkg, binary.Machine)
	}
	module, err := os.ReadFile("../go.mod")
	if err != nil {
		t.Fatal(err)
	}
	if info, err := buildinfo.Read(bytes.NewReader(program)); err != nil || !strings.Contains(string(module), "\ngo "+strings.TrimPrefix(info.GoVersion, "go")+"\n") {
		t.Errorf("%s: its program is not by the Go of go.mod: %v (%v)", pkg, info, err)
	}
	libraries, err := binary.ImportedLibraries()
	if err != nil || len(libraries) != 0 {
		t.Errorf("%s: its program needs %v (%v)", pkg, libraries, err)
	}
	for _, part := range binary.Progs {
		if part.Type == elf.PT_INTERP {
			t.Errorf("%s: its program is not static", pkg)
		}
	}
}

// contents is what a package holds.
type contents struct {
	files   []string                   // mode, owner and path of each regular file
	digests map[string]protocol.Digest // of what each path holds
	program []byte                     // the one file below /usr/bin or /usr/sbin
}

// add notes a file and keeps it where it is the program.
func (c *contents) add(mode int64, owner, path string, content io.Reader) error {
	path = "/" + strings.TrimPrefix(strings.TrimPrefix(path, "."), "/")
	c.files = append(c.files, fmt.Sprintf("%04o %s %s", mode&0o7777, owner, path))
	all, err := io.ReadAll(content)
	if err != nil {
		return err
	}
	if c.digests == nil {
		c.digests = map[string]protocol.Digest{}
	}
	c.digests[path] = protocol.DigestOf(all)
	if dir := filepath.Dir(path); dir != "/usr/bin" && dir != "/usr/sbin" {
		return nil
	}
	if c.program != nil {
		return fmt.Errorf("%s is a second program", path)
	}
	c.program = all
	return nil
}

// debFiles reads the data archive of a .deb, an ar archive.
func debFiles(deb []byte) (contents, error) {
	rest, ok := bytes.CutPrefix(deb, []byte("!<arch>\n"))
	if !ok {
		return contents{}, errors.New("not an ar archive")
	}
	for len(rest) >= 60 {
		name := strings.Trim(string(rest[:16]), " /")
		size, err := strconv.Atoi(strings.TrimSpace(string(rest[48:58])))
		if err != nil {
			return contents{}, err
		}
		content := rest[60 : 60+size]
		rest = rest[min(len(rest), 60+size+size%2):]
		if name != "data.tar.gz" {
			continue
		}
		unpacked, err := gzip.NewReader(bytes.NewReader(content))
		if err != nil {
			return contents{}, err
		}
		return tarFiles(tar.NewReader(unpacked))
	}
	return contents{}, errors.New("no data.tar.gz")
}

func tarFiles(r *tar.Reader) (contents, error) {
	var found contents
	for {
		h, err := r.Next()
		if errors.Is(err, io.EOF) {
			return found, nil
		}
		if err != nil {
			return contents{}, err
		}
		if h.Typeflag == tar.TypeDir {
			if h.Mode&0o7777 != 0o755 {
				return contents{}, fmt.Errorf("directory %s has mode %o", h.Name, h.Mode)
			}
			continue
		}
		if err := found.add(h.Mode, fmt.Sprintf("%d:%d", h.Uid, h.Gid), h.Name, r); err != nil {
			return contents{}, err
		}
	}
}

// rpmFiles reads the payload of an .rpm: a lead of 96 bytes, two headers (the
// first padded to 8 bytes), and a compressed cpio archive.
func rpmFiles(rpm []byte) (contents, error) {
	at := 96
	for i := range 2 {
		if len(rpm) < at+16 || !bytes.Equal(rpm[at:at+3], []byte{0x8e, 0xad, 0xe8}) {
			return contents{}, errors.New("no rpm header")
		}
		entries, store := binary.BigEndian.Uint32(rpm[at+8:]), binary.BigEndian.Uint32(rpm[at+12:])
		at += 16 + int(entries)*16 + int(store)
		if i == 0 {
			at = (at + 7) / 8 * 8
		}
	}
	unpacked, err := gzip.NewReader(bytes.NewReader(rpm[at:]))
	if err != nil {
		return contents{}, err
	}
	return cpioFiles(bufio.NewReader(unpacked))
}

// cpioFiles reads a cpio archive of the "newc" form: headers of 110 characters
// with 8-digit hexadecimal fields.
func cpioFiles(r *bufio.Reader) (contents, error) {
	var found contents
	for {
		header := make([]byte, 110)
		if _, err := io.ReadFull(r, header); err != nil {
			return contents{}, err
		}
		field := func(i int) int64 {
			v, err := strconv.ParseInt(string(header[6+8*i:14+8*i]), 16, 64)
			return cmp.Or(v, map[bool]int64{true: -1}[err != nil])
		}
		mode, uid, gid, size, nameSize := field(1), field(2), field(3), field(6), field(11)
		name := make([]byte, (110+nameSize+3)/4*4-110)
		if _, err := io.ReadFull(r, name); err != nil {
			return contents{}, err
		}
		content := io.LimitReader(r, (size+3)/4*4)
		path := string(name[:nameSize-1])
		if path == "TRAILER!!!" {
			return found, nil
		}
		const typeMask, regular = 0o170000, 0o100000
		if mode&typeMask != regular {
			if mode&0o7777 != 0o755 {
				return contents{}, fmt.Errorf("directory %s has mode %o", path, mode&0o7777)
			}
			if size != 0 {
				return contents{}, fmt.Errorf("%s is neither a file nor a directory", path)
			}
			continue
		}
		if err := found.add(mode, fmt.Sprintf("%d:%d", uid, gid), path, io.LimitReader(content, size)); err != nil {
			return contents{}, err
		}
		if _, err := io.Copy(io.Discard, content); err != nil {
			return contents{}, err
		}
	}
}
