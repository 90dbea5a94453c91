package controller

import (
	"context"
	"crypto/ed25519"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/url"
	"os"
	"strings"
	"sync"
	"time"

	"github.com/hashicorp/go-hclog"

	"github.com/quittance/quittance/controller/api"
	"github.com/quittance/quittance/controller/internal/jobs"
	"github.com/quittance/quittance/controller/internal/metrics"
	"github.com/quittance/quittance/controller/internal/signing"
)

// face is the job service behind its listener.
type face struct {
	jobs     *jobs.Service
	listener net.Listener
	server   *http.Server
	origin   string      // as providers sign it
	roots    *tls.Config // what the lanes of serve trust; nil: the system's roots
	// dial reaches the listener whatever the origin resolves to; nil where the
	// origin is another server's, such as a proxy's that ends TLS.
	dial func(ctx context.Context) (net.Conn, error)
	log  hclog.Logger
}

func jobsConfig(c Config, origin string, log hclog.Logger) jobs.Config {
	return jobs.Config{
		Directory: c.JobsDir(), Database: c.Service.Database, PublicOrigin: origin, Topology: c.Service.Topology,
		AttemptLease: c.Service.Lease.Duration, Logger: log.Named("jobs"),
	}
}

// openFace listens and opens the job service; serve answers.
func openFace(ctx context.Context, c Config, o Options) (*face, error) {
	f := &face{log: o.Logger.Named("jobs")}
	listener, err := net.Listen("tcp", c.Service.Listen)
	if err != nil {
		return nil, fmt.Errorf("service.listen: %w", err)
	}
	f.origin = c.LoopbackAPI()
	if strings.HasSuffix(c.Service.Listen, ":0") && c.Service.PublicOrigin == "" {
		f.origin = strings.TrimSuffix(f.origin, c.Service.Listen) + listener.Addr().String()
	}
	if f.listener, err = f.secure(c, listener); err != nil {
		return nil, errors.Join(err, listener.Close())
	}
	// The service outlives the signal that ends ctx: running attempts finish
	// against it.
	config := jobsConfig(c, f.origin, o.Logger)
	config.Observe = o.figures.Request
	if f.jobs, err = jobs.Open(context.WithoutCancel(ctx), config); err != nil {
		return nil, errors.Join(err, listener.Close())
	}
	if err := metrics.WatchJobs(o.Figures, f.jobs.OpenJobs); err != nil {
		return nil, errors.Join(err, f.jobs.Close(), listener.Close())
	}
	if _, path, made := f.jobs.FirstToken(); made {
		f.log.Info("first token made: an administrator's, for agentctl", "file", path)
	}
	f.server = &http.Server{
		Handler: f.jobs.Handler(), MaxHeaderBytes: api.MaxHeaderBytes,
		ReadHeaderTimeout: 10 * time.Second, IdleTimeout: 2 * time.Minute,
		ErrorLog: f.log.StandardLogger(&hclog.StandardLoggerOptions{InferLevels: true}),
	}
	f.log.Info("job service listens", "address", listener.Addr(), "origin", f.origin, "topology", f.jobs.Topology())
	return f, nil
}

// secure puts TLS in front of the listener and decides how this process's own
// lanes reach it.
func (f *face) secure(c Config, listener net.Listener) (net.Listener, error) {
	origin, err := url.Parse(f.origin)
	if err != nil {
		return nil, fmt.Errorf("service.public_origin: %w", err)
	}
	address := listener.Addr().String()
	direct := func(ctx context.Context) (net.Conn, error) {
		var d net.Dialer
		return d.DialContext(ctx, "tcp", address)
	}
	if c.Service.TLSCert == "" {
		if origin.Scheme == "http" {
			f.dial = direct
		}
		return listener, nil
	}
	certificates := &certificates{cert: c.Service.TLSCert, key: c.Service.TLSKey}
	if _, err := certificates.get(nil); err != nil {
		return nil, fmt.Errorf("service.tls_cert: %w", err)
	}
	if origin.Scheme == "https" {
		f.dial = direct
		pool, err := x509.SystemCertPool()
		if err != nil {
			return nil, fmt.Errorf("service.tls_cert: the system's roots: %w", err)
		}
		pem, err := os.ReadFile(c.Service.TLSCert)
		if err != nil {
			return nil, fmt.Errorf("service.tls_cert: %w", err)
		}
		pool.AppendCertsFromPEM(pem)
		f.roots = &tls.Config{RootCAs: pool, MinVersion: tls.VersionTLS12}
	}
	return tls.NewListener(listener, &tls.Config{GetCertificate: certificates.get, MinVersion: tls.VersionTLS12, NextProtos: []string{"http/1.1"}}), nil
}

// serve answers until close.
func (f *face) serve() error {
	if err := f.server.Serve(f.listener); !errors.Is(err, http.ErrServerClosed) {
		return err
	}
	return nil
}

// register makes the lanes' own key known to the service.
func (f *face) register(ctx context.Context, id string, key ed25519.PrivateKey) error {
	public, ok := key.Public().(ed25519.PublicKey)
	if !ok {
		return errors.New("provider.key_file: holds no Ed25519 key")
	}
	line, err := signing.AuthorizedLine(id, public)
	if err != nil {
		return fmt.Errorf("provider.key_file: %w", err)
	}
	if err := f.jobs.AddProviderKey(ctx, line); err != nil {
		return fmt.Errorf("provider key: %w", err)
	}
	return nil
}

// closeWait bounds the end of requests that are being answered.
const closeWait = 10 * time.Second

func (f *face) close() error {
	ctx, cancel := context.WithTimeout(context.Background(), closeWait)
	defer cancel()
	f.jobs.Interrupt() // long polls and event streams
	err := f.server.Shutdown(ctx)
	if errors.Is(err, context.DeadlineExceeded) {
		err = f.server.Close()
	}
	return errors.Join(err, f.jobs.Close())
}

// certificates reads the certificate again when its file changes.
type certificates struct {
	cert, key string

	mu     sync.Mutex // guards what follows
	loaded *tls.Certificate
	at     time.Time // modification time of the certificate file that is loaded
}

// get implements tls.Config.GetCertificate. A new file that cannot be read
// leaves the old certificate in force.
func (c *certificates) get(*tls.ClientHelloInfo) (*tls.Certificate, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	info, err := os.Stat(c.cert)
	if err == nil && c.loaded != nil && info.ModTime().Equal(c.at) {
		return c.loaded, nil
	}
	var pair tls.Certificate
	if err == nil {
		pair, err = tls.LoadX509KeyPair(c.cert, c.key)
	}
	if err != nil {
		if c.loaded != nil {
			return c.loaded, nil
		}
		return nil, err
	}
	c.loaded, c.at = &pair, info.ModTime()
	return c.loaded, nil
}
