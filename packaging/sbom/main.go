// Command sbom writes what a Go program is made of as a CycloneDX document: the
// modules that the linker noted in it, their versions and checksums. It reads
// nothing but the program, so the same program gives the same bytes.
//
//	go run ./packaging/sbom -program build/hostagent -name quittance-hostagent -version 1.0.0 -out hostagent.cdx.json
package main

import (
	"bytes"
	"crypto/sha256"
	"debug/buildinfo"
	"encoding/base64"
	"encoding/hex"
	"errors"
	"flag"
	"fmt"
	"os"
	"runtime/debug"
	"slices"
	"strings"

	cdx "github.com/CycloneDX/cyclonedx-go"
)

func main() {
	program := flag.String("program", "", "the program to describe")
	name := flag.String("name", "", "its name in the document")
	version := flag.String("version", "", "its version in the document")
	out := flag.String("out", "", "file to write")
	flag.Parse()
	if err := write(*program, *name, *version, *out); err != nil {
		fmt.Fprintln(os.Stderr, "sbom:", err)
		os.Exit(1)
	}
}

func write(program, name, version, out string) error {
	if program == "" || name == "" || version == "" || out == "" {
		return errors.New("-program, -name, -version and -out must be given")
	}
	content, err := os.ReadFile(program)
	if err != nil {
		return err
	}
	info, err := buildinfo.Read(bytes.NewReader(content))
	if err != nil {
		return fmt.Errorf("%s: %w", program, err)
	}
	document, err := describe(info, name, version, sha256.Sum256(content))
	if err != nil {
		return err
	}
	var text bytes.Buffer
	if err := cdx.NewBOMEncoder(&text, cdx.BOMFileFormatJSON).SetPretty(true).Encode(document); err != nil {
		return err
	}
	return os.WriteFile(out, text.Bytes(), 0o644)
}

// describe makes the document. It has no serial number and no time: both would
// make two builds differ.
func describe(info *debug.BuildInfo, name, version string, sum [sha256.Size]byte) (*cdx.BOM, error) {
	self := cdx.Component{
		BOMRef: name, Type: cdx.ComponentTypeApplication, Name: name, Version: version,
		Hashes:   &[]cdx.Hash{{Algorithm: cdx.HashAlgoSHA256, Value: hex.EncodeToString(sum[:])}},
		Licenses: &cdx.Licenses{{License: &cdx.License{ID: "Apache-2.0"}}},
	}
	standard := strings.TrimPrefix(info.GoVersion, "go")
	components := []cdx.Component{{
		BOMRef: "std", Type: cdx.ComponentTypeLibrary, Name: "std", Version: standard, PackageURL: "pkg:golang/std@" + standard,
	}}
	for _, module := range info.Deps {
		if module.Replace != nil {
			module = module.Replace
		}
		component := cdx.Component{
			BOMRef: module.Path, Type: cdx.ComponentTypeLibrary, Name: module.Path, Version: module.Version,
			PackageURL: "pkg:golang/" + module.Path + "@" + module.Version,
		}
		// The checksum of go.sum: SHA-256 over the module's list of files.
		if text, ok := strings.CutPrefix(module.Sum, "h1:"); ok {
			value, err := base64.StdEncoding.DecodeString(text)
			if err != nil {
				return nil, fmt.Errorf("%s: its checksum: %w", module.Path, err)
			}
			component.Hashes = &[]cdx.Hash{{Algorithm: cdx.HashAlgoSHA256, Value: hex.EncodeToString(value)}}
		}
		components = append(components, component)
	}
	slices.SortFunc(components, func(a, b cdx.Component) int { return strings.Compare(a.BOMRef, b.BOMRef) })
	needs := make([]string, len(components))
	for i, c := range components {
		needs[i] = c.BOMRef
	}
	document := cdx.NewBOM()
	document.Metadata = &cdx.Metadata{Component: &self}
	document.Components = &components
	document.Dependencies = &[]cdx.Dependency{{Ref: name, Dependencies: &needs}}
	return document, nil
}
