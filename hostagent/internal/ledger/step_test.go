package ledger

import (
	"errors"
	"fmt"
	"strings"
	"testing"
)

// TestPowerCutAtEveryStep ends the power before every single change of the file
// system in a short life with rolls and a release, and before every one of the
// opening that follows (I5, I21, I35).
func TestPowerCutAtEveryStep(t *testing.T) {
	life := func(f *forgetFS) (acked, folded int) {
		o := Options{Generation: testGeneration, Segment: MinSegment, AttestAfter: never, FS: f}
		if Create("ledger", o, []Record{{KindReceipt, []byte("1 ")}}) != nil {
			return 0, 0
		}
		acked = 1
		l, err := Open("ledger", o)
		if err != nil {
			return acked, 0
		}
		for n := 2; n <= 12; n++ {
			done := make(chan error, 1)
			record := []Record{{KindReceipt, []byte(fmt.Sprintf("%d %s", n, strings.Repeat("x", 15000)))}}
			answer := func(_ []Entry, err error) { done <- err }
			if n == 8 {
				err = l.Release(Release{Base: []byte("7 "), Records: record}, answer)
			} else {
				err = l.Append(record, answer)
			}
			if err == nil {
				err = <-done
			}
			if err != nil {
				break
			}
			if acked = n; n == 8 {
				folded = 7
			}
		}
		_ = l.Close() // fails where the power went
		return acked, folded
	}
	verify := func(f *forgetFS, acked, folded int) (opened bool) {
		t.Helper()
		l, err := Open("ledger", Options{Segment: MinSegment, AttestAfter: never, FS: f})
		if errors.Is(err, errPower) || acked == 0 && errors.Is(err, ErrNotExist) {
			return false
		}
		if err != nil {
			t.Fatal(err)
		}
		next := 0
		if base := l.Recovered().Base; base != nil {
			if _, err := fmt.Sscanf(string(base), "%d ", &next); err != nil {
				t.Fatal(err)
			}
		}
		if next < folded {
			t.Fatalf("the base folds %d records, want %d", next, folded)
		}
		for _, payload := range payloadsOf(t, l) {
			if next++; !strings.HasPrefix(payload, fmt.Sprintf("%d ", next)) {
				t.Fatalf("where record %d belongs is %.10q", next, payload)
			}
		}
		if next < acked {
			t.Fatalf("%d records are there, %d were acknowledged", next, acked)
		}
		if err := l.Close(); err != nil && !errors.Is(err, errPower) {
			t.Fatal(err)
		}
		return true
	}
	whole := newForgetFS()
	if acked, _ := life(whole); acked != 12 {
		t.Fatalf("%d records acknowledged", acked)
	}
	if steps := whole.mutations; steps < 60 {
		t.Fatalf("%d steps are no life", steps)
	}
	for step := range whole.mutations {
		for i, kept := range []float64{0, 0.5, 1} {
			f := newForgetFS()
			f.countdown = step
			acked, folded := life(f)
			f.powerCut(seeded(uint64(step)), kept)
			// The power goes again while opening, at a step that moves along.
			f.countdown = (step + i*5) % 40
			verify(f, acked, folded)
			f.powerCut(seeded(uint64(step)+1), kept)
			if !verify(f, acked, folded) && acked > 0 {
				t.Fatalf("step %d: nothing is there, %d records were acknowledged", step, acked)
			}
		}
	}
}
