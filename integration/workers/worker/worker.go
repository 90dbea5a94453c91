// Package worker is the HTTP shell that the reference workers share: a health
// answer, one bounded request at a time into one function, an orderly stop.
//
// It owns the worker's listening socket and its answers' form. It must not
// know any model, and nothing of Quittance: what runs in a container is an
// ordinary server.
package worker

import (
	"context"
	"errors"
	"fmt"
	"io"
	"mime"
	"net"
	"net/http"
	"os"
	"os/signal"
	"strings"
	"syscall"
	"time"

	"github.com/go-json-experiment/json"
)

// stopTimeout bounds how long an answer that is under way may still take
// after the signal to stop.
const stopTimeout = 3 * time.Second

// Worker is one model behind HTTP.
type Worker struct {
	// ContentType is the only media type that POST /predict takes.
	ContentType string
	// MaxBytes bounds a request's body.
	MaxBytes int64
	// Predict answers one request. An [*InputError] is the request's fault;
	// every other error is the worker's. ctx ends when the client goes away
	// or the worker stops.
	Predict func(ctx context.Context, input []byte) (any, error)
}

// InputError says what is wrong with a request's body, without repeating it.
type InputError struct{ Reason string }

func (e *InputError) Error() string { return e.Reason }

// Run serves w at address until SIGTERM or SIGINT. The address is host:port or
// unix:/path.
func Run(w Worker, address string) error {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM, syscall.SIGINT)
	defer stop()
	listener, err := Listen(ctx, address)
	if err != nil {
		return err
	}
	return Serve(ctx, listener, w)
}

// Listen opens the worker's socket: host:port or unix:/path.
func Listen(ctx context.Context, address string) (net.Listener, error) {
	network := "tcp"
	if path, isUnix := strings.CutPrefix(address, "unix:"); isUnix {
		network, address = "unix", path
	}
	var config net.ListenConfig
	listener, err := config.Listen(ctx, network, address)
	if err != nil {
		return nil, fmt.Errorf("listen: %w", err)
	}
	return listener, nil
}

// Serve answers on listener until ctx ends, then finishes what is under way
// within a few seconds. It closes the listener.
func Serve(ctx context.Context, listener net.Listener, w Worker) error {
	return ServeHandler(ctx, listener, w.Handler())
}

// ServeHandler is [Serve] for a model with another HTTP face.
func ServeHandler(ctx context.Context, listener net.Listener, handler http.Handler) error {
	server := &http.Server{
		Handler:           handler,
		ReadHeaderTimeout: 10 * time.Second,
		MaxHeaderBytes:    32 << 10,
	}
	done := make(chan error, 1)
	go func() { done <- server.Serve(listener) }()
	select {
	case err := <-done:
		return fmt.Errorf("serve: %w", err)
	case <-ctx.Done():
	}
	limited, cancel := context.WithTimeout(context.WithoutCancel(ctx), stopTimeout)
	defer cancel()
	err := server.Shutdown(limited)
	if errors.Is(err, context.DeadlineExceeded) {
		err = server.Close() // the answer under way is lost, and its client sees that
	}
	<-done
	return err
}

// Handler is the worker's HTTP face.
func (w Worker) Handler() http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("GET /health", func(rw http.ResponseWriter, _ *http.Request) {
		answer(rw, http.StatusOK, health{Status: "READY"})
	})
	mux.HandleFunc("POST /predict", w.predict)
	return mux
}

type health struct {
	Status string `json:"status"`
}

type failure struct {
	Error string `json:"error"`
}

func (w Worker) predict(rw http.ResponseWriter, r *http.Request) {
	media, _, err := mime.ParseMediaType(r.Header.Get("Content-Type"))
	if err != nil || media != w.ContentType {
		answer(rw, http.StatusUnsupportedMediaType, failure{"Content-Type must be " + w.ContentType})
		return
	}
	input, err := io.ReadAll(http.MaxBytesReader(rw, r.Body, w.MaxBytes))
	if tooLarge := (*http.MaxBytesError)(nil); errors.As(err, &tooLarge) {
		answer(rw, http.StatusRequestEntityTooLarge, failure{fmt.Sprintf("the body is longer than %d bytes", w.MaxBytes)})
		return
	}
	if err != nil {
		answer(rw, http.StatusBadRequest, failure{"the body did not arrive whole"})
		return
	}
	result, err := w.Predict(r.Context(), input)
	if fault := (*InputError)(nil); errors.As(err, &fault) {
		answer(rw, http.StatusBadRequest, failure{fault.Reason})
		return
	}
	if err != nil {
		answer(rw, http.StatusInternalServerError, failure{err.Error()})
		return
	}
	answer(rw, http.StatusOK, result)
}

func answer(rw http.ResponseWriter, status int, body any) {
	data, err := json.Marshal(body, json.Deterministic(true))
	if err != nil {
		// A worker that cannot write its own answer has a fault: say so rather
		// than send half of it.
		status, data = http.StatusInternalServerError, []byte(`{"error":"the answer could not be encoded"}`)
	}
	rw.Header().Set("Content-Type", "application/json")
	rw.WriteHeader(status)
	if _, err := rw.Write(append(data, '\n')); err != nil {
		fmt.Fprintln(os.Stderr, "answer:", err)
	}
}
