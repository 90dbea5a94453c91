// Package engineproxy stands between a client and containerd's socket and fails
// on demand: it delays calls, holds them back, loses or withholds replies after
// the effect, and lies. Tests use it; the product does not.
//
// It owns the relay of gRPC calls as they are. It must not know what any call
// means: faults choose calls by the method's name, and bytes are passed on
// unread.
package engineproxy

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net"
	"os"
	"strings"
	"sync"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/mem"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
)

// Way is how a call fails.
type Way int

// The ways.
const (
	// Delay passes the call on only after Fault.For.
	Delay Way = iota
	// Hold never passes the call on: the caller waits until it gives up.
	Hold
	// Lose passes the call on, lets it take effect, and breaks off instead of
	// answering.
	Lose
	// Withhold passes the call on, lets it take effect, and answers never: the
	// caller waits until it gives up.
	Withhold
	// Invent answers with Fault.Reply and never passes the call on.
	Invent
	// Expire passes the call on, lets it take effect, and answers as a daemon
	// does whose own deadline for it has passed: with a text of no class.
	Expire
	// Deny answers that there is no such thing and never passes the call on.
	Deny
)

func (w Way) String() string {
	return [...]string{"delay", "hold", "lose", "withhold", "invent", "expire", "deny"}[w]
}

// Fault is what happens to the next calls of one method.
type Fault struct {
	Method string        // the end of the method's full name, as in "Tasks/Create"
	Way    Way           // how they fail
	For    time.Duration // of Delay
	Reply  []byte        // of Invent: the message as it goes over the wire
	Times  int           // calls that it takes; 0 means one
}

// effectTime bounds a call that goes on after its caller is gone.
const effectTime = time.Minute

// maxMessage is more than containerd sends.
const maxMessage = 64 << 20

// Proxy is a running proxy.
type Proxy struct {
	address string
	server  *grpc.Server
	engine  *grpc.ClientConn
	over    chan error // Serve's end

	mu     sync.Mutex
	faults []*armed       // guarded by mu
	calls  map[string]int // by full method name; guarded by mu
}

// armed is a fault that still waits for calls.
type armed struct {
	Fault
	left int
	hit  chan struct{} // closed once the last call met it; after the effect, where there is one
}

// Start listens at address, a path, and relays to the socket at engine.
func Start(address, engine string) (*Proxy, error) {
	p := &Proxy{address: address, over: make(chan error, 1), calls: map[string]int{}}
	var err error
	p.engine, err = grpc.NewClient("unix://"+engine, grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithDefaultCallOptions(grpc.ForceCodecV2(rawCodec{}), grpc.MaxCallRecvMsgSize(maxMessage), grpc.MaxCallSendMsgSize(maxMessage)))
	if err != nil {
		return nil, fmt.Errorf("engine proxy: %w", err)
	}
	listener, err := net.Listen("unix", address)
	if err != nil {
		return nil, errors.Join(fmt.Errorf("engine proxy: %w", err), p.engine.Close())
	}
	p.server = grpc.NewServer(grpc.ForceServerCodecV2(rawCodec{}), grpc.UnknownServiceHandler(p.relay),
		grpc.MaxRecvMsgSize(maxMessage), grpc.MaxSendMsgSize(maxMessage))
	go func() { p.over <- p.server.Serve(listener) }()
	return p, nil
}

// Address is the proxy's socket.
func (p *Proxy) Address() string { return p.address }

// Close ends every call and the proxy.
func (p *Proxy) Close() error {
	p.server.Stop()
	err := errors.Join(<-p.over, p.engine.Close())
	if removed := os.Remove(p.address); removed != nil && !errors.Is(removed, fs.ErrNotExist) {
		err = errors.Join(err, removed)
	}
	return err
}

// Arm makes the next calls of a method fail. The channel is closed once the
// last of them met the fault: after its effect, where it has one. Of several
// faults for one method the oldest goes first.
func (p *Proxy) Arm(f Fault) <-chan struct{} {
	a := &armed{Fault: f, left: max(f.Times, 1), hit: make(chan struct{})}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.faults = append(p.faults, a)
	return a.hit
}

// Disarm forgets every fault that has not met its last call.
func (p *Proxy) Disarm() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.faults = nil
}

// Calls counts the calls so far of the methods whose full name ends so.
func (p *Proxy) Calls(method string) int {
	p.mu.Lock()
	defer p.mu.Unlock()
	n := 0
	for name, calls := range p.calls {
		if strings.HasSuffix(name, method) {
			n += calls
		}
	}
	return n
}

// meet counts a call and finds its fault; last tells that it is the last one
// that the fault takes.
func (p *Proxy) meet(method string) (a *armed, last bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.calls[method]++
	for i, a := range p.faults {
		if !strings.HasSuffix(method, "/"+a.Method) && !strings.HasSuffix(method, "."+a.Method) {
			continue
		}
		a.left--
		if a.left == 0 {
			p.faults = append(p.faults[:i:i], p.faults[i+1:]...)
		}
		return a, a.left == 0
	}
	return nil, false
}

// relay passes one call on and its answers back, or does what its fault says.
func (p *Proxy) relay(_ any, caller grpc.ServerStream) error {
	method, ok := grpc.MethodFromServerStream(caller)
	if !ok {
		return status.Error(codes.Internal, "engine proxy: a call without a method")
	}
	fault, last := p.meet(method)
	if fault == nil {
		return p.pass(caller.Context(), method, caller, true)
	}
	met := func() {
		if last {
			close(fault.hit)
		}
	}
	switch fault.Way {
	case Invent:
		met()
		return caller.SendMsg(&frame{fault.Reply})
	case Deny:
		met()
		return status.Error(codes.NotFound, "not found")
	case Hold:
		met()
		<-caller.Context().Done()
		return status.FromContextError(caller.Context().Err()).Err()
	case Lose, Withhold, Expire:
		// The effect is the engine's alone: it outlives a caller that gave up.
		ctx, cancel := context.WithTimeout(context.WithoutCancel(caller.Context()), effectTime)
		defer cancel()
		err := p.pass(ctx, method, caller, false)
		met()
		if err != nil {
			return err // there was no effect whose answer could be lost
		}
		switch fault.Way {
		case Withhold:
			<-caller.Context().Done()
			return status.FromContextError(caller.Context().Err()).Err()
		case Expire:
			return status.Error(codes.Unknown, context.DeadlineExceeded.Error()+": unknown")
		}
		return status.Error(codes.Unavailable, "engine proxy: the connection broke")
	default:
		met()
		timer := time.NewTimer(fault.For)
		defer timer.Stop()
		select {
		case <-caller.Context().Done():
			return status.FromContextError(caller.Context().Err()).Err()
		case <-timer.C:
		}
		return p.pass(caller.Context(), method, caller, true)
	}
}

// pass relays one call; without answer the engine's messages are dropped.
func (p *Proxy) pass(ctx context.Context, method string, caller grpc.ServerStream, answer bool) error {
	if sent, ok := metadata.FromIncomingContext(ctx); ok {
		ctx = metadata.NewOutgoingContext(ctx, sent.Copy())
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	engine, err := p.engine.NewStream(ctx, &grpc.StreamDesc{ServerStreams: true, ClientStreams: true}, method)
	if err != nil {
		return err
	}
	sending := make(chan error, 1)
	go func() { sending <- send(caller, engine) }()
	err = receive(engine, caller, answer)
	if answer {
		caller.SetTrailer(engine.Trailer())
	}
	if err == nil {
		return nil
	}
	select {
	case failed := <-sending:
		// The engine's own answer says more than a broken request does.
		if failed != nil && status.Code(err) == codes.Canceled {
			return failed
		}
	default:
	}
	return err
}

// send passes the caller's messages on until it has no more.
func send(caller grpc.ServerStream, engine grpc.ClientStream) error {
	for {
		var f frame
		err := caller.RecvMsg(&f)
		if errors.Is(err, io.EOF) {
			return engine.CloseSend()
		}
		if err == nil {
			err = engine.SendMsg(&f)
		}
		if errors.Is(err, io.EOF) {
			return nil // the engine has answered already
		}
		if err != nil {
			return err
		}
	}
}

// receive passes the engine's messages back until its answer is whole.
func receive(engine grpc.ClientStream, caller grpc.ServerStream, answer bool) error {
	for first := true; ; first = false {
		var f frame
		err := engine.RecvMsg(&f)
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return err
		}
		if !answer {
			continue
		}
		if first {
			header, err := engine.Header()
			if err == nil {
				err = caller.SetHeader(header)
			}
			if err != nil {
				return err
			}
		}
		if err := caller.SendMsg(&f); err != nil {
			return err
		}
	}
}

// frame is one message, unread.
type frame struct{ bytes []byte }

// rawCodec passes frames through. It says that it is the codec of the protocol
// that both sides speak.
type rawCodec struct{}

func (rawCodec) Name() string { return "proto" }

func (rawCodec) Marshal(v any) (mem.BufferSlice, error) {
	f, ok := v.(*frame)
	if !ok {
		return nil, fmt.Errorf("engine proxy: cannot send a %T", v)
	}
	return mem.BufferSlice{mem.SliceBuffer(f.bytes)}, nil
}

func (rawCodec) Unmarshal(data mem.BufferSlice, v any) error {
	f, ok := v.(*frame)
	if !ok {
		return fmt.Errorf("engine proxy: cannot receive into a %T", v)
	}
	f.bytes = data.Materialize()
	return nil
}
