package signing

import (
	"bytes"
	"context"
	"crypto/ed25519"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"time"

	"github.com/dadrus/httpsig"
	"github.com/dunglas/httpsfv"

	"github.com/quittance/quittance/controller/api"
	"github.com/quittance/quittance/protocol"
)

// ErrUnknownKey is returned by a [KeySource] that has no such key.
var ErrUnknownKey = errors.New("signing: key is not registered")

// KeySource finds registered keys.
type KeySource interface {
	// ProviderKey returns the key with that fingerprint, or [ErrUnknownKey].
	ProviderKey(ctx context.Context, keyID string) (AuthorizedKey, error)
}

// Verifier verifies requests that reach one origin. It is safe for concurrent
// use.
type Verifier struct {
	keys   KeySource
	origin string
	clock  func() time.Time
}

// NewVerifier makes a verifier. origin is the scheme and authority that clients
// sign, without a slash at its end, whatever a reverse proxy makes of it.
func NewVerifier(keys KeySource, origin string, clock func() time.Time) (*Verifier, error) {
	u, err := url.Parse(origin)
	if err != nil || u.Scheme == "" || u.Host == "" || u.Scheme+"://"+u.Host != origin {
		return nil, fmt.Errorf("signing: public origin must be a scheme and an authority, as in https://jobs.example.org")
	}
	return &Verifier{keys: keys, origin: origin, clock: clock}, nil
}

// Verified names the sender of a request whose signature holds.
type Verified struct {
	Provider string
	KeyID    string
	Expires  time.Time // the request must have no effect after it
}

// Pending is a signature whose shape, key and time were accepted and whose bytes
// were not checked yet. Reading a body before [Verifier.Begin] would let anyone
// make the service read.
type Pending struct {
	request *http.Request
	target  string
	key     AuthorizedKey
	expires time.Time
	hasBody bool
	skew    *api.Problem
}

const nextSign = "Sign the request as the API's documentation says, with a registered key."

func unsigned(detail string) *api.Problem { return api.NewProblem(api.CodeUnsigned, detail, nextSign) }

// Begin checks everything but the signature itself. hasBody says whether the
// route's request has a body.
func (v *Verifier) Begin(request *http.Request, hasBody bool) (*Pending, *api.Problem) {
	list, problem := soleSignature(request.Header)
	if problem != nil {
		return nil, problem
	}
	want := []string{componentMethod, componentTarget}
	if hasBody {
		want = append(want, componentDigest)
	}
	if !slices.Equal(componentNames(list), want) {
		return nil, unsigned("The signature must cover exactly " + strings.Join(want, ", ") + ", in this order and without parameters.")
	}
	created, expires, keyID, problem := parameters(list.Params)
	if problem != nil {
		return nil, problem
	}
	key, err := v.keys.ProviderKey(request.Context(), keyID)
	if errors.Is(err, ErrUnknownKey) {
		return nil, api.NewProblem(api.CodeUnknownKey, "The key that keyid names is not registered.",
			"Register the provider's public key with the job service, then send the request again.")
	}
	if err != nil {
		problem := api.NewProblem(api.CodeUnavailable, "The registered keys cannot be read now.", "Send the same request again.")
		problem.Effect = api.EffectNone
		return nil, problem
	}
	pending := &Pending{
		request: request, target: v.origin + request.RequestURI, key: key, expires: expires, hasBody: hasBody,
		skew: v.checkTime(created, expires),
	}
	return pending, nil
}

// Verify checks the signature over the body that was read; nil where the
// request has none. A signature that holds but lies outside its time is refused
// as clock_skew.
func (p *Pending) Verify(body []byte) (Verified, *api.Problem) {
	target, err := url.Parse(p.target)
	if err != nil || target.String() != p.target {
		return Verified{}, api.NewProblem(api.CodeBadRequest, "The request target is not in its canonical form.",
			"Send the path and query percent-encoded as they are signed.")
	}
	if p.hasBody {
		if problem := checkDigestField(p.request.Header); problem != nil {
			return Verified{}, problem
		}
	}
	message := &httpsig.Message{
		Context: p.request.Context(), Method: p.request.Method, Authority: p.request.Host, URL: target,
		Header: p.request.Header, IsRequest: true,
		Body: func() (io.ReadCloser, error) { return io.NopCloser(bytes.NewReader(body)), nil },
	}
	verifier, err := httpsig.NewVerifier(
		httpsig.Key{KeyID: p.key.KeyID, Algorithm: httpsig.Ed25519, Key: p.key.Public},
		httpsig.WithValidateAllSignatures(),
		// Time is judged by checkTime alone, on a clock that tests can set.
		httpsig.WithValidityTolerance(ever), httpsig.WithMaxAge(ever),
	)
	if err != nil {
		return Verified{}, api.NewProblem(api.CodeInternal, "The signature cannot be checked.", "Ask the operator; the service's log has the cause.")
	}
	if err := verifier.Verify(message); err != nil {
		detail := "The signature does not match the method, the target and the body that arrived."
		if errors.Is(err, httpsig.ErrContentDigestMismatch) {
			detail = "Content-Digest is not the digest of the body that arrived."
		}
		return Verified{}, api.NewProblem(api.CodeBadSignature, detail,
			"Check the key, the public origin that is signed, and that nothing on the way changes the request.")
	}
	if p.skew != nil {
		return Verified{}, p.skew
	}
	return Verified{Provider: p.key.Provider, KeyID: p.key.KeyID, Expires: p.expires}, nil
}

// ever is longer than any two times of interest lie apart.
const ever = 200 * 365 * 24 * time.Hour

func (v *Verifier) checkTime(created, expires time.Time) *api.Problem {
	now := v.clock()
	skew := api.SignatureSkewLimit * time.Second
	if created.After(now.Add(skew)) || created.Before(now.Add(-skew)) || !now.Before(expires.Add(time.Second)) {
		problem := api.NewProblem(api.CodeClockSkew,
			"The signature's time does not fit the service's clock: created and expires must lie around it.",
			"Set the clock, or sign with the service's time, and send the request again.")
		at := protocol.TimestampOf(now)
		problem.ServiceTime = &at
		return problem
	}
	return nil
}

func soleSignature(header http.Header) (httpsfv.InnerList, *api.Problem) {
	var none httpsfv.InnerList
	inputs, signatures := header.Values("Signature-Input"), header.Values("Signature")
	if len(inputs) == 0 || len(signatures) == 0 {
		return none, unsigned("The request has no Signature-Input or no Signature.")
	}
	if len(inputs) != 1 || len(signatures) != 1 {
		return none, unsigned("Signature-Input and Signature must occur once.")
	}
	dictionary, err := dictionaryOf(inputs)
	if err != nil {
		return none, unsigned("Signature-Input is not a structured dictionary.")
	}
	member, _ := dictionary.Get(label)
	list, ok := member.(httpsfv.InnerList)
	if !ok || len(dictionary.Names()) != 1 {
		return none, unsigned("The request must have exactly one signature, labelled " + label + ".")
	}
	values, err := dictionaryOf(signatures)
	if err != nil || len(values.Names()) != 1 {
		return none, unsigned("Signature must be a structured dictionary with one member.")
	}
	member, _ = values.Get(label)
	item, ok := member.(httpsfv.Item)
	if !ok {
		return none, unsigned("Signature has no member " + label + ".")
	}
	if raw, ok := item.Value.([]byte); !ok || len(raw) != ed25519.SignatureSize {
		return none, unsigned("The signature is not 64 bytes.")
	}
	return list, nil
}

func componentNames(list httpsfv.InnerList) []string {
	var names []string
	for _, item := range list.Items {
		name, ok := item.Value.(string)
		if !ok || (item.Params != nil && len(item.Params.Names()) != 0) {
			return nil
		}
		names = append(names, name)
	}
	return names
}

func parameters(params *httpsfv.Params) (created, expires time.Time, keyID string, problem *api.Problem) {
	var nonce string
	for _, name := range params.Names() {
		value, _ := params.Get(name)
		ok := false
		switch name {
		case "created", "expires":
			var seconds int64
			if seconds, ok = value.(int64); ok && name == "created" {
				created = time.Unix(seconds, 0)
			} else if ok {
				expires = time.Unix(seconds, 0)
			}
		case "keyid":
			keyID, ok = value.(string)
		case "nonce":
			nonce, ok = value.(string)
		case "alg":
			ok = value == algorithm
		}
		if !ok {
			return created, expires, "", unsigned("The signature's parameters are created, expires, keyid, nonce and, optionally, alg=\"ed25519\".")
		}
	}
	if created.IsZero() || expires.IsZero() || keyID == "" || len(nonce) < 16 || len(nonce) > 128 {
		return created, expires, "", unsigned("The signature needs created, expires, keyid and a nonce of 16 to 128 characters.")
	}
	if !expires.After(created) || expires.Sub(created) > api.SignatureSkewLimit*time.Second {
		return created, expires, "", unsigned("The signature's expires must lie after created, by at most 5 minutes.")
	}
	return created, expires, keyID, nil
}

// dictionaryOf parses a structured dictionary. The parser (httpsfv v1.1.0) panics
// on some malformed display strings, and this is the first look at bytes that
// anyone may send: a panic is one more way to be malformed. The library that
// verifies parses only what passed here.
func dictionaryOf(values []string) (dictionary *httpsfv.Dictionary, err error) {
	defer func() {
		if recover() != nil {
			dictionary, err = nil, errMalformed
		}
	}()
	return httpsfv.UnmarshalDictionary(values)
}

var errMalformed = errors.New("signing: not a structured dictionary")

// ParseDigest reads a Content-Digest field that holds exactly one SHA-256; ok is
// false for every other.
func ParseDigest(values []string) (digest protocol.Digest, ok bool) {
	if len(values) != 1 {
		return "", false
	}
	dictionary, err := dictionaryOf(values)
	if err != nil || !slices.Equal(dictionary.Names(), []string{"sha-256"}) {
		return "", false
	}
	member, _ := dictionary.Get("sha-256")
	item, ok := member.(httpsfv.Item)
	if !ok {
		return "", false
	}
	raw, ok := item.Value.([]byte)
	if !ok || len(raw) != sha256.Size {
		return "", false
	}
	return protocol.Digest("sha256:" + hex.EncodeToString(raw)), true
}

// checkDigestField insists on the one digest that both sides compute.
func checkDigestField(header http.Header) *api.Problem {
	values := header.Values(api.HeaderContentDigest)
	if len(values) != 1 {
		return unsigned("Content-Digest must occur once.")
	}
	if _, ok := ParseDigest(values); !ok {
		return unsigned("Content-Digest must hold one sha-256.")
	}
	return nil
}
