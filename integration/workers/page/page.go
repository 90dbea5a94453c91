// Package page renders pages of text as PNG images: the real input of the OCR
// worker in the demonstration and in tests.
//
// It owns the rendering and its text. It must not know who reads the pages.
// The same page gives the same bytes.
package page

import (
	"bytes"
	"fmt"
	"image"
	"image/color"
	"image/draw"
	"image/png"
	"strings"

	"golang.org/x/image/font"
	"golang.org/x/image/font/gofont/goregular"
	"golang.org/x/image/font/opentype"
	"golang.org/x/image/math/fixed"
)

// Page is one page to render.
type Page struct {
	Width, Height int     // pixels
	FontSize      float64 // pixels per em
	Text          string  // words separated by spaces; laid out again and again until the page is full, or once
	Once          bool    // the text once, not until the page is full
}

// Small is a slip of two lines: about 35 MB of memory to read.
func Small() Page {
	return Page{Width: 900, Height: 300, FontSize: 40, Once: true,
		Text: "The host agent keeps a signed receipt for every container that it started and removed."}
}

// Letter is an ordinary page at 180 dots per inch: about 65 MB to read.
func Letter() Page {
	return Page{Width: 1476, Height: 2088, FontSize: 34, Text: Prose}
}

// Huge is a poster of 66 million pixels: about 265 MB to read.
func Huge() Page {
	return Page{Width: 5716, Height: 11560, FontSize: 160, Text: Prose}
}

// Prose is the text of the larger pages.
const Prose = "A quittance is a paper that proves a debt was paid. It names what was owed, who " +
	"received it and on which day, and once it is signed nobody can ask for the same sum again. " +
	"Machines that work for other machines need such papers as much as people do. When a server " +
	"says that it started a program, somebody will later ask whether the program ran once or " +
	"twice, whether it ended by itself, and whether the memory that it used was given back. An " +
	"honest answer has three forms. It happened, and here is the proof. It did not happen, and " +
	"nothing was changed. Or nobody knows yet, and somebody must look again before anything else " +
	"is done. The third answer is the one that most systems leave out, and it is the reason why " +
	"work is lost, or done twice, after every small accident of a network or a disk."

// Render lays the text out from the top left corner with a margin of one line
// and returns the page as a grey PNG with how many words stand on it whole.
func Render(p Page) (encoded []byte, words int, err error) {
	if p.Width < 1 || p.Height < 1 || p.FontSize < 1 || strings.TrimSpace(p.Text) == "" {
		return nil, 0, fmt.Errorf("page of %d by %d pixels with letters of %g pixels cannot be rendered", p.Width, p.Height, p.FontSize)
	}
	parsed, err := opentype.Parse(goregular.TTF)
	if err != nil {
		return nil, 0, fmt.Errorf("font: %w", err)
	}
	// 72 dots per inch make a point one pixel.
	face, err := opentype.NewFace(parsed, &opentype.FaceOptions{Size: p.FontSize, DPI: 72, Hinting: font.HintingFull})
	if err != nil {
		return nil, 0, fmt.Errorf("font: %w", err)
	}
	canvas := image.NewGray(image.Rect(0, 0, p.Width, p.Height))
	draw.Draw(canvas, canvas.Bounds(), image.White, image.Point{}, draw.Src)
	words = layOut(&font.Drawer{Dst: canvas, Src: image.NewUniform(color.Black), Face: face}, p)
	if err := face.Close(); err != nil {
		return nil, 0, fmt.Errorf("font: %w", err)
	}
	var out bytes.Buffer
	encoder := png.Encoder{CompressionLevel: png.BestSpeed}
	if err := encoder.Encode(&out, canvas); err != nil {
		return nil, 0, fmt.Errorf("page: %w", err)
	}
	return out.Bytes(), words, nil
}

// layOut draws words in lines until the text or the page ends.
func layOut(drawer *font.Drawer, p Page) (drawn int) {
	lineHeight := fixed.I(int(p.FontSize * 1.5))
	margin := lineHeight
	right, bottom := fixed.I(p.Width)-margin, fixed.I(p.Height)-margin
	space := drawer.MeasureString(" ")
	words := strings.Fields(p.Text)
	x, y := margin, margin+lineHeight
	for i := 0; !p.Once || i < len(words); i++ {
		word := words[i%len(words)]
		width := drawer.MeasureString(word)
		if x > margin && x+width > right {
			x, y = margin, y+lineHeight
		}
		if y > bottom {
			return drawn
		}
		drawer.Dot = fixed.Point26_6{X: x, Y: y}
		drawer.DrawString(word)
		x += width + space
		drawn++
	}
	return drawn
}
