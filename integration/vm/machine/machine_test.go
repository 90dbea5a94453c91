package machine

import (
	"errors"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"
)

// A guest that answers is never given up, however long it runs; one that does not
// is, after a standstill and not before.
func TestSilent(t *testing.T) {
	for name, row := range map[string]struct {
		answers int           // of the first questions
		over    time.Duration // after which the machine ends; 0: never
		fails   int           // the question that cannot be asked; 0: none
		want    bool
		takes   time.Duration
	}{
		"answers till it ends":    {answers: 1 << 20, over: 24 * time.Hour, takes: 24 * time.Hour},
		"never answers":           {want: true, takes: standstill},
		"answers three times":     {answers: 3, want: true, takes: 3*askInterval + standstill},
		"ends while it is silent": {over: standstill - time.Second, takes: standstill - time.Second},
		"the port has ended":      {fails: 2, takes: 2 * askInterval},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				var heard atomic.Int64
				over := make(chan struct{})
				if row.over > 0 {
					time.AfterFunc(row.over, func() { close(over) })
				}
				asked := 0
				began := time.Now()
				got := silent(&heard, over, func() error {
					if asked++; asked == row.fails {
						return errors.New("the port is closed")
					}
					if asked <= row.answers {
						heard.Store(time.Now().UnixNano())
					}
					return nil
				})
				if took := time.Since(began); got != row.want || took != row.takes {
					t.Errorf("silent %v after %s, want %v after %s", got, took, row.want, row.takes)
				}
			})
		})
	}
}
