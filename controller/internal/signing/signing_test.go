package signing

import (
	"context"
	"crypto/ed25519"
	"crypto/x509"
	"encoding/base64"
	"encoding/pem"
	"io"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/dadrus/httpsig"
	remitly "github.com/remitly-oss/httpsig-go"
	"github.com/remitly-oss/httpsig-go/keyman"

	"github.com/quittance/quittance/controller/api"
)

// staticKeys is a KeySource of one key.
type staticKeys AuthorizedKey

func (k staticKeys) ProviderKey(_ context.Context, keyID string) (AuthorizedKey, error) {
	if keyID != k.KeyID {
		return AuthorizedKey{}, ErrUnknownKey
	}
	return AuthorizedKey(k), nil
}

// signedPair is a signer and a registered key, on clocks that tests set.
type signedPair struct {
	signer         *Signer
	key            AuthorizedKey
	private        ed25519.PrivateKey
	client, server time.Time
}

func newPair(t *testing.T) *signedPair {
	t.Helper()
	private, err := CreateKey(filepath.Join(t.TempDir(), "key"), "node-1")
	if err != nil {
		t.Fatal(err)
	}
	public := private.Public().(ed25519.PublicKey)
	line, err := AuthorizedLine("node-1", public)
	if err != nil {
		t.Fatal(err)
	}
	key, err := ParseAuthorizedKey(line)
	if err != nil {
		t.Fatal(err)
	}
	p := &signedPair{key: key, private: private, client: time.Unix(1_800_000_000, 500), server: time.Unix(1_800_000_000, 900)}
	p.signer, err = NewSigner(private, func() time.Time { return p.client })
	if err != nil {
		t.Fatal(err)
	}
	return p
}

// exchange sends a request through a real server, after change has altered it,
// and returns what the verifier said.
func (p *signedPair) exchange(t *testing.T, method, target string, body []byte, change func(*http.Request)) (Verified, *api.Problem) {
	t.Helper()
	var verified Verified
	var problem *api.Problem
	var verifier *Verifier
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		received, err := io.ReadAll(r.Body)
		if err != nil {
			t.Error(err)
		}
		if body == nil {
			received = nil
		}
		var pending *Pending
		if pending, problem = verifier.Begin(r, body != nil); problem == nil {
			verified, problem = pending.Verify(received)
		}
	}))
	defer server.Close()
	var err error
	verifier, err = NewVerifier(staticKeys(p.key), server.URL, func() time.Time { return p.server })
	if err != nil {
		t.Fatal(err)
	}
	var reader io.Reader
	if body != nil {
		reader = strings.NewReader(string(body))
	}
	request, err := http.NewRequestWithContext(t.Context(), method, server.URL+target, reader)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := p.signer.Sign(request, body); err != nil {
		t.Fatal(err)
	}
	if change != nil {
		change(request)
	}
	response, err := server.Client().Do(request)
	if err != nil {
		t.Fatal(err)
	}
	if err := response.Body.Close(); err != nil {
		t.Fatal(err)
	}
	return verified, problem
}

func TestSignedRequestNamesItsProvider(t *testing.T) {
	for _, row := range []struct {
		method, target string
		body           []byte
	}{
		{"GET", "/provider/v1/jobs?kind=ocr.page.v1&attempted=false&limit=100&cursor=a%2Fb%20c", nil},
		{"POST", "/provider/v1/attempts", []byte(`{"key":"k"}`)},
		{"PUT", "/provider/v1/attempts/att-1/progress?", []byte(`{}`)},
		{"POST", "/x%2Fy", []byte{}},
	} {
		p := newPair(t)
		verified, problem := p.exchange(t, row.method, row.target, row.body, nil)
		if problem != nil {
			t.Fatalf("%s %s: %v", row.method, row.target, problem)
		}
		if verified.Provider != "node-1" || verified.KeyID != p.key.KeyID || verified.Expires.Unix() != 1_800_000_060 {
			t.Fatalf("verified as %+v", verified)
		}
	}
}

// I3, I34: one shape of signature; whatever differs is refused with its own code.
func TestAlteredRequestsAreRefused(t *testing.T) {
	body := []byte(`{"key":"k"}`)
	input := func(old, new string) func(*http.Request) {
		return func(r *http.Request) {
			before := r.Header.Get("Signature-Input")
			after := strings.Replace(before, old, new, 1)
			if after == before {
				t.Errorf("%q does not occur in %s", old, before)
			}
			r.Header.Set("Signature-Input", after)
		}
	}
	rows := []struct {
		name   string
		change func(*http.Request)
		want   api.Code
	}{
		{"no signature", func(r *http.Request) { r.Header.Del("Signature") }, api.CodeUnsigned},
		{"no input", func(r *http.Request) { r.Header.Del("Signature-Input") }, api.CodeUnsigned},
		{"two input fields", func(r *http.Request) { r.Header.Add("Signature-Input", "sig2=()") }, api.CodeUnsigned},
		{"two signatures", func(r *http.Request) {
			r.Header.Set("Signature-Input", r.Header.Get("Signature-Input")+`, other=("@method")`)
		}, api.CodeUnsigned},
		{"other label", input("sig=", "gis="), api.CodeUnsigned},
		{"component left out", input(`"@target-uri" `, ""), api.CodeUnsigned},
		{"digest left out", input(` "content-digest"`, ""), api.CodeUnsigned},
		{"component added", input(`"@method"`, `"@method" "date"`), api.CodeUnsigned},
		{"component parameter", input(`"@method"`, `"@method";req`), api.CodeUnsigned},
		{"no nonce", input(";nonce=", ";tag="), api.CodeUnsigned},
		{"other algorithm", input(`alg="ed25519"`, `alg="hmac-sha256"`), api.CodeUnsigned},
		{"created as text", input("created=1800000000", `created="1800000000"`), api.CodeUnsigned},
		{"expires before created", input("expires=1800000060", "expires=1799999999"), api.CodeUnsigned},
		{"valid for too long", input("expires=1800000060", "expires=1800000301"), api.CodeUnsigned},
		{"unknown key", input(`keyid="SHA256:`, `keyid="SHA256:A`), api.CodeUnknownKey},
		{"later expiry", input("expires=1800000060", "expires=1800000061"), api.CodeBadSignature},
		{"earlier creation", input("created=1800000000", "created=1799999999"), api.CodeBadSignature},
		{"other method", func(r *http.Request) { r.Method = "PUT" }, api.CodeBadSignature},
		{"other path", func(r *http.Request) { r.URL.Path += "x" }, api.CodeBadSignature},
		{"query added", func(r *http.Request) { r.URL.RawQuery = "a=b" }, api.CodeBadSignature},
		{"body changed", func(r *http.Request) {
			r.Body = io.NopCloser(strings.NewReader(`{"key":"l"}`))
		}, api.CodeBadSignature},
		{"digest of another body", func(r *http.Request) {
			r.Header.Set("Content-Digest", ContentDigest([]byte("x")))
		}, api.CodeBadSignature},
		{"digest by another algorithm", func(r *http.Request) {
			r.Header.Set("Content-Digest", "sha-512=:AAAA:")
		}, api.CodeUnsigned},
		{"second digest", func(r *http.Request) {
			r.Header.Set("Content-Digest", r.Header.Get("Content-Digest")+", sha-512=:AAAA:")
		}, api.CodeUnsigned},
		{"signature bytes changed", func(r *http.Request) {
			r.Header.Set("Signature", "sig=:"+base64.StdEncoding.EncodeToString(make([]byte, 64))+":")
		}, api.CodeBadSignature},
		{"a display string that httpsfv v1.1.0 panics on", func(r *http.Request) { r.Header.Set("Signature-Input", "a0=%0") }, api.CodeUnsigned},
		{"the same as a signature", func(r *http.Request) { r.Header.Set("Signature", "sig=%0") }, api.CodeUnsigned},
		{"the same as a digest", func(r *http.Request) { r.Header.Set("Content-Digest", "sha-256=%0") }, api.CodeUnsigned},
		{"short signature", func(r *http.Request) { r.Header.Set("Signature", "sig=:AAAA:") }, api.CodeUnsigned},
	}
	for _, row := range rows {
		t.Run(row.name, func(t *testing.T) {
			_, problem := newPair(t).exchange(t, "POST", "/provider/v1/attempts", body, row.change)
			if problem == nil {
				t.Fatal("accepted")
			}
			if problem.Code != row.want || problem.Effect != api.EffectNone || problem.Next == "" {
				t.Fatalf("got %+v, want code %s", problem, row.want)
			}
		})
	}
}

// No body and an empty body differ.
func TestSignatureOfNoBodyDoesNotFitAnEmptyOne(t *testing.T) {
	p := newPair(t)
	_, problem := p.exchange(t, "POST", "/x", []byte{}, func(r *http.Request) {
		if _, err := p.signer.Sign(r, nil); err != nil {
			t.Error(err)
		}
	})
	if problem == nil || problem.Code != api.CodeUnsigned {
		t.Fatalf("got %v", problem)
	}
}

func TestClockSkewIsAnsweredAndLearnt(t *testing.T) {
	rows := []struct {
		name   string
		offset time.Duration // of the client's clock
		ok     bool
	}{
		{"ahead within the limit", 299 * time.Second, true},
		{"ahead", 302 * time.Second, false},
		{"an hour ahead", time.Hour, false},
		{"behind, still valid", -59 * time.Second, true},
		{"behind, expired", -62 * time.Second, false},
		{"an hour behind", -time.Hour, false},
	}
	for _, row := range rows {
		t.Run(row.name, func(t *testing.T) {
			p := newPair(t)
			p.client = p.server.Add(row.offset)
			_, problem := p.exchange(t, "GET", "/x", nil, nil)
			if row.ok {
				if problem != nil {
					t.Fatal(problem)
				}
				return
			}
			if problem == nil || problem.Code != api.CodeClockSkew || problem.ServiceTime == nil || problem.Status != 401 {
				t.Fatalf("got %+v", problem)
			}
			p.signer.Learn(problem.ServiceTime.Time())
			if _, problem := p.exchange(t, "GET", "/x", nil, nil); problem != nil {
				t.Fatalf("after learning the service's time: %v", problem)
			}
		})
	}
	// A forged request never learns more than that its signature is bad.
	p := newPair(t)
	p.client = p.server.Add(time.Hour)
	_, problem := p.exchange(t, "GET", "/x", nil, func(r *http.Request) { r.Method = "DELETE" })
	if problem == nil || problem.Code != api.CodeBadSignature {
		t.Fatalf("got %v", problem)
	}
}

// The independent implementation accepts what we sign and refuses it altered.
func TestSecondImplementationVerifiesOurSignatures(t *testing.T) {
	p := newPair(t)
	p.client = time.Now()
	request := httptest.NewRequest("POST", "http://jobs.example.org/provider/v1/jobs?kind=a", strings.NewReader("{}"))
	if _, err := p.signer.Sign(request, []byte("{}")); err != nil {
		t.Fatal(err)
	}
	// remitly v1.2.0 joins RawPath and RawQuery without the question mark; the
	// request that it is given has parts that join to the true target.
	request.URL = &url.URL{RawPath: "/provider/v1/jobs?", RawQuery: "kind=a"}
	keys := keyman.NewKeyFetchInMemory(map[string]remitly.KeySpec{
		p.key.KeyID: {KeyID: p.key.KeyID, Algo: remitly.Algo_ED25519, PubKey: p.key.Public},
	})
	profile := remitly.VerifyProfile{
		SignatureLabel: "sig", AllowedAlgorithms: []remitly.Algorithm{remitly.Algo_ED25519},
		RequiredFields:   remitly.Fields("@method", "@target-uri", "content-digest"),
		RequiredMetadata: []remitly.Metadata{remitly.MetaCreated, remitly.MetaExpires, remitly.MetaKeyID, remitly.MetaNonce},
	}
	result, err := remitly.Verify(request, keys, profile)
	if err != nil || !result.Verified {
		t.Fatalf("genuine: %v", err)
	}
	request.Method = "PUT"
	if result, err := remitly.Verify(request, keys, profile); err == nil && result.Verified {
		t.Fatal("the altered request was accepted")
	}
}

// What other libraries sign in our shape, we accept.
func TestWeVerifySignaturesOfOtherImplementations(t *testing.T) {
	t.Run("dadrus", func(t *testing.T) {
		p := newPair(t)
		p.server = time.Now()
		signer, err := httpsig.NewSigner(
			httpsig.Key{KeyID: p.key.KeyID, Algorithm: httpsig.Ed25519, Key: p.private},
			httpsig.WithComponents("@method", "@target-uri", "content-digest"), httpsig.WithLabel("sig"),
			httpsig.WithContentDigestAlgorithm(httpsig.Sha256))
		if err != nil {
			t.Fatal(err)
		}
		verified, problem := p.exchange(t, "POST", "/a?b=c", []byte("{}"), func(r *http.Request) {
			r.Header.Del("Signature")
			r.Header.Del("Signature-Input")
			header, err := signer.Sign(httpsig.MessageFromRequest(r))
			if err != nil {
				t.Fatal(err)
			}
			r.Header = header
		})
		if problem != nil || verified.Provider != "node-1" {
			t.Fatalf("%+v, %v", verified, problem)
		}
	})
	t.Run("remitly", func(t *testing.T) {
		p := newPair(t)
		p.server = time.Now()
		signer, err := remitly.NewSigner(remitly.SigningProfile{
			Algorithm: remitly.Algo_ED25519, Fields: remitly.Fields("@method", "@target-uri", "content-digest"), Label: "sig",
			Metadata:        []remitly.Metadata{remitly.MetaCreated, remitly.MetaExpires, remitly.MetaKeyID, remitly.MetaNonce},
			ExpiresDuration: time.Minute, Nonce: remitly.NonceRandom32,
		}, remitly.SigningKey{Key: p.private, MetaKeyID: p.key.KeyID})
		if err != nil {
			t.Fatal(err)
		}
		verified, problem := p.exchange(t, "POST", "/a", []byte("{}"), func(r *http.Request) {
			genuine := r.URL
			r.URL = &url.URL{RawPath: "/a"} // see above
			if err := signer.Sign(r); err != nil {
				t.Fatal(err)
			}
			r.URL = genuine
		})
		if problem != nil || verified.Provider != "node-1" {
			t.Fatalf("%+v, %v", verified, problem)
		}
	})
}

// RFC 9421, B.2.6: our signature base is the RFC's, byte for byte.
func TestBaseOfTheRFCVector(t *testing.T) {
	block, _ := pem.Decode([]byte("-----BEGIN PUBLIC KEY-----\nMCowBQYDK2VwAyEAJrQLj5P/89iXES9+vFgrIy29clF9CC/oPPsw3c5D0bs=\n-----END PUBLIC KEY-----\n"))
	public, err := x509.ParsePKIXPublicKey(block.Bytes)
	if err != nil {
		t.Fatal(err)
	}
	signature, err := base64.StdEncoding.DecodeString("wqcAqbmYJ2ji2glfAMaRy4gruYYnx2nEFN2HN6jrnDnQCK1u02Gb04v9EDgwUPiu4A0w6vuQv5lIp5WPpBKRCw==")
	if err != nil {
		t.Fatal(err)
	}
	message := base(
		[]string{"date", "@method", "@path", "@authority", "content-type", "content-length"},
		[]string{"Tue, 20 Apr 2021 02:07:55 GMT", "POST", "/foo", "example.com", "application/json", "18"},
		`("date" "@method" "@path" "@authority" "content-type" "content-length");created=1618884473;keyid="test-key-ed25519"`)
	if !ed25519.Verify(public.(ed25519.PublicKey), message, signature) {
		t.Fatalf("the RFC's signature does not fit our base:\n%s", message)
	}
	if ed25519.Verify(public.(ed25519.PublicKey), append(message, '\n'), signature) {
		t.Fatal("an altered base was accepted")
	}
}

// RFC 9421, B.1.4 and B.2.6: over our base the RFC's own key makes the RFC's own
// signature; Ed25519 leaves no choice.
func TestSignatureOfTheRFCVector(t *testing.T) {
	der, err := base64.StdEncoding.DecodeString("MC4CAQAwBQYDK2VwBCIEIJ+DYvh6SEqVTm50DFtMDoQikTmiCqirVv9mWG9qfSnF")
	if err != nil {
		t.Fatal(err)
	}
	parsed, err := x509.ParsePKCS8PrivateKey(der)
	if err != nil {
		t.Fatal(err)
	}
	signature := ed25519.Sign(parsed.(ed25519.PrivateKey), base(
		[]string{"date", "@method", "@path", "@authority", "content-type", "content-length"},
		[]string{"Tue, 20 Apr 2021 02:07:55 GMT", "POST", "/foo", "example.com", "application/json", "18"},
		`("date" "@method" "@path" "@authority" "content-type" "content-length");created=1618884473;keyid="test-key-ed25519"`))
	if got := base64.StdEncoding.EncodeToString(signature); got != "wqcAqbmYJ2ji2glfAMaRy4gruYYnx2nEFN2HN6jrnDnQCK1u02Gb04v9EDgwUPiu4A0w6vuQv5lIp5WPpBKRCw==" {
		t.Fatalf("got %s", got)
	}
}

// RFC 9530, appendix D: the Content-Digest of its example.
func TestContentDigestOfTheRFC(t *testing.T) {
	for body, want := range map[string]string{
		"{\"hello\": \"world\"}":   "sha-256=:X48E9qOokqqrvdts8nOJRJN3OWDUoyWxBf7kbu9DBPE=:",
		"{\"hello\": \"world\"}\n": "sha-256=:RK/0qy18MlBSVnWgjwz6lZEWjP/lF5HF9bvEF8FabDg=:",
	} {
		if got := ContentDigest([]byte(body)); got != want {
			t.Errorf("%q: %s, want %s", body, got, want)
		}
	}
}

func TestKeyFiles(t *testing.T) {
	path := filepath.Join(t.TempDir(), "provider.key")
	made, err := LoadOrCreateKey(path, "node-1")
	if err != nil {
		t.Fatal(err)
	}
	info, err := os.Stat(path)
	if err != nil || info.Mode().Perm() != 0o600 {
		t.Fatalf("mode %v, %v", info.Mode(), err)
	}
	loaded, err := LoadOrCreateKey(path, "node-1")
	if err != nil || !loaded.Equal(made) {
		t.Fatalf("loaded another key: %v", err)
	}
	if _, err := CreateKey(path, "node-1"); err == nil {
		t.Fatal("an existing key was overwritten")
	}
	if err := os.Chmod(path, 0o640); err != nil {
		t.Fatal(err)
	}
	if _, err := LoadKey(path); err == nil || !strings.Contains(err.Error(), "chmod 600") {
		t.Fatalf("a key that others can read: %v", err)
	}
	// I37: a broken key file is named, its content is not.
	bad := filepath.Join(t.TempDir(), "bad.key")
	if err := os.WriteFile(bad, []byte("-----BEGIN PRIVATE KEY-----\nc2VjcmV0\n-----END PRIVATE KEY-----\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := LoadKey(bad); err == nil || strings.Contains(err.Error(), "c2VjcmV0") || !strings.Contains(err.Error(), "ssh-keygen") {
		t.Fatalf("got %v", err)
	}
	der, err := x509.MarshalPKCS8PrivateKey(made)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(bad, pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: der}), 0o600); err != nil {
		t.Fatal(err)
	}
	if loaded, err := LoadKey(bad); err != nil || !loaded.Equal(made) {
		t.Fatalf("PKCS #8: %v", err)
	}
}

func TestAuthorizedKeys(t *testing.T) {
	p, q := newPair(t), newPair(t)
	line := func(k AuthorizedKey, provider string) string {
		s, err := AuthorizedLine(provider, k.Public)
		if err != nil {
			t.Fatal(err)
		}
		return s
	}
	keys, err := ParseAuthorizedKeys([]byte("# nodes\n\n" + line(p.key, "node-1") + "\n" + line(q.key, "node-2") + "\n"))
	if err != nil || len(keys) != 2 || keys[0].KeyID != p.key.KeyID || keys[1].Provider != "node-2" {
		t.Fatalf("%+v, %v", keys, err)
	}
	for name, bad := range map[string]string{
		"no provider":  strings.TrimSuffix(line(p.key, "node-1"), " node-1"),
		"bad provider": line(p.key, "Node 1"),
		"options":      `restrict ` + line(p.key, "node-1"),
		"other type":   "ssh-rsa AAAA node-1",
		"twice":        line(p.key, "node-1") + "\n" + line(p.key, "node-2"),
		"garbage":      "hello",
	} {
		if _, err := ParseAuthorizedKeys([]byte(bad)); err == nil || !strings.Contains(err.Error(), "line ") {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func FuzzBegin(f *testing.F) {
	f.Add(`sig=("@method" "@target-uri");created=1;expires=2;keyid="a";nonce="0123456789abcdef"`, "sig=:AAAA:")
	f.Add(`sig=();created=1`, ``)
	verifier, err := NewVerifier(staticKeys{KeyID: "a"}, "http://a", time.Now)
	if err != nil {
		f.Fatal(err)
	}
	f.Fuzz(func(t *testing.T, input, signature string) {
		r := httptest.NewRequest("GET", "http://a/x", nil)
		r.Header.Set("Signature-Input", input)
		r.Header.Set("Signature", signature)
		pending, problem := verifier.Begin(r, false)
		if problem == nil {
			if _, problem := pending.Verify(nil); problem == nil {
				t.Fatal("a signature without a key was accepted")
			}
		} else if problem.Effect != api.EffectNone {
			t.Fatalf("%+v", problem)
		}
	})
}
