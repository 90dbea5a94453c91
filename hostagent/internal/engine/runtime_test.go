//go:build engine

package engine

import (
	"path/filepath"
	"testing"
	"time"

	"github.com/hashicorp/go-hclog"
	"github.com/quittance/quittance/integration/privateengine"
	"github.com/quittance/quittance/integration/runcwrapper"
	"github.com/quittance/quittance/protocol"
	"golang.org/x/sys/unix"
)

// The runtime's kill delays, hangs, fails after its effect, or says that it
// worked and did nothing: Kill is bounded, its error never claims that nothing
// happened where something may have, and the next one ends the process (I11).
func TestRuntimeKillFails(t *testing.T) {
	wrapper := runcwrapper.Install(t)
	withOwnEngine(t)
	for _, way := range runcwrapper.Ways {
		t.Run(string(way), func(t *testing.T) {
			l := start(t, profileOf("sleep"))
			l.awaitLog("sleeping")
			must(t, wrapper.Arm("kill", way))
			began := time.Now()
			err := shared.engine.Kill(t.Context(), l.created.Identity, unix.SIGKILL, true)
			took := time.Since(began)
			must(t, wrapper.Met(bounded(t, time.Minute), "kill"))
			if most := shared.engine.o.Deadlines.Kill + 10*time.Second; took > most {
				t.Errorf("took %s", took)
			}
			gone := false
			switch way {
			case runcwrapper.Delay:
				must(t, err)
				gone = true
			case runcwrapper.FailAfter:
				if err == nil || DispositionOf(err) != protocol.Unknown {
					t.Errorf("failed after the effect: %v, %s; want unknown", err, DispositionOf(err))
				}
				gone = true
			case runcwrapper.Hang:
				// The deadline crosses the wire: the daemon may be the first to see it,
				// and tells it in words only.
				if err == nil || DispositionOf(err) != protocol.Unknown || took < shared.engine.o.Deadlines.Kill-time.Second {
					t.Errorf("hung: %v, %s, after %s; want the deadline, unknown", err, DispositionOf(err), took)
				}
			case runcwrapper.Nothing:
				must(t, err) // nobody can tell; the process is the witness
			}
			if exited, err := l.proc.Exited(); !gone && (err != nil || exited) {
				t.Errorf("exited %t, %v; the signal was not sent", exited, err)
			}
			if !gone {
				must(t, shared.engine.Kill(t.Context(), l.created.Identity, unix.SIGKILL, true))
			}
			if exit := l.awaitExit(); exit.Code != 128+9 {
				t.Errorf("exit code %d, want 137", exit.Code)
			}
			l.retire()
		})
	}
}

// withOwnEngine gives the test an engine that it shares with no other: one that
// sees the test's environment.
func withOwnEngine(t *testing.T) {
	t.Helper()
	dir := t.TempDir()
	private, err := privateengine.Start(t.Context(), privateengine.Config{Dir: filepath.Join(dir, "e")})
	must(t, err)
	t.Cleanup(func() {
		if err := private.Destroy(); err != nil {
			t.Error(err)
		}
	})
	o := shared.engine.o
	o.Address, o.Logger = private.Address(), hclog.New(&hclog.LoggerOptions{Level: hclog.Warn})
	o.Deadlines.Kill = 8 * time.Second
	own, err := Open(t.Context(), o)
	must(t, err)
	before := shared
	t.Cleanup(func() {
		shared = before
		if err := own.Close(); err != nil {
			t.Error(err)
		}
	})
	archive, err := workerArchive(dir)
	must(t, err)
	imported, err := own.ImportImage(t.Context(), archive)
	must(t, err)
	shared.private, shared.engine, shared.image = private, own, imported[0].Pinned
}
