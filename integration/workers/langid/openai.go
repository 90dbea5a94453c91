package main

import (
	"fmt"
	"hash/fnv"
	"io"
	"math"
	"net/http"
	"strings"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"
)

// modelName is what the inference protocols call the model.
const modelName = "langid"

// dimensions of an embedding: counts of hashed trigrams, of length one.
const dimensions = 64

type usage struct {
	PromptTokens     int `json:"prompt_tokens"`
	CompletionTokens int `json:"completion_tokens"`
	TotalTokens      int `json:"total_tokens"`
}

// tokens of this model are words.
func used(prompt, completion string) usage {
	u := usage{PromptTokens: len(strings.Fields(prompt)), CompletionTokens: len(strings.Fields(completion))}
	u.TotalTokens = u.PromptTokens + u.CompletionTokens
	return u
}

// openAI is the model as a server of chat completions, completions and
// embeddings. It answers a text with the English name of its language.
func openAI() http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("GET /health", func(rw http.ResponseWriter, _ *http.Request) {
		write(rw, http.StatusOK, map[string]string{"status": "READY"})
	})
	mux.HandleFunc("POST /v1/chat/completions", chat)
	mux.HandleFunc("POST /v1/completions", complete)
	mux.HandleFunc("POST /v1/embeddings", embed)
	return mux
}

func openAIError(rw http.ResponseWriter, status int, message string) {
	write(rw, status, map[string]any{"error": map[string]any{"message": message, "type": "invalid_request_error"}})
}

func chat(rw http.ResponseWriter, r *http.Request) {
	var asked struct {
		Messages []struct {
			Role    string `json:"role"`
			Content string `json:"content"`
		} `json:"messages"`
		Stream        bool `json:"stream"`
		StreamOptions struct {
			IncludeUsage bool `json:"include_usage"`
		} `json:"stream_options"`
	}
	if !read(rw, r, openAIError, &asked) {
		return
	}
	text := ""
	for _, m := range asked.Messages {
		if m.Role == "user" {
			text = m.Content
		}
	}
	found, err := detect([]byte(text))
	if err != nil {
		openAIError(rw, http.StatusBadRequest, err.Error())
		return
	}
	if asked.Stream {
		streamChat(rw, text, found, asked.StreamOptions.IncludeUsage)
		return
	}
	write(rw, http.StatusOK, map[string]any{
		"id": "chatcmpl-1", "object": "chat.completion", "model": modelName, "usage": used(text, found.Name),
		"choices": []any{map[string]any{"index": 0, "message": map[string]any{"role": "assistant", "content": found.Name}, "finish_reason": "stop"}},
	})
}

// streamChat says the same in events, a letter each.
func streamChat(rw http.ResponseWriter, text string, found result, withUsage bool) {
	rw.Header().Set("Content-Type", "text/event-stream")
	flusher := http.NewResponseController(rw)
	event := func(choices []any, more map[string]any) {
		chunk := map[string]any{"id": "chatcmpl-1", "object": "chat.completion.chunk", "model": modelName, "choices": choices}
		for name, value := range more {
			chunk[name] = value
		}
		data, err := json.Marshal(chunk, json.Deterministic(true))
		if err == nil {
			_, err = fmt.Fprintf(rw, "data: %s\n\n", data)
		}
		if err == nil {
			err = flusher.Flush()
		}
		said(0, err)
	}
	delta := func(d map[string]any, finish any) []any {
		return []any{map[string]any{"index": 0, "delta": d, "finish_reason": finish}}
	}
	event(delta(map[string]any{"role": "assistant", "content": ""}, nil), nil)
	for _, letter := range found.Name {
		event(delta(map[string]any{"content": string(letter)}, nil), nil)
	}
	event(delta(map[string]any{}, "stop"), nil)
	if withUsage {
		event([]any{}, map[string]any{"usage": used(text, found.Name)})
	}
	said(io.WriteString(rw, "data: [DONE]\n\n"))
}

func complete(rw http.ResponseWriter, r *http.Request) {
	var asked struct {
		Prompt string `json:"prompt"`
	}
	if !read(rw, r, openAIError, &asked) {
		return
	}
	found, err := detect([]byte(asked.Prompt))
	if err != nil {
		openAIError(rw, http.StatusBadRequest, err.Error())
		return
	}
	write(rw, http.StatusOK, map[string]any{
		"id": "cmpl-1", "object": "text_completion", "model": modelName, "usage": used(asked.Prompt, found.Name),
		"choices": []any{map[string]any{"index": 0, "text": found.Name, "finish_reason": "stop"}},
	})
}

func embed(rw http.ResponseWriter, r *http.Request) {
	var asked struct {
		Input jsontext.Value `json:"input"`
	}
	if !read(rw, r, openAIError, &asked) {
		return
	}
	var texts []string
	if asked.Input.Kind() == '"' {
		texts = make([]string, 1)
		if err := json.Unmarshal(asked.Input, &texts[0]); err != nil {
			openAIError(rw, http.StatusBadRequest, "input must be a text or a list of texts")
			return
		}
	} else if err := json.Unmarshal(asked.Input, &texts); err != nil || len(texts) == 0 {
		openAIError(rw, http.StatusBadRequest, "input must be a text or a list of texts")
		return
	}
	data := []any{}
	for i, text := range texts {
		data = append(data, map[string]any{"object": "embedding", "index": i, "embedding": embedding(text)})
	}
	u := used(strings.Join(texts, " "), "")
	write(rw, http.StatusOK, map[string]any{
		"object": "list", "model": modelName, "data": data, "usage": map[string]int{"prompt_tokens": u.PromptTokens, "total_tokens": u.TotalTokens},
	})
}

// embedding counts the hashed trigrams of a text.
func embedding(text string) []float64 {
	vector := make([]float64, dimensions)
	runes := []rune(strings.ToLower(" " + text + " "))
	for i := 0; i+3 <= len(runes); i++ {
		h := fnv.New32a()
		said(h.Write([]byte(string(runes[i : i+3]))))
		vector[h.Sum32()%dimensions]++
	}
	length := 0.0
	for _, v := range vector {
		length += v * v
	}
	if length = math.Sqrt(length); length > 0 {
		for i := range vector {
			vector[i] = math.Round(vector[i]/length*1e6) / 1e6
		}
	}
	return vector
}
