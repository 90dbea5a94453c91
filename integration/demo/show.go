package main

import (
	"fmt"
	"io"
	"strings"
	"time"
)

// show writes the demonstration's progress. Errors of writing to the terminal
// are not looked at: there would be nobody to tell.
type show struct {
	w           io.Writer
	began       time.Time
	step_, last int
}

func newShow(w io.Writer, steps int) *show { return &show{w: w, began: time.Now(), last: steps} }

// step begins the next numbered step.
func (s *show) step(title string) {
	s.step_++
	fmt.Fprintf(s.w, "\n== %d/%d  %s  [%s]\n", s.step_, s.last, title, time.Since(s.began).Round(time.Second))
}

// say writes a line of explanation.
func (s *show) say(format string, args ...any) {
	fmt.Fprintf(s.w, "   "+format+"\n", args...)
}

// fact writes something that was checked.
func (s *show) fact(format string, args ...any) {
	fmt.Fprintf(s.w, "   ok  "+format+"\n", args...)
}

// command writes a command as somebody would type it.
func (s *show) command(words ...string) {
	quoted := make([]string, len(words))
	for i, word := range words {
		quoted[i] = word
		if word == "" || strings.ContainsAny(word, " '\"$&|<>();*?") {
			quoted[i] = "'" + strings.ReplaceAll(word, "'", `'\''`) + "'"
		}
	}
	fmt.Fprintf(s.w, "   $ %s\n", strings.Join(quoted, " "))
}

// output writes what a command said, indented, at most max lines of it.
func (s *show) output(text string, max int) {
	lines := strings.Split(strings.TrimRight(text, "\n"), "\n")
	for i, line := range lines {
		if i == max {
			fmt.Fprintf(s.w, "     … %d more lines\n", len(lines)-max)
			return
		}
		fmt.Fprintf(s.w, "     %s\n", line)
	}
}

func (s *show) done() {
	fmt.Fprintf(s.w, "\nDone in %s. Nothing is left behind.\n", time.Since(s.began).Round(time.Second))
}
