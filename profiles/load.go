package profiles

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/quittance/quittance/protocol"
)

// MaxProfiles bounds the files of a profile directory.
const MaxProfiles = 256

// Loaded is one profile file.
type Loaded struct {
	File string // its name in the directory
	// Name is the profile's; where it could not be read, the file's name
	// without ".toml", so that an unavailable profile still has one.
	Name    string
	Profile Profile // meaningful only without Err
	Err     error   // why the profile is unavailable, with remedies
}

// Load reads every *.toml of dir, in the order of their names. One bad file does
// not hide the others: it is listed with its Err. Files that someone other than
// root and this process's user can write are refused, and so is the whole
// directory when it is like that. Two files with one name are both refused:
// nobody could say which was meant.
func Load(dir string) ([]Loaded, error) {
	info, err := os.Stat(dir)
	if err != nil {
		return nil, fmt.Errorf("profile directory: %w", err)
	}
	if !info.IsDir() {
		return nil, fmt.Errorf("profile directory %s is not a directory", dir)
	}
	if err := checkAuthor(info); err != nil {
		return nil, fmt.Errorf("profile directory %s %w", dir, err)
	}
	entries, err := os.ReadDir(dir)
	if err != nil {
		return nil, fmt.Errorf("profile directory: %w", err)
	}
	loaded := []Loaded{}
	for _, e := range entries {
		stem, ok := strings.CutSuffix(e.Name(), ".toml")
		if !ok || strings.HasPrefix(e.Name(), ".") {
			continue
		}
		if len(loaded) == MaxProfiles {
			return nil, fmt.Errorf("profile directory %s has more than %d profiles", dir, MaxProfiles)
		}
		l := Loaded{File: e.Name(), Name: stem}
		l.Profile, l.Err = loadFile(filepath.Join(dir, e.Name()))
		if l.Profile.Name != "" {
			l.Name = l.Profile.Name
		}
		loaded = append(loaded, l)
	}
	refuseTwins(loaded)
	return loaded, nil
}

func loadFile(path string) (Profile, error) {
	f, err := os.OpenFile(path, os.O_RDONLY|unix.O_NONBLOCK, 0) // a FIFO must not hold the start
	if err != nil {
		return Profile{}, err
	}
	defer f.Close() // read only
	info, err := f.Stat()
	if err != nil {
		return Profile{}, err
	}
	if !info.Mode().IsRegular() {
		return Profile{}, errors.New("is not a regular file")
	}
	if err := checkAuthor(info); err != nil {
		return Profile{}, err
	}
	data, err := io.ReadAll(io.LimitReader(f, MaxFileBytes+1))
	if err != nil {
		return Profile{}, err
	}
	return Parse(data)
}

// checkAuthor refuses what somebody without authority over this process could
// have written: a profile decides what root runs (I2).
func checkAuthor(info fs.FileInfo) error {
	st, ok := info.Sys().(*syscall.Stat_t)
	if !ok {
		return errors.New("has no owner that can be read")
	}
	uid := st.Uid
	if uid != 0 && int(uid) != os.Geteuid() {
		return fmt.Errorf("belongs to uid %d: chown it to root", uid)
	}
	if info.Mode().Perm()&0o022 != 0 {
		return fmt.Errorf("can be written by others (mode %04o): chmod go-w it", info.Mode().Perm())
	}
	return nil
}

func refuseTwins(loaded []Loaded) {
	files := map[string][]string{}
	for _, l := range loaded {
		files[l.Name] = append(files[l.Name], l.File)
	}
	for i := range loaded {
		l := &loaded[i]
		if same := files[l.Name]; len(same) > 1 && l.Err == nil {
			others := slices.DeleteFunc(slices.Clone(same), func(f string) bool { return f == l.File })
			l.Err = &Error{[]Problem{{Key: "name", Detail: "is also the name of " + strings.Join(others, ", ") + ": rename one of them"}}}
		}
	}
}

// reserved are places that no worker may see, whatever the configuration: the
// kernel's, engines' and our own. Their parents are refused with them.
var reserved = []string{
	"/proc", "/sys", "/dev", "/boot",
	"/run/containerd", "/var/lib/containerd", "/etc/containerd",
	"/run/docker", "/run/docker.sock", "/var/lib/docker", "/run/crio", "/run/podman", "/var/lib/containers", "/var/lib/kubelet",
	"/run/quittance", "/var/lib/quittance", "/etc/quittance",
	"/etc/shadow", "/root/.ssh",
}

// Check makes the checks of a profile that need this host and no engine: every
// mount source exists, is a file or a directory, and neither is, contains nor
// lies in a place of the kernel, of an engine or of the agent. own are the
// places that the configuration adds: the agent's state directory, its socket's
// directory, the engine's root, state and socket. Symbolic links are followed
// before anything is compared. All problems come at once, as an *[Error].
func Check(p *Profile, own []string) error {
	r := &report{}
	for _, m := range p.Filesystem.Mounts {
		key := "filesystem.mounts, target " + m.Target
		real, err := filepath.EvalSymlinks(m.Source)
		if err != nil {
			r.add(key, "%s cannot be followed on this host (%v): create it or correct the path", m.Source, errors.Unwrap(err))
			continue
		}
		info, err := os.Stat(real)
		if err != nil {
			r.add(key, "%s cannot be read (%v)", m.Source, errors.Unwrap(err))
			continue
		}
		if !info.IsDir() && !info.Mode().IsRegular() {
			r.add(key, "%s is neither a directory nor a regular file: sockets, devices and pipes of the host are not handed to workers", m.Source)
			continue
		}
		for _, place := range append(slices.Clone(reserved), own...) {
			place = resolved(place)
			if within(real, place) || within(place, real) {
				r.add(key, "%s would show %s to the worker: mount a directory that holds only what it needs", m.Source, place)
				break
			}
		}
	}
	return r.err()
}

// resolved follows links where the place exists.
func resolved(place string) string {
	if real, err := filepath.EvalSymlinks(place); err == nil {
		return real
	}
	return filepath.Clean(place)
}

// Limits are the profile's resources as receipts and messages carry them.
func (p *Profile) Limits() protocol.Limits {
	return protocol.Limits{
		MemoryBytes: p.Resources.MemoryBytes, SwapBytes: p.Resources.SwapBytes,
		CPUMillis: p.Resources.CPUMillis, PIDs: p.Resources.PIDs,
	}
}

// ImageDigest is the digest that the image reference is pinned to.
func (p *Profile) ImageDigest() protocol.Digest { return imageDigest(p.Image) }

// DeviceKinds are the CDI kinds asked for, each repeated per count.
func (p *Profile) DeviceKinds() []string {
	kinds := []string{}
	for _, d := range p.Resources.Devices {
		for range d.Count {
			kinds = append(kinds, d.Kind)
		}
	}
	return kinds
}
