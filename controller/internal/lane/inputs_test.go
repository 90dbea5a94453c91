package lane

import (
	"context"
	"errors"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/quittance/quittance/controller/internal/attempt"
	"github.com/quittance/quittance/controller/internal/journal"
	"github.com/quittance/quittance/protocol"
)

// deafHost takes a retirement and does not tell of its end while it is deaf.
type deafHost struct {
	agentSide
	deaf   bool
	retire func()
}

func (h *deafHost) Retire(ctx context.Context, generation protocol.ID, n protocol.Number, purpose, note string) error {
	if h.retire != nil {
		h.retire()
	}
	if h.deaf {
		<-ctx.Done()
		return context.Cause(ctx)
	}
	return h.agentSide.Retire(ctx, generation, n, purpose, note)
}

// Private files are removed after the allocation's retirement, in this process
// or, where that did not come to it, in the next one.
func TestPrivateFilesOutliveTheirWorker(t *testing.T) {
	in(t, func(t *testing.T, w *world) {
		work, stop := context.WithCancelCause(t.Context())
		final, end := context.WithTimeout(t.Context(), time.Minute)
		defer end()
		w.handler = func(_ http.ResponseWriter, r *http.Request) {
			stop(errors.New("SIGTERM"))
			hang(nil, r)
		}
		h := &deafHost{agentSide: agentSide{w}, deaf: true}
		first := w.lane(offer())
		first.Host, first.Recovery.Host = h, h
		if _, err := first.attempt(Contexts{Take: work, Work: work, Final: final}, w.selection(offer())); !errors.Is(err, context.DeadlineExceeded) {
			t.Fatal(err)
		}
		key := w.records.Active()[0].Key
		claim, err := w.claims.Claim(key)
		if err != nil {
			t.Fatal(err)
		}
		j := reopen(t, w, claim)
		if attempt.HostSettled(j.Record()) {
			t.Fatalf("record is %s, settled", stateOf(w))
		}
		first.discard(j, func() error {
			t.Error("removed while the worker may run")
			return nil
		})

		second := w.lane(offer())
		second.Executor.InputsDir = t.TempDir()
		file := filepath.Join(second.Executor.InputsDir, key, "up-"+strings.Repeat("0", 32))
		if err := errors.Join(os.Mkdir(filepath.Dir(file), 0o700), os.WriteFile(file, []byte("x"), 0o600)); err != nil {
			t.Fatal(err)
		}
		asked := 0
		h.deaf, h.retire = false, func() {
			asked++
			if _, err := os.Lstat(file); err != nil {
				t.Error(err)
			}
		}
		second.Host, second.Recovery.Host = h, h
		if err := second.recover(always(t), []*journal.Attempt{j}); err != nil {
			t.Fatal(err)
		}
		if _, err := os.Lstat(filepath.Dir(file)); !errors.Is(err, os.ErrNotExist) || asked == 0 {
			t.Fatalf("after %d retirements: %v", asked, err)
		}
	})
}
