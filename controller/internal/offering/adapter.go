package offering

import (
	"mime"
	"regexp"
	"slices"
	"strings"
)

// The adapters.
const (
	AdapterHTTP   = "http"   // one request, one bounded answer
	AdapterOpenAI = "openai" // chat, completions, embeddings
	AdapterKServe = "kserve" // Open Inference Protocol v2
	AdapterFramed = "framed" // length-prefixed frames, preparation split from execution
)

var adapters = []string{AdapterHTTP, AdapterOpenAI, AdapterKServe, AdapterFramed}

// The ends of the paths that the adapter "openai" speaks to.
const (
	OpenAIChat        = "/chat/completions"
	OpenAICompletions = "/completions"
	OpenAIEmbeddings  = "/embeddings"
)

// MaxFramedInput bounds the input of the adapter "framed": one frame carries it
// in base64.
const MaxFramedInput = 1 << 20

var kserveForm = regexp.MustCompile(`^/v2/models/([A-Za-z0-9._~-]+)(?:/versions/[A-Za-z0-9._~-]+)?/infer$`)

// KServeModel is the model that a path of the adapter "kserve" names, or "".
func KServeModel(path string) string {
	if m := kserveForm.FindStringSubmatch(path); m != nil {
		return m[1]
	}
	return ""
}

// adapter checks what an adapter asks of the rest of its offering.
func (b *builder) adapter(o *Offering) {
	switch o.Adapter {
	case AdapterHTTP:
	case AdapterOpenAI:
		b.jsonOnly(o)
		if !strings.HasSuffix(o.Request.Path, OpenAICompletions) && !strings.HasSuffix(o.Request.Path, OpenAIEmbeddings) {
			b.refuse("request.path", "must end with %s, %s or %s for the adapter \"openai\"", OpenAIChat, OpenAICompletions, OpenAIEmbeddings)
		}
	case AdapterKServe:
		b.jsonOnly(o)
		if KServeModel(o.Request.Path) == "" {
			b.refuse("request.path", "must be /v2/models/MODEL/infer or /v2/models/MODEL/versions/VERSION/infer for the adapter \"kserve\"")
		}
	case AdapterFramed:
		if o.Input.MaxBytes > MaxFramedInput {
			b.refuse("input.max", "is required: at most %d bytes for the adapter \"framed\"", MaxFramedInput)
		}
	default:
		b.refuse("adapter", "must be one of %s", strings.Join(adapters, ", "))
	}
}

// jsonOnly is for protocols whose requests and answers are JSON documents.
func (b *builder) jsonOnly(o *Offering) {
	for key, value := range map[string]string{"input.content_type": o.Input.ContentType, "response.content_type": o.Response.ContentType} {
		if media, _, err := mime.ParseMediaType(value); err == nil && media != "application/json" {
			b.refuse(key, "must be \"application/json\" for the adapter %q", o.Adapter)
		}
	}
	if o.Request.Method != "POST" && slices.Contains(methodForm, o.Request.Method) {
		b.refuse("request.method", "must be POST for the adapter %q; leave it out", o.Adapter)
	}
}

func (b *builder) preparePath(f file) string {
	switch {
	case f.PreparePath == "":
	case f.Adapter != AdapterHTTP:
		b.refuse("prepare_path", "applies to the adapter \"http\" only; leave it out")
	case !pathForm.MatchString(f.PreparePath) || len(f.PreparePath) > 1024:
		b.refuse("prepare_path", "must be an absolute path of the worker's server, such as \"/prepare\"")
	case f.PreparePath == f.Request.Path:
		b.refuse("prepare_path", "must differ from request.path: preparation is no execution")
	}
	return f.PreparePath
}
