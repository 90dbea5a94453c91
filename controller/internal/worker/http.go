package worker

import (
	"context"
	"io"
	"mime"
	"net/http"
	"strings"

	"github.com/go-json-experiment/json/jsontext"

	"github.com/quittance/quittance/controller/internal/offering"
)

// plain is the dialect "http": one request, one bounded response, Host:
// localhost, no redirects, no retry. Where the offering names a prepare path,
// the input goes there, and what comes back is the body of the one request
// that executes, over the same channel.
type plain struct{ offer *offering.Offering }

func (plain) admit(in Input) (request, error) { return request{body: in}, nil }

func (plain) ready(context.Context, Dialer, Report) error { return nil }

// MaxPrepared bounds the opaque bytes that a worker's prepare path returns.
const MaxPrepared = 64 << 10

func (d plain) prepare(ctx context.Context, s *stream, r request, _ Report) (request, error) {
	if d.offer.PreparePath == "" {
		return r, nil
	}
	m := message{method: http.MethodPost, path: d.offer.PreparePath, accept: "*/*", body: r.body, more: true}
	err := s.exchange(ctx, m, func(resp *http.Response) error {
		switch resp.StatusCode {
		case http.StatusOK:
		case http.StatusBadRequest, http.StatusRequestEntityTooLarge, http.StatusUnsupportedMediaType, http.StatusUnprocessableEntity:
			return refused(InvalidInput, resp)
		default:
			return refused(Unavailable, resp)
		}
		media := resp.Header.Get("Content-Type")
		if _, _, err := mime.ParseMediaType(media); err != nil || !printable(media) {
			return fail(Protocol, nil, "the prepared request has no content type")
		}
		data, err := s.body(resp, MaxPrepared)
		if err != nil {
			return err
		}
		if resp.Close {
			return fail(Protocol, nil, "the worker ended the channel after preparation; what it prepared is bound to this channel")
		}
		r = request{body: MemoryInput(media, data)}
		return nil
	})
	return r, err
}

func (d plain) execute(ctx context.Context, s *stream, r request) (Outcome, error) {
	rule := d.offer.Response
	m := message{method: d.offer.Request.Method, path: d.offer.Request.Path, accept: rule.ContentType, body: r.body}
	var out Outcome
	err := s.exchange(ctx, m, func(resp *http.Response) error {
		data, err := s.result(resp, rule)
		if err != nil {
			return err
		}
		if isJSON(rule.ContentType) && !jsontext.Value(data).IsValid() {
			return fail(Protocol, nil, "the answer is not one JSON value")
		}
		if err := checkSchema(rule, data); err != nil {
			return err
		}
		out = Outcome{ContentType: rule.ContentType, Body: data, Warnings: warnings(resp)}
		return nil
	})
	return out, err
}

// refused is a status that is no success, with what the worker said as its
// evidence.
func refused(class Class, resp *http.Response) error {
	evidence, _ := io.ReadAll(io.LimitReader(resp.Body, MaxEvidence)) // a cut refusal is still a refusal
	f := fail(class, nil, "the worker answered with status %d", resp.StatusCode)
	f.Evidence = evidence
	return f
}

// result reads a successful answer of the rule's content type.
func (s *stream) result(resp *http.Response, rule offering.Response) ([]byte, error) {
	if resp.StatusCode != http.StatusOK {
		return nil, refused(WorkerFailed, resp)
	}
	if !sameMedia(resp.Header.Get("Content-Type"), rule.ContentType) {
		return nil, fail(Protocol, nil, "the answer's content type is not %s", rule.ContentType)
	}
	return s.body(resp, rule.MaxBytes)
}

// body reads a whole body of known extent and no encoding, at most limit bytes.
func (s *stream) body(resp *http.Response, limit int64) ([]byte, error) {
	if err := framedBody(resp); err != nil {
		return nil, err
	}
	if resp.ContentLength > limit {
		return nil, fail(Protocol, nil, "the answer announces %d bytes; at most %d are taken", resp.ContentLength, limit)
	}
	data, err := io.ReadAll(io.LimitReader(resp.Body, limit+1))
	if err != nil {
		return nil, s.classify(err, "in the middle of the answer's body")
	}
	if int64(len(data)) > limit {
		return nil, fail(Protocol, nil, "the answer is longer than %d bytes", limit)
	}
	return data, nil
}

// framedBody refuses a body whose end could not be told from a cut.
func framedBody(resp *http.Response) error {
	if resp.ContentLength < 0 && len(resp.TransferEncoding) == 0 {
		return fail(Protocol, nil, "the answer has neither a length nor chunks, so a cut one could not be told from a whole one")
	}
	if len(resp.Header.Values("Content-Encoding")) > 0 {
		return fail(Protocol, nil, "the answer has a content encoding; none was asked for")
	}
	return nil
}

func checkSchema(rule offering.Response, data []byte) error {
	if rule.Schema == nil {
		return nil
	}
	if err := rule.Schema.Check(data); err != nil {
		return fail(Protocol, err, "the answer does not match the schema: %v", err)
	}
	return nil
}

func warnings(resp *http.Response) int { return len(resp.Header.Values("Warning")) }

func sameMedia(got, want string) bool {
	g, _, err := mime.ParseMediaType(got)
	if err != nil {
		return false
	}
	w, _, err := mime.ParseMediaType(want)
	return err == nil && g == w
}

func isJSON(contentType string) bool {
	m, _, err := mime.ParseMediaType(contentType)
	return err == nil && (m == "application/json" || strings.HasSuffix(m, "+json"))
}
