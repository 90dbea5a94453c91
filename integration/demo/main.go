// Command demo runs real inference jobs through the whole of Quittance on this
// machine and takes everything away again: a private containerd, the host
// agent, the controller as another user, a user who submits jobs.
//
//	make demo
//
// It owns the demonstration: what is set up, in which order, what is shown and
// what must be true of it. It uses the three programs by their command lines
// only, as anybody would; every claim that it prints was checked.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"syscall"
	"time"
)

// limit bounds a whole run, package installation and cold caches included.
const limit = 20 * time.Minute

func main() {
	cache := flag.String("cache", "build/images", "directory where images and the OCR root file system are kept between runs")
	keep := flag.Bool("keep", false, "keep the node running until interrupted, to look around")
	flag.Parse()
	if os.Geteuid() != 0 {
		fmt.Fprintln(os.Stderr, "demo: needs root: it starts a containerd and a host agent. Run: sudo make demo")
		os.Exit(2)
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	ctx, cancel := context.WithTimeoutCause(ctx, limit, fmt.Errorf("not done within %s", limit))
	err := run(ctx, *cache, *keep)
	cancel()
	stop()
	if err != nil {
		fmt.Fprintln(os.Stderr, "\ndemo: FAILED:", err)
		os.Exit(1)
	}
}

// run is the whole demonstration. Whatever happens, what was started is ended
// and what was made is removed; a failure there never hides the first one.
func run(ctx context.Context, cache string, keep bool) (err error) {
	s := newShow(os.Stdout, 10)
	n := &node{show: s, cache: cache}
	lookedAround := false // the interrupt that ended it is no failure
	defer func() {
		switch {
		case ctx.Err() != nil && !lookedAround:
			err = context.Cause(ctx)
			s.say("stopped before its end; taking everything down")
		case err != nil:
			n.showLogs()
		}
		err = errors.Join(err, n.takeDown())
		if err == nil {
			s.done()
		}
	}()
	for _, step := range []struct {
		title string
		do    func(context.Context) error
	}{
		{"What this machine needs", n.install},
		{"Building the three programs and two worker images", n.build},
		{"A private containerd, and the host agent that alone may use it", n.startHost},
		{"The controller, as another user without access to the engine", n.startController},
		{"A small model: in which language is this text?", n.identifyLanguage},
		{"A larger one: reading a page with 384 MiB of memory", n.readPage},
		{"A very large page with 64 MiB: the kernel kills, and it is proved", n.killPage},
		{"The same page with 384 MiB, and the host agent killed while it is read", n.crashAgent},
		{"Receipts, their verification, and the release of history", n.showReceipts},
	} {
		s.step(step.title)
		if err := step.do(ctx); err != nil {
			return fmt.Errorf("%s: %w", step.title, err)
		}
	}
	if keep {
		n.lookAround(ctx)
		lookedAround = true
	}
	s.step("Stopping everything and looking for what was left behind")
	return n.stopAndAudit(context.WithoutCancel(ctx))
}
