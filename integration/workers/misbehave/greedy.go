package main

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"os/signal"
	"path/filepath"
	"strings"
	"syscall"
	"time"
)

// flood writes to its output as fast as somebody takes it.
func flood(ctx context.Context, _ options, l net.Listener) error {
	block := []byte(strings.Repeat("misbehave floods its log with lines like this one, again and again\n", 1000))
	go func() {
		for {
			if _, err := os.Stdout.Write(block); err != nil {
				return // whoever took it is gone
			}
		}
	}()
	return serve(ctx, l, func(context.Context, []byte) (any, error) { return map[string]bool{"floods": true}, nil })
}

// fill writes files below the target until one can take no more.
func fill(ctx context.Context, o options, l net.Listener) error {
	const size = 1 << 20
	written, block := 0, make([]byte, size)
	for i := 0; ; i++ {
		n, err := writeNew(filepath.Join(o.target, fmt.Sprintf("fill-%d", i)), block)
		written += n
		if errors.Is(err, syscall.ENOSPC) {
			break
		}
		if err != nil {
			return err
		}
	}
	fmt.Println("filled", written)
	return serve(ctx, l, func(context.Context, []byte) (any, error) { return map[string]int{"filled": written}, nil })
}

func writeNew(name string, data []byte) (int, error) {
	f, err := os.OpenFile(name, os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o600)
	if err != nil {
		return 0, err
	}
	n, err := f.Write(data)
	return n, errors.Join(err, f.Close())
}

// storm starts children that cost next to nothing each, so that there can be
// thousands, and reaps none. It and they ignore SIGTERM.
func storm(_ context.Context, o options, l net.Listener) error {
	signal.Reset(syscall.SIGTERM)
	signal.Ignore(syscall.SIGTERM)
	started := 0
	for range o.count {
		if forkIdle() != 0 {
			break // the limit of processes: as many as fit
		}
		started++
	}
	fmt.Println("children", started)
	return serve(context.Background(), l, func(context.Context, []byte) (any, error) {
		return map[string]int{"children": started}, nil
	})
}

// forkIdle forks this process into a child that only waits for its end. The
// child has one thread of a Go program and no scheduler: it must do nothing but
// this system call, which is why there is no os/exec here; a program of its own
// for each of thousands would cost gigabytes.
//
//go:norace
//go:nosplit
//go:noinline
func forkIdle() syscall.Errno {
	pid, _, failure := syscall.RawSyscall6(syscall.SYS_CLONE, uintptr(syscall.SIGCHLD), 0, 0, 0, 0, 0)
	if failure != 0 || pid != 0 {
		return failure
	}
	for {
		syscall.RawSyscall6(syscall.SYS_PPOLL, 0, 0, 0, 0, 0, 0)
	}
}

// childOOMLoop lets the kernel kill one child after another.
func childOOMLoop(ctx context.Context, _ options, l net.Listener) error {
	go func() {
		tick := time.NewTicker(20 * time.Millisecond)
		defer tick.Stop()
		for kills := 1; ; kills++ {
			end, err := runChild("allocate")
			if err != nil {
				fmt.Fprintln(os.Stderr, "misbehave:", err)
				return
			}
			fmt.Println("child", kills, "signal", end.Signal)
			select {
			case <-ctx.Done():
				return
			case <-tick.C:
			}
		}
	}()
	return serve(ctx, l, func(context.Context, []byte) (any, error) { return map[string]bool{"loops": true}, nil })
}
