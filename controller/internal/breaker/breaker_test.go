package breaker

import (
	"testing"
	"time"
)

func TestBreaker(t *testing.T) {
	var b Breaker
	now := time.Unix(0, 0)
	check := func(open bool, until time.Duration) {
		t.Helper()
		got, at := b.Open(now)
		if got != open || until != 0 && !at.Equal(time.Unix(0, 0).Add(until)) {
			t.Fatalf("open %v until %v; want %v until %v", got, at, open, until)
		}
	}
	for range Limit - 1 {
		b.Took()
		b.Ended(Bad, now)
		check(false, 0)
	}
	b.Ended(Good, now) // starts the count anew
	for range Limit - 1 {
		b.Ended(Bad, now)
	}
	b.Ended(Neutral, now) // says nothing
	check(false, 0)
	b.Ended(Bad, now)
	check(true, 30*time.Second)

	now = now.Add(30 * time.Second)
	check(false, 0)
	b.Took()
	check(true, 0) // one try at a time
	b.Ended(Bad, now)
	check(true, 90*time.Second) // the pause has doubled

	now = now.Add(time.Minute)
	b.Took()
	b.Ended(Neutral, now)
	check(false, 0) // the next try may begin
	b.Took()
	b.Ended(Good, now)
	check(false, 0)
	b.Took()
	check(false, 0) // closed: any number at once
}

func TestPauseIsBounded(t *testing.T) {
	var b Breaker
	now := time.Unix(0, 0)
	for range 40 {
		b.Ended(Bad, now)
		_, until := b.Open(now)
		if until.Sub(now) > MaxPause {
			t.Fatalf("pause of %s", until.Sub(now))
		}
	}
	if _, until := b.Open(now); until.Sub(now) != MaxPause {
		t.Fatalf("pause of %s after many failures", until.Sub(now))
	}
}
