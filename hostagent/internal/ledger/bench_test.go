package ledger

import (
	"errors"
	"fmt"
	"path/filepath"
	"sync"
	"testing"
	"time"
)

// benchPayload is as long as a usual receipt.
const benchPayload = 512 - recordHeader

// BenchmarkCommit measures durable appends with 1 and 64 callers waiting, in
// ratio to the disk's own speed: overwriting 512 bytes of a zero-filled file
// with fdatasync, interleaved in the same run ("x-raw"; the bars are 0.8 for
// one caller and 15 for 64).
func BenchmarkCommit(b *testing.B) {
	for _, callers := range []int{1, 64} {
		b.Run(fmt.Sprint(callers), func(b *testing.B) {
			base := b.TempDir()
			dir := filepath.Join(base, "ledger")
			if err := Create(dir, Options{Generation: testGeneration}, []Record{{KindReceipt, []byte("genesis")}}); err != nil {
				b.Fatal(err)
			}
			l, err := Open(dir, Options{Reserve: 16 << 20})
			if err != nil {
				b.Fatal(err)
			}
			raw := newRaw(b, filepath.Join(base, "raw"))
			const slice = 100 * time.Millisecond
			var commits, overwrites int
			for b.Loop() {
				overwrites += raw.run(b, slice)
				commits += commitFor(b, l, callers, slice)
			}
			b.ReportMetric(float64(commits)/float64(overwrites), "x-raw")
			b.ReportMetric(float64(commits)/(float64(b.N)*slice.Seconds()), "commits/s")
			if err := l.Close(); err != nil {
				b.Fatal(err)
			}
		})
	}
}

// commitFor appends from that many callers, each waiting for its answer.
func commitFor(b *testing.B, l *Ledger, callers int, d time.Duration) (n int) {
	payload := make([]byte, benchPayload)
	var mu sync.Mutex
	var wg sync.WaitGroup
	end := time.Now().Add(d)
	for range callers {
		wg.Go(func() {
			mine := 0
			done := make(chan error, 1)
			for time.Now().Before(end) {
				if err := l.Append([]Record{{KindReceipt, payload}}, func(_ []Entry, err error) { done <- err }); err != nil {
					b.Error(err)
					return
				}
				if err := <-done; err != nil {
					b.Error(err)
					return
				}
				mine++
			}
			mu.Lock()
			defer mu.Unlock()
			n += mine
		})
	}
	wg.Wait()
	return n
}

// raw overwrites a zero-filled file.
type raw struct {
	file   File
	offset int64
}

const rawBytes = 4 << 20

func newRaw(b *testing.B, name string) *raw {
	var o osFS
	err := writeSegment(o, name, nil, rawBytes)
	if err != nil {
		b.Fatal(err)
	}
	file, err := o.OpenFile(name, false)
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() {
		if err := file.Close(); err != nil {
			b.Error(err)
		}
	})
	return &raw{file: file}
}

func (r *raw) run(b *testing.B, d time.Duration) (n int) {
	block := make([]byte, 512)
	for end := time.Now().Add(d); time.Now().Before(end); n++ {
		_, err := r.file.WriteAt(block, r.offset)
		if err := errors.Join(err, r.file.Sync()); err != nil {
			b.Fatal(err)
		}
		r.offset = (r.offset + 512) % rawBytes
	}
	return n
}

// BenchmarkOpen verifies and folds a ledger of 100,000 and of 1,000,000
// receipts, none of them released.
func BenchmarkOpen(b *testing.B) {
	for _, receipts := range []int{100_000, 1_000_000} {
		b.Run(fmt.Sprint(receipts), func(b *testing.B) {
			dir := filepath.Join(b.TempDir(), "ledger")
			o := Options{Generation: testGeneration, Reserve: 32 << 20}
			if err := Create(dir, o, []Record{{KindReceipt, []byte("genesis")}}); err != nil {
				b.Fatal(err)
			}
			l, err := Open(dir, o)
			if err != nil {
				b.Fatal(err)
			}
			payload := make([]byte, benchPayload)
			done := make(chan error, 1)
			for n := 1; n < receipts; {
				records := make([]Record, min(1000, receipts-n))
				for i := range records {
					records[i] = Record{KindReceipt, payload}
				}
				n += len(records)
				if err := l.Append(records, func(_ []Entry, err error) { done <- err }); err != nil {
					b.Fatal(err)
				}
				if err := <-done; err != nil {
					b.Fatal(err)
				}
			}
			if err := l.Close(); err != nil {
				b.Fatal(err)
			}
			for b.Loop() {
				l, err := Open(dir, o)
				if err != nil {
					b.Fatal(err)
				}
				n := 0
				for _, err := range l.Recovered().Records {
					if err != nil {
						b.Fatal(err)
					}
					n++
				}
				if n != receipts {
					b.Fatalf("%d receipts, want %d", n, receipts)
				}
				if err := l.Close(); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}
