// Command misbehave is the fault worker: a small server that fails in one
// chosen way, for tests of what host agent and controller make of it. No other
// worker would fail so on demand.
//
//	misbehave -mode MODE [-listen 127.0.0.1:8080] [-count N] [-target PATH]
//
// Its modes are listed in [modes]. In every mode that serves at all, GET
// /health and POST /predict are the reference workers' routes; only kserve and
// framed speak those protocols instead, and there the request itself chooses
// the fault.
package main

import (
	"context"
	"flag"
	"fmt"
	"maps"
	"net"
	"os"
	"os/signal"
	"path/filepath"
	"slices"
	"strings"
	"syscall"

	"github.com/quittance/quittance/integration/workers/worker"
)

// modes says how each mode fails.
var modes = map[string]struct {
	what string
	run  func(ctx context.Context, o options, l net.Listener) error
}{
	"never-ready":    {"health answers 503 for ever", neverReady},
	"dies-ready":     {"exits 3 right after it said that it is ready", diesReady},
	"dies-working":   {"exits 3 when it is asked to work", diesWorking},
	"silent":         {"is ready, takes the request, never answers", silent},
	"deaf":           {"holds its listening socket and never accepts", deaf},
	"slow-bytes":     {"answers a byte at a time, for ever", slowBytes},
	"endless":        {"answers without end", endless},
	"huge-headers":   {"answers with a megabyte of headers", hugeHeaders},
	"half":           {"announces 100 bytes, sends 50 and closes", half},
	"not-json":       {"answers with something else than JSON", notJSON},
	"children":       {"starts -count children that ignore SIGTERM, then answers", children},
	"storm":          {"starts -count light children that ignore SIGTERM, as it does, and reaps none", storm},
	"flood":          {"writes to its output without end, and answers", flood},
	"fill":           {"fills the directory -target until nothing fits, then answers", fill},
	"links":          {"keeps exchanging its Unix socket for links to -target, and answers in between", links},
	"ignores-term":   {"works, and ignores SIGTERM", ignoresTerm},
	"child-killed":   {"a child kills itself with SIGKILL; PID 1 lives on and answers", childKilled},
	"child-oom":      {"a child takes memory until the kernel kills it; PID 1 lives on and answers", childOOM},
	"child-oom-end":  {"as child-oom, and then exits 0", childOOMEnd},
	"oom":            {"takes memory itself until the kernel kills it", ownOOM},
	"child-oom-loop": {"lets the kernel kill one child after another for memory, and answers", childOOMLoop},
	"connects-back":  {"tries every way out of its container and answers with those that worked", connectsBack},
	"kserve":         {"speaks the Open Inference Protocol and fails as the request's text says", kserveFaults},
	"framed":         {"speaks length-prefixed JSON and fails as the request's text says", framedFaults},
}

// options are the command line's.
type options struct {
	count  int
	target string
}

func main() {
	if len(os.Args) == 3 && os.Args[1] == childVerb {
		os.Exit(child(os.Args[2]))
	}
	mode := flag.String("mode", "", "how to fail: "+strings.Join(slices.Sorted(maps.Keys(modes)), ", "))
	listen := flag.String("listen", "127.0.0.1:8080", "host:port or unix:/path to listen on")
	count := flag.Int("count", 2000, "children, for the modes children and storm")
	target := flag.String("target", "/tmp", "directory to fill, or path that links lead to")
	flag.Parse()
	m, known := modes[*mode]
	if !known || flag.NArg() != 0 {
		flag.Usage()
		os.Exit(2)
	}
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM, syscall.SIGINT)
	listener, err := open(ctx, *listen)
	if err == nil {
		fmt.Fprintln(os.Stderr, "misbehave:", *mode+":", m.what)
		err = m.run(ctx, options{count: *count, target: *target}, listener)
	}
	stop()
	if err != nil {
		fmt.Fprintln(os.Stderr, "misbehave:", err)
		os.Exit(1)
	}
}

// open listens; the directory of a Unix socket is made.
func open(ctx context.Context, address string) (net.Listener, error) {
	if path, isUnix := strings.CutPrefix(address, "unix:"); isUnix {
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			return nil, err
		}
	}
	return worker.Listen(ctx, address)
}
