package profiles

import (
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"path"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/pelletier/go-toml/v2"
	"golang.org/x/sys/unix"

	"github.com/quittance/quittance/protocol"
)

// MaxFileBytes bounds a profile file.
const MaxFileBytes = 64 << 10

// Defaults and bounds of the schema. They are part of a profile's meaning: a
// changed default changes digests.
const (
	defaultUser        = "65532:65532" // the conventional nobody-in-particular of minimal images
	defaultPIDs        = 64
	defaultMaxChannels = 1024
	minMemory          = 6 << 20 // below, runc's own start does not fit
	maxListed          = 64      // entries of any list in a profile
	maxArgBytes        = 32 << 10
)

// Parse reads a profile from its TOML text. Every problem is reported at once,
// as an *[Error]; the profile is meaningful only without one.
func Parse(data []byte) (Profile, error) {
	if len(data) > MaxFileBytes {
		return Profile{}, &Error{[]Problem{{Detail: fmt.Sprintf("file is longer than %d bytes", MaxFileBytes)}}}
	}
	var values map[string]any
	if err := toml.Unmarshal(data, &values); err != nil {
		return Profile{}, &Error{[]Problem{syntaxProblem(err)}}
	}
	r := &report{}
	t := &table{report: r, values: values}
	p := readProfile(t)
	if err := r.err(); err != nil {
		return Profile{Name: p.Name}, err
	}
	return p, nil
}

// syntaxProblem says where the TOML is broken, without quoting it.
func syntaxProblem(err error) Problem {
	if d, ok := errors.AsType[*toml.DecodeError](err); ok {
		row, column := d.Position()
		return Problem{
			Key:    strings.Join(d.Key(), "."),
			Detail: fmt.Sprintf("not valid TOML at line %d, column %d: correct it there (a key may also be there twice)", row, column),
		}
	}
	return Problem{Detail: "not valid TOML: correct the file (a key may also be there twice)"}
}

func readProfile(t *table) Profile {
	p := Profile{
		Name: readName(t), Image: readImage(t), Args: readArgs(t), Env: readEnv(t),
		AllowRoot: t.boolean("allow_root", false),
	}
	p.UID, p.GID = readUser(t, p.AllowRoot)
	p.Resources = readResources(t.sub("resources"))
	p.Filesystem = readFilesystem(t.sub("filesystem"))
	p.Channel = readChannel(t)
	p.Lifecycle = readLifecycle(t.sub("lifecycle"))

	logs := t.sub("logs")
	p.Logs = Logs{
		CaptureBytes: logs.size("capture", protocol.MaxLogCapture, 0, protocol.MaxLogCapture),
		Journal:      logs.boolean("journal", false),
	}
	logs.unknown()

	process := t.sub("process")
	p.Init = process.boolean("init", true)
	process.unknown()
	if p.Init && p.Resources.PIDs < 2 {
		t.report.add("resources.pids", "must be at least 2: the init takes one (or set process.init = false)")
	}
	t.unknown()
	return p
}

func readName(t *table) string {
	t.required("name", `name = "…", `+protocol.ProfileNamePattern)
	name := t.str("name", "")
	if name != "" && !protocol.ValidProfileName(name) || name == "" && t.has("name") {
		t.report.add("name", "must be %s", protocol.ProfileNamePattern)
		return ""
	}
	return name
}

const imageRemedy = `import the image with "hostagent image import FILE" (or "hostagent image pull REF") and write the reference that it prints, name@sha256:…`

var imageNameForm = regexp.MustCompile(`^[a-z0-9]+([._/:-][A-Za-z0-9._-]+)*$`)

func readImage(t *table) string {
	t.required("image", imageRemedy)
	image := t.str("image", "")
	if image == "" {
		if t.has("image") {
			t.report.add("image", "is empty: %s", imageRemedy)
		}
		return ""
	}
	if imageDigest(image) == "" {
		t.report.add("image", "has no digest: %s", imageRemedy)
		return ""
	}
	if name, _, _ := strings.Cut(image, "@"); len(image) > 512 || !imageNameForm.MatchString(name) {
		t.report.add("image", "is not an image reference: %s", imageRemedy)
		return ""
	}
	return image
}

func readArgs(t *table) []string {
	t.required("args", "the command and its arguments; the image's own entrypoint is not used")
	args := t.strings("args")
	total := 0
	for _, a := range args {
		total += len(a) + 1
	}
	switch {
	case t.has("args") && (len(args) == 0 || args[0] == ""):
		t.report.add("args", "must begin with the command to run")
	case total > maxArgBytes:
		t.report.add("args", "must be at most %d bytes together", maxArgBytes)
	}
	return args
}

var envNameForm = regexp.MustCompile(`^[A-Za-z_][A-Za-z0-9_]*$`)

func readEnv(t *table) []EnvVar {
	values := read(t, "env", map[string]any(nil), `a table of strings, as in { NAME = "value" }`)
	env := make([]EnvVar, 0, len(values))
	total := 0
	for _, name := range slices.Sorted(maps.Keys(values)) {
		value, ok := values[name].(string)
		switch {
		case !envNameForm.MatchString(name):
			t.report.add("env."+strconv.Quote(name), "is not a variable's name: letters, digits and _, not beginning with a digit")
		case !ok || strings.ContainsRune(value, 0):
			t.report.add("env."+name, "must be a string without NUL")
		default:
			env = append(env, EnvVar{Name: name, Value: value})
			total += len(name) + len(value) + 2
		}
	}
	if total > maxArgBytes {
		t.report.add("env", "must be at most %d bytes together", maxArgBytes)
	}
	return env
}

func readUser(t *table, allowRoot bool) (uid, gid int64) {
	user := t.str("user", defaultUser)
	u, g, ok := strings.Cut(user, ":")
	uid, okUID := parseID(u)
	gid, okGID := parseID(g)
	if !ok || !okUID || !okGID {
		t.report.add("user", `must be two numbers, as in "65532:65532": names of the image are not looked up`)
		return 0, 0
	}
	if (uid == 0 || gid == 0) && !allowRoot {
		t.report.add("user", "is root: choose another uid and gid, or set allow_root = true")
	}
	return uid, gid
}

func parseID(s string) (int64, bool) {
	n, err := strconv.ParseUint(s, 10, 32)
	if err != nil || n > 1<<31-1 || strconv.FormatUint(n, 10) != s {
		return 0, false
	}
	return int64(n), true
}

var deviceKindForm = regexp.MustCompile(`^[A-Za-z][A-Za-z0-9_.-]*[A-Za-z0-9]/[A-Za-z][A-Za-z0-9_-]*$`)

func readResources(t *table) Resources {
	t.required("memory", `memory = "512MiB"`)
	r := Resources{
		MemoryBytes: t.size("memory", 0, minMemory, exactInteger),
		SwapBytes:   t.size("swap", 0, 0, exactInteger),
		CPUMillis:   t.cpuMillis("cpus"),
		PIDs:        t.integer("pids", defaultPIDs, 1, 1<<22),
		Devices:     []DeviceRequest{},
	}
	seen := map[string]bool{}
	for _, d := range limited(t, "device") {
		d.required("kind", `kind = "vendor.example/class", a CDI kind`)
		request := DeviceRequest{Kind: d.str("kind", ""), Count: d.integer("count", 1, 1, maxListed)}
		switch {
		case d.has("kind") && !deviceKindForm.MatchString(request.Kind):
			d.report.add(d.key("kind"), `must be a CDI kind, as in "nvidia.com/gpu"`)
		case seen[request.Kind]:
			d.report.add(d.key("kind"), "is there twice: use one entry with a higher count")
		}
		seen[request.Kind] = true
		d.unknown()
		r.Devices = append(r.Devices, request)
	}
	slices.SortFunc(r.Devices, func(a, b DeviceRequest) int { return strings.Compare(a.Kind, b.Kind) })
	t.unknown()
	return r
}

// limited reads an array of tables of at most maxListed entries.
func limited(t *table, name string) []*table {
	subs := t.subs(name)
	if len(subs) > maxListed {
		t.report.add(t.key(name), "has more than %d entries", maxListed)
		return nil
	}
	return subs
}

func readFilesystem(t *table) Filesystem {
	f := Filesystem{Tmpfs: []Tmpfs{}, Mounts: []Mount{}}
	targets := map[string]string{}
	for _, m := range limited(t, "tmpfs") {
		m.required("path", `path = "/tmp"`)
		m.required("size", `size = "64MiB"`)
		tmpfs := Tmpfs{
			Path: readTarget(m, "path", targets), SizeBytes: m.size("size", 0, 4096, exactInteger),
			Exec: m.boolean("exec", false),
		}
		m.unknown()
		f.Tmpfs = append(f.Tmpfs, tmpfs)
	}
	for _, m := range limited(t, "mounts") {
		m.required("source", "the host path to mount")
		m.required("target", "the path inside the container")
		mount := Mount{Source: m.str("source", ""), Target: readTarget(m, "target", targets), Writable: m.boolean("writable", false)}
		if m.has("source") && !cleanAbsolute(mount.Source) {
			m.report.add(m.key("source"), "must be an absolute path without . and .. and without a trailing slash")
		}
		m.unknown()
		f.Mounts = append(f.Mounts, mount)
	}
	slices.SortFunc(f.Tmpfs, func(a, b Tmpfs) int { return strings.Compare(a.Path, b.Path) })
	slices.SortFunc(f.Mounts, func(a, b Mount) int { return strings.Compare(a.Target, b.Target) })
	t.unknown()
	return f
}

func cleanAbsolute(p string) bool {
	return path.IsAbs(p) && path.Clean(p) == p && len(p) < 4096 && !strings.ContainsFunc(p, func(r rune) bool { return r < ' ' })
}

// containerOwn are the places inside a container that the agent furnishes.
var containerOwn = []string{"/proc", "/sys", "/dev"}

// readTarget reads a mount point inside the container.
func readTarget(t *table, name string, targets map[string]string) string {
	target := t.str(name, "")
	if !t.has(name) {
		return ""
	}
	key := t.key(name)
	switch {
	case !cleanAbsolute(target) || target == "/":
		t.report.add(key, "must be an absolute path below /, without . and .. and without a trailing slash")
	case slices.ContainsFunc(containerOwn, func(own string) bool { return within(target, own) }):
		t.report.add(key, "lies in /proc, /sys or /dev, which the agent furnishes: choose another path")
	case targets[target] != "":
		t.report.add(key, "is also %s: one mount per path", targets[target])
	}
	targets[target] = key
	return target
}

// within reports whether p is dir or lies below it; both are clean.
func within(p, dir string) bool {
	return p == dir || dir == "/" || strings.HasPrefix(p, dir+"/")
}

const addressRemedy = `must be "tcp://127.0.0.1:PORT" or "unix:///path" inside the container`

func readChannel(root *table) Channel {
	root.required("channel", `a [channel] table with address and ready: without one no job could reach the worker`)
	t := root.sub("channel")
	c := Channel{MaxChannels: t.integer("max_channels", defaultMaxChannels, 1, 1<<31-1)}
	if !root.has("channel") {
		return c
	}
	t.required("address", addressRemedy)
	c.Network, c.Address = readAddress(t)
	t.required("ready", `ready = { http = "/health" }, or ready = { connect = true }`)
	if r := t.sub("ready"); t.has("ready") {
		c.Ready = readReady(r)
	}
	t.unknown()
	return c
}

func readAddress(t *table) (network, address string) {
	text := t.str("address", "")
	if text == "" {
		if t.has("address") {
			t.report.add(t.key("address"), addressRemedy)
		}
		return "", ""
	}
	if socket, ok := strings.CutPrefix(text, "unix://"); ok {
		if !cleanAbsolute(socket) || socket == "/" || len(socket) > 107 {
			t.report.add(t.key("address"), "%s, of at most 107 bytes", addressRemedy)
		}
		return "unix", socket
	}
	hostPort, ok := strings.CutPrefix(text, "tcp://")
	addr, err := netip.ParseAddrPort(hostPort)
	switch {
	case !ok || err != nil || addr.Port() == 0:
		t.report.add(t.key("address"), addressRemedy)
	case !addr.Addr().IsLoopback() || addr.Addr().Is4In6() || addr.Addr().Zone() != "":
		t.report.add(t.key("address"), "must be a loopback address: the container has no other network; %s", addressRemedy)
	}
	return "tcp", addr.String()
}

func readReady(t *table) protocol.ReadyRule {
	rule := protocol.ReadyRule{
		Connect:        t.boolean("connect", false),
		HTTP:           t.str("http", ""),
		Status:         int(t.integer("status", 200, 100, 599)),
		TimeoutMillis:  t.millis("timeout", time.Minute, time.Millisecond, 24*time.Hour),
		IntervalMillis: t.millis("interval", 100*time.Millisecond, 10*time.Millisecond, time.Minute),
	}
	condition := t.str("json", "")
	t.unknown()
	if rule.IntervalMillis > rule.TimeoutMillis {
		t.report.add(t.key("interval"), "is longer than the timeout")
	}
	if rule.Connect {
		for _, name := range []string{"http", "status", "json"} {
			if t.has(name) {
				t.report.add(t.key(name), "has no meaning beside connect = true: remove one of them")
			}
		}
		rule.HTTP, rule.Status = "", 0
		return rule
	}
	if !strings.HasPrefix(rule.HTTP, "/") || strings.ContainsFunc(rule.HTTP, func(r rune) bool { return r <= ' ' || r > '~' }) {
		t.report.add(t.key("http"), `must be the path of a GET, as in "/health"; or set connect = true`)
	}
	if t.has("json") {
		pointer, value, ok := strings.Cut(condition, "=")
		if !ok || !strings.HasPrefix(pointer, "/") {
			t.report.add(t.key("json"), `must be a JSON pointer, "=" and the text of the value, as in "/status=READY"`)
		}
		rule.JSONPointer, rule.JSONValue = pointer, value
	}
	return rule
}

func readLifecycle(t *table) Lifecycle {
	l := Lifecycle{
		StopSignal:        t.str("stop_signal", "SIGTERM"),
		StopGraceMillis:   t.millis("stop_grace", 5*time.Second, 0, 10*time.Minute),
		MaxLifetimeMillis: t.millis("max_lifetime", time.Hour, time.Second, 720*time.Hour),
		LeaseMillis:       t.millis("lease", 4*time.Minute, time.Second, 24*time.Hour),
		OOM:               OOMPolicy(t.str("oom", string(OOMKillGroup))),
		Spares:            t.integer("spares", 0, 0, maxListed),
	}
	if unix.SignalNum(l.StopSignal) == 0 {
		t.report.add(t.key("stop_signal"), `must be a signal's name, as in "SIGTERM"`)
	}
	if l.OOM != OOMKillGroup && l.OOM != OOMObserve {
		t.report.add(t.key("oom"), `must be "kill-group" or "observe"`)
	}
	t.unknown()
	return l
}
