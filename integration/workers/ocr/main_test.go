package main

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/quittance/quittance/integration/workers/page"
	"github.com/quittance/quittance/integration/workers/worker"
)

// row makes one table row of 12 columns.
func row(level, line, word int, confidence, text string) string {
	return fmt.Sprintf("%d\t1\t1\t1\t%d\t%d\t0\t0\t10\t10\t%s\t%s\n", level, line, word, confidence, text)
}

func TestParseTable(t *testing.T) {
	table := tableHeader + "\n" +
		row(1, 0, 0, "-1", "") + row(4, 1, 0, "-1", "") +
		row(5, 1, 1, "96.5", "Hello") + row(5, 1, 2, "90.5", "world") +
		row(5, 2, 1, "80", "again") + row(5, 2, 2, "95", " ")
	got, err := parseTable([]byte(table))
	if err != nil {
		t.Fatal(err)
	}
	if got.Text != "Hello world\nagain\n" || got.Words != 3 || got.Lines != 2 || got.Confidence != 89 {
		t.Errorf("%+v", got)
	}
	empty, err := parseTable([]byte(tableHeader + "\n" + row(1, 0, 0, "-1", "")))
	if err != nil || empty.Text != "" || empty.Words != 0 || empty.Confidence != 0 {
		t.Errorf("empty page: %+v, %v", empty, err)
	}
	for name, bad := range map[string]string{
		"nothing":         "",
		"other header":    "level\n",
		"missing columns": tableHeader + "\n5\t1\n",
		"no confidence":   tableHeader + "\n" + row(5, 1, 1, "x", "a"),
		"NaN":             tableHeader + "\n" + row(5, 1, 1, "NaN", "a"),
		"over 100":        tableHeader + "\n" + row(5, 1, 1, "101", "a"),
	} {
		if _, err := parseTable([]byte(bad)); !errors.Is(err, errTable) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// program writes a shell script that stands in for Tesseract at its process
// boundary: the real one runs in the engine lane.
func program(t *testing.T, script string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "tesseract")
	if err := os.WriteFile(path, []byte("#!/bin/sh\n"+script+"\n"), 0o755); err != nil {
		t.Fatal(err)
	}
	return path
}

func TestRead(t *testing.T) {
	image, _, err := page.Render(page.Small())
	if err != nil {
		t.Fatal(err)
	}
	table := filepath.Join(t.TempDir(), "table")
	if err := os.WriteFile(table, []byte(tableHeader+"\n"+row(5, 1, 1, "90", "word")), 0o644); err != nil {
		t.Fatal(err)
	}
	got, err := reader{program(t, `test "$*" = "stdin stdout -l eng tsv" && test "$(wc -c)" -gt 1000 && cat `+table)}.read(t.Context(), image)
	want := reading{Text: "word\n", Words: 1, Lines: 1, Confidence: 90, Width: 900, Height: 300}
	if err != nil || got != want {
		t.Errorf("%+v, %v", got, err)
	}
	for name, c := range map[string]struct{ script, want string }{
		"killed":    {"kill -KILL $$", "tesseract was ended by signal 9 (killed)"},
		"failed":    {"echo no model >&2; exit 3", "tesseract failed with exit status 3: no model"},
		"no table":  {"cat >/dev/null; echo hello", "tesseract's answer is not a table of words"},
		"wordy end": {"head -c 100000 /dev/zero | tr '\\0' x >&2; exit 1", "tesseract failed with exit status 1: " + strings.Repeat("x", maxError)},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := reader{program(t, c.script)}.read(t.Context(), image)
			if err == nil || strings.TrimSpace(err.Error()) != c.want {
				t.Errorf("%.300v", err)
			}
		})
	}
	var fault *worker.InputError
	if _, err := (reader{"/nonexistent"}).read(t.Context(), []byte("GIF89a")); !errors.As(err, &fault) {
		t.Errorf("not a PNG: %v", err)
	}
	if _, err := (reader{"/nonexistent"}).read(t.Context(), image); err == nil || errors.As(err, &fault) {
		t.Errorf("no program: %v", err)
	}
}
