// Command man writes the man pages and shell completions of one of the three
// programs, generated from its commands, and the hand-written pages of sections
// 5 and 7 that belong to its package.
//
//	go run ./packaging/man -program agentctl -dir build/stage/agentctl
package main

import (
	"bytes"
	"compress/gzip"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"github.com/cpuguy83/go-md2man/v2/md2man"
	"github.com/spf13/cobra"
	"github.com/spf13/cobra/doc"

	agentctl "github.com/quittance/quittance/cmd/agentctl/command"
	controller "github.com/quittance/quittance/cmd/controller/command"
	hostagent "github.com/quittance/quittance/cmd/hostagent/command"
	"github.com/quittance/quittance/packaging/man/pages"
)

// program is one of the three with its manual section and the pages about its
// files.
type program struct {
	root    func() *cobra.Command
	section string
	files   []string
}

var programs = map[string]program{
	"agentctl":   {root: agentctl.New, section: "1"},
	"controller": {root: controller.New, section: "8", files: []string{"quittance-offering.5", "quittance-controller-metrics.7"}},
	"hostagent":  {root: hostagent.New, section: "8", files: []string{"quittance-profile.5", "quittance-hostagent-metrics.7"}},
}

func main() {
	name := flag.String("program", "", "agentctl, controller or hostagent")
	dir := flag.String("dir", "", "directory that gets man/ and completion/")
	date := flag.String("date", "0", "the pages' date, seconds since 1970")
	flag.Parse()
	if err := write(*name, *dir, *date); err != nil {
		fmt.Fprintln(os.Stderr, "man:", err)
		os.Exit(1)
	}
}

func write(name, dir, date string) error {
	p, known := programs[name]
	if !known || dir == "" {
		return fmt.Errorf("-program must be agentctl, controller or hostagent, and -dir must be given")
	}
	seconds, err := strconv.ParseInt(date, 10, 64)
	if err != nil {
		return fmt.Errorf("-date must be seconds since 1970")
	}
	at := time.Unix(seconds, 0).UTC()
	header := &doc.GenManHeader{Section: p.section, Source: "Quittance", Manual: "Quittance", Date: &at}
	root := p.root()
	root.DisableAutoGenTag = true
	if err := commandPages(filepath.Join(dir, "man"), root, header); err != nil {
		return err
	}
	for _, page := range p.files {
		text, err := pages.Read(page)
		if err != nil {
			return err
		}
		if err := writePage(filepath.Join(dir, "man"), page, md2man.Render(text)); err != nil {
			return err
		}
	}
	return completions(filepath.Join(dir, "completion"), root)
}

// commandPages writes a page for a command and for each one below it.
func commandPages(dir string, cmd *cobra.Command, header *doc.GenManHeader) error {
	for _, sub := range cmd.Commands() {
		if !sub.IsAvailableCommand() || sub.IsAdditionalHelpTopicCommand() {
			continue
		}
		if err := commandPages(dir, sub, header); err != nil {
			return err
		}
	}
	own := *header
	var text bytes.Buffer
	if err := doc.GenMan(cmd, &own, &text); err != nil {
		return fmt.Errorf("%s: %w", cmd.CommandPath(), err)
	}
	name := strings.ReplaceAll(cmd.CommandPath(), " ", "-") + "." + header.Section
	return writePage(dir, name, text.Bytes())
}

// writePage writes dir/manN/name.gz, the same bytes for the same page.
func writePage(dir, name string, text []byte) error {
	section := name[strings.LastIndexByte(name, '.')+1:]
	target := filepath.Join(dir, "man"+section)
	if err := os.MkdirAll(target, 0o755); err != nil {
		return err
	}
	var packed bytes.Buffer
	w, err := gzip.NewWriterLevel(&packed, gzip.BestCompression)
	if err != nil {
		return err
	}
	if _, err := w.Write(text); err != nil {
		return err
	}
	if err := w.Close(); err != nil {
		return err
	}
	return os.WriteFile(filepath.Join(target, name+".gz"), packed.Bytes(), 0o644)
}

func completions(dir string, root *cobra.Command) error {
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return err
	}
	for name, generate := range map[string]func(*bytes.Buffer) error{
		"bash": func(b *bytes.Buffer) error { return root.GenBashCompletionV2(b, true) },
		"zsh":  func(b *bytes.Buffer) error { return root.GenZshCompletion(b) },
		"fish": func(b *bytes.Buffer) error { return root.GenFishCompletion(b, true) },
	} {
		var text bytes.Buffer
		if err := generate(&text); err != nil {
			return fmt.Errorf("completion for %s: %w", name, err)
		}
		if err := os.WriteFile(filepath.Join(dir, name), text.Bytes(), 0o644); err != nil {
			return err
		}
	}
	return nil
}
