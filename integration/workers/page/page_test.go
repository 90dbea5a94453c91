package page

import (
	"bytes"
	"image/png"
	"strings"
	"testing"
)

func TestRender(t *testing.T) {
	for name, p := range map[string]Page{"small": Small(), "letter": Letter()} {
		t.Run(name, func(t *testing.T) {
			encoded, words, err := Render(p)
			if err != nil {
				t.Fatal(err)
			}
			image, err := png.Decode(bytes.NewReader(encoded))
			if err != nil {
				t.Fatal(err)
			}
			if b := image.Bounds(); b.Dx() != p.Width || b.Dy() != p.Height {
				t.Errorf("size %v", b)
			}
			if p.Once && words != len(strings.Fields(p.Text)) {
				t.Errorf("%d of %d words fit", words, len(strings.Fields(p.Text)))
			}
			if !p.Once && words < 500 {
				t.Errorf("only %d words", words)
			}
			dark := 0
			for y := range p.Height {
				for x := range p.Width {
					if r, _, _, _ := image.At(x, y).RGBA(); r < 0x4000 {
						dark++
					}
				}
			}
			if share := float64(dark) / float64(p.Width*p.Height); share < 0.01 || share > 0.3 {
				t.Errorf("%.3f of the page is ink", share)
			}
			again, _, err := Render(p)
			if err != nil || !bytes.Equal(again, encoded) {
				t.Errorf("the same page gave other bytes (error %v)", err)
			}
		})
	}
}

func TestRenderRefuses(t *testing.T) {
	for name, p := range map[string]Page{
		"no width": {Height: 1, FontSize: 12, Text: "a"},
		"no font":  {Width: 10, Height: 10, Text: "a"},
		"no text":  {Width: 10, Height: 10, FontSize: 12, Text: " "},
	} {
		if _, _, err := Render(p); err == nil {
			t.Errorf("%s: accepted", name)
		}
	}
}

// The huge page has the size that measurements of memory refer to.
func TestHugeSize(t *testing.T) {
	if p := Huge(); p.Width != 5716 || p.Height != 11560 {
		t.Errorf("%d by %d", p.Width, p.Height)
	}
}
