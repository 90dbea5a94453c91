package signing

import (
	"crypto/ed25519"
	"crypto/rand"
	"crypto/sha256"
	"encoding/base64"
	"fmt"
	"net/http"
	"strings"
	"sync/atomic"
	"time"

	"github.com/dunglas/httpsfv"

	"github.com/quittance/quittance/controller/api"
)

// Lifetime is how long a signature is valid after its creation.
const Lifetime = time.Minute

// The only label and the covered components.
const (
	label           = "sig"
	componentMethod = "@method"
	componentTarget = "@target-uri"
	componentDigest = "content-digest"
	algorithm       = "ed25519"
)

// Signer signs requests with one key. It is safe for concurrent use.
type Signer struct {
	key   ed25519.PrivateKey
	keyID string
	clock func() time.Time
	// offset is added to clock, in nanoseconds; [Signer.Learn] writes it.
	offset atomic.Int64
}

// NewSigner makes a signer. clock is the wall clock, time.Now outside tests.
func NewSigner(key ed25519.PrivateKey, clock func() time.Time) (*Signer, error) {
	public, ok := key.Public().(ed25519.PublicKey)
	if !ok {
		return nil, fmt.Errorf("signing: key has no Ed25519 public half")
	}
	id, err := KeyID(public)
	if err != nil {
		return nil, err
	}
	return &Signer{key: key, keyID: id, clock: clock}, nil
}

// KeyID is the fingerprint of the signer's key.
func (s *Signer) KeyID() string { return s.keyID }

// Signature is what a signed request promises about time. A verifier whose
// clock is past Expires has not accepted, and will not accept, the request.
type Signature struct {
	Created time.Time // whole seconds, on the service's clock as far as it is known
	Expires time.Time
}

// Sign adds Signature-Input, Signature and, where body is not nil,
// Content-Digest to the request; earlier ones are replaced. A nil body means
// that the request has none, which differs from an empty one. The target that is
// signed is request.URL as it will be sent.
func (s *Signer) Sign(request *http.Request, body []byte) (Signature, error) {
	target := request.URL.String()
	if request.URL.Scheme == "" || request.URL.Host == "" {
		return Signature{}, fmt.Errorf("signing: the request has no absolute URL")
	}
	request.Header.Del(api.HeaderContentDigest)
	components := []string{componentMethod, componentTarget}
	values := []string{request.Method, target}
	if body != nil {
		digest := ContentDigest(body)
		request.Header.Set(api.HeaderContentDigest, digest)
		components, values = append(components, componentDigest), append(values, digest)
	}
	created := s.clock().Add(time.Duration(s.offset.Load())).Truncate(time.Second)
	signature := Signature{Created: created, Expires: created.Add(Lifetime)}

	var nonce [16]byte
	rand.Read(nonce[:])
	params := httpsfv.NewParams()
	params.Add("created", signature.Created.Unix())
	params.Add("expires", signature.Expires.Unix())
	params.Add("keyid", s.keyID)
	params.Add("alg", algorithm)
	params.Add("nonce", base64.RawURLEncoding.EncodeToString(nonce[:]))
	list := httpsfv.InnerList{Params: params}
	for _, name := range components {
		list.Items = append(list.Items, httpsfv.NewItem(name))
	}
	parameters, err := httpsfv.Marshal(list)
	if err != nil {
		return Signature{}, fmt.Errorf("signing: parameters: %w", err)
	}
	inputs, signatures := httpsfv.NewDictionary(), httpsfv.NewDictionary()
	inputs.Add(label, list)
	signatures.Add(label, httpsfv.NewItem(ed25519.Sign(s.key, base(components, values, parameters))))
	for name, dictionary := range map[string]*httpsfv.Dictionary{"Signature-Input": inputs, "Signature": signatures} {
		field, err := httpsfv.Marshal(dictionary)
		if err != nil {
			return Signature{}, fmt.Errorf("signing: %s: %w", name, err)
		}
		request.Header.Set(name, field)
	}
	return signature, nil
}

// base is the signature base of RFC 9421, section 2.5, for components without
// parameters. The library that verifies cannot be told the time to sign with,
// which a learnt offset needs; tests check that both agree on every byte.
func base(components, values []string, parameters string) []byte {
	var b strings.Builder
	for i, name := range components {
		fmt.Fprintf(&b, "%q: %s\n", name, values[i])
	}
	fmt.Fprintf(&b, "%q: %s", "@signature-params", parameters)
	return []byte(b.String())
}

// Learn sets the clock offset from a response's date, so that the next signature
// is created at the service's time. Call it only for a clock_skew answer.
func (s *Signer) Learn(serviceTime time.Time) {
	s.offset.Store(int64(serviceTime.Sub(s.clock())))
}

// Offset is what [Signer.Learn] last applied.
func (s *Signer) Offset() time.Duration { return time.Duration(s.offset.Load()) }

// ContentDigest is the Content-Digest field of RFC 9530 for a body, with SHA-256.
func ContentDigest(body []byte) string {
	sum := sha256.Sum256(body)
	return "sha-256=:" + base64.StdEncoding.EncodeToString(sum[:]) + ":"
}
