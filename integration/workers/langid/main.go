// Command langid is a reference worker: it identifies the language of a text
// with a trigram model that is part of the program. It is static, needs no
// file and about 3 MB of memory, and is the fast worker of most tests.
//
//	GET  /health                → 200 {"status":"READY"}
//	POST /predict, text/plain   → 200 {"language":"eng","name":"English",…}
package main

import (
	"context"
	"flag"
	"fmt"
	"math"
	"os"
	"strings"
	"unicode/utf8"

	"github.com/abadojack/whatlanggo"

	"github.com/quittance/quittance/integration/workers/worker"
)

// maxText bounds a text in bytes.
const maxText = 1 << 20

// result answers one text.
type result struct {
	Language   string  `json:"language"`   // ISO 639-3
	Name       string  `json:"name"`       // in English
	Script     string  `json:"script"`     // for example "Latin"
	Confidence float64 `json:"confidence"` // 0 to 1, four decimals
	Reliable   bool    `json:"reliable"`   // the model's own threshold
}

func main() {
	listen := flag.String("listen", "127.0.0.1:8080", "host:port or unix:/path to listen on")
	flag.Parse()
	if flag.NArg() != 0 {
		flag.Usage()
		os.Exit(2)
	}
	model := worker.Worker{ContentType: "text/plain", MaxBytes: maxText, Predict: identify}
	if err := worker.Run(model, *listen); err != nil {
		fmt.Fprintln(os.Stderr, "langid:", err)
		os.Exit(1)
	}
}

func identify(_ context.Context, input []byte) (any, error) {
	if !utf8.Valid(input) {
		return nil, &worker.InputError{Reason: "the text is not valid UTF-8"}
	}
	text := string(input)
	if strings.TrimSpace(text) == "" {
		return nil, &worker.InputError{Reason: "the text is empty"}
	}
	info := whatlanggo.Detect(text)
	if info.Script == nil {
		return nil, &worker.InputError{Reason: "the text has no letters of a known script"}
	}
	return result{
		Language:   info.Lang.Iso6393(),
		Name:       info.Lang.String(),
		Script:     whatlanggo.Scripts[info.Script],
		Confidence: math.Round(info.Confidence*1e4) / 1e4,
		Reliable:   info.IsReliable(),
	}, nil
}
