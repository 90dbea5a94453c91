// Command langid is a reference worker: it identifies the language of a text
// with a trigram model that is part of the program. It is static, needs no
// file and about 3 MB of memory, and is the fast worker of most tests.
//
//	GET  /health                → 200 {"status":"READY"}
//	POST /predict, text/plain   → 200 {"language":"eng","name":"English",…}
//
// The same model answers in the protocols of inference servers too:
//
//	-protocol openai   POST /v1/chat/completions (streaming too),
//	                   /v1/completions, /v1/embeddings
//	-protocol kserve   GET /v2/health/ready, POST /v2/models/langid/infer
//	-protocol framed   length-prefixed JSON, preparation split from execution
package main

import (
	"context"
	"flag"
	"fmt"
	"math"
	"net"
	"os"
	"os/signal"
	"strings"
	"syscall"
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
	protocol := flag.String("protocol", "predict", "how to be spoken to: predict, openai, kserve or framed")
	flag.Parse()
	serve, known := protocols[*protocol]
	if !known || flag.NArg() != 0 {
		flag.Usage()
		os.Exit(2)
	}
	if err := run(*listen, serve); err != nil {
		fmt.Fprintln(os.Stderr, "langid:", err)
		os.Exit(1)
	}
}

// protocols are the faces of the one model; each serves until ctx ends and
// closes the listener.
var protocols = map[string]func(ctx context.Context, l net.Listener) error{
	"predict": func(ctx context.Context, l net.Listener) error {
		return worker.Serve(ctx, l, worker.Worker{ContentType: "text/plain", MaxBytes: maxText, Predict: identify})
	},
	"openai": func(ctx context.Context, l net.Listener) error { return worker.ServeHandler(ctx, l, openAI()) },
	"kserve": func(ctx context.Context, l net.Listener) error { return worker.ServeHandler(ctx, l, kserve()) },
	"framed": framed,
}

func run(address string, serve func(context.Context, net.Listener) error) error {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM, syscall.SIGINT)
	defer stop()
	l, err := worker.Listen(ctx, address)
	if err != nil {
		return err
	}
	return serve(ctx, l)
}

func identify(_ context.Context, input []byte) (any, error) {
	found, err := detect(input)
	if err != nil {
		return nil, err
	}
	return found, nil
}

// detect is the model.
func detect(input []byte) (result, error) {
	if !utf8.Valid(input) {
		return result{}, &worker.InputError{Reason: "the text is not valid UTF-8"}
	}
	text := string(input)
	if strings.TrimSpace(text) == "" {
		return result{}, &worker.InputError{Reason: "the text is empty"}
	}
	info := whatlanggo.Detect(text)
	if info.Script == nil {
		return result{}, &worker.InputError{Reason: "the text has no letters of a known script"}
	}
	return result{
		Language:   info.Lang.Iso6393(),
		Name:       info.Lang.String(),
		Script:     whatlanggo.Scripts[info.Script],
		Confidence: math.Round(info.Confidence*1e4) / 1e4,
		Reliable:   info.IsReliable(),
	}, nil
}
