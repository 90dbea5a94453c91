package profiles

import (
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
)

func mode(t *testing.T, path string, m os.FileMode) {
	t.Helper()
	if err := os.Chmod(path, m); err != nil {
		t.Fatal(err)
	}
}

func TestLoad(t *testing.T) {
	dir := t.TempDir()
	mode(t, dir, 0o755)
	write(t, filepath.Join(dir, "a.toml"), minimal, 0o644)
	write(t, filepath.Join(dir, "b-open.toml"), strings.Replace(minimal, `"ocr"`, `"open"`, 1), 0o666)
	write(t, filepath.Join(dir, "c-broken.toml"), "name = ", 0o644)
	write(t, filepath.Join(dir, "d.toml"), strings.Replace(minimal, `"ocr"`, `"twin"`, 1), 0o644)
	write(t, filepath.Join(dir, "e.toml"), strings.Replace(minimal, `"ocr"`, `"twin"`, 1), 0o644)
	write(t, filepath.Join(dir, "f-named.toml"), strings.Replace(minimal, `"ocr"`, `"named"`, 1)+"[bogus]\n", 0o644)
	write(t, filepath.Join(dir, "README"), "not a profile", 0o644)
	if err := syscall.Mkfifo(filepath.Join(dir, "g-fifo.toml"), 0o600); err != nil {
		t.Fatal(err)
	}

	loaded, err := Load(dir)
	if err != nil {
		t.Fatal(err)
	}
	var got []string
	for _, l := range loaded {
		line := l.File + " " + l.Name
		if l.Err != nil {
			line += ": " + l.Err.Error()
		}
		got = append(got, line)
	}
	want := []string{
		"a.toml ocr",
		"b-open.toml b-open: can be written by others (mode 0666): chmod go-w it",
		"c-broken.toml c-broken: not valid TOML at line 1, column 7: correct it there (a key may also be there twice)",
		"d.toml twin: name: is also the name of e.toml: rename one of them",
		"e.toml twin: name: is also the name of d.toml: rename one of them",
		"f-named.toml named: bogus: is not a key of a profile: remove it (known here: allow_root, args, channel, env, filesystem, image, lifecycle, logs, name, process, resources, user)",
		"g-fifo.toml g-fifo: is not a regular file",
	}
	if strings.Join(got, "\n") != strings.Join(want, "\n") {
		t.Errorf("\n got %s\nwant %s", strings.Join(got, "\n     "), strings.Join(want, "\n     "))
	}
}

func TestLoadRefusesDirectoryOpenToOthers(t *testing.T) {
	dir := t.TempDir()
	mode(t, dir, 0o777)
	if _, err := Load(dir); err == nil || !strings.Contains(err.Error(), "can be written by others (mode 0777): chmod go-w it") {
		t.Errorf("got %v", err)
	}
	if _, err := Load(filepath.Join(dir, "absent")); err == nil {
		t.Error("an absent directory was accepted")
	}
}

// I1, I2: no mount can show the engine, the agent or the kernel to a worker.
func TestCheckMountSources(t *testing.T) {
	dir := t.TempDir()
	own := filepath.Join(dir, "state")
	models := filepath.Join(dir, "models")
	for _, d := range []string{own, models, filepath.Join(own, "sub")} {
		if err := os.MkdirAll(d, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	link := filepath.Join(dir, "link")
	if err := os.Symlink(own, link); err != nil {
		t.Fatal(err)
	}
	fifo := filepath.Join(models, "fifo")
	if err := syscall.Mkfifo(fifo, 0o600); err != nil {
		t.Fatal(err)
	}
	for _, tc := range []struct{ source, want string }{
		{models, ""},
		{filepath.Join(dir, "absent"), "cannot be followed on this host (no such file or directory)"},
		{own, "would show " + own},
		{filepath.Join(own, "sub"), "would show " + own},
		{link, "would show " + own},
		{dir, "would show " + own},
		{fifo, "neither a directory nor a regular file"},
		{"/", "would show /proc"},
		{"/proc/self", "would show /proc"},
		{"/sys", "would show /sys"},
		{"/dev/null", "neither a directory nor a regular file"},
		{"/dev", "would show /dev"},
	} {
		p := Profile{Filesystem: Filesystem{Mounts: []Mount{{Source: tc.source, Target: "/t"}}}}
		err := Check(&p, []string{own})
		if (err == nil) != (tc.want == "") || err != nil && !strings.Contains(err.Error(), tc.want) {
			t.Errorf("%s: got %v, want %q", tc.source, err, tc.want)
		}
	}
}
