// Command ocr is a reference worker: it reads a page image with Tesseract. Its
// memory is almost all in its child, which lives for one request: about 35 MB
// for a line of text, 265 MB for a very large page.
//
//	GET  /health               → 200 {"status":"READY"}
//	POST /predict, image/png   → 200 {"text":"…","words":42,…}
//
// When its child is killed it says so with status 500 and lives on: what that
// means is for the host's receipts to tell, not for the worker.
package main

import (
	"bytes"
	"context"
	"errors"
	"flag"
	"fmt"
	"image/png"
	"os"
	"os/exec"
	"syscall"
	"time"

	"github.com/quittance/quittance/integration/workers/worker"
)

const (
	maxImage = 32 << 20 // bytes of PNG
	maxTable = 64 << 20 // bytes of Tesseract's table: far above any page
	maxError = 2 << 10  // bytes of Tesseract's complaints that are kept
)

func main() {
	listen := flag.String("listen", "127.0.0.1:8080", "host:port or unix:/path to listen on")
	program := flag.String("tesseract", "tesseract", "the Tesseract program")
	flag.Parse()
	if flag.NArg() != 0 {
		flag.Usage()
		os.Exit(2)
	}
	reader := reader{program: *program}
	model := worker.Worker{ContentType: "image/png", MaxBytes: maxImage, Predict: reader.read}
	if err := worker.Run(model, *listen); err != nil {
		fmt.Fprintln(os.Stderr, "ocr:", err)
		os.Exit(1)
	}
}

// reader runs Tesseract once per page.
type reader struct{ program string }

func (r reader) read(ctx context.Context, input []byte) (any, error) {
	config, err := png.DecodeConfig(bytes.NewReader(input))
	if err != nil {
		return nil, &worker.InputError{Reason: "the body is not a PNG image"}
	}
	table, err := r.recognise(ctx, input)
	if err != nil {
		return nil, err
	}
	found, err := parseTable(table)
	if err != nil {
		return nil, err
	}
	found.Width, found.Height = config.Width, config.Height
	return found, nil
}

// recognise returns Tesseract's table of one page.
func (r reader) recognise(ctx context.Context, input []byte) ([]byte, error) {
	command := exec.CommandContext(ctx, r.program, "stdin", "stdout", "-l", "eng", "tsv")
	command.Stdin = bytes.NewReader(input)
	table, complaints := &limited{max: maxTable}, &limited{max: maxError}
	command.Stdout, command.Stderr = table, complaints
	command.WaitDelay = time.Second
	err := command.Run()
	var exit *exec.ExitError
	switch {
	case errors.As(err, &exit):
		if status, ok := exit.Sys().(syscall.WaitStatus); ok && status.Signaled() {
			return nil, fmt.Errorf("tesseract was ended by signal %d (%s)", status.Signal(), status.Signal())
		}
		return nil, fmt.Errorf("tesseract failed with exit status %d: %s", exit.ExitCode(), bytes.TrimSpace(complaints.kept.Bytes()))
	case err != nil:
		return nil, fmt.Errorf("tesseract did not run: %w", err)
	case table.full:
		return nil, fmt.Errorf("tesseract's answer is longer than %d bytes", maxTable)
	}
	return table.kept.Bytes(), nil
}

// limited keeps the first max bytes written to it and notes that there were
// more. The buffer is a field, not embedded: its ReadFrom would go around the
// bound.
type limited struct {
	kept bytes.Buffer
	max  int
	full bool
}

func (l *limited) Write(p []byte) (int, error) {
	keep := min(len(p), l.max-l.kept.Len())
	if keep < len(p) {
		l.full = true
	}
	if _, err := l.kept.Write(p[:keep]); err != nil {
		return 0, err
	}
	return len(p), nil
}
