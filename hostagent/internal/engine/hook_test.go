package engine

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/containerd/containerd/v2/core/containers"
	"github.com/google/go-cmp/cmp"
	"github.com/hashicorp/go-hclog"
	"github.com/opencontainers/runtime-spec/specs-go"
	"github.com/quittance/quittance/profiles"
	"github.com/quittance/quittance/protocol"
	"google.golang.org/protobuf/types/known/anypb"
)

type hooked specs.Hooks

func (h hooked) Apply(s *specs.Spec) error {
	s.Hooks = (*specs.Hooks)(&h)
	return nil
}

// I33: no hook of a device runs for longer than the engine's call that it runs
// in, and each bears the mark by which its processes are found (I17). What the
// spec of the device says otherwise stays.
func TestHooksAreMarkedAndBounded(t *testing.T) {
	const mark = "QUITTANCE_HOOK_OF=q-00112233445566778899aabbccddeeff@/run/engine.sock"
	r := specRequest()
	r.Profile.Resources.Devices = []profiles.DeviceRequest{{Kind: "x", Count: 1}}
	r.Devices = hooked{
		//lint:ignore SA1019 runc still runs it.
		Prestart:      []specs.Hook{{Path: "/p", Args: []string{"p", "1"}, Env: []string{"A=b"}, Timeout: new(5)}},
		CreateRuntime: []specs.Hook{{Path: "/a"}, {Path: "/b", Timeout: new(600)}},
		Poststart:     []specs.Hook{{Path: "/c", Timeout: new(-1)}},
		Poststop:      []specs.Hook{{Path: "/d"}},
	}
	path := "PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
	s := specOf(t, r)
	want := &specs.Hooks{
		//lint:ignore SA1019 runc still runs it.
		Prestart:      []specs.Hook{{Path: "/p", Args: []string{"p", "1"}, Env: []string{mark, "A=b"}, Timeout: new(5)}},
		CreateRuntime: []specs.Hook{{Path: "/a", Env: []string{mark, path}, Timeout: new(45)}, {Path: "/b", Env: []string{mark, path}, Timeout: new(45)}},
		Poststart:     []specs.Hook{{Path: "/c", Env: []string{mark, path}, Timeout: new(22)}},
		Poststop:      []specs.Hook{{Path: "/d", Env: []string{mark, path}, Timeout: new(6)}},
	}
	if !cmp.Equal(s.Hooks, want) {
		t.Error(cmp.Diff(want, s.Hooks))
	}
	// The engine's record tells which containers have hooks.
	record := func(s *specs.Spec) containers.Container {
		text, err := json.Marshal(s)
		if err != nil {
			t.Fatal(err)
		}
		return containers.Container{
			ID: "q-" + string(r.Nonce), Labels: map[string]string{labelNonce: string(r.Nonce), labelGeneration: string(r.Nonce)},
			Spec: &anypb.Any{TypeUrl: specType, Value: text},
		}
	}
	if c, ours := containerOf(record(s)); !ours || !c.Hooks {
		t.Errorf("ours %t, %+v: the hooks are not seen", ours, c)
	}
	if c, ours := containerOf(record(specOf(t, specRequest()))); !ours || c.Hooks {
		t.Errorf("ours %t, %+v: there are no hooks", ours, c)
	}
}

// I17: exactly the processes of one container's hooks are killed, whatever
// group or session they moved to; another container's are not.
func TestHooksProcessesAreEnded(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("only root's processes are believed to be a hook's: this test needs root")
	}
	// Nobody else's: other engines of this machine have hooks too.
	one, two := ContainerID(protocol.NewID()), ContainerID(protocol.NewID())
	e := &Engine{o: Options{Address: "/run/" + one + ".sock"}, log: hclog.NewNullLogger()}
	// On a busy machine a killed process may end after the grace that it has: then
	// the removal is repeated.
	end := func(ctx context.Context, id string) error {
		err := e.endHooks(ctx, id)
		for deadline := time.Now().Add(time.Minute); errors.Is(err, ErrRunning) && time.Now().Before(deadline); {
			err = e.endHooks(ctx, id)
		}
		return err
	}
	t.Cleanup(func() {
		for _, id := range []string{one, two} {
			if err := end(context.Background(), id); err != nil {
				t.Error(err)
			}
		}
	})
	run := func(of, script string) (*exec.Cmd, string) {
		t.Helper()
		cmd := exec.CommandContext(t.Context(), "/bin/sh", "-c", script)
		cmd.Env = []string{"A=b", hookMark + "=" + of, "PATH=" + defaultPath}
		out, err := cmd.StdoutPipe()
		if err != nil {
			t.Fatal(err)
		}
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		var child string
		if _, err := fmt.Fscan(out, &child); err != nil {
			t.Fatal(err)
		}
		return cmd, child
	}
	hook, child := run(one+"@"+e.o.Address, "setsid sleep 1000 >/dev/null & echo $!; wait")
	other, _ := run(two+"@/run/other.sock", "echo up; exec sleep 1000")
	audit := func() (out []string) {
		t.Helper()
		found, err := e.auditProcesses("")
		if err != nil {
			t.Fatal(err)
		}
		for _, l := range found {
			out = append(out, l.String())
		}
		slices.Sort(out)
		return out
	}
	want := []string{fmt.Sprintf("hook process %d of %s", hook.Process.Pid, one), fmt.Sprintf("hook process %s of %s", child, one)}
	slices.Sort(want)
	if got := audit(); !cmp.Equal(got, want) {
		t.Errorf("the audit finds %q, want %q", got, want)
	}
	if err := end(t.Context(), one); err != nil {
		t.Fatal(err)
	}
	if err := hook.Wait(); err == nil || !strings.Contains(err.Error(), "killed") {
		t.Errorf("the hook: %v", err)
	}
	if got := audit(); len(got) != 0 {
		t.Errorf("left: %q", got)
	}
	if found, err := e.hooks(two); err != nil || len(found) != 1 || found[0].PID != int64(other.Process.Pid) {
		t.Errorf("another container's: %v, %v", found, err)
	}
	over, cancel := context.WithCancel(t.Context())
	cancel()
	if err := e.endHooks(over, two); !errors.Is(err, ErrRunning) || !errors.Is(err, context.Canceled) {
		t.Errorf("with its time over: %v", err)
	}
	if err := end(t.Context(), two); err != nil {
		t.Error(err)
	}
	if err := other.Wait(); err == nil {
		t.Error("the other one ended by itself")
	}
}
