package main

import (
	"bytes"
	"compress/gzip"
	"io"
	"os"
	"path/filepath"
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
