// Package signing proves who sent a provider request: RFC 9421 signatures with
// Ed25519 over the method, the exact target URI and the RFC 9530 digest of the
// body, for both the controller that signs and the job service that verifies.
//
// It owns the one accepted shape of a signature, key files, the
// authorized_keys-style list of providers, and the rule on clocks. It must not
// know what a request asks for: a valid signature names a provider and confers
// nothing else (I3).
//
// # Shape
//
// Exactly one signature, labelled "sig", over @method, @target-uri and, if and
// only if there is a body, content-digest, in this order; parameters created,
// expires, keyid, nonce and optionally alg, which is ed25519. keyid is the key's
// SHA-256 fingerprint as OpenSSH prints it. A signature that covers anything
// else is refused, so that what was verified is what was meant.
//
// # Clocks
//
// The verifier accepts a signature whose created lies within
// [api.SignatureSkewLimit] seconds of its own clock and whose expires has not
// passed. Otherwise it answers clock_skew with its date; the signer then applies
// the difference by [Signer.Learn] and signs anew. Since every effect is
// idempotent, nonces are not remembered: a repeated request gets the answer of
// the first.
package signing
