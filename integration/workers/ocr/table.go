package main

import (
	"bufio"
	"bytes"
	"errors"
	"math"
	"strconv"
	"strings"
)

// reading is what was read from one image.
type reading struct {
	Text       string `json:"text"` // lines end with a line feed
	Words      int    `json:"words"`
	Lines      int    `json:"lines"`
	Confidence int    `json:"confidence"` // mean over the words, percent
	Width      int    `json:"width"`      // of the image, pixels
	Height     int    `json:"height"`
}

// tableHeader is the first line of Tesseract's tsv output.
const tableHeader = "level\tpage_num\tblock_num\tpar_num\tline_num\tword_num\tleft\ttop\twidth\theight\tconf\ttext"

// wordLevel marks a table row that is a word.
const wordLevel = "5"

var errTable = errors.New("tesseract's answer is not a table of words")

// parseTable reads the words of Tesseract's table, line by line.
func parseTable(table []byte) (reading, error) {
	rows := bufio.NewScanner(bytes.NewReader(table))
	rows.Buffer(nil, 1<<20)
	if !rows.Scan() || rows.Text() != tableHeader {
		return reading{}, errTable
	}
	var (
		found reading
		text  strings.Builder
		line  string // page, block, paragraph and line number of the last word
		sum   float64
	)
	for rows.Scan() {
		columns := strings.Split(rows.Text(), "\t")
		if len(columns) != 12 {
			return reading{}, errTable
		}
		word := strings.TrimSpace(columns[11])
		if columns[0] != wordLevel || word == "" {
			continue
		}
		confidence, err := strconv.ParseFloat(columns[10], 64)
		if err != nil || math.IsNaN(confidence) || confidence < 0 || confidence > 100 {
			return reading{}, errTable
		}
		switch at := strings.Join(columns[1:5], "."); {
		case at == line:
			text.WriteByte(' ')
		default:
			if found.Words > 0 {
				text.WriteByte('\n')
			}
			line = at
			found.Lines++
		}
		text.WriteString(word)
		found.Words++
		sum += confidence
	}
	if rows.Err() != nil {
		return reading{}, errTable
	}
	if found.Words > 0 {
		text.WriteByte('\n')
		found.Confidence = int(math.Round(sum / float64(found.Words)))
	}
	found.Text = text.String()
	return found, nil
}
