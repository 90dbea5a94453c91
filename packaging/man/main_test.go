package main

import (
	"bytes"
	"compress/gzip"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// Every program gets pages of its own and completions for three shells, the
// same bytes each time.
func TestWrite(t *testing.T) {
	for name, want := range map[string]string{
		"agentctl":   "man/man1/agentctl-jobs-submit.1.gz",
		"controller": "man/man5/quittance-offering.5.gz",
		"hostagent":  "man/man5/quittance-profile.5.gz",
	} {
		t.Run(name, func(t *testing.T) {
			one, two := t.TempDir(), t.TempDir()
			for _, dir := range []string{one, two} {
				if err := write(name, dir, "1796000000"); err != nil {
					t.Fatal(err)
				}
			}
			for _, file := range []string{want, "completion/bash", "completion/zsh", "completion/fish"} {
				first, err := os.ReadFile(filepath.Join(one, file))
				if err != nil {
					t.Fatal(err)
				}
				second, err := os.ReadFile(filepath.Join(two, file))
				if err != nil || !bytes.Equal(first, second) {
					t.Errorf("%s differs (error %v)", file, err)
				}
			}
			packed, err := os.Open(filepath.Join(one, want))
			if err != nil {
				t.Fatal(err)
			}
			defer packed.Close()
			unpacked, err := gzip.NewReader(packed)
			if err != nil {
				t.Fatal(err)
			}
			page, err := io.ReadAll(unpacked)
			if err != nil || !bytes.Contains(page, []byte(".TH")) || !bytes.Contains(page, []byte("Quittance")) {
				t.Errorf("not a page: %.200s, %v", page, err)
			}
		})
	}
	for _, c := range [][3]string{{"nothing", "x", "0"}, {"agentctl", "", "0"}, {"agentctl", t.TempDir(), "x"}} {
		if err := write(c[0], c[1], c[2]); err == nil {
			t.Errorf("%q accepted", c)
		}
	}
}

// The packages' golden lists name exactly the pages that the commands have. A
// new command is a new line there: UPDATE_GOLDEN=1 go test ./packaging/man
// writes it.
func TestGoldenListsEveryPage(t *testing.T) {
	const prefix = "0644 0:0 /usr/share/man/"
	for name := range programs {
		dir := t.TempDir()
		if err := write(name, dir, "0"); err != nil {
			t.Fatal(err)
		}
		pages, err := filepath.Glob(filepath.Join(dir, "man", "*", "*"))
		if err != nil {
			t.Fatal(err)
		}
		var want []string
		for _, page := range pages {
			relative, err := filepath.Rel(filepath.Join(dir, "man"), page)
			if err != nil {
				t.Fatal(err)
			}
			want = append(want, prefix+relative)
		}
		golden := filepath.Join("..", "golden", "quittance-"+name+".txt")
		text, err := os.ReadFile(golden)
		if err != nil {
			t.Fatal(err)
		}
		lines := strings.Split(strings.TrimSpace(string(text)), "\n")
		isPage := func(line string) bool { return strings.HasPrefix(line, prefix) }
		var got []string
		for _, line := range lines {
			if isPage(line) {
				got = append(got, line)
			}
		}
		slices.Sort(want)
		if slices.Equal(got, want) {
			continue
		}
		if os.Getenv("UPDATE_GOLDEN") == "" {
			t.Errorf("%s does not name the pages of the commands: UPDATE_GOLDEN=1 go test ./packaging/man writes them\ngot\n%s\nwant\n%s",
				golden, strings.Join(got, "\n"), strings.Join(want, "\n"))
			continue
		}
		lines = append(slices.DeleteFunc(lines, isPage), want...)
		slices.Sort(lines)
		if err := os.WriteFile(golden, []byte(strings.Join(lines, "\n")+"\n"), 0o644); err != nil {
			t.Fatal(err)
		}
	}
}
