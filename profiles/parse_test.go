package profiles

import (
	"errors"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/quittance/quittance/protocol"
)

const pin = "quittance.local/ocr@sha256:e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855"

const minimal = `
name = "ocr"
image = "` + pin + `"
args = ["ocr-server", "--listen", "127.0.0.1:8080"]
[resources]
memory = "512MiB"
[channel]
address = "tcp://127.0.0.1:8080"
ready = { http = "/health" }
`

// The same with every default written out, in another order.
const explicit = `
allow_root = false
user = "65532:65532"
args = ["ocr-server", "--listen", "127.0.0.1:8080"]
image = "` + pin + `"
name = "ocr"
env = {}
[process]
init = true
[logs]
journal = false
capture = "262144B"
[lifecycle]
spares = 0
oom = "kill-group"
lease = "240s"
max_lifetime = "60m"
stop_grace = "5000ms"
stop_signal = "SIGTERM"
[channel]
max_channels = 1024
ready = { interval = "100ms", timeout = "1m", status = 200, http = "/health", connect = false }
address = "tcp://127.0.0.1:8080"
[filesystem]
tmpfs = []
mounts = []
[resources]
pids = 64
swap = "0B"
memory = "524288KiB"
`

const full = `
name = "full"
image = "` + pin + `"
args = ["/bin/server"]
env = { ZEBRA = "1", OMP_THREAD_LIMIT = "<1>" }
user = "1000:1001"
[resources]
memory = "1GiB"
swap = "16MiB"
cpus = 1.5
pids = 32
[[resources.device]]
kind = "nvidia.com/gpu"
count = 2
[[resources.device]]
kind = "example.com/net"
[filesystem]
tmpfs = [{ path = "/tmp", size = "64MiB" }, { path = "/scratch", size = "1MiB", exec = true }]
mounts = [{ source = "/srv/models/x", target = "/models" }, { source = "/srv/w", target = "/a", writable = true }]
[channel]
address = "unix:///run/app/app.sock"
ready = { http = "/health", status = 204, json = "/status=READY=1", timeout = "5s", interval = "50ms" }
max_channels = 7
[lifecycle]
stop_signal = "SIGINT"
stop_grace = "250ms"
max_lifetime = "2h"
lease = "30s"
oom = "observe"
spares = 1
[logs]
capture = "1KiB"
journal = true
[process]
init = false
`

// The canonical bytes are the wire format of every digest in every receipt:
// they are written out here, and changing them changes every digest.
func TestCanonicalBytesAndDigest(t *testing.T) {
	for name, tc := range map[string]struct{ text, canonical, digest string }{
		"minimal": {
			minimal,
			`{"name":"ocr","image":"` + pin + `","args":["ocr-server","--listen","127.0.0.1:8080"],"env":[],"uid":65532,"gid":65532,"allow_root":false,` +
				`"resources":{"memory_bytes":536870912,"swap_bytes":0,"cpu_millis":0,"pids":64,"devices":[]},"filesystem":{"tmpfs":[],"mounts":[]},` +
				`"channel":{"network":"tcp","address":"127.0.0.1:8080","ready":{"connect":false,"http":"/health","status":200,"json_pointer":"","json_value":"","timeout_ms":60000,"interval_ms":100},"max_channels":1024},` +
				`"lifecycle":{"stop_signal":"SIGTERM","stop_grace_ms":5000,"max_lifetime_ms":3600000,"lease_ms":240000,"oom":"kill-group","spares":0},` +
				`"logs":{"capture_bytes":262144,"journal":false},"init":true}`,
			"5832bd70ae959553c728320b10307c0687102238e8fff49875c266f6ca2456c3",
		},
		"full": {
			full,
			`{"name":"full","image":"` + pin + `","args":["/bin/server"],"env":[{"name":"OMP_THREAD_LIMIT","value":"<1>"},{"name":"ZEBRA","value":"1"}],"uid":1000,"gid":1001,"allow_root":false,` +
				`"resources":{"memory_bytes":1073741824,"swap_bytes":16777216,"cpu_millis":1500,"pids":32,"devices":[{"kind":"example.com/net","count":1},{"kind":"nvidia.com/gpu","count":2}]},` +
				`"filesystem":{"tmpfs":[{"path":"/scratch","size_bytes":1048576,"exec":true},{"path":"/tmp","size_bytes":67108864,"exec":false}],"mounts":[{"source":"/srv/w","target":"/a","writable":true},{"source":"/srv/models/x","target":"/models","writable":false}]},` +
				`"channel":{"network":"unix","address":"/run/app/app.sock","ready":{"connect":false,"http":"/health","status":204,"json_pointer":"/status","json_value":"READY=1","timeout_ms":5000,"interval_ms":50},"max_channels":7},` +
				`"lifecycle":{"stop_signal":"SIGINT","stop_grace_ms":250,"max_lifetime_ms":7200000,"lease_ms":30000,"oom":"observe","spares":1},` +
				`"logs":{"capture_bytes":1024,"journal":true},"init":false}`,
			"07b5590e432d892434fd18d44d2123078c848af742e3903c0e1fbba0e87ff3ae",
		},
	} {
		t.Run(name, func(t *testing.T) {
			p, err := Parse([]byte(tc.text))
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(tc.canonical, string(p.Canonical())); diff != "" {
				t.Errorf("canonical form (-want +got):\n%s", diff)
			}
			if got := string(p.Digest()); got != "sha256:"+tc.digest {
				t.Errorf("digest %s, want sha256:%s", got, tc.digest)
			}
		})
	}
}

func TestFilesThatMeanTheSameHaveOneDigest(t *testing.T) {
	a, err := Parse([]byte(minimal))
	if err != nil {
		t.Fatal(err)
	}
	b, err := Parse([]byte(explicit))
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(a, b); diff != "" || a.Digest() != b.Digest() {
		t.Errorf("differ: %s", diff)
	}
}

// Any change of meaning is a change of digest (I2).
func TestEveryChangeChangesDigest(t *testing.T) {
	base, err := Parse([]byte(full))
	if err != nil {
		t.Fatal(err)
	}
	for old, changed := range map[string]string{
		`"<1>"`: `"<2>"`, `1000:1001`: `1000:1002`, `"1GiB"`: `"2GiB"`, `16MiB`: `17MiB`, `cpus = 1.5`: `cpus = 1.501`, `pids = 32`: `pids = 33`,
		`count = 2`: `count = 3`, `exec = true`: `exec = false`, `/srv/w`: `/srv/v`, `writable = true`: `writable = false`, `app.sock`: `b.sock`,
		`204`: `205`, `READY=1`: `READY=2`, `"5s"`: `"6s"`, `"50ms"`: `"51ms"`, `max_channels = 7`: `max_channels = 8`, `SIGINT`: `SIGHUP`,
		`250ms`: `251ms`, `2h`: `3h`, `30s`: `31s`, `observe`: `kill-group`, `spares = 1`: `spares = 2`, `1KiB`: `2KiB`, `journal = true`: `journal = false`, `init = false`: `init = true`,
	} {
		text := strings.Replace(full, old, changed, 1)
		p, err := Parse([]byte(text))
		if err != nil || text == full {
			t.Errorf("%s → %s: %v", old, changed, err)
			continue
		}
		if p.Digest() == base.Digest() {
			t.Errorf("%s → %s: digest did not change", old, changed)
		}
	}
}

func problems(t *testing.T, text string) []string {
	t.Helper()
	_, err := Parse([]byte(text))
	if err == nil {
		return nil
	}
	var e *Error
	if !errors.As(err, &e) {
		t.Fatalf("not an *Error: %v", err)
	}
	var out []string
	for _, p := range e.Problems {
		out = append(out, p.String())
	}
	return out
}

// Each row changes one thing of a good profile and expects exactly these
// problems, each with its key and a remedy.
func TestProblems(t *testing.T) {
	for _, tc := range []struct{ old, changed, want string }{
		{`name = "ocr"`, ``, `name: is missing: name = "…", [a-z0-9-], 1 to 40 characters`},
		{`name = "ocr"`, `name = "OCR"`, `name: must be [a-z0-9-], 1 to 40 characters`},
		{`name = "ocr"`, `name = 7`, `name: must be a string; name: must be [a-z0-9-], 1 to 40 characters`},
		{`@sha256:e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855`, `:latest`, `image: has no digest: ` + imageRemedy},
		{`@sha256:e3b`, `@sha256:E3B`, `image: has no digest: ` + imageRemedy},
		{`quittance.local/ocr@`, `UPPER CASE@`, `image: is not an image reference: ` + imageRemedy},
		{`args = ["ocr-server", "--listen", "127.0.0.1:8080"]`, ``, `args: is missing: the command and its arguments; the image's own entrypoint is not used`},
		{`args = ["ocr-server", "--listen", "127.0.0.1:8080"]`, `args = []`, `args: must begin with the command to run`},
		{`args = ["ocr-server", "--listen", "127.0.0.1:8080"]`, `args = ["a", 1]`, `args[1]: must be a string without NUL`},
		{`[resources]`, `imagee = "x"` + "\n[resources]", `imagee: is not a key of a profile: did you mean image?`},
		{`[resources]`, `zzz = 1` + "\n[resources]", `zzz: is not a key of a profile: remove it (known here: allow_root, args, channel, env, filesystem, image, lifecycle, logs, name, process, resources, user)`},
		{`[resources]`, `env = { "A B" = "x" }` + "\n[resources]", `env."A B": is not a variable's name: letters, digits and _, not beginning with a digit`},
		{`[resources]`, `env = { SECRET = 5 }` + "\n[resources]", `env.SECRET: must be a string without NUL`},
		{`[resources]`, `user = "nobody"` + "\n[resources]", `user: must be two numbers, as in "65532:65532": names of the image are not looked up`},
		{`[resources]`, `user = "0:5"` + "\n[resources]", `user: is root: choose another uid and gid, or set allow_root = true`},
		{`[resources]`, `user = "01:5"` + "\n[resources]", `user: must be two numbers, as in "65532:65532": names of the image are not looked up`},
		{`memory = "512MiB"`, ``, `resources.memory: is missing: memory = "512MiB"`},
		{`memory = "512MiB"`, `memory = "1KiB"`, `resources.memory: must be from 6MiB to 9007199254740991B`},
		{`memory = "512MiB"`, `memory = 512`, `resources.memory: must be a string; resources.memory: must be a whole number with a unit (B, KiB, MiB, GiB, TiB) in quotes, as in "512MiB"`},
		{`memory = "512MiB"`, `memory = "512MB"`, `resources.memory: must be a whole number with a unit (B, KiB, MiB, GiB, TiB) in quotes, as in "512MiB"`},
		{`memory = "512MiB"`, `memory = "99999999999TiB"`, `resources.memory: must be a whole number with a unit (B, KiB, MiB, GiB, TiB) in quotes, as in "512MiB"`},
		{`memory = "512MiB"`, "memory = \"512MiB\"\nmemroy = \"1GiB\"", `resources.memroy: is not a key of a profile: did you mean resources.memory?`},
		{`memory = "512MiB"`, "memory = \"512MiB\"\npids = 1", `resources.pids: must be at least 2: the init takes one (or set process.init = false)`},
		{`memory = "512MiB"`, "memory = \"512MiB\"\ncpus = nan", `resources.cpus: must be from 0.01 to 1024 cores; leave it out for no limit`},
		{`memory = "512MiB"`, "memory = \"512MiB\"\ndevice = [{ kind = \"gpu\" }]", `resources.device[0].kind: must be a CDI kind, as in "nvidia.com/gpu"`},
		{`[channel]`, "[filesystem]\ntmpfs = [{ path = \"/tmp\" }]\n[channel]", `filesystem.tmpfs[0].size: is missing: size = "64MiB"`},
		{`[channel]`, "[filesystem]\ntmpfs = [{ path = \"/dev/shm\", size = \"1MiB\" }]\n[channel]", `filesystem.tmpfs[0].path: lies in /proc, /sys or /dev, which the agent furnishes: choose another path`},
		{`[channel]`, "[filesystem]\nmounts = [{ source = \"a\", target = \"/b/../c\" }]\n[channel]",
			`filesystem.mounts[0].target: must be an absolute path below /, without . and .. and without a trailing slash; filesystem.mounts[0].source: must be an absolute path without . and .. and without a trailing slash`},
		{`[channel]`, "[filesystem]\ntmpfs = [{ path = \"/a\", size = \"1MiB\" }]\nmounts = [{ source = \"/b\", target = \"/a\" }]\n[channel]", `filesystem.mounts[0].target: is also filesystem.tmpfs[0].path: one mount per path`},
		{`tcp://127.0.0.1:8080`, `tcp://0.0.0.0:8080`, `channel.address: must be a loopback address: the container has no other network; ` + addressRemedy},
		{`tcp://127.0.0.1:8080`, `tcp://localhost:8080`, `channel.address: ` + addressRemedy},
		{`tcp://127.0.0.1:8080`, `unix://relative`, `channel.address: ` + addressRemedy + `, of at most 107 bytes`},
		{`ready = { http = "/health" }`, ``, `channel.ready: is missing: ready = { http = "/health" }, or ready = { connect = true }`},
		{`ready = { http = "/health" }`, `ready = {}`, `channel.ready.http: must be the path of a GET, as in "/health"; or set connect = true`},
		{`ready = { http = "/health" }`, `ready = { connect = true, status = 200 }`, `channel.ready.status: has no meaning beside connect = true: remove one of them`},
		{`{ http = "/health" }`, `{ http = "/health", json = "status" }`, `channel.ready.json: must be a JSON pointer, "=" and the text of the value, as in "/status=READY"`},
		{`{ http = "/health" }`, `{ http = "/health", timeout = "10ms" }`, `channel.ready.interval: is longer than the timeout`},
		{`[channel]`, "[lifecycle]\nstop_grace = \"1us\"\n[channel]", `lifecycle.stop_grace: must be a duration of whole milliseconds in quotes, as in "500ms", "5s" or "4m"`},
		{`[channel]`, "[lifecycle]\nlease = \"1ms\"\n[channel]", `lifecycle.lease: must be from 1s to 24h0m0s`},
		{`[channel]`, "[lifecycle]\nstop_signal = \"TERM\"\n[channel]", `lifecycle.stop_signal: must be a signal's name, as in "SIGTERM"`},
		{`[channel]`, "[lifecycle]\noom = \"ignore\"\n[channel]", `lifecycle.oom: must be "kill-group" or "observe"`},
		{`[channel]`, "[logs]\ncapture = \"1MiB\"\n[channel]", `logs.capture: must be from 0B to 256KiB`},
		{`[channel]`, "[process]\ninit = 1\n[channel]", `process.init: must be true or false`},
		{`name = "ocr"`, "name = \"ocr\"\nname = \"ocr\"", `name: not valid TOML at line 3, column 1: correct it there (a key may also be there twice)`},
	} {
		t.Run(tc.changed, func(t *testing.T) {
			text := strings.Replace(minimal, tc.old, tc.changed, 1)
			if text == minimal {
				t.Fatalf("%q is not in the profile", tc.old)
			}
			if got := strings.Join(problems(t, text), "; "); got != tc.want {
				t.Errorf("\n got %s\nwant %s", got, tc.want)
			}
		})
	}
}

func TestEveryProblemAtOnce(t *testing.T) {
	got := problems(t, "name = \"X\"\nimage = \"a\"\nbogus = 1\n[resources]\nmemory = \"x\"\n[channel]\n")
	var keys []string
	for _, p := range got {
		key, _, _ := strings.Cut(p, ":")
		keys = append(keys, key)
	}
	want := []string{"name", "image", "args", "resources.memory", "channel.address", "channel.ready", "bogus"}
	if !slices.Equal(keys, want) {
		t.Errorf("got %v, want %v", keys, want)
	}
}

// I37: no message quotes a variable's value.
func TestErrorsNeverQuoteEnv(t *testing.T) {
	for _, text := range []string{
		"env = { TOKEN = \"hunter2\\u0000\" }" + minimal,
		"env = { TOKEN = \"hunter2\" \n" + minimal,
		"env = { TOKEN = [\"hunter2\"] }" + minimal,
	} {
		_, err := Parse([]byte(text))
		if err == nil || strings.Contains(err.Error(), "hunter2") {
			t.Errorf("error %v", err)
		}
	}
}

func TestCeiling(t *testing.T) { // I33
	_, err := Parse([]byte(minimal + strings.Repeat("#", MaxFileBytes)))
	if err == nil || err.Error() != "file is longer than 65536 bytes" {
		t.Errorf("got %v", err)
	}
}

func TestAccessors(t *testing.T) {
	p, err := Parse([]byte(full))
	if err != nil {
		t.Fatal(err)
	}
	if got, want := p.ImageDigest(), protocol.Digest("sha256:e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855"); got != want {
		t.Errorf("image digest %s, want %s", got, want)
	}
	if got, want := p.DeviceKinds(), []string{"example.com/net", "nvidia.com/gpu", "nvidia.com/gpu"}; !slices.Equal(got, want) {
		t.Errorf("device kinds %v, want %v", got, want)
	}
	if got, want := p.Limits(), (protocol.Limits{MemoryBytes: 1 << 30, SwapBytes: 16 << 20, CPUMillis: 1500, PIDs: 32}); got != want {
		t.Errorf("limits %v, want %v", got, want)
	}
}

// FuzzParse: whatever the bytes, Parse returns; what it accepts has a canonical
// form and lies within the bounds that the agent relies on (I33).
func FuzzParse(f *testing.F) {
	for _, seed := range []string{minimal, explicit, full, "", "[[resources]]", "name = 1", "env = []", "[channel.ready]\nconnect = true"} {
		f.Add([]byte(seed))
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		p, err := Parse(data)
		if err != nil {
			return
		}
		if !protocol.ValidProfileName(p.Name) || !p.ImageDigest().Valid() || len(p.Args) == 0 || p.Resources.MemoryBytes < minMemory || p.Resources.PIDs < 1 {
			t.Errorf("accepted out of bounds: %s", p.Canonical())
		}
		if (p.UID == 0 || p.GID == 0) && !p.AllowRoot {
			t.Error("accepted root without allow_root")
		}
		if len(p.Canonical()) == 0 {
			t.Error("no canonical form")
		}
	})
}

func write(t *testing.T, path, text string, mode os.FileMode) {
	t.Helper()
	if err := os.WriteFile(path, []byte(text), mode); err != nil {
		t.Fatal(err)
	}
	if err := os.Chmod(path, mode); err != nil {
		t.Fatal(err)
	}
}
