package worker

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/go-json-experiment/json"

	"github.com/quittance/quittance/controller/internal/offering"
)

// builtIn is the directory of what built made; "" where no test needed it.
var builtIn string

// built is the reference worker's program, made once for this package's tests.
var built = sync.OnceValues(func() (string, error) {
	dir, err := os.MkdirTemp("", "quittance-langid-")
	if err != nil {
		return "", err
	}
	builtIn = dir
	program := filepath.Join(dir, "langid")
	out, err := exec.Command("go", "build", "-o", program, "github.com/quittance/quittance/integration/workers/langid").CombinedOutput()
	if err != nil {
		return "", fmt.Errorf("%w: %s", err, out)
	}
	return program, nil
})

func TestMain(m *testing.M) {
	code := m.Run()
	if builtIn != "" {
		if err := os.RemoveAll(builtIn); err != nil {
			fmt.Fprintln(os.Stderr, err)
			code = 1
		}
	}
	os.Exit(code)
}

// process is the language model in a process of its own that speaks protocol.
func process(t *testing.T, protocol string) Dialer {
	t.Helper()
	program, err := built()
	if err != nil {
		t.Fatal(err)
	}
	socket := filepath.Join(t.TempDir(), "w.sock")
	cmd := exec.Command(program, "-protocol", protocol, "-listen", "unix:"+socket)
	cmd.Stderr = os.Stderr
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := cmd.Process.Signal(syscall.SIGTERM); err != nil {
			t.Error(err)
		}
		if err := cmd.Wait(); err != nil {
			t.Errorf("the worker ended with %v", err)
		}
	})
	deadline := time.Now().Add(20 * time.Second)
	for {
		c, err := net.Dial("unix", socket)
		if err == nil {
			c.Close()
			break
		}
		if time.Now().After(deadline) {
			t.Fatal(err)
		}
		time.Sleep(5 * time.Millisecond) // polls the socket, within the deadline
	}
	return dialerFunc(func(ctx context.Context) (net.Conn, error) {
		var d net.Dialer
		return d.DialContext(ctx, "unix", socket)
	})
}

// speaks is an offering of another adapter.
func speaks(t *testing.T, adapter, path string) *offering.Offering {
	return offer(t, func(o *offering.Offering) {
		o.Adapter, o.Request.Path, o.Input.ContentType, o.Response.MaxBytes = adapter, path, "application/json", 64<<10
		o.PrepareTimeout = time.Minute
	})
}

func document(text string) Input { return MemoryInput("application/json", []byte(text)) }

const german = "Der Ausschuss hat beschlossen, am Donnerstag wieder zusammenzutreten."

func TestOpenAIProcess(t *testing.T) {
	worker := process(t, "openai")
	chat := `{"id":"chatcmpl-1","object":"chat.completion","model":"langid","choices":[{"index":0,"message":{"role":"assistant","content":"German"},"finish_reason":"stop"}]`
	tokens := []Claim{{"model", "langid"}, {"prompt_tokens", "8"}, {"completion_tokens", "1"}, {"total_tokens", "9"}}
	for name, row := range map[string]struct {
		path, input, want string
		claims            []Claim
	}{
		"chat": {"/v1/chat/completions", `{"model":"langid","messages":[{"role":"user","content":"` + german + `"}]}`,
			chat + `,"usage":{"prompt_tokens":8,"completion_tokens":1,"total_tokens":9}}`, tokens},
		"streamed chat": {"/v1/chat/completions", `{"stream":true,"messages":[{"role":"user","content":"` + german + `"}]}`,
			chat + `}`, tokens[:1]},
		"streamed chat with usage": {"/v1/chat/completions", `{"stream":true,"stream_options":{"include_usage":true},"messages":[{"role":"user","content":"` + german + `"}]}`,
			chat + `,"usage":{"prompt_tokens":8,"completion_tokens":1,"total_tokens":9}}`, tokens},
		"completion": {"/v1/completions", `{"prompt":"` + german + `"}`,
			`{"id":"cmpl-1","object":"text_completion","model":"langid","choices":[{"index":0,"text":"German","finish_reason":"stop"}],"usage":{"prompt_tokens":8,"completion_tokens":1,"total_tokens":9}}`, tokens},
	} {
		t.Run(name, func(t *testing.T) {
			out, err := run(t, t.Context(), speaks(t, "openai", row.path), worker, document(row.input))
			if err != nil {
				t.Fatal(err)
			}
			if got, want := canonical(t, out.Body), canonical(t, []byte(row.want)); got != want {
				t.Errorf("%s\nwant %s", got, want)
			}
			if !slices.Equal(out.Claims, row.claims) {
				t.Errorf("claims %v, want %v", out.Claims, row.claims)
			}
		})
	}
	t.Run("embeddings", func(t *testing.T) {
		out, err := run(t, t.Context(), speaks(t, "openai", "/v1/embeddings"), worker, document(`{"input":["`+german+`","`+german+`","other"]}`))
		if err != nil {
			t.Fatal(err)
		}
		var said struct {
			Data []struct {
				Embedding []float64 `json:"embedding"`
			} `json:"data"`
		}
		if err := json.Unmarshal(out.Body, &said); err != nil || len(said.Data) != 3 || len(said.Data[0].Embedding) != 64 ||
			!slices.Equal(said.Data[0].Embedding, said.Data[1].Embedding) || slices.Equal(said.Data[0].Embedding, said.Data[2].Embedding) {
			t.Fatalf("%s, %v", out.Body, err)
		}
		if want := []Claim{{"model", "langid"}, {"prompt_tokens", "17"}, {"total_tokens", "17"}}; !slices.Equal(out.Claims, want) {
			t.Errorf("claims %v, want %v", out.Claims, want)
		}
	})
	t.Run("refusal", func(t *testing.T) {
		_, err := run(t, t.Context(), speaks(t, "openai", "/v1/completions"), worker, document(`{"prompt":"1234"}`))
		f, ok := errors.AsType[*Failure](err)
		if !ok || f.Class != WorkerFailed || !strings.Contains(string(f.Evidence), "no letters") {
			t.Fatalf("%v", err)
		}
	})
}

func TestKServeProcess(t *testing.T) {
	worker := process(t, "kserve")
	o := speaks(t, "kserve", "/v2/models/langid/infer")
	out, err := run(t, t.Context(), o, worker, document(`{"inputs":[{"name":"text","shape":[2],"datatype":"BYTES","data":["`+german+`","The committee has agreed to meet again on Thursday."]}]}`))
	if err != nil {
		t.Fatal(err)
	}
	var said struct {
		ID      string `json:"id"`
		Outputs []struct {
			Data []any `json:"data"`
		} `json:"outputs"`
	}
	if err := json.Unmarshal(out.Body, &said); err != nil || said.ID != "key" || len(said.Outputs) != 2 || fmt.Sprint(said.Outputs[0].Data) != "[deu eng]" {
		t.Fatalf("%s, %v", out.Body, err)
	}
	if want := []Claim{{"model", "langid"}, {"model_version", "1"}}; !slices.Equal(out.Claims, want) {
		t.Errorf("claims %v, want %v", out.Claims, want)
	}
	_, err = run(t, t.Context(), o, worker, document(`{"inputs":[{"name":"other","shape":[1],"datatype":"BYTES","data":["x"]}]}`))
	if f, ok := errors.AsType[*Failure](err); !ok || f.Class != WorkerFailed || !strings.Contains(string(f.Evidence), "one input is taken") {
		t.Fatalf("%v", err)
	}
}

func TestFramedProcess(t *testing.T) {
	worker := process(t, "framed")
	o := speaks(t, "framed", "")
	o.Input.ContentType = "text/plain"
	out, err := run(t, t.Context(), o, worker, MemoryInput("text/plain", []byte(german)))
	if err != nil || !strings.Contains(string(out.Body), `"language":"deu"`) {
		t.Fatalf("%s, %v", out.Body, err)
	}
	_, err = run(t, t.Context(), o, worker, MemoryInput("text/plain", []byte("1234")))
	if f, ok := errors.AsType[*Failure](err); !ok || f.Class != InvalidInput || !strings.Contains(string(f.Evidence), "no letters") || strings.Contains(f.Detail, "letters") {
		t.Fatalf("%v", err)
	}
}

// canonical is a document with its members in order.
func canonical(t *testing.T, data []byte) string {
	t.Helper()
	var v any
	if err := json.Unmarshal(data, &v); err != nil {
		t.Fatalf("%v in %s", err, data)
	}
	out, err := json.Marshal(v, json.Deterministic(true))
	if err != nil {
		t.Fatal(err)
	}
	return string(out)
}
