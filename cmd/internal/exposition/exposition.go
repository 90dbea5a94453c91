// Package exposition serves a daemon's figures to Prometheus: one read-only
// route, GET /metrics, on a Unix socket or a loopback address.
//
// It owns the listener and its bounds: few connections, short requests without
// bodies, deadlines everywhere. Whoever reaches it can read counts and nothing
// else. It must not know what the figures mean, and nothing of the daemons.
package exposition

import (
	"context"
	"errors"
	"log"
	"net"
	"net/http"
	"runtime"
	"strings"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"github.com/prometheus/client_golang/prometheus/promhttp"
	"golang.org/x/net/netutil"

	"github.com/quittance/quittance/protocol/uds"
)

// Bounds of the listener (I33).
const (
	maxConnections = 8
	maxHeaderBytes = 8 << 10
	requestTime    = 5 * time.Second // to send a request
	answerTime     = 15 * time.Second
	gatherTime     = 10 * time.Second
	idleTime       = 2 * time.Minute
	closeTime      = time.Second
)

// unixPrefix begins the address of a Unix socket.
const unixPrefix = "unix:"

// Config says where the figures are served.
type Config struct {
	Address  string // "unix:" and an absolute path, or a loopback host:port
	GID      *int   // group that may read the Unix socket; nil: its owner only
	Registry *prometheus.Registry
	ErrorLog *log.Logger // of broken connections and figures that could not be read
}

// NewRegistry makes a registry with the few figures of the process itself that
// tell a leak: descriptors, memory, goroutines and the program's version.
func NewRegistry(program, version string) *prometheus.Registry {
	registry := prometheus.NewRegistry()
	build := prometheus.NewGaugeVec(prometheus.GaugeOpts{
		Name: "quittance_build_info", Help: "1; the labels say which program and version this is.",
	}, []string{"program", "version"})
	build.WithLabelValues(program, version).Set(1)
	goroutines := prometheus.NewGaugeFunc(prometheus.GaugeOpts{
		Name: "quittance_goroutines", Help: "Goroutines of the process.",
	}, func() float64 { return float64(runtime.NumGoroutine()) })
	registry.MustRegister(build, goroutines, collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}))
	return registry
}

// Server is an open listener. Close ends it.
type Server struct {
	http     *http.Server
	listener net.Listener
	over     chan error
}

// Open listens and serves.
func Open(c Config) (*Server, error) {
	listener, err := listen(c)
	if err != nil {
		return nil, err
	}
	s := &Server{listener: listener, over: make(chan error, 1), http: &http.Server{
		Handler: handler(c), MaxHeaderBytes: maxHeaderBytes, ReadTimeout: requestTime, ReadHeaderTimeout: requestTime,
		WriteTimeout: answerTime, IdleTimeout: idleTime, ErrorLog: c.ErrorLog,
	}}
	go func() { s.over <- s.http.Serve(netutil.LimitListener(listener, maxConnections)) }()
	return s, nil
}

func listen(c Config) (net.Listener, error) {
	if path, ok := strings.CutPrefix(c.Address, unixPrefix); ok {
		o := uds.Options{Mode: 0o600}
		if c.GID != nil {
			o.Mode, o.GID = 0o660, c.GID
		}
		return uds.Listen(path, o)
	}
	return net.Listen("tcp", c.Address)
}

// Addr is where the figures are served, for people.
func (s *Server) Addr() string { return s.listener.Addr().String() }

func handler(c Config) http.Handler {
	figures := promhttp.HandlerFor(c.Registry, promhttp.HandlerOpts{
		ErrorLog: c.ErrorLog, ErrorHandling: promhttp.ContinueOnError, MaxRequestsInFlight: 2, Timeout: gatherTime,
		// No decompressor and no compressor between a peer and a privileged process.
		DisableCompression: true,
	})
	mux := http.NewServeMux()
	mux.HandleFunc("GET /metrics", func(w http.ResponseWriter, r *http.Request) {
		if r.ContentLength != 0 {
			w.Header().Set("Connection", "close")
			http.Error(w, "this request has no body", http.StatusBadRequest)
			return
		}
		figures.ServeHTTP(w, r)
	})
	return mux
}

// Close ends the listener; scrapes that are being answered get a moment.
func (s *Server) Close() error {
	ctx, cancel := context.WithTimeout(context.Background(), closeTime)
	defer cancel()
	err := s.http.Shutdown(ctx)
	if errors.Is(err, context.DeadlineExceeded) {
		err = s.http.Close()
	}
	if served := <-s.over; !errors.Is(served, http.ErrServerClosed) {
		err = errors.Join(err, served)
	}
	return err
}
