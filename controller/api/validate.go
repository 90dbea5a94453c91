package api

import (
	"bytes"
	"crypto/rand"
	"encoding/hex"
	"regexp"
	"strconv"
	"unicode/utf8"

	"github.com/quittance/quittance/protocol"
)

// The written forms of names and identifiers.
var (
	kindForm     = regexp.MustCompile(`^[a-z0-9][a-z0-9._-]{0,63}$`)
	schemaForm   = regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9!#$&^_.+:;=/-]{0,127}$`)
	providerForm = regexp.MustCompile(`^[a-z0-9][a-z0-9.-]{0,62}$`)
	labelForm    = regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9._/-]{0,62}$`)
	jobForm      = regexp.MustCompile(`^job-[0-9a-f]{32}$`)
	uploadForm   = regexp.MustCompile(`^up-[0-9a-f]{32}$`)
	attemptForm  = regexp.MustCompile(`^att-[0-9a-f]{32}$`)
)

func newID(prefix string) string {
	var b [16]byte
	rand.Read(b[:])
	return prefix + hex.EncodeToString(b[:])
}

// NewJobID makes a job's identifier, "job-" and 32 hexadecimal digits.
func NewJobID() string { return newID("job-") }

// NewUploadID makes an upload's identifier, "up-" and 32 hexadecimal digits.
func NewUploadID() string { return newID("up-") }

// NewAttemptID makes an attempt reference, "att-" and 32 hexadecimal digits.
func NewAttemptID() string { return newID("att-") }

// ValidJobID reports whether s has the form of a job's identifier.
func ValidJobID(s string) bool { return jobForm.MatchString(s) }

// ValidUploadID reports whether s has the form of an upload's identifier.
func ValidUploadID(s string) bool { return uploadForm.MatchString(s) }

// ValidAttemptID reports whether s has the form of an attempt reference.
func ValidAttemptID(s string) bool { return attemptForm.MatchString(s) }

// ValidKind reports whether s can name a job kind.
func ValidKind(s string) bool { return kindForm.MatchString(s) }

// ValidProvider reports whether s can name a provider.
func ValidProvider(s string) bool { return providerForm.MatchString(s) }

// ValidSchema reports whether s can name the format of bytes: a media type
// without spaces, or any short name.
func ValidSchema(s string) bool { return schemaForm.MatchString(s) }

// Texts of the forms, for messages.
const (
	formKind     = "must be 1 to 64 characters of a-z 0-9 . _ -, starting with a letter or digit"
	formSchema   = "must be 1 to 128 characters of a media type, without spaces"
	formDigest   = "must be sha256: and 64 lower-case hexadecimal digits"
	formID       = "must be 32 lower-case hexadecimal digits"
	formSequence = "must be from 1 to 9007199254740991"
	formAttempt  = "must be att- and 32 lower-case hexadecimal digits"
	formJob      = "must be job- and 32 lower-case hexadecimal digits"
	formUpload   = "must be up- and 32 lower-case hexadecimal digits"
)

func checkText(field, s string, limit int) error {
	if len(s) > limit {
		return fieldError(field, "is longer than %d bytes", limit)
	}
	return nil
}

func (id Identity) check(at string, limit int64) error {
	switch {
	case !ValidSchema(id.Schema):
		return fieldError(at+"/schema", formSchema)
	case id.Length < 0 || id.Length > limit:
		return fieldError(at+"/length", "must be from 0 to %d", limit)
	case !id.SHA256.Valid():
		return fieldError(at+"/sha256", formDigest)
	}
	return nil
}

// Validate implements [protocol.Validator].
func (h *Hello) Validate() error {
	switch {
	case !h.Store.Valid():
		return fieldError("/store", formID)
	case h.Seq < 1 || h.Seq > MaxSequence:
		return fieldError("/seq", formSequence)
	case h.Lanes < 1 || h.Lanes > MaxLanes:
		return fieldError("/lanes", "must be from 1 to %d", MaxLanes)
	case len(h.Offerings) > MaxOfferings:
		return fieldError("/offerings", "has more than %d items", MaxOfferings)
	case len(h.Versions.API) == 0 || len(h.Versions.API) > 16:
		return fieldError("/versions/api", "must have 1 to 16 items")
	}
	if err := checkText("/versions/controller", h.Versions.Controller, MaxStringBytes); err != nil {
		return err
	}
	if h.Host != nil {
		if !h.Host.Generation.Valid() {
			return fieldError("/host/generation", formID)
		}
		if err := checkText("/host/key", h.Host.Key, MaxHostKeyBytes); err != nil {
			return err
		}
		if err := checkText("/host/agent", h.Host.Agent, MaxStringBytes); err != nil {
			return err
		}
	}
	kinds := make(map[string]bool, len(h.Offerings))
	for i := range h.Offerings {
		at := "/offerings/" + strconv.Itoa(i)
		if err := h.Offerings[i].check(at); err != nil {
			return err
		}
		if kinds[h.Offerings[i].Kind] {
			return fieldError(at+"/kind", "is announced twice")
		}
		kinds[h.Offerings[i].Kind] = true
	}
	return nil
}

func (o *HelloOffering) check(at string) error {
	switch {
	case !ValidKind(o.Kind):
		return fieldError(at+"/kind", formKind)
	case !protocol.ValidProfileName(o.Profile):
		return fieldError(at+"/profile", "must be %s", protocol.ProfileNamePattern)
	case o.ProfileDigest != "" && !o.ProfileDigest.Valid():
		return fieldError(at+"/profile_digest", "%s, or empty", formDigest)
	case o.ProfileDigest == "" && o.Available:
		return fieldError(at+"/profile_digest", "is empty although the offering is available")
	case o.Input.From != InputFromJob && o.Input.From != InputFromUpload:
		return fieldError(at+"/input/from", "must be job or upload")
	case o.Input.MaxBytes < 0 || o.Input.MaxBytes > MaxUploadBytes:
		return fieldError(at+"/input/max_bytes", "must be from 0 to %d", MaxUploadBytes)
	case o.Input.ContentType != "" && !ValidSchema(o.Input.ContentType):
		return fieldError(at+"/input/content_type", formSchema)
	case len(o.Input.Schema) > MaxInputSchema:
		return fieldError(at+"/input/schema", "is longer than %d bytes", MaxInputSchema)
	}
	if err := checkText(at+"/adapter", o.Adapter, MaxStringBytes); err != nil {
		return err
	}
	return checkText(at+"/reason", o.Reason, MaxReasonBytes)
}

// Validate implements [protocol.Validator].
func (g *GrantRequest) Validate() error {
	if !ValidAttemptID(g.Attempt) {
		return fieldError("/attempt", formAttempt)
	}
	return nil
}

// Validate implements [protocol.Validator].
func (s *Start) Validate() error {
	switch {
	case protocol.CheckPurpose(s.Key) != nil:
		return fieldError("/key", "must be 1 to 128 characters of A-Z a-z 0-9 . _ : -")
	case !ValidJobID(s.Job):
		return fieldError("/job", formJob)
	case !ValidKind(s.Kind):
		return fieldError("/kind", formKind)
	case !s.Store.Valid():
		return fieldError("/store", formID)
	case s.Lane < 0 || s.Lane >= MaxLanes:
		return fieldError("/lane", "must be from 0 to %d", MaxLanes-1)
	}
	return s.Input.check("/input", MaxInputBytes)
}

// Validate implements [protocol.Validator].
func (p *Progress) Validate() error {
	switch {
	case !p.Store.Valid():
		return fieldError("/store", formID)
	case p.Seq < 1 || p.Seq > MaxSequence:
		return fieldError("/seq", formSequence)
	case p.Phase != PhasePreparing && p.Phase != PhaseRunning:
		return fieldError("/phase", "must be preparing or running")
	}
	if p.Condition != nil {
		if _, ok := p.Condition.Text(); !ok {
			return fieldError("/condition", "is not a condition of this version")
		}
	}
	return nil
}

// Validate implements [protocol.Validator]. The bytes must be those that Length
// and SHA256 describe.
func (c *Complete) Validate() error {
	if !ValidAttemptID(c.Attempt) {
		return fieldError("/attempt", formAttempt)
	}
	id := Identity{c.Schema, c.Length, c.SHA256}
	if err := id.check("", MaxResultBytes); err != nil {
		return err
	}
	if int64(len(c.Data)) != c.Length {
		return fieldError("/length", "is not the length of data")
	}
	if protocol.DigestOf(c.Data) != c.SHA256 {
		return fieldError("/sha256", "is not the SHA-256 of data")
	}
	return c.Provenance.check("/provenance")
}

// Validate implements [protocol.Validator].
func (f *Fail) Validate() error {
	if !ValidAttemptID(f.Attempt) {
		return fieldError("/attempt", formAttempt)
	}
	if _, ok := f.Code.Text(); !ok {
		return fieldError("/code", "is not a failure code of this version")
	}
	if utf8.RuneCountInString(f.Message) > MaxMessageScalars {
		return fieldError("/message", "is longer than %d scalars", MaxMessageScalars)
	}
	if utf8.RuneCountInString(f.Next) > MaxMessageScalars {
		return fieldError("/next", "is longer than %d scalars", MaxMessageScalars)
	}
	if f.Provenance != nil {
		return f.Provenance.check("/provenance")
	}
	return nil
}

func (p *Provenance) check(at string) error {
	for _, text := range []struct{ field, value string }{
		{"/controller", p.Controller}, {"/agent", p.Agent}, {"/adapter", p.Adapter},
	} {
		if err := checkText(at+text.field, text.value, MaxStringBytes); err != nil {
			return err
		}
	}
	for _, digest := range []struct {
		field string
		value *protocol.Digest
	}{
		{"/input_sha256", p.InputSHA256}, {"/request_sha256", p.RequestSHA256}, {"/response_sha256", p.ResponseSHA256},
	} {
		if digest.value != nil && !digest.value.Valid() {
			return fieldError(at+digest.field, formDigest)
		}
	}
	if len(p.Executions) > MaxExecutions {
		return fieldError(at+"/executions", "has more than %d items", MaxExecutions)
	}
	for i := range p.Executions {
		if err := p.Executions[i].check(at + "/executions/" + strconv.Itoa(i)); err != nil {
			return err
		}
	}
	if len(p.Claimed) > MaxClaims {
		return fieldError(at+"/claimed", "has more than %d items", MaxClaims)
	}
	for i, claim := range p.Claimed {
		where := at + "/claimed/" + strconv.Itoa(i)
		if err := checkText(where+"/name", claim.Name, MaxStringBytes); err != nil {
			return err
		}
		if err := checkText(where+"/value", claim.Value, MaxStringBytes); err != nil {
			return err
		}
	}
	return nil
}

func (e *Execution) check(at string) error {
	switch {
	case !e.Generation.Valid():
		return fieldError(at+"/generation", formID)
	case !e.Number.Valid():
		return fieldError(at+"/number", "must be from 1 to 9007199254740991")
	case !protocol.ValidProfileName(e.Profile):
		return fieldError(at+"/profile", "must be %s", protocol.ProfileNamePattern)
	case !e.ProfileDigest.Valid():
		return fieldError(at+"/profile_digest", formDigest)
	case e.ImageDigest != nil && !e.ImageDigest.Valid():
		return fieldError(at+"/image_digest", formDigest)
	case e.SpecDigest != nil && !e.SpecDigest.Valid():
		return fieldError(at+"/spec_digest", formDigest)
	}
	if e.OOM != nil {
		switch e.OOM.Verdict {
		case protocol.VerdictKilled, protocol.VerdictNotKilled, protocol.VerdictUnknown:
		default:
			return fieldError(at+"/oom/verdict", "must be killed, not_killed or unknown")
		}
	}
	return nil
}

// Validate implements [protocol.Validator].
func (h *HostReceipts) Validate() error {
	if !ValidAttemptID(h.Attempt) {
		return fieldError("/attempt", formAttempt)
	}
	if err := checkText("/key", h.Key, MaxHostKeyBytes); err != nil {
		return err
	}
	if len(h.Receipts) == 0 || len(h.Receipts) > MaxHostReceipts {
		return fieldError("/receipts", "must have 1 to %d items", MaxHostReceipts)
	}
	for i, receipt := range h.Receipts {
		at := "/receipts/" + strconv.Itoa(i)
		if len(receipt.Leaf) == 0 || len(receipt.Leaf) > MaxLeafBytes {
			return fieldError(at+"/leaf", "must be 1 to %d bytes", MaxLeafBytes)
		}
		if err := checkText(at+"/proof", receipt.Proof, MaxProofBytes); err != nil {
			return err
		}
	}
	return nil
}

// Validate implements [protocol.Validator].
func (c *CreateJob) Validate() error {
	if !ValidKind(c.Kind) {
		return fieldError("/kind", formKind)
	}
	if c.Input != nil {
		if err := c.Input.check(); err != nil {
			return err
		}
	}
	if len(c.Uploads) > MaxUploads {
		return fieldError("/uploads", "has more than %d items", MaxUploads)
	}
	seen := make(map[string]bool, len(c.Uploads))
	for i, upload := range c.Uploads {
		at := "/uploads/" + strconv.Itoa(i)
		if !ValidUploadID(upload) {
			return fieldError(at, formUpload)
		}
		if seen[upload] {
			return fieldError(at, "is named twice")
		}
		seen[upload] = true
	}
	if err := checkLabels(c.Labels); err != nil {
		return err
	}
	if c.Limits != nil && (c.Limits.Attempts < 0 || c.Limits.Attempts > MaxAttemptLimit) {
		return fieldError("/limits/attempts", "must be from 1 to %d, or left out", MaxAttemptLimit)
	}
	if c.CancelAfterMs != nil && (*c.CancelAfterMs < 1 || *c.CancelAfterMs > MaxCancelAfterMs) {
		return fieldError("/cancel_after_ms", "must be from 1 to %d", int64(MaxCancelAfterMs))
	}
	return nil
}

func checkLabels(labels []Label) error {
	if len(labels) > MaxLabels {
		return fieldError("/labels", "has more than %d items", MaxLabels)
	}
	names := make(map[string]bool, len(labels))
	for i, label := range labels {
		at := "/labels/" + strconv.Itoa(i)
		if !labelForm.MatchString(label.Name) {
			return fieldError(at+"/name", "must be 1 to 63 characters of A-Z a-z 0-9 . _ / -")
		}
		if names[label.Name] {
			return fieldError(at+"/name", "occurs twice")
		}
		names[label.Name] = true
		if err := checkText(at+"/value", label.Value, MaxStringBytes); err != nil {
			return err
		}
	}
	return nil
}

func (d *CreateData) check() error {
	forms := 0
	for _, present := range []bool{d.Text != nil, d.JSON != nil, d.Base64 != nil} {
		if present {
			forms++
		}
	}
	if forms != 1 {
		return fieldError("/input", "must have exactly one of text, json and base64")
	}
	if d.Schema != "" && !ValidSchema(d.Schema) {
		return fieldError("/input/schema", formSchema)
	}
	_, data := d.Bytes()
	if len(data) > MaxInputBytes {
		return fieldError("/input", "is longer than %d bytes", MaxInputBytes)
	}
	return nil
}

// Bytes is the schema and the exact bytes that the input stands for.
func (d *CreateData) Bytes() (schema string, data []byte) {
	switch {
	case d == nil:
		return "application/octet-stream", nil
	case d.Text != nil:
		schema, data = "text/plain", []byte(*d.Text)
	case d.Base64 != nil:
		schema, data = "application/octet-stream", *d.Base64
	default:
		schema, data = "application/json", bytes.TrimSpace(d.JSON)
	}
	if d.Schema != "" {
		schema = d.Schema
	}
	return schema, data
}
