// Package pages holds the hand-written man pages: of section 5, the files that
// an administrator writes, and of section 7, the figures for Prometheus. The pages of commands are generated from the
// commands; a test keeps these and the parsers' keys together.
package pages

import (
	"embed"
	"fmt"
)

//go:embed *.md
var files embed.FS

// Read is the Markdown of a page, for example "quittance-profile.5".
func Read(page string) ([]byte, error) {
	text, err := files.ReadFile(page + ".md")
	if err != nil {
		return nil, fmt.Errorf("no page %s", page)
	}
	return text, nil
}
