package engine

import (
	"context"
	"errors"
	"fmt"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	tasktypes "github.com/containerd/containerd/api/types/task"
	"github.com/containerd/containerd/v2/core/containers"
	"github.com/containerd/errdefs"
	"github.com/google/go-cmp/cmp"
	"github.com/opencontainers/runtime-spec/specs-go"
	"github.com/quittance/quittance/profiles"
	"github.com/quittance/quittance/protocol"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/anypb"
	"google.golang.org/protobuf/types/known/timestamppb"
)

func specRequest() CreateRequest {
	return CreateRequest{
		Nonce: "00112233445566778899aabbccddeeff", CgroupPath: "/quittance/00112233445566778899aabbccddeeff/c", SwapAccounting: true,
		Profile: &profiles.Profile{
			Name: "ocr", Args: []string{"ocr-server", "--listen", "127.0.0.1:8080"}, UID: 65532, GID: 65533,
			Env:       []profiles.EnvVar{{Name: "OMP_THREAD_LIMIT", Value: "1"}},
			Resources: profiles.Resources{MemoryBytes: 512 << 20, SwapBytes: 1 << 20, CPUMillis: 1500, PIDs: 64},
			Filesystem: profiles.Filesystem{
				Tmpfs:  []profiles.Tmpfs{{Path: "/tmp", SizeBytes: 1 << 20}, {Path: "/run/x", SizeBytes: 4096, Exec: true}},
				Mounts: []profiles.Mount{{Source: "/srv/models/x", Target: "/models"}, {Source: "/srv/out", Target: "/out", Writable: true}},
			},
			Init: true,
		},
	}
}

var testSpecOptions = SpecOptions{
	InitPath: "/usr/bin/catatonit", Engine: "/run/engine.sock",
	Deadlines: Deadlines{Create: 60 * time.Second, Start: 30 * time.Second, Delete: 8 * time.Second},
}

func specOf(t *testing.T, r CreateRequest) *specs.Spec {
	t.Helper()
	s, _, err := BuildSpec(r, testSpecOptions)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// I2: what every worker gets, whatever its profile says, and what its profile
// decides; written out, not built by the code under test.
func TestSpec(t *testing.T) {
	s := specOf(t, specRequest())
	if want := []string{"/dev/init", "--", "ocr-server", "--listen", "127.0.0.1:8080"}; !cmp.Equal(s.Process.Args, want) {
		t.Errorf("args %q, want %q", s.Process.Args, want)
	}
	if want := []string{"PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin", "OMP_THREAD_LIMIT=1"}; !cmp.Equal(s.Process.Env, want) {
		t.Errorf("env %q, want %q", s.Process.Env, want)
	}
	if s.Process.User.UID != 65532 || s.Process.User.GID != 65533 || len(s.Process.User.AdditionalGids) != 0 {
		t.Errorf("user %+v", s.Process.User)
	}
	if !s.Root.Readonly || !s.Process.NoNewPrivileges || s.Process.Terminal || *s.Process.OOMScoreAdj != 500 {
		t.Errorf("root %+v, process %+v", s.Root, s.Process)
	}
	c := s.Process.Capabilities
	if len(c.Bounding)+len(c.Effective)+len(c.Inheritable)+len(c.Permitted)+len(c.Ambient) != 0 {
		t.Errorf("capabilities %+v, want none", c)
	}
	if want := []specs.POSIXRlimit{{Type: "RLIMIT_CORE"}, {Type: "RLIMIT_NOFILE", Hard: 1024, Soft: 1024}}; !cmp.Equal(s.Process.Rlimits, want) {
		t.Errorf("limits %+v", s.Process.Rlimits)
	}
	var namespaces []string
	for _, ns := range s.Linux.Namespaces {
		if ns.Path != "" {
			t.Errorf("namespace %+v is joined, want a new one", ns)
		}
		namespaces = append(namespaces, string(ns.Type))
	}
	slices.Sort(namespaces)
	if want := []string{"cgroup", "ipc", "mount", "network", "pid", "uts"}; !cmp.Equal(namespaces, want) {
		t.Errorf("namespaces %q, want %q", namespaces, want)
	}
	if s.Linux.Seccomp == nil || s.Linux.Seccomp.DefaultAction != specs.ActErrno {
		t.Errorf("seccomp %+v, want everything refused by default", s.Linux.Seccomp)
	}
	for _, call := range s.Linux.Seccomp.Syscalls {
		if call.Action == specs.ActAllow && len(call.Args) == 0 && (slices.Contains(call.Names, "mount") || slices.Contains(call.Names, "bpf")) {
			t.Errorf("seccomp allows %q", call.Names)
		}
	}
	for _, path := range []string{"/proc/kcore", "/proc/keys", "/sys/firmware"} {
		if !slices.Contains(s.Linux.MaskedPaths, path) {
			t.Errorf("%s is not masked", path)
		}
	}
	if !slices.Contains(s.Linux.ReadonlyPaths, "/proc/sys") {
		t.Error("/proc/sys is not read-only")
	}
	r := s.Linux.Resources
	if *r.Memory.Limit != 512<<20 || *r.Memory.Swap != 513<<20 || *r.Pids.Limit != 64 || *r.CPU.Quota != 150000 || *r.CPU.Period != 100000 {
		t.Errorf("resources %+v", r)
	}
	if len(r.Devices) != 1 || r.Devices[0].Allow || s.Linux.CgroupsPath != "/quittance/00112233445566778899aabbccddeeff/c" {
		t.Errorf("devices %+v, cgroup %s", r.Devices, s.Linux.CgroupsPath)
	}
	if s.Hooks != nil || len(s.Linux.Devices) != 0 || len(s.Annotations) != 0 {
		t.Error("hooks, devices or annotations that nobody asked for")
	}
}

func TestSpecMounts(t *testing.T) {
	s := specOf(t, specRequest())
	got := map[string]string{}
	for _, m := range s.Mounts {
		got[m.Destination] = m.Type + " " + m.Source + " " + strings.Join(m.Options, ",")
	}
	want := map[string]string{
		"/proc":       "proc proc nosuid,noexec,nodev",
		"/dev":        "tmpfs tmpfs nosuid,strictatime,mode=755,size=65536k",
		"/dev/pts":    "devpts devpts nosuid,noexec,newinstance,ptmxmode=0666,mode=0620",
		"/dev/mqueue": "mqueue mqueue nosuid,noexec,nodev",
		"/sys":        "sysfs sysfs nosuid,noexec,nodev,ro",
		"/dev/shm":    "tmpfs tmpfs nosuid,nodev,mode=1777,size=67108864,uid=65532,gid=65533,noexec",
		"/dev/init":   "bind /usr/bin/catatonit bind,private,nosuid,nodev,ro",
		"/tmp":        "tmpfs tmpfs nosuid,nodev,mode=1777,size=1048576,uid=65532,gid=65533,noexec",
		"/run/x":      "tmpfs tmpfs nosuid,nodev,mode=1777,size=4096,uid=65532,gid=65533",
		"/models":     "bind /srv/models/x bind,private,nosuid,nodev,ro",
		"/out":        "bind /srv/out bind,private,nosuid,nodev,rw",
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("mounts (-want +got):\n%s", diff)
	}
}

func TestSpecVariants(t *testing.T) {
	r := specRequest()
	r.SwapAccounting, r.Profile.Resources.CPUMillis, r.Profile.Init = false, 0, false
	r.Profile.Env = []profiles.EnvVar{{Name: "PATH", Value: "/opt/bin"}}
	r.Profile.Filesystem.Tmpfs = []profiles.Tmpfs{{Path: "/dev/shm", SizeBytes: 1 << 30}}
	s := specOf(t, r)
	if s.Linux.Resources.Memory.Swap != nil || s.Linux.Resources.CPU != nil {
		t.Errorf("resources %+v, want neither swap nor cpu", s.Linux.Resources)
	}
	if s.Process.Args[0] != "ocr-server" || !cmp.Equal(s.Process.Env, []string{"PATH=/opt/bin"}) {
		t.Errorf("args %q env %q", s.Process.Args, s.Process.Env)
	}
	shm := 0
	for _, m := range s.Mounts {
		if m.Destination == "/dev/shm" {
			shm++
		}
		if m.Destination == "/dev/init" {
			t.Error("an init is mounted that the profile did not ask for")
		}
	}
	if shm != 1 {
		t.Errorf("%d mounts on /dev/shm, want the profile's only", shm)
	}
}

// Equal requests have equal digests, any difference another one.
func TestSpecDigest(t *testing.T) {
	digest := func(change func(*CreateRequest)) protocol.Digest {
		r := specRequest()
		change(&r)
		_, d, err := BuildSpec(r, testSpecOptions)
		if err != nil || !d.Valid() {
			t.Fatalf("digest %q, %v", d, err)
		}
		return d
	}
	same := digest(func(*CreateRequest) {})
	if again := digest(func(r *CreateRequest) { r.Number = 9 }); again != same {
		t.Errorf("digest %s and then %s: the number is no part of the spec", same, again)
	}
	for name, change := range map[string]func(*CreateRequest){
		"args":   func(r *CreateRequest) { r.Profile.Args[2] = "127.0.0.1:81" },
		"memory": func(r *CreateRequest) { r.Profile.Resources.MemoryBytes++ },
		"cgroup": func(r *CreateRequest) { r.CgroupPath = "/other/c" },
	} {
		if digest(change) == same {
			t.Errorf("%s: the digest did not change", name)
		}
	}
}

func TestSpecRefusals(t *testing.T) {
	for name, change := range map[string]func(*CreateRequest){
		"no profile": func(r *CreateRequest) { r.Profile = nil },
		"no args":    func(r *CreateRequest) { r.Profile.Args = nil },
		"devices":    func(r *CreateRequest) { r.Profile.Resources.Devices = []profiles.DeviceRequest{{Kind: "x", Count: 1}} },
		"cgroup":     func(r *CreateRequest) { r.CgroupPath = "relative" },
	} {
		r := specRequest()
		change(&r)
		if _, _, err := BuildSpec(r, testSpecOptions); err == nil {
			t.Errorf("%s: built", name)
		}
	}
	if _, _, err := BuildSpec(specRequest(), SpecOptions{}); err == nil || !strings.Contains(err.Error(), "catatonit") {
		t.Errorf("no init: %v, want the package that has it", err)
	}
}

// I11: without the daemon's own answer nobody knows; a refusal is one only
// where it certainly had no effect.
func TestDispositions(t *testing.T) {
	over, cancel := context.WithDeadline(t.Context(), time.Now().Add(-time.Second))
	defer cancel()
	for name, test := range map[string]struct {
		err  error
		want protocol.Disposition
	}{
		"nil":               {nil, protocol.Done},
		"plain":             {errors.New("x"), protocol.Unknown},
		"deadline":          {failed("x", "q", context.DeadlineExceeded), protocol.Unknown},
		"remote deadline":   {failed("x", "q", status.Error(codes.DeadlineExceeded, "late")), protocol.Unknown},
		"remote cancel":     {failed("x", "q", status.Error(codes.Canceled, "gone")), protocol.Unknown},
		"unavailable":       {failed("x", "q", status.Error(codes.Unavailable, "down")), protocol.Unknown},
		"internal":          {failed("x", "q", status.Error(codes.Internal, "?")), protocol.Unknown},
		"unknown":           {failed("x", "q", status.Error(codes.Unknown, "runc failed")), protocol.Unknown},
		"invalid":           {failed("x", "q", status.Error(codes.InvalidArgument, "bad")), protocol.Refused},
		"exists":            {failed("x", "q", status.Error(codes.AlreadyExists, "dup")), protocol.Refused},
		"other":             {failed("x", "q", ErrOther), protocol.Refused},
		"wrapped running":   {fmt.Errorf("y: %w", refused("x", "q", ErrRunning)), protocol.Refused},
		"refused task":      {taskRefusal(context.Background(), "q", status.Error(codes.Unknown, "runc failed")), protocol.Refused},
		"task never heard":  {taskRefusal(context.Background(), "q", status.Error(codes.Unavailable, "down")), protocol.Unknown},
		"task out of time":  {taskRefusal(context.Background(), "q", status.Error(codes.DeadlineExceeded, "late")), protocol.Unknown},
		"task late there":   {taskRefusal(context.Background(), "q", status.Error(codes.Unknown, "runc create: context deadline exceeded: unknown")), protocol.Unknown},
		"task ended there":  {taskRefusal(context.Background(), "q", status.Error(codes.Unknown, "context canceled")), protocol.Unknown},
		"task, translated":  {taskRefusal(context.Background(), "q", fmt.Errorf("context deadline exceeded: %w", errdefs.ErrUnknown)), protocol.Unknown},
		"task, time over":   {taskRefusal(over, "q", status.Error(codes.Unknown, "runc failed")), protocol.Unknown},
		"task given up":     {taskRefusal(context.Background(), "q", context.Canceled), protocol.Unknown},
		"translated before": {failed("x", "q", fmt.Errorf("z: %w", errdefs.ErrNotFound)), protocol.Refused},
	} {
		if got := DispositionOf(test.err); got != test.want {
			t.Errorf("%s: %s, want %s", name, got, test.want)
		}
	}
	if !IsUnavailable(failed("x", "q", status.Error(codes.Unavailable, "down"))) || !IsUnavailable(failed("x", "q", context.DeadlineExceeded)) {
		t.Error("silence is not told as unavailable")
	}
	if IsUnavailable(failed("x", "q", status.Error(codes.NotFound, "no"))) {
		t.Error("an answer is told as silence")
	}
}

// I23: a status without the time at which somebody saw the end is made up.
func TestTaskStates(t *testing.T) {
	at := timestamppb.New(time.Unix(1700000000, 5000))
	for name, test := range map[string]struct {
		in   *tasktypes.Process
		want Task
	}{
		"created":           {&tasktypes.Process{Pid: 5, Status: tasktypes.Status_CREATED}, Task{State: TaskCreated, PID: 5}},
		"running, old code": {&tasktypes.Process{Pid: 5, Status: tasktypes.Status_RUNNING, ExitStatus: 3, ExitedAt: at}, Task{State: TaskRunning, PID: 5}},
		"stopped":           {&tasktypes.Process{Pid: 5, Status: tasktypes.Status_STOPPED, ExitStatus: 3, ExitedAt: at}, Task{State: TaskStopped, PID: 5, Exit: &Exit{Code: 3, At: 1700000000000005}}},
		"stopped, unseen":   {&tasktypes.Process{Pid: 5, Status: tasktypes.Status_STOPPED, ExitStatus: 137}, Task{State: TaskStopped, PID: 5}},
		"stopped, no time":  {&tasktypes.Process{Pid: 5, Status: tasktypes.Status_STOPPED, ExitStatus: 255, ExitedAt: timestamppb.New(time.Time{})}, Task{State: TaskStopped, PID: 5}},
		"paused":            {&tasktypes.Process{Pid: 5, Status: tasktypes.Status_PAUSING}, Task{State: TaskPaused, PID: 5}},
		"silent shim":       {&tasktypes.Process{Pid: 5, Status: tasktypes.Status_UNKNOWN, ExitStatus: 255}, Task{State: TaskUnknown, PID: 5}},
	} {
		if diff := cmp.Diff(test.want, taskOf(test.in)); diff != "" {
			t.Errorf("%s (-want +got):\n%s", name, diff)
		}
	}
}

func TestExitReceipt(t *testing.T) {
	for code, signal := range map[int64]int64{0: 0, 1: 0, 128: 0, 137: 9, 143: 15, 255: 0} {
		r := Exit{Code: code, At: 7}.Receipt()
		if r.Source != protocol.ExitFromEngine || *r.Code != code || *r.At != 7 {
			t.Errorf("%d: %+v", code, r)
		}
		if (r.Signal == nil) != (signal == 0) || (r.Signal != nil && *r.Signal != signal) {
			t.Errorf("%d: signal %v, want %d", code, r.Signal, signal)
		}
	}
}

// FR-33: only our labels make a container ours.
func TestContainerOf(t *testing.T) {
	r := specRequest()
	r.Generation, r.Number, r.Image.Digest = "ffeeddccbbaa99887766554433221100", 12, protocol.DigestOf(nil)
	record := containers.Container{
		ID: "q-00112233445566778899aabbccddeeff", Labels: r.labels(), CreatedAt: time.Unix(5, 0), Spec: &anypb.Any{Value: []byte("{}")},
	}
	want := Container{
		Identity:   Identity{ID: record.ID, Nonce: r.Nonce, Created: 5000000},
		Generation: r.Generation, Number: 12, Profile: "ocr", ProfileDigest: r.Profile.Digest(),
		ImageDigest: protocol.DigestOf(nil), SpecDigest: protocol.DigestOf([]byte("{}")),
	}
	got, ok := containerOf(record)
	if diff := cmp.Diff(want, got); diff != "" || !ok {
		t.Errorf("ours %v (-want +got):\n%s", ok, diff)
	}
	r.Number = 0
	record.Labels = r.labels()
	if got, ok := containerOf(record); !ok || got.Number != 0 {
		t.Errorf("spare %+v, %v", got, ok)
	}
	for _, label := range []string{labelNonce, labelGeneration} {
		record.Labels = r.labels()
		record.Labels[label] = "x"
		if _, ok := containerOf(record); ok {
			t.Errorf("a container with a false %s is ours", label)
		}
	}
}

func TestPinnedName(t *testing.T) {
	digest := protocol.DigestOf(nil)
	for name, want := range map[string]string{
		"quittance.local/ocr:latest": "quittance.local/ocr@", "quittance.local/ocr": "quittance.local/ocr@", "host:5000/a/b": "host:5000/a/b@",
		"host:5000/a/b:v1@sha256:00": "host:5000/a/b@",
	} {
		if got := PinnedName(name, digest); got != want+string(digest) {
			t.Errorf("%s: %s", name, got)
		}
	}
	for _, bad := range []string{"", "x", "x@", "@" + string(digest), "x@sha256:00", "x@sha512:" + digest.Hex()} {
		if _, _, ok := splitReference(bad); ok {
			t.Errorf("%q was taken for a pinned reference", bad)
		}
	}
}

// The shim takes the address apart into a program and one argument pair.
func TestLogURI(t *testing.T) {
	e := &Engine{o: Options{LogSink: LogSinkCommand{Binary: "/usr/lib/quittance/host agent", Verb: "log-sink"}}}
	u, err := url.Parse(e.logURI("dir=%2Fx&nonce=1"))
	if err != nil {
		t.Fatal(err)
	}
	if u.Scheme != "binary" || u.Path != "/usr/lib/quittance/host agent" || !cmp.Equal(u.Query(), url.Values{"log-sink": {"dir=%2Fx&nonce=1"}}) {
		t.Errorf("scheme %s path %s query %v", u.Scheme, u.Path, u.Query())
	}
}

// I33: a slow receiver costs no memory and no hint: it is told to look at
// everything.
func TestLostHintsBecomeAResync(t *testing.T) {
	out := make(chan Hint, 2)
	s := &subscription{out: out}
	for n := range 5 {
		s.send(Hint{Kind: HintExit, ContainerID: fmt.Sprint(n)})
	}
	if first, second := <-out, <-out; first.ContainerID != "0" || second.ContainerID != "1" {
		t.Errorf("hints %+v, %+v", first, second)
	}
	s.send(Hint{Kind: HintExit, ContainerID: "5"})
	if third, fourth := <-out, <-out; third.Kind != HintResync || fourth.ContainerID != "5" {
		t.Errorf("hints %+v, %+v, want a resync before the new one", third, fourth)
	}
}

// An engine that is away is no error of Open, and says how to bring it back.
func TestOpenWithoutDaemon(t *testing.T) {
	o := Options{
		Address: filepath.Join(t.TempDir(), "absent.sock"), InitPath: "/usr/bin/catatonit",
		LogSink: LogSinkCommand{Binary: "/usr/bin/hostagent", Verb: "log-sink"}, HealthInterval: time.Hour,
	}
	e, err := Open(t.Context(), o)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	hints := e.Events(ctx)
	if h := <-hints; h.Kind != HintUnavailable {
		t.Errorf("first hint %+v, want unavailable", h)
	}
	if health := e.Health(); health.Available || !strings.Contains(health.Detail, "systemctl status containerd") {
		t.Errorf("health %+v", health)
	}
	if _, err := e.List(t.Context()); !IsUnavailable(err) {
		t.Errorf("list: %v, want unavailable", err)
	}
	err = e.Kill(t.Context(), Identity{ID: "q-x"}, 9, true)
	if DispositionOf(err) != protocol.Unknown {
		t.Errorf("kill: %v is %s, want unknown", err, DispositionOf(err))
	}
	cancel()
	for range hints { // closed once its context has ended
	}
	hints = e.Events(t.Context())
	if err := e.Close(); err != nil {
		t.Error(err)
	}
	for range hints { // closed with the engine, whatever its context
	}
	for _, change := range []func(*Options){
		func(o *Options) { o.Address = "relative" }, func(o *Options) { o.InitPath = "" },
		func(o *Options) { o.LogSink.Binary = "hostagent" }, func(o *Options) { o.LogSink.Verb = "" },
		func(o *Options) { o.Deadlines.Delete = time.Second },
	} {
		bad := o
		change(&bad)
		if _, err := Open(t.Context(), bad); err == nil {
			t.Errorf("opened with %+v", bad)
		}
	}
}

// The agent's environment never enters a spec.
func TestNoEnvironmentOfTheAgent(t *testing.T) {
	t.Setenv("QUITTANCE_SECRET", "s3cret-value")
	s, err := encodeSpec(specOf(t, specRequest()))
	if err != nil || strings.Contains(string(s), "s3cret-value") {
		t.Errorf("%v; the spec holds a variable of this process: %v", err, os.Getenv("QUITTANCE_SECRET") != "")
	}
}

// I11: who reads of a failed effect reads what was tried on which container, and
// whether it may have happened, however deep the failure lies.
func TestEffectErrorSaysItsDisposition(t *testing.T) {
	for want, err := range map[string]error{
		"create q-1: " + ErrExists.Error() + " (refused)":                      refused("create", "q-1", ErrExists),
		"kill q-2: " + context.DeadlineExceeded.Error() + " (unknown)":         failed("kill", "q-2", context.DeadlineExceeded),
		"start q-3: " + ErrNotFound.Error() + " (refused)":                     failed("start", "q-3", ErrNotFound),
		"retire: delete q-4: " + context.Canceled.Error() + " (unknown): then": fmt.Errorf("retire: %w: then", failed("delete", "q-4", context.Canceled)),
	} {
		if got := err.Error(); got != want {
			t.Errorf("%q, want %q", got, want)
		}
	}
}
