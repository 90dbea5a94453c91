package exposition

import (
	"bufio"
	"context"
	"io"
	"log"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
)

// patience bounds every wait for a real condition.
const patience = 60 * time.Second

func open(t *testing.T, address string) (*Server, *http.Client) {
	t.Helper()
	registry := NewRegistry("program", "1.2.3")
	registry.MustRegister(prometheus.NewGaugeFunc(prometheus.GaugeOpts{Name: "test_figure", Help: "h"}, func() float64 { return 7 }))
	s, err := Open(Config{Address: address, Registry: registry, ErrorLog: log.New(io.Discard, "", 0)})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := s.Close(); err != nil {
			t.Error(err)
		}
	})
	network, at := "tcp", s.Addr()
	if path, ok := strings.CutPrefix(address, unixPrefix); ok {
		network, at = "unix", path
	}
	return s, &http.Client{Timeout: patience, Transport: &http.Transport{DisableKeepAlives: true, DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
		var d net.Dialer
		return d.DialContext(ctx, network, at)
	}}}
}

func TestScrape(t *testing.T) {
	socket := filepath.Join(t.TempDir(), "figures.sock")
	for _, address := range []string{unixPrefix + socket, "127.0.0.1:0"} {
		_, client := open(t, address)
		for _, tc := range []struct {
			method, path, body string
			status             int
		}{
			{"GET", "/metrics", "", 200}, {"POST", "/metrics", "", 405}, {"GET", "/metrics", "a body", 400}, {"GET", "/", "", 404}, {"GET", "/debug/pprof/", "", 404},
		} {
			r, err := http.NewRequestWithContext(t.Context(), tc.method, "http://figures"+tc.path, strings.NewReader(tc.body))
			if err != nil {
				t.Fatal(err)
			}
			answer, err := client.Do(r)
			if err != nil {
				t.Fatal(err)
			}
			text, err := io.ReadAll(answer.Body)
			if err != nil {
				t.Fatal(err)
			}
			if err := answer.Body.Close(); err != nil {
				t.Fatal(err)
			}
			if answer.StatusCode != tc.status {
				t.Errorf("%s: %s %s with %q: status %d, want %d", address, tc.method, tc.path, tc.body, answer.StatusCode, tc.status)
			}
			if tc.status == 200 {
				for _, want := range []string{"\ntest_figure 7\n", "\nquittance_build_info{program=\"program\",version=\"1.2.3\"} 1\n", "\nquittance_goroutines ", "\nprocess_open_fds "} {
					if !strings.Contains(string(text), want) {
						t.Errorf("%s: no %q in\n%s", address, want, text)
					}
				}
			}
		}
	}
}

// The Unix socket is its owner's, or also its group's.
func TestSocketMode(t *testing.T) {
	gid := os.Getegid()
	for _, tc := range []struct {
		gid  *int
		mode os.FileMode
	}{{nil, 0o600}, {&gid, 0o660}} {
		path := filepath.Join(t.TempDir(), "figures.sock")
		s, err := Open(Config{Address: unixPrefix + path, GID: tc.gid, Registry: prometheus.NewRegistry()})
		if err != nil {
			t.Fatal(err)
		}
		info, err := os.Stat(path)
		if err != nil {
			t.Fatal(err)
		}
		if info.Mode().Perm() != tc.mode {
			t.Errorf("mode %04o, want %04o", info.Mode().Perm(), tc.mode)
		}
		if err := s.Close(); err != nil {
			t.Error(err)
		}
		if _, err := os.Stat(path); err == nil {
			t.Error("the socket is left behind")
		}
	}
}

// I33: a peer that opens connections and says nothing is bounded in number and
// in time, and scrapes go on once it is gone.
func TestSilentPeersAreBounded(t *testing.T) {
	s, client := open(t, "127.0.0.1:0")
	var silent []net.Conn
	for range maxConnections {
		c, err := net.Dial("tcp", s.Addr())
		if err != nil {
			t.Fatal(err)
		}
		silent = append(silent, c)
	}
	began := time.Now()
	answer, err := client.Get("http://figures/metrics") // waits until one of them is hung up on
	if err != nil {
		t.Fatal(err)
	}
	if err := answer.Body.Close(); err != nil {
		t.Fatal(err)
	}
	if answer.StatusCode != 200 || time.Since(began) > patience {
		t.Errorf("status %d after %s", answer.StatusCode, time.Since(began))
	}
	for _, c := range silent {
		if err := c.SetReadDeadline(time.Now().Add(patience)); err != nil {
			t.Fatal(err)
		}
		if _, err := bufio.NewReader(c).ReadByte(); err == nil {
			t.Error("a silent peer was answered")
		} else if nerr, ok := err.(net.Error); ok && nerr.Timeout() {
			t.Error("a silent peer was not hung up on")
		}
		if err := c.Close(); err != nil {
			t.Error(err)
		}
	}
}
