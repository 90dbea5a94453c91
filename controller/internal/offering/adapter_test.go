package offering

import (
	"strings"
	"testing"
)

// with is the good offering with other lines; an empty new line leaves the old
// one out.
func with(pairs ...string) string {
	text := good
	for i := 0; i < len(pairs); i += 2 {
		text = strings.Replace(text, pairs[i], pairs[i+1], 1)
	}
	return text
}

// What an adapter asks of its offering, each with the key that is wrong; "" is
// accepted.
func TestAdapterRules(t *testing.T) {
	const (
		image = `input = { content_type = "image/png", from = "upload", max = "32MiB" }`
		json  = `input = { content_type = "application/json", from = "job" }`
		post  = `request = { path = "/predict", timeout = "10m" }`
	)
	adapter := func(name string) []string { return []string{`adapter = "http"`, `adapter = "` + name + `"`} }
	path := func(p string) []string { return []string{post, strings.Replace(post, "/predict", p, 1)} }
	join := func(all ...[]string) string {
		var pairs []string
		for _, p := range all {
			pairs = append(pairs, p...)
		}
		return with(pairs...)
	}
	for name, row := range map[string]struct{ text, key string }{
		"prepare path":            {good + `prepare_path = "/prepare"`, ""},
		"prepare path relative":   {good + `prepare_path = "prepare"`, "prepare_path:"},
		"prepare path the same":   {good + `prepare_path = "/predict"`, "prepare_path:"},
		"prepare path of another": {join(adapter("openai"), []string{image, json}, path("/v1/completions")) + `prepare_path = "/prepare"`, "prepare_path:"},

		"openai chat":       {join(adapter("openai"), []string{image, json}, path("/v1/chat/completions")), ""},
		"openai embeddings": {join(adapter("openai"), []string{image, json}, path("/v1/embeddings")), ""},
		"openai other path": {join(adapter("openai"), []string{image, json}), "request.path:"},
		"openai image":      {join(adapter("openai"), path("/v1/completions")), "input.content_type:"},
		"openai answer":     {join(adapter("openai"), []string{image, json}, path("/v1/completions"), []string{`response = { content_type = "application/json"`, `response = { content_type = "text/plain"`}), "response.content_type:"},
		"openai get":        {join(adapter("openai"), []string{image, json}, []string{post, `request = { method = "GET", path = "/v1/completions", timeout = "1m" }`}), "request.method:"},

		"kserve":            {join(adapter("kserve"), []string{image, json}, path("/v2/models/m/infer")), ""},
		"kserve version":    {join(adapter("kserve"), []string{image, json}, path("/v2/models/m/versions/1/infer")), ""},
		"kserve other path": {join(adapter("kserve"), []string{image, json}, path("/v2/models/m/ready")), "request.path:"},

		"framed":       {join(adapter("framed"), []string{image, json}, []string{post, `request = { timeout = "1m" }`}), ""},
		"framed path":  {join(adapter("framed"), []string{image, json}), "request:"},
		"framed input": {join(adapter("framed"), []string{post, `request = { timeout = "1m" }`}), "input.max:"},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := Load(write(t, t.TempDir(), "a.toml", row.text))
			switch {
			case row.key == "" && err != nil:
				t.Fatal(err)
			case row.key != "" && (err == nil || !strings.Contains(err.Error(), row.key) || strings.Contains(err.Error(), "\n")):
				t.Fatalf("%v, want one problem of %s", err, row.key)
			}
		})
	}
}

func TestKServeModel(t *testing.T) {
	for path, want := range map[string]string{
		"/v2/models/m-1/infer": "m-1", "/v2/models/m/versions/3/infer": "m",
		"/v2/models//infer": "", "/v2/models/a/b/infer": "", "/v2/models/m/infer/": "", "/x/v2/models/m/infer": "",
	} {
		if got := KServeModel(path); got != want {
			t.Errorf("%s: %q, want %q", path, got, want)
		}
	}
}
