package worker

import (
	"bufio"
	"bytes"
	"cmp"
	"errors"
	"io"
	"maps"
	"net/http"
	"slices"
	"strings"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"
)

const eventStream = "text/event-stream"

// Bounds of a stream of events: each event carries its own envelope, so the
// raw stream may be much longer than what it amounts to.
const (
	maxStreamBytes = 64 << 20
	maxEventBytes  = 1 << 20
)

// endMark is the data of the event that ends a stream.
const endMark = "[DONE]"

// assembled reads a stream of events to its end mark and returns the document
// that it amounts to, at most limit bytes.
func (s *stream) assembled(resp *http.Response, want openAIWant, limit int64) ([]byte, error) {
	if resp.StatusCode != http.StatusOK {
		return nil, refused(WorkerFailed, resp)
	}
	if !sameMedia(resp.Header.Get("Content-Type"), eventStream) {
		return nil, fail(Protocol, nil, "a stream was asked for and the answer's content type is not %s", eventStream)
	}
	if err := framedBody(resp); err != nil {
		return nil, err
	}
	whole := assembly{form: want.form, left: limit}
	limited := &io.LimitedReader{R: resp.Body, N: maxStreamBytes}
	ended := false
	err := readEvents(limited, func(data []byte) error {
		if ended {
			return fail(Protocol, nil, "the stream goes on after its end mark")
		}
		if string(data) == endMark {
			ended = true
			return nil
		}
		return whole.add(data)
	})
	var f *Failure
	switch {
	case errors.As(err, &f):
		return nil, f
	case errors.Is(err, bufio.ErrTooLong):
		return nil, fail(Protocol, err, "an event is longer than %d bytes", maxEventBytes)
	case err != nil:
		return nil, s.classify(err, "in the middle of the stream")
	case limited.N == 0:
		return nil, fail(Protocol, nil, "the stream is longer than %d bytes", maxStreamBytes)
	case !ended:
		return nil, fail(Protocol, nil, "the stream has no end mark, so a cut one could not be told from a whole one")
	}
	return whole.document(limit)
}

// readEvents reads server-sent events and hands over each one's data. Names,
// identifiers and comments are passed over; an event without its blank line is
// dropped, as the format says.
func readEvents(r io.Reader, event func(data []byte) error) error {
	lines := bufio.NewScanner(r)
	lines.Buffer(make([]byte, 0, 4096), maxEventBytes)
	var data []byte
	has := false
	for lines.Scan() {
		line := bytes.TrimSuffix(lines.Bytes(), []byte("\r"))
		if len(line) == 0 {
			if has {
				if err := event(data); err != nil {
					return err
				}
			}
			data, has = data[:0], false
			continue
		}
		name, value, _ := bytes.Cut(line, []byte(":"))
		if string(name) != "data" {
			continue
		}
		value = bytes.TrimPrefix(value, []byte(" "))
		if has {
			data = append(data, '\n')
		}
		if len(data)+len(value) > maxEventBytes {
			return bufio.ErrTooLong
		}
		data, has = append(data, value...), true
	}
	return lines.Err()
}

// assembly is one document that grows by the chunks of a stream.
type assembly struct {
	form    openAIForm
	left    int64 // bytes that it may still grow by
	head    map[string]any
	choices []map[string]any
}

// errGrown says that the document would be longer than the offering takes.
var errGrown = errors.New("the assembled answer is too long")

// add takes one chunk.
func (a *assembly) add(data []byte) error {
	var chunk map[string]any
	if err := json.Unmarshal(data, &chunk); err != nil {
		return fail(Protocol, nil, "a chunk of the stream is not one JSON object")
	}
	if chunk["error"] != nil {
		return workerSaid(data)
	}
	choices, ok := chunk["choices"].([]any)
	if !ok && chunk["choices"] != nil {
		return fail(Protocol, nil, "a chunk's choices are not a list")
	}
	delete(chunk, "choices")
	delete(chunk, "object")
	if a.head == nil {
		a.head = map[string]any{}
	}
	// What stands beside the choices is said again in each chunk; the last word
	// counts.
	for name, value := range chunk {
		if value == nil {
			continue
		}
		if _, known := a.head[name]; !known {
			if err := a.grow(len(name) + 4); err != nil {
				return a.tooLong()
			}
		}
		if err := a.replace(a.head[name], value); err != nil {
			return a.tooLong()
		}
		a.head[name] = value
	}
	for _, c := range choices {
		choice, isObject := c.(map[string]any)
		if !isObject {
			return fail(Protocol, nil, "a choice of a chunk is not an object")
		}
		index, numbered := choice["index"].(float64)
		if !numbered {
			index = 0
		}
		if index < 0 || index >= maxChoices || index != float64(int(index)) {
			return fail(Protocol, nil, "a choice's index is not from 0 to %d", maxChoices-1)
		}
		if err := a.choice(int(index), choice); errors.Is(err, errGrown) {
			return a.tooLong()
		} else if err != nil {
			return err
		}
	}
	return nil
}

func (a *assembly) tooLong() error {
	return fail(Protocol, errGrown, "the assembled answer is longer than the offering takes")
}

func (a *assembly) choice(index int, chunk map[string]any) error {
	at := slices.IndexFunc(a.choices, func(c map[string]any) bool { return c["index"] == float64(index) })
	if at < 0 {
		if err := a.grow(32); err != nil {
			return err
		}
		fresh := map[string]any{"index": float64(index)}
		if a.form == chatForm {
			fresh["message"] = map[string]any{}
		}
		a.choices = append(a.choices, fresh)
		at = len(a.choices) - 1
	}
	whole := a.choices[at]
	delete(chunk, "index")
	if delta, has := chunk["delta"]; has {
		delete(chunk, "delta")
		if object, ok := delta.(map[string]any); ok && a.form == chatForm {
			merged, err := a.merge("", whole["message"], object)
			if err != nil {
				return err
			}
			whole["message"] = merged
		} else if delta != nil {
			return fail(Protocol, nil, "a choice's delta is not an object of a chat")
		}
	}
	for name, value := range chunk {
		merged, err := a.merge(name, whole[name], value)
		if err != nil {
			return err
		}
		whole[name] = merged
	}
	return nil
}

// wholeTexts names the texts that come at once and are repeated, not continued.
var wholeTexts = map[string]bool{"role": true, "type": true, "id": true, "finish_reason": true, "stop_reason": true}

// merge continues what is known by what a chunk says of it: texts are joined,
// objects merged, lists of numbered objects merged by their index, other lists
// joined; everything else is replaced.
func (a *assembly) merge(name string, known, said any) (any, error) {
	if said == nil {
		return known, nil
	}
	if known == nil {
		if err := a.grow(len(name) + 4); err != nil {
			return nil, err
		}
	}
	switch value := said.(type) {
	case string:
		if wholeTexts[name] {
			return value, a.replace(known, value)
		}
		if err := a.grow(len(value)); err != nil {
			return nil, err
		}
		text, growing := known.(*strings.Builder)
		if !growing {
			text = new(strings.Builder)
			before, _ := known.(string)
			text.WriteString(before)
		}
		text.WriteString(value)
		return text, nil
	case map[string]any:
		object, ok := known.(map[string]any)
		if !ok {
			object = map[string]any{}
		}
		for member, v := range value {
			merged, err := a.merge(member, object[member], v)
			if err != nil {
				return nil, err
			}
			if merged != nil {
				object[member] = merged
			}
		}
		return object, nil
	case []any:
		list, _ := known.([]any)
		for _, item := range value {
			var err error
			if list, err = a.item(list, item); err != nil {
				return nil, err
			}
		}
		return list, nil
	}
	return said, a.replace(known, said)
}

// item joins one item to a list.
func (a *assembly) item(list []any, item any) ([]any, error) {
	object, _ := item.(map[string]any)
	index, numbered := object["index"].(float64)
	if !numbered {
		return append(list, item), a.replace(nil, item)
	}
	for i, known := range list {
		if k, _ := known.(map[string]any); k["index"] == index {
			delete(object, "index")
			merged, err := a.merge("", known, object)
			if err != nil {
				return nil, err
			}
			list[i] = merged
			return list, nil
		}
	}
	if len(list) >= maxChoices {
		return nil, fail(Protocol, nil, "a list of a chunk has more than %d numbered items", maxChoices)
	}
	return append(list, item), a.replace(nil, item)
}

func (a *assembly) grow(n int) error {
	if a.left -= int64(n); a.left < 0 {
		return errGrown
	}
	return nil
}

// replace accounts for a value in place of another.
func (a *assembly) replace(known, value any) error { return a.grow(extent(value) - extent(known)) }

// extent is a lower bound of a value's length in JSON, and of what it takes in
// memory but for a constant factor.
func extent(v any) int {
	switch value := v.(type) {
	case string:
		return len(value) + 2
	case *strings.Builder:
		return value.Len() + 2
	case map[string]any:
		n := 2
		for name, member := range value {
			n += len(name) + 4 + extent(member)
		}
		return n
	case []any:
		n := 2
		for _, item := range value {
			n += 1 + extent(item)
		}
		return n
	case nil:
		return 0
	}
	return 1
}

// document is the whole answer.
func (a *assembly) document(limit int64) ([]byte, error) {
	if len(a.choices) == 0 {
		return nil, fail(Protocol, nil, "the stream has no choices")
	}
	whole := maps.Clone(a.head)
	whole["object"] = string(a.form)
	slices.SortFunc(a.choices, func(x, y map[string]any) int {
		return cmp.Compare(x["index"].(float64), y["index"].(float64))
	})
	for _, c := range a.choices {
		settle(c)
	}
	whole["choices"] = a.choices
	data, err := json.Marshal(whole, json.Deterministic(true), jsontext.AllowInvalidUTF8(false))
	if err != nil {
		return nil, fail(Protocol, err, "the assembled answer is no JSON")
	}
	if int64(len(data)) > limit {
		return nil, a.tooLong()
	}
	return data, nil
}

// settle puts the texts that grew into their places.
func settle(v any) any {
	switch value := v.(type) {
	case *strings.Builder:
		return value.String()
	case map[string]any:
		for name, member := range value {
			value[name] = settle(member)
		}
	case []any:
		for i, item := range value {
			value[i] = settle(item)
		}
	}
	return v
}
