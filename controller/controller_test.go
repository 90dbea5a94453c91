package controller

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"encoding/pem"
	"math/big"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/quittance/quittance/controller/api"
	"github.com/quittance/quittance/protocol"
)

// writeCertificate makes a self-signed pair with a serial number.
func writeCertificate(t *testing.T, cert, key string, serial int64, at time.Time) {
	t.Helper()
	private, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	template := &x509.Certificate{SerialNumber: big.NewInt(serial), DNSNames: []string{"jobs.example.org"}, IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)}, NotAfter: time.Now().Add(time.Hour), IsCA: true, BasicConstraintsValid: true}
	der, err := x509.CreateCertificate(rand.Reader, template, template, private.Public(), private)
	if err != nil {
		t.Fatal(err)
	}
	secret, err := x509.MarshalPKCS8PrivateKey(private)
	if err != nil {
		t.Fatal(err)
	}
	for path, block := range map[string]*pem.Block{key: {Type: "PRIVATE KEY", Bytes: secret}, cert: {Type: "CERTIFICATE", Bytes: der}} {
		if err := os.WriteFile(path, pem.EncodeToMemory(block), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.Chtimes(cert, at, at); err != nil {
		t.Fatal(err)
	}
}

func serialOf(t *testing.T, c *certificates) int64 {
	t.Helper()
	pair, err := c.get(nil)
	if err != nil {
		t.Fatal(err)
	}
	leaf, err := x509.ParseCertificate(pair.Certificate[0])
	if err != nil {
		t.Fatal(err)
	}
	return leaf.SerialNumber.Int64()
}

// The certificate is read again when its file changes; a broken one leaves the
// old in force.
func TestCertificateReload(t *testing.T) {
	dir := t.TempDir()
	c := &certificates{cert: filepath.Join(dir, "c.pem"), key: filepath.Join(dir, "k.pem")}
	if _, err := c.get(nil); err == nil {
		t.Fatal("a missing certificate was accepted")
	}
	now := time.Now()
	writeCertificate(t, c.cert, c.key, 1, now)
	if got := serialOf(t, c); got != 1 {
		t.Fatalf("serial %d", got)
	}
	writeCertificate(t, c.cert, c.key, 2, now.Add(time.Second))
	if got := serialOf(t, c); got != 2 {
		t.Fatalf("serial %d after the change", got)
	}
	if err := os.WriteFile(c.cert, []byte("broken"), 0o600); err != nil {
		t.Fatal(err)
	}
	if got := serialOf(t, c); got != 2 {
		t.Fatalf("serial %d with a broken file", got)
	}
}

// The lanes of serve reach their own service by signed exchanges through its
// listener: plain, with its own certificate, and under a public name that
// resolves to somebody else.
func TestLanesReachTheirOwnService(t *testing.T) {
	for name, row := range map[string]struct {
		tls    bool
		origin string
	}{"plain": {false, ""}, "TLS": {true, ""}, "TLS under a public name": {true, "https://jobs.example.org"}, "plain under a public name": {false, "http://jobs.example.org"}} {
		t.Run(name, func(t *testing.T) {
			c, err := LoadConfig("/dev/null", true, nil)
			if err != nil {
				t.Fatal(err)
			}
			c.StateDir, c.Service.Listen, c.Service.PublicOrigin = t.TempDir(), "127.0.0.1:0", row.origin
			if row.tls {
				c.Service.TLSCert, c.Service.TLSKey = c.StateDir+"/c.pem", c.StateDir+"/k.pem"
				writeCertificate(t, c.Service.TLSCert, c.Service.TLSKey, 1, time.Now())
			}
			o, err := Options{Version: "test"}.complete(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			f, err := openFace(t.Context(), c, o)
			if err != nil {
				t.Fatal(err)
			}
			served := make(chan error, 1)
			go func() { served <- f.serve() }()
			client, err := newProvider(t.Context(), c, Serve, f, o)
			if err != nil {
				t.Fatal(err)
			}
			answer, err := client.Hello(t.Context(), api.Hello{
				Store: protocol.NewID(), Seq: 1, Lanes: 1, Versions: api.HelloVersions{API: []int{api.Version}}, Offerings: []api.HelloOffering{},
			})
			if err != nil || answer.Provider != c.Provider.ID {
				t.Errorf("%+v, %v", answer, err)
			}
			if err := f.close(); err != nil {
				t.Error(err)
			}
			if err := <-served; err != nil {
				t.Error(err)
			}
		})
	}
}

// A state directory that others can enter is refused before anything is made
// in it.
func TestRunRefusesAnOpenStateDir(t *testing.T) {
	c, err := LoadConfig("/dev/null", true, nil)
	if err != nil {
		t.Fatal(err)
	}
	c.StateDir, c.Service.Listen = t.TempDir(), "127.0.0.1:0"
	if err := os.Chmod(c.StateDir, 0o755); err != nil {
		t.Fatal(err)
	}
	if err := Run(t.Context(), c, API, Options{}); err == nil || !strings.Contains(err.Error(), "chmod 0700") {
		t.Fatalf("%v", err)
	}
	if left, err := os.ReadDir(c.StateDir); err != nil || len(left) != 0 {
		t.Fatalf("%v was made, %v", left, err)
	}
}
