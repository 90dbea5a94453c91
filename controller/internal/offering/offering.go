// Package offering is the operator's binding of a job kind to a profile, an
// adapter and admission rules: its strict TOML form, its defaults and its
// checks, each with a remedy. It owns the meaning of an offering file. It must
// not know hosts, jobs in flight or how an adapter works.
package offering

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"maps"
	"mime"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"time"

	"github.com/santhosh-tekuri/jsonschema/v6"

	"github.com/quittance/quittance/controller/api"
	"github.com/quittance/quittance/profiles/tomlfile"
	"github.com/quittance/quittance/protocol"
)

// MaxWorkTime bounds every time that an offering may ask for.
const MaxWorkTime = 24 * time.Hour

// Source says where the bytes of a request come from.
type Source string

// The sources.
const (
	FromJob    Source = "job"    // the input bytes of the job
	FromUpload Source = "upload" // the bytes of the job's one upload
)

// JobState is a state of the job in which a running attempt may go on.
type JobState string

// The permitted states; cancelled always stops.
const (
	JobOpen   JobState = "open"
	JobClosed JobState = "closed"
)

// RestartRule says what recovery does with an attempt that had entered
// execution.
type RestartRule string

// The restart rules.
const (
	RestartFail RestartRule = "fail" // FAIL interrupted, entered true
	RestartHold RestartRule = "hold" // wait for a person
)

// Input is the admission rule of a job's input.
type Input struct {
	ContentType string
	From        Source
	MaxBytes    int64
	Schema      *Schema // nil: any bytes of the content type
}

// Request is what the adapter sends.
type Request struct {
	Method  string
	Path    string
	Timeout time.Duration // of one execution, from the first byte sent to the last received
}

// Response is what the adapter accepts.
type Response struct {
	ContentType string
	MaxBytes    int64
	Schema      *Schema
}

// What a replacement execution does after a kill for memory, beside the name of
// a larger profile.
const (
	OnOOMFail = "fail"
	OnOOMSame = "same"
)

// Limits end a job with FAIL and the limit's own code. Zero: no such limit.
type Limits struct {
	InputCalls     int
	SelectionTime  time.Duration
	WorkTime       time.Duration
	UploadBytes    int64
	UploadRequests int
}

// Offering is one binding, after defaults, all checks passed.
type Offering struct {
	File           string
	Kind           string
	Profile        string
	Adapter        string
	Input          Input
	Request        Request
	Response       Response
	FailOnOOM      bool
	Pure           bool   // one bounded replacement execution is allowed (I27)
	OnOOM          string // what it does after a kill for memory: OnOOMFail, OnOOMSame or a larger profile's name
	PrepareTimeout time.Duration
	PreparePath    string     // of the adapter "http": where the input is prepared; "" where it is the request itself
	JobStates      []JobState // in which an attempt may go on
	OnRestart      RestartRule
	Limits         Limits
}

// file is the TOML form.
type file struct {
	Kind           string            `toml:"kind"`
	Profile        string            `toml:"profile"`
	Adapter        string            `toml:"adapter"`
	Input          inputFile         `toml:"input"`
	Request        requestFile       `toml:"request"`
	Response       responseFile      `toml:"response"`
	FailOnOOM      *bool             `toml:"fail_on_oom"`
	OnOOM          string            `toml:"on_oom"`
	Pure           bool              `toml:"pure"`
	PrepareTimeout tomlfile.Duration `toml:"prepare_timeout"`
	PreparePath    string            `toml:"prepare_path"`
	JobStates      []string          `toml:"job_states"`
	OnRestart      string            `toml:"on_restart"`
	Limits         limitsFile        `toml:"limits"`
}

type inputFile struct {
	ContentType string        `toml:"content_type"`
	From        string        `toml:"from"`
	Max         tomlfile.Size `toml:"max"`
	Schema      string        `toml:"schema"`
}

type requestFile struct {
	Method  string            `toml:"method"`
	Path    string            `toml:"path"`
	Timeout tomlfile.Duration `toml:"timeout"`
}

type responseFile struct {
	ContentType string        `toml:"content_type"`
	Max         tomlfile.Size `toml:"max"`
	Schema      string        `toml:"schema"`
}

type limitsFile struct {
	InputCalls     int               `toml:"input_calls"`
	SelectionTime  tomlfile.Duration `toml:"selection_time"`
	WorkTime       tomlfile.Duration `toml:"work_time"`
	UploadBytes    tomlfile.Size     `toml:"upload_bytes"`
	UploadRequests int               `toml:"upload_requests"`
}

// LoadDir reads every *.toml of dir, in the order of their names, and returns
// the offerings, or every problem of every file at once.
func LoadDir(dir string) ([]Offering, error) {
	entries, err := os.ReadDir(dir)
	if err != nil {
		return nil, fmt.Errorf("offerings: %w; make the directory or set offerings_dir", err)
	}
	var all []Offering
	var problems []error
	kinds := map[string]string{}
	for _, e := range entries {
		if e.IsDir() || !strings.HasSuffix(e.Name(), ".toml") {
			continue
		}
		o, err := Load(filepath.Join(dir, e.Name()))
		if err != nil {
			problems = append(problems, err)
			continue
		}
		if other, twice := kinds[o.Kind]; twice {
			problems = append(problems, fmt.Errorf("%s: kind: %q is offered by %s too; one offering per kind", o.File, o.Kind, other))
			continue
		}
		kinds[o.Kind] = o.File
		all = append(all, o)
	}
	if len(all) > api.MaxOfferings {
		problems = append(problems, fmt.Errorf("offerings: %d files in %s; at most %d offerings can be announced", len(all), dir, api.MaxOfferings))
	}
	if len(all) == 0 && len(problems) == 0 {
		problems = append(problems, fmt.Errorf("offerings: no *.toml in %s; copy an example there", dir))
	}
	return all, errors.Join(problems...)
}

// Load reads one offering file; schema files are found beside it.
func Load(path string) (Offering, error) {
	var f file
	if err := tomlfile.Read(path, &f); err != nil {
		return Offering{}, err
	}
	b := builder{path: path}
	o := b.build(f)
	return o, errors.Join(b.problems...)
}

// builder collects every problem of one file.
type builder struct {
	path     string
	problems []error
}

func (b *builder) refuse(key, format string, args ...any) {
	b.problems = append(b.problems, fmt.Errorf("%s: %s: %s", b.path, key, fmt.Sprintf(format, args...)))
}

var (
	kindForm   = regexp.MustCompile(`^[a-z0-9][a-z0-9._-]{0,63}$`)
	pathForm   = regexp.MustCompile(`^/[A-Za-z0-9._~!$&'()*+,;=:@%/?-]*$`)
	methodForm = []string{"POST", "PUT", "GET"}
)

func (b *builder) build(f file) Offering {
	o := Offering{File: b.path, Kind: f.Kind, Profile: f.Profile, Adapter: f.Adapter}
	if !kindForm.MatchString(f.Kind) {
		b.refuse("kind", "is required: 1 to 64 characters of a-z 0-9 . _ -, such as \"ocr.page.v1\"")
	}
	if !protocol.ValidProfileName(f.Profile) {
		b.refuse("profile", "is required: the name of a host profile, %s", protocol.ProfileNamePattern)
	}
	o.Input = b.input(f.Input)
	o.Request = b.request(f.Adapter, f.Request)
	o.Response = b.response(f.Response)
	b.adapter(&o)
	o.PreparePath = b.preparePath(f)

	o.FailOnOOM = f.FailOnOOM == nil || *f.FailOnOOM
	o.Pure, o.OnOOM = f.Pure, f.OnOOM
	switch {
	case o.OnOOM == "":
		o.OnOOM = OnOOMFail
	case o.OnOOM == OnOOMFail:
	case !o.Pure:
		b.refuse("on_oom", "must be \"fail\" unless pure = true: nothing else may run twice")
	case o.OnOOM != OnOOMSame && (!protocol.ValidProfileName(o.OnOOM) || o.OnOOM == o.Profile):
		b.refuse("on_oom", "must be \"fail\", \"same\" or the name of a larger profile")
	}
	o.PrepareTimeout = f.PrepareTimeout.Duration
	if o.PrepareTimeout == 0 {
		o.PrepareTimeout = time.Minute
	}
	o.JobStates = b.jobStates(f.JobStates)
	switch o.OnRestart = RestartRule(f.OnRestart); o.OnRestart {
	case "":
		o.OnRestart = RestartFail
	case RestartFail, RestartHold:
	default:
		b.refuse("on_restart", "must be \"fail\" or \"hold\"")
	}
	o.Limits = b.limits(f.Limits)
	return o
}

func (b *builder) input(f inputFile) Input {
	in := Input{ContentType: f.ContentType, From: Source(f.From), MaxBytes: f.Max.Bytes}
	b.contentType("input.content_type", f.ContentType)
	ceiling := int64(api.MaxInputBytes)
	switch in.From {
	case FromJob:
	case FromUpload:
		ceiling = api.MaxUploadBytes
		if f.Schema != "" {
			b.refuse("input.schema", "applies to from = \"job\" only; leave it out")
		}
	default:
		b.refuse("input.from", "is required: \"job\" or \"upload\"")
	}
	if in.MaxBytes == 0 {
		in.MaxBytes = ceiling
	}
	if in.MaxBytes > ceiling {
		b.refuse("input.max", "must be at most %d bytes for this source", ceiling)
	}
	if f.Schema != "" && in.From == FromJob {
		in.Schema = b.schema("input.schema", f.Schema)
	}
	return in
}

func (b *builder) request(adapter string, f requestFile) Request {
	r := Request{Method: f.Method, Path: f.Path, Timeout: f.Timeout.Duration}
	if r.Timeout <= 0 || r.Timeout > MaxWorkTime {
		b.refuse("request.timeout", "is required: above 0 and at most %s", MaxWorkTime)
	}
	if adapter == AdapterFramed {
		if f.Method != "" || f.Path != "" {
			b.refuse("request", "the adapter \"framed\" has no method and no path; leave them out")
		}
		return r
	}
	if r.Method == "" {
		r.Method = "POST"
	}
	if !slices.Contains(methodForm, r.Method) {
		b.refuse("request.method", "must be one of %s", strings.Join(methodForm, ", "))
	}
	if !pathForm.MatchString(r.Path) || len(r.Path) > 1024 {
		b.refuse("request.path", "is required: an absolute path of the worker's server, such as \"/predict\"")
	}
	return r
}

func (b *builder) response(f responseFile) Response {
	r := Response{ContentType: f.ContentType, MaxBytes: f.Max.Bytes}
	b.contentType("response.content_type", f.ContentType)
	if r.MaxBytes == 0 {
		r.MaxBytes = api.MaxResultBytes
	}
	if r.MaxBytes > api.MaxResultBytes {
		b.refuse("response.max", "must be at most %d bytes", api.MaxResultBytes)
	}
	if f.Schema != "" {
		r.Schema = b.schema("response.schema", f.Schema)
	}
	return r
}

func (b *builder) contentType(key, value string) {
	if _, _, err := mime.ParseMediaType(value); err != nil || !strings.Contains(value, "/") {
		b.refuse(key, "is required: a media type such as \"application/json\"")
	}
}

func (b *builder) jobStates(names []string) []JobState {
	if names == nil {
		return []JobState{JobOpen}
	}
	set := map[JobState]bool{}
	for _, n := range names {
		set[JobState(n)] = true
	}
	states := slices.Sorted(maps.Keys(set))
	open, closed := []JobState{JobOpen}, []JobState{JobClosed, JobOpen}
	if !slices.Equal(states, open) && !slices.Equal(states, closed) {
		b.refuse("job_states", "must be [\"open\"] or [\"open\", \"closed\"]")
	}
	return states
}

func (b *builder) limits(f limitsFile) Limits {
	l := Limits{
		InputCalls: f.InputCalls, SelectionTime: f.SelectionTime.Duration, WorkTime: f.WorkTime.Duration,
		UploadBytes: f.UploadBytes.Bytes, UploadRequests: f.UploadRequests,
	}
	if l.InputCalls < 0 {
		b.refuse("limits.input_calls", "must not be negative")
	}
	if l.UploadRequests < 0 {
		b.refuse("limits.upload_requests", "must not be negative")
	}
	if l.WorkTime > MaxWorkTime {
		b.refuse("limits.work_time", "must be at most %s", MaxWorkTime)
	}
	return l
}

// MayGoOn reports whether an attempt may go on while its job is in state s.
func (o *Offering) MayGoOn(s JobState) bool { return slices.Contains(o.JobStates, s) }

// Schema is a compiled JSON Schema with the exact bytes of its file.
type Schema struct {
	source   []byte
	compiled *jsonschema.Schema
}

// Bytes is the schema as its file holds it, for the announcement.
func (s *Schema) Bytes() []byte { return bytes.Clone(s.source) }

// Digest is the SHA-256 of [Schema.Bytes].
func (s *Schema) Digest() protocol.Digest { return protocol.DigestOf(s.source) }

// Check validates a JSON document. The error names the rule by its place in the
// schema, which is the operator's own text; nothing of the document is in it,
// not even a member's name (I4, I37).
func (s *Schema) Check(document []byte) error {
	v, err := jsonschema.UnmarshalJSON(bytes.NewReader(document))
	if err != nil {
		return errors.New("is not one JSON value")
	}
	err = s.compiled.Validate(v)
	if err == nil {
		return nil
	}
	if invalid, ok := errors.AsType[*jsonschema.ValidationError](err); ok {
		leaf := invalid
		for len(leaf.Causes) > 0 {
			leaf = leaf.Causes[0]
		}
		_, place, _ := strings.Cut(leaf.SchemaURL, "#")
		return fmt.Errorf("breaks the schema's rule %s/%s", place, strings.Join(leaf.ErrorKind.KeywordPath(), "/"))
	}
	return errors.New("does not match the schema")
}

// noLoader refuses every reference that leaves the file: nothing is fetched
// because a schema names it.
type noLoader struct{}

func (noLoader) Load(string) (any, error) {
	return nil, errors.New("references outside the schema's own file are not followed")
}

func (b *builder) schema(key, name string) *Schema {
	if filepath.Base(name) != name {
		b.refuse(key, "must be the name of a file beside the offering, without a directory")
		return nil
	}
	s, err := loadSchema(filepath.Join(filepath.Dir(b.path), name))
	if err != nil {
		b.refuse(key, "%v", err)
	}
	return s
}

func loadSchema(path string) (*Schema, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	data, err := io.ReadAll(io.LimitReader(f, api.MaxInputSchema+1))
	if err = errors.Join(err, f.Close()); err != nil {
		return nil, err
	}
	if len(data) > api.MaxInputSchema {
		return nil, fmt.Errorf("the schema is longer than %d bytes", api.MaxInputSchema)
	}
	doc, err := jsonschema.UnmarshalJSON(bytes.NewReader(data))
	if err != nil {
		return nil, fmt.Errorf("the schema is not JSON: %w", err)
	}
	c := jsonschema.NewCompiler()
	c.UseLoader(noLoader{})
	const root = "offering:schema"
	if err := c.AddResource(root, doc); err != nil {
		return nil, fmt.Errorf("the schema cannot be read: %w", err)
	}
	compiled, err := c.Compile(root)
	if err != nil {
		return nil, fmt.Errorf("the schema does not compile: %w", err)
	}
	return &Schema{source: data, compiled: compiled}, nil
}
