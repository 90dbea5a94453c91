package worker

import (
	"bufio"
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/quittance/quittance/controller/internal/offering"
)

// says answers every request of a connection with one reply.
func says(contentType, body string) func(net.Conn) {
	return func(c net.Conn) {
		for r := bufio.NewReader(c); ; {
			req, err := http.ReadRequest(r)
			if err != nil {
				return
			}
			io.Copy(io.Discard, req.Body)
			if req.URL.Path == kserveHealth {
				io.WriteString(c, "HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n")
				continue
			}
			fmt.Fprintf(c, "HTTP/1.1 200 OK\r\nContent-Type: %s\r\nContent-Length: %d\r\n\r\n%s", contentType, len(body), body)
		}
	}
}

func events(data ...string) string {
	return "data: " + strings.Join(data, "\n\ndata: ") + "\n\n"
}

// fails runs one input against one scripted worker and wants one class.
func fails(t *testing.T, o *offering.Offering, handle func(net.Conn), in Input, want Class) *Failure {
	t.Helper()
	s := raw(t, handle)
	_, err := run(t, t.Context(), o, s, in)
	f, ok := errors.AsType[*Failure](err)
	if !ok || f.Class != want {
		t.Fatalf("%v, want %s", err, want)
	}
	return f
}

const (
	chatPath  = "/v1/chat/completions"
	asked     = `{"messages":[{"role":"user","content":"x"}]}`
	streaming = `{"stream":true,"messages":[{"role":"user","content":"x"}]}`
	chunk     = `{"id":"1","object":"chat.completion.chunk","choices":[{"index":0,"delta":{"content":"a"},"finish_reason":null}]}`
	lastChunk = `{"id":"1","object":"chat.completion.chunk","choices":[{"index":0,"delta":{},"finish_reason":"stop"}]}`
)

func TestOpenAIFailureClasses(t *testing.T) {
	const plainJSON, head = "application/json", "HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n"
	cut := func(text string) func(net.Conn) {
		return func(c net.Conn) {
			r, err := http.ReadRequest(bufio.NewReader(c))
			if err == nil {
				io.Copy(io.Discard, r.Body)
				io.WriteString(c, text)
			}
		}
	}
	choice := func(n int) string {
		return `{"object":"chat.completion","choices":[` + strings.TrimSuffix(strings.Repeat(`{"message":{"content":"x"}},`, n), ",") + `]}`
	}
	for name, row := range map[string]struct {
		path, input string
		handle      func(net.Conn)
		want        Class
	}{
		"an error":               {chatPath, asked, says(plainJSON, `{"error":{"message":"no"}}`), WorkerFailed},
		"a status":               {chatPath, asked, cut("HTTP/1.1 400 No\r\nContent-Length: 2\r\n\r\n{}"), WorkerFailed},
		"no object":              {chatPath, asked, says(plainJSON, `[]`), Protocol},
		"no JSON":                {chatPath, asked, says(plainJSON, `{`), Protocol},
		"another object":         {chatPath, asked, says(plainJSON, strings.Replace(choice(1), "chat.completion", "list", 1)), Protocol},
		"no choices":             {chatPath, asked, says(plainJSON, `{"object":"chat.completion","choices":[]}`), Protocol},
		"too many choices":       {chatPath, asked, says(plainJSON, choice(2)), Protocol},
		"no message":             {chatPath, asked, says(plainJSON, `{"object":"chat.completion","choices":[{"text":"x"}]}`), Protocol},
		"no text":                {"/v1/completions", `{"prompt":"x"}`, says(plainJSON, `{"object":"text_completion","choices":[{"message":{}}]}`), Protocol},
		"no embedding":           {"/v1/embeddings", `{"input":"x"}`, says(plainJSON, `{"object":"list","data":[{"index":0}]}`), Protocol},
		"too few embeddings":     {"/v1/embeddings", `{"input":["x","y"]}`, says(plainJSON, `{"object":"list","data":[{"embedding":[1]}]}`), Protocol},
		"a stream unasked":       {chatPath, asked, says(eventStream, events(chunk, lastChunk, endMark)), Protocol},
		"no stream":              {chatPath, streaming, says(plainJSON, choice(1)), Protocol},
		"an error in the stream": {chatPath, streaming, says(eventStream, events(chunk, `{"error":{"message":"no"}}`)), WorkerFailed},
		"no end mark":            {chatPath, streaming, says(eventStream, events(chunk, lastChunk)), Protocol},
		"no finish":              {chatPath, streaming, says(eventStream, events(chunk, endMark)), Protocol},
		"after the end mark":     {chatPath, streaming, says(eventStream, events(lastChunk, endMark, chunk)), Protocol},
		"an empty stream":        {chatPath, streaming, says(eventStream, events(endMark)), Protocol},
		"a chunk of no JSON":     {chatPath, streaming, says(eventStream, events("{", endMark)), Protocol},
		"an odd index":           {chatPath, streaming, says(eventStream, events(strings.Replace(chunk, `"index":0`, `"index":-1`, 1), endMark)), Protocol},
		"an odd delta":           {chatPath, streaming, says(eventStream, events(strings.Replace(chunk, `{"content":"a"}`, `"a"`, 1), endMark)), Protocol},
		"a cut stream":           {chatPath, streaming, cut(head + "Transfer-Encoding: chunked\r\n\r\n400\r\n" + events(chunk)), WorkerLost},
		"a stream of no extent":  {chatPath, streaming, cut(head + "\r\n" + events(lastChunk, endMark)), Protocol},
		"an endless event":       {chatPath, streaming, says(eventStream, "data: "+strings.Repeat("x", maxEventBytes)), Protocol},
		"a refused stream":       {chatPath, streaming, cut("HTTP/1.1 503 No\r\nContent-Length: 0\r\n\r\n"), WorkerFailed},

		"input: no object":       {chatPath, `[]`, nil, InvalidInput},
		"input: no messages":     {chatPath, `{}`, nil, InvalidInput},
		"input: messages text":   {chatPath, `{"messages":"x"}`, nil, InvalidInput},
		"input: stream text":     {chatPath, `{"messages":[],"stream":"yes"}`, nil, InvalidInput},
		"input: n":               {chatPath, `{"messages":[],"n":0}`, nil, InvalidInput},
		"input: no prompt":       {"/v1/completions", `{}`, nil, InvalidInput},
		"input: no input":        {"/v1/embeddings", `{"input":{}}`, nil, InvalidInput},
		"input: empty":           {"/v1/embeddings", `{"input":[]}`, nil, InvalidInput},
		"input: embeddings flow": {"/v1/embeddings", `{"input":"x","stream":true}`, nil, InvalidInput},
	} {
		t.Run(name, func(t *testing.T) {
			handle := row.handle
			if handle == nil {
				handle = func(net.Conn) { t.Error("a refused input opened a channel") }
			}
			fails(t, speaks(t, "openai", row.path), handle, document(row.input), row.want)
		})
	}
}

// What a stream amounts to: joined texts, merged tool calls, the last word of
// what is repeated, each choice by its index.
func TestOpenAIAssembly(t *testing.T) {
	stream := ": a comment\r\nevent: message\r\n" + strings.ReplaceAll(events(
		`{"id":"1","created":5,"model":"m","choices":[{"index":1,"delta":{"role":"assistant","content":"B"}},{"index":0,"delta":{"role":"assistant","content":null}}]}`,
		`{"id":"1","choices":[{"index":0,"delta":{"tool_calls":[{"index":0,"id":"c1","type":"function","function":{"name":"f","arguments":"{\"a\""}}]}}]}`,
		`{"id":"1","choices":[{"index":0,"delta":{"tool_calls":[{"index":0,"function":{"arguments":":1}"}},{"index":1,"id":"c2"}]},"finish_reason":"tool_calls"},{"index":1,"delta":{"content":"C"},"logprobs":{"content":[{"token":"C","logprob":-0.5}]},"finish_reason":"stop"}]}`,
		`{"id":"1","choices":[],"usage":{"prompt_tokens":1,"completion_tokens":2,"total_tokens":3}}`, endMark), "\n", "\r\n")
	s := raw(t, says(eventStream+"; charset=utf-8", stream))
	out, err := run(t, t.Context(), speaks(t, "openai", chatPath), s, document(strings.Replace(streaming, "{", `{"n":2,`, 1)))
	if err != nil {
		t.Fatal(err)
	}
	const want = `{"id":"1","object":"chat.completion","created":5,"model":"m","usage":{"prompt_tokens":1,"completion_tokens":2,"total_tokens":3},"choices":[` +
		`{"index":0,"finish_reason":"tool_calls","message":{"role":"assistant","tool_calls":[{"index":0,"id":"c1","type":"function","function":{"name":"f","arguments":"{\"a\":1}"}},{"index":1,"id":"c2"}]}},` +
		`{"index":1,"finish_reason":"stop","message":{"role":"assistant","content":"BC"},"logprobs":{"content":[{"token":"C","logprob":-0.5}]}}]}`
	if got := canonical(t, out.Body); got != canonical(t, []byte(want)) {
		t.Fatalf("%s\nwant %s", got, want)
	}
}

// I33: a stream that amounts to more than the offering takes ends when it does,
// not when the worker does.
func TestOpenAIStreamBound(t *testing.T) {
	for name, piece := range map[string]string{
		"text":    chunk,
		"list":    `{"choices":[{"index":0,"delta":{"parts":["a"]}}]}`,
		"objects": `{"choices":[{"index":0,"delta":{"parts":[{"index":%d}]}}]}`,
		"members": `{"m%d":1,"choices":[]}`,
	} {
		t.Run(name, func(t *testing.T) {
			fails(t, speaks(t, "openai", chatPath), func(c net.Conn) {
				r, err := http.ReadRequest(bufio.NewReader(c))
				if err != nil {
					return
				}
				io.Copy(io.Discard, r.Body)
				io.WriteString(c, "HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n")
				for i := 0; ; i++ {
					event := events(strings.ReplaceAll(piece, "%d", fmt.Sprint(i)))
					if _, err := fmt.Fprintf(c, "%x\r\n%s\r\n", len(event), event); err != nil {
						return // the channel was closed: the bound was reached
					}
				}
			}, document(streaming), Protocol)
		})
	}
}

// Whatever bytes a stream has, its document keeps the bound.
func FuzzEvents(f *testing.F) {
	f.Add([]byte(events(chunk, lastChunk, endMark)))
	f.Add([]byte("data:{}\n\n:\n\ndata\n\n"))
	f.Fuzz(func(t *testing.T, data []byte) {
		const limit = 4 << 10
		whole := assembly{form: chatForm, left: limit}
		if readEvents(bytes.NewReader(data), whole.add) != nil {
			return
		}
		if document, err := whole.document(limit); err == nil && len(document) > limit {
			t.Fatalf("%d bytes", len(document))
		}
	})
}

const inferPath = "/v2/models/m/infer"

func TestKServeFailureClasses(t *testing.T) {
	const good = `{"inputs":[{"name":"a","shape":[2],"datatype":"INT32","data":[1,2]}]}`
	answer := func(id, model, outputs string) func(net.Conn) {
		return says("application/json", `{"id":"`+id+`","model_name":"`+model+`","outputs":[`+outputs+`]}`)
	}
	tensor := `{"name":"o","shape":[2,2],"datatype":"FP32","data":[[1,2],[3,4.5]]}`
	for name, row := range map[string]struct {
		input  string
		handle func(net.Conn)
		want   Class
	}{
		"an error":         {good, says("application/json", `{"error":"no"}`), WorkerFailed},
		"no object":        {good, says("application/json", `[]`), Protocol},
		"another id":       {good, answer("other", "m", tensor), Protocol},
		"no id":            {good, answer("", "m", tensor), Protocol},
		"another model":    {good, answer("key", "n", tensor), Protocol},
		"no outputs":       {good, answer("key", "m", ""), Protocol},
		"a misfit":         {good, answer("key", "m", strings.Replace(tensor, "4.5", "4,5", 1)), Protocol},
		"another type":     {good, answer("key", "m", strings.Replace(tensor, "4.5", `"4"`, 1)), Protocol},
		"no name":          {good, answer("key", "m", strings.Replace(tensor, `"name":"o",`, "", 1)), Protocol},
		"a huge shape":     {good, answer("key", "m", strings.Replace(tensor, "[2,2]", "[9007199254740991,9007199254740991]", 1)), Protocol},
		"a negative shape": {good, answer("key", "m", strings.Replace(tensor, "[2,2]", "[-2,-2]", 1)), Protocol},
		"half floats":      {good, answer("key", "m", strings.Replace(tensor, "FP32", "FP16", 1)), Protocol},
		"lost": {good, func(c net.Conn) {
			r, err := http.ReadRequest(bufio.NewReader(c))
			if err == nil && r.URL.Path == kserveHealth {
				io.WriteString(c, "HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n")
			}
		}, WorkerLost},
		"never ready": {good, func(c net.Conn) {
			for r := bufio.NewReader(c); ; {
				if _, err := http.ReadRequest(r); err != nil {
					return
				}
				io.WriteString(c, "HTTP/1.1 503 Loading\r\nContent-Length: 0\r\n\r\n")
			}
		}, Unavailable},

		"input: no object":    {`[]`, nil, InvalidInput},
		"input: an id":        {`{"id":"mine",` + good[1:], nil, InvalidInput},
		"input: no inputs":    {`{"inputs":[]}`, nil, InvalidInput},
		"input: a misfit":     {strings.Replace(good, "[2]", "[3]", 1), nil, InvalidInput},
		"input: another type": {strings.Replace(good, "INT32", "BYTES", 1), nil, InvalidInput},
		"input: no data":      {strings.Replace(good, `,"data":[1,2]`, "", 1), nil, InvalidInput},
		"input: no shape":     {strings.Replace(good, `"shape":[2],`, "", 1), nil, InvalidInput},
	} {
		t.Run(name, func(t *testing.T) {
			handle := row.handle
			if handle == nil {
				handle = func(net.Conn) { t.Error("a refused input opened a channel") }
			}
			o := speaks(t, "kserve", inferPath)
			if name == "never ready" {
				o.PrepareTimeout = 500 * time.Millisecond
			}
			fails(t, o, handle, document(row.input), row.want)
		})
	}
}

// frames is a scripted worker of the framed protocol. In the script, "T" stands
// for the token that was heard; an empty line reads one more frame, and a line
// with line feeds is several frames that are sent at once.
func frames(script ...string) func(net.Conn) {
	return func(c net.Conn) {
		token := ""
		r := bufio.NewReader(c)
		for _, line := range append([]string{""}, script...) {
			if line == "" {
				heard, err := readScripted(r)
				if err != nil {
					return
				}
				_, rest, _ := strings.Cut(heard, `"token":"`)
				token, _, _ = strings.Cut(rest, `"`)
				continue
			}
			var out []byte
			for frame := range strings.SplitSeq(strings.ReplaceAll(line, `"T"`, `"`+token+`"`), "\n") {
				out = append(binary.BigEndian.AppendUint32(out, uint32(len(frame))), frame...)
			}
			if _, err := c.Write(out); err != nil {
				return
			}
		}
	}
}

func readScripted(r io.Reader) (string, error) {
	var length [4]byte
	if _, err := io.ReadFull(r, length[:]); err != nil {
		return "", err
	}
	frame := make([]byte, binary.BigEndian.Uint32(length[:]))
	_, err := io.ReadFull(r, frame)
	return string(frame), err
}

func TestFramedFailureClasses(t *testing.T) {
	const (
		prepared  = `{"type":"prepared","token":"T"}`
		failed    = `{"type":"execution_failed","token":"T","detail":"no"}`
		completed = `{"type":"completed","token":"T","content_type":"application/json","length":2,"sha256":"sha256:44136fa355b3678a1146ad16f7e8649e94fb4fc21fe77e8310c060f61caaff8a","data":"e30=","warnings":1}`
	)
	bytesOnly := func(text string) func(net.Conn) {
		return func(c net.Conn) {
			io.WriteString(c, text)
			io.Copy(io.Discard, c)
		}
	}
	for name, row := range map[string]struct {
		handle func(net.Conn)
		want   Class // "" is success
	}{
		"success":                     {frames(`{"type":"progress","token":"T"}`, prepared, "", completed), ""},
		"invalid input":               {frames(`{"type":"invalid_input","token":"T","detail":"no"}`), InvalidInput},
		"unavailable":                 {frames(`{"type":"unavailable","token":"T","detail":"no"}`), Unavailable},
		"lost in preparation":         {frames(), WorkerLost},
		"failed before execution":     {frames(failed), Protocol},
		"completed before execution":  {frames(completed), Protocol},
		"failed":                      {frames(prepared, "", failed), WorkerFailed},
		"lost in execution":           {frames(prepared, ""), WorkerLost},
		"spoke before it was asked":   {frames(prepared + "\n" + completed), Protocol},
		"bytes after the object":      {frames(prepared + "x"), Protocol},
		"prepared twice":              {frames(prepared, "", prepared), Protocol},
		"refused after preparation":   {frames(prepared, "", `{"type":"invalid_input","token":"T","detail":"no"}`), Protocol},
		"another token":               {frames(`{"type":"prepared","token":"U"}`), Protocol},
		"another token at the end":    {frames(prepared, "", strings.Replace(completed, `"T"`, `"U"`, 1)), Protocol},
		"an unknown type":             {frames(`{"type":"ready","token":"T"}`), Protocol},
		"an unknown member":           {frames(`{"type":"prepared","token":"T","more":1}`), Protocol},
		"a member twice":              {frames(`{"type":"prepared","token":"T","token":"T"}`), Protocol},
		"no JSON":                     {frames(`{`), Protocol},
		"an empty frame":              {bytesOnly("\x00\x00\x00\x00"), Protocol},
		"a frame too long":            {bytesOnly("\x00\x20\x00\x01{"), Protocol},
		"a cut frame":                 {func(c net.Conn) { io.WriteString(c, "\x00\x00\x01\x00{") }, WorkerLost},
		"a wrong digest":              {frames(prepared, "", strings.Replace(completed, "sha256:4", "sha256:5", 1)), Protocol},
		"a wrong length":              {frames(prepared, "", strings.Replace(completed, `"length":2`, `"length":3`, 1)), Protocol},
		"another content type":        {frames(prepared, "", strings.Replace(completed, "/json", "/xml", 1)), Protocol},
		"a negative count":            {frames(prepared, "", strings.Replace(completed, `"warnings":1`, `"warnings":-1`, 1)), Protocol},
		"base64 that is not its form": {frames(prepared, "", strings.Replace(completed, "e30=", "e30", 1)), Protocol},
	} {
		t.Run(name, func(t *testing.T) {
			o := speaks(t, "framed", "")
			s := raw(t, row.handle)
			out, err := run(t, t.Context(), o, s, document(`{"x":1}`))
			if classOf(err) != row.want || row.want == "" && (err != nil || string(out.Body) != "{}" || out.Warnings != 1) {
				t.Fatalf("%v, want %q (%+v)", err, row.want, out)
			}
			if s.accepted.Load() != 1 {
				t.Fatalf("%d channels: something was sent twice", s.accepted.Load())
			}
		})
	}
}

// A worker's progress is reported once, and a report that fails ends the
// preparation.
func TestFramedProgress(t *testing.T) {
	broken := errors.New("the heartbeat was refused")
	for _, refuse := range []error{nil, broken} {
		s := raw(t, frames(`{"type":"progress","token":"T"}`, `{"type":"progress","token":"T"}`, `{"type":"prepared","token":"T"}`, ""))
		a := New(speaks(t, "framed", ""), s, "key")
		defer a.Close()
		var said []string
		_, err := a.Prepare(t.Context(), document(`{"x":1}`), func(_ context.Context, c string) error {
			said = append(said, c)
			return refuse
		})
		if !errors.Is(err, refuse) || fmt.Sprint(said) != "["+ConditionLoading+"]" {
			t.Fatalf("%v, reported %v", err, said)
		}
	}
}

// FR-36: an endless wait for a worker that says it is well ends by our own
// timer, whatever protocol it speaks.
func TestEveryDialectTimesOut(t *testing.T) {
	silent := func(c net.Conn) {
		for r := bufio.NewReader(c); ; {
			req, err := http.ReadRequest(r)
			if err != nil {
				return
			}
			io.Copy(io.Discard, req.Body)
			if req.Method == http.MethodGet {
				io.WriteString(c, "HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n")
			}
		}
	}
	for adapter, row := range map[string]struct {
		path, input string
		handle      func(net.Conn)
	}{
		"http":   {"/predict", `{}`, silent},
		"openai": {chatPath, streaming, silent},
		"kserve": {inferPath, `{"inputs":[{"name":"a","shape":[1],"datatype":"BOOL","data":[true]}]}`, silent},
		"framed": {"", `{}`, frames(`{"type":"prepared","token":"T"}`, "", "")},
	} {
		t.Run(adapter, func(t *testing.T) {
			o := speaks(t, adapter, row.path)
			o.Request.Timeout = 50 * time.Millisecond
			fails(t, o, row.handle, document(row.input), WorkerTimeout)
		})
	}
}

// Whatever bytes a worker sends where a frame is awaited, what is taken is one
// of the protocol's types with this preparation's token.
func FuzzFrames(f *testing.F) {
	const token = "0123456789abcdef0123456789abcdef"
	frame := func(text string) []byte {
		return append(binary.BigEndian.AppendUint32(nil, uint32(len(text))), text...)
	}
	f.Add(frame(`{"type":"prepared","token":"` + token + `"}`))
	f.Add(frame(`{"type":"execution_failed","token":"` + token + `","detail":"no"}`))
	f.Add([]byte("\x00\x1f\xff\xff{"))
	f.Fuzz(func(t *testing.T, data []byte) {
		ours, theirs := net.Pipe()
		defer ours.Close()
		defer theirs.Close()
		s := newStream(ours)
		s.r = bufio.NewReader(bytes.NewReader(data))
		kind, frame, err := s.hear(t.Context(), token)
		if err != nil {
			if classOf(err) == "" {
				t.Fatalf("not classed: %v", err)
			}
			return
		}
		if !bytes.Contains(frame, []byte(token)) || len(frame) > maxFrame {
			t.Fatalf("%s was taken: %q", kind, frame)
		}
	})
}

// Whatever document a worker answers with, it is taken or refused with a class,
// and what it claims of itself stays within its bounds.
func FuzzWorkerAnswers(f *testing.F) {
	f.Add([]byte(`{"object":"chat.completion","model":"m","choices":[{"message":{"content":"x"}}],"usage":{"prompt_tokens":1}}`))
	f.Add([]byte(`{"object":"list","data":[{"embedding":[1]}]}`))
	f.Add([]byte(`{"id":"key","model_name":"m","outputs":[{"name":"o","shape":[1,1],"datatype":"FP32","data":[[1]]}]}`))
	f.Fuzz(func(t *testing.T, data []byte) {
		for _, check := range []func([]byte) ([]Claim, error){
			openAIWant{form: chatForm, results: 1}.check, openAIWant{form: completionForm, stream: true}.check,
			openAIWant{form: embeddingsForm, results: 1}.check, kserveWant{model: "m", id: "key"}.check,
		} {
			claims, err := check(data)
			if err != nil && classOf(err) == "" {
				t.Fatalf("not classed: %v", err)
			}
			if len(claims) > MaxClaims {
				t.Fatalf("%d claims", len(claims))
			}
			for _, c := range claims {
				if len(c.Name) > MaxClaimBytes || len(c.Value) > MaxClaimBytes || !printable(c.Value) {
					t.Fatalf("claim %q", c)
				}
			}
		}
	})
}
