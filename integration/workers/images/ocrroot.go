package images

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"

	"github.com/quittance/quittance/integration/ociarchive"
)

// packageEpoch is every time in the root file system, so that the same
// packages give the same bytes.
const packageEpoch = "SOURCE_DATE_EPOCH=1700000000"

// ocrLayers is Tesseract with its English model and what they need, extracted
// from the packages of the distribution that this machine runs.
func ocrLayers(ctx context.Context, dir string) ([]ociarchive.Layer, error) {
	release, err := readRelease("/etc/os-release")
	if err != nil {
		return nil, err
	}
	root := filepath.Join(dir, fmt.Sprintf("ocr-root-%s-%s.tar", release.codename, runtime.GOARCH))
	there, err := exists(root)
	if err != nil {
		return nil, err
	}
	if !there {
		if err := makeRoot(ctx, root, release); err != nil {
			return nil, fmt.Errorf("root file system: %w", err)
		}
	}
	layer, err := ociarchive.Rootfs(root)
	if err != nil {
		return nil, err
	}
	return []ociarchive.Layer{layer}, nil
}

// makeRoot extracts the packages into a tar at path, which appears only whole.
func makeRoot(ctx context.Context, path string, release release) (err error) {
	if _, err := exec.LookPath("mmdebstrap"); err != nil {
		return errors.New("mmdebstrap is missing; install the package mmdebstrap")
	}
	work, err := os.MkdirTemp(filepath.Dir(path), ".ocr-root-")
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(work)) }()
	sources, err := ownSources(ctx, release)
	if err != nil {
		return err
	}
	list, made := filepath.Join(work, "sources.list"), filepath.Join(work, "root.tar")
	if err := os.WriteFile(list, []byte(sources), 0o644); err != nil {
		return err
	}
	command := exec.CommandContext(ctx, "mmdebstrap", "--mode=root", "--variant=extract",
		// The runtime makes its own /dev; and where packages came from is not
		// part of what the worker is.
		"--skip=output/dev",
		`--customize-hook=rm -rf "$1"/etc/apt "$1"/var/lib/apt "$1"/var/lib/dpkg "$1"/var/cache "$1"/var/log`,
		"--dpkgopt=path-exclude=/usr/share/doc/*", "--dpkgopt=path-exclude=/usr/share/man/*",
		"--dpkgopt=path-exclude=/usr/share/locale/*",
		"--include=tesseract-ocr,tesseract-ocr-eng", release.codename, made, list)
	command.Env = append(os.Environ(), packageEpoch)
	if err := run(command); err != nil {
		return err
	}
	return os.Rename(made, path)
}

// Sources names the distribution's release that this machine runs, and its own
// package sources as apt is configured here, in the form of a sources.list.
func Sources(ctx context.Context) (codename, list string, err error) {
	release, err := readRelease("/etc/os-release")
	if err != nil {
		return "", "", err
	}
	list, err = ownSources(ctx, release)
	return release.codename, list, err
}

// ownSources lists the distribution's own package sources as apt is
// configured here, mirrors included and third parties left out.
func ownSources(ctx context.Context, release release) (string, error) {
	command := exec.CommandContext(ctx, "apt-get", "indextargets",
		"--format", "deb $(REPO_URI) $(RELEASE) $(COMPONENT)", "Created-By: Packages", "Origin: "+release.origin)
	out, err := command.Output()
	if err != nil {
		return "", fmt.Errorf("apt-get indextargets: %w", err)
	}
	lines := strings.Fields(strings.ReplaceAll(string(out), " ", "\x00"))
	slices.Sort(lines)
	lines = slices.Compact(lines)
	if len(lines) == 0 {
		return "", errors.New("apt knows no package lists of " + release.origin + "; run apt-get update")
	}
	return strings.ReplaceAll(strings.Join(lines, "\n"), "\x00", " ") + "\n", nil
}

// release is the distribution that this machine runs.
type release struct {
	codename string // for example "bookworm"
	origin   string // as its package lists name it: "Debian" or "Ubuntu"
}

func readRelease(path string) (found release, err error) {
	f, err := os.Open(path)
	if err != nil {
		return release{}, err
	}
	defer func() { err = errors.Join(err, f.Close()) }()
	origins := map[string]string{"debian": "Debian", "ubuntu": "Ubuntu"}
	lines := bufio.NewScanner(f)
	for lines.Scan() {
		name, value, _ := strings.Cut(lines.Text(), "=")
		value = strings.Trim(value, `"'`)
		switch name {
		case "ID":
			found.origin = origins[value]
		case "VERSION_CODENAME":
			found.codename = value
		}
	}
	if err := lines.Err(); err != nil {
		return release{}, err
	}
	if found.origin == "" || found.codename == "" {
		return release{}, errors.New("the OCR worker is made of Debian's or Ubuntu's packages; this machine runs neither")
	}
	return found, nil
}
