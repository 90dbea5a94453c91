package worker

import (
	"context"
	"crypto/rand"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"io"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"

	"github.com/quittance/quittance/controller/internal/offering"
	"github.com/quittance/quittance/protocol"
)

// framed is the dialect of workers that split preparation from execution
// themselves. A frame is four bytes, the length in network order, and one
// strict JSON object of that length. One channel carries one preparation and
// at most one execution:
//
//	controller                                              worker
//	{"type":"prepare","version":1,"token":T,"content_type",
//	 "length","sha256","data":base64}                  ──►
//	                                                   ◄──  {"type":"progress","token":T}             any number
//	                                                   ◄──  {"type":"prepared","token":T}             or
//	                                                        {"type":"invalid_input","token":T,"detail"} or
//	                                                        {"type":"unavailable","token":T,"detail"}
//	{"type":"execute","token":T}                       ──►
//	                                                   ◄──  {"type":"completed","token":T,"content_type",
//	                                                         "length","sha256","data":base64,"warnings":n}
//	                                                        or {"type":"execution_failed","token":T,"detail"}
//
// The input's bytes are sent once, at preparation. The token is random for each
// preparation and only correlates. Nothing is reconnected or multiplexed, and a
// worker may say execution_failed only after it took a valid execute. What a
// worker says in detail is evidence.
type framed struct{ offer *offering.Offering }

const (
	framedVersion = 1
	// maxFrame bounds a frame's object in bytes.
	maxFrame = 2 << 20
	// maxProgress bounds the progress frames of one preparation.
	maxProgress = 10_000
)

// The types of frames.
const (
	framePrepare         = "prepare"
	frameExecute         = "execute"
	frameProgress        = "progress"
	framePrepared        = "prepared"
	frameInvalidInput    = "invalid_input"
	frameUnavailable     = "unavailable"
	frameCompleted       = "completed"
	frameExecutionFailed = "execution_failed"
)

type prepareFrame struct {
	Type        string          `json:"type"`
	Version     int             `json:"version"`
	Token       string          `json:"token"`
	ContentType string          `json:"content_type"`
	Length      int64           `json:"length"`
	SHA256      protocol.Digest `json:"sha256"`
	Data        []byte          `json:"data"`
}

type executeFrame struct {
	Type  string `json:"type"`
	Token string `json:"token"`
}

// Each frame of a worker has its own closed form.
type (
	plainFrame struct {
		Type  string `json:"type"`
		Token string `json:"token"`
	}
	detailFrame struct {
		Type   string `json:"type"`
		Token  string `json:"token"`
		Detail string `json:"detail"`
	}
	completedFrame struct {
		Type        string          `json:"type"`
		Token       string          `json:"token"`
		ContentType string          `json:"content_type"`
		Length      int64           `json:"length"`
		SHA256      protocol.Digest `json:"sha256"`
		Data        []byte          `json:"data"`
		Warnings    int             `json:"warnings"`
	}
)

func (framed) admit(in Input) (request, error) { return request{body: in}, nil }

func (framed) ready(context.Context, Dialer, Report) error { return nil }

// prepare sends the input once. The request that remains is the execution's
// frame; its digest is the input's, which is what the worker was given.
func (d framed) prepare(ctx context.Context, s *stream, r request, report Report) (request, error) {
	data, err := r.body.read()
	if err != nil {
		return r, err
	}
	var random [16]byte
	_, _ = rand.Read(random[:]) // never fails
	token := hex.EncodeToString(random[:])
	r.want = token
	cut, err := s.say(ctx, prepareFrame{
		Type: framePrepare, Version: framedVersion, Token: token,
		ContentType: r.body.ContentType, Length: r.body.Length, SHA256: r.body.SHA256, Data: data,
	})
	if err != nil {
		return r, err
	}
	reported := false
	for range maxProgress {
		kind, frame, err := s.hear(ctx, token)
		if err != nil {
			return r, err
		}
		switch kind {
		case frameProgress:
			if reported {
				continue
			}
			if err := report(ctx, ConditionLoading); err != nil {
				return r, err
			}
			reported = true
		case framePrepared:
			if cut != nil {
				return r, fail(Protocol, cut, "the worker says that it is prepared and had not taken the whole input")
			}
			return r, nil
		case frameInvalidInput:
			return r, saidFrame(InvalidInput, frame, "the worker refused the input")
		case frameUnavailable:
			return r, saidFrame(Unavailable, frame, "the worker cannot prepare")
		default:
			return r, fail(Protocol, nil, "the worker sent a frame of the execution during preparation")
		}
	}
	return r, fail(Protocol, nil, "the worker sent more than %d progress frames", maxProgress)
}

func (d framed) execute(ctx context.Context, s *stream, r request) (Outcome, error) {
	token := r.want.(string)
	if s.r.Buffered() > 0 {
		return Outcome{}, fail(Protocol, nil, "the worker spoke before it was asked")
	}
	cut, err := s.say(ctx, executeFrame{Type: frameExecute, Token: token})
	if err != nil {
		return Outcome{}, err
	}
	if cut != nil {
		return Outcome{}, fail(WorkerLost, cut, "the channel ended before the execution was asked for")
	}
	kind, frame, err := s.hear(ctx, token)
	if err != nil {
		return Outcome{}, err
	}
	switch kind {
	case frameExecutionFailed:
		return Outcome{}, saidFrame(WorkerFailed, frame, "the worker says that the execution failed")
	case frameCompleted:
	default:
		return Outcome{}, fail(Protocol, nil, "the worker sent a frame of the preparation during execution")
	}
	var c completedFrame
	if err := protocol.DecodeStrict(frame, maxFrame, &c); err != nil {
		return Outcome{}, fail(Protocol, err, "the completed frame is malformed")
	}
	rule := d.offer.Response
	switch {
	case !sameMedia(c.ContentType, rule.ContentType):
		return Outcome{}, fail(Protocol, nil, "the answer's content type is not %s", rule.ContentType)
	case c.Length != int64(len(c.Data)) || c.SHA256 != protocol.DigestOf(c.Data):
		return Outcome{}, fail(Protocol, nil, "the answer's bytes are not those that its length and digest name")
	case c.Length > rule.MaxBytes:
		return Outcome{}, fail(Protocol, nil, "the answer is longer than %d bytes", rule.MaxBytes)
	case c.Warnings < 0:
		return Outcome{}, fail(Protocol, nil, "the answer's count of warnings is negative")
	case isJSON(rule.ContentType) && !jsontext.Value(c.Data).IsValid():
		return Outcome{}, fail(Protocol, nil, "the answer is not one JSON value")
	}
	if err := checkSchema(rule, c.Data); err != nil {
		return Outcome{}, err
	}
	return Outcome{ContentType: rule.ContentType, Body: c.Data, Warnings: c.Warnings}, nil
}

// saidFrame is a failure that the worker named, its frame the evidence.
func saidFrame(class Class, frame []byte, words string) error {
	var d detailFrame
	if err := protocol.DecodeStrict(frame, maxFrame, &d); err != nil {
		return fail(Protocol, err, "the worker's refusal is malformed")
	}
	f := fail(class, nil, "%s", words)
	f.Evidence = []byte(d.Detail)[:min(len(d.Detail), MaxEvidence)]
	return f
}

// say writes one frame. cut is what ended the channel before the frame was
// whole: the worker may have said why, so that is no error yet.
func (s *stream) say(ctx context.Context, v any) (cut, err error) {
	object := protocol.AppendCanonical(nil, v)
	if len(object) > maxFrame {
		return nil, fail(InvalidInput, nil, "the input does not fit a frame of %d bytes", maxFrame)
	}
	release := context.AfterFunc(ctx, s.shut)
	defer release()
	_, cut = s.conn.Write(append(binary.BigEndian.AppendUint32(nil, uint32(len(object))), object...))
	return cut, nil
}

// hear reads one frame of this token and its type.
func (s *stream) hear(ctx context.Context, token string) (kind string, frame []byte, err error) {
	release := context.AfterFunc(ctx, s.shut)
	defer release()
	var length [4]byte
	if _, err := io.ReadFull(s.r, length[:]); err != nil {
		return "", nil, s.classify(err, "where a frame was awaited")
	}
	n := binary.BigEndian.Uint32(length[:])
	if n == 0 || n > maxFrame {
		return "", nil, fail(Protocol, nil, "a frame announces %d bytes; from 1 to %d are taken", n, maxFrame)
	}
	// Memory grows with what really comes, not with what is announced.
	frame, err = io.ReadAll(io.LimitReader(s.r, int64(n)))
	if err == nil && len(frame) < int(n) {
		err = io.ErrUnexpectedEOF
	}
	if err != nil {
		return "", nil, s.classify(err, "in the middle of a frame")
	}
	// The type decides the form that the whole frame must have.
	var named struct {
		Type string `json:"type"`
	}
	if err := json.Unmarshal(frame, &named); err != nil {
		return "", nil, fail(Protocol, nil, "a frame is not one JSON object with a type")
	}
	var said plainFrame
	switch named.Type {
	case frameProgress, framePrepared:
		err = protocol.DecodeStrict(frame, maxFrame, &said)
	case frameInvalidInput, frameUnavailable, frameExecutionFailed:
		var d detailFrame
		err = protocol.DecodeStrict(frame, maxFrame, &d)
		said.Token = d.Token
	case frameCompleted:
		var c completedFrame
		err = protocol.DecodeStrict(frame, maxFrame, &c)
		said.Token = c.Token
	default:
		err = errors.New("its type is none of the protocol's")
	}
	if err != nil {
		return "", nil, fail(Protocol, err, "a frame is malformed")
	}
	if said.Token != token {
		return "", nil, fail(Protocol, nil, "a frame carries another token than this preparation's")
	}
	return named.Type, frame, nil
}
