package main

import (
	"context"
	"errors"
	"net"
	"net/http"
	"os"
	"os/signal"
	"strings"
	"syscall"
	"time"

	"github.com/quittance/quittance/integration/workers/worker"
)

// maxRequest bounds what is read of a request.
const maxRequest = 32 << 20

// exitDead is the exit status of a worker that dies on purpose.
const exitDead = 3

// serve is a well-behaved worker around one answer.
func serve(ctx context.Context, l net.Listener, predict func(ctx context.Context, input []byte) (any, error)) error {
	return worker.Serve(ctx, l, worker.Worker{ContentType: "text/plain", MaxBytes: maxRequest, Predict: predict})
}

// raw is a ready worker that answers POST /predict with h.
func raw(ctx context.Context, l net.Listener, h http.HandlerFunc) error {
	mux := http.NewServeMux()
	mux.HandleFunc("GET /health", func(w http.ResponseWriter, _ *http.Request) { write(w, `{"status":"READY"}`) })
	mux.HandleFunc("POST /predict", h)
	return listen(ctx, l, mux)
}

// listen serves until ctx ends and then cuts what is under way.
func listen(ctx context.Context, l net.Listener, h http.Handler) error {
	server := &http.Server{Handler: h, ReadHeaderTimeout: 10 * time.Second}
	done := make(chan error, 1)
	go func() { done <- server.Serve(l) }()
	select {
	case err := <-done:
		return err
	case <-ctx.Done():
	}
	err := server.Close()
	<-done
	return err
}

// write answers; a client that went away is what these modes are for.
func write(w http.ResponseWriter, text string) bool {
	_, err := w.Write([]byte(text))
	return err == nil
}

func neverReady(ctx context.Context, _ options, l net.Listener) error {
	mux := http.NewServeMux()
	mux.HandleFunc("/", func(w http.ResponseWriter, _ *http.Request) {
		w.WriteHeader(http.StatusServiceUnavailable)
		write(w, `{"status":"LOADING"}`)
	})
	server := &http.Server{Handler: mux, ReadHeaderTimeout: 10 * time.Second}
	done := make(chan error, 1)
	go func() { done <- server.Serve(l) }()
	<-ctx.Done()
	err := server.Close()
	<-done
	return err
}

func diesReady(ctx context.Context, _ options, l net.Listener) error {
	conn, err := l.Accept()
	if err != nil {
		return err
	}
	request := make([]byte, 4096)
	if _, err := conn.Read(request); err != nil {
		return err
	}
	body := `{"status":"READY"}`
	_, err = conn.Write([]byte("HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: 18\r\n\r\n" + body))
	if err != nil {
		return err
	}
	os.Exit(exitDead)
	return nil
}

func diesWorking(ctx context.Context, _ options, l net.Listener) error {
	return raw(ctx, l, func(http.ResponseWriter, *http.Request) { os.Exit(exitDead) })
}

func silent(ctx context.Context, _ options, l net.Listener) error {
	return raw(ctx, l, func(_ http.ResponseWriter, r *http.Request) { <-r.Context().Done() })
}

// deaf never accepts. Its backlog is the shortest, so that it is soon full.
func deaf(ctx context.Context, _ options, l net.Listener) error {
	socket, ok := l.(syscall.Conn)
	if !ok {
		return errors.New("mode deaf needs a socket")
	}
	raw, err := socket.SyscallConn()
	if err != nil {
		return err
	}
	var shortened error
	err = raw.Control(func(fd uintptr) { shortened = syscall.Listen(int(fd), 1) })
	if err = errors.Join(err, shortened); err != nil {
		return err
	}
	<-ctx.Done()
	return nil
}

func slowBytes(ctx context.Context, _ options, l net.Listener) error {
	return raw(ctx, l, func(w http.ResponseWriter, r *http.Request) {
		tick := time.NewTicker(100 * time.Millisecond)
		defer tick.Stop()
		for write(w, " ") {
			if http.NewResponseController(w).Flush() != nil {
				return
			}
			select {
			case <-tick.C:
			case <-r.Context().Done():
				return
			}
		}
	})
}

func endless(ctx context.Context, _ options, l net.Listener) error {
	chunk := strings.Repeat("x", 64<<10)
	return raw(ctx, l, func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		for write(w, chunk) {
		}
	})
}

func hugeHeaders(ctx context.Context, _ options, l net.Listener) error {
	return raw(ctx, l, func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("X-Filler", strings.Repeat("x", 1<<20))
		write(w, "{}")
	})
}

func half(ctx context.Context, _ options, l net.Listener) error {
	return raw(ctx, l, func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Length", "100")
		if write(w, strings.Repeat(" ", 50)) {
			// What fails here fails as it should: the answer is cut short.
			_ = http.NewResponseController(w).Flush()
		}
		panic(http.ErrAbortHandler)
	})
}

func notJSON(ctx context.Context, _ options, l net.Listener) error {
	return raw(ctx, l, func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		write(w, "<html>sorry</html>")
	})
}

func ignoresTerm(_ context.Context, _ options, l net.Listener) error {
	signal.Reset(syscall.SIGTERM)
	signal.Ignore(syscall.SIGTERM)
	return serve(context.Background(), l, func(context.Context, []byte) (any, error) {
		return map[string]bool{"ignores_term": true}, nil
	})
}
