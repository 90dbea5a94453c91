package engineproxy

import (
	"context"
	"net"
	"os"
	"path/filepath"
	"sync/atomic"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
)

// world is an engine that counts its effects and repeats each message, with a
// proxy before it and a client behind that.
type world struct {
	proxy   *Proxy
	client  *grpc.ClientConn
	effects atomic.Int32
}

func newWorld(t *testing.T) *world {
	t.Helper()
	dir, err := os.MkdirTemp("", "ep")
	if err != nil {
		t.Fatal(err)
	}
	w := &world{}
	listener, err := net.Listen("unix", filepath.Join(dir, "engine"))
	if err != nil {
		t.Fatal(err)
	}
	engine := grpc.NewServer(grpc.ForceServerCodecV2(rawCodec{}), grpc.UnknownServiceHandler(func(_ any, s grpc.ServerStream) error {
		if sent, _ := metadata.FromIncomingContext(s.Context()); len(sent["namespace"]) != 1 {
			return status.Error(codes.InvalidArgument, "no namespace")
		}
		w.effects.Add(1)
		for range 2 {
			var f frame
			if err := s.RecvMsg(&f); err != nil {
				return nil // the caller has no more
			}
			if string(f.bytes) == "refuse" {
				return status.Error(codes.NotFound, "no such thing")
			}
			if err := s.SendMsg(&f); err != nil {
				return err
			}
		}
		return nil
	}))
	go func() { _ = engine.Serve(listener) }() // ends with Stop
	if w.proxy, err = Start(filepath.Join(dir, "proxy"), filepath.Join(dir, "engine")); err != nil {
		t.Fatal(err)
	}
	w.client, err = grpc.NewClient("unix://"+w.proxy.Address(), grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithDefaultCallOptions(grpc.ForceCodecV2(rawCodec{})))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		for _, err := range []error{w.client.Close(), w.proxy.Close(), os.RemoveAll(dir)} {
			if err != nil {
				t.Error(err)
			}
		}
		engine.Stop()
	})
	return w
}

func (w *world) call(t *testing.T, method, text string, patience time.Duration) (string, error) {
	t.Helper()
	ctx, cancel := context.WithTimeout(metadata.AppendToOutgoingContext(t.Context(), "namespace", "n"), patience)
	defer cancel()
	var answer frame
	err := w.client.Invoke(ctx, "/test.v1."+method, &frame{bytes: []byte(text)}, &answer)
	return string(answer.bytes), err
}

const long = time.Minute

func TestPassesOn(t *testing.T) {
	w := newWorld(t)
	if answer, err := w.call(t, "Things/Get", "hello", long); answer != "hello" || err != nil {
		t.Errorf("%q, %v", answer, err)
	}
	if _, err := w.call(t, "Things/Get", "refuse", long); status.Code(err) != codes.NotFound || status.Convert(err).Message() != "no such thing" {
		t.Errorf("%v", err)
	}
	if w.proxy.Calls("Things/Get") != 2 || w.proxy.Calls("Things/Put") != 0 {
		t.Errorf("calls %v", w.proxy.calls)
	}
	// A stream of several messages.
	ctx := metadata.AppendToOutgoingContext(t.Context(), "namespace", "n")
	stream, err := w.client.NewStream(ctx, &grpc.StreamDesc{ServerStreams: true, ClientStreams: true}, "/test.v1.Things/Watch")
	if err != nil {
		t.Fatal(err)
	}
	for _, text := range []string{"one", "two"} {
		if err := stream.SendMsg(&frame{bytes: []byte(text)}); err != nil {
			t.Fatal(err)
		}
		var f frame
		if err := stream.RecvMsg(&f); err != nil || string(f.bytes) != text {
			t.Errorf("%q, %v", f.bytes, err)
		}
	}
}

func TestFaults(t *testing.T) {
	for _, row := range []struct {
		fault    Fault
		patience time.Duration
		code     codes.Code
		effects  int32
	}{
		{Fault{Way: Delay, For: 50 * time.Millisecond}, long, codes.OK, 1},
		{Fault{Way: Delay, For: time.Hour}, time.Second, codes.DeadlineExceeded, 0},
		{Fault{Way: Hold}, time.Second, codes.DeadlineExceeded, 0},
		{Fault{Way: Lose}, long, codes.Unavailable, 1},
		{Fault{Way: Withhold}, 2 * time.Second, codes.DeadlineExceeded, 1},
		{Fault{Way: Expire}, long, codes.Unknown, 1},
		{Fault{Way: Deny}, long, codes.NotFound, 0},
	} {
		t.Run(row.fault.Way.String(), func(t *testing.T) {
			w := newWorld(t)
			row.fault.Method = "Things/Put"
			hit := w.proxy.Arm(row.fault)
			if _, err := w.call(t, "Others/Put", "x", long); err != nil {
				t.Errorf("another method: %v", err)
			}
			w.effects.Store(0)
			if _, err := w.call(t, "Things/Put", "x", row.patience); status.Code(err) != row.code {
				t.Errorf("%v, want %s", err, row.code)
			}
			select {
			case <-hit:
			case <-time.After(long):
				t.Fatal("the fault was not met")
			}
			if got := w.effects.Load(); got != row.effects {
				t.Errorf("%d effects, want %d", got, row.effects)
			}
			if _, err := w.call(t, "Things/Put", "x", long); err != nil {
				t.Errorf("the call after: %v", err)
			}
		})
	}
}

func TestInvents(t *testing.T) {
	w := newWorld(t)
	w.proxy.Arm(Fault{Method: "Things/Get", Way: Invent, Reply: []byte("a lie")})
	if answer, err := w.call(t, "Things/Get", "x", long); answer != "a lie" || err != nil || w.effects.Load() != 0 {
		t.Errorf("%q, %v, %d effects", answer, err, w.effects.Load())
	}
	if answer, err := w.call(t, "Things/Get", "x", long); answer != "x" || err != nil {
		t.Errorf("%q, %v", answer, err)
	}
}

func TestDisarm(t *testing.T) {
	w := newWorld(t)
	w.proxy.Arm(Fault{Method: "Things/Put", Way: Lose, Times: 5})
	if _, err := w.call(t, "Things/Put", "x", long); status.Code(err) != codes.Unavailable {
		t.Errorf("%v", err)
	}
	w.proxy.Disarm()
	if _, err := w.call(t, "Things/Put", "x", long); err != nil {
		t.Errorf("%v", err)
	}
}
