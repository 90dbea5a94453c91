package worker

import (
	"bytes"
	"context"
	"net/http"
	"strings"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"

	"github.com/quittance/quittance/controller/internal/offering"
)

// openAI is the dialect of llama.cpp, vLLM and every other server of that
// shape: chat completions, completions and embeddings. The job's input is the
// request's exact body. Where it asks for a stream, the stream is read to its
// end mark and assembled to the one document that would have come without it.
type openAI struct{ offer *offering.Offering }

// openAIForm is which of the three a path asks for.
type openAIForm string

const (
	chatForm       openAIForm = "chat.completion"
	completionForm openAIForm = "text_completion"
	embeddingsForm openAIForm = "list"
)

func openAIFormOf(path string) openAIForm {
	switch {
	case strings.HasSuffix(path, offering.OpenAIChat):
		return chatForm
	case strings.HasSuffix(path, offering.OpenAIEmbeddings):
		return embeddingsForm
	}
	return completionForm
}

// openAIWant is what a request asks for.
type openAIWant struct {
	form   openAIForm
	stream bool
	// results is how many choices or embeddings must come; 0 where the request
	// does not say it (a list of prompts).
	results int
}

// openAIRequest is what this package reads of a request; everything else is
// the server's business.
type openAIRequest struct {
	Messages jsontext.Value `json:"messages"`
	Prompt   jsontext.Value `json:"prompt"`
	Input    jsontext.Value `json:"input"`
	Stream   *bool          `json:"stream"`
	N        *int           `json:"n"`
}

// maxChoices bounds the choices of one request.
const maxChoices = 128

func (d openAI) admit(in Input) (request, error) {
	data, err := in.read()
	if err != nil {
		return request{}, err
	}
	var asked openAIRequest
	if jsontext.Value(data).Kind() != '{' || json.Unmarshal(data, &asked) != nil {
		return request{}, fail(InvalidInput, nil, "the input is not a request object with members of the right types")
	}
	want := openAIWant{form: openAIFormOf(d.offer.Request.Path), stream: asked.Stream != nil && *asked.Stream, results: 1}
	if asked.N != nil {
		want.results = *asked.N
	}
	if want.results < 1 || want.results > maxChoices {
		return request{}, fail(InvalidInput, nil, "n must be from 1 to %d", maxChoices)
	}
	switch want.form {
	case chatForm:
		if asked.Messages.Kind() != '[' {
			return request{}, fail(InvalidInput, nil, "messages is required: a list")
		}
	case completionForm:
		switch asked.Prompt.Kind() {
		case '"':
		case '[':
			want.results = 0
		default:
			return request{}, fail(InvalidInput, nil, "prompt is required: a text or a list")
		}
	case embeddingsForm:
		switch asked.Input.Kind() {
		case '"':
		case '[':
			if want.results, err = embeddingsOf(asked.Input); err != nil {
				return request{}, err
			}
		default:
			return request{}, fail(InvalidInput, nil, "input is required: a text or a list")
		}
		if want.stream {
			return request{}, fail(InvalidInput, nil, "embeddings have no stream")
		}
	}
	return request{body: in, want: want}, nil
}

// embeddingsOf counts the texts of a list; a list of numbers is one text in
// tokens.
func embeddingsOf(list jsontext.Value) (int, error) {
	var items []jsontext.Value
	if err := json.Unmarshal(list, &items); err != nil || len(items) == 0 {
		return 0, fail(InvalidInput, err, "input must not be an empty list")
	}
	if items[0].Kind() == '0' {
		return 1, nil
	}
	return len(items), nil
}

func (openAI) ready(context.Context, Dialer, Report) error { return nil }

func (openAI) prepare(_ context.Context, _ *stream, r request, _ Report) (request, error) {
	return r, nil
}

func (d openAI) execute(ctx context.Context, s *stream, r request) (Outcome, error) {
	want := r.want.(openAIWant)
	m := message{method: http.MethodPost, path: d.offer.Request.Path, accept: d.offer.Response.ContentType, body: r.body}
	if want.stream {
		m.accept = eventStream
	}
	var out Outcome
	err := s.exchange(ctx, m, func(resp *http.Response) (err error) {
		var data []byte
		if want.stream {
			data, err = s.assembled(resp, want, d.offer.Response.MaxBytes)
		} else {
			data, err = s.result(resp, d.offer.Response)
		}
		if err != nil {
			return err
		}
		claims, err := want.check(data)
		if err != nil {
			return err
		}
		if err := checkSchema(d.offer.Response, data); err != nil {
			return err
		}
		out = Outcome{ContentType: d.offer.Response.ContentType, Body: data, Warnings: warnings(resp), Claims: claims}
		return nil
	})
	return out, err
}

// openAIAnswer is what this package reads of an answer.
type openAIAnswer struct {
	Object  string         `json:"object"`
	Model   string         `json:"model"`
	Error   jsontext.Value `json:"error"`
	Choices []struct {
		Message      jsontext.Value `json:"message"`
		Text         *string        `json:"text"`
		FinishReason *string        `json:"finish_reason"`
	} `json:"choices"`
	Data []struct {
		Embedding jsontext.Value `json:"embedding"`
	} `json:"data"`
	Usage *struct {
		PromptTokens     *int64 `json:"prompt_tokens"`
		CompletionTokens *int64 `json:"completion_tokens"`
		TotalTokens      *int64 `json:"total_tokens"`
	} `json:"usage"`
}

// check holds an answer against its request and returns what the server says
// of its work.
func (w openAIWant) check(data []byte) ([]Claim, error) {
	var said openAIAnswer
	if jsontext.Value(data).Kind() != '{' || json.Unmarshal(data, &said) != nil {
		return nil, fail(Protocol, nil, "the answer is not one answer object with members of the right types")
	}
	if isSet(said.Error) {
		return nil, workerSaid(data)
	}
	results := len(said.Choices)
	for _, c := range said.Choices {
		switch {
		case w.form == chatForm && c.Message.Kind() != '{':
			return nil, fail(Protocol, nil, "a choice has no message")
		case w.form == completionForm && c.Text == nil:
			return nil, fail(Protocol, nil, "a choice has no text")
		case w.stream && c.FinishReason == nil:
			return nil, fail(Protocol, nil, "the stream ended and a choice has no finish_reason, so a cut one could not be told from a whole one")
		}
	}
	if w.form == embeddingsForm {
		results = len(said.Data)
		for _, e := range said.Data {
			if k := e.Embedding.Kind(); k != '[' && k != '"' {
				return nil, fail(Protocol, nil, "an item has no embedding")
			}
		}
	}
	if said.Object != string(w.form) {
		return nil, fail(Protocol, nil, "the answer's object is not %s", w.form)
	}
	if results == 0 || w.results > 0 && results != w.results {
		return nil, fail(Protocol, nil, "the answer has %d results, the request asked for %d", results, max(w.results, 1))
	}
	claims := claim(nil, "model", said.Model)
	if u := said.Usage; u != nil {
		claims = count(claims, "prompt_tokens", u.PromptTokens)
		claims = count(claims, "completion_tokens", u.CompletionTokens)
		claims = count(claims, "total_tokens", u.TotalTokens)
	}
	return claims, nil
}

func isSet(v jsontext.Value) bool { return len(v) > 0 && v.Kind() != 'n' }

// workerSaid is a failure that the worker put into a successful status.
func workerSaid(evidence []byte) error {
	f := fail(WorkerFailed, nil, "the worker answered with an error")
	f.Evidence = bytes.Clone(evidence[:min(len(evidence), MaxEvidence)])
	return f
}
