package ledger

import "crypto/sha256"

func hashOf(b []byte) digest { return sha256.Sum256(b) }

// prefetcher reads one segment ahead of the verification.
type prefetcher struct {
	results chan prefetched
	quit    chan struct{}
	done    chan struct{}
}

type prefetched struct {
	bytes []byte
	err   error
}

func (s *scanner) prefetch(ordinals []uint64) *prefetcher {
	p := &prefetcher{results: make(chan prefetched), quit: make(chan struct{}), done: make(chan struct{})}
	go func() {
		defer close(p.done)
		for _, ordinal := range ordinals {
			b, err := s.read(ordinal, maxFile)
			select {
			case p.results <- prefetched{b, err}:
			case <-p.quit:
				return
			}
			if err != nil {
				return
			}
		}
	}()
	return p
}

// read gives the next segment. It may be called once per ordinal.
func (p *prefetcher) read() ([]byte, error) {
	r := <-p.results
	return r.bytes, r.err
}

// stop ends the goroutine and waits for it.
func (p *prefetcher) stop() {
	close(p.quit)
	<-p.done
}
