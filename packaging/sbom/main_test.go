package main

import (
	"bytes"
	"debug/buildinfo"
	"os"
	"path/filepath"
	"testing"

	cdx "github.com/CycloneDX/cyclonedx-go"
)

// This test's own program is described whole: every module that the linker
// noted, with its checksum; twice the same bytes; nothing of another kind.
func TestWrite(t *testing.T) {
	program, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	first, second := filepath.Join(t.TempDir(), "a"), filepath.Join(t.TempDir(), "b")
	for _, out := range []string{first, second} {
		if err := write(program, "quittance-test", "1.2.3", out); err != nil {
			t.Fatal(err)
		}
	}
	text, err := os.ReadFile(first)
	if err != nil {
		t.Fatal(err)
	}
	again, err := os.ReadFile(second)
	if err != nil || !bytes.Equal(text, again) {
		t.Errorf("two documents differ (%v)", err)
	}
	var document cdx.BOM
	if err := cdx.NewBOMDecoder(bytes.NewReader(text), cdx.BOMFileFormatJSON).Decode(&document); err != nil {
		t.Fatal(err)
	}
	if self := document.Metadata.Component; self.Name != "quittance-test" || self.Version != "1.2.3" || len(*self.Hashes) != 1 {
		t.Errorf("describes %+v", self)
	}
	info, err := buildinfo.ReadFile(program)
	if err != nil {
		t.Fatal(err)
	}
	found := map[string]cdx.Component{}
	for _, c := range *document.Components {
		found[c.Name] = c
	}
	if len(found) != len(info.Deps)+1 || found["std"].Version == "" {
		t.Errorf("%d components of %d modules and the standard library", len(found), len(info.Deps))
	}
	for _, module := range info.Deps {
		if c := found[module.Path]; c.Version != module.Version || c.Hashes == nil {
			t.Errorf("%s %s is described as %+v", module.Path, module.Version, c)
		}
	}
	if err := write("main.go", "x", "1", first); err == nil {
		t.Error("a source file was taken for a program")
	}
	if err := write(program, "", "1", first); err == nil {
		t.Error("a document without a name")
	}
}
