// Package table writes aligned columns and titled facts for people, safely:
// text that came from elsewhere cannot move the cursor.
//
// It owns layout and escaping. It must not know what the cells mean.
package table

import (
	"fmt"
	"io"
	"strings"
	"unicode"
	"unicode/utf8"
)

// gap is the space between two columns.
const gap = "  "

// Table collects rows and writes them aligned.
type Table struct {
	rows [][]string
}

// New makes a table with a header line.
func New(header ...string) *Table { return &Table{rows: [][]string{header}} }

// Row adds a row. Missing cells are empty.
func (t *Table) Row(cells ...any) {
	row := make([]string, len(cells))
	for i, cell := range cells {
		row[i] = Clean(fmt.Sprint(cell))
	}
	t.rows = append(t.rows, row)
}

// Write writes the table. The last column is not padded.
func (t *Table) Write(w io.Writer) error {
	widths := make([]int, len(t.rows[0]))
	for _, row := range t.rows {
		for i, cell := range row {
			if i < len(widths) {
				widths[i] = max(widths[i], utf8.RuneCountInString(cell))
			}
		}
	}
	var b strings.Builder
	for _, row := range t.rows {
		var line strings.Builder
		for i, cell := range row {
			if i > 0 {
				line.WriteString(gap)
			}
			line.WriteString(cell)
			if i < len(row)-1 {
				line.WriteString(strings.Repeat(" ", widths[i]-utf8.RuneCountInString(cell)))
			}
		}
		b.WriteString(strings.TrimRight(line.String(), " ") + "\n")
	}
	_, err := io.WriteString(w, b.String())
	return err
}

// Facts are titled values, one a line.
type Facts struct {
	names, values []string
}

// Add adds a fact; an empty value is left out.
func (f *Facts) Add(name string, value any) {
	if text := Clean(fmt.Sprint(value)); text != "" {
		f.names, f.values = append(f.names, name), append(f.values, text)
	}
}

// Write writes the facts, values aligned.
func (f *Facts) Write(w io.Writer) error {
	width := 0
	for _, name := range f.names {
		width = max(width, utf8.RuneCountInString(name))
	}
	var b strings.Builder
	for i, name := range f.names {
		b.WriteString(name + strings.Repeat(" ", width-utf8.RuneCountInString(name)) + gap + f.values[i] + "\n")
	}
	_, err := io.WriteString(w, b.String())
	return err
}

// Clean makes text harmless on a terminal: control characters, line breaks
// among them, and invalid bytes become visible escapes.
func Clean(text string) string {
	return clean(text, func(rune) bool { return false })
}

// CleanLines is [Clean] for text of several lines: line feeds and tabs stay.
func CleanLines(text string) string {
	return clean(text, func(r rune) bool { return r == '\n' || r == '\t' })
}

func clean(text string, keep func(rune) bool) string {
	harmless := func(r rune) bool { return keep(r) || (unicode.IsPrint(r) && r != utf8.RuneError) }
	if utf8.ValidString(text) && strings.IndexFunc(text, func(r rune) bool { return !harmless(r) }) < 0 {
		return text
	}
	var b strings.Builder
	for i := 0; i < len(text); {
		r, size := utf8.DecodeRuneInString(text[i:])
		switch {
		case r == utf8.RuneError && size == 1:
			fmt.Fprintf(&b, `\x%02x`, text[i])
		case harmless(r):
			b.WriteRune(r)
		default:
			quoted := fmt.Sprintf("%+q", r)
			b.WriteString(quoted[1 : len(quoted)-1])
		}
		i += size
	}
	return b.String()
}
