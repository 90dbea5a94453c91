package store

import (
	"path/filepath"
	"strconv"
	"testing"

	"github.com/quittance/quittance/controller/internal/attempt"
	"github.com/quittance/quittance/protocol"
)

// BenchmarkUpdate is one durable replacement of a record on the real file
// system: temporary file, sync, rename, sync of the directory.
func BenchmarkUpdate(b *testing.B) {
	cfg := config(nil)
	cfg.Dir = filepath.Join(b.TempDir(), "store")
	s := created(b, cfg)
	defer mustClose(b, s)
	e := mustCreate(b, s, "a")
	for i := 0; b.Loop(); i++ {
		var err error
		e, err = s.Apply(b.Context(), e, attempt.StartSending{Expires: testTime + protocol.Timestamp(i)})
		if err != nil {
			b.Fatal(err)
		}
	}
}

// BenchmarkWholeAttempt is every durable step of one attempt, archive and trim
// included.
func BenchmarkWholeAttempt(b *testing.B) {
	cfg := config(nil)
	cfg.Dir = filepath.Join(b.TempDir(), "store")
	s := created(b, cfg)
	defer mustClose(b, s)
	for i := 0; b.Loop(); i++ {
		finish(b, s, "k"+strconv.Itoa(i), 1)
		if _, err := s.Trim(b.Context()); err != nil {
			b.Fatal(err)
		}
	}
}
