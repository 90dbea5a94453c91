// Package images builds the reference workers as OCI archives: it compiles
// their programs, makes the OCR worker's root file system from the
// distribution's packages, and pins images in example profiles.
//
// It owns the workers' image contents. It must not know engines or
// controllers: what it returns is files and references.
package images

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"

	"github.com/quittance/quittance/integration/ociarchive"
)

// module is this module's import path, the prefix of every worker program.
const module = "github.com/quittance/quittance"

// Built is one image in an archive on this machine.
type Built struct {
	ociarchive.Written
	// File is the archive's path.
	File string `json:"file"`
}

// recipe makes the layers of one worker's image.
type recipe struct {
	// root makes the lower layers in the cache directory; nil: from nothing.
	root func(ctx context.Context, dir string) ([]ociarchive.Layer, error)
	// program is the worker's package below integration/workers.
	program string
}

var recipes = map[string]recipe{
	"langid":    {program: "langid"},
	"misbehave": {program: "misbehave"},
	"ocr":       {program: "ocr", root: ocrLayers},
}

// Names lists the workers that [Build] knows, sorted.
func Names() []string {
	names := make([]string, 0, len(recipes))
	for name := range recipes {
		names = append(names, name)
	}
	slices.Sort(names)
	return names
}

// Build makes the image of one worker as dir/name.tar. The program is
// compiled anew each time (the Go build cache makes that quick); a root file
// system already in dir is used again. The working directory must lie in this
// module; "ocr" needs root rights and mmdebstrap unless its root file system
// is already in dir.
func Build(ctx context.Context, dir, name string) (Built, error) {
	r, known := recipes[name]
	if !known {
		return Built{}, fmt.Errorf("no worker %q; there are %s", name, strings.Join(Names(), ", "))
	}
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return Built{}, fmt.Errorf("worker %s: %w", name, err)
	}
	var layers []ociarchive.Layer
	if r.root != nil {
		lower, err := r.root(ctx, dir)
		if err != nil {
			return Built{}, fmt.Errorf("worker %s: %w", name, err)
		}
		layers = lower
	}
	program, err := compile(ctx, r.program)
	if err != nil {
		return Built{}, fmt.Errorf("worker %s: %w", name, err)
	}
	target := "/usr/bin/" + name
	upper, err := ociarchive.Files([]ociarchive.File{{Target: target, Mode: 0o755, Content: program}}, "/tmp")
	if err != nil {
		return Built{}, fmt.Errorf("worker %s: %w", name, err)
	}
	file := filepath.Join(dir, name+".tar")
	written, err := ociarchive.Write(file, ociarchive.Image{
		Name: name, Layers: append(layers, upper), Entrypoint: []string{target},
		Env: []string{"PATH=/usr/local/bin:/usr/bin:/bin"}, User: "65532:65532",
	})
	if err != nil {
		return Built{}, err
	}
	return Built{Written: written, File: file}, nil
}

// compile builds one worker's program static and reproducible.
func compile(ctx context.Context, program string) (content []byte, err error) {
	dir, err := os.MkdirTemp("", "quittance-worker-")
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(dir)) }()
	target := filepath.Join(dir, "program")
	command := exec.CommandContext(ctx, "go", "build", "-trimpath", "-buildvcs=false", "-ldflags=-s -w -buildid=",
		"-o", target, module+"/integration/workers/"+program)
	command.Env = append(os.Environ(), "CGO_ENABLED=0")
	if err := run(command); err != nil {
		return nil, err
	}
	return os.ReadFile(target)
}

// run runs a command and puts the end of what it said into its error.
func run(command *exec.Cmd) error {
	var said bytes.Buffer
	command.Stdout, command.Stderr = &said, &said
	if err := command.Run(); err != nil {
		return fmt.Errorf("%s: %w: %s", filepath.Base(command.Path), err, tail(said.String()))
	}
	return nil
}

// tail is the last few lines of a program's output.
func tail(said string) string {
	lines := strings.Split(strings.TrimSpace(said), "\n")
	return strings.Join(lines[max(0, len(lines)-8):], "\n")
}

// imageLine is the line of a profile that names its image.
var imageLine = regexp.MustCompile(`(?m)^image(\s*)=(\s*)"([^"@]*)(@sha256:[0-9a-f]{64})?"`)

// ErrNoImage says that a profile has no line that names the ref's image.
var ErrNoImage = errors.New("the profile has no image line for this image")

// Pin puts ref into a profile's TOML in place of the image of the same name,
// pinned or not, and leaves every other byte as it is.
func Pin(profile []byte, ref string) ([]byte, error) {
	name, _, pinned := strings.Cut(ref, "@")
	if !pinned {
		return nil, fmt.Errorf("reference %s has no digest", ref)
	}
	found := imageLine.FindSubmatchIndex(profile)
	if found == nil || string(profile[found[6]:found[7]]) != name {
		return nil, fmt.Errorf("%w: %s", ErrNoImage, name)
	}
	end := found[7]
	if found[9] > end {
		end = found[9]
	}
	return slices.Concat(profile[:found[6]], []byte(ref), profile[end:]), nil
}

// exists reports whether a regular file lies at path.
func exists(path string) (bool, error) {
	info, err := os.Stat(path)
	if errors.Is(err, fs.ErrNotExist) {
		return false, nil
	}
	if err != nil {
		return false, err
	}
	if !info.Mode().IsRegular() {
		return false, fmt.Errorf("%s is not a regular file", path)
	}
	return true, nil
}
